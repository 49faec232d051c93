//! What an API server does to its clients: it is behind, it is overloaded, it has forgotten what a watch asks for, it
//! cannot be reached by one of two.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use latchwork::{ErrorKind, LockManager, LostReason};
use latchwork_services::{ADMIN, Cut, Direction, KubernetesServer, Proxy, etcdctl};
use latchwork_store::doctor::Severity;
use tokio::sync::{Mutex, MutexGuard};
use tokio::task::JoinSet;

use crate::access::account;
use crate::common::{at, client, examine, lease, namespace, path, shared, until};

const SEC: Duration = Duration::from_secs(1);

/// The address of the server by a proxy.
fn proxied(server: &KubernetesServer, proxy: &Proxy, space: &str) -> String {
    let file = server.kubeconfig(&format!("proxied-{space}"), ADMIN, proxy.port()).expect("a file");
    format!("k8s://test/{space}?kubeconfig={}", file.display())
}

/// A client that reaches the server so.
async fn through(server: &KubernetesServer, proxy: &Proxy, space: &str) -> LockManager {
    at(&proxied(server, proxy, space)).await
}

/// Two API servers over one etcd, of which the second hears from it by a proxy.
struct TwoServers {
    first: KubernetesServer,
    second: KubernetesServer,
    slow: Proxy,
}

/// Their start takes long, so that the trials which need them come one after another.
async fn two_servers() -> MutexGuard<'static, TwoServers> {
    static SERVERS: OnceLock<Mutex<TwoServers>> = OnceLock::new();
    let servers = SERVERS.get_or_init(|| {
        let mut first = KubernetesServer::start().expect("an API server");
        let slow = Proxy::plain(first.etcd().port()).expect("a proxy");
        let second = first.beside(slow.port()).expect("a second API server");
        Mutex::new(TwoServers { first, second, slow })
    });
    servers.lock().await
}

/// One of two API servers gets each answer of etcd half a second late, and what its watches say is as old. Clients of both
/// contend for one key.
#[tokio::test(flavor = "multi_thread")]
async fn clients_of_a_server_that_is_behind_exclude_the_others() {
    let servers = two_servers().await;
    let TwoServers { first, second, slow } = &*servers;
    let space = namespace(first);
    slow.delay(Direction::ToClient, SEC / 2);
    let front = Proxy::plain(second.port()).expect("a proxy");
    let (a, b) = (client(first, &space).await, through(first, &front, &space).await);
    let inside = Arc::new(AtomicU32::new(0));
    let mut tasks = JoinSet::new();
    for locks in [a.ttl(20 * SEC), b.ttl(20 * SEC)] {
        let inside = inside.clone();
        tasks.spawn(async move {
            let mut tokens = Vec::new();
            for _ in 0..4 {
                let guard = locks.mutex("k").acquire().await.expect("contention is no error");
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two hold");
                tokio::time::sleep(Duration::from_millis(20)).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                tokens.push(guard.token());
                guard.release().await.expect("it is held");
            }
            assert!(tokens.is_sorted(), "{tokens:?}");
            tokens
        });
    }
    let all = tokio::time::timeout(90 * SEC, tasks.join_all()).await.expect("all are served");
    let mut tokens = all.concat();
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), 8, "each has a token of its own");
    slow.delay(Direction::ToClient, Duration::ZERO);
}

