//! One Lease for Latchwork and for an elector of client-go: each excludes the other, follows it, and takes over.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use latchwork::{ErrorKind, LostReason};
use latchwork_services::{ADMIN, KubernetesServer, provided};
use latchwork_store::testing::stalls;
use latchwork_store::{Attempt, Backend as _};

use crate::common::{client, lease, namespace, path, shared, until};

const SEC: Duration = Duration::from_secs(1);

/// A process with an elector of client-go.
struct Elector {
    child: Child,
    lines: Receiver<String>,
}

impl Elector {
    fn start(server: &KubernetesServer, namespace: &str, name: &str, id: &str) -> Self {
        let config = server.kubeconfig("admin", ADMIN, server.port()).expect("a file");
        let mut child = Command::new(provided("elector").expect("the elector"))
            .args(["-kubeconfig", &config.to_string_lossy(), "-namespace", namespace])
            .args(["-name", name, "-id", id, "-lease", "4s", "-renew", "3s", "-retry", "500ms"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Self { child, lines }
    }

    /// Waits for a line, for at most so long.
    async fn says(&self, line: &str, limit: Duration) {
        let start = Instant::now();
        loop {
            match self.lines.try_recv() {
                Ok(said) if said == line => return,
                Ok(_) => {}
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
            assert!(start.elapsed() < limit, "it does not say {line:?}");
        }
    }

    /// Whether it has said that it leads since it was last asked.
    fn has_led(&self) -> bool {
        self.lines.try_iter().any(|line| line == "leads")
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("it runs");
    }
}

impl Drop for Elector {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// While an elector leads, Latchwork waits, names it, and writes nothing; on its release it follows at once.
#[tokio::test(flavor = "multi_thread")]
async fn an_elector_excludes_latchwork_and_its_release_is_followed() {
    let server = shared();
    let space = namespace(server);
    let elector = Elector::start(server, &space, "leader", "pod-7");
    elector.says("leads", 20 * SEC).await;
    let locks = client(server, &space).await;
    let election = locks.election("leader").ttl(4 * SEC);
    assert!(election.try_campaign().await.expect("contention is no error").is_none());
    let shown = locks.inspect("leader").await.expect("it is shown");
    assert_eq!(&*shown.holders[0].holder.text, "pod-7");
    assert!(shown.notes.iter().any(|note| note.contains("another kind")), "{shown:?}");
    let error = election.campaign_within(SEC).await.expect_err("it is held");
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.to_string().contains("pod-7"), "{error}");
    // Longer than its duration: it renews, and is not taken over.
    let waits = tokio::spawn({
        let election = locks.election("leader").ttl(4 * SEC);
        async move { election.campaign().await.map(|led| (led, Instant::now())) }
    });
    tokio::time::sleep(6 * SEC).await;
    assert!(!waits.is_finished(), "it still leads");
    let asked = Instant::now();
    elector.signal(rustix::process::Signal::TERM);
    let (led, at) = waits.await.expect("no panic").expect("it is free");
    println!("client-go's release was followed after {:?}", at - asked);
    assert!(at - asked < 2 * SEC, "{:?}: its duration is 4 s", at - asked);
    led.resign().await.expect("it led");
}

/// H245: a controller decides who holds a Lease of coordinated leader election, whatever it says of its duration.
#[tokio::test(flavor = "multi_thread")]
async fn h245_a_lease_of_coordinated_election_is_refused() {
    // The feature is off by default, and the server drops the fields then.
    let on = [
        "--feature-gates=CoordinatedLeaderElection=true",
        "--runtime-config=api/alpha=true,api/beta=true",
    ];
    let server = KubernetesServer::start_with(&on).expect("an API server");
    let space = namespace(&server);
    let locks = client(&server, &space).await;
    let mine = locks.mutex("held").acquire().await.expect("it is free");
    for (name, spec) in [
        ("strategy", "{\"strategy\":\"OldestEmulationVersion\"}"),
        ("preferred", "{\"strategy\":\"OldestEmulationVersion\",\"preferredHolder\":\"b\"}"),
        (
            "led",
            "{\"strategy\":\"OldestEmulationVersion\",\"holderIdentity\":\"a\",\"leaseDurationSeconds\":1}",
        ),
    ] {
        let body = format!("{{\"metadata\":{{\"name\":\"{name}\"}},\"spec\":{spec}}}");
        let leases = path(&space, "");
        let made = server.request("POST", leases.trim_end_matches('/'), &body).expect("a lease");
        assert!(made.contains("OldestEmulationVersion"), "{made}");
        let mutex = locks.mutex(name);
        for error in [
            mutex.try_acquire().await.expect_err("it is managed"),
            mutex.acquire_within(20 * SEC).await.expect_err("it is managed"),
        ] {
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{name}: {error}");
            assert!(error.to_string().contains("spec.strategy is"), "{name}: {error}");
            assert!(error.next_step().is_some_and(|hint| hint.contains("another name")), "{error}");
        }
        let shown = locks.inspect(name).await.expect("it is shown");
        assert!(shown.notes.iter().any(|note| note.contains("coordinated")), "{shown:?}");
    }
    // A hold from before goes on, and can be released.
    let patch = "{\"spec\":{\"strategy\":\"OldestEmulationVersion\"}}";
    server.request("PATCH", &path(&space, "held"), patch).expect("a patch");
    mine.release().await.expect("it was held");
}

/// While Latchwork leads, an elector does not; it takes the key after the release, at its next look.
#[tokio::test(flavor = "multi_thread")]
async fn latchwork_excludes_an_elector_and_its_release_is_taken() {
    stalls::start();
    let server = shared();
    let space = namespace(server);
    let locks = client(server, &space).await;
    let led = locks.election("leader").ttl(3 * SEC).campaign().await.expect("it is free");
    let elector = Elector::start(server, &space, "leader", "pod-7");
    elector.says("started", 20 * SEC).await;
    tokio::time::sleep(7 * SEC).await;
    assert!(!elector.has_led(), "Latchwork leads and renews");
    led.resign().await.expect("it led");
    let released = Instant::now();
    elector.says("leads", 20 * SEC).await;
    println!("client-go followed a release after {:?}", released.elapsed());
    stalls::in_time(released, 3 * SEC);
    // Its first write has counted another holder, as its own rule is.
    let seen = lease(server, &space, "leader");
    assert_eq!(seen["spec"]["holderIdentity"], "pod-7");
    assert_eq!(seen["spec"]["leaseTransitions"], 1, "{seen}");
}

/// Each takes over from the other when that one dies without a release, and not before.
#[tokio::test(flavor = "multi_thread")]
async fn each_takes_over_from_the_other_after_its_death() {
    let server = shared();
    let space = namespace(server);
    let locks = client(server, &space).await;
    let elector = Elector::start(server, &space, "leader", "pod-7");
    elector.says("leads", 20 * SEC).await;
    let killed = Instant::now();
    elector.signal(rustix::process::Signal::KILL);
    let led = locks.election("leader").ttl(3 * SEC).campaign().await.expect("it ends");
    let took = killed.elapsed();
    println!("a killed client-go was followed after {took:?}");
    // It had renewed within half a second.
    assert!(took > 3 * SEC && took < 8 * SEC, "{took:?}: its duration is 4 s");
    let first = led.term();
    led.resign().await.expect("it led");
    // A holder that is never heard of again: its lease is neither renewed nor released.
    let driver = latchwork::Driver::start().expect("a driver");
    let url = server.url(&space).expect("a kubeconfig");
    let dies = crate::common::backend(&url, &driver).await;
    let claim = crate::common::claim("leader", 3 * SEC);
    let granted = dies.try_acquire(&claim).await.expect("no fault");
    assert!(matches!(granted, Attempt::Granted(_)), "{granted:?}");
    let gone = Instant::now();
    let other = Elector::start(server, &space, "leader", "pod-8");
    other.says("leads", 20 * SEC).await;
    println!("client-go followed a dead holder after {:?}", gone.elapsed());
    assert!(gone.elapsed() > 3 * SEC && gone.elapsed() < 10 * SEC, "{:?}", gone.elapsed());
    let locks = client(server, &space).await;
    other.signal(rustix::process::Signal::TERM);
    let led = locks.election("leader").ttl(3 * SEC).campaign().await.expect("it ends");
    assert!(led.term() > first, "tokens grow across other kinds of clients");
}

/// A client-go that takes the key from a holder whose lease it has seen end: that holder learns of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_learns_that_another_kind_of_client_has_the_key() {
    let server = shared();
    let space = namespace(server);
    let locks = client(server, &space).await;
    let guard = locks.mutex("leader").acquire().await.expect("it is free");
    let taken = "{\"spec\":{\"holderIdentity\":\"by-hand\",\"leaseDurationSeconds\":600}}";
    server.request("PATCH", &crate::common::path(&space, "leader"), taken).expect("a patch");
    let start = Instant::now();
    let lost = tokio::time::timeout(5 * SEC, guard.lost()).await.expect("the watch tells it");
    println!("a holder learnt of it after {:?}", start.elapsed());
    assert_eq!(lost.reason, LostReason::Taken);
    let rival = client(server, &space).await;
    assert!(rival.mutex("leader").try_acquire().await.expect("no fault").is_none());
    let shown = rival.inspect("leader").await.expect("it is shown");
    assert_eq!(&*shown.holders[0].holder.text, "by-hand");
    // Readers cannot share with it, and say so.
    let read = rival.rwlock("leader").read().try_acquire().await.expect_err("another kind");
    assert_eq!(read.kind(), ErrorKind::Mismatch);
    // A Lease without a duration never ends.
    let endless = "{\"spec\":{\"leaseDurationSeconds\":null}}";
    server.request("PATCH", &crate::common::path(&space, "leader"), endless).expect("a patch");
    let shown = rival.inspect("leader").await.expect("it is shown");
    assert_eq!(shown.holders[0].remaining, None);
    assert!(shown.notes.iter().any(|note| note.contains("never ends")), "{shown:?}");
    let free = "{\"spec\":{\"holderIdentity\":null}}";
    server.request("PATCH", &crate::common::path(&space, "leader"), free).expect("a patch");
    until("it is free", 2 * SEC, async || {
        rival.mutex("leader").try_acquire().await.expect("no fault").is_some()
    })
    .await;
}
