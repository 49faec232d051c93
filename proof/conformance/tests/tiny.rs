//! The store of `docs/writing-a-backend.md`, as it stands there.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use latchwork_conformance::{Client, Expected, Harness, Store, Time};
use latchwork_store::kit::record::{Now, Record, Wakeup};
use latchwork_store::*;
use tokio::sync::Notify;

/// One client of the store. A second client is a second value over the same `Shelf`.
#[derive(Debug)]
struct Tiny {
    shelf: Arc<Mutex<Shelf>>,
    io: Io,
}

#[derive(Debug)]
struct Shelf {
    entries: HashMap<Key, Entry>,
    /// The largest token of the records that were dropped.
    base: u64,
}

#[derive(Debug, Default)]
struct Entry {
    record: Record,
    /// Where the wake-up of a claim waits for its owner.
    seats: HashMap<ClaimId, Arc<Notify>>,
}

impl Tiny {
    fn beside(&self, io: Io) -> Self {
        Self { shelf: self.shelf.clone(), io }
    }

    fn lock(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Now {
        let lease = self.io.now().since(Moment::from_nanos(0));
        Now { lease, wall: self.io.clock().wall() }
    }

    fn change<T>(
        &self,
        claim: &Claim,
        judge: impl FnOnce(&mut Record, u64, Now) -> (T, Vec<Wakeup>),
    ) -> T {
        let mut shelf = self.lock();
        let (now, base) = (self.now(), shelf.base);
        let Entry { record, seats } = shelf.entries.entry(claim.key.clone()).or_default();
        let (answer, wakeups) = judge(record, base, now);
        // A blocked claim has its seat before its try is answered (B7).
        seats.retain(|id, _| record.queue.iter().any(|waiter| waiter.id == *id));
        if record.queue.iter().any(|waiter| waiter.id == claim.id) {
            seats.entry(claim.id).or_default();
        }
        for wakeup in wakeups.iter().filter(|wakeup| wakeup.admissible) {
            if let Some(seat) = seats.get(&wakeup.id) {
                seat.notify_one(); // stays in the seat until its owner waits
            }
        }
        if record.is_idle(now) {
            let token = record.token;
            shelf.entries.remove(&claim.key);
            shelf.base = shelf.base.max(token);
        }
        answer
    }
}

impl Backend for Tiny {
    fn capabilities(&self) -> Capabilities {
        // The address is for messages; never with a password in it.
        Capabilities::full("tiny:").with_fencing(Fencing::WhileDataSurvives).with_ttl(
            Duration::from_millis(1)..=Duration::from_secs(3_600),
            Duration::from_secs(30),
        )
    }

    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> Verb<'a, Result<Attempt, BackendError>> {
        Box::pin(async move {
            self.change(claim, |record, base, now| {
                record.try_acquire(claim, 0, base, now, &|_| true)
            })
        })
    }

    fn wait<'a>(
        &'a self,
        claim: &'a Claim,
        _blocked: &'a Blocked,
    ) -> Verb<'a, Result<Wake, BackendError>> {
        Box::pin(async move {
            let seat = self.lock().entries.get(&claim.key).and_then(|entry| {
                entry.seats.get(&claim.id).cloned() // not locked while waiting
            });
            match seat {
                Some(seat) => seat.notified().await,
                // No place, so no wake-up can reach it. The engine checks by its own timers.
                None if !claim.waits => std::future::pending().await,
                // The place has ended: the client must try again.
                None => {}
            }
            Ok(Wake::Look)
        })
    }

    fn renew_all<'a>(
        &'a self,
        claims: &'a [Claim],
    ) -> Verb<'a, Vec<Result<Renewal, BackendError>>> {
        Box::pin(async move {
            let renew = |claim: &Claim| {
                Ok(self.change(claim, |record, _, now| record.renew(claim, now, &|_| true)))
            };
            claims.iter().map(renew).collect()
        })
    }

    fn release<'a>(
        &'a self,
        claim: &'a Claim,
        linger: Linger,
    ) -> Verb<'a, Result<Released, BackendError>> {
        Box::pin(async move {
            Ok(self.change(claim, |record, _, now| record.release(claim, linger, now, &|_| true)))
        })
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> Verb<'a, Result<Vec<Snapshot>, BackendError>> {
        Box::pin(async move {
            let (shelf, now) = (self.lock(), self.now());
            let show =
                |key: &Key, entry: &Entry| entry.record.snapshot(key.clone(), now, &|_| true);
            Ok(match query {
                Query::Key(key) => vec![match shelf.entries.get(key) {
                    Some(entry) => show(key, entry),
                    None => Snapshot::free(key.clone()),
                }],
                Query::Prefix(prefix) => {
                    let all =
                        shelf.entries.iter().filter(|(k, _)| k.as_str().starts_with(&**prefix));
                    let mut found: Vec<_> = all.map(|(key, entry)| show(key, entry)).collect();
                    found.retain(|snapshot| !snapshot.is_free());
                    found.sort_by(|a, b| a.key.cmp(&b.key));
                    found
                }
            })
        })
    }
}

struct Suite;

impl Harness for Suite {
    fn expected(&self) -> Expected {
        Expected {
            fencing: Fencing::WhileDataSurvives,
            mixed_limits: false,
            resize: false,
            watch: false,
            ..Expected::EVERYTHING
        }
    }

    /// All time comes from `Io`, so the trials run on a paused clock: hours in milliseconds.
    /// A real server needs `Time::Real`.
    fn time(&self) -> Time {
        Time::Paused
    }

    fn fresh<'a>(&'a self, io: &'a Io) -> Verb<'a, Store> {
        let base = io.clock().wall().as_micros() as u64;
        let shelf = Shelf { entries: HashMap::new(), base };
        let first = Tiny { shelf: Arc::new(Mutex::new(shelf)), io: io.clone() };
        Box::pin(async move {
            Store::new(move |io| std::future::ready(Client::new(Arc::new(first.beside(io)))))
        })
    }
}

fn main() {
    latchwork_conformance::main("tiny", Suite);
}
