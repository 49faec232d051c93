//! TLS between the library's protocol and a socket.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use latchwork_wire::tls::{Greeting, TlsStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream as Secured};

/// Greets the server when the library says so.
pub(crate) struct Greeter(pub(crate) Greeting);

/// A stream that the library may take for one of TLS. It tells nothing that a login could be bound to.
pub(crate) struct Stream<S>(S);

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for Greeter {
    type Stream = Stream<TlsStream<S>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Stream>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move { Ok(Stream(self.0.greet(stream).await?)) })
    }
}

/// Takes a stream as it is.
pub(crate) struct AsItIs;

impl<S: AsyncRead + AsyncWrite + Unpin + Send> TlsConnect<S> for AsItIs {
    type Stream = Stream<S>;
    type Error = io::Error;
    type Future = std::future::Ready<io::Result<Stream<S>>>;

    fn connect(self, stream: S) -> Self::Future {
        std::future::ready(Ok(Stream(stream)))
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
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
