//! A lock that is held.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::hold::engine::{Engine, Outcome};
use crate::hold::lease::HoldState;
use crate::hold::local_queue::{EndHold, Handed};
use crate::hold::owners::Entry;
use crate::hold::reaper::{Job, Withdrawal, linger_until, tell_released};
use crate::hold::watched::Watched;
use crate::rules::observe::Event;
use crate::runtime::call::Unpolled;
use crate::runtime::own::Forked;
use latchwork_store::{
    Error, ErrorKind, FencingToken, Held, Key, Lost, LostReason, Moment, NotHeld, Released,
};

/// A lock that is held, until it is released, dropped or lost.
///
/// The guard belongs to the owner of the value, on any thread or task. It is renewed in the
/// background for as long as it lives. Dropping it ends renewal at once and releases the lock in
/// the background, outside any runtime as well; [`release`](Guard::release) does the same and
/// returns the result.
///
/// # Guarantees
///
/// While [`ensure_held`](Guard::ensure_held) returns `Ok`, no claim that this one excludes is
/// admitted, under the assumptions of the backend. A loss is reported no later than the validity
/// ends by the holder's own clock, even if the store cannot be reached, and after the machine was
/// suspended.
///
/// In a child that was forked from the process (`fork` without `exec`) the guard holds nothing: its
/// state is [`Lost`](HoldState::Lost) with [`Forked`](LostReason::Forked), and neither a release
/// nor a drop there touches the parent's lock.
///
/// # Fencing
///
/// A process can be paused right after its check. Pass the [`token`](Guard::token) to the resource
/// and let it refuse smaller ones ([`Fence`](crate::fence::Fence)).
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

    /// The guard of a hold that another waiter of this process has handed over.
    pub(crate) fn of(engine: &Arc<Engine>, handed: Handed) -> Self {
        let (watched, index) = handed.accept();
        Self::new(engine.clone(), watched, index)
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

    /// Returns the key of the lock.
    pub fn key(&self) -> &Key {
        &self.watched.lease.claim.key
    }

    /// Returns the fencing token for the resource to check. An upgrade or a downgrade makes it
    /// larger.
    pub fn token(&self) -> FencingToken {
        self.token
    }

    /// Both clocks of this machine, boot and wall.
    #[cfg(feature = "once")]
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

    /// Returns the remaining validity without another renewal.
    pub fn remaining(&self) -> Duration {
        match self.state() {
            HoldState::Lost(_) => Duration::ZERO,
            _ => self.watched.lease.valid_until().since(self.engine.io.now()),
        }
    }

    /// Returns the ttl that the store granted last.
    pub fn ttl(&self) -> Duration {
        if !self.engine.is_here() {
            return self.watched.lease.claim.ttl;
        }
        self.watched.lease.granted_ttl()
    }

    /// Returns the end of the validity, on the boot clock
    /// ([`boot_time`](latchwork_store::clock::boot_time)). A renewal extends it. A pause of the
    /// machine shortens it by the length of the pause, until the next renewal.
    pub fn valid_until(&self) -> Moment {
        if !self.engine.is_here() {
            return Moment::from_nanos(0);
        }
        // A pause of the machine is noticed by a look.
        self.state();
        self.watched.lease.valid_until()
    }

    /// Returns the current state of the hold, by the clock.
    pub fn state(&self) -> HoldState {
        self.engine.judge(&self.watched)
    }

    /// Returns the token if the lock is held, or why it is not.
    ///
    /// Costs two readings of the clock and no I/O. Call it right before each step that must not be
    /// done without the lock.
    ///
    /// # Errors
    ///
    /// [`NotHeld::Lost`] once the lock is lost, which is final. [`NotHeld::Suspect`] while the hold
    /// is in doubt, until a renewal in the background confirms it.
    pub fn ensure_held(&self) -> Result<FencingToken, NotHeld> {
        match self.state() {
            HoldState::Held => Ok(self.token),
            HoldState::Suspect => Err(NotHeld::Suspect),
            HoldState::Lost(lost) => Err(NotHeld::Lost(lost)),
        }
    }

    /// Completes with the reason when the lock is lost.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again; nothing is missed.
    pub async fn lost(&self) -> Lost {
        self.watch_loss().await
    }

    /// Completes as [`lost`](Guard::lost) does, and does not borrow the guard: for a caller that
    /// cannot, such as another language. It follows the guard through an upgrade or a downgrade.
    /// Once the guard is released or dropped, the result says nothing about the hold.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again; nothing is missed.
    pub fn watch_loss(&self) -> impl Future<Output = Lost> + Send + use<> {
        let (engine, mut watched) = (self.engine.clone(), self.watched.clone());
        async move {
            loop {
                let judge = || match engine.judge(&watched) {
                    HoldState::Lost(lost) => Some(watched.lease.successor().ok_or(lost)),
                    HoldState::Held | HoldState::Suspect => None,
                };
                let over = watched.lease.until(engine.io.clock().as_ref(), judge);
                match engine.native(over).await {
                    Ok(Ok(successor)) => watched = successor,
                    Ok(Err(lost)) => return lost,
                    Err(Forked) => return engine.left_behind(),
                }
            }
        }
    }

    /// Completes when [`ensure_held`](Guard::ensure_held) would fail: the hold is in doubt or lost.
    /// A renewal in the background may end the doubt.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again; nothing is missed.
    pub async fn not_held(&self) -> NotHeld {
        let lease = &self.watched.lease;
        let told = lease.until(self.engine.io.clock().as_ref(), || self.ensure_held().err());
        let told = self.engine.native(told).await;
        told.unwrap_or_else(|Forked| NotHeld::Lost(self.engine.left_behind()))
    }

    /// Completes when the hold is in no doubt: a renewal has confirmed it, or it is lost. That takes
    /// [`settle`](latchwork_store::validity::settle) at most.
    pub(crate) async fn settled(&self) -> HoldState {
        let judge = || Some(self.state()).filter(|state| *state != HoldState::Suspect);
        let settled = self.watched.lease.until(self.engine.io.clock().as_ref(), judge);
        let settled = self.engine.native(settled).await;
        settled.unwrap_or_else(|Forked| HoldState::Lost(self.engine.left_behind()))
    }

    /// Runs `work` for as long as the lock is held.
    ///
    /// # Errors
    ///
    /// [`Lost`] if the hold ended first: `work` was dropped at its last await point, and what it
    /// had begun elsewhere may still be in progress.
    ///
    /// # Cancel safety
    ///
    /// Dropping this future drops `work`; the lock stays with the guard.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, Lost> {
        run_until(self.lost(), work).await
    }

    /// Releases the lock.
    ///
    /// `Ok` means that the lock was held until now. This also applies if the hold is handed to a
    /// waiter of this process, or continues because its owner has acquired it more than once.
    ///
    /// # Errors
    ///
    /// - [`Lost`](crate::ErrorKind::Lost) if the hold was lost before: what was done under it may have
    ///   overlapped with another holder's work. The message names the token to check for.
    /// - `Unreachable` if the store did not answer: the lock was held until now, and the release
    ///   continues in the background, until it is answered or the ttl ends.
    /// - `Forked` in a child of the process that has the lock, where nothing is done.
    ///
    /// # Cancel safety
    ///
    /// The guard is consumed in any case. A dropped release continues in the background, and so
    /// does one that is not polled for two seconds.
    pub async fn release(self) -> Result<(), Error> {
        self.release_until(None).await
    }

    /// Releases the lock and keeps the key closed to everyone until then.
    pub(crate) async fn release_until(self, closed_until: Option<Moment>) -> Result<(), Error> {
        let (engine, key) = (self.engine.clone(), self.key().clone());
        // Asked for once: a release that nobody polls goes on.
        let mut guard = Some(self);
        let releasing = engine.call(Unpolled::GoesOn, move |_| {
            let guard = guard.take();
            async move {
                match guard {
                    Some(guard) => guard.release_here(closed_until).await,
                    None => Ok(()),
                }
            }
        });
        let answer = releasing.await;
        engine.told(answer, Some(&key))
    }

    async fn release_here(mut self, closed_until: Option<Moment>) -> Result<(), Error> {
        let Some(mut withdrawal) = self.withdraw(closed_until)? else { return Ok(()) };
        let Job { claim, rules, held, .. } = withdrawal.job();
        let (rules, held) = (rules.clone(), *held);
        let op_timeout = rules.op_timeout(claim.ttl);
        let linger = linger_until(closed_until, self.engine.io.now());
        match self.engine.reaper.release_once(claim, linger, op_timeout).await {
            Ok(released) => {
                withdrawal.settled();
                tell_released(&rules, self.key(), held);
                self.leave_alone(op_timeout).await;
                match released {
                    Released::Yes => Ok(()),
                    Released::NotHeld => Err(self.lost_at_release()),
                }
            }
            Err(error) => Err(self.engine.seen(error, Some(self.key())).with_next_step(
                "nothing to do: Latchwork retries the release until the ttl is over",
            )),
        }
    }

    /// Ends this guard's part of the hold; `None` if the hold goes on, and nothing is to be released.
    pub(crate) fn withdraw(
        &mut self,
        closed_until: Option<Moment>,
    ) -> Result<Option<Withdrawal>, Error> {
        if !self.engine.is_here() {
            return Err(self.engine.forked(Some(self.key())));
        }
        self.done = true;
        let outcome = match (self.leave(), closed_until) {
            (Leave::Others(None), _) => return Ok(None),
            (Leave::Others(Some(lost)), _) => return Err(self.lost_before(lost)),
            (Leave::Last, None) => self.engine.hand_over_or_end(&self.watched, self.index),
            (Leave::Last, until) => self.engine.end(&self.watched, until),
        };
        match outcome {
            Outcome::Ended(job) => Ok(Some(Withdrawal::new(&self.engine.reaper, job))),
            Outcome::HandedOver => Ok(None),
            Outcome::WasLost(lost) => Err(self.lost_before(lost)),
        }
    }

    /// Waits until the hold that this one has replaced has left the store, or for so long.
    pub(crate) async fn leave_alone(&self, limit: Duration) {
        self.engine.io.within(limit, self.watched.lease.is_alone()).await;
    }

    /// Goes on with the hold of `next` in place of its own, which is to be released.
    pub(crate) fn replace(&mut self, mut next: Guard) -> Result<Withdrawal, Lost> {
        match self.engine.replace(&self.watched, &next.watched) {
            Outcome::Ended(job) => {
                std::mem::swap(self, &mut next);
                next.done = true;
                let job = Job { turn: self.watched.lease.after(), ..job };
                Ok(Withdrawal::new(&self.engine.reaper, job))
            }
            Outcome::WasLost(lost) => Err(lost),
            Outcome::HandedOver => unreachable!("readers and writers hand nothing over"),
        }
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Whether this is one of the guards of an owner that may enter again.
    pub(crate) fn is_entered(&self) -> bool {
        self.entry.is_some()
    }

    /// Ends the guard without a release: another process goes on with the hold.
    pub(crate) fn give_up(self) -> Result<(), Error> {
        let (rules, key) = (self.watched.lease.rules.clone(), self.key().clone());
        let (token, held) = self.stop()?;
        rules.tell(&Event::Detached { key: &key, token, held });
        Ok(())
    }

    /// Ends the guard without a release, and tells nobody. Returns the token, and how long the hold has lasted.
    pub(crate) fn stop(mut self) -> Result<(FencingToken, Duration), Error> {
        let (engine, watched) = (self.engine.clone(), self.watched.clone());
        match watched.lease.end_released(engine.io.now()) {
            None => Err(self.lost_before(watched.lease.was_lost(engine.io.now()))),
            Some((token, held)) => {
                self.done = true;
                engine.watchdog.forget(&watched);
                drop(watched.lease.take_lead());
                Ok((token, held))
            }
        }
    }

    pub(crate) fn lost_before(&self, lost: Lost) -> Error {
        lost_before(&self.engine, self.key(), self.token, lost)
    }

    /// The error of a release whose claim the store does not have.
    pub(crate) fn lost_at_release(&self) -> Error {
        self.lost_before(Lost::new(LostReason::Taken, self.engine.io.now()))
    }

    /// Takes this guard out of the count of its owner's.
    fn leave(&mut self) -> Leave {
        let Some(entry) = self.entry.take() else { return Leave::Last };
        // While this guard counts: from then on the others may release the hold, which is no loss.
        let state = self.state();
        if entry.leave() {
            return Leave::Last;
        }
        Leave::Others(match state {
            HoldState::Lost(lost) => Some(lost),
            HoldState::Held | HoldState::Suspect => None,
        })
    }
}

