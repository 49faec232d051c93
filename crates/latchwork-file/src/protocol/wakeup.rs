//! The waiters of this process, their wake-ups, and the deaths that they wait for.
//!
//! A claim that is blocked has a slot here before its stripe is unlocked, so a wake-up that comes
//! between the try and the wait is kept. Two things fill a slot: a poke, read from this session's
//! wake file or left by a release in this process, and the death of a session that the claim
//! stands behind. A session is watched through its `.life` pipe, and the watch stays open while
//! the session lives, so that two processes that take turns open nothing.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use latchwork_store::{ClaimId, Moment};
use rustix::io::Errno;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::oneshot;

use crate::protocol::shared::Shared;
use crate::records::session::{self, Life};

/// How many sessions are watched although nobody waits for them just now.
const SPARE_WATCHES: usize = 64;

/// How often a task polls that has no descriptor left for wake-ups.
pub(crate) const POLL: Duration = Duration::from_millis(50);

/// The slots and watches of one backend.
#[derive(Debug, Default)]
pub(crate) struct Wakeups {
    inner: Mutex<Inner>,
    /// The driver reads the pokes.
    read: AtomicBool,
}

#[derive(Debug, Default)]
struct Inner {
    slots: HashMap<ClaimId, Slot>,
    watches: HashMap<u128, Watch>,
    /// Slots are looked through for forgotten ones when there are so many.
    prune_at: usize,
    used: u64,
    /// Ends the task that reads the pokes when dropped, as it is with the backend.
    reading: Option<oneshot::Sender<()>>,
}

#[derive(Debug)]
struct Slot {
    woken: bool,
    waker: Option<Waker>,
    /// The sessions whose death wakes it.
    behind: Vec<u128>,
    expires: Moment,
}

#[derive(Debug)]
struct Watch {
    state: State,
    /// When it was used last, in uses.
    used: u64,
    /// Ends the task when dropped.
    _stop: Option<oneshot::Sender<()>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Not open yet, or no descriptor was left to open it with.
    Opening,
    /// Open, and a death would have been reported.
    Open,
    /// The session is dead.
    Dead,
}

impl Wakeups {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Every change is one insertion or removal; a panic elsewhere leaves nothing half-done.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a slot for a blocked claim, empty again if it had one. Returns the sessions that must
    /// be watched for it and are not.
    pub(crate) fn register(
        &self,
        id: ClaimId,
        behind: Vec<u128>,
        expires: Moment,
        now: Moment,
    ) -> Vec<u128> {
        let mut inner = self.lock();
        inner.used += 1;
        let used = inner.used;
        let mut unwatched = Vec::new();
        let mut woken = false;
        for tag in &behind {
            match inner.watches.get_mut(tag) {
                Some(watch) => {
                    watch.used = used;
                    // It has just died; the claim was judged while it was taken for alive.
                    woken |= watch.state == State::Dead;
                }
                None => unwatched.push(*tag),
            }
        }
        if inner.slots.len() >= inner.prune_at {
            // A claim that was neither granted nor released: its caller is gone.
            inner.slots.retain(|_, slot| slot.expires > now);
            inner.prune_at = (inner.slots.len() * 2).max(64);
        }
        let slot = inner.slots.entry(id).or_insert(Slot {
            woken: false,
            waker: None,
            behind: Vec::new(),
            expires,
        });
        slot.woken = woken;
        slot.behind = behind;
        slot.expires = expires;
        unwatched
    }

    /// Drops the slot of a claim that waits no longer.
    pub(crate) fn forget(&self, id: ClaimId) {
        self.lock().slots.remove(&id);
    }

