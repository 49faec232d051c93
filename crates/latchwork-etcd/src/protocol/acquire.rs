//! The try.

use std::num::NonZeroI64;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use latchwork_store::kit::lineup::Admission;
use latchwork_store::kit::record::cannot_replace;
use latchwork_store::{
    Attempt, BackendError, Blocked, Cause, Claim, Effect, Grant, Order, Resize, Shape,
};

use crate::protocol::names;
use crate::protocol::pool::Lease;
use crate::protocol::queue::{Queue, value};
use crate::protocol::replace::{QueueView, refusal_of_newcomer};
use crate::protocol::requests::{self, Ask, If};
use crate::protocol::shared::{Shared, went_back, whole_seconds};
use crate::server::errors::{Failure, Reaction, error, strange, unsupported};
use crate::server::keep_alive::Purpose;

/// How often a try begins again because its lease ended on the way, or others joined the queue.
const ROUNDS: u32 = 32;

/// The result of a round of a try.
pub(super) enum Round {
    Done(Attempt),
    /// The lease is gone, and it takes another; or the place is not the one that it was.
    Again,
    /// The queue as it is without the claim, which might join it.
    Seen(Queue),
}

impl Shared {
    pub(crate) async fn try_claim(
        self: &Arc<Self>,
        asked: &Claim,
    ) -> Result<Attempt, BackendError> {
        let claim = asked;
        if claim.floor > 0 {
            return Err(unsupported(
                "etcd does not support token floors inside a claim; use `token_floor`",
            ));
        }
        if claim.beside.is_some() && claim.mode.shape() != Shape::ReadWrite {
            return Err(cannot_replace(claim.mode.word(), claim.mode));
        }
        self.members.identity().may_grant()?;
        let prefix = names::queue(&claim.key);
        let takes_place = claim.waits && (claim.order == Order::Fifo || claim.beside.is_some());
        let hold = claim.beside.and_then(|hold| self.claims.get(hold)?.revision);
        let mut condition = match hold {
            _ if takes_place => If::NoPlace,
            Some(hold) => If::NobodyBut(hold.get()),
            None => If::NobodyThere,
        };
        let mut followed = None;
        for _ in 0..ROUNDS {
            let place = self.claims.get(asked.id).and_then(|own| own.revision);
            if asked.resize == Resize::Follow && place.is_none() {
                followed = Some(self.follow(asked, &prefix).await?);
            }
            let (claim, seen) = match &followed {
                Some((claim, changed)) => (claim, Some(*changed)),
                None => (asked, None),
            };
            match self.round(claim, &prefix, condition, takes_place, seen).await? {
                Round::Done(attempt) => return Ok(attempt),
                Round::Again => {}
                Round::Seen(queue) => condition = If::NobodyJoinedSince(queue.revision),
            }
        }
        // Others have joined all the time; a claim that wants no place cannot prevail.
        Ok(Attempt::Blocked(
            Blocked::by(Cause::Queued).with(|it| it.retry_after = Some(Duration::from_millis(20))),
        ))
    }

    /// A follower that has no place yet as a claim of the limit that it finds, and when that was changed. The
    /// limit is written with its place; a later change applies to it.
    async fn follow(&self, claim: &Claim, prefix: &[u8]) -> Result<(Claim, i64), BackendError> {
        let queue = self.queue_and_limit(prefix).await?;
        let followed = claim.following(queue.used_as(queue.places.len()));
        Ok((followed, queue.limit_changed.unwrap_or(0)))
    }

