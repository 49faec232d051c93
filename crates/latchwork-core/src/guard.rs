//! A lock that is held.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::backend::Released;
use crate::clock::Moment;
use crate::engine::{Engine, Outcome};
use crate::error::{Error, Lost, NotHeld};
use crate::key::Key;
use crate::lease::HoldState;
use crate::reaper::{Withdrawal, linger_until, tell_released};
use crate::reentrant::Entry;
use crate::token::FencingToken;
use crate::watchdog::Watched;

/// A lock that is held, until it is released, dropped or lost.
///
/// The guard belongs to whoever has the value, on any thread or task. It is renewed in the
/// background for as long as it lives. Dropping it ends renewal at once and releases the lock in
/// the background, outside any runtime as well; [`release`](Guard::release) does the same and
/// tells how it went.
///
/// # Guarantees
///
/// While [`ensure_held`](Guard::ensure_held) answers `Ok`, no other claim was admitted that this
/// one excludes, under the assumptions of the backend. A hold that ends otherwise than by release
/// is told no later than its validity ends, by the holder's own clock, also when the store cannot
/// be reached and also after the machine was suspended.
///
/// # Fencing
///
/// A process can be paused right after it asked. Hand [`token`](Guard::token) to the resource and
/// let it refuse smaller ones ([`Fence`](crate::Fence)).
#[must_use = "dropping the guard releases the lock"]
pub struct Guard {
    engine: Arc<Engine>,
    watched: Arc<Watched>,
    token: FencingToken,
    index: u32,
    /// Which of several guards of one owner this is, for a hold that may be entered again.
    entry: Option<Entry>,
    done: bool,
}

impl Guard {
    pub(crate) fn new(engine: Arc<Engine>, watched: Arc<Watched>, index: u32) -> Self {
        let first = watched.lease.first_token;
        // Indices stay within the bits of a token: `Rules` caps the number of handovers.
        let token = first.handed_over(index).unwrap_or(first);
        Self { engine, watched, token, index, entry: None, done: false }
    }

    /// One more guard of the same hold, for its owner.
    pub(crate) fn entered(mut self, entry: Entry) -> Self {
        self.entry = Some(entry);
        self
    }

    /// The hold, for who wants to make more guards of it.
    pub(crate) fn hold(&self) -> (&Arc<Watched>, u32) {
        (&self.watched, self.index)
    }

    /// The key that is held.
    pub fn key(&self) -> &Key {
        &self.watched.lease.claim.key
    }

    /// The number to give to the resource.
    pub fn token(&self) -> FencingToken {
        self.token
    }

    /// Both clocks of this machine, boot and wall.
    pub(crate) fn clocks(&self) -> (Moment, Duration) {
        (self.engine.io.now(), self.engine.io.clock().wall())
    }

    /// Sets the longest hold aside, until [`start_max_hold`](Guard::start_max_hold).
    pub(crate) fn suspend_max_hold(&self) {
        self.watched.lease.suspend_max_hold();
    }

    /// From now on the longest hold counts.
    pub(crate) fn start_max_hold(&self) {
        let now = self.engine.io.now();
        self.watched.lease.restart_hold(now, self.index);
        // The end may come before anything that the watchdog sleeps for.
        self.engine.watchdog.review(&self.watched);
    }

    /// How long the hold may be counted on if it is not renewed again.
    pub fn remaining(&self) -> Duration {
        match self.state() {
            HoldState::Lost(_) => Duration::ZERO,
            _ => self.watched.lease.valid_until().since(self.engine.io.now()),
        }
    }

    /// The ttl that the store granted last.
    pub fn ttl(&self) -> Duration {
        self.watched.lease.granted_ttl()
    }

    /// Until when the hold may be counted on, on the boot clock
    /// ([`boot_time`](crate::clock::boot_time)). A renewal moves it on; a pause of the machine moves
    /// it back by as much, until the next renewal.
    pub fn valid_until(&self) -> Moment {
        // A pause of the machine is noticed by a look.
        self.state();
        self.watched.lease.valid_until()
    }

    /// What the hold is right now, by the clock.
    pub fn state(&self) -> HoldState {
        self.engine.judge(&self.watched)
    }

    /// Answers the token if the hold is valid right now.
    ///
    /// Costs two readings of the clock and no I/O. Ask right before each step that must not be
    /// done without the lock.
    ///
    /// # Errors
    ///
    /// [`NotHeld::Lost`] once the hold is over, for good; [`NotHeld::Suspect`] while it is in
    /// doubt, which a renewal settles in the background.
    pub fn ensure_held(&self) -> Result<FencingToken, NotHeld> {
        match self.state() {
            HoldState::Held => Ok(self.token),
            HoldState::Suspect => Err(NotHeld::Suspect),
            HoldState::Lost(lost) => Err(NotHeld::Lost(lost)),
        }
    }

