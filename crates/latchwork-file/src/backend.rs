//! The five verbs: read a record under its stripe's lock, let the record decide, write it back.
//!
//! The file work of a verb runs where it is polled. It takes microseconds, since all of it is in
//! the page cache. Two things must reach the disk: the ceiling of a stripe's tokens, once for
//! thousands of grants, and a release that lingers. Both are waited for on a thread of their own,
//! with the stripe unlocked (`disk/sync.rs`).

use std::fmt;
use std::future::{poll_fn, ready};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use latchwork_store::{
    Attempt, Backend, BackendError, BackendErrorKind, Blocked, Capabilities, Claim, Doorbell,
    Effect, Error, Fencing, Io, Key, Lifeline, Linger, Query, Released, Renewal, Resized, Snapshot,
    Verb, Wake, Watch,
};

use crate::disk::fs_check;
use crate::protocol::shared::Shared;
use crate::protocol::{observe, pokes};
use crate::records::boot;
use crate::records::layout::Layout;
use crate::records::session::{self, Session};

/// The ttls that can be granted: any that leaves time to renew, and none that was meant otherwise.
const SHORTEST_TTL: Duration = Duration::from_millis(10);
const LONGEST_TTL: Duration = Duration::from_secs(366 * 24 * 60 * 60);
const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// Locks between the processes of one machine, kept in a directory.
///
/// See the [crate documentation](crate) for what it guarantees and what not.
pub struct FileBackend {
    shared: Arc<Shared>,
    doorbell: Doorbell,
}

impl FileBackend {
    /// Opens the lock directory `dir`, making it if it is not there.
    ///
    /// A directory made here is open to this user alone (mode 0700). To share one between users,
    /// make it beforehand: its mode, without the execute bits, becomes the mode of every file in
    /// it. Parents that are missing are made too.
    ///
    /// The tasks of the backend run on `io`, inside a tokio runtime with I/O enabled, and end when
    /// the backend is dropped. So do its claims: a backend that is dropped is a session that died.
    ///
    /// # Errors
    ///
    /// `Unsupported` if the directory lies on a network file system, or on one whose locks do not
    /// keep others out or which has no named pipes, or if another version of Latchwork made it;
    /// `Denied` if this user may not write there; `Unreachable` if the directory cannot be used
    /// for another reason, such as a file in its place, a full disk or no descriptors left. Every
    /// message names the path and what to do.
    pub fn connect(dir: impl AsRef<Path>, io: Io) -> Result<Arc<FileBackend>, Error> {
        let dir = dir.as_ref();
        let store: Arc<str> = format!("file://{}", dir.display()).into();
        Self::begin(dir, io).map_err(|error| Error::from_backend(error, None, &store))
    }

    pub(crate) fn begin(dir: &Path, io: Io) -> Result<Arc<FileBackend>, BackendError> {
        let boot = boot::id()?;
        let layout = Layout::open(dir)?;
        fs_check::check_kind(layout.dir())?;
        layout.fill()?;
        session::remove_dead(&layout);
        let session = Session::begin(&layout, boot)?;
        Ok(Self::of(Shared::new(layout, io, boot, session)))
    }

    /// Opens a lock directory to read it, and makes and changes nothing in it.
    ///
    /// The backend inspects and watches; all else answers `Unsupported`. It needs no right to write. What is missing
    /// in the directory, because no program has used it yet, holds no lock.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect), and `Unreachable` if there is no directory.
    pub fn read_only(dir: impl AsRef<Path>, io: Io) -> Result<Arc<FileBackend>, Error> {
        let dir = dir.as_ref();
        let store: Arc<str> = format!("file://{}", dir.display()).into();
        let open = || -> Result<_, BackendError> {
            let boot = boot::id()?;
            let layout = Layout::open_to_read(dir)?;
            fs_check::check_kind(layout.dir())?;
            let session = Session::without_files(&layout, boot)?;
            Ok(Self::of(Shared::new(layout, io, boot, session)))
        };
        open().map_err(|error| Error::from_backend(error, None, &store))
    }

    fn of(shared: Shared) -> Arc<FileBackend> {
        let shared = Arc::new(shared);
        let doorbell = pokes::doorbell(&shared);
        Arc::new(FileBackend { shared, doorbell })
    }

