//! Renews holds, and reports when one has ended.
//!
//! The watchdog is one future over all leases of a manager. It wakes when the next lease wants
//! something, renews whatever is due in one call, and goes back to sleep. A lease that is granted
//! and released before its first renewal never wakes it.

use std::collections::{BTreeMap, HashSet};
use std::future::{Future, poll_fn};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::Notify;

use crate::hold::backlog::{BATCH, Backlog};
use crate::hold::delayed::Delayed;
use crate::hold::early_doubts::EarlyDoubts;
use crate::hold::lease::{Confirmed, HoldState, Lease, NextStep, Sent};
use crate::hold::reaper::{Job, Reaper};
use crate::hold::watched::{RenewalKind, Watched};
use crate::rules::observe::Event;
use crate::rules::rate_meter::Rate;
use latchwork_store::random_between;
use latchwork_store::validity;
use latchwork_store::{
    Answers, BackendError, Claim, ClaimId, DoubtSink, Io, Lost, LostReason, Moment, Renewal, Sleep,
};
use latchwork_wire::yield_now;

/// How many leases are looked at before other tasks have their turn.
const AT_A_TIME: usize = 4 * BATCH;

pub(crate) struct Watchdog {
    backend: Delayed,
    io: Io,
    reaper: Reaper,
    schedule: Mutex<Schedule>,
    entries: AtomicU64,
    news: Arc<Notify>,
    doubts: Arc<DoubtSink>,
}

struct Schedule {
    by_due: BTreeMap<(Moment, u64), Arc<Watched>>,
    backlog: Backlog,
    early: EarlyDoubts,
    sleeps_until: Moment,
    /// The last moment for which the watchdog was woken. Without leases it sleeps until then, so
    /// that a lock that is taken again and again wakes it once and not each time.
    horizon: Moment,
}

impl Schedule {
    /// Notes that a lease is due; `true` if the watchdog sleeps past it.
    fn expect(&mut self, due: Moment) -> bool {
        let wake = due < self.sleeps_until;
        if wake {
            self.horizon = due;
            self.sleeps_until = due;
        }
        wake
    }

    /// When to check next.
    fn next(&self, now: Moment) -> Moment {
        match self.by_due.first_key_value() {
            Some(((due, _), _)) => *due,
            None if self.horizon > now => self.horizon,
            None => Moment::NEVER,
        }
    }
}

