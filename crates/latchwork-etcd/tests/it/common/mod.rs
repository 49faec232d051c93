//! What the tests share: a runtime, and clients as other processes would be.

#![allow(dead_code, reason = "each test uses its own")]

use std::future::Future;
use std::time::{Duration, Instant};

use std::ops::Deref;
use std::sync::Arc;

use latchwork::{Driver, LockManager};
use latchwork_etcd::{EtcdBackend, EtcdConfig};
use latchwork_services::{EtcdServer, etcdctl};
pub(crate) use latchwork_store::testing::stalls;
use latchwork_store::{
    Attempt, Backend, BackendError, BackendErrorKind, Blocked, Claim, ClaimId, Key, Linger,
    Released, Renewal, Snapshot,
};

pub(crate) const SEC: Duration = Duration::from_secs(1);

pub(crate) fn run<F: Future>(test: F) -> F::Output {
    stalls::start();
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

pub(crate) async fn connect(url: &str) -> Result<LockManager, latchwork_store::Error> {
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
        assert!(start.elapsed() < 60 * SEC, "it stays {shown:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The verbs alone, without core.
pub(crate) struct Bare {
    backend: Arc<EtcdBackend>,
    locks: LockManager,
}

impl Deref for Bare {
    type Target = EtcdBackend;

    fn deref(&self) -> &EtcdBackend {
        &self.backend
    }
}

pub(crate) async fn bare(url: &str) -> Bare {
    let driver = Driver::start().unwrap();
    let config = EtcdConfig::parse(url).unwrap();
    let backend = EtcdBackend::connect(config, driver.io()).await.unwrap();
    Bare { locks: LockManager::new(backend.clone(), driver), backend }
}

/// An exclusive claim that waits.
pub(crate) fn claim(key: &str) -> Claim {
    latchwork_store::testing::claim(key)
}

impl Bare {
    /// To look at the store with.
    pub(crate) fn locks(&self) -> &LockManager {
        &self.locks
    }

    pub(crate) fn shared(&self) -> Arc<EtcdBackend> {
        self.backend.clone()
    }

    /// The token of a grant.
    pub(crate) async fn granted(&self, claim: &Claim) -> u64 {
        match answered(|| self.try_acquire(claim)).await {
            Attempt::Granted(grant) => grant.token,
            blocked => panic!("{blocked:?}"),
        }
    }

    pub(crate) async fn blocked(&self, claim: &Claim) -> Blocked {
        match answered(|| self.try_acquire(claim)).await {
            Attempt::Blocked(blocked) => blocked,
            granted => panic!("{granted:?}"),
        }
    }

    pub(crate) async fn held(&self, claim: &Claim) -> bool {
        let renew = || async { self.renew_all(std::slice::from_ref(claim)).await.remove(0) };
        match answered(renew).await {
            Renewal::Held { .. } => true,
            Renewal::Lost => false,
        }
    }

    pub(crate) async fn released(&self, claim: &Claim) -> Released {
        answered(|| self.release(claim, Linger::None)).await
    }
}

/// Asks again as core does while there is no answer: a connection that was cut may be noticed by the
/// request after the next only.
pub(crate) async fn answered<T, F>(verb: impl Fn() -> F) -> T
where
    F: Future<Output = Result<T, BackendError>>,
{
    let start = Instant::now();
    loop {
        match verb().await {
            Err(error) if error.kind == BackendErrorKind::Unreachable => {
                assert!(start.elapsed() < 60 * SEC, "{error:?}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            answer => return answer.unwrap(),
        }
    }
}

/// The keys of a line, in its order.
pub(crate) fn keys_of(server: &EtcdServer, name: &str) -> Vec<String> {
    keys_with(server, name, &[])
}

/// As [`keys_of`], with more options for `etcdctl`.
pub(crate) fn keys_with(server: &EtcdServer, name: &str, options: &[&str]) -> Vec<String> {
    let prefix = format!("{name}/");
    let get = ["get", &prefix, "--prefix", "--keys-only", "--sort-by=CREATE", "--order=ASCEND"];
    let keys = etcdctl(server.port(), &[options, &get].concat()).unwrap();
    keys.split_whitespace().map(str::to_owned).collect()
}

/// The lease that a key of a line is named after.
pub(crate) fn lease_of(key: &str) -> &str {
    key.rsplit('/').next().unwrap()
}

/// Waits until the server has counted so much.
pub(crate) async fn counted(
    server: &EtcdServer,
    name: &str,
    label: &str,
    such: impl Fn(f64) -> bool,
) {
    let start = Instant::now();
    loop {
        let count = server.measure(name, label).unwrap();
        if such(count) {
            return;
        }
        assert!(start.elapsed() < 60 * SEC, "{name} {label} stays {count}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// How many watches the server serves.
pub(crate) async fn watches(server: &EtcdServer, such: impl Fn(f64) -> bool) {
    counted(server, "etcd_debugging_mvcc_watcher_total", "", such).await;
}

/// What the server has answered: transactions, reads, keep-alives, grants of leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Requests {
    pub(crate) transactions: u64,
    pub(crate) reads: u64,
    pub(crate) keep_alives: u64,
    pub(crate) leases: u64,
    pub(crate) revoked: u64,
}

impl Requests {
    /// Those until now. A client has the answer before the server has counted it, so what is under way is waited for.
    pub(crate) fn of(server: &EtcdServer) -> Self {
        let start = Instant::now();
        loop {
            let measures = server.measures().unwrap();
            let of = |name: &str, method: &str| {
                measures.sum(name, &format!("grpc_method=\"{method}\"")) as u64
            };
            let [txn, range, grant, revoke] =
                ["Txn", "Range", "LeaseGrant", "LeaseRevoke"].map(|method| {
                    (
                        of("grpc_server_handled_total", method),
                        of("grpc_server_started_total", method),
                    )
                });
            let is_settled =
                [txn, range, grant, revoke].iter().all(|(handled, started)| handled == started);
            assert!(start.elapsed() < 20 * SEC, "requests are under way for 20 s");
            if is_settled {
                return Self {
                    transactions: txn.0,
                    reads: range.0,
                    keep_alives: of("grpc_server_msg_received_total", "LeaseKeepAlive"),
                    leases: grant.0,
                    revoked: revoke.0,
                };
            }
        }
    }

    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            transactions: self.transactions - before.transactions,
            reads: self.reads - before.reads,
            keep_alives: self.keep_alives - before.keep_alives,
            leases: self.leases - before.leases,
            revoked: self.revoked - before.revoked,
        }
    }
}

/// A claim on `key` that is another one than [`claim`]'s.
pub(crate) fn like(other: &Claim, key: &str) -> Claim {
    other.clone().with(|it| {
        it.key = Key::new(key).unwrap();
        it.id = ClaimId::random();
    })
}
