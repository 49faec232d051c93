//! The real Curator and kazoo in the same line.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::common::process::{Process, hear, role, say};
use crate::common::*;
use latchwork::LockManager;
use latchwork_store::{Attempt, Backend, Cause, Claim, ErrorKind, Key, Linger, Mode, Released};

/// Another client, as a process. Killed when dropped.
struct Peer {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Peer {
    fn curator(port: u16) -> Self {
        let mut command = Command::new("java");
        command.args(["-Xmx96m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto"]);
        command.args(["-cp", "/usr/share/java/curator-recipes.jar"]);
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/Peer.java"));
        Self::start(command, port)
    }

    fn kazoo(port: u16) -> Self {
        let mut command = Command::new("/usr/bin/python3");
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/kazoo_peer.py"));
        Self::start(command, port)
    }

    fn start(mut command: Command, port: u16) -> Self {
        let mut child = command
            .arg(format!("127.0.0.1:{port}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect(
                "the peer starts (default-jdk-headless, libcurator-recipes-java, python3-kazoo)",
            );
        let lines = BufReader::new(child.stdout.take().unwrap());
        let mut peer = Self { child, lines };
        assert_eq!(peer.line(), "ready");
        peer
    }

    fn line(&mut self) -> String {
        loop {
            let mut line = String::new();
            let read = self.lines.read_line(&mut line).unwrap();
            assert_ne!(read, 0, "the peer ended without a word: {:?}", self.child.wait());
            if let Some(text) = line.strip_prefix('>') {
                return text.trim_end().to_owned();
            }
        }
    }

    fn order(&mut self, order: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{order}").unwrap();
    }

    /// An order and its answer.
    fn tell(&mut self, order: &str) -> String {
        self.order(order);
        self.line()
    }

    /// The next answer, without blocking the runtime.
    async fn answer(self) -> (Self, String) {
        tokio::task::spawn_blocking(move || {
            let mut peer = self;
            let line = peer.line();
            (peer, line)
        })
        .await
        .unwrap()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn server() -> ZooKeeperServer {
    ZooKeeperServer::start(&ZooKeeperOptions::new()).unwrap()
}

/// Holds in turns, each side in line behind the other, and with both killed while they hold.
async fn mutexes_exclude_each_other(server: &ZooKeeperServer, start: fn(u16) -> Peer) {
    let mut peer = start(server.port());
    let locks = client(&server.url()).await;
    let mutex = locks.mutex("k").fair();

    // The peer holds.
    assert_eq!(peer.tell("mutex /k"), "held");
    assert!(mutex.try_acquire().await.unwrap().is_none());
    let shown = show(&locks, "k").await;
    assert_eq!((shown.holders.len(), shown.holders[0].id), (1, None), "{shown:?}");
    assert!(shown.holders[0].holder.text.contains("another client"), "{shown:?}");
    let error = mutex.acquire_within(100 * MS).await.expect_err("it is held");
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    let evicted = locks.force_release("k").await.expect_err("not ours to evict");
    assert_eq!(evicted.kind(), ErrorKind::Mismatch, "{evicted}");
    let frees = async {
        until(&locks, "k", |shown| shown.waiters.len() == 1).await;
        assert_eq!(peer.tell("free /k"), "free");
    };
    let (guard, ()) = tokio::join!(mutex.acquire_within(20 * SEC), frees);
    let guard = guard.unwrap();

    // We hold.
    assert_eq!(peer.tell("try-mutex /k"), "blocked");
    until(&locks, "k", |shown| shown.waiters.is_empty()).await;
    peer.order("mutex /k");
    until(&locks, "k", |shown| shown.waiters.len() == 1).await;
    guard.release().await.unwrap();
    let (mut peer, said) = peer.answer().await;
    assert_eq!(said, "held");
    assert_eq!(peer.tell("free /k"), "free");
    until(&locks, "k", latchwork_store::Snapshot::is_free).await;

    // Each dies while it holds, and the other is admitted when the session has ended.
    let mut dying = start(server.port());
    assert_eq!(dying.tell("mutex /k"), "held");
    drop(dying);
    let guard = mutex.acquire_within(30 * SEC).await.unwrap();
    guard.release().await.unwrap();
    let mut holder = Process::start("interop::hold", &server.url());
    assert_eq!(holder.line(), "held");
    assert_eq!(peer.tell("try-mutex /k"), "blocked");
    holder.kill();
    peer.order("mutex /k");
    let (_peer, said) = peer.answer().await;
    assert_eq!(said, "held");
}

/// The part of the other process.
#[test]
fn child() {
    let Some((_, store)) = role() else { return };
    run(async {
        let guard = client(&store).await.mutex("k").acquire().await.unwrap();
        say("held");
        hear();
        drop(guard);
    });
}

#[test]
fn mutexes_of_curator_and_ours_exclude_each_other_in_order() {
    let server = server();
    run(mutexes_exclude_each_other(&server, Peer::curator));
}

#[test]
fn mutexes_of_kazoo_and_ours_exclude_each_other_in_order() {
    let server = server();
    run(mutexes_exclude_each_other(&server, Peer::kazoo));
}

fn mode(mode: Mode) -> Claim {
    claim(30 * SEC).with(|it| {
        it.mode = mode;
        it.key = Key::new("rw").unwrap();
    })
}

/// Readers share over both, writers do not, and a waiting writer stops later readers of both.
#[test]
fn curator_rwlocks_and_ours_exclude_each_other() {
    let server = server();
    run(async {
        let mut peer = Peer::curator(server.port());
        let (mine, driver) = backend(&server.url()).await;
        let locks = LockManager::new(mine.clone(), driver).ttl(2 * SEC);
        let is_granted = |attempt: &Attempt| matches!(attempt, Attempt::Granted(_));
        let attempt = |claim: Claim| {
            let mine = mine.clone();
            async move { is_granted(&mine.try_acquire(&claim).await.unwrap()) }
        };
        let passer = |kind| mode(kind).with(|it| it.waits = false);

        assert_eq!(peer.tell("read /rw"), "held");
        let reader = mode(Mode::Read);
        assert!(attempt(reader.clone()).await, "readers share");
        assert!(!attempt(passer(Mode::Write)).await, "two read");
        // A writer of ours waits: readers of both come after it.
        let writer = mode(Mode::Write);
        assert!(!attempt(writer.clone()).await);
        assert_eq!(peer.tell("try-read /rw"), "blocked");
        assert!(!attempt(passer(Mode::Read)).await);
        assert_eq!(peer.tell("free /rw"), "free");
        assert!(!attempt(writer.clone()).await, "one still reads");
        assert_eq!(mine.release(&reader, Linger::None).await.unwrap(), Released::Yes);
        assert!(attempt(writer.clone()).await, "it is its turn");
        // A writer of theirs waits.
        assert_eq!(peer.tell("try-write /rw"), "blocked");
        peer.order("write /rw");
        until(&locks, "rw", |shown| shown.waiters.len() == 1).await;
        assert!(!attempt(passer(Mode::Read)).await);
        mine.release(&writer, Linger::None).await.unwrap();
        let (mut peer, said) = peer.answer().await;
        assert_eq!(said, "held");
        let reader = mode(Mode::Read);
        assert!(!attempt(reader.clone()).await, "somebody writes");
        let attempt_again = mine.try_acquire(&reader).await.unwrap();
        let Attempt::Blocked(blocked) = attempt_again else { panic!("somebody writes") };
        let wait = mine.wait(&reader, &blocked);
        assert_eq!(peer.tell("free /rw"), "free");
        tokio::time::timeout(10 * SEC, wait).await.expect("it is woken").unwrap();
        assert!(attempt(reader.clone()).await);
        // A key that is read and written is no mutex.
        let other = mode(Mode::Exclusive).with(|it| it.mode = Mode::Exclusive);
        let error = mine.try_acquire(&other).await.expect_err("another kind");
        assert_eq!(error.kind, latchwork_store::BackendErrorKind::Mismatch);
        mine.release(&reader, Linger::None).await.unwrap();
    });
}

/// H370: Curator's reader delays an upgrade and is stopped by it, and comes in after a downgrade. Its writer that
/// waits for a hold is not overtaken: Curator takes no other place.
#[test]
fn h370_upgrades_and_curator_exclude_each_other() {
    let server = server();
    run(async {
        let mut peer = Peer::curator(server.port());
        let (mine, driver) = backend(&server.url()).await;
        let locks = LockManager::new(mine.clone(), driver).ttl(2 * SEC);
        let replacing = |kind, hold: &Claim| mode(kind).with(|it| it.beside = Some(hold.id));
        let blocked = async |claim: &Claim| match mine.try_acquire(claim).await.unwrap() {
            Attempt::Blocked(blocked) => blocked,
            Attempt::Granted(grant) => panic!("{grant:?}"),
        };
        let granted = async |claim: &Claim| match mine.try_acquire(claim).await.unwrap() {
            Attempt::Granted(grant) => grant.token,
            Attempt::Blocked(blocked) => panic!("{blocked:?}"),
        };
        let released = async |claim: &Claim| {
            assert_eq!(mine.release(claim, Linger::None).await.unwrap(), Released::Yes);
        };

        let read = mode(Mode::Read);
        let first = granted(&read).await;
        assert_eq!(peer.tell("read /rw"), "held");
        let write = replacing(Mode::Write, &read);
        let answer = blocked(&write).await;
        assert_eq!(answer.cause, Cause::Held);
        assert!(answer.holder.as_ref().unwrap().text.contains("another client"));
        let wait = mine.wait(&write, &answer);
        assert_eq!(peer.tell("free /rw"), "free");
        tokio::time::timeout(10 * SEC, wait).await.expect("it is woken").unwrap();
        let second = granted(&write).await;
        for releases in [true, false] {
            for order in ["try-read /rw", "try-write /rw"] {
                assert_eq!(peer.tell(order), "blocked");
            }
            if releases {
                released(&read).await;
            }
        }
        let read = replacing(Mode::Read, &write);
        let third = granted(&read).await;
        assert!(first < second && second < third);
        assert_eq!(peer.tell("try-read /rw"), "blocked");
        released(&write).await;
        assert_eq!(peer.tell("try-write /rw"), "blocked");
        assert_eq!(peer.tell("read /rw"), "held");
        assert_eq!(peer.tell("free /rw"), "free");

        // It waits for the read hold, and then for a write hold.
        for (hold, wanted) in [(read, Mode::Write), (mode(Mode::Write), Mode::Read)] {
            granted(&hold).await;
            peer.order("write /rw");
            until(&locks, "rw", |shown| shown.waiters.len() == 1).await;
            for waits in [true, false] {
                let next = replacing(wanted, &hold).with(|it| it.waits = waits);
                assert_eq!(blocked(&next).await.cause, Cause::Foreign);
                until(&locks, "rw", |shown| shown.waiters.len() == 1).await;
            }
            released(&hold).await;
            let said;
            (peer, said) = peer.answer().await;
            assert_eq!(said, "held");
            assert_eq!(peer.tell("free /rw"), "free");
        }
    });
}

/// A counter that three of us and two of Curator count up, each by reading and writing.
#[test]
fn a_counter_under_the_locks_of_curator_and_ours_is_exact() {
    const TIMES: u32 = 100;
    let server = server();
    let file = server.folder().join("counter");
    std::fs::write(&file, "0").unwrap();
    run(async {
        let mut peers = [Peer::curator(server.port()), Peer::curator(server.port())];
        for peer in &mut peers {
            peer.order(&format!("count /k {TIMES} {}", file.display()));
        }
        let mut ours = tokio::task::JoinSet::new();
        for n in 0..3 {
            let (url, file) = (server.url(), file.clone());
            ours.spawn(async move {
                let locks = client(&url).await;
                for _ in 0..TIMES {
                    let mutex = locks.mutex("k");
                    let mutex = if n == 0 { mutex.fair() } else { mutex };
                    let guard = mutex.acquire().await.unwrap();
                    let count: u32 = std::fs::read_to_string(&file).unwrap().parse().unwrap();
                    std::fs::write(&file, (count + 1).to_string()).unwrap();
                    guard.ensure_held().unwrap();
                    guard.release().await.unwrap();
                }
            });
        }
        for peer in peers {
            assert_eq!(peer.answer().await.1, "counted");
        }
        while let Some(ended) = ours.join_next().await {
            ended.unwrap();
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap(), (TIMES * 5).to_string());
    });
}
