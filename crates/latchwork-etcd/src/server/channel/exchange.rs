//! A request and its answer, in the form that tonic's clients need.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::future::BoxFuture;
use h2::{Reason, RecvStream, SendStream};
use tokio::sync::oneshot;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Body as _, Bytes, Service, http};

use super::connection::Connection;
use super::mover::InUse;

impl Service<http::Request<Body>> for Connection {
    type Response = http::Response<Answer>;
    type Error = Status;
    type Future = BoxFuture<'static, Result<Self::Response, Status>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let connection = self.clone();
        Box::pin(async move { connection.exchange(request).await })
    }
}

impl Connection {
    async fn exchange(
        self,
        request: http::Request<Body>,
    ) -> Result<http::Response<Answer>, Status> {
        let in_use = self.orders().begin();
        let mut requests = self.requests().ready().await.map_err(broken)?;
        let (head, mut body) = request.into_parts();
        let (first, is_whole) = first_of(&mut body).await?;
        let head = http::Request::from_parts(head, ());
        // Written one after the other, they leave in one packet.
        let (response, mut out) = requests.send_request(head, false).map_err(broken)?;
        out.send_data(first, is_whole).map_err(broken)?;
        let (open, is_over) = oneshot::channel();
        if !is_whole {
            self.orders().run(Box::pin(send_rest(body, out, is_over)));
        }
        let response = response.await.map_err(broken)?;
        Ok(response.map(|stream| Answer {
            stream,
            has_all: false,
            _open: open,
            _in_use: in_use,
            _connection: self,
        }))
    }
}

/// What there is of a body now, and whether that is all.
async fn first_of(body: &mut Body) -> Result<(Bytes, bool), Status> {
    let mut first = Bytes::new();
    loop {
        let next = poll_fn(|cx| Poll::Ready(Pin::new(&mut *body).poll_frame(cx))).await;
        match next {
            Poll::Pending => return Ok((first, false)),
            Poll::Ready(None) => return Ok((first, true)),
            Poll::Ready(Some(frame)) => {
                let Ok(more) = frame?.into_data() else { continue };
                first = if first.is_empty() { more } else { [first, more].concat().into() };
            }
        }
    }
}

/// Sends what is said later, until the other side of the stream has been dropped.
async fn send_rest(mut body: Body, mut out: SendStream<Bytes>, mut is_over: oneshot::Receiver<()>) {
    loop {
        let next = poll_fn(|cx| {
            if Pin::new(&mut is_over).poll(cx).is_ready() || out.poll_reset(cx).is_ready() {
                return Poll::Ready(None);
            }
            Pin::new(&mut body).poll_frame(cx).map(Some)
        });
        let sent = match next.await {
            None => return,
            Some(None) => return drop(out.send_data(Bytes::new(), true)),
            Some(Some(Err(_))) => return out.send_reset(Reason::CANCEL),
            Some(Some(Ok(frame))) => match frame.into_data() {
                Ok(data) => out.send_data(data, false),
                Err(_) => Ok(()),
            },
        };
        if sent.is_err() {
            return;
        }
    }
}

/// The body of an answer.
pub(crate) struct Answer {
    stream: RecvStream,
    /// Its trailers are next.
    has_all: bool,
    /// Ends what is still to be sent.
    _open: oneshot::Sender<()>,
    _in_use: InUse,
    _connection: Connection,
}

impl tonic::codegen::Body for Answer {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame, Status>>> {
        while !self.has_all {
            match ready!(self.stream.poll_data(cx)) {
                Some(Ok(data)) => {
                    // It fails only if the stream has ended.
                    let _ = self.stream.flow_control().release_capacity(data.len());
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Some(Err(error)) => {
                    // A server that has said all may end the stream so.
                    if error.reason() != Some(Reason::NO_ERROR) {
                        return Poll::Ready(Some(Err(broken(error))));
                    }
                    return Poll::Ready(None);
                }
                None => self.has_all = true,
            }
        }
        let trailers = ready!(self.stream.poll_trailers(cx)).map_err(broken)?;
        Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
    }
}

type Frame = http_body::Frame<Bytes>;

/// The connection broke, or the server has ended the stream.
fn broken(error: h2::Error) -> Status {
    let said = error.get_io().map_or_else(|| error.to_string(), ToString::to_string);
    Status::unavailable(said)
}
