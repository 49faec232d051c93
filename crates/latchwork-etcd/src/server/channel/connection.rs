//! One HTTP/2 connection.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use h2::client::{Builder, SendRequest};
use latchwork_store::Io;
use latchwork_wire::tls::refusal;
use latchwork_wire::{Drive, Reached, dial};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;
use tonic::codegen::Bytes;
use tonic::codegen::http::Uri;

use super::Target;
use super::mover::{Mover, Orders};
use super::stream::{Noted, Pulse};
use crate::server::errors::{NotConnected, WORDS};

/// As much may come on one stream, and on all of them, before it was read. Queues may be long.
const STREAM_WINDOW: u32 = 2 << 20;
const CONNECTION_WINDOW: u32 = 5 << 20;
/// The largest head of an answer.
const LONGEST_HEAD: u32 = 16 << 10;

/// A connection. It ends when nobody has it any more.
#[derive(Clone)]
pub(crate) struct Connection(Arc<Inner>);

struct Inner {
    requests: SendRequest<Bytes>,
    drive: Arc<Drive>,
    orders: Arc<Orders>,
    pulse: Arc<Pulse>,
    origin: Uri,
}

/// Connects, and waits for the first bytes of the member: a process that has stopped takes connections as well.
pub(super) async fn connect(
    target: &Target,
    reached: &Reached,
    io: &Io,
) -> Result<Connection, NotConnected> {
    let failed = |error: std::io::Error| NotConnected(error.into());
    let stream = dial(&target.endpoint, io).await.map_err(failed)?;
    reached.note(&stream);
    let (socket, drive) = Drive::open(stream, io).map_err(failed)?;
    let connection = match &target.tls {
        None => begin(socket, drive, target, io).await,
        Some((tls, name)) => {
            let greeting = tls.greeting(name).map_err(|e| NotConnected(e.message.into()))?;
            let refused = |error: std::io::Error| match refusal(&error, &WORDS) {
                Some(refusal) => NotConnected(refusal.into()),
                None => failed(error),
            };
            let stream = greeting.speaking(b"h2").greet(socket).await.map_err(refused)?;
            begin(stream, drive, target, io).await
        }
    }?;
    connection.hear().await;
    Ok(connection)
}

async fn begin(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    drive: Arc<Drive>,
    target: &Target,
    io: &Io,
) -> Result<Connection, NotConnected> {
    let pulse = Arc::<Pulse>::default();
    let noted = Noted { stream, pulse: pulse.clone(), io: io.clone() };
    let begun = Builder::new()
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(LONGEST_HEAD)
        .enable_push(false)
        .handshake(noted);
    let (requests, connection) = begun.await.map_err(|error| NotConnected(error.into()))?;
    let orders = Arc::<Orders>::default();
    let mover = Mover::new(connection, orders.clone(), pulse.clone(), &drive);
    drive.start(mover);
    let origin = target.origin.clone();
    Ok(Connection(Arc::new(Inner { requests, drive, orders, pulse, origin })))
}

impl Connection {
    /// Whether it takes requests.
    pub(crate) fn is_open(&self) -> bool {
        let inner = &self.0;
        if inner.orders.has_ended() || inner.drive.has_ended() {
            return false;
        }
        let mut cx = Context::from_waker(Waker::noop());
        !matches!(inner.requests.clone().poll_ready(&mut cx), Poll::Ready(Err(_)))
    }

    /// Looks for its end first, if it was not used for a moment.
    pub(super) fn refreshed(&self) -> &Self {
        self.0.drive.refresh();
        self
    }

    /// How many streams the member lets it have at a time.
    pub(crate) fn streams(&self) -> usize {
        self.0.requests.current_max_send_streams()
    }

    /// Moves its bytes.
    pub(crate) fn drive(&self) -> &Arc<Drive> {
        &self.0.drive
    }

    /// What a request calls the member.
    pub(crate) fn origin(&self) -> Uri {
        self.0.origin.clone()
    }

    pub(super) fn requests(&self) -> SendRequest<Bytes> {
        self.0.requests.clone()
    }

    pub(super) fn orders(&self) -> &Arc<Orders> {
        &self.0.orders
    }

    /// Whether anything comes.
    pub(crate) fn pulse(&self) -> &Pulse {
        &self.0.pulse
    }

    /// Waits for the first bytes, or for its end: a request then says why.
    async fn hear(&self) {
        let pulse = self.0.pulse.clone();
        let first = poll_fn(move |cx| pulse.poll_first(cx));
        self.0.drive.answer(self.run(first)).await;
    }

    /// Ends it: it is of no use.
    pub(crate) fn end(&self) {
        self.0.orders.end();
        self.0.drive.move_now();
    }

    /// Runs a future on whichever thread moves the connection, as long as it lives; `None` if it has
    /// ended.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let (told, done) = oneshot::channel();
        self.0.orders.run(Box::pin(async move {
            // The caller may have gone.
            let _ = told.send(future.await);
        }));
        self.0.drive.move_now();
        done.await.ok()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // What moves it has wakers of the drive in itself, and would never be dropped.
        self.orders.end();
        self.drive.move_now();
    }
}
