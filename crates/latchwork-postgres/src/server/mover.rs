//! Moves the bytes of a connection, and takes what the server sends unasked.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tokio_postgres::error::{DbError, SqlState};
use tokio_postgres::{AsyncMessage, Connection, Notification};

/// Takes notifications.
pub(crate) type Sink = Arc<dyn Fn(Notification) + Send + Sync>;

/// What those that use a connection and what moves it tell each other.
#[derive(Default)]
pub(crate) struct Orders {
    ended: AtomicBool,
    /// How many commits were reported as not replicated.
    warnings: AtomicU64,
    gone: Notify,
}

impl Orders {
    /// Ends the connection at the next move.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Returns when the connection has ended. For one caller.
    pub(crate) async fn gone(&self) {
        self.gone.notified().await;
    }

    pub(crate) fn warnings(&self) -> u64 {
        self.warnings.load(Ordering::SeqCst)
    }
}

pub(crate) struct Mover<S, T> {
    connection: Connection<S, T>,
    orders: Arc<Orders>,
    sink: Option<Sink>,
}

impl<S, T> Mover<S, T> {
    pub(crate) fn new(
        connection: Connection<S, T>,
        orders: Arc<Orders>,
        sink: Option<Sink>,
    ) -> Self {
        Self { connection, orders, sink }
    }
}

impl<S, T> Drop for Mover<S, T> {
    fn drop(&mut self) {
        self.orders.end();
        self.orders.gone.notify_one();
    }
}

/// Whether the server ended a commit's wait for a standby: the notice comes before the answer.
fn is_unreplicated(notice: &DbError) -> bool {
    notice.severity() == "WARNING"
        && matches!(*notice.code(), SqlState::WARNING | SqlState::ADMIN_SHUTDOWN)
}

impl<S, T> Future for Mover<S, T>
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        loop {
            if this.orders.has_ended() {
                return Poll::Ready(());
            }
            match this.connection.poll_message(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(AsyncMessage::Notice(notice)))) => {
                    if is_unreplicated(&notice) {
                        this.orders.warnings.fetch_add(1, Ordering::SeqCst);
                    }
                }
                Poll::Ready(Some(Ok(AsyncMessage::Notification(notification)))) => {
                    if let Some(sink) = &this.sink {
                        sink(notification);
                    }
                }
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(None | Some(Err(_))) => return Poll::Ready(()),
            }
        }
    }
}
