//! Renewals: a keep-alive of each lease and a read of each key, in one round trip.
//!
//! A keep-alive alone proves nothing: etcd answers it while the keys of the lease are being
//! deleted, and the key may have been deleted by hand. And a leader that has just been elected may
//! say that there is no such lease before it has learned of it. So the key decides, as a majority
//! has it; the keys of many claims are read by one transaction.
//!
//! Each claim is judged by itself, when both its answers are there: keep-alives are served one by one,
//! and the last of many may come much later than the first.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use latchwork_store::kit::lineup::Admission;
use latchwork_store::{Answers, BackendError, BackendErrorKind, Claim, Effect, Renewal, Verb};

use crate::proto::KeyValue;
use crate::protocol::names;
use crate::protocol::pool::{Lease, Reading};
use crate::protocol::requests::{self, Freshness, MOST_OPS};
use crate::protocol::shared::Shared;
use crate::server::errors::{Failure, Reaction, error, strange, unsupported};
use crate::server::keep_alive::Purpose;
use crate::server::link::Link;

/// How many bytes of keys one transaction asks for, well below what a server takes.
const MOST_BYTES: usize = 256 << 10;

/// A place in the store that a claim is believed to have.
struct HeldClaim<'a> {
    /// Where the claim is in the list of those to be renewed.
    number: usize,
    claim: &'a Claim,
    key: Vec<u8>,
    revision: i64,
    lease: i64,
    /// What its server grants beyond what claims count on.
    spare: Duration,
    /// Another process was granted its lease, and may have given it to another claim: it is kept alive after a look.
    is_adopted: bool,
}

type Answer = Result<Renewal, BackendError>;

/// Claims whose keys are read by one transaction.
struct ReadBatch<'a> {
    held: &'a [&'a HeldClaim<'a>],
    sent_at: Reading,
    answers: &'a Answers,
    /// What is still to be reported of each.
    open: Mutex<Vec<Open>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    /// Both answers, or that there are none.
    Unknown,
    /// Its two answers contradict each other.
    Doubtful,
    Told,
}

impl ReadBatch<'_> {
    /// The claims of which this is to be reported.
    fn left(&self, such: Open) -> Vec<usize> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        (0..open.len()).filter(|n| open[*n] == such).collect()
    }

    fn doubt(&self, n: usize) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)[n] = Open::Doubtful;
    }

    fn tell(&self, n: usize, answer: Answer) {
        let open = &mut self.open.lock().unwrap_or_else(PoisonError::into_inner)[n];
        if std::mem::replace(open, Open::Told) == Open::Told {
            return; // lost, and then its keep-alive was answered
        }
        self.answers.say(self.held[n].number, answer);
    }
}

impl Shared {
    pub(crate) async fn renew(&self, claims: &[Claim], answers: &Answers) {
        let (mut known, mut others) = (Vec::new(), Vec::new());
        for (number, claim) in claims.iter().enumerate() {
            match self.known_place(number, claim) {
                Some(Ok(held)) => known.push(held),
                Some(Err(error)) => answers.say(number, Err(error)),
                None => others.push((number, claim)),
            }
        }
        let find = async {
            let places = others.iter().map(|(n, claim)| Box::pin(self.place_of(*n, claim)));
            let mut found = Vec::new();
            for ((number, _), place) in others.iter().zip(join_all(places).await) {
                match place {
                    Ok(Some(held)) => found.push(held),
                    Ok(None) => answers.say(*number, Ok(Renewal::Lost)),
                    Err(error) => answers.say(*number, Err(error)),
                }
            }
            self.keep_all(&found, answers).await;
        };
        tokio::join!(self.keep_all(&known, answers), find);
    }

