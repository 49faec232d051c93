//! One record per key: its holders, its waiters, the last token, and until when it stays closed.
//!
//! [`Record`] is a pure state machine: `(record, claim, now) -> (record, answer, wake-ups)`. A
//! backend that can read, change and write one value atomically needs nothing else. It reads no
//! clock and decides only by the [`Now`] it is given.
//!
//! The rules, in the order in which [`Record::try_acquire`] applies them:
//!
//! 1. Members and waiters whose ttl is over, or whose session is dead, are dropped. A member with a
//!    lock delay stays until its ttl is over.
//! 2. A claim that is already held keeps its token and restarts its ttl (B2).
//! 3. A key in use as another kind of lock is a mismatch (B12), and so is another limit of permits,
//!    unless [`Claim::resize`] says otherwise.
//! 4. A key that lingers admits no claim.
//! 5. A claim must be compatible with all members, and no claim ahead of it in the queue may block
//!    it. Readers do not block each other. A barging claim is behind the whole queue.
//! 6. A claim that could have been admitted and did not come within [`WAITER_PATIENCE`] for each place is passed
//!    over, and keeps its place.
//!
//! A claim [beside](Claim::beside) a hold ignores that hold in rule 5, and is ahead of the whole
//! queue: the others in it wait for the hold at least, or for a claim that does. It is dropped when
//! the hold ends.

use std::time::Duration;

use crate::claim::{Claim, ClaimId, Mode, Order, Shape};
use crate::error::{BackendError, BackendErrorKind, Effect};
use crate::holder::Holder;
use crate::words::{Attempt, Blocked, Cause, Grant, Renewal};

mod end;
mod open;
mod resize;
mod snapshot;

/// How long a waiter that could be admitted may delay the others before it is skipped.
pub const WAITER_PATIENCE: Duration = Duration::from_secs(2);

/// The two times that a record needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// The clock that leases are counted by. It must not be set back or forward.
    pub lease: Duration,
    /// The wall clock, for lingers that outlive a boot.
    pub wall: Duration,
}

/// A claim that holds the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The claim.
    pub id: ClaimId,
    /// Its mode.
    pub mode: Mode,
    /// Its token.
    pub token: u64,
    /// When it ends unless renewed, on the lease clock.
    pub expires: Duration,
    /// The time of its first try, on the lease clock, if known.
    pub asked: Option<Duration>,
    /// Its description.
    pub holder: Holder,
    /// The backend's own mark, for example the session that carries the claim.
    pub tag: u128,
}

/// A claim that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiter {
    /// The claim.
    pub id: ClaimId,
    /// Its mode.
    pub mode: Mode,
    /// `Fifo` has a place, `Barging` only asks to be woken.
    pub order: Order,
    /// When its place ends unless its try is repeated, on the lease clock.
    pub expires: Duration,
    /// The time of its first try, on the lease clock, if known.
    pub asked: Option<Duration>,
    /// Its description.
    pub holder: Holder,
    /// The backend's own mark.
    pub tag: u128,
    /// Whether it was notified that it would be admitted and has not come yet.
    pub told: bool,
    /// The hold that it is to replace.
    pub beside: Option<ClaimId>,
}

/// A waiter to wake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wakeup {
    /// The claim to wake.
    pub id: ClaimId,
    /// Its mark.
    pub tag: u128,
    /// Whether it would be admitted now. If not, only the claims ahead of it have changed: a
    /// backend whose waiters watch the one ahead wakes it, others need not.
    pub admissible: bool,
}

/// The state of one key in a store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Record {
    /// The claims that hold the key.
    pub held: Vec<Member>,
    /// The claims that wait, first come first.
    pub queue: Vec<Waiter>,
    /// The last token given.
    pub token: u64,
    /// Until when the key stays closed, on the wall clock; zero if it does not.
    pub closed_until: Duration,
    /// The holder that closed the key, while it is closed and if known.
    pub closed_by: Option<Holder>,
    /// The time when a member or the head of the queue last left, on the lease clock. From then on,
    /// the first claim in the queue could have been admitted.
    pub open_since: Duration,
}

/// Returns whether the session behind a mark is still alive.
pub type Alive<'a> = &'a dyn Fn(u128) -> bool;

