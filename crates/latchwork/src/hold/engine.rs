//! The state that all handles and guards of a manager share.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::hold::delayed::Delayed;
use crate::hold::lease::{HoldState, Lease};
use crate::hold::local_queue::{NextWaiter, Queues};
use crate::hold::owners::Owners;
use crate::hold::reaper::{Job, Reaper};
use crate::hold::renewals::Renewals;
use crate::hold::watchdog::Watchdog;
use crate::hold::watched::Watched;
use crate::rules::adaptive::Habits;
use crate::rules::observe::Event;
use crate::runtime::call::{Call, Calls, Unpolled};
use crate::runtime::driver::{Driver, Work};
use crate::runtime::gate::Gates;
use crate::runtime::own::{Forked, Native, Own};
use latchwork_store::validity;
use latchwork_store::{
    Backend, BackendError, Capabilities, Doorbell, Error, ErrorKind, FencingToken, Io, Key, Lost,
    LostReason, Moment, Query, Snapshot, Watch,
};

/// In a child that was forked from its process it is neither used nor dropped.
pub(crate) struct Engine(Own<Parts>);

pub(crate) struct Parts {
    pub(crate) backend: Delayed,
    pub(crate) capabilities: Capabilities,
    pub(crate) doorbell: Option<Doorbell>,
    pub(crate) io: Io,
    pub(crate) reaper: Reaper,
    pub(crate) watchdog: Arc<Watchdog>,
    pub(crate) renewals: Arc<Renewals>,
    pub(crate) queues: Arc<Queues>,
    pub(crate) gates: Arc<Gates>,
    pub(crate) owners: Arc<Owners>,
    pub(crate) habits: Habits,
    pub(crate) calls: Arc<Calls>,
    work: Arc<Work>,
    closed: AtomicBool,
    closing: Notify,
    /// Last, so that what is above is dropped while the thread still runs.
    _driver: Option<Arc<Driver>>,
}

impl Engine {
    pub(crate) fn start(
        backend: Arc<dyn Backend>,
        io: Io,
        driver: Option<Arc<Driver>>,
    ) -> Arc<Self> {
        let backend = Delayed(backend);
        let work = driver.as_ref().map_or_else(Arc::default, |driver| driver.work());
        // The watchdog itself only tells the time; what it and the reaper start calls the store.
        let verbs = if backend.blocks() { io.clone().for_blocking() } else { io.clone() };
        let reaper = Reaper::new(backend.clone(), verbs.clone(), work.clone());
        let watchdog = Watchdog::new(backend.clone(), verbs.clone(), reaper.clone());
        let renewals = Renewals::new(backend.clone(), verbs);
        io.spawn(watchdog.life());
        let calls = Calls::new(io.clone());
        io.spawn(calls.life());
        let origin = io.origin();
        let gates = Gates::new(backend.tries_at_once());
        Arc::new(Self(Own::new(
            origin,
            Parts {
                capabilities: backend.capabilities(),
                doorbell: backend.doorbell(),
                backend,
                io,
                reaper,
                watchdog,
                renewals,
                queues: Arc::default(),
                gates,
                owners: Arc::default(),
                habits: Habits::default(),
                calls,
                work,
                closed: AtomicBool::new(false),
                closing: Notify::new(),
                _driver: driver,
            },
        )))
    }

    /// Whether this process is still the one in which the manager was made. Asked before any lock is
    /// taken: another thread of the parent may have had it at the fork.
    #[inline]
    pub(crate) fn is_here(&self) -> bool {
        self.0.origin().is_here()
    }

    /// The error for a child that uses its parent's manager.
    pub(crate) fn forked(&self, key: Option<&Key>) -> Error {
        let error =
            Error::new(ErrorKind::Forked, "this process was forked after its parent had connected")
                .with_store(self.capabilities.store.clone())
                .with_next_step("connect again in the child process");
        match key {
            Some(key) => error.with_key(key),
            None => error,
        }
    }

    /// A future of this manager's process.
    pub(crate) fn native<F: Future>(&self, future: F) -> Native<F> {
        Native::new(self.0.origin(), future)
    }