    async fn round(
        self: &Arc<Self>,
        claim: &Claim,
        prefix: &[u8],
        condition: If,
        takes_place: bool,
        followed: Option<i64>,
    ) -> Result<Round, BackendError> {
        let known = self.claims.get(claim.id);
        if let Some(own) = known
            && let Some(far) = self.claims.far(claim.id)
            && let Some(blocked) = self.look_far_behind(claim, prefix, own, far).await?
        {
            return Ok(Round::Done(Attempt::Blocked(blocked)));
        }
        let revision = known.and_then(|own| own.revision);
        let seconds = known.map_or(whole_seconds(claim.ttl), |own| own.seconds);
        let (lease, is_new) = match known {
            Some(own) => (own.lease, false),
            None => self.lease(seconds).await?,
        };
        let key = names::claim(prefix, lease.id);
        let limit = claim.mode.limit().map(|_| names::limit(prefix));
        let limit = limit.as_deref();
        let rank = match claim.beside {
            Some(hold) => self.claims.get(hold).and_then(|hold| hold.rank),
            None => known.and_then(|own| own.rank),
        };
        let value = value(claim, self.io.clock().wall(), rank);
        let sent_at = self.clocks();
        let is_fresh = is_new || lease.lasts(sent_at);
        let newest = self.newest();
        self.claims.begin(claim.id, lease, seconds);
        let (answer, alive) = self
            .members
            .ask(|link| {
                // A claim with a place only reads: a transaction that may put costs the servers a write.
                let request = match revision.filter(|_| takes_place) {
                    Some(own) if limit.is_some() => {
                        Ask::ReadBoth(requests::queue_and_limit(prefix, Some(own)))
                    }
                    Some(own) => Ask::Read(requests::queue_up_to(prefix, own)),
                    None => {
                        Ask::Put(requests::put(condition, prefix, &key, &value, lease.id, limit))
                    }
                };
                let (key, value) = (&key, &value);
                async move {
                    let queue = async {
                        match request {
                            Ask::Read(read) => {
                                link.range(read).await.map(requests::queue_in).map(Some)
                            }
                            Ask::ReadBoth(read) => {
                                let answer = link.txn(read).await.map_err(Failure::of_a_read);
                                answer.map(|it| requests::queue_of(it, key, value, 0, true))
                            }
                            Ask::Put(put) => {
                                let (answer, has) = (link.txn(put).await, limit.is_some());
                                answer.map(|it| requests::queue_of(it, key, value, lease.id, has))
                            }
                        }
                    };
                    let alive = async {
                        match is_fresh {
                            true => Ok(Some(lease.ttl + lease.spare)),
                            false => link.keep_alive(Purpose::Try, lease.id).await,
                        }
                    };
                    // In one flight; both answers are needed.
                    let (answer, alive) = tokio::join!(queue, alive);
                    match answer {
                        Ok(answer) => Ok((Ok(answer), alive)),
                        Err(gone) if gone.reaction == Reaction::LeaseGone => Ok((Err(gone), alive)),
                        Err(failure) => Err(failure),
                    }
                }
            })
            .await
            .map_err(|failure| self.failed(claim, lease, failure))?;
        let queue = match answer {
            Err(_) => {
                self.claims.forget(claim.id, lease.id);
                return Ok(Round::Again);
            }
            Ok(queue) => queue
                .ok_or_else(|| strange("a transaction"))?
                .without_what_is_over(self.io.clock().wall()),
        };
        let me = queue.find(&key);
        self.claims.answered(claim.id, lease.id, |own| {
            own.revision = me.and_then(|me| NonZeroI64::new(queue.places[me].revision));
            own.rank = me.map_or(own.rank, |me| NonZeroI64::new(queue.places[me].rank));
        });
        if queue.revision < newest {
            return Err(went_back(newest, queue.revision));
        }
        self.newest.fetch_max(queue.revision, Ordering::SeqCst);
        // Without the own place in it, the queue was read only up to that place: a limit may apply behind.
        if let Some(changed) = queue.idle_limit().filter(|_| me.is_some()) {
            let shared = self.clone();
            let prefix = prefix.to_vec();
            self.io.spawn(async move { shared.delete_limit(&prefix, changed).await });
        }
        // The transaction's effect is known; the lease's ttl must be, too.
        let ttl = match alive {
            Ok(Some(granted)) => lease.usable(granted),
            Ok(None) => {
                // A leader that is behind may say so of a lease that it will yet learn of.
                self.revoke(claim, lease.id).await.map_err(Failure::after_another)?;
                return Ok(Round::Again);
            }
            Err(failure) => {
                let nothing_was_put = me.is_none() && self.is_settled(claim);
                if nothing_was_put {
                    self.claims.forget(claim.id, lease.id);
                }
                let effect = if nothing_was_put { Effect::NotApplied } else { Effect::Unknown };
                return Err(error(failure).with_effect(effect));
            }
        };
        let alive_at = if is_fresh { lease.alive_at } else { sent_at };
        self.claims.alive(claim.id, lease.id, ttl, alive_at);
        let is_outdated = followed.is_some_and(|changed| queue.limit_changed != Some(changed));
        if is_outdated && revision.is_none() && me.is_some() {
            // The limit that it follows was changed before it took its place.
            self.withdraw(claim).await?;
            return Ok(Round::Again);
        }
        match me {
            Some(me) => self.in_queue(claim, &queue, me, prefix, ttl, takes_place).await,
            // A request without an answer made its place again, further behind.
            None if takes_place && revision.is_some() => Ok(Round::Again),
            None => self.beside(claim, queue, prefix, lease.id).await,
        }
    }

