//! The process whose costs the curves measure: waiters on one key, keys used once, or many holds.

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use latchwork::{Event, Guard, Lock, LockManager, Observer};
use tokio::runtime::Builder;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::child::Worker;
use crate::roles::{Outcome, cpu_time, input, now};
use crate::times::Times;

pub(crate) const ROLE: &str = "child-growth";
/// So many are under way at a time.
const AT_ONCE: usize = 64;

/// Starts such a process, and waits until it is ready.
pub(crate) fn start(
    role: &str,
    url: &str,
    ttl: Duration,
) -> Result<Worker, Box<dyn std::error::Error>> {
    let ttl = ttl.as_millis().to_string();
    let mut command = Command::new(std::env::current_exe()?);
    let mut worker = Worker::spawn(command.args([ROLE, role, url, &ttl]))?;
    match worker.line()?.as_str() {
        "ready" => Ok(worker),
        other => Err(format!("a process said {other:?} instead of \"ready\"").into()),
    }
}

/// The entry of a started process: `ROLE URL TTL`.
pub(crate) fn run(args: &[String]) -> Outcome {
    let [role, url, ttl] = args else { return Err("ROLE URL TTL".into()) };
    let ttl = Duration::from_millis(ttl.parse()?);
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let locks = latchwork::connect(url).await?.ttl(ttl);
        locks.mutex("warm").acquire().await?.release().await?;
        match role.as_str() {
            "waiters" => waiters(&locks, queues_in_the_store(url)).await,
            "keys" => keys(&locks).await,
            "holds" => holds(&locks).await,
            "paced" => paced(&locks).await,
            _ => Err(format!("no role: {role}").into()),
        }
    })
}

/// A quorum has no queue of its own: as in one process without a store, the waiters of a client share the client's.
fn queues_in_the_store(url: &str) -> bool {
    url != "mem:" && !url.starts_with("redlock")
}

/// Notices that one waiter waits: in the store's queue, or in that of this process.
struct Joined {
    in_the_store: bool,
    is_known: AtomicBool,
    count: Arc<AtomicUsize>,
    more: Arc<Notify>,
}

impl Observer for Joined {
    fn event(&self, event: &Event<'_>) {
        let waits = match event {
            Event::Waiting { .. } => self.in_the_store,
            Event::WaitBegan { .. } => !self.in_the_store,
            _ => false,
        };
        if waits && !self.is_known.swap(true, Relaxed) {
            self.count.fetch_add(1, Relaxed);
            self.more.notify_one();
        }
    }
}

/// A lock whose waiters have a place in the store's queue each, where the store has one; in memory they
/// are in the queue of the process.
fn contested(locks: &LockManager, in_the_store: bool) -> Lock {
    match locks.capabilities().fifo {
        _ if !in_the_store => locks.mutex("bench"),
        true => locks.mutex("bench").fair(),
        false => locks.semaphore("bench", 1).permit(),
    }
}

/// For `join COUNT` lets so many wait for a key that is held, and says so when all of them do. For
/// `move MILLIS` releases it, and each waiter holds it for so long. For `drain` no waiter holds it for
/// longer than a moment any more; tells how many seconds passed until all had held it, how many had, and
/// the times from a release to the next hold since then.
async fn waiters(locks: &LockManager, in_the_store: bool) -> Outcome {
    let mut lines = input();
    println!("ready");
    while let Some(line) = lines.recv().await {
        let Some(("join", count)) = line.split_once(' ') else { break };
        let count: usize = count.parse()?;
        let holder = contested(locks, in_the_store).acquire().await?;
        let joined = Arc::new(AtomicUsize::new(0));
        let more = Arc::new(Notify::new());
        let last = Arc::new(AtomicU64::new(0));
        let hold = Arc::new(AtomicU64::new(0));
        let mut tasks = JoinSet::new();
        for _ in 0..count {
            let is_known = AtomicBool::new(false);
            let (counter, notify) = (joined.clone(), more.clone());
            let seen = Joined { in_the_store, is_known, count: counter, more: notify };
            let lock = contested(&locks.clone().observer(Arc::new(seen)), in_the_store);
            let (last, hold) = (last.clone(), hold.clone());
            tasks.spawn(async move {
                let guard = lock.acquire().await.map_err(|error| error.to_string())?;
                let took = now() - last.load(Relaxed);
                let millis = hold.load(Relaxed);
                if millis > 0 {
                    tokio::time::sleep(Duration::from_millis(millis)).await;
                }
                last.store(now(), Relaxed);
                guard.release().await.map_err(|error| error.to_string())?;
                Ok::<_, String>((took, millis > 0))
            });
        }
        while joined.load(Relaxed) < count {
            // One that fails would never join.
            tokio::select! {
                () = more.notified() => {}
                Some(ended) = tasks.join_next() => {
                    let why = match ended {
                        Err(error) => error.to_string(),
                        Ok(Err(error)) => error,
                        Ok(Ok(_)) => "the holder's ttl was over".into(),
                    };
                    println!("a waiter ended while the key was held: {why}");
                    return Ok(());
                }
            }
        }
        println!("joined");
        let mut line = lines.recv().await.ok_or("no word to go on")?;
        let mut holder = Some(holder);
        if let Some(("move", millis)) = line.split_once(' ') {
            hold.store(millis.parse()?, Relaxed);
            last.store(now(), Relaxed);
            holder.take().ok_or("nobody holds it")?.release().await?;
            line = lines.recv().await.ok_or("no word to drain")?;
        }
        if line != "drain" {
            break;
        }
        let start = now();
        hold.store(0, Relaxed);
        if let Some(holder) = holder {
            last.store(start, Relaxed);
            holder.release().await?;
        }
        let (mut served, mut times) = (0, Times::default());
        while let Some(ended) = tasks.join_next().await {
            match ended? {
                Ok((took, moving)) => {
                    served += 1;
                    // Of those before, many waited for one that held it on purpose.
                    if !moving {
                        times.record(took);
                    }
                }
                Err(error) => eprintln!("a waiter: {error}"),
            }
        }
        println!("{} {served} times {times}", (now() - start) as f64 / 1e9);
    }
    Ok(())
}

