//! A future that is kept and not polled, on real time and files.

use std::time::{Duration, Instant};

use latchwork::{LockManager, connect};

async fn managers() -> (tempfile::TempDir, LockManager, LockManager) {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("file://{}/locks", dir.path().display());
    let (one, other) = (connect(&url).await.unwrap(), connect(&url).await.unwrap());
    (dir, one, other)
}

/// `select!` keeps the first acquire while a branch acquires the same key, here and elsewhere.
#[tokio::test]
async fn h101_a_kept_future_delays_others_by_two_seconds() {
    let (_dir, locks, other) = managers().await;
    for next in [&locks, &other] {
        let held = other.mutex("k").acquire().await.unwrap();
        let mutex = locks.mutex("k");
        let kept = mutex.acquire();
        tokio::pin!(kept);
        tokio::select! {
            _ = &mut kept => panic!("it is held"),
            () = tokio::time::sleep(Duration::from_millis(50)) => {}
        }
        let start = Instant::now();
        held.release().await.unwrap();
        let guard = next.mutex("k").acquire_within(Duration::from_secs(20)).await.unwrap();
        // Two, and what the machine is late.
        let took = start.elapsed();
        assert!(took < Duration::from_secs(6), "delayed by {took:?}");
        guard.release().await.unwrap();
        let guard = kept.await.unwrap();
        guard.ensure_held().unwrap();
        guard.release().await.unwrap();
    }
}