    /// A call of the user in this manager's process.
    pub(crate) fn call<M, F>(&self, unpolled: Unpolled, make: M) -> Call<M, F>
    where
        M: FnMut(bool) -> F,
        F: Future<Output: Send> + Send + 'static,
    {
        Call::new(self.0.origin(), &self.calls, unpolled, make)
    }

    /// The answer of what is not done in a child.
    pub(crate) fn told<T>(
        &self,
        answer: Result<Result<T, Error>, Forked>,
        key: Option<&Key>,
    ) -> Result<T, Error> {
        answer.unwrap_or_else(|Forked| Err(self.forked(key)))
    }

    /// A backend's error as a user sees it.
    pub(crate) fn seen(&self, error: BackendError, key: Option<&Key>) -> Error {
        Error::from_backend(error, key, &self.capabilities.store)
    }

    /// What the store holds, if it says so within `limit`.
    pub(crate) async fn inspect(
        &self,
        query: &Query,
        limit: Duration,
        key: Option<&Key>,
    ) -> Result<Vec<Snapshot>, Error> {
        let asking = self.io.answer(limit, self.backend.inspect(query));
        let answer = self.native(asking).await;
        self.told(answer.map(|found| found.map_err(|e| self.seen(e, key))), key)
    }

    /// Subscribes to the changes of a key's holders, if the store can and answers within `limit`.
    pub(crate) async fn watch(&self, key: &Key, limit: Duration) -> Option<Box<dyn Watch>> {
        let asking = self.io.answer(limit, self.backend.watch(key));
        self.native(asking).await.ok()?.ok()?
    }

    /// Refuses in a child, before anything is locked.
    pub(crate) fn check_here(&self, key: Option<&Key>) -> Result<(), Error> {
        if self.is_here() { Ok(()) } else { Err(self.forked(key)) }
    }

    pub(crate) fn check_open(&self, key: Option<&Key>) -> Result<(), Error> {
        self.check_here(key)?;
        if !self.closed.load(Ordering::SeqCst) {
            return Ok(());
        }
        let error = Error::new(ErrorKind::Closed, "the lock manager was closed")
            .with_store(self.capabilities.store.clone())
            .with_next_step("connect again");
        Err(match key {
            Some(key) => error.with_key(key),
            None => error,
        })
    }

    /// Completes when the manager is closed.
    pub(crate) async fn closed(&self) {
        let closing = self.closing.notified();
        tokio::pin!(closing);
        // Enlist before looking, or a close in between would go unnoticed.
        closing.as_mut().enable();
        if !self.closed.load(Ordering::SeqCst) {
            closing.await;
        }
    }

