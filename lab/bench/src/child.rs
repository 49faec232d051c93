//! A process of this program that a measurement starts: Latchwork, or a bare way, with what `roles.rs` does.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use latchwork::{BlockOn, ErrorKind, Event, Handover, LockManager};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::bare::{etcd, file, postgres, redis, zookeeper};
use crate::growth;
use crate::roles::{self, Done, Lock, Outcome, Task, input, now, serve, warm};

/// The entry of a started process: `KIND URL TTL_MS NUMBER`. Without a ttl it is the usual one.
pub(crate) fn run(args: &[String]) -> Outcome {
    let [kind, url, ttl, number] = args else { return Err("KIND URL TTL_MS NUMBER".into()) };
    let (ttl, number) = (ttl.parse()?, number.parse()?);
    // It moves the connections of some.
    let far = Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let far = if kind.ends_with("-far") { Some(far?) } else { None };
    let here = Builder::new_current_thread().enable_all().build()?;
    let done = here.block_on(async {
        let on = far.as_ref().map_or_else(Handle::current, |far| far.handle().clone());
        match kind.as_str() {
            "bare-redis" | "bare-redis-far" | "token-redis" => {
                let bare = redis::Bare::connect(url, kind == "token-redis", &on).await?;
                all(|key| Ok(bare.on(key))).await
            }
            "bare-five-far" => {
                let bare = redis::Five::connect(url, &on).await?;
                all(|key| Ok(bare.on(key))).await
            }
            "plain-socket" => all(|key| redis::Socket::on(url, key, redis::Way::Plain)).await,
            "push-and-pop" => all(|key| redis::Socket::on(url, key, redis::Way::Push)).await,
            "script-and-pop" => all(|key| redis::Socket::on(url, key, redis::Way::Script)).await,
            "bare-etcd-far" => {
                let bare = etcd::Bare::connect(url, &on).await?;
                all(|key| Ok(bare.on(key))).await
            }
            "watch-and-put" => {
                let ring = etcd::Ring::join(url, number).await?;
                serve(|_| Ok(ring.clone()), roles::spawn).await
            }
            "bare-zookeeper" => {
                let driver = latchwork::Driver::start()?;
                let bare = latchwork_zookeeper::bare::Bare::connect(url, driver.io()).await?;
                all(|key| Ok(zookeeper::Bare::on(&bare, key))).await
            }
            "bare-postgres" => of_postgres(url, postgres::Way::Rows).await,
            "bare-postgres-async" => of_postgres(url, postgres::Way::RowsAsync).await,
            "advisory" => of_postgres(url, postgres::Way::Advisory).await,
            "distributed-lock" => of_postgres(url, postgres::Way::DistributedLock).await,
            "commit-and-notify" => {
                let ring = postgres::Ring::join(url, number).await?;
                serve(|_| Ok(ring.clone()), roles::spawn).await
            }
            "flock" => all(|key| file::Flock::on(url, key)).await,
            // Not on this runtime.
            "latchwork-threads" => Ok(()),
            _ => latchwork(kind, url, ttl).await,
        }
    });
    done?;
    if kind == "latchwork-threads" {
        let locks = latchwork::connect(url).block_on()?;
        let make = |key: &str| Ok(Ours::on(&locks, key));
        warm(&make).block_on()?;
        here.block_on(serve(make, blocking))?;
    }
    Ok(())
}

/// A process with these locks, each task on its runtime.
async fn all<L: Lock>(make: impl Fn(&str) -> Outcome<L>) -> Outcome {
    warm(&make).await?;
    serve(make, roles::spawn).await
}

async fn of_postgres(url: &str, way: postgres::Way) -> Outcome {
    let bare = postgres::Bare::at(url, way)?;
    all(|key| Ok(bare.on(key))).await
}

/// Each task on a thread that blocks.
fn blocking(task: Task) -> oneshot::Receiver<Outcome<Done>> {
    let (sender, done) = oneshot::channel();
    std::thread::spawn(|| sender.send(task.block_on()));
    done
}

async fn latchwork(kind: &str, url: &str, ttl: u64) -> Outcome {
    let unguarded = format!("{url}?guard=false");
    // In a namespace of its own: one is guarded by all, or by none.
    let (url, namespace) = match kind {
        "latchwork-unguarded" => (&*unguarded, "unguarded"),
        "latchwork-store" => (url, NAMESPACE),
        _ => (url, ""),
    };
    let mut locks = latchwork::connect(url).await?;
    if !namespace.is_empty() {
        locks = locks.namespace(namespace);
    }
    // What is left of a bench on somebody's store ends soon.
    let ttl = if kind == "latchwork-store" { 3_000 } else { ttl };
    if ttl > 0 {
        locks = locks.ttl(Duration::from_millis(ttl));
    }
    if kind != "latchwork-handover" {
        locks = locks.handover(Handover::OFF);
    }
    match kind {
        "latchwork-waiters" => growth::child::waiters(&locks, url).await,
        "latchwork-steady" => steady(&locks).await,
        "latchwork-votes" => {
            let votes = Arc::new(Votes::default());
            let locks = locks.observer(votes.clone());
            all(|key| Ok(Ours::on(&locks, key))).await?;
            println!("{}", votes.told());
            Ok(())
        }
        _ => all(|key| Ok(Ours::on(&locks, key))).await,
    }
}