impl Record {
    /// Tries to hold the key for `claim`, marked with `tag`.
    ///
    /// `base` is the largest token that the store knows to have been given before, also on records
    /// that it has dropped since.
    pub fn try_acquire(
        &mut self,
        claim: &Claim,
        tag: u128,
        base: u64,
        now: Now,
        alive: Alive<'_>,
    ) -> (Result<Attempt, BackendError>, Vec<Wakeup>) {
        let mut moved = self.sweep(now, alive);
        let answer = self.judge(claim, tag, base, now, &mut moved);
        (answer, self.wakeups(&moved, Some(claim.id), now))
    }

    fn judge(
        &mut self,
        claim: &Claim,
        tag: u128,
        base: u64,
        now: Now,
        moved: &mut Vec<ClaimId>,
    ) -> Result<Attempt, BackendError> {
        let expires = now.lease.saturating_add(claim.ttl);
        if let Some(member) = self.held.iter_mut().find(|m| m.id == claim.id) {
            member.expires = expires;
            let token = member.token;
            return Ok(Attempt::Granted(Grant::new(token, claim.ttl)));
        }
        let mode = self.judged_mode(claim)?;
        let place = self.queue.iter().position(|w| w.id == claim.id);
        if let Some(refusal) = self.refusal(claim)? {
            if let Some(place) = place {
                self.leave_queue(place, now);
                moved.extend(self.queue.get(place).map(|w| w.id));
            }
            return Ok(Attempt::Blocked(refusal));
        }
        let in_the_way = self.in_the_way(claim, place);
        let closed = self.closed_until.saturating_sub(now.wall);
        let fits = self.fits(mode, claim.beside);
        let others_fit = in_the_way.iter().all(|i| {
            let other = &self.queue[*i];
            self.fits(other.mode, other.beside)
        });
        let passes = others_fit
            && now.lease >= self.open_since(now) + WAITER_PATIENCE * in_the_way.len() as u32;
        let asked = place.map_or(Some(now.lease), |place| self.queue[place].asked);
        if closed.is_zero() && fits && (in_the_way.is_empty() || passes) {
            if let Some(place) = place {
                self.leave_queue(place, now);
                // The one behind the head learns of the new member when that one leaves; anyone
                // further back stood behind a waiter that is gone.
                moved.extend(self.queue.get(place).filter(|_| place > 0).map(|w| w.id));
            }
            let token = (self.token + 1).max(base + 1).max(claim.floor);
            self.token = token;
            if self.held.is_empty() {
                // Most keys have one holder; room for four would be most of what a key takes.
                self.held.reserve_exact(1);
            }
            self.held.push(Member {
                id: claim.id,
                mode,
                token,
                expires,
                asked,
                holder: claim.holder.clone(),
                tag,
            });
            self.limit_holders(mode);
            return Ok(Attempt::Granted(Grant::new(token, claim.ttl)));
        }
        let blocked = self.blocked(claim, &in_the_way, closed, fits && others_fit, now);
        self.keep_place(claim, mode, place, expires, tag, now);
        if let (false, Some(place)) = (claim.waits, place) {
            moved.extend(self.queue.get(place).map(|w| w.id));
        }
        Ok(Attempt::Blocked(blocked))
    }

    /// Checks the kind of lock, and returns the mode with the limit that the claim is judged by.
    fn judged_mode(&self, claim: &Claim) -> Result<Mode, BackendError> {
        let is_place = |w: &&Waiter| w.id == claim.id && w.order == Order::Fifo;
        let place = self.queue.iter().find(is_place).map(|w| w.mode);
        claim.judged_mode(self.shape_without(claim.id), place)
    }

    /// All holders of permits have one limit, that of the last grant or resize.
    fn limit_holders(&mut self, mode: Mode) {
        if let Some(of) = mode.limit() {
            self.held.iter_mut().for_each(|m| m.mode = m.mode.with_limit(of));
        }
    }

    fn shape_without(&self, id: ClaimId) -> Option<Shape> {
        let held = self.held.iter().map(|m| (m.id, m.mode));
        let in_order = |order| {
            let queue = self.queue.iter().filter(move |w| w.order == order);
            queue.map(|w| (w.id, w.mode))
        };
        // A claim without a place counts last.
        let all = held.chain(in_order(Order::Fifo)).chain(in_order(Order::Barging));
        let mut others = all.filter(|(other, _)| *other != id);
        others.next().map(|(_, mode)| mode.shape())
    }

