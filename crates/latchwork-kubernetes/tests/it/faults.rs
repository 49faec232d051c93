//! Faults of the API server and of the etcd under it, and a crowd.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use latchwork_services::{ADMIN, Cut, KubernetesServer, Proxy, Silent};
use latchwork_store::testing::stalls;
use latchwork_store::{Attempt, Backend as _, Linger, Released, Renewal};
use latchwork_wire::testing::name_host;

use crate::common::{at, backend, claim, client, namespace, shared};

const SEC: Duration = Duration::from_secs(1);

/// Strikes an API server under a hold and a waiter. After so long the hold is renewed and the waiter still waits; then
/// it gets a larger token. Without a ttl it is the default.
async fn lives_on(
    mut server: KubernetesServer,
    ttl: Option<Duration>,
    length: Duration,
    strike: impl FnOnce(&mut KubernetesServer),
) {
    let space = namespace(&server);
    let (a, b) = (client(&server, &space).await, client(&server, &space).await);
    let a = if let Some(ttl) = ttl { a.ttl(ttl) } else { a };
    let guard = a.mutex("k").acquire().await.expect("it is free");
    let waits = tokio::spawn(async move { b.mutex("k").acquire().await });
    tokio::time::sleep(SEC).await;
    tokio::task::block_in_place(|| strike(&mut server));
    tokio::time::sleep(length).await;
    guard.ensure_held().expect("it was renewed afterwards");
    assert!(!waits.is_finished());
    let token = guard.token();
    guard.release().await.expect("it is held");
    let next = tokio::time::timeout(5 * SEC, waits).await.expect("the watch was resumed");
    assert!(next.expect("no panic").expect("its turn").token() > token);
}

/// H323: the next version reads what the last one has written, and clients go on.
#[tokio::test(flavor = "multi_thread")]
async fn h323_an_upgrade_of_the_api_server_costs_no_lock() {
    let older = KubernetesServer::start_version("kube-apiserver@1.31.4").expect("an API server");
    let upgrade =
        |server: &mut KubernetesServer| server.upgrade("kube-apiserver@1.37.2").expect("it starts");
    lives_on(older, Some(60 * SEC), 60 * SEC, upgrade).await;
}

/// The API server is killed and started again: holds live on, waiters are served, and tokens grow.
#[tokio::test(flavor = "multi_thread")]
async fn h175_a_restart_of_the_api_server_loses_no_lock() {
    let restart = |server: &mut KubernetesServer| server.restart().expect("it starts again");
    let server = KubernetesServer::start().expect("an API server");
    lives_on(server, None, 12 * SEC, restart).await;
}

/// While the API server stands still, holders stop in time, and nobody is admitted before that.
#[tokio::test(flavor = "multi_thread")]
async fn h176_a_stopped_api_server_ends_holds_by_their_time() {
    let mut server = KubernetesServer::start().expect("an API server");
    let space = namespace(&server);
    let (a, b) = (client(&server, &space).await.ttl(4 * SEC), client(&server, &space).await);
    let guard = a.mutex("k").acquire().await.expect("it is free");
    server.stop().expect("it runs");
    let stopped = Instant::now();
    let lost = tokio::time::timeout(6 * SEC, guard.lost()).await.expect("its validity ends");
    assert_eq!(lost.reason, latchwork::LostReason::Expired);
    assert!(stopped.elapsed() > 2 * SEC, "{:?}", stopped.elapsed());
    let error = b.mutex("k").acquire_within(SEC).await.expect_err("nobody answers");
    let kinds = [latchwork::ErrorKind::Unreachable, latchwork::ErrorKind::TimedOut];
    assert!(kinds.contains(&error.kind()), "{error}");
    server.cont().expect("it is stopped");
    let next = tokio::time::timeout(15 * SEC, b.mutex("k").acquire()).await.expect("it answers");
    assert!(next.expect("no fault").token() > guard.token());
}

/// H303: a write of a try that was dropped is under way when its claim is released.
#[tokio::test(flavor = "multi_thread")]
async fn h303_a_release_comes_after_the_write_of_a_dropped_try() {
    let mut server = KubernetesServer::start().expect("an API server");
    let space = namespace(&server);
    let driver = latchwork::Driver::start().expect("a driver");
    let store = backend(&server.url(&space).expect("a kubeconfig"), &driver).await;
    let release = |claim| {
        let store = store.clone();
        async move { store.release(&claim, Linger::None).await.expect("no fault") }
    };
    let claims: Vec<_> = (0..16).map(|n| claim(&format!("k{n}"), 60 * SEC)).collect();
    for known in &claims {
        let before = claim(known.key.as_str(), 60 * SEC);
        store.try_acquire(&before).await.expect("no fault");
        release(before).await;
    }
    server.stop().expect("it runs");
    let tries = claims.iter().map(|claim| store.try_acquire(claim));
    let all = futures_util::future::join_all(tries);
    assert!(tokio::time::timeout(SEC / 10, all).await.is_err(), "nobody answers");
    let releases: Vec<_> = claims.iter().cloned().map(|it| tokio::spawn(release(it))).collect();
    tokio::time::sleep(SEC / 10).await;
    server.cont().expect("it is stopped");
    for (released, claim) in releases.into_iter().zip(claims) {
        released.await.expect("no panic");
        assert_eq!(release(claim).await, Released::NotHeld, "nothing is left to release");
    }
}

