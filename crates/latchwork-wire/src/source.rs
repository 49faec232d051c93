//! Where the address of a store comes from, and how its login is read again.

#[cfg(unix)]
mod command;
mod file;
mod moved;

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use latchwork_store::{Error, Io, Moment};
use tokio::sync::Notify;

use moved::moved;

/// Refusals that follow each other faster lead to one reading.
const SPACING: Duration = Duration::from_secs(1);

/// Where the address of a store comes from: a text, a file, the output of a command, or a function.
///
/// A server that refuses the login makes the store read its source again, at most once a second, and
/// log in with what it finds. Only the user and the password may differ from the first address:
/// another scheme, host, path or option is an error, and the store keeps its login.
///
/// Clones share what they have read.
#[derive(Clone)]
pub struct Source(Arc<Shared>);

type Read = Box<dyn Fn() -> Result<String, Error> + Send + Sync>;

struct Shared {
    read: Read,
    /// It never changes.
    is_fixed: bool,
    state: Mutex<State>,
    ended: Notify,
}

#[derive(Default)]
struct State {
    first: Option<Arc<str>>,
    latest: Option<Arc<str>>,
    /// How many different addresses were read.
    version: u64,
    is_reading: bool,
    /// When the last reading ended, and why it brought no address.
    last: Option<(Moment, Option<Error>)>,
}

impl Source {
    /// Creates a source that is read by `read`, where it may block its thread.
    pub fn read_by(read: impl Fn() -> Result<String, Error> + Send + Sync + 'static) -> Self {
        Self::new(Box::new(read), false)
    }

    fn new(read: Read, is_fixed: bool) -> Self {
        let (state, ended) = (Mutex::default(), Notify::new());
        Self(Arc::new(Shared { read, is_fixed, state, ended }))
    }

    /// Creates a source that always has this address.
    pub fn text(address: impl Into<String>) -> Self {
        let address = address.into();
        Self::new(Box::new(move || Ok(address.clone())), true)
    }

    /// Creates a source that is a file with one address, in its only line that is neither empty nor a
    /// comment (`#`).
    ///
    /// To change it, write another file and rename it.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self::read_by(move || file::read(&path))
    }

    /// Creates a source that is what a command prints, without white space at its ends. The command is
    /// run by `sh -c` in the present directory, each time, and killed after ten seconds.
    #[cfg(unix)]
    pub fn command(text: impl Into<String>) -> Self {
        let (text, folder) = (text.into(), std::env::current_dir().ok());
        Self::read_by(move || command::output(&text, folder.as_deref()))
    }

    /// Returns the address, which is read now if it was not read before. Blocks.
    ///
    /// # Errors
    ///
    /// Why it cannot be read.
    pub fn read_now(&self) -> Result<String, Error> {
        if let Some(latest) = &self.0.lock().latest {
            return Ok(latest.to_string());
        }
        self.0.note((self.0.read)(), None)?;
        Ok(self.0.lock().latest.as_deref().unwrap_or_default().to_owned())
    }

    /// Reads the address again; returns whether it has another login. Blocks.
    ///
    /// # Errors
    ///
    /// Why it cannot be read, or what differs beside the login. What was read before counts on.
    pub fn read_again(&self) -> Result<bool, Error> {
        let before = self.version();
        self.0.note((self.0.read)(), None)?;
        Ok(self.version() > before)
    }

    /// Returns the address, which is read where an [`Io`] runs what blocks.
    ///
    /// # Errors
    ///
    /// Why it cannot be read.
    ///
    /// # Cancel safety
    ///
    /// May be dropped. The reading goes on.
    pub async fn address(&self, io: &Io) -> Result<String, Error> {
        self.newer_than(0, io).await?;
        Ok(self.0.lock().latest.as_deref().unwrap_or_default().to_owned())
    }

    fn version(&self) -> u64 {
        self.0.lock().version
    }

    /// The version that follows this one, if there is one. A caller that comes while it is being read waits for that.
    async fn newer_than(&self, seen: u64, io: &Io) -> Result<u64, Error> {
        let asked_at = io.now();
        loop {
            let ended = self.0.ended.notified();
            {
                let mut state = self.0.lock();
                if state.version > seen {
                    return Ok(state.version);
                }
                let fresh = |at: Moment| at >= asked_at || asked_at.since(at) < SPACING;
                match &state.last {
                    Some((at, problem)) if !state.is_reading && fresh(*at) => {
                        return problem.clone().map_or(Ok(state.version), Err);
                    }
                    _ if state.is_reading => {}
                    _ => {
                        state.is_reading = true;
                        self.begin(io);
                    }
                }
            }
            ended.await;
        }
    }

    fn begin(&self, io: &Io) {
        let reading = Reading(self.0.clone());
        let now = io.clone();
        io.clone().for_blocking().spawn(async move {
            let read = (reading.0.read)();
            let _ = reading.0.note(read, Some(now.now()));
        });
    }
}

