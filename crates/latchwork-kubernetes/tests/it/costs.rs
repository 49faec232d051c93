//! Requests, counted by the API server itself.

use std::process::{Command, Stdio};
use std::time::Duration;

use latchwork_services::{ADMIN, KubernetesServer, provided};

use crate::common::{client, namespace};

const SEC: Duration = Duration::from_secs(1);

/// How many requests about leases the server has answered, by verb. Its own controllers use leases too, elsewhere.
fn requests(server: &KubernetesServer, verb: &str) -> u64 {
    let text = server.request("GET", "/metrics", "").expect("its measures");
    let ours = text.lines().filter(|line| {
        line.starts_with("apiserver_request_total{")
            && line.contains("resource=\"leases\"")
            && line.contains("scope=\"namespace\"") | line.contains("scope=\"resource\"")
            && line.contains(&format!("verb=\"{verb}\""))
    });
    ours.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

fn all(server: &KubernetesServer) -> [u64; 4] {
    ["GET", "POST", "PUT", "LIST"].map(|verb| requests(server, verb))
}

/// A key that is known costs one request to acquire and one to release; an unknown one costs two to acquire. A holder
/// renews by one.
#[tokio::test(flavor = "multi_thread")]
async fn verbs_cost_as_many_requests_as_promised() {
    // Its own leases of the server are renewed every ten seconds: a server of its own, and short looks.
    let server = KubernetesServer::start().expect("an API server");
    let space = namespace(&server);
    let (a, b) = (client(&server, &space).await, client(&server, &space).await);
    let counted = async |what: &str, expected: [u64; 4], work: &mut dyn AsyncWork| {
        // What the server does for itself comes in between now and then: the least of six is what was asked.
        let mut least = [u64::MAX; 4];
        for _ in 0..6 {
            let before = all(&server);
            work.run().await;
            let after = all(&server);
            for n in 0..4 {
                least[n] = least[n].min(after[n] - before[n]);
            }
        }
        assert_eq!(least, expected, "{what}: GET, POST, PUT, LIST");
    };
    struct Fresh<'a>(&'a latchwork::LockManager, u32);
    struct Known<'a>(&'a latchwork::LockManager);
    impl AsyncWork for Fresh<'_> {
        fn run(&mut self) -> futures_util::future::BoxFuture<'_, ()> {
            self.1 += 1;
            // Held to the end, and not renewed meanwhile: a renewal is a request, too.
            let lock = self.0.mutex(format!("fresh-{}", self.1)).ttl(3_600 * SEC);
            Box::pin(async move { std::mem::forget(lock.acquire().await.expect("it is free")) })
        }
    }
    impl AsyncWork for Known<'_> {
        fn run(&mut self) -> futures_util::future::BoxFuture<'_, ()> {
            let lock = self.0.mutex("known");
            Box::pin(async move {
                lock.acquire().await.expect("free").release().await.expect("held");
            })
        }
    }
    a.mutex("known").acquire().await.expect("free").release().await.expect("held");
    counted("an unknown key", [1, 1, 0, 0], &mut Fresh(&a, 0)).await;
    counted("a known key, and its release", [0, 0, 2, 0], &mut Known(&a)).await;
    // Both know it by their watches: also the one that has never used it.
    counted("a key of another process", [0, 0, 2, 0], &mut Known(&b)).await;
}

trait AsyncWork {
    fn run(&mut self) -> futures_util::future::BoxFuture<'_, ()>;
}

/// A leader and a candidate, as client-go has them by default and as Latchwork has them with the same ttl: the requests of
/// a minute. What the server does for itself is counted before.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_and_a_candidate_ask_less_than_those_of_client_go() {
    let server = KubernetesServer::start().expect("an API server");
    let space = namespace(&server);
    let minute = async || {
        let before = all(&server).iter().sum::<u64>();
        tokio::time::sleep(30 * SEC).await;
        (all(&server).iter().sum::<u64>() - before) * 2
    };
    let alone = minute().await;
    let electors = ["a", "b"].map(|id| {
        let config = server.kubeconfig("admin", ADMIN, server.port()).expect("a file");
        Command::new(provided("elector").expect("the elector"))
            .args(["-kubeconfig", &config.to_string_lossy(), "-namespace", &space])
            .args(["-name", "theirs", "-id", id])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts")
    });
    tokio::time::sleep(5 * SEC).await;
    let theirs = minute().await.saturating_sub(alone);
    for mut elector in electors {
        elector.kill().expect("it runs");
        elector.wait().expect("it ends");
    }
    let (a, b) = (client(&server, &space).await, client(&server, &space).await);
    let ttl = 15 * SEC;
    let led = a.election("ours").ttl(ttl).campaign().await.expect("it is free");
    let waits = tokio::spawn(async move { b.election("ours").ttl(ttl).campaign().await.map(drop) });
    tokio::time::sleep(5 * SEC).await;
    let ours = minute().await.saturating_sub(alone);
    println!(
        "requests of a leader and a candidate in a minute: {ours}, client-go {theirs}, the server itself {alone}"
    );
    assert!(ours < theirs, "{ours} and {theirs}");
    led.resign().await.expect("it led");
    waits.await.expect("no panic").expect("its turn");
}

/// One process holds five locks and another waits for them, for a while: nobody asks for anything, and each process has
/// one watch.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_costs_nothing_but_the_watch() {
    let server = KubernetesServer::start_audited().expect("an API server");
    let space = namespace(&server);
    let (a, b) = (client(&server, &space).await, client(&server, &space).await.ttl(6 * SEC));
    let (mut guards, mut waiters) = (Vec::new(), tokio::task::JoinSet::new());
    for n in 0..5 {
        let name = format!("k-{n}");
        guards.push(a.mutex(&name).ttl(300 * SEC).acquire().await.expect("it is free"));
        let lock = b.mutex(&name);
        waiters.spawn(async move { lock.acquire().await.map(drop) });
    }
    // It repeats its place once, to show that it stays.
    tokio::time::sleep(12 * SEC).await;
    let before = server.lease_requests(&space).expect("a log");
    tokio::time::sleep(20 * SEC).await;
    let spent = server.lease_requests(&space).expect("a log") - before;
    assert_eq!(spent, 0, "each would have repeated its place five times");
    assert_eq!(server.lease_watches(&space).expect("a log"), 2);
    for guard in guards {
        guard.release().await.expect("it is held");
    }
    waiters.join_all().await.into_iter().for_each(|waited| waited.expect("its turn"));
}
