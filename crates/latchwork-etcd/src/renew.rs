//! Renewals: a keep-alive of each lease and a look at each key, in one flight.
//!
//! A keep-alive alone proves nothing: etcd answers it while the keys of the lease are being
//! deleted, and the key may have been deleted by hand. And a leader that has just been elected may
//! say that there is no such lease before it has learned of it. So the key decides, as a majority
//! has it; the keys of many claims are read by one transaction.

use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use latchwork_core::kit::lineup::Admission;
use latchwork_core::{BackendError, BackendErrorKind, Claim, Effect, Renewal, Verb};

use crate::backend::Shared;
use crate::errors::{Failure, Reaction, strange, unsupported};
use crate::keep_alive::Lane;
use crate::members::error;
use crate::names;
use crate::pool::{Lease, Reading};
use crate::proto::KeyValue;
use crate::requests::{self, Freshness, MOST_OPS};

/// How many bytes of keys one transaction asks for, well below what a server takes.
const MOST_BYTES: usize = 256 << 10;

/// A place in the store that a claim is believed to have.
struct Held<'a> {
    claim: &'a Claim,
    key: Vec<u8>,
    revision: i64,
    lease: i64,
    /// What its server grants beyond what claims count on.
    spare: Duration,
}

type Answer = Result<Renewal, BackendError>;

