//! The try of a claim that is to replace a hold (B16).
//!
//! Its place is at the end of the queue, and names the hold. The places of the waiters between are
//! removed by transactions that compare the hold and the first of them, so that no place is removed that holds
//! the key. A waiter finds its place gone and takes another one.

use std::sync::Arc;
use std::time::Duration;

use latchwork_store::kit::record::cannot_replace;
use latchwork_store::kit::replace::Verdict;
use latchwork_store::{
    Attempt, BackendError, BackendErrorKind, Blocked, Cause, Claim, ClaimId, Grant, Mode,
};

use crate::protocol::acquire::Round;
use crate::protocol::queue::Queue;
use crate::protocol::requests::{self, MOST_OPS};
use crate::protocol::shared::Shared;
use crate::server::errors::{Failure, error};

/// The queue as a claim that has a place has seen it.
pub(super) struct QueueView<'a> {
    pub(super) queue: &'a Queue,
    pub(super) me: usize,
    pub(super) prefix: &'a [u8],
    pub(super) ttl: Duration,
}

impl Shared {
    /// Judges a claim that has a place, and has not been granted yet.
    pub(super) async fn replace(
        self: &Arc<Self>,
        claim: &Claim,
        seen: QueueView<'_>,
        takes_place: bool,
    ) -> Result<Round, BackendError> {
        let QueueView { queue: whole, me, prefix, ttl } = seen;
        let place = &whole.places[me];
        let mut queue = whole.clone().without_closed();
        let mut verdict = queue.find(&place.key).map(|me| (me, queue.replacing(me)));
        if let Some((me, Verdict::Overtakes(first))) = verdict
            && whole.closed().is_none()
            && (takes_place
                || claim.mode == Mode::Read
                || queue.in_the_way(first, claim.beside).is_none())
        {
            if !self.overtake(&queue, first, me).await? {
                return Ok(Round::Again);
            }
            queue = queue.without(first..me);
            verdict = Some((first, queue.replacing(first)));
        }
        let Some((me, verdict)) = verdict else { return Ok(Round::Again) };
        if let Some(refusal) = refusal(claim, &queue, verdict) {
            self.withdraw(claim).await?;
            return Ok(Round::Done(Attempt::Blocked(refusal?)));
        }
        let blocked = match (whole.closed(), verdict) {
            (Some(closed), _) => {
                let blocked = whole.blocked(seen.me, &closed, prefix.len());
                Box::pin(self.until_it_opens(whole, blocked)).await
            }
            (None, Verdict::Behind(other)) => queue.blocked_beside(me, other, prefix.len()),
            (None, Verdict::Overtakes(first)) => {
                let other = queue.in_the_way(first, claim.beside).unwrap_or(first);
                queue.blocked_beside(me, other, prefix.len())
            }
            (None, _) => {
                self.holds(claim, place.lease, None);
                return Ok(Round::Done(Attempt::Granted(Grant::new(place.revision as u64, ttl))));
            }
        };
        if !takes_place {
            self.withdraw(claim).await?;
        }
        Ok(Round::Done(Attempt::Blocked(blocked)))
    }

    /// Removes the places from `first` to that at `me`, all of waiters; false if anything has changed
    /// since they were read.
    async fn overtake(&self, queue: &Queue, first: usize, me: usize) -> Result<bool, BackendError> {
        let Some(hold) = queue.hold_of(me) else { return Ok(false) };
        let others = [hold, first, me].map(|place| &queue.places[place]);
        let (mut end, mut most) = (me, MOST_OPS - others.len());
        // The last ones first: while the first is there, the others wait.
        while end > first {
            let from = first.max(end.saturating_sub(most));
            let removal = self.members.ask(|link| {
                let request = requests::remove(&queue.places[from..end], &others);
                async move { link.txn(request).await }
            });
            match removal.await {
                Ok(answer) if answer.succeeded => end = from,
                Ok(_) => return Ok(false),
                // The server takes fewer operations.
                Err(failure) if failure.error.kind == BackendErrorKind::Invalid && most > 1 => {
                    most /= 2;
                }
                Err(failure) => return Err(Failure::after_another(error(failure))),
            }
        }
        Ok(true)
    }
}

/// Why a claim with this verdict leaves nothing in the queue, if it does not.
fn refusal(
    claim: &Claim,
    queue: &Queue,
    verdict: Verdict,
) -> Option<Result<Blocked, BackendError>> {
    let by = |cause, place: usize| {
        let holder = Some(queue.places[place].holder.clone());
        Some(Ok(Blocked::by(cause).with(|it| it.holder = holder)))
    };
    match verdict {
        Verdict::Gone => Some(Ok(Blocked::by(Cause::Gone))),
        Verdict::Rival(place) => by(Cause::Upgrade, place),
        Verdict::Stuck(place) => by(Cause::Foreign, place),
        Verdict::Earlier(place) => by(Cause::Earlier, place),
        Verdict::Mismatch(held) => Some(Err(cannot_replace(held.word(), claim.mode))),
        Verdict::Granted | Verdict::Behind(_) | Verdict::Overtakes(_) => None,
    }
}

/// Why a claim without a place is not granted at once, whether or not the key is closed.
pub(super) fn refusal_of_newcomer(
    claim: &Claim,
    hold: ClaimId,
    queue: &Queue,
) -> Option<Result<Blocked, BackendError>> {
    let queue = queue.clone().without_closed();
    let verdict = queue.replacing_as_newcomer(claim.mode, hold);
    let other = match verdict {
        Verdict::Behind(other) => Some(other),
        Verdict::Overtakes(first) if claim.mode == Mode::Write => {
            queue.in_the_way(first, Some(hold))
        }
        verdict => return refusal(claim, &queue, verdict),
    };
    let holder = queue.places[other?].holder.clone();
    Some(Ok(Blocked::by(Cause::Held).with(|it| it.holder = Some(holder))))
}