impl EndHold for Engine {
    fn end_hold(self: Arc<Self>, watched: Arc<Watched>, index: u32) {
        drop(Guard::new(self, watched, index));
    }
}

impl Held for Guard {
    fn key(&self) -> &Key {
        self.key()
    }

    fn token(&self) -> FencingToken {
        self.token
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.engine.is_here() {
            // The hold is the parent's, and so is what counts the guards of its owner.
            std::mem::forget(self.entry.take());
            return;
        }
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

/// The error of a release whose hold had ended.
pub(crate) fn lost_before(engine: &Engine, key: &Key, token: FencingToken, lost: Lost) -> Error {
    let ago = engine.io.now().since(lost.at);
    // Of what the release itself has found, the store does not say when it happened.
    let when = match Duration::from_millis(ago.as_millis() as u64) {
        Duration::ZERO => "the lock was lost before it was released".to_owned(),
        ago => format!("the lock was lost {ago:?} before it was released"),
    };
    let (what, next) = match lost.reason {
        // This process did it by itself, and released the lock.
        LostReason::SessionEnded => (
            "the lock manager was closed before the guard was released, and has ended the hold"
                .to_owned(),
            "release all guards before you close the manager".to_owned(),
        ),
        _ => (
            format!("{when}: {lost}"),
            format!(
                "check what was written under token {token} since then: another holder may have \
                 worked at the same time"
            ),
        ),
    };
    Error::new(ErrorKind::Lost, what)
        .with_next_step(next)
        .with_lost(lost)
        .with_key(key)
        .with_store(engine.capabilities.store.clone())
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

/// The other guards of an owner.
enum Leave {
    /// Others; and why the hold is theirs no longer, if it is not.
    Others(Option<Lost>),
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