    /// Ends every hold and gives everything back; returns when all of it was answered, or when it
    /// took longer than two time limits.
    pub(crate) async fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.closing.notify_waiters();
        for watched in self.watchdog.all() {
            let ended = watched.lease.end_lost(LostReason::SessionEnded, self.io.now());
            if let Some(lost) = ended {
                self.watchdog.end_lost(&watched, lost, true);
            }
        }
        let limit = validity::op_timeout(self.capabilities.default_ttl) * 2;
        self.io.within(limit, self.work.wait_idle()).await;
    }

    /// Judges a hold by the clock, and sees to it that doubt is settled soon.
    pub(crate) fn judge(&self, watched: &Arc<Watched>) -> HoldState {
        if !self.is_here() {
            return HoldState::Lost(self.left_behind());
        }
        let judged = watched.lease.judge(self.io.clock().as_ref());
        if judged == HoldState::Suspect {
            self.watchdog.renew_now(watched);
        }
        judged
    }

    /// The loss that a child gets for its parent's hold.
    pub(crate) fn left_behind(&self) -> Lost {
        Lost::new(LostReason::Forked, self.io.now())
    }

    /// Gives the hold of a guard that is done to the next waiter of this process, if that is due.
    pub(crate) fn hand_over_or_end(
        self: &Arc<Self>,
        watched: &Arc<Watched>,
        index: u32,
    ) -> Outcome {
        if self.hand_over(watched, index) {
            return Outcome::HandedOver;
        }
        self.end(watched, None)
    }

    /// Gives the hold to the next waiter of this process; `false` if there is none or no time.
    fn hand_over(self: &Arc<Self>, watched: &Arc<Watched>, index: u32) -> bool {
        let lease = &watched.lease;
        while let Some(next) = self.next_local(watched, index) {
            let now = self.io.now();
            let before = lease.restart_hold(now, index + 1);
            let from = lease.token_of(before.index);
            let held = now.since(before.held_since);
            if next.hand(self.clone(), watched, index + 1) {
                self.learn(lease, held);
                let (key, token) = (&lease.claim.key, lease.token_of(index + 1));
                lease.rules.tell(&Event::HandedOver { key, from, token, held });
                return true;
            }
            lease.restore_hold(before);
        }
        false
    }

    /// Ends the hold of a guard that is done; what is to be released keeps the key closed until
    /// then.
    pub(crate) fn end(&self, watched: &Arc<Watched>, closed_until: Option<Moment>) -> Outcome {
        let ended = watched.lease.end_released(self.io.now());
        self.end_as(watched, ended, closed_until)
    }

    /// Ends the hold of a guard that goes on with another one.
    pub(crate) fn replace(&self, watched: &Arc<Watched>, by: &Arc<Watched>) -> Outcome {
        let ended = watched.lease.end_replaced(self.io.now(), by);
        // The end may come before anything that the watchdog sleeps for.
        self.watchdog.review(by);
        self.end_as(watched, ended, None)
    }

    fn end_as(
        &self,
        watched: &Arc<Watched>,
        ended: Option<(FencingToken, Duration)>,
        closed_until: Option<Moment>,
    ) -> Outcome {
        let lease = &watched.lease;
        let Some((token, held)) = ended else {
            // It would have lasted longer, and that is what is to be learned.
            if let Some(held) = lease.lost_after() {
                self.learn(lease, held);
            }
            let lost = lease.was_lost(self.io.now());
            // With the last guard the watchdog may end, before it sees the loss.
            self.watchdog.end_lost(watched, lost, true);
            return Outcome::WasLost(lost);
        };
        self.watchdog.forget(watched);
        self.learn(lease, held);
        // Read once: a release that is repeated tells the same time.
        let closed_at = closed_until.map(|_| self.io.clock().wall());
        Outcome::Ended(Job {
            claim: lease.claim_as_kept().with(|it| it.holder.closed_at = closed_at),
            rules: lease.rules.clone(),
            closed_until,
            held: Some((token, held)),
            under_way: None,
            lead: lease.take_lead(),
            turn: None,
            not_before: None,
        })
    }

    /// Remembers how long a hold was, where the ttl follows that.
    fn learn(&self, lease: &Lease, held: Duration) {
        if lease.rules.adaptive_ttl.is_some() {
            self.habits.record(&lease.claim.key, held);
        }
    }

    /// The waiter to hand over to, if the rules allow a handover now.
    fn next_local(&self, watched: &Arc<Watched>, index: u32) -> Option<NextWaiter> {
        let lease = &watched.lease;
        let rules = &lease.rules;
        let allowed = rules.handover.times.min(FencingToken::MAX_HANDOVERS);
        let now = self.io.now();
        let in_time =
            now.since(lease.granted_at) < rules.handover.slice && lease.is_worth_handing_over(now);
        if index >= allowed || !in_time || lease.judge(self.io.clock().as_ref()) != HoldState::Held
        {
            return None;
        }
        lease.next_local()
    }
}

impl Deref for Engine {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

/// The end of a guard's part of a hold.
#[expect(clippy::large_enum_variant, reason = "it is taken apart where it is made")]
pub(crate) enum Outcome {
    /// A waiter of this process has it now.
    HandedOver,
    /// It has ended: this is to be released at the store.
    Ended(Job),
    /// It was lost before.
    WasLost(Lost),
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("backend", &self.backend).finish_non_exhaustive()
    }
}
