//! A fleet: many clients in many processes at one store that takes a known time for each request.
//!
//! The engine, the queue and the record are the real ones, on the paused clock. The store is a queue
//! before so many processors: a request waits for one, takes its time, and is answered. So a run tells
//! what a fleet asks of a store, and at which load the store gives way.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use latchwork::LockManager;
use latchwork_store::testing::{SeededRandom, paused_io};
use latchwork_store::{
    Attempt, Backend, BackendError, Blocked, Capabilities, Claim, ClaimId, Linger, MemoryBackend,
    Query, Released, Renewal, Resized, Snapshot, Verb, Wake,
};
use tokio::runtime::Builder;
use tokio::time::{Instant, sleep, sleep_until};

/// What a fleet does, and what that costs the store.
#[derive(Debug, Clone, PartialEq)]
pub struct Fleet {
    /// Tasks that take a lock now and then, each a key of its own unless [`Self::keys`] says otherwise.
    pub clients: usize,
    /// The processes that they are spread over.
    pub processes: usize,
    /// How many keys there are; clients share them if there are fewer than clients.
    pub keys: usize,
    /// From one acquire of a client to its next, on average.
    pub every: Duration,
    /// How long it holds the key.
    pub hold: Duration,
    /// The ttl of all locks.
    pub ttl: Duration,
    /// The round trip to the store.
    pub trip: Duration,
    /// How many requests the store works on at a time.
    pub cores: usize,
    /// The store's time for an acquire.
    pub acquire: Duration,
    /// The store's time for a release.
    pub release: Duration,
    /// The store's time for each renewed claim.
    pub renew: Duration,
    /// How long is measured, after as long a time for the fleet to settle.
    pub length: Duration,
    /// What the moments are drawn from.
    pub seed: u64,
}

impl Default for Fleet {
    fn default() -> Self {
        Self {
            clients: 100_000,
            processes: 1_000,
            keys: usize::MAX,
            every: Duration::from_secs(60),
            hold: Duration::from_secs(20),
            ttl: Duration::from_secs(30),
            trip: Duration::from_millis(1),
            cores: 1,
            acquire: Duration::from_micros(20),
            release: Duration::from_micros(20),
            renew: Duration::from_micros(5),
            length: Duration::from_secs(60),
            seed: 1,
        }
    }
}

/// What came out of a fleet's run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Load {
    /// Acquires, releases and renewed claims a second that reached the store.
    pub acquires: f64,
    /// Releases a second.
    pub releases: f64,
    /// Renewed claims a second.
    pub renewals: f64,
    /// Requests a second: a request renews many claims.
    pub requests: f64,
    /// The part of the store's time that is taken, from 0 to 1.
    pub busy: f64,
    /// The median of the acquires.
    pub p50: Duration,
    /// Their 99th percentile.
    pub p99: Duration,
    /// Acquires that failed or timed out.
    pub failed: u64,
    /// Holds that were lost.
    pub lost: u64,
}

impl Load {
    /// Whether the store has given way: somebody was not served in time.
    pub fn gives_way(&self) -> bool {
        self.failed > 0 || self.lost > 0 || self.p99 > Duration::from_secs(1)
    }
}

/// How long an acquire may take.
const ACQUIRE_LIMIT: Duration = Duration::from_secs(30);

/// Runs a fleet.
///
/// # Panics
///
/// Panics if the system gives no runtime, or inside of another runtime.
pub fn fleet(plan: &Fleet) -> Load {
    let _seeded = SeededRandom::on_this_thread(plan.seed);
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O");
    runtime.block_on(live(plan))
}

