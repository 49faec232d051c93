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

use super::hold_id::{Answer, HoldId, LONGEST, Wish, peer};
use crate::process::timer::Naps;

/// How long the other side may take to say what it wants, or to take its answer.
const LIMIT: Duration = Duration::from_secs(10);

/// How many are listened to at a time.
const AT_ONCE: usize = 32;

/// A request that waits for its answer.
#[derive(Debug)]
pub(crate) struct Request {
    pub(super) wish: Wish,
    /// The process that asks; it waits for the answer.
    pub(super) from: Pid,
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

    /// Answers it with a short line, which always finds room.
    pub(super) fn answer_at_once(self, answer: &Answer) {
        let _ = self.stream.try_write(answer.write().as_bytes());
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
    let from = peer(&stream).ok()??;
    let naps = Naps::new().ok()?;
    let mut text = String::new();
    let wish = {
        let mut limited = (&mut stream).take(LONGEST);
        select! {
            read = limited.read_to_string(&mut text) => {
                read.ok()?;
                Wish::read(&text)?
            }
            _ = naps.nap(LIMIT) => return None,
        }
    };
    Some(Request { wish, from, stream })
}