    /// Why `claim` cannot replace the hold that it names, if it cannot.
    fn refusal(&self, claim: &Claim) -> Result<Option<Blocked>, BackendError> {
        let Some(beside) = claim.beside else { return Ok(None) };
        if claim.mode.shape() != Shape::ReadWrite {
            return Err(cannot_replace(claim.mode.word(), claim.mode));
        }
        let Some(hold) = self.held.iter().find(|m| m.id == beside) else {
            return Ok(Some(Blocked::by(Cause::Gone)));
        };
        match (hold.mode, claim.mode) {
            (Mode::Read, Mode::Write) => {
                let mut rivals = self.queue.iter().filter(|w| w.id != claim.id && w.upgrades());
                let refused = |by: &Waiter| {
                    Blocked::by(Cause::Upgrade).with(|it| it.holder = Some(by.holder.clone()))
                };
                Ok(rivals.next().map(refused))
            }
            (Mode::Write, Mode::Read) => Ok(None),
            (held, wanted) => Err(cannot_replace(held.word(), wanted)),
        }
    }

    /// The places in the queue that must be admitted before `claim`.
    fn in_the_way(&self, claim: &Claim, place: Option<usize>) -> Vec<usize> {
        let end = match (claim.order, place) {
            _ if claim.beside.is_some() => 0,
            (Order::Fifo, Some(place)) => place,
            _ => self.queue.len(),
        };
        (0..end)
            .filter(|i| {
                let other = &self.queue[*i];
                other.order == Order::Fifo
                    && other.id != claim.id
                    && !(claim.mode == Mode::Read && other.mode == Mode::Read)
            })
            .collect()
    }

    /// Since when claims can be admitted, on the lease clock: since a member left or, if that was
    /// later, since the linger ended.
    fn open_since(&self, now: Now) -> Duration {
        let unclosed = now.wall.saturating_sub(self.closed_until);
        self.open_since.max(now.lease.saturating_sub(unclosed))
    }

    /// Whether a claim of this mode is compatible with every member but the one that it replaces.
    fn fits(&self, mode: Mode, beside: Option<ClaimId>) -> bool {
        fits(others(&self.held, beside).map(|m| m.mode), mode)
    }

    fn blocked(
        &self,
        claim: &Claim,
        in_the_way: &[usize],
        closed: Duration,
        all_fit: bool,
        now: Now,
    ) -> Blocked {
        let behind = WAITER_PATIENCE * in_the_way.len() as u32;
        let held = || others(&self.held, claim.beside);
        let first_end = held().map(|m| m.expires.saturating_sub(now.lease)).min();
        let (cause, retry_after) = if !closed.is_zero() {
            (Cause::Linger, Some(closed))
        } else if all_fit {
            (Cause::Queued, Some((self.open_since(now) + behind).saturating_sub(now.lease)))
        } else {
            (Cause::Held, first_end.map(|end| end.saturating_add(behind)))
        };
        let holder = match cause {
            Cause::Linger => self.closed_by.clone(),
            _ => {
                let member = held().next().map(|m| &m.holder);
                member.or_else(|| in_the_way.first().map(|i| &self.queue[*i].holder)).cloned()
            }
        };
        Blocked {
            retry_after: retry_after.map(|after| after.max(Duration::from_millis(1))),
            ahead: has_place(claim).then_some(in_the_way.len() as u32),
            cause,
            holder,
            resume: None,
            store_time: None,
        }
    }

    /// Takes a waiter out of the queue. If it was first, the turn of the next one begins.
    fn leave_queue(&mut self, place: usize, now: Now) {
        if self.is_head(place) {
            self.open_since = self.open_since.max(now.lease);
        }
        self.queue.remove(place);
    }

    fn is_head(&self, place: usize) -> bool {
        self.queue.iter().position(|w| w.order == Order::Fifo) == Some(place)
    }

