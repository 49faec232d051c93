//! A server that others keep large data in.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::common::*;
use latchwork_services::{EtcdOptions, EtcdServer};

/// How much this process has ever held in memory at once, in kilobytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Puts values of a megabyte each.
fn fill(server: &EtcdServer, megabytes: usize) {
    let value = "x".repeat(1 << 20);
    for n in 0..megabytes {
        let mut child = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args([&format!("--endpoints=127.0.0.1:{}", server.port()), "--command-timeout=60s"])
            .args(["put", &format!("data/{n:05}/1f")])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(value.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
    }
}

/// Of others there are 40 MB in CI, and 300 MB with `LATCHWORK_FULL_SIZE=1`: more than the server may
/// send in one answer.
#[test]
fn h111_a_list_of_locks_among_large_data_takes_little_memory() {
    let megabytes = if std::env::var_os("LATCHWORK_FULL_SIZE").is_some() { 300 } else { 40 };
    let server = EtcdServer::start(&EtcdOptions::new()).unwrap();
    fill(&server, megabytes);
    run(async {
        let locks = client(&server.url()).await.ttl(60 * SEC);
        let _guard = locks.mutex("jobs/nightly").acquire().await.unwrap();
        let before = peak();
        let listed = locks.list("").await.unwrap();
        let names: Vec<_> = listed.iter().map(|shown| shown.key.as_str()).collect();
        assert_eq!((names, listed[0].holders.len()), (vec!["jobs/nightly"], 1));
        let took = peak() - before;
        eprintln!("{megabytes} MB of others: {took} kB of memory");
        assert!(took < 16 << 10, "{took} kB for {megabytes} MB of others");
    });
}

/// More names than one page has, and more claims than one transaction.
#[test]
fn h111_a_list_of_many_locks_is_complete() {
    let server = EtcdServer::start(&EtcdOptions::new()).unwrap();
    run(async {
        let client = bare(&server.url()).await;
        let mut names = Vec::new();
        for n in 0..300 {
            let claim = like(&claim("k"), &format!("many/{n:04}"));
            client.granted(&claim).await;
            names.push(claim.key.as_str().to_owned());
        }
        let listed = client.locks().list("many").await.unwrap();
        assert_eq!(listed.iter().map(|shown| shown.key.as_str()).collect::<Vec<_>>(), names);
        assert!(listed.iter().all(|shown| shown.holders.len() == 1));
    });
}
