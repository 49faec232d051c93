//! The outside judge: what the locks protect, with a fence and an order of its own.
//!
//! It uses nothing of Latchwork but the clock. It is reached over a unix socket, a line each way:
//! `key by attempt token`, and `1` or `0` for whether the write was accepted. A write is accepted
//! if its token is not smaller than the largest that the key has seen. A holder without a number
//! has `-` for its token: it writes nothing, and only makes itself known as a holder.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use latchwork_store::Moment;
use latchwork_store::clock::boot_time;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};

use crate::event::What;
use crate::log::Log;

/// The resource, as a thread of the run.
#[derive(Debug)]
pub struct Resource {
    state: Arc<Mutex<State>>,
    path: PathBuf,
}

#[derive(Debug, Default)]
struct State {
    order: u64,
    keys: HashMap<Arc<str>, Written>,
    /// The holders without a number.
    unfenced: HashMap<Arc<str>, Written>,
}

#[derive(Debug, Clone)]
struct Written {
    newest: u64,
    by: Arc<str>,
    attempt: u64,
    /// The first and the last accepted write of this attempt.
    first: Moment,
    last: Moment,
}

impl Resource {
    /// Opens the resource at a socket and writes its judgements to a log.
    ///
    /// # Errors
    ///
    /// What the system says about the socket.
    pub fn open(path: &Path, log: Log) -> io::Result<Self> {
        let listener = UnixListener::bind(path)?;
        let state = Arc::new(Mutex::new(State::default()));
        let (shared, log) = (state.clone(), Arc::new(log));
        #[expect(clippy::disallowed_methods, reason = "a server of the test, no part of a lock")]
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (state, log) = (shared.clone(), log.clone());
                // A worker that is killed leaves a broken pipe; there is nobody to tell.
                std::thread::spawn(move || drop(serve(&stream, &state, &log)));
            }
        });
        Ok(Self { state, path: path.to_owned() })
    }

    /// Where it is reached.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Who wrote last under a key, no longer ago than `recent`: most likely a holder. The one that
    /// has held for longest comes first.
    pub fn likely_holders(&self, recent: Duration) -> Vec<Arc<str>> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let since = boot_time().minus(recent);
        let all = state.keys.values().chain(state.unfenced.values());
        let mut written: Vec<_> = all.filter(|w| w.last >= since).collect();
        written.sort_by_key(|written| written.first);
        written.into_iter().map(|written| written.by.clone()).collect()
    }
}

fn serve(stream: &UnixStream, state: &Mutex<State>, log: &Log) -> io::Result<()> {
    for line in BufReader::new(stream).lines() {
        let line = line?;
        let bad = || io::Error::new(io::ErrorKind::InvalidData, line.clone());
        let words: Vec<&str> = line.split(' ').collect();
        let [key, by, attempt, token] = words[..] else { return Err(bad()) };
        let attempt = attempt.parse().map_err(|_| bad())?;
        if token == "-" {
            see(state, key, by, attempt);
            let mut stream = stream;
            stream.write_all(b"0\n")?;
            continue;
        }
        let token = token.parse().map_err(|_| bad())?;
        let accepted = judge(state, log, key, by, attempt, token);
        let mut stream = stream;
        stream.write_all(if accepted { b"1\n" } else { b"0\n" })?;
    }
    Ok(())
}

/// Notes a holder that the fence cannot judge.
fn see(state: &Mutex<State>, key: &str, by: &str, attempt: u64) {
    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
    let now = boot_time();
    let same = state.unfenced.get(key).filter(|w| &*w.by == by && w.attempt == attempt);
    let first = same.map_or(now, |written| written.first);
    let seen = Written { newest: 0, by: by.into(), attempt, first, last: now };
    state.unfenced.insert(key.into(), seen);
}

/// One step: the fence, the order and the line in the log.
fn judge(state: &Mutex<State>, log: &Log, key: &str, by: &str, attempt: u64, token: u64) -> bool {
    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
    state.order += 1;
    let order = state.order;
    let by: Arc<str> = by.into();
    let now = boot_time();
    let newest = state.keys.get(key).map_or(0, |written| written.newest);
    let accepted = token >= newest;
    if accepted {
        let same = state.keys.get(key).filter(|w| w.by == by && w.attempt == attempt);
        let first = same.map_or(now, |written| written.first);
        let written = Written { newest: token, by: by.clone(), attempt, first, last: now };
        state.keys.insert(key.into(), written);
    }
    let key = key.into();
    log.note_at(now, None, What::Judged { order, key, by, attempt, token, accepted });
    accepted
}

/// A worker's way to the resource.
#[derive(Debug)]
pub(crate) struct Desk {
    path: PathBuf,
    by: Arc<str>,
    open: Option<tokio::io::BufReader<tokio::net::UnixStream>>,
}

impl Desk {
    pub(crate) fn new(path: &Path, by: Arc<str>) -> Self {
        Self { path: path.to_owned(), by, open: None }
    }

    /// Writes, and says whether that was accepted.
    ///
    /// A future of it that is dropped gives up its connection: an answer that nobody has read must
    /// not answer the next write.
    pub(crate) async fn write(&mut self, key: &str, attempt: u64, token: u64) -> io::Result<bool> {
        let mut stream = match self.open.take() {
            Some(stream) => stream,
            None => tokio::io::BufReader::new(tokio::net::UnixStream::connect(&self.path).await?),
        };
        let line = format!("{key} {} {attempt} {token}\n", self.by);
        stream.get_mut().write_all(line.as_bytes()).await?;
        let mut answer = String::new();
        if stream.read_line(&mut answer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.open = Some(stream);
        Ok(answer == "1\n")
    }
}