    fn keep_place(
        &mut self,
        claim: &Claim,
        mode: Mode,
        place: Option<usize>,
        expires: Duration,
        tag: u128,
        now: Now,
    ) {
        let waiter = Waiter {
            id: claim.id,
            mode,
            order: if has_place(claim) { Order::Fifo } else { Order::Barging },
            expires,
            asked: place.map_or(Some(now.lease), |place| self.queue[place].asked),
            holder: claim.holder.clone(),
            tag,
            told: false,
            beside: claim.beside,
        };
        match (claim.waits, place) {
            (true, Some(place)) => self.queue[place] = waiter,
            (true, None) if claim.beside.is_some() => self.queue.insert(0, waiter),
            (true, None) => self.queue.push(waiter),
            (false, Some(place)) => self.leave_queue(place, now),
            (false, None) => {}
        }
    }

    /// Restarts the ttl of a held claim, and raises its token to its floor. A claim that was
    /// [detached](Holder::detached) since is lost to the process that had it before.
    pub fn renew(&mut self, claim: &Claim, now: Now, alive: Alive<'_>) -> (Renewal, Vec<Wakeup>) {
        let moved = self.sweep(now, alive);
        let renewal = match self.held.iter_mut().find(|m| m.id == claim.id) {
            Some(member) if claim.holder.detached >= member.holder.detached => {
                member.expires = now.lease.saturating_add(claim.ttl);
                member.token = member.token.max(claim.floor);
                member.holder.detached = claim.holder.detached;
                if claim.holder.lock_delay.is_some() {
                    member.holder.lock_delay = claim.holder.lock_delay;
                }
                self.token = self.token.max(member.token);
                Renewal::Held { ttl: claim.ttl, token: member.token, store_time: None }
            }
            _ => Renewal::Lost,
        };
        (renewal, self.wakeups(&moved, None, now))
    }

    /// Marks a claim that was renewed with `tag`: another session renews it from now on.
    pub fn adopt(&mut self, claim: &Claim, tag: u128) {
        let is_renewed = |m: &&mut Member| {
            m.id == claim.id && m.tag != tag && m.holder.detached == claim.holder.detached
        };
        if let Some(member) = self.held.iter_mut().find(is_renewed) {
            member.tag = tag;
            member.holder.lock_delay = claim.holder.lock_delay;
        }
    }

    /// Drops what has ended, and returns the waiters before whom somebody left the queue.
    ///
    /// A waiter behind a live one is not asked whether its session lives: its death matters only
    /// when its turn comes.
    fn sweep(&mut self, now: Now, alive: Alive<'_>) -> Vec<ClaimId> {
        if self.closed_until <= now.wall {
            self.closed_by = None;
        }
        let mut open_since = self.open_since;
        self.held.retain(|member| {
            if member.expires <= now.lease {
                open_since = open_since.max(member.expires);
                false
            } else if member.holder.lock_delay.is_none() && !alive(member.tag) {
                open_since = open_since.max(now.lease);
                false
            } else {
                true
            }
        });
        let held = &self.held;
        let replaces_none =
            |w: &Waiter| w.beside.is_some_and(|beside| held.iter().all(|m| m.id != beside));
        let mut moved = Vec::new();
        let mut at_front = true;
        let mut no_head = true;
        let mut gap = false;
        self.queue.retain(|waiter| {
            let dead = waiter.expires <= now.lease || (at_front && !alive(waiter.tag));
            let dead = dead || replaces_none(waiter);
            if dead {
                if no_head && waiter.order == Order::Fifo {
                    open_since = open_since.max(waiter.expires.min(now.lease));
                }
                gap = true;
            } else {
                no_head &= waiter.order != Order::Fifo;
                at_front = false;
                if std::mem::take(&mut gap) {
                    moved.push(waiter.id);
                }
            }
            !dead
        });
        self.open_since = open_since;
        moved
    }

