//! Clients: whole managers, and the bare backend with claims of its own.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

use latchwork::{Driver, Event, Guard, Handover, Lock, LockManager, Observer};
use latchwork_redis::{RedisBackend, RedisConfig};
use latchwork_store::*;

use super::*;

static DRIVER: LazyLock<Driver> = LazyLock::new(|| Driver::start().unwrap());

/// Where the clients of this process run.
pub fn io() -> Io {
    DRIVER.io()
}

/// A backend with a connection of its own: to the store it is a process.
pub async fn connect(url: &str) -> Arc<RedisBackend> {
    let config = RedisConfig::parse(url).expect("a good address");
    RedisBackend::connect(config, io()).await.expect("the server runs")
}

/// What a manager told its observer.
#[derive(Default)]
pub struct Story {
    pub waiting: AtomicU64,
    pub acquired: AtomicU64,
    waits: AtomicBool,
    pub renewed: AtomicU64,
    pub lost: Mutex<Vec<(String, Lost, Instant)>>,
    pub failures: Mutex<Vec<BackendError>>,
    unsteady: AtomicU64,
}

impl Observer for Story {
    fn event(&self, event: &Event<'_>) {
        let count = |number: &AtomicU64| {
            number.fetch_add(1, Ordering::SeqCst);
        };
        match event {
            Event::Waiting { .. } => {
                count(&self.waiting);
                self.waits.store(true, Ordering::SeqCst);
            }
            Event::Acquired { .. } => {
                count(&self.acquired);
                self.waits.store(false, Ordering::SeqCst);
            }
            Event::Renewed { .. } => count(&self.renewed),
            Event::ClockUnsteady { .. } => count(&self.unsteady),
            Event::Lost { key, lost, .. } => {
                let told = (key.as_str().to_owned(), *lost, Instant::now());
                self.lost.lock().unwrap().push(told);
            }
            Event::TryFailed { error, .. }
            | Event::RenewFailed { error, .. }
            | Event::ReleaseFailed { error, .. } => {
                self.failures.lock().unwrap().push((*error).clone());
            }
            _ => {}
        }
    }
}

impl Story {
    pub fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::SeqCst)
    }

    /// Whether its last word was that it waits.
    pub fn is_waiting(&self) -> bool {
        self.waits.load(Ordering::SeqCst)
    }

    pub fn renewed(&self) -> u64 {
        self.renewed.load(Ordering::SeqCst)
    }

    /// How often the server's clock was found to run at another rate.
    pub fn unsteady(&self) -> u64 {
        self.unsteady.load(Ordering::SeqCst)
    }

    pub fn lost(&self) -> Vec<(String, Lost, Instant)> {
        self.lost.lock().unwrap().clone()
    }

    /// Whether a failure was told whose text has this word.
    pub fn tells_of(&self, word: &str) -> bool {
        self.failures.lock().unwrap().iter().any(|error| error.message.contains(word))
    }
}

/// A manager and what it told.
pub struct Client {
    pub locks: LockManager,
    pub story: Arc<Story>,
}

impl Client {
    pub async fn new(url: &str, ttl: Duration) -> Self {
        let story = Arc::new(Story::default());
        let locks = LockManager::on_io(connect(url).await, io())
            .ttl(ttl)
            .handover(Handover::OFF)
            .observer(story.clone());
        Self { locks, story }
    }

    /// A client on a thread of its own, which no other test keeps busy.
    pub async fn alone(url: &str, ttl: Duration) -> Self {
        let story = Arc::new(Story::default());
        let driver = Driver::start().unwrap();
        let config = RedisConfig::parse(url).expect("a good address");
        let backend = RedisBackend::connect(config, driver.io()).await.expect("the server runs");
        let locks = LockManager::new(backend, driver).ttl(ttl).observer(story.clone());
        Self { locks, story }
    }