/// A waiter's connection moves to a server that has not seen yet what the waiter has: it waits on, and is served.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_goes_on_at_a_server_that_is_behind() {
    let servers = two_servers().await;
    let TwoServers { first, second, slow } = &*servers;
    let space = namespace(first);
    let front = Proxy::plain(first.port()).expect("a proxy");
    let (a, b) = (client(first, &space).await, through(first, &front, &space).await);
    let guard = a.mutex("k").acquire().await.expect("it is free");
    let waits = tokio::spawn(async move { b.mutex("k").acquire().await });
    tokio::time::sleep(SEC).await;
    // From here on the second one hears nothing from etcd; what comes now it does not know.
    slow.freeze(Direction::ToClient);
    a.mutex("other").acquire().await.expect("free").release().await.expect("held");
    tokio::time::sleep(SEC).await;
    front.set_upstream(SocketAddr::from((Ipv4Addr::LOCALHOST, second.port())));
    front.cut(Cut::Reset).expect("it is cut");
    tokio::time::sleep(3 * SEC).await;
    assert!(!waits.is_finished(), "it is held");
    guard.release().await.expect("it is held");
    tokio::time::sleep(2 * SEC).await;
    slow.thaw(Direction::ToClient);
    let thawed = Instant::now();
    let next = tokio::time::timeout(20 * SEC, waits).await.expect("it is notified");
    drop(next.expect("no panic").expect("its turn"));
    println!("served {:?} after the server had caught up", thawed.elapsed());
}

/// Each answer comes a second late.
#[tokio::test(flavor = "multi_thread")]
async fn doctor_finds_answers_that_are_slow() {
    let server = shared();
    let space = namespace(server);
    let front = Proxy::plain(server.port()).expect("a proxy");
    front.delay(Direction::ToClient, SEC);
    let report = examine(&proxied(server, &front, &space)).await;
    let found = report.find("latency").expect("it measures");
    let expected = (Severity::Warning, "use a longer ttl, or find out why the API server is slow");
    assert_eq!((found.severity, &*found.remedy), expected, "{report:#?}");
}

/// H412: a webhook whose service is away refuses every write, and every read works.
#[tokio::test(flavor = "multi_thread")]
async fn h412_doctor_finds_a_webhook_that_refuses_all_writes() {
    let server = KubernetesServer::start().expect("an API server");
    let space = namespace(&server);
    let front = Proxy::plain(server.port()).expect("a proxy");
    let report = examine(&proxied(&server, &front, &space)).await;
    assert_eq!(report.find("write").expect("it writes").severity, Severity::Ok, "{report:#?}");
    let hook = r#"{"metadata": {"name": "away"}, "webhooks": [{
        "name": "away.example.com", "clientConfig": {"url": "https://127.0.0.1:1/"}, "failurePolicy": "Fail",
        "rules": [{"apiGroups": ["coordination.k8s.io"], "apiVersions": ["v1"], "operations": ["*"], "resources": ["leases"]}],
        "sideEffects": "None", "admissionReviewVersions": ["v1"]}]}"#;
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    server.request("POST", path, hook).expect("a webhook");
    until("the webhook counts", 60 * SEC, async || {
        let report = examine(&proxied(&server, &front, &space)).await;
        let write = report.find("write").expect("it writes");
        write.severity == Severity::Critical
            && write.found.contains("away.example.com")
            && write.remedy.contains("webhook")
            && !report.is_fit()
    })
    .await;
}

/// A server that takes one write at a time refuses the others by 429: they come again, and nobody fails.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_overloaded_is_asked_again() {
    let server = KubernetesServer::start_with(&[
        "--enable-priority-and-fairness=false",
        "--max-mutating-requests-inflight=1",
    ])
    .expect("an API server");
    let space = namespace(&server);
    let refused = || {
        let text = server.request("GET", "/metrics", "").expect("its measures");
        let ours = text.lines().filter(|line| {
            line.starts_with("apiserver_request_total{")
                && line.contains("code=\"429\"")
                && line.contains("resource=\"leases\"")
        });
        ours.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum::<u64>()
    };
    // An administrator is never refused.
    let verbs = ["get", "list", "watch", "create", "update"];
    let locks = at(&account(&server, &space, "app", &verbs)).await;
    let mut tasks = JoinSet::new();
    let start = Instant::now();
    for n in 0..32 {
        let lock = locks.mutex(format!("k-{n}"));
        tasks.spawn(async move {
            let guard = lock.acquire().await.expect("it is free");
            // Without an answer in time it says so, and the release goes on.
            let released = guard.release().await;
            if let Err(error) = released {
                assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
            }
        });
    }
    tokio::time::timeout(60 * SEC, tasks.join_all()).await.expect("all are served");
    until("all are free", 60 * SEC, async || {
        locks.list("").await.is_ok_and(|held| held.is_empty())
    })
    .await;
    let refused = refused();
    println!("32 locks at once: {refused} requests refused by 429, {:?}", start.elapsed());
    assert!(refused > 0, "nothing was refused");
}