    /// Judges a claim that has a place.
    async fn in_queue(
        self: &Arc<Self>,
        claim: &Claim,
        queue: &Queue,
        me: usize,
        prefix: &[u8],
        ttl: Duration,
        takes_place: bool,
    ) -> Result<Round, BackendError> {
        let place = &queue.places[me];
        let own = self.claims.get(claim.id);
        if let Some(mismatch) = queue.clash(claim, me, own.is_some_and(|own| own.matches)) {
            self.withdraw(claim).await?;
            return Err(mismatch);
        }
        self.claims.matched(claim.id, place.lease);
        let is_held = own.is_some_and(|own| own.granted);
        if claim.beside.is_some() && !is_held {
            let seen = QueueView { queue, me, prefix, ttl };
            return Box::pin(self.replace(claim, seen, takes_place)).await;
        }
        let admission = if is_held { queue.admission(me) } else { queue.admission_of_waiter(me) };
        if admission == Admission::Granted {
            let token = place.revision as u64;
            self.holds(claim, place.lease, None);
            return Ok(Round::Done(Attempt::Granted(Grant::new(token, ttl))));
        }
        let blocked = queue.blocked(me, &admission, prefix.len());
        let blocked = Box::pin(self.until_it_opens(queue, blocked)).await;
        if takes_place {
            let far = queue.far(me, &admission, prefix.len(), &blocked);
            self.claims.set_far(claim.id, place.lease, far);
        } else {
            self.withdraw(claim).await?;
        }
        Ok(Round::Done(Attempt::Blocked(blocked)))
    }

    /// Judges a claim that has no place and does not want one unless it is the key.
    async fn beside(
        self: &Arc<Self>,
        claim: &Claim,
        queue: Queue,
        prefix: &[u8],
        lease: i64,
    ) -> Result<Round, BackendError> {
        let end = queue.places.len();
        let (clash, mut admission) =
            (queue.clash(claim, end, false), queue.admission_of_newcomer(claim.mode));
        let mut replaced = None;
        if let Some(hold) = claim.beside {
            replaced = refusal_of_newcomer(claim, hold, &queue);
            if replaced.is_none() {
                admission = queue.closed().unwrap_or(Admission::Granted);
            }
        }
        if clash.is_none() && replaced.is_none() && admission == Admission::Granted {
            return Ok(Round::Seen(queue));
        }
        // A request without answer may still put the key: then the release has to know of it.
        if self.is_settled(claim)
            && let Some(own) = self.claims.forget(claim.id, lease)
        {
            self.give_back(own);
        }
        let blocked = match (clash, replaced) {
            (Some(mismatch), _) => return Err(mismatch),
            (None, Some(refusal)) => refusal?,
            (None, None) => {
                let blocked = queue.blocked(end, &admission, prefix.len());
                Box::pin(self.until_it_opens(&queue, blocked)).await
            }
        };
        Ok(Round::Done(Attempt::Blocked(blocked)))
    }

    /// Whether no request of this claim is still under way.
    fn is_settled(&self, claim: &Claim) -> bool {
        self.claims.get(claim.id).is_some_and(|own| own.unsure == 0)
    }

    /// Takes the place of a claim back.
    pub(super) async fn withdraw(self: &Arc<Self>, claim: &Claim) -> Result<(), BackendError> {
        self.release_claim(claim).await.map(drop).map_err(Failure::after_another)
    }

    /// Notes what an error says of the claim.
    fn failed(&self, claim: &Claim, lease: Lease, failure: Failure) -> BackendError {
        if failure.error.effect == Effect::NotApplied {
            self.claims.answered(claim.id, lease.id, |_| {});
            let own = self.claims.get(claim.id);
            if own.is_some_and(|own| own.unsure == 0 && own.revision.is_none()) {
                self.claims.forget(claim.id, lease.id);
            }
        }
        error(failure)
    }
}
