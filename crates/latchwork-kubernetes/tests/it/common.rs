//! A server that the quiet tests share, and clients.

use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use latchwork::{Driver, LockManager};
use latchwork_kubernetes::{KubernetesBackend, KubernetesConfig, doctor};
use latchwork_services::KubernetesServer;
use latchwork_store::doctor::Report;
use latchwork_store::{Claim, ClaimId, Clock, Io, Key, Mode, Moment, Sleep, Stamp};
use serde_json::Value;

/// The server of all tests that disturb nobody.
pub(crate) fn shared() -> &'static KubernetesServer {
    static SERVER: OnceLock<KubernetesServer> = OnceLock::new();
    SERVER.get_or_init(|| KubernetesServer::start().expect("an API server"))
}

/// A namespace that no other test uses.
pub(crate) fn namespace(server: &KubernetesServer) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("test-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    server.make_namespace(&name).expect("a namespace");
    name
}

pub(crate) async fn backend(url: &str, driver: &Driver) -> Arc<KubernetesBackend> {
    let config = KubernetesConfig::parse(url).expect("a good address");
    KubernetesBackend::connect(config, driver.io()).await.expect("the server runs")
}

/// A client as another process would be one.
pub(crate) async fn client(server: &KubernetesServer, namespace: &str) -> LockManager {
    at(&server.url(namespace).expect("a kubeconfig")).await
}

pub(crate) async fn at(url: &str) -> LockManager {
    let driver = Driver::start().expect("a driver");
    let backend = backend(url, &driver).await;
    LockManager::new(backend, driver)
}

/// What doctor says of an address.
pub(crate) async fn examine(url: &str) -> Report {
    let driver = Driver::start().expect("a driver");
    let config = KubernetesConfig::parse(url).expect("a good address");
    doctor(config, driver.io()).await.expect("it answers")
}

pub(crate) fn path(namespace: &str, name: &str) -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}")
}

/// A Lease as it is.
pub(crate) fn lease(server: &KubernetesServer, namespace: &str, name: &str) -> Value {
    let text = server.request("GET", &path(namespace, name), "").expect("a lease");
    serde_json::from_str(&text).expect("JSON")
}

/// Waits until something is so, and returns how long it took.
pub(crate) async fn until(
    what: &str,
    limit: Duration,
    mut is_so: impl AsyncFnMut() -> bool,
) -> Duration {
    let start = Instant::now();
    while !is_so().await {
        assert!(start.elapsed() < limit, "{what}: not within {limit:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    start.elapsed()
}

/// A claim that its test renews by itself, or not.
pub(crate) fn claim(name: &str, ttl: Duration) -> Claim {
    let key = Key::new(name).expect("a good key");
    Claim::new(key, ClaimId::random(), Mode::Exclusive, ttl, Stamp::new(Moment::from_nanos(0)))
}

/// A client whose wall clock is as many hours ahead as is set.
pub(crate) async fn skewed(
    server: &KubernetesServer,
    namespace: &str,
    hours: Arc<AtomicI64>,
) -> Arc<KubernetesBackend> {
    let config = KubernetesConfig::parse(&server.url(namespace).expect("a kubeconfig"));
    let backend =
        KubernetesBackend::connect(config.expect("a good address"), skewed_io(hours)).await;
    backend.expect("the server runs")
}

/// What such a client runs on.
pub(crate) fn skewed_io(hours: Arc<AtomicI64>) -> Io {
    let driver = Driver::start().expect("a driver");
    let io = driver.io();
    // It ends with the test's process.
    std::mem::forget(driver);
    let clock = Arc::new(Skewed { clock: io.clock().clone(), hours });
    Io::new(move |task| io.spawn(task), clock)
}

#[derive(Debug)]
struct Skewed {
    clock: Arc<dyn Clock>,
    hours: Arc<AtomicI64>,
}

impl Clock for Skewed {
    fn now(&self) -> Moment {
        self.clock.now()
    }

    fn wall(&self) -> Duration {
        let hours = self.hours.load(Ordering::Relaxed);
        let off = Duration::from_secs(hours.unsigned_abs() * 3_600);
        let wall = self.clock.wall();
        if hours < 0 { wall - off } else { wall + off }
    }

    fn sleep_until(&self, at: Moment) -> Sleep {
        self.clock.sleep_until(at)
    }
}
