//! The five verbs: read a record under its stripe's lock, let the record decide, write it back.
//!
//! The file work of a verb runs where it is polled. It takes microseconds, since all of it is in
//! the page cache. Two things must reach the disk: the ceiling of a stripe's tokens, once for
//! thousands of grants, and a release that lingers. Both are waited for on a thread of their own,
//! with the stripe unlocked (`disk.rs`).

use std::fmt;
use std::future::poll_fn;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use latchwork_store::kit::record::Wakeup;
use latchwork_store::{
    Attempt, Backend, BackendError, Blocked, Capabilities, Claim, Doorbell, Error, Fencing, Io,
    Key, Lifeline, Linger, Query, Released, Renewal, Snapshot, Verb, Wake, Watch,
};

use crate::boot;
use crate::layout::{self, ASIDE, Layout, Place};
use crate::pokes;
use crate::record_file::{RecordFile, Unsynced};
use crate::reserve::{self, Waiting};
use crate::session::{self, Session};
use crate::shared::Shared;
use crate::stripe::Locked;
use crate::wakeup;
use crate::{fs_check, observe};

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
        let shared = Arc::new(Shared::new(layout, io, boot, session));
        let doorbell = pokes::doorbell(&shared);
        Ok(Arc::new(FileBackend { shared, doorbell }))
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
            self.shared.near.end();
        } else {
            // The session is that of the process that this one was forked from.
            std::mem::forget(self.shared.clone());
        }
    }
}

impl Backend for FileBackend {
    fn capabilities(&self) -> Capabilities {
        Capabilities::full(self.shared.store.clone())
            .with_fencing(Fencing::WhileDataSurvives)
            .with_ttl(SHORTEST_TTL..=LONGEST_TTL, DEFAULT_TTL)
    }

    fn lifeline(&self) -> Option<Lifeline> {
        Some(Lifeline(self.shared.session.life().clone()))
    }

    fn doorbell(&self) -> Option<Doorbell> {
        Some(self.doorbell.clone())
    }

    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> Verb<'a, Result<Attempt, BackendError>> {
        let shared = &self.shared;
        Box::pin(async move {
            let place = Place::of(&claim.key);
            let (answer, wakeups, unwatched) = loop {
                let tried = {
                    let locked = shared.lock(place.stripe).await?;
                    let mut locked = locked.ok_or_else(|| shared.removed())?;
                    shared.try_acquire(&mut locked, claim, &place)?
                };
                match tried {
                    Tried::Done(answer, wakeups, unwatched) => break (answer, wakeups, unwatched),
                    Tried::NoToken(waiting) => reserve::wait(waiting).await?,
                }
            };
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
            let (released, wakeups, unsynced) = {
                // Where everything was removed, the claim was too.
                let Some(mut locked) = shared.lock(place.stripe).await? else {
                    return Ok(Released::NotHeld);
                };
                let outcome = shared.release(claim, linger, &place);
                if locked.is_crowded() {
                    shared.remove_idle(&mut locked, place.stripe);
                }
                outcome?
            };
            shared.deliver(&claim.key, &wakeups);
            if let Some(unsynced) = unsynced {
                shared.put_linger_on_disk(unsynced).await?;
                shared.forget_unsynced(claim.id);
            }
            Ok(released)
        })
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

/// The result of a try.
enum Tried {
    /// An answer, whom it lets move on, and whose sessions are to be watched.
    Done(Result<Attempt, BackendError>, Vec<Wakeup>, Vec<u128>),
    /// Nothing was changed: the next token lies above the ceiling that is on the disk.
    NoToken(Waiting),
}

impl Shared {
    fn try_acquire(
        self: &Arc<Self>,
        locked: &mut Locked<'_>,
        claim: &Claim,
        place: &Place,
    ) -> Result<Tried, BackendError> {
        // A process that cannot find this session takes its claims for those of a dead process.
        if !self.session.can_be_found()? {
            return Err(self.removed());
        }
        let (mut file, mut record) = self.kept.open(&self.layout, place, &claim.key, self.era())?;
        let now = self.now();
        let micros = now.wall.as_micros() as u64;
        let base = locked.counter(self.era(), micros)?;
        let alive = |tag| self.alive(tag);
        let (answer, wakeups) = record.try_acquire(claim, self.session.id, base, now, &alive);
        // Nothing is written then, so nothing has changed.
        if matches!(answer, Ok(Attempt::Blocked(_))) && claim.waits && !self.session.can_be_told() {
            return Err(self.removed());
        }
        if let Ok(Attempt::Granted(grant)) = &answer
            && grant.token > base
        {
            if !locked.covers(grant.token, self.era(), micros)? {
                let waiting = self.reserve(locked, place.stripe, grant.token, micros);
                return Ok(Tried::NoToken(waiting));
            }
            if locked.grant(grant.token, !file.exists(), self.era(), micros)? {
                self.reserve_ahead(locked, place.stripe);
            }
        }
        file.write(&claim.key, &record, self.layout.file_mode())?;
        self.kept.keep(place, file, &record, self.session.id);
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
        Ok(Tried::Done(answer, wakeups, unwatched))
    }

    /// Releases, and answers what must be put on the disk before the caller is answered.
    fn release(
        &self,
        claim: &Claim,
        linger: Linger,
        place: &Place,
    ) -> Result<(Released, Vec<Wakeup>, Option<Unsynced>), BackendError> {
        let (mut file, mut record) = self.kept.open(&self.layout, place, &claim.key, self.era())?;
        if !file.exists() {
            self.forget_waiter(claim, linger);
            return Ok((Released::NotHeld, Vec::new(), None));
        }
        let now = self.now();
        let (mut released, wakeups) = record.release(claim, linger, now, &|tag| self.alive(tag));
        file.write(&claim.key, &record, self.layout.file_mode())?;
        self.forget_waiter(claim, linger);
        if linger == Linger::None {
            // Another claim of this process may hold it, too.
            self.kept.keep(place, file, &record, self.session.id);
            return Ok((released, wakeups, None));
        }
        // The claim is over whatever the disk says, but the linger, or its end, may not outlive a
        // power cut. Told as an error, or not in time, the release is tried again, and the claim is gone.
        if released == Released::Yes {
            self.remember_unsynced(claim.id);
        } else if self.is_unsynced(claim.id) {
            released = Released::Yes;
        } else {
            return Ok((released, wakeups, None));
        }
        Ok((released, wakeups, file.into_unsynced()))
    }

    /// A claim that is released waits no more; to open a key releases none.
    fn forget_waiter(&self, claim: &Claim, linger: Linger) {
        if linger != Linger::End {
            self.wakeups.forget(claim.id);
        }
    }

    /// Removes the records of a stripe that say nothing but their last token, which the stripe's
    /// counter covers. What cannot be read or removed stays.
    fn remove_idle(&self, locked: &mut Locked<'_>, stripe: usize) {
        let now = self.now();
        let records = self.layout.records(stripe);
        let Ok(names) = records.list() else { return };
        let mut left = 0;
        for name in names {
            // Whatever else lies here was not put here by Latchwork.
            if !layout::is_record(&name) {
                left += 1;
                continue;
            }
            let entry = records.child(&name);
            let idle = name == ASIDE
                || RecordFile::look(entry.clone(), self.era()).is_ok_and(|found| match found.key {
                    Some(key) => found.record.snapshot(key, now, &|tag| self.alive(tag)).is_free(),
                    None => true,
                });
            if !idle || entry.remove().is_err() {
                left += 1;
            }
        }
        // Not noted, it is done again by a later release.
        let _ = locked.swept(left, self.era(), now.wall.as_micros() as u64);
    }
}