async fn live(plan: &Fleet) -> Load {
    let (io, _clock) = paused_io();
    let store = MemoryBackend::new(io.clone());
    let server = Arc::new(Mutex::new(Server::new(plan)));
    let seen = Arc::new(Mutex::new(Seen::default()));
    let mut luck = fastrand::Rng::with_seed(plan.seed);
    let from = Instant::now() + plan.length;
    let until = from + plan.length;
    let mut all = Vec::new();
    for number in 0..plan.processes {
        let backend = Busy { store: store.beside(), server: server.clone(), plan: plan.clone() };
        let locks = LockManager::on_io(Arc::new(backend), io.clone()).ttl(plan.ttl);
        let clients = (number..plan.clients).step_by(plan.processes);
        for client in clients {
            let client = Client {
                key: format!("k{}", client % plan.keys.max(1)),
                plan: plan.clone(),
                seen: seen.clone(),
                luck: luck.fork(),
                from,
                until,
            };
            tokio::spawn(client.run(locks.clone()));
        }
        all.push(locks);
    }
    sleep_until(from).await;
    let before = lock(&server).done.clone();
    sleep_until(until).await;
    let after = lock(&server).done.clone();
    let mut seen = lock(&seen);
    let length = plan.length.as_secs_f64();
    let rate = |what: fn(&Done) -> u64| (what(&after) - what(&before)) as f64 / length;
    Load {
        acquires: rate(|done| done.acquires),
        releases: rate(|done| done.releases),
        renewals: rate(|done| done.renewals),
        requests: rate(|done| done.requests),
        busy: (after.busy - before.busy).as_secs_f64() / length / plan.cores as f64,
        p50: seen.quantile(0.5),
        p99: seen.quantile(0.99),
        failed: seen.failed,
        lost: seen.lost,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the clients saw while it was measured.
#[derive(Default)]
struct Seen {
    acquires: Vec<Duration>,
    failed: u64,
    lost: u64,
}

impl Seen {
    fn quantile(&mut self, part: f64) -> Duration {
        self.acquires.sort();
        let last = self.acquires.len().saturating_sub(1);
        let place = (last as f64 * part).round() as usize;
        self.acquires.get(place).copied().unwrap_or_default()
    }
}

struct Client {
    key: String,
    plan: Fleet,
    seen: Arc<Mutex<Seen>>,
    luck: fastrand::Rng,
    from: Instant,
    until: Instant,
}

impl Client {
    async fn run(mut self, locks: LockManager) {
        let mutex = locks.mutex(&self.key);
        // As if it had gone on for ever: a moment drawn at random is in one of the longer pauses rather
        // than in one of the shorter ones, which are drawn below.
        let pause = (0.25 + 2.0 * self.luck.f64()).sqrt();
        sleep(self.plan.every.mul_f64(pause * self.luck.f64())).await;
        while Instant::now() < self.until {
            let begun = Instant::now();
            let acquired = mutex.acquire_within(ACQUIRE_LIMIT).await;
            let took = begun.elapsed();
            if Instant::now() >= self.from && Instant::now() < self.until {
                let mut seen = lock(&self.seen);
                seen.failed += u64::from(acquired.is_err());
                seen.acquires.push(took);
            }
            if let Ok(guard) = acquired {
                sleep(self.plan.hold).await;
                let is_lost = guard.ensure_held().is_err();
                if is_lost && Instant::now() < self.until {
                    lock(&self.seen).lost += 1;
                }
                // One that was lost says so here, too.
                let _ = guard.release().await;
            }
            let pause = self.plan.every.mul_f64(0.5 + self.luck.f64());
            sleep(pause.saturating_sub(begun.elapsed())).await;
        }
    }
}

/// What the store has done so far.
#[derive(Debug, Clone, Default)]
struct Done {
    acquires: u64,
    releases: u64,
    renewals: u64,
    requests: u64,
    busy: Duration,
}

/// Processors, and when each of them is free.
struct Server {
    free: BinaryHeap<Reverse<Instant>>,
    done: Done,
}

impl Server {
    fn new(plan: &Fleet) -> Self {
        let free = (0..plan.cores.max(1)).map(|_| Reverse(Instant::now())).collect();
        Self { free, done: Done::default() }
    }

    /// Takes a request that arrives then; tells when it has been worked on.
    fn take(&mut self, arrives: Instant, work: Duration) -> Instant {
        let Reverse(free) = self.free.pop().unwrap_or(Reverse(arrives));
        let end = free.max(arrives) + work;
        self.free.push(Reverse(end));
        self.done.requests += 1;
        self.done.busy += work;
        end
    }
}

/// The store in memory, behind a server that takes its time.
struct Busy {
    store: Arc<MemoryBackend>,
    server: Arc<Mutex<Server>>,
    plan: Fleet,
}

impl fmt::Debug for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Busy").finish_non_exhaustive()
    }
}

impl Busy {
    /// Waits until a request has been worked on. One that its client gives up is worked on all the same,
    /// and changes nothing.
    async fn work(&self, work: Duration, count: impl FnOnce(&mut Done)) {
        let end = {
            let mut server = lock(&self.server);
            count(&mut server.done);
            server.take(Instant::now() + self.plan.trip / 2, work)
        };
        sleep_until(end).await;
    }