    /// The waiters that should check again after a change.
    ///
    /// A claim that would be admitted is woken once until it comes. No claim is woken that would
    /// find another in the way: two such waiters would wake each other again and again.
    fn wakeups(&mut self, moved: &[ClaimId], except: Option<ClaimId>, now: Now) -> Vec<Wakeup> {
        let mut wakeups = Vec::new();
        let open = self.closed_until <= now.wall;
        let fifo = |w: &&Waiter| w.order == Order::Fifo;
        let queue = self.queue.iter().filter(fifo).count();
        let queue_of_others =
            self.queue.iter().filter(fifo).filter(|w| w.mode != Mode::Read).count();
        let (mut ahead, mut others_ahead) = (0, 0);
        for waiter in &mut self.queue {
            let in_the_way = match (waiter.order, waiter.mode) {
                _ if waiter.beside.is_some() => 0,
                (Order::Fifo, Mode::Read) => others_ahead,
                (Order::Fifo, _) => ahead,
                (Order::Barging, Mode::Read) => queue_of_others,
                (Order::Barging, _) => queue,
            };
            if waiter.order == Order::Fifo {
                ahead += 1;
                others_ahead += usize::from(waiter.mode != Mode::Read);
            }
            let held = others(&self.held, waiter.beside).map(|m| m.mode);
            let admissible = open && in_the_way == 0 && fits(held, waiter.mode);
            let news = admissible || moved.contains(&waiter.id);
            if news && !waiter.told && Some(waiter.id) != except {
                waiter.told = admissible;
                wakeups.push(Wakeup { id: waiter.id, tag: waiter.tag, admissible });
            }
        }
        wakeups
    }

    /// Returns the marks of the claims whose death would let `id` advance: the live waiter right
    /// ahead or, for the first in the queue, the members.
    ///
    /// Elsewhere a waiter behind a living one is not asked whether it lives. Here it matters: a
    /// death may be reported only once, and a later waiter must watch the one before it.
    pub fn behind(&self, id: ClaimId, alive: Alive<'_>) -> Vec<u128> {
        let place = self.queue.iter().position(|w| w.id == id && w.order == Order::Fifo);
        let mut ahead = self.queue[..place.unwrap_or(self.queue.len())].iter().rev();
        let stands = |w: &&Waiter| w.order == Order::Fifo && w.id != id && alive(w.tag);
        match ahead.find(stands) {
            Some(waiter) => vec![waiter.tag],
            None => {
                // The death of a member with a lock delay lets nobody move on.
                let free_at_death = |m: &&Member| m.holder.lock_delay.is_none();
                let held = self.held.iter().filter(free_at_death);
                let mut tags: Vec<u128> = held.map(|m| m.tag).collect();
                tags.sort_unstable();
                tags.dedup();
                tags
            }
        }
    }

    /// Returns whether the record can be dropped without losing more than its last token.
    pub fn is_idle(&self, now: Now) -> bool {
        self.held.is_empty() && self.queue.is_empty() && self.closed_until <= now.wall
    }
}

/// The error for a claim that is to replace a hold of the same or another kind of lock. `held` is the hold's
/// mode as one word.
pub fn cannot_replace(held: &str, wanted: Mode) -> BackendError {
    let message = format!("a claim of mode {} cannot replace a hold of mode {held}", wanted.word());
    BackendError::new(BackendErrorKind::Mismatch, Effect::NotApplied, message)
        .with_next_step("replace a read hold by a write claim, or a write hold by a read claim")
}

impl Waiter {
    fn upgrades(&self) -> bool {
        self.beside.is_some() && self.mode == Mode::Write
    }
}

/// Whether a claim has a place in the queue if it waits.
fn has_place(claim: &Claim) -> bool {
    claim.order == Order::Fifo || claim.beside.is_some()
}

/// The members but for the one that a claim replaces.
fn others(held: &[Member], replaced: Option<ClaimId>) -> impl Iterator<Item = &Member> {
    held.iter().filter(move |m| Some(m.id) != replaced)
}

/// Whether a claim of `mode` can be held beside these.
fn fits(held: impl Iterator<Item = Mode>, mode: Mode) -> bool {
    let mut held = held;
    match mode {
        Mode::Exclusive | Mode::Write => held.next().is_none(),
        Mode::Read => held.all(|m| m == Mode::Read),
        Mode::Permits { take, of } => {
            let taken: u64 = held
                .map(|m| match m {
                    Mode::Permits { take, .. } => u64::from(take),
                    _ => u64::from(of),
                })
                .sum();
            taken + u64::from(take) <= u64::from(of)
        }
    }
}

#[cfg(test)]
mod tests;
