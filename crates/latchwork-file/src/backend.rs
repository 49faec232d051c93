//! The five verbs: read a record under its stripe's lock, let the record decide, write it back.
//!
//! The file work of a verb runs where it is polled. It takes microseconds, since all of it is in
//! the page cache; the exceptions, about a hundredth of a second on a slow disk, are one sync for
//! ten thousand grants of a stripe and one for a release that lingers.

use std::fmt;
use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use latchwork_core::kit::record::{Now, Wakeup};
use latchwork_core::{
    Attempt, Backend, BackendError, BackendErrorKind, Backoff, Blocked, Capabilities, Claim,
    Doorbell, Effect, Error, Fencing, Io, Lifeline, Linger, Query, Released, Renewal, Snapshot,
    Verb, Wake,
};

use crate::failure::removed;
use crate::fs_check;
use crate::layout::{Layout, Place, STRIPES};
use crate::record_file::{ASIDE, RecordFile};
use crate::session::{self, Life, Session};
use crate::stripe::{Locked, Stripe, Try};
use crate::wakeup::{self, Wakeups};

/// The ttls that can be granted: any that leaves time to renew, and none that was meant otherwise.
const SHORTEST_TTL: Duration = Duration::from_millis(10);
const LONGEST_TTL: Duration = Duration::from_secs(366 * 24 * 60 * 60);
const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// How many records are worked on before the stripe is given to others.
pub(crate) const BATCH: usize = 64;

/// Locks between the processes of one machine, kept in a directory.
///
/// See the [crate documentation](crate) for what it guarantees and what not.
pub struct FileBackend {
    shared: Arc<Shared>,
    doorbell: Doorbell,
}

/// What the backend shares with its tasks.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) layout: Layout,
    pub(crate) io: Io,
    pub(crate) wakeups: Wakeups,
    pub(crate) boot: u128,
    pub(crate) session: Session,
    stripes: Vec<Stripe>,
    store: Arc<str>,
    pub(crate) polling: AtomicBool,
    /// A waiter of another user could not be woken for want of rights.
    pub(crate) denied: AtomicBool,
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
        let boot = boot_id()?;
        let layout = Layout::open(dir)?;
        fs_check::check_kind(layout.dir())?;
        layout.fill()?;
        session::remove_dead(&layout);
        let session = Session::begin(&layout)?;
        let shared = Arc::new(Shared {
            store: format!("file://{}", layout.root().display()).into(),
            stripes: (0..STRIPES).map(|i| Stripe::new(layout.stripe(i))).collect(),
            wakeups: Wakeups::default(),
            polling: AtomicBool::new(false),
            denied: AtomicBool::new(false),
            layout,
            io,
            boot,
            session,
        });
        let doorbell = wakeup::doorbell(&shared);
        Ok(Arc::new(FileBackend { shared, doorbell }))
    }

    /// Whether this process had to poll, every 50 ms, because it had no descriptor left to be told
    /// by (`EMFILE`, `ENFILE`), or could not wake a waiter of another user for want of rights, so
    /// that the other one has to look by itself now and then.
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
        } else {
            // The session is that of the process that this one was forked from.
            std::mem::forget(self.shared.clone());
        }
    }
}

impl Backend for FileBackend {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            store: self.shared.store.clone(),
            shared: true,
            permits: true,
            fifo: true,
            linger: true,
            push: true,
            fencing: Fencing::WhileDataSurvives,
            ttl: SHORTEST_TTL..=LONGEST_TTL,
            default_ttl: DEFAULT_TTL,
            lifeline: Some(Lifeline(self.shared.session.life().clone())),
            doorbell: Some(self.doorbell.clone()),
        }
    }

    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> Verb<'a, Result<Attempt, BackendError>> {
        let shared = &self.shared;
        Box::pin(async move {
            let place = Place::of(&claim.key);
            let mut locked = shared.lock(place.stripe).await?.ok_or_else(|| shared.removed())?;
            let outcome = shared.try_acquire(&mut locked, claim, &place);
            drop(locked);
            let (answer, wakeups, unwatched) = outcome?;
            for tag in unwatched {
                wakeup::watch(shared, tag);
            }
            shared.deliver(&claim.key, &wakeups);
            answer
        })
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
                    wakeup::read_pokes(&self.shared);
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
        Box::pin(self.shared.renew_all(claims))
    }

    fn release<'a>(
        &'a self,
        claim: &'a Claim,
        linger: Linger,
    ) -> Verb<'a, Result<Released, BackendError>> {
        let shared = &self.shared;
        Box::pin(async move {
            let place = Place::of(&claim.key);
            // Where everything was removed, the claim was too.
            let Some(mut locked) = shared.lock(place.stripe).await? else {
                return Ok(Released::NotHeld);
            };
            let outcome = shared.release(claim, linger, &place);
            if locked.is_crowded() {
                shared.remove_idle(&mut locked, place.stripe);
            }
            drop(locked);
            let (released, wakeups) = outcome?;
            shared.deliver(&claim.key, &wakeups);
            Ok(released)
        })
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> Verb<'a, Result<Vec<Snapshot>, BackendError>> {
        Box::pin(self.shared.inspect(query))
    }
}