    async fn keep_all(&self, held: &[HeldClaim<'_>], answers: &Answers) {
        let held: Vec<_> = held.iter().collect();
        let batches = batches(&held).into_iter().map(|batch| self.keep(batch, answers));
        join_all(batches).await;
    }

    /// Where a claim is that was granted to this client, as far as it knows.
    fn known_place<'a>(
        &self,
        number: usize,
        claim: &'a Claim,
    ) -> Option<Result<HeldClaim<'a>, BackendError>> {
        let own = self.claims.get(claim.id).filter(|own| own.granted)?;
        let Lease { id, spare, .. } = own.lease;
        let key = names::claim(&names::queue(&claim.key), id);
        Some(held_at(HeldClaim {
            number,
            claim,
            key,
            revision: own.revision?.get(),
            lease: id,
            spare,
            is_adopted: own.is_adopted,
        }))
    }

    /// Where the store has a claim; `None` if it does not hold its key.
    async fn place_of<'a>(
        &self,
        number: usize,
        claim: &'a Claim,
    ) -> Result<Option<HeldClaim<'a>>, BackendError> {
        let prefix = names::queue(&claim.key);
        let queue = self.queue(&prefix).await?;
        let Some(place) = queue.find_claim(claim.id) else { return Ok(None) };
        let me = queue.find(&place.key);
        if me.is_none_or(|me| queue.admission(me) != Admission::Granted) {
            return Ok(None);
        }
        let (key, revision, id) = (place.key.clone(), place.revision, place.lease);
        let rank = place.rank;
        // It was there a moment ago, and another process may have released it since.
        let (spare, is_adopted) = (Duration::ZERO, true);
        let held = HeldClaim { number, claim, key, revision, lease: id, spare, is_adopted };
        let held = held_at(held)?;
        let lease = Lease { id, ttl: claim.ttl, spare, alive_at: self.clocks() };
        self.claims.adopt(claim.id, lease, revision, rank);
        Ok(Some(held))
    }

    /// Renews claims by one transaction, or by smaller ones if the server refuses this one: it may
    /// take fewer operations, and one key that this user may not read spoils it for all.
    fn keep<'a>(&'a self, held: &'a [&'a HeldClaim<'a>], answers: &'a Answers) -> Verb<'a, ()> {
        Box::pin(async move {
            let open = Mutex::new(vec![Open::Unknown; held.len()]);
            let flight = ReadBatch { held, sent_at: self.clocks(), answers, open };
            let asked = self.members.ask(|link| self.ask_for_all(link, &flight)).await;
            self.look_again(&flight).await;
            let Err(failure) = asked else { return };
            let left: Vec<_> = flight.left(Open::Unknown);
            let is_refused = failure.reaction == Reaction::NoRight
                || failure.error.kind == BackendErrorKind::Invalid;
            if is_refused && left.len() > 1 {
                let left: Vec<_> = left.into_iter().map(|n| held[n]).collect();
                let (some, others) = left.split_at(left.len() / 2);
                tokio::join!(self.keep(some, answers), self.keep(others, answers));
                return;
            }
            // A lease may have been kept alive all the same.
            let unknown = error(failure).with_effect(Effect::Unknown);
            left.into_iter().for_each(|n| flight.tell(n, Err(unknown.clone())));
        })
    }

    /// Reads the keys of those that are open and keeps their leases alive, in the same flight; leases that another
    /// process was granted, if the keys are there.
    async fn ask_for_all(
        &self,
        link: std::sync::Arc<Link>,
        flight: &ReadBatch<'_>,
    ) -> Result<(), Failure> {
        let ReadBatch { held, .. } = *flight;
        let asked = flight.left(Open::Unknown);
        let keys = asked.iter().map(|n| &*held[*n].key);
        let mut reads = std::pin::pin!(link.txn(requests::glance(keys, Freshness::OfAll)));
        let keep = |at: usize| {
            let asks = link.keep_alive(Purpose::Renew, held[asked[at]].lease);
            async move { (at, asks.await) }
        };
        let own = (0..asked.len()).filter(|at| !held[asked[*at]].is_adopted);
        let mut keeps: FuturesUnordered<_> = own.map(keep).collect();
        let mut kept: Vec<_> = asked.iter().map(|_| None).collect();
        let mut keys = None;
        let mut failed = None;
        loop {
            let ready: Vec<_> = tokio::select! {
                found = &mut reads, if keys.is_none() => {
                    let found = found.map_err(Failure::of_a_read)?;
                    let found: Vec<_> = requests::found(found).collect();
                    let adopted = (0..asked.len()).filter(|at| {
                        let (held, key) = (held[asked[*at]], found.get(*at));
                        held.is_adopted && key.is_some_and(|key| is_there(held, key.as_ref()))
                    });
                    keeps.extend(adopted.map(keep));
                    keys = Some(found);
                    (0..asked.len()).collect()
                }
                Some((at, alive)) = keeps.next() => {
                    kept[at] = Some(alive);
                    vec![at]
                }
                else => break,
            };
            let Some(found) = &keys else { continue };
            for at in ready {
                let (n, key) = (asked[at], found.get(at));
                // Without its key the claim is lost, whatever becomes of the lease.
                if key.is_some_and(|key| !is_there(held[n], key.as_ref())) {
                    self.judge(flight, n, key, None);
                    continue;
                }
                match kept[at].take() {
                    None => {}
                    Some(Ok(alive)) => self.judge(flight, n, key, alive),
                    // The next member may do better.
                    Some(Err(failure))
                        if matches!(
                            failure.reaction,
                            Reaction::Elsewhere | Reaction::LogIn | Reaction::NoLogin
                        ) =>
                    {
                        failed = Some(failure.of_a_read());
                    }
                    Some(Err(failure)) => flight.tell(n, Err(error(failure))),
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Tells what both answers say of a claim.
    fn judge(
        &self,
        flight: &ReadBatch<'_>,
        n: usize,
        found: Option<&Option<KeyValue>>,
        alive: Option<Duration>,
    ) {
        match verdict(flight.held[n], found, alive) {
            Some(answer) => self.tell(flight, n, answer),
            None => flight.doubt(n),
        }
    }

    /// Looks at the keys once more whose leases the leader did not know.
    async fn look_again(&self, flight: &ReadBatch<'_>) {
        let asked = flight.left(Open::Doubtful);
        if asked.is_empty() {
            return;
        }
        let found = self.members.ask(|link| {
            let keys = asked.iter().map(|n| &*flight.held[*n].key);
            let read = requests::glance(keys, Freshness::OfAll);
            async move { link.txn(read).await.map_err(Failure::of_a_read) }
        });
        let found = found.await.map(|found| requests::found(found).collect::<Vec<_>>());
        for (at, n) in asked.into_iter().enumerate() {
            let found = found.as_ref().map(|found| found.get(at)).map_err(Failure::clone);
            self.tell(flight, n, second_verdict(flight.held[n], found));
        }
    }

    fn tell(&self, flight: &ReadBatch<'_>, n: usize, answer: Answer) {
        let held = flight.held[n];
        match &answer {
            Ok(Renewal::Held { ttl, .. }) => {
                self.claims.alive(held.claim.id, held.lease, *ttl, flight.sent_at);
            }
            // Nobody will ask for it again.
            Ok(Renewal::Lost) => drop(self.claims.forget(held.claim.id, held.lease)),
            Err(_) => {}
        }
        flight.tell(n, answer);
    }
}

fn held_at(held: HeldClaim<'_>) -> Result<HeldClaim<'_>, BackendError> {
    match held.claim.floor > held.revision as u64 {
        true => {
            Err(unsupported("etcd does not support token floors inside a claim; use `token_floor`"))
        }
        false => Ok(held),
    }
}

/// What both answers say; `None` if they contradict each other.
fn verdict(
    held: &HeldClaim<'_>,
    found: Option<&Option<KeyValue>>,
    alive: Option<Duration>,
) -> Option<Answer> {
    let Some(found) = found else { return Some(Err(strange("a transaction"))) };
    let token = held.revision as u64;
    match (is_there(held, found.as_ref()), alive) {
        (false, _) => Some(Ok(Renewal::Lost)),
        (true, Some(granted)) => {
            let ttl = granted.saturating_sub(held.spare);
            Some(Ok(Renewal::held(ttl, token, None)))
        }
        // The read may be the older of the two.
        (true, None) => None,
    }
}

/// What a look says that was sent when the leader had said that there is no such lease: if that was
/// true, the keys of the lease are gone.
fn second_verdict(
    held: &HeldClaim<'_>,
    found: Result<Option<&Option<KeyValue>>, Failure>,
) -> Answer {
    match found.map_err(error)? {
        None => Err(strange("a transaction")),
        Some(found) if is_there(held, found.as_ref()) => {
            let message = "a member does not know the lease although its key exists";
            Err(BackendError::new(BackendErrorKind::Unreachable, Effect::Unknown, message))
        }
        Some(_) => Ok(Renewal::Lost),
    }
}

/// Whether this is the key that was created for the claim, and has not been put under another lease
/// since, which closes it. A claim's key is put once. Since 3.7, a read of keys alone does not say
/// under which lease they are.
fn is_there(held: &HeldClaim<'_>, found: Option<&KeyValue>) -> bool {
    let is_it = |key: &KeyValue| [key.create_revision, key.mod_revision] == [held.revision; 2];
    found.is_some_and(is_it)
}

/// Cuts a list so that no part is too large for one transaction.
fn batches<'a>(all: &'a [&'a HeldClaim<'a>]) -> Vec<&'a [&'a HeldClaim<'a>]> {
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

    /// As a read of keys alone finds it: since 3.7 without its lease.
    fn key(create_revision: i64, mod_revision: i64) -> Option<KeyValue> {
        Some(KeyValue { create_revision, mod_revision, ..KeyValue::default() })
    }

    #[test]
    fn an_unknown_lease_with_a_live_key_is_checked_again() {
        let claim = latchwork_store::testing::claim("k");
        let held = HeldClaim {
            number: 0,
            claim: &claim,
            key: b"k/5".to_vec(),
            revision: 7,
            lease: 5,
            spare: Duration::ZERO,
            is_adopted: false,
        };
        let lost = |answer| matches!(answer, Ok(Renewal::Lost));
        let first = verdict(&held, Some(&key(7, 7)), Some(TTL)).unwrap().unwrap();
        assert_eq!(first, Renewal::held(TTL, 7, None));
        // Gone, created again, or closed under another lease: whatever the keep-alive says.
        for found in [None, key(8, 8), key(7, 9)] {
            assert!(lost(verdict(&held, Some(&found), Some(TTL)).unwrap()));
            assert!(lost(verdict(&held, Some(&found), None).unwrap()));
            assert!(lost(second_verdict(&held, Ok(Some(&found)))));
        }
        assert!(verdict(&held, Some(&key(7, 7)), None).is_none(), "they contradict each other");
        let unknown = second_verdict(&held, Ok(Some(&key(7, 7)))).unwrap_err();
        assert_eq!(unknown.kind, BackendErrorKind::Unreachable);
        assert!(verdict(&held, None, Some(TTL)).unwrap().is_err(), "not even asked");
    }

    #[test]
    fn no_transaction_is_too_large() {
        let claim = latchwork_store::testing::claim("k");
        let held = |bytes| HeldClaim {
            number: 0,
            claim: &claim,
            key: vec![b'k'; bytes],
            revision: 7,
            lease: 5,
            spare: Duration::ZERO,
            is_adopted: false,
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