    /// Wakes a claim of this process.
    pub(crate) fn wake(&self, id: ClaimId) {
        let waker = self.lock().slots.get_mut(&id).and_then(Slot::wake);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Notes that the driver reads the pokes from now on, until what is returned says that it is
    /// over; `None` if it does already.
    pub(crate) fn begin_reading(&self) -> Option<oneshot::Receiver<()>> {
        if self.read.load(Ordering::Relaxed) || self.read.swap(true, Ordering::Relaxed) {
            return None;
        }
        let (stop, stopped) = oneshot::channel();
        self.lock().reading = Some(stop);
        Some(stopped)
    }

    /// Reads what there is and wakes whom it names; false if nothing more is to be read, because
    /// the session is over (what is shared may live a moment longer) or nothing can be.
    pub(crate) fn take_pokes(&self, read: impl FnOnce(&mut [u8]) -> io::Result<usize>) -> bool {
        // A pipe returns what was put in, in order and whole: a multiple of one poke.
        let mut bytes = [0; 4096];
        match read(&mut bytes) {
            Ok(length) if length % 16 == 0 => {
                for id in bytes[..length].chunks_exact(16) {
                    if let Ok(id) = id.try_into() {
                        self.wake(ClaimId::from_u128(u128::from_le_bytes(id)));
                    }
                }
                true
            }
            // Not ours to understand; an idle look does no harm.
            Ok(_) => {
                self.wake_all();
                true
            }
            Err(error) => is_temporary(&error),
        }
    }

    pub(crate) fn wake_all(&self) {
        let wakers: Vec<Waker> = self.lock().slots.values_mut().filter_map(Slot::wake).collect();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Completes when the claim should check again.
    pub(crate) fn poll_wait(&self, id: ClaimId, cx: &mut Context<'_>) -> Poll<()> {
        let mut inner = self.lock();
        let slot = inner.slots.entry(id).or_insert(Slot {
            woken: false,
            waker: None,
            behind: Vec::new(),
            expires: Moment::from_nanos(0),
        });
        if std::mem::take(&mut slot.woken) {
            slot.waker = None;
            return Poll::Ready(());
        }
        match &mut slot.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => slot.waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// What the watches know of a session, without a system call.
    pub(crate) fn known(&self, tag: u128) -> Option<Life> {
        match self.lock().watches.get(&tag)?.state {
            State::Opening => None,
            State::Open => Some(Life::Alive),
            State::Dead => Some(Life::Dead),
        }
    }

    /// Takes note of a watch that is about to open; false if there is one already.
    fn begin(&self, tag: u128, stop: oneshot::Sender<()>) -> bool {
        let mut inner = self.lock();
        if inner.watches.contains_key(&tag) {
            return false;
        }
        if inner.watches.len() >= SPARE_WATCHES {
            inner.drop_spare_watches();
        }
        inner.used += 1;
        let used = inner.used;
        inner.watches.insert(tag, Watch { state: State::Opening, used, _stop: Some(stop) });
        true
    }

    fn set_state(&self, tag: u128, state: State) {
        let mut wakers = Vec::new();
        let mut inner = self.lock();
        let Some(watch) = inner.watches.get_mut(&tag) else { return };
        watch.state = state;
        if state == State::Dead {
            watch._stop = None;
            let behind = inner.slots.values_mut().filter(|slot| slot.behind.contains(&tag));
            wakers.extend(behind.filter_map(Slot::wake));
        }
        drop(inner);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Slot {
    fn wake(&mut self) -> Option<Waker> {
        self.woken = true;
        self.waker.take()
    }
}

impl Inner {
    /// Closes the watches that nobody needs now, but for the half used last.
    fn drop_spare_watches(&mut self) {
        let needed: Vec<u128> = self.slots.values().flat_map(|s| s.behind.clone()).collect();
        let mut spare: Vec<(u64, u128)> = self
            .watches
            .iter()
            .filter(|(tag, _)| !needed.contains(tag))
            .map(|(tag, watch)| (watch.used, *tag))
            .collect();
        spare.sort_unstable();
        let surplus = spare.len().saturating_sub(SPARE_WATCHES / 2);
        for (_, tag) in &spare[..surplus] {
            self.watches.remove(tag);
        }
    }
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Watches a session until it dies, the watch is dropped, or the backend is.
pub(crate) fn watch(shared: &Arc<Shared>, tag: u128) {
    let (stop, stopped) = oneshot::channel();
    if !shared.wakeups.begin(tag, stop) {
        return;
    }
    let weak = Arc::downgrade(shared);
    shared.io.spawn(async move {
        tokio::select! {
            _ = stopped => {}
            () = until_dead(&weak, tag) => {
                if let Some(shared) = weak.upgrade() {
                    session::remove_if_dead(&shared.layout, tag);
                    shared.wakeups.set_state(tag, State::Dead);
                }
            }
        }
    });
}

async fn until_dead(shared: &Weak<Shared>, tag: u128) {
    loop {
        let Some(strong) = shared.upgrade() else { return };
        let opened = session::open_life(&strong.layout, tag).and_then(|life| {
            let Some(life) = life else { return Ok(None) };
            Receiver::from_owned_fd(life).map(Some).map_err(|_| Errno::MFILE)
        });
        let life = match opened {
            Ok(Some(life)) => life,
            Ok(None) => return,
            Err(_) => {
                // No descriptor is left for wake-ups.
                strong.note_polling();
                let pause = strong.io.sleep(POLL);
                drop(strong);
                pause.await;
                continue;
            }
        };
        // A pipe that lost its last writer before it was opened tells nobody; but then it is at
        // its end, where one with a writer has nothing yet.
        let writer = rustix::io::read(&life, &mut [0; 1]) == Err(Errno::AGAIN);
        if writer {
            strong.wakeups.set_state(tag, State::Open);
            drop(strong);
            // An error is no death: the runtime may have ended. The lock tells.
            let _ = life.readable().await;
        } else {
            drop(strong);
        }
        return until_unlocked(shared, tag).await;
    }
}

/// Waits until the lock of a session that has nothing left to say is free. It is, as a rule: the
/// kernel gives up the lock of a description before it closes its pipe.
async fn until_unlocked(shared: &Weak<Shared>, tag: u128) {
    let mut pause = Duration::from_millis(1);
    loop {
        let sleep = {
            let Some(shared) = shared.upgrade() else { return };
            if session::probe(&shared.layout, tag) == Life::Dead {
                return;
            }
            shared.io.sleep(pause)
        };
        sleep.await;
        pause = (pause * 2).min(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// H90: what another user wrote into this session's wake file.
    #[test]
    fn hostile_pokes_are_survived() {
        let wakeups = Wakeups::default();
        let own = ClaimId::from_u128(7);
        let expires = Moment::from_nanos(u64::MAX);
        wakeups.register(own, Vec::new(), expires, Moment::from_nanos(0));
        let poke = 7u128.to_le_bytes();
        latchwork_services::hostile::survives(
            "a wake file",
            &[&poke, &[poke; 4].concat()],
            |bytes| {
                let go_on = wakeups.take_pokes(|buffer| {
                    let length = bytes.len().min(buffer.len());
                    buffer[..length].copy_from_slice(&bytes[..length]);
                    Ok(length)
                });
                assert!(go_on);
            },
        );
        assert_eq!(wakeups.lock().slots.len(), 1, "what is not waited for leaves nothing");
    }
}