    /// A client that has used all that a connection needs for its first time.
    pub async fn warm(url: &str, ttl: Duration) -> Self {
        let client = Self::new(url, ttl).await;
        client.mutex("warm").acquire().await.unwrap().release().await.unwrap();
        client
    }

    pub fn mutex(&self, name: &str) -> latchwork::Lock {
        self.locks.mutex(name)
    }

    pub async fn acquire(&self, name: &str) -> Guard {
        self.mutex(name).acquire_within(20 * SEC).await.expect("admitted")
    }
}

/// Starts to wait for a key on a task of its own.
pub fn waiter(client: &Client, name: &str) -> tokio::task::JoinHandle<(Guard, Instant)> {
    let mutex = client.mutex(name);
    tokio::spawn(async move {
        let guard = mutex.acquire_within(40 * SEC).await.expect("admitted");
        (guard, Instant::now())
    })
}

/// The same, once messages can reach it: then it has looked twice.
pub async fn subscribed_waiter(
    client: &Client,
    name: &str,
) -> tokio::task::JoinHandle<(Guard, Instant)> {
    let next = waiter(client, name);
    until("it waits", 5 * SEC, || client.story.waiting() >= 2).await;
    next
}

pub fn claim(key: &str, ttl: Duration) -> Claim {
    Claim::new(
        Key::new(key).unwrap(),
        ClaimId::random(),
        Mode::Exclusive,
        ttl,
        Stamp::new(io().now()),
    )
    .with(|it| it.holder = format!("test {}", std::process::id()).into())
}

pub fn with_mode(key: &str, ttl: Duration, mode: Mode) -> Claim {
    claim(key, ttl).with(|it| it.mode = mode)
}

/// A claim that leaves nothing behind when it is blocked.
pub fn passing(key: &str, ttl: Duration) -> Claim {
    claim(key, ttl).with(|it| it.waits = false)
}

pub async fn granted(backend: &RedisBackend, claim: &Claim) -> u64 {
    match backend.try_acquire(claim).await {
        Ok(Attempt::Granted(grant)) => grant.token,
        other => panic!("not granted: {other:?}"),
    }
}

pub async fn blocked(backend: &RedisBackend, claim: &Claim) -> Blocked {
    match backend.try_acquire(claim).await {
        Ok(Attempt::Blocked(blocked)) => blocked,
        other => panic!("not blocked: {other:?}"),
    }
}

pub async fn renew(backend: &RedisBackend, claim: &Claim) -> Result<Renewal, BackendError> {
    backend.renew_all(std::slice::from_ref(claim)).await.pop().unwrap()
}

pub async fn release(backend: &RedisBackend, claim: &Claim) -> Released {
    backend.release(claim, Linger::None).await.unwrap()
}

/// Tries and waits until it holds the claim; the token.
pub async fn admitted(backend: &RedisBackend, claim: &Claim) -> u64 {
    loop {
        match backend.try_acquire(claim).await.unwrap() {
            Attempt::Granted(grant) => return grant.token,
            Attempt::Blocked(blocked) => match backend.wait(claim, &blocked).await.unwrap() {
                Wake::Admitted { grant, .. } => return grant.token,
                Wake::Look => {}
            },
        }
    }
}

/// The wait alone, once the claim stands in line and its channel is subscribed to.
pub async fn admitted_by_push(backend: &RedisBackend, claim: &Claim) -> (u64, Duration) {
    match backend.wait(claim, &in_line(backend, claim).await).await.unwrap() {
        Wake::Admitted { grant, .. } => (grant.token, grant.ttl),
        Wake::Look => panic!("not pushed"),
    }
}

/// Tries until the claim stands in line with a channel to reach it.
pub async fn in_line(backend: &RedisBackend, claim: &Claim) -> Blocked {
    for _ in 0..5 {
        let answer = blocked(backend, claim).await;
        let short = tokio::time::timeout(50 * MS, backend.wait(claim, &answer)).await;
        if short.is_err() {
            return answer;
        }
    }
    panic!("woken again and again")
}
