//! One direction of a connection: bytes that are under way.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use rustix::net::{Shutdown, shutdown};
use tokio::net::TcpStream;

/// Bytes that are due at the same time, and how many answers end in them.
#[derive(Debug)]
struct Chunk {
    due: Instant,
    bytes: Vec<u8>,
    answers: u64,
}

/// Why a connection, or a side of it, takes no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gone {
    /// The receiving side is gone; the sending one may not know yet.
    Sink,
    /// The sending side was reset, and it is time that the receiving one is.
    Source,
}

/// How the sending side ended its half.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Finish,
    Reset,
}

#[derive(Debug, Default)]
pub(super) struct Pipe {
    queue: VecDeque<Chunk>,
    /// How much of the first chunk is written.
    written: usize,
    /// How much waits altogether.
    size: usize,
    end: Option<(Instant, End)>,
    /// The end has been passed on, or there is nobody to pass anything on to.
    pub(super) closed: bool,
    /// The receiving side takes no more for now.
    pub(super) blocked: bool,
}

impl Pipe {
    pub(super) fn push(&mut self, due: Instant, bytes: &[u8], answers: u64) {
        if self.closed {
            return;
        }
        self.size += bytes.len();
        match self.queue.back_mut() {
            Some(last) if last.due == due => {
                last.bytes.extend_from_slice(bytes);
                last.answers += answers;
            }
            _ => self.queue.push_back(Chunk { due, bytes: bytes.to_vec(), answers }),
        }
    }

    /// Has bytes come in bits of this size, each this long after the one before it.
    pub(super) fn trickle(&mut self, due: Instant, bytes: &[u8], (size, pause): (usize, Duration)) {
        let mut due = self.queue.back().map_or(due, |last| last.due.max(due));
        for bit in bytes.chunks(size.max(1)) {
            due += pause;
            self.push(due, bit, 0);
        }
    }

    pub(super) fn end(&mut self, due: Instant, end: End) {
        self.end.get_or_insert((due, end));
    }

    /// Whether the sending side may be read.
    pub(super) fn takes_more(&self) -> bool {
        self.end.is_none() && self.size < 64 * 1024 * 1024
    }

    /// When something is to be done next, if not by the receiving side.
    pub(super) fn next_due(&self, to_come: bool) -> Option<Instant> {
        let end = self.end.filter(|_| !self.closed && !to_come).map(|(due, _)| due);
        if self.blocked { None } else { self.queue.front().map(|chunk| chunk.due).or(end) }
    }

    /// Forgets what is under way, for its receiver is gone.
    pub(super) fn close(&mut self) {
        *self = Self { end: self.end, closed: true, ..Self::default() };
    }

    /// Writes what is due, and gives the number of answers that are complete with it. The end of
    /// the sending side is passed on unless more is `to_come`.
    pub(super) fn flush(
        &mut self,
        now: Instant,
        sink: &TcpStream,
        to_come: bool,
    ) -> Result<u64, Gone> {
        let mut answers = 0;
        self.blocked = false;
        while let Some(chunk) = self.queue.front().filter(|chunk| chunk.due <= now) {
            match sink.try_write(&chunk.bytes[self.written..]) {
                Ok(n) => {
                    self.written += n;
                    self.size -= n;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.blocked = true;
                    return Ok(answers);
                }
                Err(_) => return Err(Gone::Sink),
            }
            if self.written == chunk.bytes.len() {
                answers += chunk.answers;
                self.written = 0;
                self.queue.pop_front();
            }
        }
        match self.end {
            Some((due, End::Reset)) if due <= now && self.queue.is_empty() && !to_come => {
                return Err(Gone::Source);
            }
            Some((due, End::Finish)) if due <= now && self.queue.is_empty() && !to_come => {
                if !self.closed {
                    shutdown(sink, Shutdown::Write).map_err(|_| Gone::Sink)?;
                }
                self.closed = true;
            }
            _ => {}
        }
        Ok(answers)
    }
}
