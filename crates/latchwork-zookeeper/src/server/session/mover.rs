//! Moves the bytes of a connection: writes requests, and delivers each answer to its caller.
//!
//! A `Drive` polls it, near those that wait for the answers.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use latchwork_store::Io;
use tokio::io::{AsyncReadExt, AsyncWrite as _};
use tokio::sync::oneshot;

use super::link::{Learnt, land};
use super::messages::{NEWS, News, Refusal, data_news};
use super::outlet::Outlet;
use super::proof::Reading;
use super::transport::{Header, Wire, first_frame, malformed};
use super::{Ensemble, Shared, locked};

/// As much is read at once.
const PIECE: usize = 16 * 1024;
/// A buffer that has grown beyond this is freed when it is empty.
const MOST_KEPT: usize = 256 * 1024;

/// Comes when a connection has ended, and says why.
pub(super) type Broken = oneshot::Receiver<String>;

pub(super) struct Mover {
    wire: Box<dyn Wire>,
    shared: Arc<Shared>,
    ensemble: Arc<Ensemble>,
    io: Io,
    /// What is being written, and how much of it has been.
    going: Vec<u8>,
    written: usize,
    /// With TLS what was written is not yet sent.
    is_flushed: bool,
    /// What has come, up to a message that is not whole.
    read: Vec<u8>,
    broken: Option<oneshot::Sender<String>>,
}

impl Mover {
    pub(super) fn new(
        wire: Box<dyn Wire>,
        shared: Arc<Shared>,
        ensemble: Arc<Ensemble>,
        io: Io,
    ) -> (Self, Broken) {
        let (broken, is_broken) = oneshot::channel();
        let mover = Self {
            wire,
            shared,
            ensemble,
            io,
            going: Vec::new(),
            written: 0,
            is_flushed: true,
            read: Vec::new(),
            broken: Some(broken),
        };
        (mover, is_broken)
    }

    /// Comes with the reason why nothing can be moved any more.
    fn poll_move(&mut self, cx: &mut Context<'_>) -> Poll<String> {
        loop {
            if let Poll::Ready(Err(error)) = self.poll_write(cx) {
                return Poll::Ready(error);
            }
            // News make it ask by itself: that is written in the next round.
            if let Err(error) = ready!(self.poll_read(cx)) {
                return Poll::Ready(error);
            }
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), String>> {
        loop {
            if self.written == self.going.len() {
                if self.going.capacity() > MOST_KEPT {
                    self.going = Vec::new();
                }
                let Some(outlet) = &mut *locked(&self.shared.outlet) else {
                    return Poll::Ready(Err("the connection is not needed any more".into()));
                };
                outlet.hand_over(&mut self.going);
                self.written = 0;
            }
            if self.going.is_empty() {
                break;
            }
            let rest = &self.going[self.written..];
            match ready!(Pin::new(&mut self.wire).poll_write(cx, rest)) {
                Ok(0) => return Poll::Ready(Err("the server takes nothing more".into())),
                Ok(taken) => self.written += taken,
                Err(error) => return Poll::Ready(Err(error.to_string())),
            }
            self.is_flushed = false;
        }
        if !self.is_flushed {
            let flushed = ready!(Pin::new(&mut self.wire).poll_flush(cx));
            flushed.map_err(|error| error.to_string())?;
            self.is_flushed = true;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), String>> {
        if self.read.is_empty() && self.read.capacity() > MOST_KEPT {
            self.read = Vec::new();
        }
        self.read.reserve(PIECE);
        let count = ready!(pin!(self.wire.read_buf(&mut self.read)).poll(cx));
        match count.map_err(|error| error.to_string())? {
            0 => Poll::Ready(Err("the server closed the connection".into())),
            _ => Poll::Ready(self.take_answers()),
        }
    }

    /// Hands on whole answers, and keeps the rest.
    fn take_answers(&mut self) -> Result<(), String> {
        // A caller that gets its answer may send at once, so the way out must not be locked then.
        let mut all_landed = Vec::new();
        let now = Reading::now(&self.io);
        let mut outlet = locked(&self.shared.outlet);
        let Some(Outlet { link, heard_at, .. }) = &mut *outlet else {
            return Err("the connection is not needed any more".into());
        };
        *heard_at = now.at;
        let mut taken = 0;
        while let Some((message, length)) =
            first_frame(&self.read[taken..]).map_err(|error| error.to_string())?
        {
            let (header, body) = Header::read(message).ok_or_else(|| malformed().to_string())?;
            self.shared.seen.fetch_max(header.seen, Ordering::SeqCst);
            self.ensemble.saw(header.seen);
            if header.number == NEWS {
                if let Some(news) = News::read(body) {
                    let data = news.is_of_data.then(|| data_news(&news.path));
                    for path in [Some(&news.path), data.as_ref()].into_iter().flatten() {
                        for flight in self.shared.watches.news(path) {
                            link.take(flight, now);
                        }
                    }
                }
            } else if header.number >= 0 {
                let reply = match header.refusal {
                    None => Ok(body.to_vec()),
                    Some(Refusal::SESSION_MOVED | Refusal::SESSION_EXPIRED) => {
                        return Err("the session has ended".into());
                    }
                    Some(refusal) => Err(refusal),
                };
                match link.answer(header.number, reply)? {
                    Some(Learnt::Write(sent)) => {
                        if let Some(proof) = &mut *locked(&self.shared.proof) {
                            proof.answered(sent, now.at);
                        }
                    }
                    Some(Learnt::Watch(path)) => self.shared.watches.stands(&path, now.at),
                    None => {}
                }
                all_landed.extend(link.landed());
            }
            taken += length;
        }
        self.read.drain(..taken);
        drop(outlet);
        for (answer, replies) in all_landed {
            land(Some(answer), replies, None);
        }
        Ok(())
    }
}

impl Future for Mover {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let why = ready!(self.poll_move(cx));
        if let Some(broken) = self.broken.take() {
            // Nobody listens if the session has ended.
            let _ = broken.send(why);
        }
        Poll::Ready(())
    }
}
