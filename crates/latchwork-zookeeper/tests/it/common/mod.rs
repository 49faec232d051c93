//! What the tests share: a runtime, clients as other processes would be, and claims of their own.

#![allow(dead_code, unreachable_pub, unused_imports, reason = "each test file uses a part")]

pub use latchwork_services::child as process;

use std::future::Future;
use std::sync::Arc;
pub use std::time::{Duration, Instant};

use latchwork::{Driver, LockManager};
pub use latchwork_services::{
    Cut, Direction, Loss, Lost as What, Proxy, ZooKeeperEnsemble, ZooKeeperOptions, ZooKeeperServer,
};
pub use latchwork_store::testing::stalls;
use latchwork_store::{
    Attempt, Backend, Blocked, Claim, ClaimId, Key, Linger, Mode, Order, Released, Renewal,
    Snapshot, Stamp,
};
use latchwork_zookeeper::{ZooKeeperBackend, ZooKeeperConfig};

pub const SEC: Duration = Duration::from_secs(1);
pub const MS: Duration = Duration::from_millis(1);

/// Runs an async test, and fails it rather than hanging.
pub fn run(test: impl Future<Output = ()>) {
    stalls::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        tokio::time::timeout(90 * SEC, test).await.expect("the test ends within its limit");
    });
}

pub fn url(port: u16) -> String {
    format!("zk://127.0.0.1:{port}")
}

pub async fn backend(url: &str) -> (Arc<ZooKeeperBackend>, Driver) {
    let driver = Driver::start().unwrap();
    let config = ZooKeeperConfig::parse(url).unwrap();
    (ZooKeeperBackend::connect(config, driver.io()).await.expect("the store answers"), driver)
}

/// The verbs alone, without the engine.
pub struct Client(pub Arc<ZooKeeperBackend>, Option<Driver>);

impl Client {
    pub async fn of(server: &ZooKeeperServer) -> Self {
        let (backend, driver) = backend(&server.url()).await;
        Self(backend, Some(driver))
    }

    /// Of a backend whose driver somebody else keeps.
    pub fn on(backend: Arc<ZooKeeperBackend>) -> Self {
        Self(backend, None)
    }

    pub async fn granted(&self, claim: &Claim) -> u64 {
        match self.0.try_acquire(claim).await.unwrap() {
            Attempt::Granted(grant) => grant.token,
            Attempt::Blocked(blocked) => panic!("{blocked:?}"),
        }
    }

    pub async fn blocked(&self, claim: &Claim) -> Blocked {
        match self.0.try_acquire(claim).await.unwrap() {
            Attempt::Blocked(blocked) => blocked,
            Attempt::Granted(grant) => panic!("{grant:?}"),
        }
    }

    pub async fn released(&self, claim: &Claim) {
        assert_eq!(self.0.release(claim, Linger::None).await.unwrap(), Released::Yes);
    }

    pub async fn held(&self, claim: &Claim) -> bool {
        let answer = self.0.renew_all(std::slice::from_ref(claim)).await.remove(0).unwrap();
        answer != Renewal::Lost
    }
}

/// Locks with a ttl of two seconds.
pub async fn client(url: &str) -> LockManager {
    let (backend, driver) = backend(url).await;
    LockManager::new(backend, driver).ttl(2 * SEC)
}

/// A claim on the key `k`.
pub fn claim(ttl: Duration) -> Claim {
    Claim::new(
        Key::new("k").unwrap(),
        ClaimId::random(),
        Mode::Exclusive,
        ttl,
        Stamp::parse("1").unwrap(),
    )
    .with(|it| it.holder = "a test".into())
}

pub async fn show(locks: &LockManager, name: &str) -> Snapshot {
    locks.inspect(name).await.unwrap()
}

/// Waits until the store shows a key so.
pub async fn until(locks: &LockManager, name: &str, such: impl Fn(&Snapshot) -> bool) {
    let start = Instant::now();
    loop {
        // Servers may be choosing a leader.
        let shown = locks.inspect(name).await;
        if shown.as_ref().is_ok_and(&such) {
            return;
        }
        assert!(start.elapsed() < 60 * SEC, "it stays {shown:?}");
        tokio::time::sleep(10 * MS).await;
    }
}

/// Waits until something is so.
pub async fn until_so(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < 60 * SEC, "it never comes: {what}");
        tokio::time::sleep(5 * MS).await;
    }
}