impl Shared {
    /// Locks a stripe; `None` if it is gone.
    ///
    /// Another process may be stopped while it has the lock, so this never blocks a thread: it
    /// sleeps until the caller's time limit drops it.
    pub(crate) async fn lock(&self, stripe: usize) -> Result<Option<Locked<'_>>, BackendError> {
        let mut backoff = Backoff::new(Duration::from_micros(200), Duration::from_millis(5));
        loop {
            match self.try_lock(stripe)? {
                Try::Locked(locked) => return Ok(Some(locked)),
                Try::Removed => return Ok(None),
                Try::Busy => {}
            }
            self.io.sleep(backoff.pause()).await;
        }
    }

    /// Locks a stripe unless it is busy.
    pub(crate) fn try_lock(&self, stripe: usize) -> Result<Try<'_>, BackendError> {
        self.stripes[stripe].try_lock()
    }

    /// Where this session is told to look again.
    pub(crate) fn wake(&self) -> &Arc<OwnedFd> {
        self.session.wake()
    }

    /// Both clocks, read while the stripe is locked, so that they agree with the order of changes.
    pub(crate) fn now(&self) -> Now {
        Now { lease: Duration::from_nanos(self.io.now().as_nanos()), wall: self.io.clock().wall() }
    }

    pub(crate) fn removed(&self) -> BackendError {
        removed(self.layout.root())
    }

    /// Whether a session lives; the files of a dead one are removed.
    pub(crate) fn alive(&self, tag: u128) -> bool {
        let alive = self.seems_alive(tag);
        if !alive {
            session::remove_if_dead(&self.layout, tag);
        }
        alive
    }

    pub(crate) fn seems_alive(&self, tag: u128) -> bool {
        tag == self.session.id
            || self.wakeups.known(tag).unwrap_or_else(|| session::probe(&self.layout, tag))
                != Life::Dead
    }

    #[expect(clippy::type_complexity, reason = "used once")]
    fn try_acquire(
        &self,
        locked: &mut Locked<'_>,
        claim: &Claim,
        place: &Place,
    ) -> Result<(Result<Attempt, BackendError>, Vec<Wakeup>, Vec<u128>), BackendError> {
        // Whoever cannot find this session takes its claims for those of a dead process.
        if !self.session.can_be_found()? {
            return Err(self.removed());
        }
        let (mut file, mut record) =
            RecordFile::open(self.layout.record(place), &claim.key, self.boot)?;
        let now = self.now();
        let micros = now.wall.as_micros() as u64;
        let base = locked.counter(self.boot, micros)?;
        let alive = |tag| self.alive(tag);
        let (answer, wakeups) = record.try_acquire(claim, self.session.id, base, now, &alive);
        // Nothing is written then, so nothing has changed.
        if matches!(answer, Ok(Attempt::Blocked(_))) && claim.waits && !self.session.can_be_told() {
            return Err(self.removed());
        }
        if let Ok(Attempt::Granted(grant)) = &answer
            && grant.token > base
        {
            locked.grant(grant.token, !file.exists(), self.boot, micros)?;
        }
        file.write(&claim.key, &record, self.layout.file_mode())?;
        let mut unwatched = Vec::new();
        match &answer {
            Ok(Attempt::Blocked(_)) if claim.waits => {
                let mut behind = record.behind(claim.id, &alive);
                // This session's own death needs no telling.
                behind.retain(|tag| *tag != self.session.id);
                let at = self.io.now();
                unwatched = self.wakeups.register(claim.id, behind, at.plus(claim.ttl), at);
            }
            _ => self.wakeups.forget(claim.id),
        }
        Ok((answer, wakeups, unwatched))
    }

    fn release(
        &self,
        claim: &Claim,
        linger: Linger,
        place: &Place,
    ) -> Result<(Released, Vec<Wakeup>), BackendError> {
        let (mut file, mut record) =
            RecordFile::open(self.layout.record(place), &claim.key, self.boot)?;
        if !file.exists() {
            self.wakeups.forget(claim.id);
            return Ok((Released::NotHeld, Vec::new()));
        }
        let now = self.now();
        let (released, wakeups) = record.release(claim.id, linger, now, &|tag| self.alive(tag));
        file.write(&claim.key, &record, self.layout.file_mode())?;
        self.wakeups.forget(claim.id);
        if released == Released::Yes && linger != Linger::None {
            // The claim is over whatever the disk says, but the linger may not outlive a power
            // cut. Told as an error, the release is tried again, and then finds nothing to do.
            file.sync()?;
        }
        Ok((released, wakeups))
    }

    /// Removes the records of a stripe that say nothing but their last token, which the stripe's
    /// counter covers. What cannot be read or removed stays.
    fn remove_idle(&self, locked: &mut Locked<'_>, stripe: usize) {
        let now = self.now();
        let records = self.layout.records(stripe);
        let Ok(names) = records.list() else { return };
        let mut left = 0;
        for name in names {
            let entry = records.child(&name);
            let idle = name == ASIDE
                || RecordFile::look(entry.clone(), self.boot).is_ok_and(|found| match found.key {
                    Some(key) => found.record.snapshot(key, now, &|tag| self.alive(tag)).is_free(),
                    None => true,
                });
            if !idle || entry.remove().is_err() {
                left += 1;
            }
        }
        // Not noted, it is done again by a later release.
        let _ = locked.swept(left, self.boot, now.wall.as_micros() as u64);
    }

    /// Says that this process polls for want of descriptors.
    pub(crate) fn note_polling(&self) {
        self.polling.store(true, Ordering::Relaxed);
    }
}

/// What tells this boot of the machine from all others.
fn boot_id() -> Result<u128, BackendError> {
    let path = "/proc/sys/kernel/random/boot_id";
    std::fs::read_to_string(path)
        .ok()
        .and_then(|text| u128::from_str_radix(&text.trim().replace('-', ""), 16).ok())
        .ok_or_else(|| {
            BackendError::new(
                BackendErrorKind::Unsupported,
                Effect::NotApplied,
                format!("cannot read {path}, which tells one boot of the machine from another"),
            )
            .next_step("mount /proc in this container")
        })
}
