//! The process whose waiters the curves measure.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use latchwork::{Event, Lock, LockManager, Observer};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::roles::{Outcome, input, now};
use crate::times::Times;

/// Notices that one waiter waits: in the store's queue, or in that of this process.
struct Joined {
    in_the_store: bool,
    is_known: AtomicBool,
    all: Arc<(AtomicUsize, Notify)>,
}

impl Observer for Joined {
    fn event(&self, event: &Event<'_>) {
        let waits = match event {
            Event::Waiting { .. } => self.in_the_store,
            Event::WaitBegan { .. } => !self.in_the_store,
            _ => false,
        };
        if waits && !self.is_known.swap(true, Relaxed) {
            self.all.0.fetch_add(1, Relaxed);
            self.all.1.notify_one();
        }
    }
}

/// A lock whose waiters have a place in the store's queue each, where the store has one; in memory they are in the
/// queue of the process.
fn contested(locks: &LockManager, in_the_store: bool) -> Lock {
    match locks.capabilities().fifo {
        _ if !in_the_store => locks.mutex("bench"),
        true => locks.mutex("bench").fair(),
        false => locks.semaphore("bench", 1).permit(),
    }
}

/// For `join COUNT` lets so many wait for a key that is held, and says so when all of them do. For `move MILLIS`
/// releases it, and each waiter holds it for so long. For `drain` no waiter holds it for longer than a moment any more;
/// tells how many seconds passed until all had held it, how many had, and the times from a release to the next hold
/// since then.
pub(crate) async fn waiters(locks: &LockManager, url: &str) -> Outcome {
    // A quorum has no queue of its own: as in one process without a store, the waiters of a client share the client's.
    let in_the_store = url != "mem:" && !url.starts_with("redlock");
    locks.mutex("warm").acquire().await?.release().await?;
    let mut lines = input();
    println!("ready");
    while let Some(line) = lines.recv().await {
        let Some(("join", count)) = line.split_once(' ') else { break };
        let count: usize = count.parse()?;
        let mut holder = Some(contested(locks, in_the_store).acquire().await?);
        let all = Arc::new((AtomicUsize::new(0), Notify::new()));
        // When it was released last, and for how long it is to be held.
        let moments = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
        let mut tasks = JoinSet::new();
        for _ in 0..count {
            let seen = Joined { in_the_store, is_known: AtomicBool::new(false), all: all.clone() };
            let lock = contested(&locks.clone().observer(Arc::new(seen)), in_the_store);
            let moments = moments.clone();
            tasks.spawn(async move {
                let (last, hold) = &*moments;
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
        while all.0.load(Relaxed) < count {
            // One that fails would never join.
            tokio::select! {
                () = all.1.notified() => {}
                Some(ended) = tasks.join_next() => {
                    println!("a waiter ended while the key was held: {ended:?}");
                    return Ok(());
                }
            }
        }
        println!("joined");
        let (last, hold) = &*moments;
        let mut line = lines.recv().await.ok_or("no word to go on")?;
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
                // Of those before, many waited for one that held it on purpose.
                Ok((_, true)) => served += 1,
                Ok((took, false)) => {
                    served += 1;
                    times.record(took);
                }
                Err(error) => eprintln!("a waiter: {error}"),
            }
        }
        println!("{} {served} times {times}", (now() - start) as f64 / 1e9);
    }
    Ok(())
}
