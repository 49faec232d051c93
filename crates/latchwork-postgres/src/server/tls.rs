//! TLS between the library's protocol and a socket.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use latchwork_wire::tls::{Greeting, TlsStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream as Secured};

/// Greets the server when the library says so.
pub(crate) struct Greeter {
    pub(crate) greeting: Greeting,
    pub(crate) talk: Arc<Talk>,
}

/// What has passed within TLS.
#[derive(Debug, Default)]
pub(crate) struct Talk {
    server_spoke: AtomicBool,
    client_answered: AtomicBool,
}

impl Talk {
    /// Whether the server has spoken, and has got nothing for it: no password, nor a proof of one.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.server_spoke.load(Ordering::Relaxed) && !self.client_answered.load(Ordering::Relaxed)
    }
}

/// A stream that the library may take for one of TLS. It tells nothing that a login could be bound to.
pub(crate) struct Stream<S> {
    stream: S,
    talk: Arc<Talk>,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for Greeter {
    type Stream = Stream<TlsStream<S>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Stream>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        let Self { greeting, talk } = self;
        Box::pin(async move { Ok(Stream { stream: greeting.greet(stream).await?, talk }) })
    }
}

/// Takes a stream as it is.
pub(crate) struct AsItIs;

impl<S: AsyncRead + AsyncWrite + Unpin + Send> TlsConnect<S> for AsItIs {
    type Stream = Stream<S>;
    type Error = io::Error;
    type Future = std::future::Ready<io::Result<Stream<S>>>;

    fn connect(self, stream: S) -> Self::Future {
        std::future::ready(Ok(Stream { stream, talk: Arc::default() }))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Secured for Stream<S> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Stream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        if buf.filled().len() > before {
            self.talk.server_spoke.store(true, Ordering::Relaxed);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.talk.server_spoke.load(Ordering::Relaxed) {
            self.talk.client_answered.store(true, Ordering::Relaxed);
        }
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