    /// The error of what a backend that only reads does not do.
    fn refused(&self) -> Option<BackendError> {
        self.shared.session.only_reads().then(|| {
            let message = "this connection only reads";
            BackendError::new(BackendErrorKind::Unsupported, Effect::NotApplied, message)
                .with_next_step("connect with FileBackend::connect to take or change locks")
        })
    }

    /// A verb that changes something.
    fn unless_refused<'a, T: Send + 'a>(
        &self,
        verb: impl Future<Output = Result<T, BackendError>> + Send + 'a,
    ) -> Verb<'a, Result<T, BackendError>> {
        match self.refused() {
            Some(error) => Box::pin(ready(Err(error))),
            None => Box::pin(verb),
        }
    }

    /// Whether this process had to poll, every 50 ms, because it had no descriptor left for wake-ups
    /// (`EMFILE`, `ENFILE`), or could not wake a waiter of another user for want of rights, so that
    /// this waiter has to check by itself now and then.
    ///
    /// Nothing is wrong then but the delay and the wake-ups; `inspect` says in its notes what is to
    /// be done.
    pub fn polls(&self) -> bool {
        self.shared.polling.load(Ordering::Relaxed) || self.shared.denied.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for FileBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileBackend").field("store", &self.shared.store).finish_non_exhaustive()
    }
}

impl Drop for FileBackend {
    fn drop(&mut self) {
        if self.shared.io.origin().is_here() {
            self.shared.session.end(&self.shared.layout);
            self.shared.caller.end();
        } else {
            // The session is that of the process that this one was forked from.
            std::mem::forget(self.shared.clone());
        }
    }
}

impl Backend for FileBackend {
    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::full(self.shared.store.clone())
            .with_fencing(Fencing::WhileDataSurvives)
            .with_ttl(SHORTEST_TTL..=LONGEST_TTL, DEFAULT_TTL);
        (can.mixed_limits, can.resize) = (true, true);
        can
    }

    fn lifeline(&self) -> Option<Lifeline> {
        let session = &self.shared.session;
        (!session.only_reads()).then(|| Lifeline(session.life().clone()))
    }

    fn doorbell(&self) -> Option<Doorbell> {
        (!self.shared.session.only_reads()).then(|| self.doorbell.clone())
    }

    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> Verb<'a, Result<Attempt, BackendError>> {
        self.unless_refused(self.shared.acquire(claim))
    }

    fn wait<'a>(
        &'a self,
        claim: &'a Claim,
        _blocked: &'a Blocked,
    ) -> Verb<'a, Result<Wake, BackendError>> {
        Box::pin(async move {
            poll_fn(|cx| {
                // A thread that listens by itself is not woken by way of another.
                if !self.doorbell.is_attended() {
                    pokes::read_for_caller(&self.shared);
                }
                self.shared.wakeups.poll_wait(claim.id, cx)
            })
            .await;
            Ok(Wake::Look)
        })
    }

    fn renew_all<'a>(
        &'a self,
        claims: &'a [Claim],
    ) -> Verb<'a, Vec<Result<Renewal, BackendError>>> {
        match self.refused() {
            Some(error) => Box::pin(ready(claims.iter().map(|_| Err(error.clone())).collect())),
            None => Box::pin(self.shared.renew_all(claims)),
        }
    }

    fn release<'a>(
        &'a self,
        claim: &'a Claim,
        linger: Linger,
    ) -> Verb<'a, Result<Released, BackendError>> {
        self.unless_refused(self.shared.give_back(claim, linger))
    }

    fn resize<'a>(&'a self, claim: &'a Claim) -> Verb<'a, Result<Resized, BackendError>> {
        self.unless_refused(self.shared.resize(claim))
    }

    fn blocks(&self) -> bool {
        true
    }

    fn renews_for_others(&self) -> bool {
        true
    }

    fn ttl_may_change(&self) -> bool {
        true
    }

    fn watch<'a>(&'a self, key: &'a Key) -> Verb<'a, Result<Option<Box<dyn Watch>>, BackendError>> {
        Box::pin(async move { Ok(observe::watch(&self.shared.layout, &self.shared.io, key)) })
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> Verb<'a, Result<Vec<Snapshot>, BackendError>> {
        Box::pin(self.shared.inspect(query))
    }
}
