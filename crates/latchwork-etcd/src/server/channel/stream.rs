//! The stream of bytes below HTTP/2, which notes when data arrives.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use futures_util::task::AtomicWaker;
use latchwork_store::{Io, Moment};
use latchwork_wire::tls::{Refusal, refusal};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::server::errors::WORDS;

/// Counts what comes from a member. It tells a connection that is silent from a server that is slow.
#[derive(Debug, Default)]
pub(crate) struct Pulse {
    heard: AtomicU64,
    heard_at: AtomicU64,
    /// Wakes the task that waits for the first bytes.
    waits: AtomicWaker,
    /// Why TLS has ended it: a server refuses a certificate after the handshake.
    refused: OnceLock<Refusal>,
}

impl Pulse {
    /// Why TLS has ended the connection, if it did.
    pub(crate) fn refusal(&self) -> Option<&Refusal> {
        self.refused.get()
    }

    /// How often something came.
    pub(crate) fn heard(&self) -> u64 {
        self.heard.load(Ordering::Relaxed)
    }

    /// When something came last.
    pub(super) fn heard_at(&self) -> Moment {
        Moment::from_nanos(self.heard_at.load(Ordering::Relaxed))
    }

    /// From now on it is expected to be heard.
    pub(super) fn begin(&self, now: Moment) {
        self.heard_at.store(now.as_nanos(), Ordering::Relaxed);
    }

    fn hear(&self, now: Moment) {
        self.heard_at.store(now.as_nanos(), Ordering::Relaxed);
        if self.heard.fetch_add(1, Ordering::Relaxed) == 0 {
            self.waits.wake();
        }
    }

    /// Ready once something has come.
    pub(super) fn poll_first(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.waits.register(cx.waker());
        if self.heard() == 0 { Poll::Pending } else { Poll::Ready(()) }
    }
}

/// A stream whose bytes are noted.
pub(super) struct Noted<S> {
    pub(super) stream: S,
    pub(super) pulse: Arc<Pulse>,
    pub(super) io: Io,
}

impl<S: AsyncRead + Unpin> AsyncRead for Noted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        if let Err(error) = ready!(Pin::new(&mut self.stream).poll_read(cx, buffer)) {
            if let Some(refusal) = refusal(&error, &WORDS) {
                self.pulse.refused.get_or_init(|| refusal);
            }
            return Poll::Ready(Err(error));
        }
        if buffer.filled().len() > before {
            self.pulse.hear(self.io.now());
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Noted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
