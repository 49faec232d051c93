//! What the tests share: a runtime, and clients as other processes would be.

#![allow(dead_code, reason = "each test uses its own")]

use std::future::Future;
use std::time::{Duration, Instant};

use latchwork_core::{Driver, LockManager, Snapshot};
use latchwork_etcd::{EtcdBackend, EtcdConfig};

pub(crate) const SEC: Duration = Duration::from_secs(1);

pub(crate) fn run<F: Future>(test: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

pub(crate) async fn connect(url: &str) -> Result<LockManager, latchwork_core::Error> {
    let driver = Driver::start()?;
    let backend = EtcdBackend::connect(EtcdConfig::parse(url)?, driver.io()).await?;
    Ok(LockManager::new(backend, driver))
}

/// Locks with the shortest ttl.
pub(crate) async fn client(url: &str) -> LockManager {
    connect(url).await.expect("the store answers").ttl(2 * SEC)
}

pub(crate) async fn show(locks: &LockManager, name: &str) -> Snapshot {
    locks.inspect(name).await.unwrap()
}

/// Waits until the store shows a key so.
pub(crate) async fn until(locks: &LockManager, name: &str, such: impl Fn(&Snapshot) -> bool) {
    let start = Instant::now();
    loop {
        let shown = show(locks, name).await;
        if such(&shown) {
            return;
        }
        assert!(start.elapsed() < 20 * SEC, "it stays {shown:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
