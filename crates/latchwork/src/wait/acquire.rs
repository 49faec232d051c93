//! The acquire loop: try, wait, deadline, unknown effects.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::hold::engine::Engine;
use crate::hold::guard::Guard;
use crate::hold::lease::{Granted, Lease, Sent};
use crate::hold::local_queue::{InTheWay, Lead};
use crate::hold::reaper::{Job, Orphan};
use crate::rules::observe::Event;
use crate::rules::options::Plan;
use crate::rules::token_base;
use crate::runtime::block_on::listening;
use crate::runtime::call::Unpolled;
use crate::runtime::gate::{AtGate, Pass, Reason};
use crate::runtime::own::Forked;
use crate::wait::local::{Local, wait_in_queue};
use crate::wait::pace::Pace;
use crate::wait::patience::{Patience, may_pass, timed_out};
use crate::wait::waiter::Waiter;
use latchwork_store::{
    Attempt, BackendError, BackendErrorKind, Backoff, Blocked, Cause, Claim, ClaimId, Effect,
    Error, ErrorKind, Grant, Key, Mode, Moment, Order, Resize, Stamp, Wake,
};
use latchwork_store::{random_between, validity};
use latchwork_wire::yield_now;

/// The longest pause between two looks of a waiter.
const LONGEST_REST: Duration = Duration::from_secs(10);

/// What a handle asks for.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) key: Key,
    pub(crate) mode: Mode,
    /// Every waiter its own claim in the store's queue, no handover.
    pub(crate) fair: bool,
    /// A key that is kept closed is not waited for.
    pub(crate) stops_at_linger: bool,
    pub(crate) beside: Option<Beside>,
    /// What another limit of permits means.
    pub(crate) resize: Resize,
    pub(crate) plan: Plan,
}

/// The hold that a request is to replace.
#[derive(Debug, Clone)]
pub(crate) struct Beside {
    pub(crate) id: ClaimId,
    /// Held by one request at a time: to the store, an earlier one that is not withdrawn yet is a
    /// rival.
    pub(crate) turn: Arc<Mutex<()>>,
}

/// The result of a request.
pub(crate) enum Admission {
    Granted(Guard),
    /// What the store said; nothing if this process itself holds the key or waits for it.
    Refused(Option<Blocked>),
}

impl Admission {
    pub(crate) fn guard(self) -> Option<Guard> {
        match self {
            Self::Granted(guard) => Some(guard),
            Self::Refused(_) => None,
        }
    }
}

/// Makes one call of [`acquire`]. What is not granted lets other tasks run: what this process answers by itself waits for
/// nothing, so a loop of tries would keep the holder from its release for ever.
pub(crate) async fn call_acquire(
    engine: &Arc<Engine>,
    request: Request,
    patience: Patience,
    start: Moment,
) -> Result<Result<Admission, Error>, Forked> {
    let request = Arc::new(request);
    let call = engine.call(Unpolled::BeginsAnew, |again| {
        let (engine, request) = (engine.clone(), request.clone());
        async move { acquire(&engine, &request, patience, start, again).await }
    });
    let answer = call.await;
    if !matches!(answer, Ok(Ok(Admission::Granted(_)))) {
        yield_now().await;
    }
    answer
}

/// Gets the request admitted. Refused if it asked once and was blocked, if the key is closed and
/// the request does not wait for that, or if no wait would let it replace its hold.
///
/// `again` is for one that was taken away from a future that nobody polled ([`Call`](crate::runtime::call)): it
/// has waited before.
async fn acquire(
    engine: &Arc<Engine>,
    request: &Request,
    patience: Patience,
    start: Moment,
    again: bool,
) -> Result<Admission, Error> {
    let key = &request.key;
    engine.check_open(Some(key))?;
    if request.fair && !engine.capabilities.fifo {
        return Err(Error::new(ErrorKind::Unsupported, "fair: this store does not queue waiters")
            .with_key(key)
            .with_store(engine.capabilities.store.clone())
            .with_next_step("leave out `fair`, or use a store with a queue"));
    }
    let deadline = match patience {
        Patience::Within(limit) => start.plus(limit),
        Patience::Until(deadline, _) => deadline,
        Patience::Once | Patience::Endless => Moment::NEVER,
    };
    let mut waiter = Waiter::new(engine, request, patience != Patience::Once);
    // Only exclusive claims share a place: readers and permits go to the store side by side.
    let (lead, waited) = if request.mode == Mode::Exclusive && !request.fair {
        match wait_in_queue(engine, request, patience, deadline, again, &mut waiter).await? {
            Local::Lead(lead, waited) => (Some(lead), waited),
            Local::Handed(guard) => {
                let (token, waited) = (guard.token(), engine.io.now().since(start));
                request.plan.rules.tell(&Event::Received { key, token, waited });
                waiter.admit();
                return Ok(Admission::Granted(guard));
            }
            Local::Busy => return Ok(Admission::Refused(None)),
        }
    } else {
        (None, false)
    };
    let mut pending = Pending::new(engine, request, patience, lead, waited);
    if let Some(beside) = &request.beside {
        let turn = Box::pin(waiter.during(pending.turn(beside, deadline))).await?;
        pending.turn = Some(turn);
    }
    let admission = pending.admit(start, deadline, &mut waiter).await?;
    if let Admission::Granted(_) = admission {
        waiter.admit();
    }
    Ok(admission)
}

