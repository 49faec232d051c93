//! The requests that reach a keeper, read beside everything else that it does: one who connects and says
//! nothing must not keep it from noticing a loss.

use std::io;
use std::pin::Pin;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use rustix::process::Pid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::select;

use super::hold_id::{Answer, HoldId, LONGEST, Peer, Wish, peer};
use crate::process::timer::Naps;

/// How long the other side may take to say what it wants, or to take its answer.
const LIMIT: Duration = Duration::from_secs(10);

/// How many are listened to at a time.
const AT_ONCE: usize = 32;

/// A request that waits for its answer.
#[derive(Debug)]
pub(crate) struct Request {
    pub(super) wish: Wish,
    /// The process that asks, if it can be seen from here; it waits for the answer.
    pub(super) from: Option<Pid>,
    stream: UnixStream,
}

impl Request {
    /// Answers it. One that does not listen any more needs no answer.
    pub(super) async fn answer(mut self, answer: &Answer) {
        let text = answer.write();
        let Ok(naps) = Naps::new() else { return };
        select! {
            _ = self.stream.write_all(text.as_bytes()) => {}
            _ = naps.nap(LIMIT) => {}
        }
    }

    /// Completes when nobody waits for the answer any more. Only for a wish whose stream stays open.
    pub(super) async fn gone(&self) {
        gone(&self.stream).await;
    }

    /// Its stream, for what is not over with one answer.
    pub(super) fn into_stream(self) -> UnixStream {
        self.stream
    }

    /// Answers it with a short line, which always finds room.
    pub(super) fn answer_at_once(self, answer: &Answer) {
        let _ = self.stream.try_write(answer.write().as_bytes());
    }
}

/// Completes when the other side has closed this stream.
pub(super) async fn gone(stream: &UnixStream) {
    while stream.readable().await.is_ok() {
        match stream.try_read(&mut [0; 16]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(1..) => {}
            Ok(0) | Err(_) => break,
        }
    }
}

/// Where requests come in.
pub(crate) struct Requests {
    listener: UnixListener,
    read: FuturesUnordered<Pin<Box<dyn Future<Output = Option<Request>>>>>,
}

impl Requests {
    /// Listens for those to this hold.
    pub(crate) fn listen(id: &HoldId) -> io::Result<Self> {
        let listener = id.listen()?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener: UnixListener::from_std(listener)?, read: FuturesUnordered::new() })
    }

    /// The next one. May be dropped without losing any.
    pub(super) async fn next(&mut self) -> Request {
        loop {
            select! {
                Some(read) = self.read.next() => if let Some(request) = read {
                    return request;
                },
                Ok((stream, _)) = self.listener.accept(), if self.read.len() < AT_ONCE => {
                    self.read.push(Box::pin(read(stream)));
                }
            }
        }
    }
}

/// Reads a request; `None` if somebody else's process asks, or says nothing in time.
async fn read(mut stream: UnixStream) -> Option<Request> {
    let Peer::Own(from) = peer(&stream).ok()? else { return None };
    let naps = Naps::new().ok()?;
    let wish = select! {
        wish = wish(&mut stream) => wish?,
        _ = naps.nap(LIMIT) => return None,
    };
    Some(Request { wish, from, stream })
}

/// Reads what is wished for, up to the end of the stream or of a wish whose stream stays open.
async fn wish(stream: &mut UnixStream) -> Option<Wish> {
    let mut limited = stream.take(LONGEST);
    let mut bytes = Vec::new();
    while limited.read_buf(&mut bytes).await.ok()? > 0 {
        if let Some(open) = Wish::read_open(&bytes) {
            return Some(open);
        }
    }
    Wish::read(std::str::from_utf8(&bytes).ok()?)
}
