//! Lets what belongs together leave together.
//!
//! The library writes the head of a request as soon as it has it, and the body a moment later. Sent
//! so, they are two packets, and the server wakes and reads twice.
//!
//! And what comes is counted, so that a connection that says nothing can be told from a server that
//! is slow.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::task::AtomicWaker;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// So much is kept back at most.
const MOST: usize = 64 << 10;

/// Whether anything comes from a member, and an end to a connection of which nothing does. There is
/// one connection at a time, and another one when it has ended.
#[derive(Debug, Default)]
pub(crate) struct Pulse {
    heard: AtomicU64,
    connections: AtomicU64,
    /// The connections up to this one are to end.
    ended: AtomicU64,
    reader: AtomicWaker,
}

impl Pulse {
    /// How often something came.
    pub(crate) fn heard(&self) -> u64 {
        self.heard.load(Ordering::Relaxed)
    }

    /// Ends the connection that there is.
    pub(crate) fn end(&self) {
        self.ended.store(self.connections.load(Ordering::SeqCst), Ordering::SeqCst);
        self.reader.wake();
    }
}

/// A stream that lets every other task run once before it sends.
#[derive(Debug)]
pub(crate) struct Cork<S> {
    stream: S,
    kept: Vec<u8>,
    sent: usize,
    /// The others have run since the first of the bytes came.
    waited: bool,
    pulse: Arc<Pulse>,
    /// Which one of the member's connections it is.
    number: u64,
}

impl<S: AsyncWrite + Unpin> Cork<S> {
    pub(crate) fn new(stream: S, pulse: Arc<Pulse>) -> Self {
        let number = pulse.connections.fetch_add(1, Ordering::SeqCst) + 1;
        Self { stream, kept: Vec::new(), sent: 0, waited: false, pulse, number }
    }

    fn send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.kept.len() {
            match ready!(Pin::new(&mut self.stream).poll_write(cx, &self.kept[self.sent..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                sent => self.sent += sent,
            }
        }
        self.kept.clear();
        (self.sent, self.waited) = (0, false);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Cork<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.kept.len() >= MOST {
            ready!(self.send(cx))?;
        }
        self.kept.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.kept.is_empty() && !self.waited {
            self.waited = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        ready!(self.send(cx))?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.send(cx))?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Cork<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.number > self.pulse.ended.load(Ordering::SeqCst) {
            self.pulse.reader.register(cx.waker());
        }
        if self.number <= self.pulse.ended.load(Ordering::SeqCst) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if read.is_ready() {
            self.pulse.heard.fetch_add(1, Ordering::Relaxed);
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Takes a few bytes at a time, and notes what was written at once.
    #[derive(Default)]
    struct Pipe(Vec<Vec<u8>>, usize);

    impl AsyncWrite for Pipe {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            let taken = bytes.len().min(self.1);
            self.0.push(bytes[..taken].to_vec());
            Poll::Ready(Ok(taken))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn what_comes_while_others_run_is_sent_with_it() {
        let mut cork = Cork::new(Pipe(Vec::new(), usize::MAX), Arc::default());
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut pinned = Pin::new(&mut cork);
        assert!(pinned.as_mut().poll_write(&mut cx, b"head").is_ready());
        assert!(pinned.as_mut().poll_flush(&mut cx).is_pending());
        assert!(pinned.as_mut().poll_write(&mut cx, b"body").is_ready());
        assert!(pinned.as_mut().poll_flush(&mut cx).is_ready());
        assert_eq!(cork.stream.0, [b"headbody"]);
        cork.write_all(b"next").await.unwrap();
        cork.flush().await.unwrap();
        assert_eq!(cork.stream.0, [&b"headbody"[..], b"next"]);
    }

    #[tokio::test]
    async fn a_stream_that_takes_little_gets_all_of_it_in_order() {
        let mut cork = Cork::new(Pipe(Vec::new(), 7), Arc::default());
        let bytes: Vec<u8> = (0..200_000_u32).map(|n| n as u8).collect();
        cork.write_all(&bytes).await.unwrap();
        cork.shutdown().await.unwrap();
        assert!(cork.stream.0.concat() == bytes, "all of it, in order");
    }

    #[tokio::test]
    async fn what_is_read_is_what_comes() {
        let (mut far, near) = tokio::io::duplex(16);
        let pulse = Arc::<Pulse>::default();
        let mut cork = Cork::new(near, pulse.clone());
        far.write_all(b"hello").await.unwrap();
        let mut read = [0; 5];
        cork.read_exact(&mut read).await.unwrap();
        assert_eq!((&read, pulse.heard()), (b"hello", 1));
    }

    #[tokio::test]
    async fn what_is_to_end_ends_its_reader_and_no_later_connection() {
        let ((_far, near), (mut next_far, next_near)) =
            (tokio::io::duplex(16), tokio::io::duplex(16));
        let pulse = Arc::<Pulse>::default();
        let mut cork = Cork::new(near, pulse.clone());
        let (mut byte, mut next_byte) = ([0], [0]);
        let (read, ()) = tokio::join!(cork.read_exact(&mut byte), async { pulse.end() });
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::TimedOut);
        let mut next = Cork::new(next_near, pulse);
        next_far.write_all(b"x").await.unwrap();
        next.read_exact(&mut next_byte).await.unwrap();
    }
}