impl Shared {
    fn note(&self, read: Result<String, Error>, at: Option<Moment>) -> Result<(), Error> {
        let mut state = self.lock();
        let read = read.and_then(|address| match &state.first {
            Some(first) => moved(first, &address).map_or(Ok(address), Err),
            None => Ok(address),
        });
        if let Some(at) = at {
            state.last = Some((at, read.as_ref().err().cloned()));
        }
        let address: Arc<str> = read?.into();
        if state.latest.as_ref() != Some(&address) {
            state.first.get_or_insert_with(|| address.clone());
            state.latest = Some(address);
            state.version += 1;
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A reading that ends, also if it panics or is never run.
struct Reading(Arc<Shared>);

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.lock().is_reading = false;
        self.0.ended.notify_waiters();
    }
}

impl From<String> for Source {
    fn from(address: String) -> Self {
        Self::text(address)
    }
}

impl From<&str> for Source {
    fn from(address: &str) -> Self {
        Self::text(address)
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("version", &self.version()).finish_non_exhaustive()
    }
}

/// A login that is read from an address, and again from its [`Source`].
pub struct Sourced<L> {
    login: Arc<Mutex<(u64, L)>>,
    from: Option<Renewing<L>>,
}

#[derive(Clone)]
struct Renewing<L> {
    source: Source,
    parse: Parse<L>,
}

type Parse<L> = Arc<dyn Fn(&str) -> Result<L, Error> + Send + Sync>;

impl<L: Clone> Sourced<L> {
    /// Creates a login that stays.
    pub fn fixed(login: L) -> Self {
        Self { login: Arc::new(Mutex::new((0, login))), from: None }
    }

    /// Returns the login that is read again from this source, whose address it was read from.
    #[must_use]
    pub fn read_from(
        self,
        source: Source,
        parse: impl Fn(&str) -> Result<L, Error> + Send + Sync + 'static,
    ) -> Self {
        if source.0.is_fixed {
            return self;
        }
        let login = (source.version(), self.lock().1.clone());
        let from = Some(Renewing { source, parse: Arc::new(parse) });
        Self { login: Arc::new(Mutex::new(login)), from }
    }

    /// Returns whether it may become another one.
    pub fn may_change(&self) -> bool {
        self.from.is_some()
    }

    /// Returns the login that counts now, and its version.
    pub fn current(&self) -> (L, u64) {
        if let Some(from) = &self.from
            && from.source.version() > self.lock().0
        {
            // One that cannot be read does not replace one that can.
            let _ = self.take(from);
        }
        let (version, login) = &*self.lock();
        (login.clone(), *version)
    }

    /// Returns what is newer than this version, which a server has just refused; `None` if nothing is.
    ///
    /// # Errors
    ///
    /// Why the source cannot be read.
    ///
    /// # Cancel safety
    ///
    /// May be dropped. The reading goes on, and the next call finds what it brought.
    pub async fn after_refusal(&self, seen: u64, io: &Io) -> Result<Option<(L, u64)>, Error> {
        let Some(from) = &self.from else { return Ok(None) };
        let (mut known, mut broken) = (seen, None);
        loop {
            let version = from.source.newer_than(known, io).await?;
            if version <= known {
                return broken.map_or(Ok(None), Err);
            }
            match self.take(from) {
                Ok(()) => return Ok(Some(self.current())),
                // It may have been mended since.
                Err(error) => (known, broken) = (version, Some(error)),
            }
        }
    }

    /// Returns whether the source has a newer login than this version, whose user lacks a right.
    ///
    /// # Cancel safety
    ///
    /// As for [`after_refusal`](Self::after_refusal).
    pub async fn is_superseded(&self, seen: u64, io: &Io) -> bool {
        matches!(self.after_refusal(seen, io).await, Ok(Some(_)))
    }

    fn take(&self, from: &Renewing<L>) -> Result<(), Error> {
        let (latest, version) = {
            let state = from.source.0.lock();
            (state.latest.clone(), state.version)
        };
        let login = (from.parse)(latest.as_deref().unwrap_or_default())?;
        *self.lock() = (version, login);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, (u64, L)> {
        self.login.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<L: Clone> Clone for Sourced<L> {
    fn clone(&self) -> Self {
        Self { login: self.login.clone(), from: self.from.clone() }
    }
}

impl<L: Clone + fmt::Debug> fmt::Debug for Sourced<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lock().1.fmt(f)
    }
}

impl<L: Clone + PartialEq> PartialEq for Sourced<L> {
    fn eq(&self, other: &Self) -> bool {
        self.current().0 == other.current().0
    }
}

impl<L: Clone + Eq> Eq for Sourced<L> {}

#[cfg(test)]
mod tests;
