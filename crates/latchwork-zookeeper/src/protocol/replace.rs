//! The try of a claim that is to replace a hold (B16).
//!
//! Its node is at the end of the queue, and names the hold. The nodes of the waiters between are deleted
//! by transactions that check the hold and the first of them, so that no node is deleted that holds the
//! key. A waiter finds its node gone and makes another one. Curator names its nodes as we do, so the data
//! tells whose they are.

use latchwork_store::kit::lineup::Admission;
use latchwork_store::kit::record::cannot_replace;
use latchwork_store::kit::replace::Verdict;
use latchwork_store::{BackendError, Blocked, Cause, Claim, Effect, Mode};

use crate::protocol::acquire::{Found, data_in};
use crate::protocol::answers::{pulse_in, queue_in};
use crate::protocol::queue::{Queue, Told};
use crate::protocol::shared::Shared;
use crate::server::errors::{refused, restless, strange};
use crate::server::session::messages::{self, Refusal, Request};

/// How often the queue is read again because it has changed on the way.
const ROUNDS: u32 = 16;
/// As many nodes are deleted by one transaction.
const MOST: usize = 200;

/// Why a claim leaves nothing in the queue.
type Leaves = Result<Blocked, BackendError>;

impl Shared {
    /// Deletes the nodes of the waiters ahead of a claim that has one; the queue is then as it is without
    /// them. Returns the answer if the claim leaves nothing, and has withdrawn it.
    pub(super) async fn overtake(
        &self,
        claim: &Claim,
        found: &mut Found<'_>,
    ) -> Result<Option<Leaves>, BackendError> {
        for _ in 0..ROUNDS {
            let Some(me) = found.queue.find(&found.node.name) else { return Ok(None) };
            let verdict = match found.queue.replacing(me) {
                Verdict::Overtakes(first) if self.is_to_wait(claim, found, first) => {
                    return Ok(None);
                }
                Verdict::Overtakes(first) => match self.remove(found, first, me).await? {
                    Removal::Done => {
                        found.queue.places.drain(first..me);
                        return Ok(None);
                    }
                    Removal::Stuck(place) => Verdict::Stuck(place),
                    Removal::Changed => {
                        self.read_again(found).await?;
                        continue;
                    }
                },
                verdict => verdict,
            };
            // A hold that is there is held: what stands ahead of it is a place that this server alone has, or one whose
            // order is unknown.
            let is_held =
                verdict == Verdict::Gone && self.has_granted(found.queue.hold_of(me), found);
            let cause = cause_of(verdict).filter(|_| !is_held);
            let Some(cause) = cause else { return Ok(None) };
            let by = match verdict {
                Verdict::Rival(place) | Verdict::Stuck(place) | Verdict::Earlier(place) => {
                    found.queue.places.get(place)
                }
                _ => None,
            };
            let path = |name: &str| format!("{}/{name}", found.lock);
            let delete = Request::delete(&path(&found.node.name));
            let get = by.map(|place| Request::get(&path(&place.name)));
            let requests = [delete].into_iter().chain(get).collect();
            let mut landed = self.withdraw(claim, found.session, requests).await?;
            let told = by.and_then(|_| data_in(&mut landed)).map(|data| Told::read(&data));
            return Ok(Some(match verdict {
                Verdict::Mismatch(held) => Err(cannot_replace(held.word(), claim.mode)),
                _ => Ok(Blocked::by(cause).with(|it| it.holder = told.map(|told| told.holder))),
            }));
        }
        Err(restless())
    }

    /// Whether the waiters from `first` on stay: a single try removes none if others read, and a closed key
    /// is not granted.
    fn is_to_wait(&self, claim: &Claim, found: &Found<'_>, first: usize) -> bool {
        let others_read = claim.mode == Mode::Write && first > 1;
        !claim.waits && others_read || found.queue.closed_until(found.now_ms).is_some()
    }

    /// Whether the claim at this place holds the key, as the store has answered this client.
    fn has_granted(&self, place: Option<usize>, found: &Found<'_>) -> bool {
        let id = place.and_then(|place| found.queue.places[place].id());
        id.and_then(|id| self.claims.get(id)).is_some_and(|own| own.granted && !own.ends)
    }

