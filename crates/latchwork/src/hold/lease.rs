//! The state of one granted claim, computed from its holder's own clock.

mod hold_state;
mod next_step;
mod request;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex as StdMutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{Mutex, Notify, OwnedMutexGuard};

use crate::hold::local_queue::{Lead, NextWaiter};
use crate::hold::watched::Watched;
use crate::rules::options::{Plan, Rules};
use crate::rules::pauses::Pauses;
use crate::rules::rate_meter::{Rate, RateMeter};
use latchwork_store::validity;
use latchwork_store::{Claim, Clock, FencingToken, Lost, LostReason, Moment, Renewal};

pub use hold_state::HoldState;
pub(crate) use next_step::{Confirmed, NextStep};
pub(crate) use request::{Granted, Sent};

/// A claim that the store has granted, from the grant to the release.
///
/// Guards and the watchdog share it. It decides by the clock readings it is given and never by
/// whether a timer fired.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) claim: Claim,
    /// The token of the store's grant; handovers count on from it.
    pub(crate) first_token: FencingToken,
    /// When the store's grant came: handovers stop a slice after it. What it counts from may be long
    /// before, where a waiter is admitted by a proof that the store has given earlier.
    pub(crate) granted_at: Moment,
    pub(crate) rules: Arc<Rules>,
    /// Its owner renews it elsewhere, too: only the store knows whether it has ended.
    pub(crate) is_lent: bool,
    state: StdMutex<State>,
    /// A claim that is to replace the hold keeps it, until it is granted or withdrawn.
    replacing: OnceLock<Arc<Mutex<()>>>,
    /// Taken for as long as the hold that it has replaced may be at the store.
    before: OnceLock<Arc<Mutex<()>>>,
    /// Told when the hold has ended, and when it has become suspect.
    changed: Notify,
}

#[derive(Debug)]
struct State {
    /// By the boot clock alone; see [`State::validity_end`].
    valid_until: Moment,
    granted_ttl: Duration,
    /// The ttl that the store was last asked for.
    asked_ttl: Duration,
    /// When to renew next; never while an answer is awaited.
    renew_at: Moment,
    asked: bool,
    /// When the store last let it be known that the hold may have ended.
    doubted_at: Moment,
    /// Of the machine, since the request that the store last confirmed.
    pauses: Pauses,
    /// Since when the pauses make the hold suspect.
    unsettled_since: Option<Moment>,
    /// Suspect for what the store's clock did.
    in_doubt: bool,
    hold_until: Moment,
    /// When the hold began: with the grant or the last handover.
    held_since: Moment,
    /// How often the store's grant was handed over.
    index: u32,
    /// When the renewal that is under way was to be sent.
    planned: Moment,
    end: Option<End>,
    /// The hold of the same guard that has replaced this one.
    successor: Option<Arc<Watched>>,
    meter: RateMeter,
    /// The queue's turn, while this lease carries it.
    lead: Option<Lead>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Released,
    Lost(Lost),
}

/// A hold before it was restarted.
pub(crate) struct Before {
    hold_until: Moment,
    pub(crate) held_since: Moment,
    pub(crate) index: u32,
}

