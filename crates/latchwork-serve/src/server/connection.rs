//! One connection: requests are read with bounded patience and memory, and answered.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tower::ServiceExt;

use super::outlet::Outlet;
use super::socket::Socket;
use super::tls::Tls;
use crate::domain::access::caller::Peer;
use crate::time::at_most;

/// How long the head of a request, or a TLS handshake, may take. A connection that is kept alive may be
/// idle for as long.
const PATIENCE: Duration = Duration::from_secs(20);

/// The most bytes of a request's head: the name in its path can have some 20,000 characters of any script.
const LARGEST_HEAD: usize = 64 * 1024;

/// Serves a connection until it ends, or the service has stopped.
pub(super) async fn serve(
    socket: Socket,
    peer: Peer,
    tls: Option<Arc<Tls>>,
    router: Router,
    stopped: watch::Receiver<bool>,
) {
    match tls.filter(|_| !peer.is_unix()) {
        Some(tls) => {
            // A failed handshake concerns the client alone.
            match at_most(PATIENCE, tls.acceptor().accept(socket.clone())).await {
                Some(Ok(stream)) => requests(stream, socket, peer, router, stopped).await,
                Some(Err(error)) => tracing::debug!(%peer, %error, "no TLS handshake"),
                None => tracing::debug!(%peer, "no TLS handshake in time"),
            }
        }
        None => requests(socket.clone(), socket, peer, router, stopped).await,
    }
}

/// Completes when the service has stopped.
pub(super) async fn has_stopped(stopped: &mut watch::Receiver<bool>) {
    // An error means that the service has ended.
    let _ = stopped.wait_for(|it| *it).await;
}

async fn requests<S>(
    stream: S,
    socket: Socket,
    peer: Peer,
    router: Router,
    mut stopped: watch::Receiver<bool>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let at = peer.clone();
    let answer = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(at.clone()));
        let answered = router.clone().oneshot(request.map(Body::new));
        let socket = socket.clone();
        async move {
            tokio::select! {
                biased;
                Ok(answer) = answered => Ok(answer),
                // Dropping the future of a waiting request withdraws it.
                () = socket.gone() => Err(io::Error::from(io::ErrorKind::ConnectionReset)),
            }
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .max_buf_size(LARGEST_HEAD)
        .serve_connection(TokioIo::new(Outlet::new(stream)), answer);
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = has_stopped(&mut stopped) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "the connection was cut");
    }
}