/// Where `store` has its keys.
pub(crate) const NAMESPACE: &str = "latchwork-bench";

struct Ours {
    lock: latchwork::Lock,
    is_free: bool,
}

impl Ours {
    fn on(locks: &LockManager, key: &str) -> Self {
        Self { lock: locks.mutex(key), is_free: key.starts_with("bench/") }
    }
}

impl Lock for Ours {
    type Held = latchwork::Guard;

    async fn acquire(&self) -> Outcome<latchwork::Guard> {
        if !self.is_free {
            return Ok(self.lock.acquire().await?);
        }
        loop {
            // Where servers vote, one of the last release that answers late may spoil a try.
            if let Some(guard) = self.lock.try_acquire().await? {
                return Ok(guard);
            }
        }
    }

    async fn release(&self, held: latchwork::Guard) -> Outcome {
        Ok(held.release().await?)
    }

    fn is_held(held: &latchwork::Guard) -> bool {
        held.ensure_held().is_ok()
    }
}

/// Counts, for each grant of the contested key, the votes before it that nobody won. For one task.
///
/// Core tells its observer of each try that was blocked, and when looking again may pay. Where somebody holds the key
/// that is the rest of the lease of 30 s, or a quarter of a second at least if only one server was asked; after a
/// split vote it is a pause by lot of milliseconds.
#[derive(Default)]
struct Votes(Mutex<Counted>);

#[derive(Default)]
struct Counted {
    /// Of the grant that is being waited for.
    splits: usize,
    /// How many grants had so many.
    grants: Vec<u64>,
    /// Votes that found a holder.
    held: u64,
}

impl Votes {
    /// Longer than the pauses, and shorter than all else.
    const REST: Duration = Duration::from_millis(249);

    /// How many votes found a holder; then how many grants had no split vote, one, two...
    fn told(&self) -> String {
        let Counted { held, grants, .. } = &*self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let grants: Vec<String> = grants.iter().map(ToString::to_string).collect();
        format!("{held} {}", grants.join(" "))
    }
}

impl latchwork::Observer for Votes {
    fn event(&self, event: &Event<'_>) {
        let mut counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Waiting { blocked, .. } => match blocked.retry_after {
                Some(after) if after < Self::REST => counted.splits += 1,
                _ => counted.held += 1,
            },
            Event::Acquired { key, .. } if key.as_str() == "bench" => {
                let splits = std::mem::take(&mut counted.splits);
                if counted.grants.len() <= splits {
                    counted.grants.resize(splits + 1, 0);
                }
                counted.grants[splits] += 1;
            }
            _ => {}
        }
    }
}

/// After an error, as a service would.
const PAUSE: Duration = Duration::from_millis(20);

/// Holds one key again and again, whatever happens to the store: for the line `UNTIL MILLISECONDS`, for so long each
/// time, until then. Prints a line for each hold, and in the end how many acquires failed.
async fn steady(locks: &LockManager) -> Outcome {
    let (mut lines, mutex) = (input(), locks.mutex("bench"));
    println!("ready");
    let line = lines.recv().await.ok_or("no word to begin")?;
    let (until, length) = line.split_once(' ').ok_or("UNTIL MILLISECONDS")?;
    let (until, length) = (until.parse::<u64>()?, Duration::from_millis(length.parse()?));
    let mut failed = 0;
    while now() < until {
        let left = Duration::from_nanos(until.saturating_sub(now()));
        let guard = match mutex.acquire_within(left).await {
            Ok(guard) => guard,
            Err(error) if error.kind() == ErrorKind::TimedOut => break,
            Err(error) => {
                eprintln!("latchwork: {error}");
                failed += 1;
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let (acquired, token) = (now(), guard.token());
        let was_told = tokio::select! {
            _ = guard.lost() => true,
            () = tokio::time::sleep(length) => guard.ensure_held().is_err(),
        };
        // A process that hears this stops.
        let ended = now();
        // A release without an answer goes on by itself.
        let released = guard.release().await;
        let told = released.is_err_and(|e| e.kind() == ErrorKind::Lost) || was_told;
        println!("{acquired} {ended} {token} {}", u8::from(told));
    }
    println!("failed {failed}");
    Ok(())
}