/// An acquire under way. Dropping it leaves its place to the next waiter of this process or, if
/// there is none, withdraws it in the background.
struct Pending<'a> {
    engine: &'a Arc<Engine>,
    request: &'a Request,
    patience: Patience,
    claim: Claim,
    lead: Option<Lead>,
    /// The turn to replace the hold that it is beside.
    turn: Option<OwnedMutexGuard<()>>,
    /// The gate at which its tries wait. The leader of a queue has one try at a time anyway.
    gate: Option<AtGate>,
    /// The store has woken it, and its next try is due to that.
    is_woken: bool,
    /// The try that is under way. It outlives this value: the release must go after it.
    under_way: Option<Orphan>,
    /// The store may know the claim.
    touched: bool,
    /// Something was in the way.
    blocked: bool,
    /// What it was, as the store said last.
    in_the_way: Option<InTheWay>,
    /// The error of the try before.
    failure: Option<Box<BackendError>>,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        let under_way = self.under_way.take();
        if !self.touched && under_way.is_none() {
            return;
        }
        let turn = self.turn.take();
        let rules = self.request.plan.rules.clone();
        let job = Job { under_way, turn, ..Job::of(self.claim.clone(), rules) };
        match self.lead.take() {
            Some(lead) => lead.leave_to_next(job, self.engine.reaper.clone()),
            None => self.engine.reaper.reap(job),
        }
    }
}

impl<'a> Pending<'a> {
    fn new(
        engine: &'a Arc<Engine>,
        request: &'a Request,
        patience: Patience,
        mut lead: Option<Lead>,
        waited: bool,
    ) -> Self {
        let inherited = lead.as_mut().and_then(Lead::take_inherited);
        let touched = inherited.is_some();
        let blocked = touched || waited;
        let (id, under_way) = inherited.unwrap_or_else(|| (ClaimId::random(), None));
        let order = if engine.capabilities.fifo { Order::Fifo } else { Order::Barging };
        let claim = Claim::new(
            request.key.clone(),
            id,
            request.mode,
            request.plan.ttl,
            Stamp::new(engine.io.now()),
        )
        .with(|it| {
            it.order = order;
            it.holder = request.plan.holder.clone();
            it.waits = patience != Patience::Once;
            it.beside = request.beside.as_ref().map(|beside| beside.id);
            it.resize = request.resize;
        });
        let gate = if lead.is_none() { engine.gates.at(&claim.key) } else { None };
        Self {
            engine,
            request,
            patience,
            claim,
            lead,
            turn: None,
            gate,
            is_woken: false,
            under_way,
            touched,
            blocked,
            in_the_way: None,
            failure: None,
        }
    }

    /// Waits until no other request is to replace the same hold: a single try for as long as a
    /// release may take.
    async fn turn(
        &mut self,
        beside: &Beside,
        deadline: Moment,
    ) -> Result<OwnedMutexGuard<()>, Error> {
        let io = &self.engine.io;
        let limit = match self.patience {
            Patience::Once => self.request.plan.rules.op_timeout(self.claim.ttl),
            _ => deadline.since(io.now()),
        };
        let turn = io.within(limit, beside.turn.clone().lock_owned()).await;
        turn.ok_or_else(|| match self.patience {
            Patience::Once => {
                self.engine.seen(BackendError::no_answer(limit), Some(&self.claim.key))
            }
            _ => self.timed_out(),
        })
    }