    async fn read_again(&self, found: &mut Found<'_>) -> Result<(), BackendError> {
        let up = found.session.up().await?;
        let requests = vec![Request::set(&up.pulse), Request::children(found.lock)];
        let mut landed = found.session.fly(requests).await;
        found.now_ms = pulse_in(&mut landed, &up.pulse)?;
        found.queue = queue_in(&mut landed, found.lock, Some(&found.node.name))?;
        Ok(())
    }

    /// Deletes the nodes from `first` to that at `me`, all of waiters.
    async fn remove(
        &self,
        found: &Found<'_>,
        first: usize,
        me: usize,
    ) -> Result<Removal, BackendError> {
        let Some(hold) = found.queue.hold_of(me) else { return Ok(Removal::Changed) };
        let path = |place: usize| format!("{}/{}", found.lock, found.queue.places[place].name);
        for place in (first..me).step_by(MOST) {
            let places = place..me.min(place + MOST);
            let gets = places.clone().map(|place| Request::get(&path(place))).collect();
            let mut landed = found.session.fly(gets).await;
            for place in places {
                match landed.next()? {
                    Ok(body) => {
                        let (data, _) = messages::data(&body).ok_or_else(|| strange("a read"))?;
                        if !Told::read(&data).is_ours() {
                            return Ok(Removal::Stuck(place));
                        }
                    }
                    Err(Refusal::NO_NODE) => return Ok(Removal::Changed),
                    Err(refusal) => return Err(refused(refusal, &path(place))),
                }
            }
        }
        // The last ones first: while the first is there, the others wait.
        let mut end = me;
        while end > first {
            let from = first.max(end.saturating_sub(MOST));
            let checks = [hold, first, me].map(|place| Request::check(&path(place)));
            let deletes = (from..end).map(|place| Request::delete(&path(place)));
            let requests: Vec<_> = checks.into_iter().chain(deletes).collect();
            let unsure = |error: BackendError| error.with_effect(Effect::Unknown);
            let removal = found.session.fly(vec![Request::together(&requests)]).await.next();
            let body = match removal.map_err(unsure)? {
                Ok(body) => body,
                Err(refusal) => return Err(unsure(refused(refusal, found.lock))),
            };
            match messages::together(&body).ok_or_else(|| strange("a transaction"))? {
                Ok(()) => end = from,
                Err(Refusal::NO_NODE) => return Ok(Removal::Changed),
                Err(refusal) => return Err(unsure(refused(refusal, found.lock))),
            }
        }
        Ok(Removal::Done)
    }
}

/// The result of a removal of waiters.
enum Removal {
    Done,
    /// Something has left meanwhile.
    Changed,
    /// The node at this place is of a client of another kind.
    Stuck(usize),
}

/// How a claim that leaves nothing is answered; `None` for one that stays. The cause of a mismatch does
/// not matter.
fn cause_of(verdict: Verdict) -> Option<Cause> {
    match verdict {
        Verdict::Gone => Some(Cause::Gone),
        Verdict::Rival(_) => Some(Cause::Upgrade),
        Verdict::Stuck(_) => Some(Cause::Foreign),
        Verdict::Earlier(_) => Some(Cause::Earlier),
        Verdict::Mismatch(_) => Some(Cause::Held),
        Verdict::Granted | Verdict::Behind(_) | Verdict::Overtakes(_) => None,
    }
}

/// The judgement of a claim at `me` that replaces a hold, and the place to name as that which is in its way.
pub(super) fn beside(queue: &Queue, me: usize) -> (Admission, usize) {
    let hold = queue.hold_of(me);
    let other = match queue.replacing(me) {
        Verdict::Granted => return (Admission::Granted, 0),
        Verdict::Behind(other) => other,
        // Other readers hold the key.
        _ => (0..me).find(|place| Some(*place) != hold).unwrap_or(0),
    };
    (Admission::BehindAny([other].into_iter().chain(hold).collect()), other)
}
