//! A store in the memory of this process: for tests, for one process, and to learn from.
//!
//! It is the example for authors of backends. A store that can read, change and write one value
//! atomically needs only what is here:
//!
//! 1. `change` makes each verb atomic (B1): it takes the record of a key, lets the pure
//!    [`Record`] judge, and writes it back. Rules about claims, order and tokens are all there.
//! 2. The time comes from the [`Io`] and is read inside the atomic step, so that no record sees
//!    time go back. No timer runs: the next verb drops what has ended (B11).
//! 3. A blocked try takes a seat *before* it answers, in the same step. A wake-up that comes
//!    between the answer and `wait` finds the seat and stays there (B7).
//! 4. A record that holds nothing is dropped; its token lives on in a single number (B8).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use crate::backend::*;
use crate::capabilities::{Capabilities, Fencing};
use crate::claim::*;
use crate::clock::Moment;
use crate::error::BackendError;
use crate::io::Io;
use crate::key::Key;
use crate::kit::record::{Alive, Now, Record, Wakeup};
use crate::watch::Watch;
use crate::words::*;

/// Keys are spread over so many tables, each with a mutex of its own.
const TABLES: usize = 16;

/// No claim has a session that could die before the process itself.
const ALIVE: Alive<'static> = &|_| true;

/// A [`Backend`] in the memory of this process.
///
/// Use it if all competing tasks are in one process, and in tests of code that takes locks. It
/// survives nothing: when the process ends, so do the locks, and the tokens of the next one are
/// larger only if the wall clock did not go back.
pub struct MemoryBackend {
    store: Arc<Store>,
    io: Io,
    address: Arc<str>,
}

/// The stores that have a name, by process and name: a forked child has stores of its own.
type Named = HashMap<(u32, String), Weak<Store>>;

/// Those that have a name, for as long as a backend uses them.
static NAMED: LazyLock<Mutex<Named>> = LazyLock::new(Mutex::default);

struct Store {
    tables: [Mutex<Table>; TABLES],
    /// The same in each run, so that a simulation repeats: a key's table decides its first token.
    hasher: BuildHasherDefault<DefaultHasher>,
}

impl Store {
    fn empty(io: &Io) -> Arc<Self> {
        // A store made later starts above all tokens of an earlier one: a key gets less than one
        // grant in a microsecond.
        let base = io.clock().wall().as_micros() as u64;
        let table = || {
            Mutex::new(Table {
                entries: HashMap::new(),
                watchers: HashMap::new(),
                base,
                crowded: 64,
            })
        };
        Arc::new(Self {
            tables: std::array::from_fn(|_| table()),
            hasher: BuildHasherDefault::default(),
        })
    }

    fn table(&self, key: &Key) -> MutexGuard<'_, Table> {
        let hash = self.hasher.hash_one(key);
        lock(&self.tables[hash as usize % TABLES])
    }
}

struct Table {
    entries: HashMap<Key, Entry>,
    /// Where observers of a key wait, for as long as there are any.
    watchers: HashMap<Key, Vec<Arc<Notify>>>,
    /// The largest token of the records that were dropped.
    base: u64,
    /// How many entries call for a look at all of them.
    crowded: usize,
}

#[derive(Default)]
struct Entry {
    record: Record,
    /// The wake-ups, one for each claim in the queue. In order, so that a simulation repeats.
    seats: BTreeMap<ClaimId, Arc<Notify>>,
}

impl MemoryBackend {
    /// Creates an empty store.
    pub fn new(io: Io) -> Arc<Self> {
        Arc::new(Self { store: Store::empty(&io), io, address: "mem:".into() })
    }

    /// Opens the store `name` of this process, and creates it if no backend uses it now.
    pub fn named(name: &str, io: Io) -> Arc<Self> {
        let mut named = lock(&NAMED);
        let key = (std::process::id(), name.to_owned());
        let store = named.get(&key).and_then(Weak::upgrade).unwrap_or_else(|| {
            named.retain(|_, store| store.strong_count() > 0);
            let store = Store::empty(&io);
            named.insert(key, Arc::downgrade(&store));
            store
        });
        drop(named);
        Arc::new(Self { store, io, address: format!("mem:{name}").into() })
    }

    /// Opens the same store again, as another process would.
    pub fn beside(&self) -> Arc<Self> {
        let Self { store, io, address } = self;
        Arc::new(Self { store: store.clone(), io: io.clone(), address: address.clone() })
    }

