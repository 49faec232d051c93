//! Locks of other libraries on the same name: they keep ours out, ours keep them out, and nobody frees
//! what is another's.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use latchwork::{Driver, LockManager};
use latchwork_redis::{RedisBackend, RedisConfig};
use latchwork_services::{ClusterOptions, RedisCluster, RedisOptions, RedisServer, redis_cli};
use latchwork_store::{
    Attempt, Backend, Cause, Claim, ClaimId, ErrorKind, Key, Linger, Mode, Query, Released, Stamp,
};

const LONG: Duration = Duration::from_secs(30);

fn server() -> RedisServer {
    RedisServer::start(&RedisOptions::new()).unwrap()
}

async fn locks(url: &str) -> LockManager {
    let driver = Driver::start().unwrap();
    let config = RedisConfig::parse(url).unwrap();
    let backend = RedisBackend::connect(config, driver.io()).await.unwrap();
    LockManager::new(backend, driver)
}

async fn backend(url: &str) -> (Arc<RedisBackend>, Driver) {
    let driver = Driver::start().unwrap();
    let config = RedisConfig::parse(url).unwrap();
    (RedisBackend::connect(config, driver.io()).await.unwrap(), driver)
}

fn claim(driver: &Driver, name: &str, mode: Mode, ttl: Duration) -> Claim {
    Claim::new(Key::new(name).unwrap(), ClaimId::random(), mode, ttl, Stamp::new(driver.io().now()))
        .with(|it| {
            it.holder = "a test".into();
            it.waits = false;
        })
}