/// etcd is killed under the API server and started again.
#[tokio::test(flavor = "multi_thread")]
async fn h177_a_restart_of_etcd_loses_no_lock() {
    let mut server = KubernetesServer::start().expect("an API server");
    let space = namespace(&server);
    let (a, b) = (client(&server, &space).await, client(&server, &space).await);
    let guard = a.mutex("k").acquire().await.expect("it is free");
    let token = guard.token();
    tokio::task::block_in_place(|| {
        server.etcd().kill();
        std::thread::sleep(3 * SEC);
        server.etcd().restart().expect("it starts again");
        server.await_ready().expect("the API server is ready again");
    });
    tokio::time::sleep(12 * SEC).await;
    guard.ensure_held().expect("it was renewed after the restart");
    assert!(b.mutex("k").try_acquire().await.expect("no fault").is_none());
    guard.release().await.expect("it is held");
    let next = b.mutex("k").acquire().await.expect("it is free");
    assert!(next.token() > token);
}

/// A renewal that comes too late takes its claim out of the record: a process that starts then would count the ttl of what
/// it sees for the first time.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_reported_lost_blocks_no_newcomer() {
    let server = shared();
    let space = namespace(server);
    let url = server.url(&space).expect("a kubeconfig");
    let driver = latchwork::Driver::start().expect("a driver");
    let late = backend(&url, &driver).await;
    let lapsing = claim("k", 2 * SEC);
    let granted = late.try_acquire(&lapsing).await.expect("no fault");
    assert!(matches!(granted, Attempt::Granted(_)), "{granted:?}");
    tokio::time::sleep(2 * SEC + SEC / 10).await;
    let renewed = late.renew_all(std::slice::from_ref(&lapsing)).await;
    assert!(matches!(renewed[0], Ok(Renewal::Lost)), "{renewed:?}");
    let newcomer = client(server, &space).await;
    assert!(newcomer.mutex("k").try_acquire().await.expect("no fault").is_some());
}

/// 64 clients on one key, each with a watch of its own: conflicts are no errors, no two hold at once, and all are served.
#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_contenders_are_all_served_one_at_a_time() {
    const CLIENTS: u32 = 64;
    let server = shared();
    let space = namespace(server);
    let inside = Arc::new(AtomicU32::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    let start = Instant::now();
    for _ in 0..CLIENTS {
        let (locks, inside) = (client(server, &space).await, inside.clone());
        tasks.spawn(async move {
            let guard = locks.mutex("k").acquire().await.expect("contention is no error");
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two hold");
            tokio::time::sleep(Duration::from_millis(5)).await;
            inside.fetch_sub(1, Ordering::SeqCst);
            let token = guard.token();
            guard.release().await.expect("it is held");
            token
        });
    }
    let mut tokens = tasks.join_all().await;
    println!("64 contenders were served in {:?}", start.elapsed());
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len() as u32, CLIENTS, "each has a token of its own");
}

/// A name of the API server has an address that drops packets, as that of a machine that is off.
#[tokio::test(flavor = "multi_thread")]
async fn h246_a_silent_address_of_the_api_server_costs_little() {
    stalls::start();
    let server = shared();
    let space = namespace(server);
    let proxy = Proxy::plain(server.port()).expect("a proxy");
    let numbered = server.kubeconfig("silent", ADMIN, proxy.port()).expect("a file");
    let named = numbered.with_file_name("silent-by-name.kubeconfig");
    let text = fs::read_to_string(&numbered).expect("it was written");
    fs::write(&named, text.replace("https://127.0.0.1:", "https://kubernetes:")).expect("a file");
    let (mut usual, mut took) = (Duration::MAX, Duration::MAX);
    // A busy machine adds to each; the least is what the address costs. This process has met none of them before.
    for last in 2..5 {
        let silent = SocketAddr::from(([127, 0, 0, last], proxy.port()));
        let _silent = Silent::at(silent).expect("nobody listens there");
        // The name that the certificate has.
        name_host("kubernetes", &[silent.ip(), Ipv4Addr::LOCALHOST.into()]);
        for (file, least) in [(&numbered, &mut usual), (&named, &mut took)] {
            let start = Instant::now();
            let locks = at(&format!("k8s://test/{space}?kubeconfig={}", file.display())).await;
            let guard = locks.mutex("k").ttl(4 * SEC).acquire().await.expect("it is free");
            *least = start.elapsed().min(*least);
            if last == 2 {
                for _ in 0..2 {
                    proxy.cut(Cut::Reset).expect("it runs");
                    tokio::time::sleep(2 * SEC).await;
                    guard.ensure_held().expect("the other address answers");
                }
            }
            guard.release().await.expect("it is held");
        }
    }
    let limit = stalls::widened(usual + Duration::from_millis(400), took);
    assert!(took < limit, "{took:?}; without the silent address {usual:?}");
}