    fn table(&self, key: &Key) -> MutexGuard<'_, Table> {
        self.store.table(key)
    }

    fn now(&self) -> Now {
        let lease = self.io.now().since(Moment::from_nanos(0));
        Now { lease, wall: self.io.clock().wall() }
    }

    /// The atomic step behind every verb that may change something.
    fn change<T>(
        &self,
        claim: &Claim,
        judge: impl FnOnce(&mut Record, u64, Now) -> (T, Vec<Wakeup>),
    ) -> T {
        let mut locked = self.table(&claim.key);
        let table = &mut *locked;
        let now = self.now();
        let base = table.base;
        let watchers = table.watchers.get(&claim.key);
        let entry = table.entries.entry(claim.key.clone()).or_default();
        let before = watchers.map(|_| entry.holders());
        let (answer, wakeups) = judge(&mut entry.record, base, now);
        let mut called = entry.called(&wakeups);
        called.extend(entry.seat(claim.id));
        if before.is_some_and(|before| before != entry.holders()) {
            called.extend(watchers.into_iter().flatten().cloned());
        }
        table.drop_idle(&claim.key, now);
        drop(locked);
        // Not under the lock: a waiter that is woken may come at once.
        called.iter().for_each(|seat| seat.notify_one()); // kept in the seat until its owner waits
        answer
    }
}

impl Entry {
    fn holders(&self) -> Vec<ClaimId> {
        self.record.held.iter().map(|member| member.id).collect()
    }

    /// The seats of those whose turn it is.
    fn called(&self, wakeups: &[Wakeup]) -> Vec<Arc<Notify>> {
        let admissible = wakeups.iter().filter(|w| w.admissible);
        admissible.filter_map(|w| self.seats.get(&w.id).cloned()).collect()
    }

    /// Gives the claim a seat if it is in the queue, and takes it away if it does not. Returns the
    /// seats of those who have lost their places by their ttl: who still waits must come again.
    fn seat(&mut self, id: ClaimId) -> Vec<Arc<Notify>> {
        if self.record.queue.iter().any(|w| w.id == id) {
            self.seats.entry(id).or_default();
        } else {
            self.seats.remove(&id);
        }
        if self.seats.len() <= self.record.queue.len() {
            return Vec::new();
        }
        let queue: HashSet<ClaimId> = self.record.queue.iter().map(|w| w.id).collect();
        let mut gone = Vec::new();
        self.seats.retain(|id, seat| {
            let stays = queue.contains(id);
            if !stays {
                gone.push(seat.clone());
            }
            stays
        });
        gone
    }
}

impl Table {
    fn drop_idle(&mut self, key: &Key, now: Now) {
        if self.entries.get(key).is_some_and(|e| e.record.is_idle(now)) {
            self.base = self.base.max(self.entries.remove(key).map_or(0, |e| e.record.token));
        }
        if self.entries.len() >= self.crowded {
            // Keys whose holders never came back are found here, at a constant price per key.
            let base = &mut self.base;
            self.entries.retain(|key, entry| {
                let free = entry.record.snapshot(key.clone(), now, ALIVE).is_free();
                if free {
                    *base = (*base).max(entry.record.token);
                }
                !free
            });
            self.crowded = 64.max(self.entries.len() * 2);
        }
    }
}

