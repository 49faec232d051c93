//! What the tests of fail-overs share: managers as of several processes, and a load of locks that
//! notes what it sees.

#![allow(dead_code, reason = "each test uses its own")]

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use latchwork::{Driver, Event, Guard, LockManager, Observer};
use latchwork_redis::{RedisBackend, RedisConfig};
use latchwork_store::testing::stalls;
use latchwork_store::{Error, FencingToken};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

pub(crate) type Test = Result<(), Box<dyn std::error::Error>>;

/// The longest that anything may take on a loaded machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) fn runtime() -> Runtime {
    stalls::start();
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// A manager with its own thread and connections, as another process would have.
pub(crate) async fn connect(config: RedisConfig) -> Result<LockManager, Error> {
    let driver = Driver::start()?;
    let backend = RedisBackend::connect(config, driver.io()).await?;
    Ok(LockManager::new(backend, driver))
}

pub(crate) async fn locks(url: &str) -> LockManager {
    connect(RedisConfig::parse(url).unwrap()).await.unwrap()
}

/// Takes what it can get within a limit, past errors; for states that pass by themselves.
pub(crate) async fn soon(locks: &LockManager, name: &str) -> Guard {
    let start = Instant::now();
    loop {
        match locks.mutex(name).acquire_within(Duration::from_secs(5)).await {
            Ok(guard) => return guard,
            Err(error) => assert!(start.elapsed() < LONG, "{error}"),
        }
    }
}

/// Counts requests that failed, whether somebody was told or not.
#[derive(Debug, Default)]
pub(crate) struct Failures(pub(crate) AtomicU32, pub(crate) Mutex<String>);

impl Observer for Failures {
    fn event(&self, event: &Event<'_>) {
        if let Event::TryFailed { error, .. } | Event::RenewFailed { error, .. } = event {
            self.0.fetch_add(1, Ordering::SeqCst);
            *self.1.lock().unwrap() = error.to_string();
        }
    }
}

/// A grant of a load.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) key: String,
    pub(crate) token: FencingToken,
    pub(crate) at: Instant,
    pub(crate) by: usize,
}

/// Tasks that take locks, hold them for a moment and give them back, until they are told to stop.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    seen: Arc<Mutex<Vec<Seen>>>,
    errors: Arc<Mutex<Vec<String>>>,
    overlaps: Arc<AtomicU32>,
    tasks: Vec<JoinHandle<()>>,
}

impl Load {
    /// One task for each manager and key. Waiters have 40 seconds.
    pub(crate) fn start(runtime: &Runtime, managers: &[LockManager], keys: &[&str]) -> Self {
        let mut load = Self {
            stop: Arc::default(),
            seen: Arc::default(),
            errors: Arc::default(),
            overlaps: Arc::default(),
            tasks: Vec::new(),
        };
        let holders: HashMap<&str, Arc<AtomicU32>> =
            keys.iter().map(|key| (*key, Arc::default())).collect();
        for (by, locks) in managers.iter().enumerate() {
            for key in keys {
                let (stop, seen) = (load.stop.clone(), load.seen.clone());
                let (errors, overlaps) = (load.errors.clone(), load.overlaps.clone());
                let (mutex, key, holders) =
                    (locks.mutex(key), (*key).to_owned(), holders[key].clone());
                load.tasks.push(runtime.spawn(async move {
                    while !stop.load(Ordering::SeqCst) {
                        let guard = match mutex.acquire_within(Duration::from_secs(40)).await {
                            Ok(guard) => guard,
                            Err(error) => {
                                errors.lock().unwrap().push(error.to_string());
                                continue;
                            }
                        };
                        let others = holders.fetch_add(1, Ordering::SeqCst);
                        let (key, token) = (key.clone(), guard.token());
                        seen.lock().unwrap().push(Seen { key, token, at: Instant::now(), by });
                        tokio::time::sleep(Duration::from_millis(2)).await;
                        // A guard that says that it is lost overlaps with nobody.
                        if others > 0 && guard.ensure_held().is_ok() {
                            overlaps.fetch_add(1, Ordering::SeqCst);
                        }
                        holders.fetch_sub(1, Ordering::SeqCst);
                        if let Err(error) = guard.release().await {
                            errors.lock().unwrap().push(format!("release: {error}"));
                        }
                    }
                }));
            }
        }
        load
    }

    /// Blocks until every key was granted this often from now on; tells how long it took.
    pub(crate) fn await_grants(&self, keys: &[&str], times: usize) -> Duration {
        let start = Instant::now();
        loop {
            let done = {
                let seen = self.seen.lock().unwrap();
                keys.iter().all(|key| {
                    seen.iter().filter(|s| s.key == *key && s.at >= start).count() >= times
                })
            };
            if done {
                return start.elapsed();
            }
            assert!(start.elapsed() < LONG, "no grants; errors: {:?}", self.errors.lock().unwrap());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Ends the load; what it saw.
    pub(crate) fn end(self, runtime: &Runtime) -> Outcome {
        self.stop.store(true, Ordering::SeqCst);
        for task in self.tasks {
            runtime.block_on(task).unwrap();
        }
        Outcome {
            seen: self.seen.lock().unwrap().clone(),
            errors: self.errors.lock().unwrap().clone(),
            overlaps: self.overlaps.load(Ordering::SeqCst),
        }
    }
}

/// What a load saw.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) seen: Vec<Seen>,
    pub(crate) errors: Vec<String>,
    pub(crate) overlaps: u32,
}

impl Outcome {
    /// Errors of those who waited; a release that finds no master is an error, too, but nobody
    /// waits for it.
    pub(crate) fn waiters_errors(&self) -> Vec<&String> {
        self.errors.iter().filter(|error| !error.starts_with("release")).collect()
    }

    /// Expects that the tokens of each key rose from grant to grant.
    pub(crate) fn assert_tokens_rise(&self) {
        let mut last: HashMap<&str, FencingToken> = HashMap::new();
        for (n, seen) in self.seen.iter().enumerate() {
            if let Some(before) = last.insert(&seen.key, seen.token) {
                let about = &self.seen[n.saturating_sub(8)..(n + 8).min(self.seen.len())];
                assert!(before < seen.token, "{before} then {seen:?}, among {about:?}");
            }
        }
    }

    /// The longest time without a grant of a key.
    pub(crate) fn longest_gap(&self, key: &str) -> Duration {
        let times: Vec<Instant> =
            self.seen.iter().filter(|seen| seen.key == key).map(|seen| seen.at).collect();
        times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(LONG)
    }
}
