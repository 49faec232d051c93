//! Acquires on the file store that are dropped at random, in real time.

use std::fs::{self, DirEntry};
use std::path::Path;
use std::time::Duration;

use latchwork::{Driver, LockManager};
use latchwork_store::random_between;
use tokio::task::JoinSet;

const TASKS: usize = 20;
const ROUNDS: usize = 500;

/// The open descriptors of files below a folder: other trials of the process open their own.
fn descriptors_below(folder: &Path) -> usize {
    let all = fs::read_dir("/proc/self/fd").unwrap();
    let leads_there =
        |fd: &DirEntry| fs::read_link(fd.path()).is_ok_and(|to| to.starts_with(folder));
    all.filter_map(Result::ok).filter(leads_there).count()
}

async fn nothing_is_left(locks: &LockManager) -> bool {
    locks.list("").await.unwrap().is_empty()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h25_ten_thousand_acquires_dropped_at_random_leave_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("file://{}", dir.path().display());
    let timers = Driver::start().unwrap();
    let stores = [latchwork::connect(&url).await.unwrap(), latchwork::connect(&url).await.unwrap()];
    // Both have opened what they keep open.
    for locks in &stores {
        for key in 0..3 {
            drop(locks.mutex(format!("k{key}")).acquire().await.unwrap());
        }
    }
    let before = descriptors_below(dir.path());
    assert!(before > 0, "each store keeps some open");
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (locks, io) = (stores[task % 2].clone(), timers.io());
        tasks.spawn(async move {
            let mut admitted = 0;
            for round in 0..ROUNDS {
                let mut mutex = locks.mutex(format!("k{}", (task + round) % 3));
                if round % 5 == 0 {
                    mutex = mutex.fair();
                }
                let patience = random_between(Duration::ZERO, Duration::from_millis(2));
                if let Some(guard) = io.within(patience, mutex.acquire()).await {
                    guard.unwrap().ensure_held().unwrap();
                    admitted += 1;
                }
            }
            admitted
        });
    }
    let admitted: usize = tasks.join_all().await.iter().sum();
    assert!(admitted > 100 && admitted < TASKS * ROUNDS, "{admitted} of 10,000 were admitted");
    // What was dropped last is given back in the background.
    let mut looks = 0;
    while !nothing_is_left(&stores[0]).await {
        looks += 1;
        assert!(looks < 500, "still there: {:?}", stores[0].list("").await.unwrap());
        timers.io().sleep(Duration::from_millis(10)).await;
    }
    for locks in &stores {
        for key in 0..3 {
            // The line of the process ends a moment after the store's answer to the last release.
            let mutex = locks.mutex(format!("k{key}"));
            let guard = mutex.acquire_within(Duration::from_secs(5)).await;
            guard.expect("no line is left behind in the process").release().await.unwrap();
        }
    }
    let after = descriptors_below(dir.path());
    assert!(after <= before + 8, "{before} descriptors before, {after} after");
}