impl Backend for MemoryBackend {
    fn capabilities(&self) -> Capabilities {
        let ttl = Duration::from_millis(1)..=Duration::from_secs(24 * 60 * 60);
        let mut can = Capabilities::full(self.address.clone())
            .with_fencing(Fencing::WhileDataSurvives)
            .with_ttl(ttl, Duration::from_secs(30));
        (can.mixed_limits, can.resize) = (true, true);
        can
    }

    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> Verb<'a, Result<Attempt, BackendError>> {
        Box::pin(async move {
            self.change(claim, |record, base, now| record.try_acquire(claim, 0, base, now, ALIVE))
        })
    }

    fn wait<'a>(
        &'a self,
        claim: &'a Claim,
        _blocked: &'a Blocked,
    ) -> Verb<'a, Result<Wake, BackendError>> {
        Box::pin(async move {
            let seat = self.table(&claim.key).entries.get(&claim.key).and_then(|entry| {
                entry.seats.get(&claim.id).cloned() // the lock is not held while waiting
            });
            match seat {
                Some(seat) => seat.notified().await,
                // It takes no place in the queue: only the engine's own timer makes it check.
                None if !claim.waits => std::future::pending().await,
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
            let renew =
                |claim| Ok(self.change(claim, |record, _, now| record.renew(claim, now, ALIVE)));
            claims.iter().map(renew).collect()
        })
    }

    fn release<'a>(
        &'a self,
        claim: &'a Claim,
        linger: Linger,
    ) -> Verb<'a, Result<Released, BackendError>> {
        Box::pin(async move {
            Ok(self.change(claim, |record, _, now| record.release(claim, linger, now, ALIVE)))
        })
    }

    fn resize<'a>(&'a self, claim: &'a Claim) -> Verb<'a, Result<Resized, BackendError>> {
        Box::pin(
            async move { self.change(claim, |record, _, now| record.resize(claim, now, ALIVE)) },
        )
    }

    fn renews_for_others(&self) -> bool {
        true
    }

    fn ttl_may_change(&self) -> bool {
        true
    }

    fn watch<'a>(&'a self, key: &'a Key) -> Verb<'a, Result<Option<Box<dyn Watch>>, BackendError>> {
        Box::pin(async move {
            let bell = Arc::<Notify>::default();
            self.table(key).watchers.entry(key.clone()).or_default().push(bell.clone());
            let store = Arc::downgrade(&self.store);
            Ok(Some(Box::new(MemoryWatch { store, key: key.clone(), bell }) as Box<dyn Watch>))
        })
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> Verb<'a, Result<Vec<Snapshot>, BackendError>> {
        Box::pin(async move {
            let now = self.now();
            let prefix = match query {
                Query::Key(key) => {
                    let table = self.table(key);
                    return Ok(vec![match table.entries.get(key) {
                        Some(entry) => entry.record.snapshot(key.clone(), now, ALIVE),
                        None => Snapshot::free(key.clone()),
                    }]);
                }
                Query::Prefix(prefix) => prefix,
            };
            let mut snapshots = Vec::new();
            for table in &self.store.tables {
                let table = lock(table);
                let named = table.entries.iter().filter(|(k, _)| k.as_str().starts_with(&**prefix));
                snapshots.extend(named.map(|(k, e)| e.record.snapshot(k.clone(), now, ALIVE)));
            }
            snapshots.retain(|s| !s.is_free());
            snapshots.sort_unstable_by(|a, b| a.key.cmp(&b.key));
            Ok(snapshots)
        })
    }
}

/// A place among the watchers of a key.
struct MemoryWatch {
    store: Weak<Store>,
    key: Key,
    bell: Arc<Notify>,
}

impl Watch for MemoryWatch {
    fn changed(&mut self) -> Verb<'_, Result<(), BackendError>> {
        Box::pin(async {
            self.bell.notified().await;
            Ok(())
        })
    }
}

impl Drop for MemoryWatch {
    fn drop(&mut self) {
        let Some(store) = self.store.upgrade() else { return };
        let mut table = store.table(&self.key);
        let Some(watchers) = table.watchers.get_mut(&self.key) else { return };
        watchers.retain(|other| !Arc::ptr_eq(other, &self.bell));
        if watchers.is_empty() {
            table.watchers.remove(&self.key);
        }
    }
}

impl fmt::Debug for MemoryWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryWatch").field("key", &self.key).finish_non_exhaustive()
    }
}

impl fmt::Debug for MemoryBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryBackend").finish_non_exhaustive()
    }
}