/// For `use FROM TO` uses each key once, and tells how many seconds that took, how many failed, its
/// processor time in seconds, and the times of each.
async fn keys(locks: &LockManager) -> Outcome {
    let mut lines = input();
    println!("ready");
    while let Some(line) = lines.recv().await {
        let words: Vec<&str> = line.split(' ').collect();
        let ["use", from, to] = words[..] else { break };
        let (next, to) = (Arc::new(AtomicUsize::new(from.parse()?)), to.parse::<usize>()?);
        let (start, spent) = (now(), cpu_time());
        let mut tasks = JoinSet::new();
        for _ in 0..AT_ONCE {
            let (locks, next) = (locks.clone(), next.clone());
            tasks.spawn(async move {
                let (mut failed, mut times) = (0, Times::default());
                loop {
                    let number = next.fetch_add(1, Relaxed);
                    if number >= to {
                        return (failed, times);
                    }
                    let begun = now();
                    let lock = locks.mutex(format!("once/{number}"));
                    let used = async { lock.acquire().await?.release().await }.await;
                    times.record(now() - begun);
                    if let Err(error) = used {
                        eprintln!("once/{number}: {error}");
                        failed += 1;
                    }
                }
            });
        }
        let (mut failed, mut times) = (0, Times::default());
        while let Some(done) = tasks.join_next().await {
            let (some, took) = done?;
            failed += some;
            times.merge(&took);
        }
        let (seconds, cpu) = ((now() - start) as f64 / 1e9, (cpu_time() - spent) / 1e6);
        println!("{seconds} {failed} {cpu} times {times}");
    }
    Ok(())
}

/// For `take COUNT` takes locks until it has so many; for `cpu` tells its processor time in seconds;
/// for `held` how many are still held.
async fn holds(locks: &LockManager) -> Outcome {
    let mut lines = input();
    println!("ready");
    let guards: Arc<Mutex<Vec<Guard>>> = Arc::default();
    let count = || guards.lock().expect("nobody panics with it").len();
    while let Some(line) = lines.recv().await {
        match line.split_once(' ') {
            Some(("take", wanted)) => {
                let wanted: usize = wanted.parse()?;
                let next = Arc::new(AtomicUsize::new(count()));
                let mut tasks = JoinSet::new();
                for _ in 0..AT_ONCE {
                    let (locks, next, guards) = (locks.clone(), next.clone(), guards.clone());
                    tasks.spawn(async move {
                        loop {
                            let number = next.fetch_add(1, Relaxed);
                            if number >= wanted {
                                return Ok::<(), String>(());
                            }
                            let guard = locks.mutex(format!("held/{number}")).acquire().await;
                            let guard = guard.map_err(|error| error.to_string())?;
                            guards.lock().expect("nobody panics with it").push(guard);
                        }
                    });
                }
                while let Some(done) = tasks.join_next().await {
                    done??;
                }
                println!("taken");
            }
            None if line == "cpu" => println!("{}", cpu_time() / 1e6),
            None if line == "held" => {
                let guards = guards.lock().expect("nobody panics with it");
                let held = guards.iter().filter(|guard| guard.ensure_held().is_ok()).count();
                println!("{held}");
            }
            _ => break,
        }
    }
    Ok(())
}

/// For `pace RATE MILLIS` uses so many keys a second, each once, at even intervals; tells how many seconds
/// that took, how many were used, how many failed, and the times of each.
async fn paced(locks: &LockManager) -> Outcome {
    let mut lines = input();
    println!("ready");
    while let Some(line) = lines.recv().await {
        let words: Vec<&str> = line.split(' ').collect();
        let ["pace", rate, millis] = words[..] else { break };
        let between = Duration::from_secs(1).div_f64(rate.parse()?);
        let (start, length) = (now(), Duration::from_millis(millis.parse()?));
        let mut ticks = tokio::time::interval(between);
        let mut tasks = JoinSet::new();
        let until = start + length.as_nanos() as u64;
        for number in 0_u64.. {
            ticks.tick().await;
            if now() >= until {
                break;
            }
            let lock = locks.mutex(format!("paced/{start}/{number}"));
            tasks.spawn(async move {
                let begun = now();
                let used = async { lock.acquire().await?.release().await }.await;
                (now() - begun, used.map_err(|error| error.to_string()))
            });
        }
        let (mut done, mut failed, mut times) = (0, 0, Times::default());
        while let Some(ended) = tasks.join_next().await {
            let (took, used) = ended?;
            times.record(took);
            done += 1;
            if let Err(error) = used {
                eprintln!("paced: {error}");
                failed += 1;
            }
        }
        println!("{} {done} {failed} times {times}", (now() - start) as f64 / 1e9);
    }
    Ok(())
}