impl Shared {
    pub(crate) async fn renew(&self, claims: &[Claim]) -> Vec<Answer> {
        let held = join_all(claims.iter().map(|claim| Box::pin(self.place_of(claim)))).await;
        let known: Vec<_> = held.iter().filter_map(|held| held.as_ref().ok()?.as_ref()).collect();
        let batches = batches(&known).into_iter().map(|batch| self.keep(batch));
        let mut kept = join_all(batches).await.into_iter().flatten();
        let answer = |held: &Result<Option<Held<'_>>, BackendError>| match held {
            Ok(Some(_)) => kept.next().unwrap_or_else(|| Err(strange("a renewal"))),
            Ok(None) => Ok(Renewal::Lost),
            Err(error) => Err(error.clone()),
        };
        held.iter().map(answer).collect()
    }

    /// Where a claim is to be found; `None` if it does not hold its key.
    async fn place_of<'a>(&self, claim: &'a Claim) -> Result<Option<Held<'a>>, BackendError> {
        let prefix = names::line(&claim.key);
        let at = |key, revision: i64, lease, spare| match claim.floor > revision as u64 {
            true => Err(unsupported("etcd cannot lift its revision to a floor")),
            false => Ok(Some(Held { claim, key, revision, lease, spare })),
        };
        if let Some(own) = self.claims.get(claim.id)
            && own.granted
            && let Some(revision) = own.revision
        {
            let Lease { id, spare, .. } = own.lease;
            return at(names::claim(&prefix, id), revision.get(), id, spare);
        }
        // Not granted to this client, as far as it knows: the store knows better.
        let answer = self.members.ask(|link| {
            let request = requests::line(&prefix);
            async move { link.range(request).await }
        });
        let line = requests::line_in(answer.await.map_err(error)?);
        let Some(place) = line.find_claim(claim.id) else { return Ok(None) };
        let me = line.find(&place.key);
        if me.is_none_or(|me| line.admission(me) != Admission::Granted) {
            return Ok(None);
        }
        at(place.key.clone(), place.revision, place.lease, Duration::ZERO)
    }

    /// Renews claims by one transaction, or by smaller ones if the server refuses this one: it may
    /// take fewer operations, and one key that this user may not read spoils it for all.
    fn keep<'a>(&'a self, held: &'a [&'a Held<'a>]) -> Verb<'a, Vec<Answer>> {
        Box::pin(async move {
            let sent_at = self.clocks();
            let failure = match self.glance(held, true).await {
                Ok((found, alive)) => return self.judge(held, found, &alive, sent_at).await,
                Err(failure) => failure,
            };
            let is_refused = failure.reaction == Reaction::NoRight
                || failure.error.kind == BackendErrorKind::Invalid;
            if is_refused && held.len() > 1 {
                let (some, others) = held.split_at(held.len() / 2);
                let (mut some, others) = tokio::join!(self.keep(some), self.keep(others));
                some.extend(others);
                return some;
            }
            // A lease may have been kept alive all the same.
            let unknown = BackendError { effect: Effect::Unknown, ..error(failure) };
            held.iter().map(|_| Err(unknown.clone())).collect()
        })
    }

    /// Reads the keys and, if so told, keeps their leases alive in the same flight.
    async fn glance(
        &self,
        held: &[&Held<'_>],
        renew: bool,
    ) -> Result<(Vec<Option<KeyValue>>, Vec<Option<Duration>>), Failure> {
        let leases = if renew { held } else { &[] };
        self.members
            .ask(|link| async move {
                let keys = requests::glance(held.iter().map(|held| &*held.key), Freshness::OfAll);
                let alive = leases.iter().map(|held| link.keep_alive(Lane::Renew, held.lease));
                // Whatever became of a keep-alive, another one does no harm.
                let (found, alive) = tokio::try_join!(link.txn(keys), try_join_all(alive))
                    .map_err(Failure::of_a_read)?;
                Ok((requests::found(found).collect(), alive))
            })
            .await
    }

    async fn judge(
        &self,
        held: &[&Held<'_>],
        found: Vec<Option<KeyValue>>,
        alive: &[Option<Duration>],
        sent_at: Reading,
    ) -> Vec<Answer> {
        let mut answers: Vec<_> = (0..held.len())
            .map(|n| verdict(held[n], found.get(n), alive.get(n).copied().flatten()))
            .collect();
        let in_doubt: Vec<_> = (0..held.len()).filter(|n| answers[*n].is_none()).collect();
        if !in_doubt.is_empty() {
            let again: Vec<_> = in_doubt.iter().map(|n| held[*n]).collect();
            let found = self.glance(&again, false).await;
            for (at, n) in in_doubt.into_iter().enumerate() {
                let found = found.as_ref().map(|(found, _)| found.get(at));
                answers[n] = Some(second_verdict(held[n], found.map_err(Failure::clone)));
            }
        }
        for (held, answer) in held.iter().zip(&answers) {
            match answer {
                Some(Ok(Renewal::Held { ttl, .. })) => {
                    self.claims.alive(held.claim.id, held.lease, *ttl, sent_at);
                }
                // Nobody will ask for it again.
                Some(Ok(Renewal::Lost)) => drop(self.claims.forget(held.claim.id, held.lease)),
                _ => {}
            }
        }
        answers.into_iter().map(|a| a.unwrap_or_else(|| Err(strange("a renewal")))).collect()
    }
}

/// What both answers say; `None` if they contradict each other.
fn verdict(
    held: &Held<'_>,
    found: Option<&Option<KeyValue>>,
    alive: Option<Duration>,
) -> Option<Answer> {
    let Some(found) = found else { return Some(Err(strange("a transaction"))) };
    let token = held.revision as u64;
    match (is_there(held, found.as_ref()), alive) {
        (false, _) => Some(Ok(Renewal::Lost)),
        (true, Some(granted)) => {
            let ttl = granted.saturating_sub(held.spare);
            Some(Ok(Renewal::Held { ttl, token, store_time: None }))
        }
        // The read may be the older of the two.
        (true, None) => None,
    }
}

/// What a look says that was sent when the leader had said that there is no such lease: if that was
/// true, the keys of the lease are gone.
fn second_verdict(held: &Held<'_>, found: Result<Option<&Option<KeyValue>>, Failure>) -> Answer {
    match found.map_err(error)? {
        None => Err(strange("a transaction")),
        Some(found) if is_there(held, found.as_ref()) => {
            let message = "a member does not know the lease, though its key is there";
            Err(BackendError::new(BackendErrorKind::Unreachable, Effect::Unknown, message))
        }
        Some(_) => Ok(Renewal::Lost),
    }
}

/// Whether this is the key that was created for the claim, under the lease of the claim.
fn is_there(held: &Held<'_>, found: Option<&KeyValue>) -> bool {
    found.is_some_and(|key| key.create_revision == held.revision && key.lease == held.lease)
}

/// Cuts a list so that no part is too large for one transaction.
fn batches<'a>(all: &'a [&'a Held<'a>]) -> Vec<&'a [&'a Held<'a>]> {
    let (mut batches, mut from, mut bytes) = (Vec::new(), 0, 0);
    for (n, held) in all.iter().enumerate() {
        bytes += held.key.len();
        if n > from && (n - from == MOST_OPS || bytes > MOST_BYTES) {
            batches.push(&all[from..n]);
            (from, bytes) = (n, held.key.len());
        }
    }
    if from < all.len() {
        batches.push(&all[from..]);
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(9);

    fn key(create_revision: i64, lease: i64) -> Option<KeyValue> {
        Some(KeyValue { create_revision, lease, ..KeyValue::default() })
    }

    #[test]
    fn the_key_decides_and_a_lease_that_is_not_known_asks_for_a_second_look() {
        let claim = latchwork_core::testing::claim("k");
        let held = Held {
            claim: &claim,
            key: b"k/5".to_vec(),
            revision: 7,
            lease: 5,
            spare: Duration::ZERO,
        };
        let lost = |answer| matches!(answer, Ok(Renewal::Lost));
        let first = verdict(&held, Some(&key(7, 5)), Some(TTL)).unwrap().unwrap();
        assert_eq!(first, Renewal::Held { ttl: TTL, token: 7, store_time: None });
        // Gone, created anew, or closed under another lease: whatever the keep-alive says.
        for found in [None, key(8, 5), key(7, 6)] {
            assert!(lost(verdict(&held, Some(&found), Some(TTL)).unwrap()));
            assert!(lost(verdict(&held, Some(&found), None).unwrap()));
            assert!(lost(second_verdict(&held, Ok(Some(&found)))));
        }
        assert!(verdict(&held, Some(&key(7, 5)), None).is_none(), "they contradict each other");
        let unknown = second_verdict(&held, Ok(Some(&key(7, 5)))).unwrap_err();
        assert_eq!(unknown.kind, BackendErrorKind::Unreachable);
        assert!(verdict(&held, None, Some(TTL)).unwrap().is_err(), "not even asked");
    }

    #[test]
    fn no_transaction_is_too_large() {
        let claim = latchwork_core::testing::claim("k");
        let held = |bytes| Held {
            claim: &claim,
            key: vec![b'k'; bytes],
            revision: 7,
            lease: 5,
            spare: Duration::ZERO,
        };
        let sizes = |of: &[usize]| {
            let all: Vec<_> = of.iter().map(|bytes| held(*bytes)).collect();
            let all: Vec<_> = all.iter().collect();
            batches(&all).into_iter().map(<[_]>::len).collect::<Vec<_>>()
        };
        assert_eq!(sizes(&[]), [0; 0]);
        assert_eq!(sizes(&[10; 128]), [128]);
        assert_eq!(sizes(&[10; 300]), [128, 128, 44]);
        assert_eq!(sizes(&[100_000; 5]), [2, 2, 1]);
        assert_eq!(sizes(&[MOST_BYTES + 1, 1, MOST_BYTES]), [1, 1, 1]);
    }
}