    async fn answer<T>(&self, answer: T) -> T {
        sleep(self.plan.trip / 2).await;
        answer
    }
}

// Not enrolled: it delays the answers of a store that is.
impl Backend for Busy {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> Verb<'a, Result<Attempt, BackendError>> {
        Box::pin(async move {
            self.work(self.plan.acquire, |done| done.acquires += 1).await;
            self.answer(self.store.try_acquire(claim).await).await
        })
    }

    /// A message of the store, which costs it nothing here.
    fn wait<'a>(
        &'a self,
        claim: &'a Claim,
        blocked: &'a Blocked,
    ) -> Verb<'a, Result<Wake, BackendError>> {
        Box::pin(async move {
            let wake = self.store.wait(claim, blocked).await;
            self.answer(wake).await
        })
    }

    fn renew_all<'a>(
        &'a self,
        claims: &'a [Claim],
    ) -> Verb<'a, Vec<Result<Renewal, BackendError>>> {
        Box::pin(async move {
            let work = self.plan.renew * claims.len() as u32;
            self.work(work, |done| done.renewals += claims.len() as u64).await;
            self.answer(self.store.renew_all(claims).await).await
        })
    }

    fn resize<'a>(&'a self, claim: &'a Claim) -> Verb<'a, Result<Resized, BackendError>> {
        Box::pin(async move { self.answer(self.store.resize(claim).await).await })
    }

    fn release<'a>(
        &'a self,
        claim: &'a Claim,
        linger: Linger,
    ) -> Verb<'a, Result<Released, BackendError>> {
        Box::pin(async move {
            self.work(self.plan.release, |done| done.releases += 1).await;
            self.answer(self.store.release(claim, linger).await).await
        })
    }

    fn renews_for_others(&self) -> bool {
        self.store.renews_for_others()
    }

    fn detach(&self, claim: &Claim) -> ClaimId {
        self.store.detach(claim)
    }

    fn adopt(&self, claim: Claim, token: u64) -> Claim {
        self.store.adopt(claim, token)
    }

    fn ttl_may_change(&self) -> bool {
        self.store.ttl_may_change()
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> Verb<'a, Result<Vec<Snapshot>, BackendError>> {
        self.store.inspect(query)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Fleet {
        Fleet {
            clients: 200,
            processes: 10,
            every: Duration::from_secs(10),
            hold: Duration::from_secs(2),
            length: Duration::from_secs(60),
            ..Fleet::default()
        }
    }

    fn near(seen: f64, wanted: f64, part: f64) {
        assert!((seen - wanted).abs() <= wanted * part, "{seen} instead of {wanted}");
    }

    #[test]
    fn a_fleet_asks_what_its_arithmetic_says() {
        let load = fleet(&small());
        // 200 clients, one acquire every 10 s each; no hold is old enough for a renewal.
        near(load.acquires, 20.0, 0.05);
        near(load.releases, 20.0, 0.1);
        assert_eq!((load.renewals, load.failed, load.lost), (0.0, 0, 0));
        near(load.busy, 40.0 * 20e-6, 0.1);
        assert!(load.p99 < Duration::from_millis(5), "{load:?}");
    }

    #[test]
    fn long_holds_are_renewed_every_third_of_the_ttl() {
        let ttl = Duration::from_secs(6);
        let plan = Fleet { hold: Duration::from_secs(3_600), ttl, ..small() };
        let load = fleet(&plan);
        near(load.renewals, 200.0 / 2.0, 0.05);
        // A process renews its holds together, within limits.
        assert!(load.requests < load.renewals, "{load:?}");
        assert_eq!(load.lost, 0);
    }

    #[test]
    fn a_store_that_is_too_slow_gives_way() {
        let slow = Duration::from_millis(60);
        let plan = Fleet { acquire: slow, release: slow, ..small() };
        let load = fleet(&plan);
        assert!(load.busy > 0.98 && load.gives_way(), "{load:?}");
        let wide = fleet(&Fleet { cores: 4, ..plan });
        assert!(wide.busy < 0.8 && !wide.gives_way(), "{wide:?}");
    }

    #[test]
    fn a_fleet_of_one_seed_takes_one_course() {
        assert_eq!(fleet(&small()), fleet(&small()));
    }
}
