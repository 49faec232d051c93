//! A socket that is registered with no reactor.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::remember;

/// How much is read at once. A read that fills less has read everything that was there.
const CHUNK: usize = 16 * 1024;

/// A TCP connection for a protocol library. It reads only after one of its watchers has seen data,
/// and uses no reactor itself.
///
/// [`Drive::open`](super::Drive::open) makes it.
#[derive(Debug)]
pub struct Socket {
    door: Arc<Door>,
    /// The bytes that were read and not taken yet: `chunk[taken..read]`.
    chunk: Box<[u8]>,
    taken: usize,
    read: usize,
}

/// The part of a [`Socket`] that its watchers share.
#[derive(Debug)]
pub(super) struct Door {
    stream: TcpStream,
    /// There may be something to read.
    readable: AtomicBool,
    /// The system took no more bytes.
    is_full: AtomicBool,
    /// How often somebody looked for something to read.
    looks: AtomicU64,
    /// A [`Drive`](super::Drive) moves the library, and needs no waker.
    driven: AtomicBool,
    /// Wakes the library before that.
    early: Mutex<Option<Waker>>,
}

impl Socket {
    /// A socket of a connected stream.
    ///
    /// # Errors
    ///
    /// Those of the system, when the stream is made non-blocking.
    pub(super) fn new(stream: TcpStream) -> io::Result<(Self, Arc<Door>)> {
        stream.set_nonblocking(true)?;
        let door = Arc::new(Door {
            stream,
            readable: AtomicBool::new(true),
            is_full: AtomicBool::new(false),
            looks: AtomicU64::new(0),
            driven: AtomicBool::new(false),
            early: Mutex::default(),
        });
        let chunk = vec![0; CHUNK].into_boxed_slice();
        Ok((Self { door: door.clone(), chunk, taken: 0, read: 0 }, door))
    }

    fn write_with(
        &self,
        cx: &Context<'_>,
        write: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            match write(&self.door.stream) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.door.is_full.store(true, Ordering::SeqCst);
                    self.door.register(cx);
                    return Poll::Pending;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                written => return Poll::Ready(written),
            }
        }
    }
}

impl Door {
    /// One more descriptor of the connection.
    pub(super) fn another(&self) -> io::Result<TcpStream> {
        self.stream.try_clone()
    }

    /// Says that there may be something to read.
    pub(super) fn open(&self) {
        self.readable.store(true, Ordering::SeqCst);
    }

    /// Whether bytes, or the end, wait to be read in the system.
    pub(super) fn has_unread(&self) -> bool {
        !matches!(self.stream.peek(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
    }

    /// A number that grows with each look for something to read.
    pub(super) fn looks(&self) -> u64 {
        self.looks.load(Ordering::Relaxed)
    }

    /// Whether the last write found no room.
    pub(super) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::SeqCst)
    }

    /// Says that there is room again.
    pub(super) fn has_room(&self) {
        self.is_full.store(false, Ordering::SeqCst);
    }

    /// Ends the connection for all its descriptors.
    pub(super) fn close(&self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }

    /// Wakes the library, if it has asked for that.
    pub(super) fn wake_early(&self) {
        let waker = self.early.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn register(&self, cx: &Context<'_>) {
        if self.driven.load(Ordering::Relaxed) {
            return;
        }
        let mut early = self.early.lock().unwrap_or_else(PoisonError::into_inner);
        remember(&mut early, cx);
    }

    /// From now on a drive moves the library, which would otherwise keep the drive in its waker.
    pub(super) fn mark_driven(&self) {
        self.driven.store(true, Ordering::SeqCst);
        *self.early.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.taken == this.read {
            // Taken before the read: bytes that arrive after the read open the door again.
            if !this.door.readable.swap(false, Ordering::SeqCst) {
                this.door.register(cx);
                // The door may have been opened before the waker was there.
                if this.door.driven.load(Ordering::Relaxed)
                    || !this.door.readable.swap(false, Ordering::SeqCst)
                {
                    return Poll::Pending;
                }
            }
            this.door.looks.fetch_add(1, Ordering::Relaxed);
            match (&this.door.stream).read(&mut this.chunk) {
                Ok(0) => {
                    this.door.open();
                    return Poll::Ready(Ok(()));
                }
                Ok(read) => {
                    (this.taken, this.read) = (0, read);
                    if read == this.chunk.len() {
                        this.door.open();
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => this.door.open(),
                Err(error) => {
                    this.door.open();
                    return Poll::Ready(Err(error));
                }
            }
        }
        let count = buf.remaining().min(this.read - this.taken);
        buf.put_slice(&this.chunk[this.taken..this.taken + count]);
        this.taken += count;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.write_with(cx, |mut stream| stream.write(buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write_with(cx, |mut stream| stream.write_vectored(bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.door.stream.shutdown(std::net::Shutdown::Write))
    }
}