    /// Completes when the hold has ended otherwise than by a release, and says why.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again; nothing is missed.
    pub async fn lost(&self) -> Lost {
        let lease = &self.watched.lease;
        let judge = || match self.state() {
            HoldState::Lost(lost) => Some(lost),
            HoldState::Held | HoldState::Suspect => None,
        };
        lease.until(self.engine.io.clock().as_ref(), judge).await
    }

    /// Completes when [`ensure_held`](Guard::ensure_held) would refuse, and says why: the hold is in
    /// doubt, or has ended. Doubt may pass, by a renewal in the background.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again; nothing is missed.
    pub async fn not_held(&self) -> NotHeld {
        let lease = &self.watched.lease;
        lease.until(self.engine.io.clock().as_ref(), || self.ensure_held().err()).await
    }

    /// Runs `work` for as long as the lock is held.
    ///
    /// # Errors
    ///
    /// [`Lost`] if the hold ended first: `work` was dropped at its last await point, and what it
    /// had begun elsewhere may still be under way.
    ///
    /// # Cancel safety
    ///
    /// Dropping this future drops `work`; the lock stays with the guard.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, Lost> {
        run_until(self.lost(), work).await
    }

    /// Releases the lock and tells how it went.
    ///
    /// `Yes` also when the hold passed to a waiter of this process, and when it goes on because its
    /// owner entered it more than once; `NotHeld` when the hold was
    /// lost before, so what was done under it may have overlapped with another holder's work.
    ///
    /// # Errors
    ///
    /// `Unreachable` if the store did not answer: the release goes on in the background, until it
    /// is answered or the ttl is over.
    ///
    /// # Cancel safety
    ///
    /// The guard is gone in any case. A dropped release goes on in the background.
    pub async fn release(self) -> Result<Released, Error> {
        self.release_until(None).await
    }

    /// Releases the lock and keeps the key closed to everyone until then.
    pub(crate) async fn release_until(
        mut self,
        closed_until: Option<Moment>,
    ) -> Result<Released, Error> {
        self.done = true;
        let outcome = match (self.leave(), closed_until) {
            (Leave::Others(held), _) => {
                return Ok(if held { Released::Yes } else { Released::NotHeld });
            }
            (Leave::Last, None) => self.engine.hand_over_or_end(&self.watched, self.index),
            (Leave::Last, until) => self.engine.end(&self.watched, until),
        };
        let job = match outcome {
            Outcome::Ended(job) => job,
            Outcome::HandedOver => return Ok(Released::Yes),
            Outcome::WasLost => return Ok(Released::NotHeld),
        };
        let (rules, held) = (job.rules.clone(), job.held);
        let op_timeout = rules.op_timeout(job.claim.ttl);
        let mut withdrawal = Withdrawal::new(&self.engine.reaper, job);
        let reaper = &self.engine.reaper;
        let linger = linger_until(closed_until, self.engine.io.now());
        match reaper.release_once(withdrawal.claim(), linger, op_timeout).await {
            Ok(released) => {
                withdrawal.settled();
                tell_released(&rules, self.key(), held);
                Ok(released)
            }
            Err(error) => Err(self
                .engine
                .seen(error, Some(self.key()))
                .next_step("nothing to do: the release is repeated until the ttl is over")),
        }
    }

    /// Takes this guard out of the count of its owner's.
    fn leave(&mut self) -> Leave {
        let is_last = self.entry.take().is_none_or(|entry| entry.leave());
        if is_last {
            return Leave::Last;
        }
        Leave::Others(!matches!(self.state(), HoldState::Lost(_)))
    }

    /// Forgets a guard that was made for a waiter who had gone: the hold is still the maker's.
    pub(crate) fn disarm(mut self) {
        self.done = true;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        if let Leave::Others(_) = self.leave() {
            return;
        }
        if let Outcome::Ended(job) = self.engine.hand_over_or_end(&self.watched, self.index) {
            self.engine.reaper.reap(job);
        }
    }
}

/// Runs `work` until it ends or `lost` tells that it must not go on.
pub(crate) async fn run_until<F: Future>(
    lost: impl Future<Output = Lost>,
    work: F,
) -> Result<F::Output, Lost> {
    let (mut lost, mut work) = (pin!(lost), pin!(work));
    poll_fn(|cx| {
        if let Poll::Ready(lost) = lost.as_mut().poll(cx) {
            return Poll::Ready(Err(lost));
        }
        work.as_mut().poll(cx).map(Ok)
    })
    .await
}

/// Who is left of an owner's guards.
enum Leave {
    /// Others, and whether the hold is still theirs.
    Others(bool),
    /// This was the last one.
    Last,
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("key", self.key())
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}