    async fn admit(
        &mut self,
        start: Moment,
        deadline: Moment,
        waiter: &mut Waiter<'_>,
    ) -> Result<Admission, Error> {
        let engine = self.engine;
        let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(500));
        let mut pace = Pace::default();
        let mut failing_since = self.lead.as_ref().and_then(Lead::failing_since);
        if self.under_way.is_some()
            && !Box::pin(waiter.during(self.outlast_inherited(deadline))).await
        {
            return Err(self.timed_out());
        }
        loop {
            engine.check_open(Some(&self.claim.key))?;
            // What is seldom waited for, here and below, has room only then: an acquire that is under way
            // would be larger by it.
            let pass = match self.gate {
                Some(_) => Box::pin(waiter.during(self.pass(deadline))).await?,
                None => None,
            };
            let sent = Sent::now(engine.io.clock().as_ref());
            let sent_at = sent.at;
            self.claim.stamp = Stamp::new(sent_at);
            let limit = self.limit(sent_at, deadline, failing_since.is_some());
            let tried = self.try_once(limit, pass).await;
            let Some(tried) = tried else { return Err(self.timed_out()) };
            let error = match tried {
                Ok(Attempt::Granted(grant)) => {
                    let until = validity::valid_until(sent_at, grant.ttl);
                    if let Some(guard) = self.take(grant, sent, until, start)? {
                        return Ok(Admission::Granted(guard));
                    }
                    BackendError::new(
                        BackendErrorKind::Unreachable,
                        Effect::NotApplied,
                        "the store answers so slowly that less than half of the ttl was left",
                    )
                    .with_next_step("use a longer ttl, or check the store and the network")
                }
                Ok(Attempt::Blocked(blocked)) => {
                    (failing_since, self.failure) = (None, None);
                    self.blocked = true;
                    backoff.reset();
                    let usual_hold = blocked.holder.as_ref().and_then(|it| it.usual_hold);
                    if let (Some(_), Some(usual)) =
                        (self.request.plan.rules.adaptive_ttl, usual_hold)
                    {
                        engine.habits.hear(&self.claim.key, usual);
                    }
                    let is_final = self.claim.beside.is_some()
                        && matches!(
                            blocked.cause,
                            Cause::Upgrade | Cause::Earlier | Cause::Foreign | Cause::Gone
                        );
                    if is_final || self.patience == Patience::Once {
                        return Ok(Admission::Refused(Some(blocked)));
                    }
                    self.touched = true;
                    if self.request.stops_at_linger && blocked.cause == Cause::Linger {
                        return Ok(Admission::Refused(Some(blocked)));
                    }
                    self.in_the_way = InTheWay::of(&blocked);
                    if let Some(lead) = &self.lead {
                        lead.note(self.in_the_way.clone());
                    }
                    if engine.io.now() >= deadline {
                        return Err(self.timed_out());
                    }
                    waiter.begin();
                    let key = &self.claim.key;
                    self.request.plan.rules.tell(&Event::Waiting { key, blocked: &blocked });
                    let waiting = Box::pin(self.wait(&blocked, sent, deadline, start, &mut pace));
                    if let Some(guard) = waiting.await? {
                        return Ok(Admission::Granted(guard));
                    }
                    continue;
                }
                Err(error) => {
                    self.touched |= error.effect == Effect::Unknown;
                    error
                }
            };
            let now = engine.io.now();
            let since = *failing_since.get_or_insert(sent_at);
            if let Some(lead) = &self.lead {
                lead.note_trouble(since, &error);
            }
            let give_up = since.plus(self.claim.ttl).min(deadline);
            let pause = backoff.pause();
            // The one that was replaced would be a rival.
            let is_replaced = self.request.beside.is_some() && self.turn.is_none();
            let repeat = !is_replaced
                && may_pass(&error, self.blocked)
                && self.patience != Patience::Once
                && now.plus(pause) < give_up;
            if !repeat {
                return Err(engine.seen(error, Some(&self.claim.key)));
            }
            waiter.begin();
            self.request.plan.rules.tell(&Event::TryFailed { key: &self.claim.key, error: &error });
            self.failure = Some(Box::new(error));
            engine.io.sleep(pause).await;
        }
    }

    /// Waits for the answer to the try of the leader before, which has the same id: it must not land
    /// after the release of what this one gets. False if the own time is over first: then the next
    /// heir waits for it.
    async fn outlast_inherited(&mut self, deadline: Moment) -> bool {
        let io = &self.engine.io;
        let full = self.request.plan.rules.op_timeout(self.claim.ttl);
        let left = deadline.since(io.now());
        if let Some(try_under_way) = &mut self.under_way {
            // Whatever it answers: the next try asks the same.
            let answer = io.within(full.min(left), try_under_way).await;
            if answer.is_none() && left <= full {
                return false;
            }
        }
        self.under_way = None;
        true
    }

    /// The time limit of a try: short before the deadline, but never so short that it is no try; and whether the caller
    /// has so little time that silence says nothing of a store that has not failed before. It says less of one that has
    /// answered this waiter.
    fn limit(&self, now: Moment, deadline: Moment, is_failing: bool) -> (Duration, bool) {
        const LEAST: Duration = Duration::from_millis(250);
        let full = self.request.plan.rules.op_timeout(self.claim.ttl);
        let left = deadline.since(now);
        let telling = if self.blocked { LEAST.max(full / 3) } else { LEAST };
        (full.min(left.max(LEAST)), left < full.min(telling) && !is_failing)
    }

    /// Waits until a try may be sent: who tries once, for as long as a try may take.
    async fn pass(&mut self, deadline: Moment) -> Result<Option<Pass>, Error> {
        let Some(gate) = &self.gate else { return Ok(None) };
        let engine = self.engine;
        let reason = match (std::mem::take(&mut self.is_woken), self.touched) {
            (true, _) => Reason::Woken,
            (false, true) => Reason::Keeping,
            (false, false) => Reason::First,
        };
        let limit = match self.patience {
            Patience::Endless => return Ok(Some(gate.pass(reason).await)),
            Patience::Once => self.request.plan.rules.op_timeout(self.claim.ttl),
            Patience::Within(_) | Patience::Until(..) => deadline.since(engine.io.now()),
        };
        match engine.io.within(limit, gate.pass(reason)).await {
            Some(pass) => Ok(Some(pass)),
            None if self.patience == Patience::Once => {
                let message = format!(
                    "not asked within {limit:?}: earlier tries of this process wait for answers"
                );
                let error = BackendError::new(
                    BackendErrorKind::Unreachable,
                    Effect::NotApplied,
                    message,
                )
                .with_next_step(
                    "check the store's load, and how many tasks of this process wait for the key",
                );
                Err(engine.seen(error, Some(&self.claim.key)))
            }
            None => Err(self.timed_out()),
        }
    }

    fn timed_out(&mut self) -> Error {
        timed_out(self.engine, &self.claim.key, self.patience, self.in_the_way.take())
    }

    /// Sends the try; `None` if it has no answer when the caller's time is over. The verb belongs to
    /// this value, so that a drop can hand it on.
    async fn try_once(
        &mut self,
        (limit, is_cut): (Duration, bool),
        pass: Option<Pass>,
    ) -> Option<Result<Attempt, BackendError>> {
        let (backend, claim) = (self.engine.backend.clone(), self.claim.clone());
        let under_way =
            self.under_way.insert(Box::pin(async move { backend.try_acquire(&claim).await }));
        let io = &self.engine.io;
        let verb = poll_fn(|cx| under_way.as_mut().poll(cx));
        let answer = match pass {
            Some(pass) => io.within(limit, Box::pin(pass.run(io, verb))).await,
            None => io.within(limit, verb).await,
        };
        if answer.is_none() && is_cut {
            // The caller's time is over, not the store's: the release goes after the answer.
            return None;
        }
        // Without an answer the same id is tried again or released: either settles it.
        self.under_way = None;
        Some(answer.unwrap_or_else(|| Err(self.no_answer(limit))))
    }

    /// The error of a try without an answer. A try that the deadline has cut short tells less than the one before it.
    fn no_answer(&mut self, limit: Duration) -> BackendError {
        let full = self.request.plan.rules.op_timeout(self.claim.ttl);
        match self.failure.take() {
            Some(earlier) if limit < full => earlier.with_effect(Effect::Unknown),
            _ => BackendError::no_answer(limit),
        }
    }

    /// Makes a guard of a grant. A grant that is too old is released, and the claim gets a new
    /// name: a name is replaced by the first release that is sent for it.
    fn take(
        &mut self,
        grant: Grant,
        sent: Sent,
        valid_until: Moment,
        start: Moment,
    ) -> Result<Option<Guard>, Error> {
        let engine = self.engine;
        let clock = engine.io.clock().as_ref();
        let now = clock.now();
        let rules = &self.request.plan.rules;
        // While the machine is paused, a grant gets old though the boot clock does not run.
        let surely_until = valid_until.minus(sent.paused(clock, now));
        if !validity::is_worth_taking(surely_until, now, grant.ttl) {
            self.replace_claim();
            return Ok(None);
        }
        let Some(token) = rules.token(grant.token) else {
            self.replace_claim();
            return Err(token_base::no_room(&self.claim.key, &engine.capabilities));
        };
        let granted =
            Granted { token, ttl: grant.ttl, valid_until, sent, store_time: grant.store_time };
        // From here to the guard nothing waits, so nothing can be dropped in between.
        self.touched = false;
        // Granted, it is a claim like any other.
        let claim = self.claim.clone().with(|it| it.beside = None);
        let lease = Lease::new(claim, granted, rules.clone(), clock);
        let lead = self.lead.take();
        if let Some(lead) = &lead {
            lead.note(Some(InTheWay::Holder(self.claim.holder.shown(), None)));
        }
        let watched = engine.watchdog.watch(lease);
        if let Some(lead) = lead {
            drop(watched.lease.carry(lead));
        }
        let key = &self.claim.key;
        // From here on a close of the manager finds the lease; an earlier close is found here. The
        // guard comes first: its drop releases a hold that is not handed out.
        let guard = Guard::new(engine.clone(), watched, 0);
        // The observer receives it in any case, since it receives the end of what was granted as well.
        let (waited, contended) = (now.since(start), self.blocked);
        rules.tell(&Event::Acquired { key, token, waited, contended });
        engine.check_open(Some(key))?;
        Ok(Some(guard))
    }

    /// Gives back what was granted, and goes on under another name.
    fn replace_claim(&mut self) {
        let replaced = self.claim.clone();
        self.claim.id = ClaimId::random();
        self.touched = false;
        let (rules, turn) = (self.request.plan.rules.clone(), self.turn.take());
        self.engine.reaper.reap(Job { turn, ..Job::of(replaced, rules) });
    }

    /// Waits until a retry may succeed: the store says so, the holder's ttl may be over, or a third
    /// of our own ttl has passed and the place in the queue must be kept alive. However long the
    /// ttl, it checks every ten seconds: the claim before it may have stopped.
    async fn wait(
        &mut self,
        blocked: &Blocked,
        tried: Sent,
        deadline: Moment,
        start: Moment,
        pace: &mut Pace,
    ) -> Result<Option<Guard>, Error> {
        let engine = self.engine;
        let now = engine.io.now();
        let rest = validity::renew_every(self.claim.ttl).min(LONGEST_REST);
        // Waiters that have joined together do not check together.
        let keep_place = tried.at.plus(random_between(rest * 4 / 5, rest));
        let retry = blocked.retry_after.map_or(Moment::NEVER, |after| now.plus(after));
        let look_at = keep_place.min(retry).min(deadline);
        let wait = async {
            tokio::select! {
                biased;
                wake = listening(engine.doorbell.as_ref(), engine.backend.wait(&self.claim, blocked)) => wake,
                () = engine.closed() => Ok(Wake::Look),
            }
        };
        match engine.io.within(look_at.since(now), wait).await {
            // No try was sent later than now: what says so comes from no store.
            Some(Ok(Wake::Admitted { stamp, .. })) if stamp.sent_at() > engine.io.now() => {}
            Some(Ok(Wake::Admitted { grant, stamp, since_try })) => {
                let now = engine.io.now();
                let sent_at = stamp.sent_at();
                let until = validity::pushed_valid_until(sent_at, since_try, now, grant.ttl);
                // The lease runs from the push, not from a try that may be long ago.
                let pushed_at = until.minus(grant.ttl.saturating_sub(validity::drift(grant.ttl)));
                // A pause of the machine since the try counts, wherever it was.
                let pushed = Sent { at: pushed_at, offset: tried.offset };
                return self.take(grant, pushed, until, start);
            }
            Some(Ok(Wake::Look)) => self.is_woken = true,
            Some(Err(error)) => {
                // The wake-up is only a hint; without it the timers above still look.
                self.request
                    .plan
                    .rules
                    .tell(&Event::TryFailed { key: &self.claim.key, error: &error });
            }
            None => return Ok(None),
        }
        if let Some(pause) = pace.after_wake(engine.io.now().since(now)) {
            let left = deadline.since(engine.io.now());
            engine.io.sleep(pause.min(left)).await;
        }
        Ok(None)
    }
}
