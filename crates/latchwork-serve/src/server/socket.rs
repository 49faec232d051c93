//! The socket of a connection: one part reads and writes it, another watches for its end.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};
use tokio::net::{TcpStream, UnixStream};

use crate::time::pause;

/// How long the end of a connection may go unnoticed while its request is answered.
const LOOK: Duration = Duration::from_secs(1);

/// A connected socket. Its clones are the same socket.
#[derive(Debug, Clone)]
pub(super) enum Socket {
    Tcp(Arc<TcpStream>),
    Unix(Arc<UnixStream>),
}

impl Socket {
    /// Completes when the client has closed the connection or has vanished, at the earliest after [`LOOK`]. Usually the
    /// parser notices it before.
    ///
    /// While the parser answers a request that is followed by more bytes, it reads nothing, so it does not notice.
    pub(super) async fn gone(&self) {
        loop {
            pause(LOOK).await;
            match self.ready().await {
                Ok(ready) if ready.is_read_closed() || ready.is_error() => return,
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }

    async fn ready(&self) -> io::Result<Ready> {
        match self {
            Self::Tcp(stream) => stream.ready(Interest::READABLE).await,
            Self::Unix(stream) => stream.ready(Interest::READABLE).await,
        }
    }

    fn poll_read_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_read_ready(context),
            Self::Unix(stream) => stream.poll_read_ready(context),
        }
    }

    fn poll_write_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_write_ready(context),
            Self::Unix(stream) => stream.poll_write_ready(context),
        }
    }

    /// Writes when the socket takes something.
    fn poll_with(
        &self,
        context: &mut Context<'_>,
        write: impl Fn(&Self) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.poll_write_ready(context))?;
            match write(self) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return Poll::Ready(done),
            }
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.poll_read_ready(context))?;
            let free = into.initialize_unfilled();
            let read = match &*self {
                Self::Tcp(stream) => stream.try_read(free),
                Self::Unix(stream) => stream.try_read(free),
            };
            match read {
                Ok(length) => {
                    into.advance(length);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_with(context, |socket| match socket {
            Self::Tcp(stream) => stream.try_write(bytes),
            Self::Unix(stream) => stream.try_write(bytes),
        })
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_with(context, |socket| match socket {
            Self::Tcp(stream) => stream.try_write_vectored(slices),
            Self::Unix(stream) => stream.try_write_vectored(slices),
        })
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// A socket has no buffer of its own.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let how = rustix::net::Shutdown::Write;
        let done = match &*self {
            Self::Tcp(stream) => rustix::net::shutdown(stream, how),
            Self::Unix(stream) => rustix::net::shutdown(stream, how),
        };
        Poll::Ready(done.map_err(io::Error::from))
    }
}
