//! The locks of Go's client: `etcdctl lock` stands in the same line, in both directions.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use crate::common::*;
use latchwork_services::{EtcdOptions, EtcdServer};

/// An `etcdctl lock`; killed when it is dropped.
pub(crate) struct Etcdctl(pub(crate) Child);

impl Etcdctl {
    pub(crate) fn lock(server: &EtcdServer, name: &str, command: &[&str]) -> Self {
        let child = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .arg(format!("--endpoints=127.0.0.1:{}", server.port()))
            .args(["lock", name])
            .args(command)
            .stdout(Stdio::piped())
            .spawn();
        Self(child.expect("etcdctl is installed"))
    }

    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        let output = self.0.stdout.as_mut().expect("it has one");
        BufReader::new(output).read_line(&mut line).expect("it prints");
        line.trim_end().into()
    }

    fn interrupt(&self) {
        let pid = self.0.id().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    }
}

impl Drop for Etcdctl {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn etcdctl_waits_for_our_holder() {
    let server = EtcdServer::start(&EtcdOptions::new()).unwrap();
    run(async {
        let locks = client(&server.url()).await;
        let guard = locks.mutex("job/1").acquire().await.unwrap();
        // The name as `show` would tell it to others.
        let mut other = Etcdctl::lock(&server, "job%2F1", &["echo", "mine"]);
        until(&locks, "job/1", |shown| shown.waiters.len() == 1).await;
        let shown = show(&locks, "job/1").await;
        assert_eq!(shown.waiters[0].id, None, "a client of another kind");
        assert!(other.0.try_wait().unwrap().is_none(), "it waits");
        guard.ensure_held().unwrap();
        guard.release().await.unwrap();
        assert_eq!(other.line(), "mine");
        assert!(other.0.wait().unwrap().success());
        let next = locks.mutex("job/1").acquire_within(10 * SEC).await.unwrap();
        next.release().await.unwrap();
        assert!(show(&locks, "job/1").await.is_free());
    });
}

#[test]
fn our_waiter_waits_for_etcdctl() {
    let server = EtcdServer::start(&EtcdOptions::new()).unwrap();
    run(async {
        let locks = client(&server.url()).await;
        let mut other = Etcdctl::lock(&server, "job", &[]);
        assert!(other.line().starts_with("job/"));
        assert!(locks.mutex("job").try_acquire().await.unwrap().is_none());
        let shown = show(&locks, "job").await;
        assert_eq!((shown.holders.len(), shown.holders[0].id), (1, None));
        assert!(shown.holders[0].remaining.is_some());
        let theirs = shown.token;
        let mutex = locks.mutex("job");
        let waits = mutex.acquire_within(20 * SEC);
        let leaves = async {
            until(&locks, "job", |shown| shown.waiters.len() == 1).await;
            other.interrupt();
        };
        let (guard, ()) = tokio::join!(waits, leaves);
        let guard = guard.unwrap();
        assert!(show(&locks, "job").await.token > theirs);
        guard.release().await.unwrap();
    });
}

/// Nobody tells that it has gone: its lease ends, 10 s after its last keep-alive.
#[test]
fn a_killed_etcdctl_frees_the_lock() {
    let server = EtcdServer::start(&EtcdOptions::new()).unwrap();
    run(async {
        let locks = client(&server.url()).await;
        let mut other = Etcdctl::lock(&server, "job", &[]);
        assert!(other.line().starts_with("job/"));
        let theirs = show(&locks, "job").await.token;
        let mutex = locks.mutex("job");
        let waits = mutex.acquire_within(40 * SEC);
        let dies = async {
            until(&locks, "job", |shown| shown.waiters.len() == 1).await;
            drop(other);
        };
        let (guard, ()) = tokio::join!(waits, dies);
        let guard = guard.unwrap();
        assert!(show(&locks, "job").await.token > theirs);
        guard.release().await.unwrap();
    });
}

#[test]
fn etcdctl_acquires_after_our_holder_ends() {
    let server = EtcdServer::start(&EtcdOptions::new()).unwrap();
    run(async {
        let looks = client(&server.url()).await;
        let dead = bare(&server.url()).await;
        let mut gone = claim("job");
        gone.ttl = 3 * SEC;
        dead.granted(&gone).await;
        drop(dead); // it releases nothing and renews nothing
        let mut other = Etcdctl::lock(&server, "job", &["echo", "mine"]);
        until(&looks, "job", |shown| shown.holders.len() == 1 && shown.waiters.len() == 1).await;
        assert_eq!(other.line(), "mine");
        assert!(other.0.wait().unwrap().success());
    });
}

/// The prefix trap: for Go's client everything below `a/` is in the line of the lock `a`.
#[test]
fn a_slash_in_a_name_joins_no_other_queue() {
    let server = EtcdServer::start(&EtcdOptions::new()).unwrap();
    run(async {
        let locks = client(&server.url()).await;
        let below = locks.mutex("a/b").acquire().await.unwrap();
        let above = locks.mutex("a").try_acquire().await.unwrap().expect("another lock");
        let percent = locks.mutex("a%2Fb").try_acquire().await.unwrap().expect("another lock");
        for guard in [below, above, percent] {
            guard.release().await.unwrap();
        }
        // A client that does not escape its name takes that of another lock, too.
        let mut other = Etcdctl::lock(&server, "a/b", &[]);
        assert!(other.line().starts_with("a/b/"));
        assert!(locks.mutex("a").try_acquire().await.unwrap().is_none());
        assert!(locks.mutex("a/b").try_acquire().await.unwrap().is_some());
    });
}
