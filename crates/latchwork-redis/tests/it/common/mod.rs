//! What the tests share: a server behind a proxy, clients of it, and processes to be killed.

#![allow(dead_code, unreachable_pub, unused_imports, reason = "each test file uses a part")]

pub mod bare;
pub mod clients;
pub mod turning;
pub mod world;

pub use latchwork_store::testing::stalls;
pub use std::time::{Duration, Instant};

pub use clients::*;
pub use latchwork_services::child::*;
pub use world::*;

pub const SEC: Duration = Duration::from_secs(1);
pub const MS: Duration = Duration::from_millis(1);

/// A pushed grant lasts so long until its first renewal.
pub const PROBATION: Duration = Duration::from_secs(2);

/// What a loaded machine may add to any time.
pub const SLACK: Duration = Duration::from_millis(1_500);

/// Runs an async test, and fails it rather than hanging.
pub fn run(test: impl Future<Output = ()>) {
    stalls::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let limit = Duration::from_secs(50);
        tokio::time::timeout(limit, test).await.expect("the test has not ended within its limit");
    });
}

pub async fn pause(length: Duration) {
    tokio::time::sleep(length).await;
}

/// Looks every few milliseconds until something is so; tells how long it took.
pub async fn until(what: &str, limit: Duration, mut so: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !so() {
        let took = start.elapsed();
        assert!(took < stalls::widened(limit, took), "not within {limit:?}: {what}");
        pause(5 * MS).await;
    }
    start.elapsed()
}

/// The output of a future, and how long it took; fails if that is longer than `limit`.
pub async fn within<T>(what: &str, limit: Duration, future: impl Future<Output = T>) -> T {
    let (start, mut future) = (Instant::now(), std::pin::pin!(future));
    loop {
        let took = start.elapsed();
        let left = stalls::widened(limit, took).checked_sub(took);
        let left = left.unwrap_or_else(|| panic!("not within {limit:?}: {what}"));
        if let Ok(output) = tokio::time::timeout(left, &mut future).await {
            return output;
        }
    }
}

/// Fails if something took longer than this, and than what the machine stalled meanwhile.
#[track_caller]
pub fn in_time(took: Duration, limit: Duration) {
    let widened = stalls::widened(limit, took);
    assert!(
        took <= widened,
        "took {took:?}, of {limit:?} that a stalled machine makes {widened:?}"
    );
}
