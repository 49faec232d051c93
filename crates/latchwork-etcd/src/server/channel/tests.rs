//! A connection beside a server of HTTP/2 that does what members seldom do.

#![expect(clippy::disallowed_methods, reason = "the server of the tests runs on their own runtime")]

use std::error::Error as _;
use std::net::SocketAddr;
use std::time::Duration;

use h2::server::{self, SendResponse};
use latchwork_store::testing::paused_io;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tonic::codegen::{Bytes, http};
use tonic::{Code, Request, Response, Status};

use super::*;
use crate::proto::kv_client::KvClient;
use crate::proto::{RangeRequest, RangeResponse};

const SOON: Duration = Duration::from_secs(5);

async fn listener() -> (TcpListener, Channel) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at: SocketAddr = listener.local_addr().unwrap();
    let endpoint = Endpoint { host: at.ip().to_string(), port: at.port() };
    // The time of this runtime goes on.
    let channel = Channel::new(&endpoint, None, &paused_io().0).unwrap();
    (listener, channel)
}

async fn range(channel: &Channel) -> Result<Response<RangeResponse>, Status> {
    let connection = channel.connection().await?;
    let drive = connection.drive().clone();
    let asking = async {
        let origin = connection.origin();
        KvClient::with_origin(connection, origin).range(Request::new(RangeRequest::default())).await
    };
    tokio::time::timeout(SOON, drive.send(asking))
        .await
        .expect("it is answered")
        .unwrap_or_else(|| Err(Status::unavailable("the connection has ended")))
}

/// An empty answer to a range.
fn answer(mut respond: SendResponse<Bytes>) {
    let head = http::Response::builder().header("content-type", "application/grpc").body(());
    let mut body = respond.send_response(head.unwrap(), false).unwrap();
    body.send_data(Bytes::from_static(&[0; 5]), false).unwrap();
    let mut trailers = http::HeaderMap::new();
    trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
    body.send_trailers(trailers).unwrap();
}

/// Answers what is asked, until the connection ends.
async fn serve(stream: TcpStream) -> usize {
    let mut connection = server::handshake(stream).await.unwrap();
    let mut answered = 0;
    while let Some(Ok((_, respond))) = connection.accept().await {
        answer(respond);
        answered += 1;
    }
    answered
}

/// Answers the second request and says goodbye, and the first one after that.
async fn serve_two(stream: TcpStream) -> usize {
    let mut connection = server::handshake(stream).await.unwrap();
    let (_, first) = connection.accept().await.unwrap().unwrap();
    let (_, second) = connection.accept().await.unwrap().unwrap();
    answer(second);
    connection.graceful_shutdown();
    let mut more = 0;
    let later = async {
        while connection.accept().await.is_some() {
            more += 1;
        }
    };
    let _ = tokio::time::timeout(Duration::from_millis(500), later).await;
    answer(first);
    while connection.accept().await.is_some() {
        more += 1;
    }
    more
}

#[tokio::test]
async fn goaway_answers_old_requests_and_redirects_new_ones() {
    let (listener, channel) = listener().await;
    let server = tokio::spawn(async move {
        let first = tokio::spawn(serve_two(listener.accept().await.unwrap().0));
        let answered = serve(listener.accept().await.unwrap().0).await;
        (first.await.unwrap(), answered)
    });
    let asks = channel.clone();
    let first = tokio::spawn(async move { range(&asks).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    range(&channel).await.unwrap();
    // The goodbye may come after the answer.
    tokio::time::sleep(Duration::from_millis(50)).await;
    range(&channel).await.unwrap();
    assert!(!first.is_finished());
    first.await.unwrap().unwrap();
    drop(channel);
    let answered = tokio::time::timeout(SOON, server).await.expect("all have ended").unwrap();
    assert_eq!(answered, (0, 1), "nothing was asked after the goodbye");
}

#[tokio::test]
async fn an_unused_connection_is_closed() {
    let (listener, channel) = listener().await;
    let server = tokio::spawn(async move { serve(listener.accept().await.unwrap().0).await });
    range(&channel).await.unwrap();
    assert!(!server.is_finished());
    drop(channel);
    let answered = tokio::time::timeout(SOON, server).await.expect("it is closed").unwrap();
    assert_eq!(answered, 1);
}

#[tokio::test]
async fn a_server_of_another_protocol_fails_at_once() {
    let (listener, channel) = listener().await;
    let server = tokio::spawn(async move {
        let mut stream = listener.accept().await.unwrap().0;
        let mut asked = [0; 24];
        stream.read_exact(&mut asked).await.unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
    });
    let status = range(&channel).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    drop(channel);
    tokio::time::timeout(SOON, server).await.expect("it is closed").unwrap();
}

/// H528: a process that has stopped takes connections and says nothing on them. Nothing was asked of it.
#[tokio::test]
async fn h528_a_server_that_says_nothing_is_not_connected() {
    let (_listener, channel) = listener().await;
    let status = range(&channel).await.unwrap_err();
    let from = Endpoint { host: "h".into(), port: 1 };
    let error = crate::server::errors::failure(&status, &from).error;
    assert_eq!(error.message, "cannot connect to h:1: no answer within 2s");
    assert_eq!(error.effect, latchwork_store::Effect::NotApplied);
}

#[tokio::test]
async fn waiters_share_one_connection_attempt() {
    let (listener, channel) = listener().await;
    drop(listener);
    let attempts = [range(&channel), range(&channel), range(&channel)];
    for status in futures_util::future::join_all(attempts).await {
        let status = status.unwrap_err();
        let mut source = status.source();
        while let Some(error) = source.filter(|error| !error.is::<NotConnected>()) {
            source = error.source();
        }
        assert!(source.is_some(), "it says that it was never connected: {status:?}");
    }
}