/// A watch that asks for more than the server has kept (410) begins anew, and a release in between is noticed.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_of_versions_that_are_gone_begins_anew() {
    let mut server = KubernetesServer::start().expect("an API server");
    let space = namespace(&server);
    let front = Proxy::plain(server.port()).expect("a proxy");
    let (a, b) = (client(&server, &space).await, through(&server, &front, &space).await);
    let guard = a.mutex("k").acquire().await.expect("it is free");
    let (old, seen) = (guard.token(), lease(&server, &space, "k"));
    let version = seen["metadata"]["resourceVersion"].as_str().expect("a version");
    let waits = tokio::spawn(async move { b.mutex("k").ttl(60 * SEC).acquire().await });
    tokio::time::sleep(SEC).await;
    front.refuse_connections().expect("it is shut");
    front.cut(Cut::Reset).expect("it is cut");
    guard.release().await.expect("it is held");
    // All versions before now leave etcd, and the server starts without its memory of them.
    let leases = path(&space, "").trim_end_matches('/').to_owned();
    tokio::task::block_in_place(|| {
        let now = server.request("GET", &leases, "").expect("a list");
        let list: serde_json::Value = serde_json::from_str(&now).expect("JSON");
        let version = list["metadata"]["resourceVersion"].as_str().expect("a version");
        etcdctl(server.etcd().port(), &["compact", version]).expect("it is compacted");
        server.restart().expect("it starts again");
    });
    let watch = format!("{leases}?watch=1&timeoutSeconds=1&resourceVersion={version}");
    let said = server.request("GET", &watch, "");
    let said = said.unwrap_or_else(|error| error.to_string());
    assert!(said.contains("410"), "the old versions are gone: {said}");
    front.accept_connections().expect("it is open");
    let open = Instant::now();
    let next = tokio::time::timeout(15 * SEC, waits).await.expect("it looks");
    assert!(next.expect("no panic").expect("its turn").token() > old);
    println!("served {:?} after the way was open", open.elapsed());
}

/// A holder that reaches nobody stops before the next one begins.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_on_the_wrong_side_stops_before_the_next_begins() {
    let server = shared();
    let space = namespace(server);
    let front = Proxy::plain(server.port()).expect("a proxy");
    let (a, b) = (through(server, &front, &space).await, client(server, &space).await);
    let guard = a.mutex("k").ttl(4 * SEC).acquire().await.expect("it is free");
    let waits = tokio::spawn(async move {
        let guard = b.mutex("k").acquire().await.expect("its turn");
        (guard, Instant::now())
    });
    tokio::time::sleep(SEC).await;
    front.freeze(Direction::ToClient);
    front.freeze(Direction::ToServer);
    let parted = Instant::now();
    let lost = tokio::time::timeout(8 * SEC, guard.lost()).await.expect("its validity ends");
    let stopped = Instant::now();
    assert_eq!(lost.reason, LostReason::Expired);
    let (next, began) =
        tokio::time::timeout(20 * SEC, waits).await.expect("a ttl").expect("no panic");
    assert!(began > stopped, "two believed");
    assert!(next.token() > guard.token());
    println!("parted: stopped after {:?}, the next after {:?}", stopped - parted, began - parted);
    // What was under way arrives now, and changes nothing.
    front.thaw(Direction::ToClient);
    front.thaw(Direction::ToServer);
    tokio::time::sleep(SEC).await;
    next.ensure_held().expect("it is still its own");
}