/// A panic elsewhere leaves a record as it was between two steps, so the store stays usable.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{claim, paused_io};

    const SEC: Duration = Duration::from_secs(1);

    fn granted(attempt: Result<Attempt, BackendError>) -> Grant {
        match attempt.unwrap() {
            Attempt::Granted(grant) => grant,
            Attempt::Blocked(blocked) => panic!("blocked: {blocked:?}"),
        }
    }

    fn blocked(attempt: Result<Attempt, BackendError>) -> Blocked {
        match attempt.unwrap() {
            Attempt::Blocked(blocked) => blocked,
            Attempt::Granted(grant) => panic!("granted: {grant:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_wake_up_between_try_and_wait_is_kept_across_handles() {
        let here = MemoryBackend::new(paused_io().0);
        let there = here.beside();
        let (first, second) = (claim("k"), claim("k"));
        let grant = granted(here.try_acquire(&first).await);
        let answer = blocked(there.try_acquire(&second).await);
        assert_eq!(here.release(&first, Linger::None).await.unwrap(), Released::Yes);
        let start = here.io.now();
        assert_eq!(there.wait(&second, &answer).await.unwrap(), Wake::Look);
        assert_eq!(here.io.now(), start, "woken by the release, not by a timer");
        assert!(granted(there.try_acquire(&second).await).token > grant.token);
    }

    #[tokio::test(start_paused = true)]
    async fn one_release_wakes_one_waiter() {
        let store = MemoryBackend::new(paused_io().0);
        let holder = claim("k");
        granted(store.try_acquire(&holder).await);
        let waiters: Vec<Claim> = (0..8).map(|_| claim("k")).collect();
        for waiter in &waiters {
            blocked(store.try_acquire(waiter).await);
        }
        store.release(&holder, Linger::None).await.unwrap();
        let answer = Blocked {
            retry_after: None,
            ahead: None,
            cause: Cause::Held,
            holder: None,
            resume: None,
            store_time: None,
        };
        let mut woken = 0;
        for waiter in &waiters {
            woken += store.io.within(SEC, store.wait(waiter, &answer)).await.is_some() as u32;
        }
        assert_eq!(woken, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_without_its_place_is_told_to_retry() {
        let store = MemoryBackend::new(paused_io().0);
        let (mut holder, waiter) = (claim("k"), claim("k"));
        holder.ttl = 1_000 * SEC;
        granted(store.try_acquire(&holder).await);
        let answer = blocked(store.try_acquire(&waiter).await);
        let wait = store.wait(&waiter, &answer);
        store.io.sleep(waiter.ttl).await;
        blocked(store.try_acquire(&claim("k")).await);
        assert!(store.io.within(SEC, wait).await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn idle_and_forgotten_keys_are_dropped_and_tokens_still_grow() {
        let store = MemoryBackend::new(paused_io().0);
        let first = claim("once");
        let token = granted(store.try_acquire(&first).await).token;
        store.release(&first, Linger::None).await.unwrap();
        let entries = || store.store.tables.iter().map(|t| lock(t).entries.len()).sum::<usize>();
        assert_eq!(entries(), 0);
        for n in 0..20_000 {
            granted(store.try_acquire(&claim(&format!("forgotten {n}"))).await);
            if n % 100 == 0 {
                store.io.sleep(SEC).await;
            }
        }
        // Of the ttl of 10 s, about 1,000 keys are live at a time.
        assert!(entries() < 5_000, "{} entries", entries());
        assert!(granted(store.try_acquire(&claim("once")).await).token > token);
        let later = MemoryBackend::new(store.io.clone());
        assert!(granted(later.try_acquire(&claim("once")).await).token > token);
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_reports_changes_and_leaves_nothing() {
        let store = MemoryBackend::new(paused_io().0);
        let (first, second) = (claim("k"), claim("k"));
        let mut watch = store.watch(&first.key).await.unwrap().expect("a watch");
        granted(store.try_acquire(&first).await);
        store.release(&first, Linger::None).await.unwrap();
        granted(store.try_acquire(&second).await);
        watch.changed().await.unwrap();
        assert!(store.io.within(SEC, watch.changed()).await.is_none(), "three are one hint");
        store.renew_all(std::slice::from_ref(&second)).await;
        blocked(store.try_acquire(&first).await);
        granted(store.try_acquire(&claim("another")).await);
        assert!(store.io.within(SEC, watch.changed()).await.is_none(), "no holder changed");
        store.release(&second, Linger::None).await.unwrap();
        watch.changed().await.unwrap();
        let watchers = || store.store.tables.iter().map(|t| lock(t).watchers.len()).sum::<usize>();
        assert_eq!(watchers(), 1);
        drop(watch);
        assert_eq!(watchers(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn inspect_lists_by_prefix_in_order_and_changes_nothing() {
        let store = MemoryBackend::new(paused_io().0);
        for name in ["b/2", "a", "b/1"] {
            granted(store.try_acquire(&claim(name)).await);
        }
        let query = Query::Prefix("b/".into());
        let list = store.inspect(&query).await.unwrap();
        assert_eq!(list.iter().map(|s| s.key.as_str()).collect::<Vec<_>>(), ["b/1", "b/2"]);
        assert_eq!(store.inspect(&query).await.unwrap(), list);
        let free = store.inspect(&Query::Key(Key::new("c").unwrap())).await.unwrap();
        assert!(free.len() == 1 && free[0].is_free());
    }
}