impl Watchdog {
    pub(crate) fn new(backend: Delayed, io: Io, reaper: Reaper) -> Arc<Self> {
        let doubts = backend.doubts().cloned().unwrap_or_default().sink();
        Arc::new(Self {
            backend,
            doubts,
            io,
            reaper,
            schedule: Mutex::new(Schedule {
                by_due: BTreeMap::new(),
                backlog: Backlog::default(),
                early: EarlyDoubts::default(),
                sleeps_until: Moment::NEVER,
                horizon: Moment::from_nanos(0),
            }),
            entries: AtomicU64::new(0),
            news: Arc::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a lease into care.
    pub(crate) fn watch(&self, lease: Lease) -> Arc<Watched> {
        let due = lease.next_event();
        let entry = self.entries.fetch_add(1, Ordering::Relaxed);
        let watched = Arc::new(Watched::new(lease, entry, due));
        let mut schedule = self.lock();
        schedule.by_due.insert((due, watched.entry), watched.clone());
        let wake = schedule.expect(due);
        let is_doubted = schedule.early.take(watched.lease.claim.id);
        drop(schedule);
        if wake {
            self.news.notify_one();
        }
        if is_doubted {
            watched.lease.doubt(self.io.now());
            self.renew_now(&watched);
        }
        // A pause of the machine while the grant was on its way.
        if watched.lease.judge(self.io.clock().as_ref()) != HoldState::Held {
            self.renew_now(&watched);
        }
        watched
    }

    /// Takes a lease out of care; `true` if it was in care. From here on no renewal of it is sent.
    pub(crate) fn forget(&self, watched: &Watched) -> bool {
        let mut schedule = self.lock();
        let due = Moment::from_nanos(watched.due.load(Ordering::Relaxed));
        let was_in_care = schedule.by_due.remove(&(due, watched.entry)).is_some();
        schedule.backlog.remove(watched);
        was_in_care
    }

    /// Looks at a lease again at `due`, unless it has been taken out of care meanwhile.
    fn reschedule(&self, watched: &Arc<Watched>, due: Moment) {
        let mut schedule = self.lock();
        let old = Moment::from_nanos(watched.due.load(Ordering::Relaxed));
        if schedule.by_due.remove(&(old, watched.entry)).is_none() {
            return;
        }
        watched.due.store(due.as_nanos(), Ordering::Relaxed);
        schedule.by_due.insert((due, watched.entry), watched.clone());
        let wake = schedule.expect(due);
        drop(schedule);
        if wake {
            self.news.notify_one();
        }
    }

    /// Looks at a lease when its next event is due, which has changed.
    pub(crate) fn review(&self, watched: &Arc<Watched>) {
        self.reschedule(watched, watched.lease.next_event());
    }

    /// Renews a lease now: its guard has found it in doubt.
    pub(crate) fn renew_now(&self, watched: &Arc<Watched>) {
        self.reschedule(watched, self.io.now());
    }

    /// Renews the leases of which the store has said something. It may have said it before the grant
    /// was made a lease.
    fn renew_doubted(self: &Arc<Self>, mut doubted: HashSet<ClaimId>) {
        let now = self.io.now();
        let in_care: Vec<_> = {
            let mut schedule = self.lock();
            let in_care = schedule.by_due.values();
            let in_care: Vec<_> =
                in_care.filter(|w| doubted.remove(&w.lease.claim.id)).cloned().collect();
            schedule.early.keep(doubted, now);
            in_care
        };
        for watched in in_care {
            watched.lease.doubt(now);
            self.reschedule(&watched, now);
        }
    }

    /// Ends the hold of a claim that this manager has just taken away at the store: it is not to be handed over, nor
    /// believed until its next renewal.
    pub(crate) fn taken_away(&self, id: ClaimId) {
        let now = self.io.now();
        let watched = {
            let mut schedule = self.lock();
            let watched = schedule.by_due.values().find(|it| it.lease.claim.id == id).cloned();
            if watched.is_none() {
                // Its grant may be on its way.
                schedule.early.keep(HashSet::from([id]), now);
            }
            watched
        };
        let Some(watched) = watched else { return };
        if let Some(lost) = watched.lease.end_lost(LostReason::Taken, now) {
            self.end_lost(&watched, lost, false);
        }
    }

    /// Judges all holds again, and renews those in doubt: the machine may have been paused.
    fn judge_all(self: &Arc<Self>) {
        for watched in self.all() {
            match watched.lease.judge(self.io.clock().as_ref()) {
                // It may end earlier all the same.
                HoldState::Held => self.review(&watched),
                HoldState::Suspect | HoldState::Lost(_) => self.renew_now(&watched),
            }
        }
    }

    /// All leases in care.
    pub(crate) fn all(&self) -> Vec<Arc<Watched>> {
        self.lock().by_due.values().cloned().collect()
    }

    /// The watchdog's life, for the driver: ends with the watchdog's last owner.
    pub(crate) fn life(self: &Arc<Self>) -> impl Future<Output = ()> + Send + 'static {
        // Sleeping must not keep the watchdog alive.
        let (this, news, io) = (Arc::downgrade(self), self.news.clone(), self.io.clone());
        let doubts = self.doubts.clone();
        async move {
            // From before the first lease to the next step, so that none goes unnoticed.
            let mut stepped = io.clock().stepped();
            loop {
                let Some(next) = this.upgrade().map(|watchdog| watchdog.look()) else { return };
                if next <= io.now() {
                    yield_now().await;
                }
                tokio::select! {
                    biased;
                    () = io.clock().sleep_until(next) => {}
                    () = news.notified() => {}
                    // Without a lease in care nobody minds.
                    () = &mut stepped, if next != Moment::NEVER => {
                        stepped = io.clock().stepped();
                        if let Some(watchdog) = this.upgrade() {
                            watchdog.judge_all();
                        }
                    }
                    () = doubts.told() => {
                        let doubted = doubts.take().into_iter().collect();
                        if let Some(watchdog) = this.upgrade() {
                            watchdog.renew_doubted(doubted);
                        }
                    }
                }
            }
        }
    }

    /// Does what is due, and returns when to check next.
    fn look(self: &Arc<Self>) -> Moment {
        let clock = self.io.clock().as_ref();
        let mut first_due = None;
        for _ in 0..AT_A_TIME {
            let first = {
                let mut schedule = self.lock();
                let now = clock.now();
                match schedule.by_due.first_key_value() {
                    Some(((due, _), watched)) if *due <= now => watched.clone(),
                    _ => {
                        let next = schedule.next(now);
                        schedule.sleeps_until = next;
                        drop(schedule);
                        self.gather(first_due);
                        self.send_renewals();
                        return next;
                    }
                }
            };
            if self.attend(&first, Duration::ZERO) {
                first_due.get_or_insert(first);
            }
        }
        self.send_renewals();
        clock.now()
    }

    /// Has what is nearly due renewed with what goes out anyway.
    fn gather(self: &Arc<Self>, first_due: Option<Arc<Watched>>) {
        let Some(first) = first_due else { return };
        let slack = validity::renew_every(first.lease.granted_ttl()) / 20;
        let soon = self.io.now().plus(slack);
        let nearly: Vec<_> =
            self.lock().by_due.range(..(soon, 0)).map(|(_, w)| w.clone()).collect();
        for watched in nearly {
            self.attend(&watched, slack);
        }
    }

    /// Does what a lease needs; says whether it is to be renewed.
    fn attend(self: &Arc<Self>, watched: &Arc<Watched>, slack: Duration) -> bool {
        match watched.lease.next_step(self.io.clock().as_ref(), slack) {
            NextStep::Wait(due) => self.reschedule(watched, due),
            NextStep::Forget => {
                self.forget(watched);
            }
            NextStep::EndLost(lost) => self.end_lost(watched, lost, true),
            NextStep::Renew => {
                // The guard may have begun one itself.
                if let Some(due) = watched.lease.renewing() {
                    self.renew(watched, due);
                    return true;
                }
            }
        }
        false
    }

    /// Has a lease wait for its renewal, unless it has been taken out of care meanwhile.
    fn renew(&self, watched: &Arc<Watched>, due: Moment) {
        self.reschedule(watched, due);
        let mut schedule = self.lock();
        let due = Moment::from_nanos(watched.due.load(Ordering::Relaxed));
        if schedule.by_due.contains_key(&(due, watched.entry)) {
            schedule.backlog.push(watched);
        }
    }

    /// A hold has ended otherwise than by its release: tell, and free what the store still keeps. Done by
    /// the first that notices. A hold that was lent may go on: it stays as it is at the store.
    pub(crate) fn end_lost(&self, watched: &Watched, lost: Lost, store_may_hold: bool) {
        // If a close of the manager comes second, it waits for the first.
        let _work = self.reaper.work();
        if !self.forget(watched) {
            return;
        }
        let lease = &watched.lease;
        let lead = lease.take_lead();
        let (key, token) = (&lease.claim.key, lease.token());
        let held = lease.held_for(lost.at);
        if lease.is_lent {
            drop(lead);
            return lease.rules.tell(&Event::Detached { key, token, held });
        }
        if store_may_hold {
            self.reaper.reap(Job {
                lead,
                not_before: lease.claim.holder.lock_delay.map(|delay| lost.at.plus(delay)),
                ..Job::of(lease.claim_as_kept(), lease.rules.clone())
            });
        } else {
            drop(lead);
        }
        lease.rules.tell(&Event::Lost { key, token, lost, held });
    }

    /// Makes as many calls as may be made now.
    fn send_renewals(self: &Arc<Self>) {
        loop {
            let Some((kind, chunk)) = self.lock().backlog.take() else { return };
            let place = Place { watchdog: self.clone(), kind, counts: true };
            self.io.spawn(async move {
                place.watchdog.clone().renew_chunk(chunk, place).await;
            });
        }
    }

    /// Renews some leases by one call.
    ///
    /// Each answer counts when it comes, whatever becomes of the others. The call is given up when
    /// nothing has come for the time limit, and when half of the shortest validity is over, so that
    /// what has no answer yet can be asked for again.
    async fn renew_chunk(self: Arc<Self>, chunk: Vec<Arc<Watched>>, mut place: Place) {
        let may_change = self.backend.ttl_may_change();
        let claim = |lease: &Lease| match may_change {
            true => lease.claim_to_renew(),
            false => lease.claim.clone(),
        };
        let claims: Vec<Claim> = chunk.iter().map(|w| claim(&w.lease)).collect();
        let limits = chunk.iter().map(|w| w.lease.rules.op_timeout(w.lease.granted_ttl()));
        let limit = limits.min().unwrap_or_default();
        let clock = self.io.clock().as_ref();
        let sent = Sent::now(clock);
        let ends = chunk.iter().map(|w| w.lease.valid_until()).min().unwrap_or(sent.at);
        let latest = sent.at.plus(limit.max(ends.since(sent.at) / 2));
        // Processes that failed together do not ask again together.
        let share =
            random_between(Duration::from_millis(700), Duration::from_secs(1)).as_millis() as u32;
        let mut left: Vec<_> = chunk.into_iter().map(Some).collect();
        let answers = Answers::default();
        let mut verb = self.backend.renew_each(&claims, &answers);
        let mut heard = sent.at;
        let mut timer: Option<(Moment, Sleep)> = None;
        poll_fn(|cx| {
            let is_over = verb.as_mut().poll(cx).is_ready();
            for (claim, answer) in answers.take() {
                if let Some(watched) = left.get_mut(claim).and_then(Option::take) {
                    heard = self.io.now();
                    self.settle(&watched, sent, answer, share);
                }
            }
            if is_over {
                return Poll::Ready(());
            }
            loop {
                let now = clock.now();
                let end = heard.plus(limit).min(latest);
                if now >= end {
                    return Poll::Ready(());
                }
                let silent = heard.plus(limit / 2);
                if now >= silent {
                    place.leave();
                }
                let next = if place.counts() { end.min(silent) } else { end };
                if timer.as_ref().is_none_or(|(at, _)| *at > next || *at <= now) {
                    timer = Some((next, clock.sleep_until(next)));
                }
                if let Some((_, sleep)) = &mut timer
                    && sleep.as_mut().poll(cx).is_pending()
                {
                    return Poll::Pending;
                }
            }
        })
        .await;
        for watched in left.into_iter().flatten() {
            self.settle(&watched, sent, Err(BackendError::no_answer(limit)), share);
        }
    }

    /// Takes an answer, or that there was none: then the pause is this share of the usual one, in
    /// thousandths.
    fn settle(
        &self,
        watched: &Arc<Watched>,
        sent: Sent,
        answer: Result<Renewal, BackendError>,
        share: u32,
    ) {
        let lease = &watched.lease;
        let (key, token) = (&lease.claim.key, lease.token());
        let now = self.io.now();
        watched.unanswered.store(answer.is_err(), Ordering::Relaxed);
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                // Not knowing changes nothing; try again soon, to the end of the validity.
                let pause = (validity::renew_every(lease.granted_ttl()) / 10)
                    .clamp(Duration::from_millis(10), Duration::from_secs(1));
                let due = lease.retry_at(now.plus(pause * share / 1_000));
                self.reschedule(watched, due);
                let remaining = lease.valid_until().since(now);
                let failed = Event::RenewFailed { key, token, error: &error, remaining };
                return lease.rules.tell(&failed);
            }
        };
        match lease.confirm(sent, answer, self.io.clock().as_ref()) {
            Confirmed::Held { remaining } => {
                self.reschedule(watched, lease.next_event());
                let (took, late) = (now.since(sent.at), lease.late(sent.at));
                lease.rules.tell(&Event::Renewed { key, token, took, late, remaining });
            }
            Confirmed::Doubted(rate) => {
                self.reschedule(watched, now);
                match rate {
                    Rate::Stepped { by } => lease.rules.tell(&Event::ClockStepped { key, by }),
                    Rate::Unsteady { ratio } => {
                        lease.rules.tell(&Event::ClockUnsteady { key, ratio });
                    }
                    Rate::Steady | Rate::Odd => {}
                }
                lease.rules.tell(&Event::Suspect { key, token });
            }
            Confirmed::Lost(lost) => self.end_lost(watched, lost, false),
            Confirmed::TooLate => self.reschedule(watched, now),
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.news.notify_one();
    }
}

/// The place of a call among those that are under way.
struct Place {
    watchdog: Arc<Watchdog>,
    kind: RenewalKind,
    counts: bool,
}

impl Place {
    fn counts(&self) -> bool {
        self.counts
    }

    /// Lets another call take this place.
    fn leave(&mut self) {
        if std::mem::take(&mut self.counts) && self.watchdog.lock().backlog.ended(self.kind) {
            self.watchdog.news.notify_one();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.leave();
    }
}