/// redis-py's Lock in a process of its own.
struct Python {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Python {
    fn start(port: u16) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/redis_lock.py");
        let mut child = Command::new("/usr/bin/python3")
            .args([script, &port.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 with the module redis (package python3-redis)");
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut python = Self { child, input, output };
        assert_eq!(python.answer(), "ready", "the package python3-redis is needed");
        python
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn ask(&mut self, line: &str) -> String {
        self.tell(line);
        self.answer()
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn cli(port: u16, line: &str) -> String {
    redis_cli(port, &line.split(' ').collect::<Vec<_>>()).unwrap()
}

/// A compare-and-delete as the whole family does it.
fn foreign_release(port: u16, name: &str, value: &str) -> String {
    let script = "if redis.call('get', KEYS[1]) == ARGV[1] then \
                  return redis.call('del', KEYS[1]) else return 0 end";
    redis_cli(port, &["EVAL", script, "1", name, value]).unwrap()
}

#[tokio::test]
async fn redis_py_and_latchwork_keep_each_other_out() {
    let server = server();
    for option in ["", "?plain=true"] {
        let locks = locks(&format!("{}{option}", server.url())).await;
        let mut python = Python::start(server.port());
        let mutex = locks.mutex("app:job").ttl(LONG);

        assert_eq!(python.ask("acquire app:job 30 0"), "True");
        assert!(mutex.try_acquire().await.unwrap().is_none());
        let late = mutex.acquire_within(Duration::from_millis(300)).await.unwrap_err();
        assert_eq!(late.kind(), ErrorKind::TimedOut);
        assert_eq!(python.ask("owned"), "True");

        let waiting = tokio::spawn({
            let mutex = mutex.clone();
            async move { mutex.acquire().await }
        });
        assert_eq!(python.ask("release"), "released");
        let guard = waiting.await.unwrap().unwrap();

        assert_eq!(python.ask("acquire app:job 30 0"), "False");
        assert_eq!(python.ask("acquire app:job 30 0.2"), "False");
        guard.ensure_held().unwrap();
        python.tell("acquire app:job 30 20");
        guard.release().await.unwrap();
        assert_eq!(python.answer(), "True");
        assert_eq!(python.ask("release"), "released");
        locks.close().await;
    }
}

#[tokio::test]
async fn a_client_frees_only_its_own_claims() {
    let server = server();
    let short = Duration::from_millis(150);
    for option in ["", "?plain=true"] {
        let (ours, driver) = backend(&format!("{}{option}", server.url())).await;
        let mut python = Python::start(server.port());

        // Theirs has run out and ours came: their release frees nothing.
        assert_eq!(python.ask("acquire k 0.15 0"), "True");
        let next = claim(&driver, "k", Mode::Exclusive, LONG);
        granted_soon(&ours, &next).await;
        assert_eq!(python.ask("owned"), "False");
        assert_eq!(python.ask("release"), "refused LockNotOwnedError");
        assert_eq!(foreign_release(server.port(), "k", "0123456789abcdef0123456789abcdef"), "0");
        let shown = ours.inspect(&Query::Key(next.key.clone())).await.unwrap();
        assert_eq!(shown[0].holders[0].id, Some(next.id));
        assert_eq!(ours.release(&next, Linger::None).await.unwrap(), Released::Yes);

        // Ours has run out and theirs came: our release frees nothing, and no renewal prolongs it.
        let late = claim(&driver, "k", Mode::Exclusive, short);
        granted_soon(&ours, &late).await;
        assert_eq!(python.ask("acquire k 30 20"), "True");
        let left: i64 = cli(server.port(), "PTTL k").parse().unwrap();
        let renewed = ours.renew_all(&[late.clone().with(|it| it.ttl = LONG * 10)]).await;
        assert_eq!(renewed[0].as_ref().unwrap(), &latchwork_store::Renewal::Lost);
        assert_eq!(ours.release(&late, Linger::None).await.unwrap(), Released::NotHeld);
        assert!(cli(server.port(), "PTTL k").parse::<i64>().unwrap() <= left);
        assert_eq!(python.ask("owned"), "True");
        assert_eq!(python.ask("release"), "released");
    }
}

async fn granted_soon(backend: &RedisBackend, claim: &Claim) {
    let start = Instant::now();
    while !matches!(backend.try_acquire(claim).await.unwrap(), Attempt::Granted(_)) {
        assert!(start.elapsed() < LONG, "never granted");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// What redis-cli, redis-py, node-redlock and redsync write: the name as given, a value of their own.
const VALUES: [(&str, &str); 5] = [
    ("redis-cli", "v"),
    ("redis-py", "6fa459eaee8a3ca4894edb77e160355e"),
    ("node-redlock", "9c1185a5c5e9fc54612808977ee8f548"),
    ("redsync", "q83vEjRWeJCrze8SNFZ4kA=="),
    ("redlock-rb", "6fa459ea-ee8a-3ca4-894e-db77e160355e"),
];

#[tokio::test]
async fn every_format_of_the_family_is_foreign_and_respected() {
    let server = server();
    let port = server.port();
    for option in ["", "?plain=true"] {
        let (ours, driver) = backend(&format!("{}{option}", server.url())).await;
        for (library, value) in VALUES {
            let set = format!("SET k {value} NX PX 10000");
            assert_eq!(cli(port, &set), "OK");
            for mode in [Mode::Exclusive, Mode::Read, Mode::Permits { take: 1, of: 2 }] {
                let own = claim(&driver, "k", mode, LONG);
                match ours.try_acquire(&own).await {
                    Ok(Attempt::Blocked(blocked)) => {
                        assert_eq!(blocked.cause, Cause::Foreign, "{library}");
                    }
                    // It is used as a mutex, or plain mode has nothing else.
                    Err(_) if mode != Mode::Exclusive => {}
                    other => panic!("{library} {mode:?}: {other:?}"),
                }
                assert_eq!(ours.release(&own, Linger::None).await.unwrap(), Released::NotHeld);
            }
            assert_eq!(cli(port, "GET k"), value, "{library}: ours has touched it");
            assert_eq!(foreign_release(port, "k", value), "1", "{library}");

            let own = claim(&driver, "k", Mode::Exclusive, LONG);
            granted_soon(&ours, &own).await;
            assert_eq!(cli(port, &set), "", "{library} took what is ours");
            assert_eq!(foreign_release(port, "k", value), "0", "{library}");
            assert_eq!(ours.release(&own, Linger::None).await.unwrap(), Released::Yes);
        }
    }
}

/// Every mode has the plain key, so the family is kept out by readers and permits too.
#[tokio::test]
async fn shared_claims_exclude_foreign_mutexes() {
    let server = server();
    let (ours, driver) = backend(&server.url()).await;
    for mode in [Mode::Read, Mode::Write, Mode::Permits { take: 1, of: 5 }] {
        let own = claim(&driver, "k", mode, LONG);
        granted_soon(&ours, &own).await;
        assert_eq!(cli(server.port(), "SET k v NX PX 10000"), "", "{mode:?}");
        assert_eq!(ours.release(&own, Linger::None).await.unwrap(), Released::Yes);
        assert_eq!(cli(server.port(), "SET k v NX PX 10000"), "OK", "{mode:?}");
        cli(server.port(), "DEL k");
    }
}

/// A holder that goes without a word is noticed by the head of the line. The bound is the design's
/// 250 ms; the best of some tries counts, for a busy machine only ever adds.
#[tokio::test]
async fn a_vanished_foreign_holder_is_noticed_at_once() {
    let server = server();
    for option in ["", "?plain=true"] {
        let locks = locks(&format!("{}{option}", server.url())).await;
        let mut best = Duration::MAX;
        for _ in 0..10 {
            server.command(&["SET", "k", "v"]).unwrap().ok().unwrap();
            let mutex = locks.mutex("k");
            let waiting = tokio::spawn(async move {
                let guard = mutex.acquire().await.unwrap();
                (Instant::now(), guard)
            });
            // It has had time to look more than once, and rests.
            tokio::time::sleep(Duration::from_millis(333)).await;
            assert!(!waiting.is_finished());
            server.command(&["DEL", "k"]).unwrap();
            let freed = Instant::now();
            let (taken, guard) = waiting.await.unwrap();
            guard.release().await.unwrap();
            best = best.min(taken.duration_since(freed));
            if best <= Duration::from_millis(250) {
                break;
            }
        }
        assert!(best <= Duration::from_millis(250), "{option}: noticed after {best:?}");
        locks.close().await;
    }
}

#[tokio::test]
async fn a_holder_without_a_ttl_is_named() {
    let server = server();
    for option in ["", "?plain=true"] {
        let locks = locks(&format!("{}{option}", server.url())).await;
        let mut python = Python::start(server.port());
        assert_eq!(python.ask("acquire app:job - 0"), "True");
        let shown = locks.inspect("app:job").await.unwrap();
        assert_eq!(shown.holders.len(), 1);
        assert_eq!((shown.holders[0].id, shown.holders[0].remaining), (None, None));
        assert!(shown.notes.iter().any(|note| note.contains("without a ttl")), "{shown:?}");
        assert_eq!(python.ask("release"), "released");
        cli(server.port(), "SET app:job v NX PX 10000");
        let shown = locks.inspect("app:job").await.unwrap();
        assert!(shown.holders[0].remaining.is_some());
        assert!(!shown.notes.iter().any(|note| note.contains("without a ttl")), "{shown:?}");
        cli(server.port(), "DEL app:job");
        locks.close().await;
    }
}

#[tokio::test]
async fn a_lock_of_redisson_is_a_mismatch_that_says_so() {
    let server = server();
    for option in ["", "?plain=true"] {
        let (ours, driver) = backend(&format!("{}{option}", server.url())).await;
        let owner = "6fa459ea-ee8a-3ca4-894e-db77e160355e:1";
        server.command(&["HSET", "k", owner, "1"]).unwrap().ok().unwrap();
        server.command(&["PEXPIRE", "k", "30000"]).unwrap().ok().unwrap();
        for waits in [false, true] {
            let own = claim(&driver, "k", Mode::Exclusive, LONG).with(|it| it.waits = waits);
            let error = ours.try_acquire(&own).await.unwrap_err();
            assert_eq!(error.kind, latchwork_store::BackendErrorKind::Mismatch);
            assert!(error.message.contains("hash"), "{error:?}");
            assert!(error.next_step.unwrap().contains("another name"));
            assert_eq!(ours.release(&own, Linger::None).await.unwrap(), Released::NotHeld);
        }
        let shown = ours.inspect(&Query::Key(Key::new("k").unwrap())).await.unwrap();
        assert!(shown[0].notes.iter().any(|note| note.contains("hash")), "{shown:?}");
        assert!(!shown[0].is_free(), "nobody can take it");
        assert_eq!(cli(server.port(), &format!("HGET k {owner}")), "1");
        cli(server.port(), "DEL k");
        // And the other way round: the scripts of Redisson meet a string.
        let own = claim(&driver, "k", Mode::Exclusive, LONG);
        granted_soon(&ours, &own).await;
        let refused = server.command(&["HINCRBY", "k", owner, "1"]).unwrap();
        assert!(refused.ok().is_err());
        assert_eq!(ours.release(&own, Linger::None).await.unwrap(), Released::Yes);
    }
}

/// On Cluster the name in Redis is not always the name given. What `show` tells is what others must
/// use, and with it they and ours keep each other out.
#[tokio::test]
async fn on_cluster_the_name_for_others_is_shown() {
    let cluster = RedisCluster::start(&ClusterOptions::default()).unwrap();
    let (ours, driver) = backend(&cluster.url()).await;
    let port = cluster.nodes()[0].address_port();
    let foreign = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        redis_cli(port, &[&["-c"], &words[..]].concat()).unwrap()
    };
    for (name, stored) in [
        ("app:job", "app:{job}"),
        ("job", "{job}"),
        ("app:{job}", "app:{{job}}"),
        ("a{b}c", "a{b}c"),
    ] {
        let own = claim(&driver, name, Mode::Exclusive, LONG);
        let query = Query::Key(own.key.clone());
        let shown = ours.inspect(&query).await.unwrap().remove(0);
        let told = shown.notes.iter().any(|note| note.contains(&format!("{stored:?}")));
        assert_eq!(told, name != stored, "{shown:?}");
        assert_eq!(foreign(&format!("SET {stored} v NX PX 30000")), "OK");
        match ours.try_acquire(&own).await.unwrap() {
            Attempt::Blocked(blocked) => assert_eq!(blocked.cause, Cause::Foreign, "{name}"),
            granted => panic!("{name}: {granted:?}"),
        }
        assert_eq!(foreign(&format!("DEL {stored}")), "1");
        granted_soon(&ours, &own).await;
        assert_eq!(foreign(&format!("SET {stored} v NX PX 30000")), "");
        assert_eq!(ours.release(&own, Linger::None).await.unwrap(), Released::Yes);
    }
}

/// An acquire that times out names the holder, and says if it has no ttl.
#[tokio::test]
async fn a_timeout_names_a_client_of_another_kind() {
    let server = server();
    for option in ["", "?plain=true"] {
        let locks = locks(&format!("{}{option}", server.url())).await;
        for (set, holder) in [
            ("SET k v PX 60000", "held by a client of another kind ("),
            ("SET k v", "held by a client of another kind without a ttl ("),
        ] {
            assert_eq!(cli(server.port(), set), "OK");
            for limit in [Duration::ZERO, Duration::from_millis(50)] {
                let error = locks.mutex("k").acquire_within(limit).await.unwrap_err();
                let text = error.to_string();
                assert!(text.contains(holder), "{option} {set} {limit:?}: {text}");
                assert_eq!(text.contains("timed out without waiting: "), limit.is_zero(), "{text}");
            }
        }
        assert_eq!(cli(server.port(), "DEL k"), "1");
    }
}