impl Lease {
    pub(crate) fn new(
        claim: Claim,
        granted: Granted,
        rules: Arc<Rules>,
        clock: &dyn Clock,
    ) -> Self {
        let now = clock.now();
        let mut meter = RateMeter::default();
        if let Some(store_time) = granted.store_time {
            meter.observe(granted.sent.at, now, store_time);
        }
        let state = State {
            valid_until: granted.valid_until,
            granted_ttl: granted.ttl,
            asked_ttl: claim.ttl,
            renew_at: granted.sent.at.plus(rules.renew_every(claim.ttl, granted.ttl)),
            asked: false,
            doubted_at: Moment::from_nanos(0),
            pauses: Pauses::since(granted.sent.offset),
            unsettled_since: None,
            in_doubt: false,
            hold_until: rules.hold_until(now),
            held_since: now,
            index: 0,
            planned: now,
            end: None,
            successor: None,
            meter,
            lead: None,
        };
        Self {
            claim,
            first_token: granted.token,
            granted_at: now,
            rules,
            is_lent: false,
            state: StdMutex::new(state),
            replacing: OnceLock::new(),
            before: OnceLock::new(),
            changed: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the clock and says what the hold is. The only judge of validity.
    pub(crate) fn judge(&self, clock: &dyn Clock) -> HoldState {
        let now = clock.now();
        let mut state = self.lock();
        match state.end {
            Some(End::Lost(lost)) => return HoldState::Lost(lost),
            // Only a guard that is gone has released: nobody is left to ask.
            Some(End::Released) => {
                return HoldState::Lost(Lost::new(LostReason::Taken, now));
            }
            None => {}
        }
        let doubted = state.look_at_wall(clock, now);
        if let Some(lost) = state.overdue(now) {
            state.end = Some(End::Lost(lost));
            drop(state);
            self.changed.notify_waiters();
            return HoldState::Lost(lost);
        }
        let is_suspect = state.is_suspect();
        drop(state);
        if doubted {
            self.changed.notify_waiters();
        }
        if is_suspect { HoldState::Suspect } else { HoldState::Held }
    }

    pub(crate) fn valid_until(&self) -> Moment {
        let state = self.lock();
        state.validity_end().min(state.hold_until)
    }

    /// Whether the store's lease lasts long enough to hand the hold over, whatever its `max_hold`.
    pub(crate) fn is_worth_handing_over(&self, now: Moment) -> bool {
        let state = self.lock();
        validity::is_worth_taking(state.validity_end(), now, state.granted_ttl)
    }

    pub(crate) fn granted_ttl(&self) -> Duration {
        self.lock().granted_ttl
    }

    /// The claim for a renewal, where the store may change its ttl: a hold that is renewed is longer
    /// than the holds that an adaptive ttl was chosen for, so it gets the longest.
    pub(crate) fn claim_to_renew(&self) -> Claim {
        if let Some(bounds) = self.rules.adaptive_ttl {
            let mut state = self.lock();
            state.asked_ttl = state.asked_ttl.max(bounds.longest);
        }
        self.claim_as_kept()
    }

    /// The claim with the longest ttl that the store may keep it for.
    pub(crate) fn claim_as_kept(&self) -> Claim {
        self.claim.clone().with(|it| it.ttl = self.lock().asked_ttl)
    }

    /// Looks at the lease for the watchdog.
    pub(crate) fn next_step(&self, clock: &dyn Clock, slack: Duration) -> NextStep {
        let judged = self.judge(clock);
        let now = clock.now();
        let state = self.lock();
        match (state.end, judged) {
            (Some(End::Released), _) => NextStep::Forget,
            (Some(End::Lost(lost)), _) => NextStep::EndLost(lost),
            (None, HoldState::Suspect) if !state.asked => NextStep::Renew,
            (None, _) => {
                if state.renew_at <= now.plus(slack) {
                    return NextStep::Renew;
                }
                NextStep::Wait(state.next_event())
            }
        }
    }

    /// A renewal is about to be sent: nothing to do before its answer but to watch the end. `None` if one is under way.
    pub(crate) fn renewing(&self) -> Option<Moment> {
        let mut state = self.lock();
        if state.asked {
            return None;
        }
        state.planned = state.renew_at;
        state.renew_at = Moment::NEVER;
        state.asked = true;
        Some(state.next_event())
    }

    /// When it ends if it is not renewed; at once, if the store or a clock has put it in doubt.
    pub(crate) fn urgency(&self) -> Moment {
        let state = self.lock();
        let is_doubted = state.in_doubt || state.doubted_at >= state.planned;
        if is_doubted { Moment::from_nanos(0) } else { state.valid_until }
    }

    /// A renewal failed without the store's word: try again after a pause.
    pub(crate) fn retry_at(&self, at: Moment) -> Moment {
        let mut state = self.lock();
        state.renew_at = at;
        state.asked = false;
        state.next_event()
    }

    /// The store has let it be known that the hold may have ended: only a renewal that is sent from
    /// now on settles it.
    pub(crate) fn doubt(&self, now: Moment) {
        let mut state = self.lock();
        state.doubted_at = now;
        if !state.asked {
            state.renew_at = now;
        }
    }

    /// Takes the store's answer to a renewal.
    ///
    /// An answer that comes after the validity was over is not believed: the claim may have been
    /// planted again by a late copy of the holder's own try.
    pub(crate) fn confirm(&self, sent: Sent, answer: Renewal, clock: &dyn Clock) -> Confirmed {
        let sent_at = sent.at;
        if let HoldState::Lost(_) = self.judge(clock) {
            self.lock().asked = false;
            return Confirmed::TooLate;
        }
        let now = clock.now();
        let mut state = self.lock();
        state.asked = false;
        let Renewal::Held { ttl, store_time, .. } = answer else {
            let lost = Lost::new(LostReason::Taken, now);
            state.end = Some(End::Lost(lost));
            drop(state);
            self.changed.notify_waiters();
            return Confirmed::Lost(lost);
        };
        let rate = match store_time {
            Some(store_time) => state.meter.observe(sent_at, now, store_time),
            None => Rate::Steady,
        };
        // A fast clock of the store shortens the lock delay as well.
        let room = self.claim.holder.room_for_delay();
        let counted = state.meter.shrink(ttl.saturating_add(room)).saturating_sub(room);
        // Not the later of this and the last one: the renewal has restarted the ttl, and a clock
        // that was found to run fast makes what was counted on before too long as well.
        state.valid_until = validity::valid_until(sent_at, counted);
        state.granted_ttl = ttl;
        let was_suspect = state.is_suspect();
        // A pause before the request is settled by the answer; one since then is not.
        state.pauses = Pauses::since(sent.offset);
        state.unsettled_since = None;
        state.in_doubt = rate != Rate::Steady;
        state.look_at_wall(clock, now);
        if state.in_doubt {
            state.renew_at = now;
            drop(state);
            self.changed.notify_waiters();
            return Confirmed::Doubted(rate);
        }
        let every = self.rules.renew_every(self.claim.ttl, counted);
        let again = state.doubted_at > sent_at || state.is_suspect();
        state.renew_at = if again { now } else { sent_at.plus(every) };
        let remaining = state.validity_end().since(now);
        drop(state);
        if was_suspect {
            // The holder may wait until the doubt is settled.
            self.changed.notify_waiters();
        }
        Confirmed::Held { remaining }
    }

    pub(crate) fn next_event(&self) -> Moment {
        self.lock().next_event()
    }

    /// Ends the hold because its guard gave it up; says which it was and how long it had lasted.
    /// `None` if it had ended before.
    ///
    /// From here on no renewal is sent, and the answer of one under way changes nothing.
    pub(crate) fn end_released(&self, now: Moment) -> Option<(FencingToken, Duration)> {
        self.released(&mut self.lock(), now)
    }

    fn released(&self, state: &mut State, now: Moment) -> Option<(FencingToken, Duration)> {
        if state.end.is_some() {
            return None;
        }
        state.end = Some(End::Released);
        Some((self.token_of(state.index), now.since(state.held_since)))
    }

    /// Ends the hold because its guard goes on with another one, as [`end_released`](Lease::end_released).
    /// The longest hold counts on.
    pub(crate) fn end_replaced(
        &self,
        now: Moment,
        by: &Arc<Watched>,
    ) -> Option<(FencingToken, Duration)> {
        let mut state = self.lock();
        let ended = self.released(&mut state, now)?;
        state.successor = Some(by.clone());
        let hold_until = state.hold_until;
        drop(state);
        by.lease.lock().hold_until = hold_until;
        self.changed.notify_waiters();
        Some(ended)
    }

    /// The turn to ask for a hold in place of this one.
    pub(crate) fn replacing(&self) -> Arc<Mutex<()>> {
        self.replacing.get_or_init(Arc::default).clone()
    }

    /// What the release of the hold that it replaces keeps until the store has answered.
    pub(crate) fn after(&self) -> Option<OwnedMutexGuard<()>> {
        self.before.get_or_init(Arc::default).clone().try_lock_owned().ok()
    }

    /// Completes when the hold that it has replaced has left the store.
    pub(crate) async fn is_alone(&self) {
        if let Some(before) = self.before.get() {
            drop(before.lock().await);
        }
    }

    /// The hold that has replaced this one.
    pub(crate) fn successor(&self) -> Option<Arc<Watched>> {
        self.lock().successor.clone()
    }

    /// Why and when a hold ended that was not released.
    pub(crate) fn was_lost(&self, now: Moment) -> Lost {
        match self.lock().end {
            Some(End::Lost(lost)) => lost,
            _ => Lost::new(LostReason::Taken, now),
        }
    }

    /// Ends the hold for a reason that is not the clock's. `None` if it had ended before.
    pub(crate) fn end_lost(&self, reason: LostReason, now: Moment) -> Option<Lost> {
        let mut state = self.lock();
        if state.end.is_some() {
            return None;
        }
        let lost = Lost::new(reason, now);
        state.end = Some(End::Lost(lost));
        drop(state);
        self.changed.notify_waiters();
        Some(lost)
    }

    /// How long a hold lasted that was lost.
    pub(crate) fn lost_after(&self) -> Option<Duration> {
        let state = self.lock();
        match state.end {
            Some(End::Lost(lost)) => Some(lost.at.since(state.held_since)),
            Some(End::Released) | None => None,
        }
    }

    /// Starts a new hold of this lease, for a handover; says what the last one was.
    pub(crate) fn restart_hold(&self, now: Moment, index: u32) -> Before {
        let mut state = self.lock();
        let before = Before {
            hold_until: state.hold_until,
            held_since: state.held_since,
            index: state.index,
        };
        state.hold_until = self.rules.hold_until(now);
        state.held_since = now;
        state.index = index;
        before
    }

    /// Nobody took the hold that was restarted: it is what it was.
    pub(crate) fn restore_hold(&self, before: Before) {
        let mut state = self.lock();
        state.hold_until = before.hold_until;
        state.held_since = before.held_since;
        state.index = before.index;
    }

    /// Sets the longest hold aside until [`restart_hold`](Lease::restart_hold).
    pub(crate) fn suspend_max_hold(&self) {
        self.lock().hold_until = Moment::NEVER;
    }

    /// The token of the hold as it is now.
    pub(crate) fn token(&self) -> FencingToken {
        self.token_of(self.lock().index)
    }

    /// The token of the hold that came after so many handovers.
    pub(crate) fn token_of(&self, index: u32) -> FencingToken {
        self.first_token.handed_over(index).unwrap_or(self.first_token)
    }

    /// How long the hold has lasted.
    pub(crate) fn held_for(&self, now: Moment) -> Duration {
        now.since(self.lock().held_since)
    }

    /// How much later than planned the renewal under way was sent.
    pub(crate) fn late(&self, sent_at: Moment) -> Duration {
        sent_at.since(self.lock().planned)
    }

    /// Gives the lease the turn of the queue that it was granted for.
    ///
    /// Gives it back if the hold has ended meanwhile.
    pub(crate) fn carry(&self, lead: Lead) -> Option<Lead> {
        let mut state = self.lock();
        if state.end.is_some() {
            return Some(lead);
        }
        state.lead = Some(lead);
        None
    }

    /// The waiter of this process to hand over to: the next one, if it asked for the same.
    pub(crate) fn next_local(&self) -> Option<NextWaiter> {
        let plan = Plan {
            ttl: self.claim.ttl,
            holder: self.claim.holder.clone(),
            rules: self.rules.clone(),
        };
        self.lock().lead.as_ref().and_then(|lead| lead.next_for(&plan))
    }

    pub(crate) fn take_lead(&self) -> Option<Lead> {
        self.lock().lead.take()
    }

    /// Completes when the hold is as asked for, by `judge`.
    ///
    /// It also looks at the end of the validity and at steps of the wall clock, so that the answer
    /// does not depend on the watchdog alone.
    pub(crate) async fn until<T>(
        &self,
        clock: &dyn Clock,
        mut judge: impl FnMut() -> Option<T>,
    ) -> T {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let stepped = clock.stepped();
            if let Some(judged) = judge() {
                return judged;
            }
            let end = self.lock().next_end();
            tokio::select! {
                biased;
                () = changed => {}
                () = clock.sleep_until(end) => {}
                () = stepped => {}
            }
        }
    }
}

impl State {
    /// Compares the clocks; `true` if that has just made the hold suspect.
    fn look_at_wall(&mut self, clock: &dyn Clock, now: Moment) -> bool {
        let is_doubtful = self.pauses.look(clock, now)
            && (self.pauses.are_doubtful() || self.validity_end() <= now);
        let newly = is_doubtful && self.unsettled_since.is_none();
        if newly {
            self.unsettled_since = Some(now);
        }
        newly
    }

    fn is_suspect(&self) -> bool {
        self.in_doubt || self.unsettled_since.is_some()
    }

    /// Until when the lease lasts at the store for sure: it continued while the machine was paused.
    fn validity_end(&self) -> Moment {
        self.valid_until.minus(self.pauses.sum())
    }

    /// When the hold counts as lost. What looks like a pause may be a wall clock that was set, so the
    /// store has a moment to say so.
    fn belief_end(&self) -> Moment {
        let Some(since) = self.unsettled_since else { return self.validity_end() };
        let settled = since.plus(validity::settle(self.granted_ttl));
        self.validity_end().max(settled).min(self.valid_until)
    }

    fn next_end(&self) -> Moment {
        self.belief_end().min(self.hold_until)
    }

    fn next_event(&self) -> Moment {
        self.next_end().min(self.renew_at)
    }

    fn overdue(&self, now: Moment) -> Option<Lost> {
        let end = self.belief_end();
        if now >= self.hold_until && self.hold_until <= end {
            return Some(Lost::new(LostReason::MaxHold, now));
        }
        (now >= end).then_some(Lost::new(LostReason::Expired, now))
    }
}
