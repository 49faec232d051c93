//! etcd: starts, dies, comes back, and leaves nothing behind.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use latchwork_services::{EtcdCluster, EtcdOptions, EtcdServer, etcdctl};

type Test = Result<(), Box<dyn std::error::Error>>;

fn runs(pid: u32) -> bool {
    std::path::Path::new(&format!("/proc/{pid}")).exists()
}

#[test]
fn a_server_answers_and_leaves_nothing_behind() -> Test {
    let server = EtcdServer::start(&EtcdOptions::new())?;
    assert_eq!(etcdctl(server.port(), &["put", "k", "1"])?, "OK");
    assert_eq!(etcdctl(server.port(), &["get", "k", "--print-value-only"])?, "1");
    assert_eq!(server.url(), format!("etcd://127.0.0.1:{}", server.port()));
    let (pid, folder) = (server.pid(), server.folder().to_owned());
    assert!(runs(pid) && folder.exists());
    drop(server);
    assert!(!runs(pid), "the process is gone and waited for");
    assert!(!folder.exists());
    Ok(())
}

#[test]
fn a_server_that_was_killed_has_its_data() -> Test {
    let mut server = EtcdServer::start(&EtcdOptions::new())?;
    let port = server.port();
    etcdctl(port, &["put", "k", "1"])?;
    server.kill();
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    server.restart()?;
    assert_eq!(server.port(), port);
    assert_eq!(etcdctl(port, &["get", "k", "--print-value-only"])?, "1");
    Ok(())
}

#[test]
fn a_stopped_server_answers_when_it_goes_on() -> Test {
    let mut server = EtcdServer::start(&EtcdOptions::new())?;
    server.stop()?;
    let mut client = Command::new("etcdctl")
        .arg(format!("--endpoints=127.0.0.1:{}", server.port()))
        .args(["--dial-timeout=60s", "--command-timeout=60s", "put", "k", "1"])
        .stdout(Stdio::null())
        .spawn()?;
    std::thread::sleep(Duration::from_millis(50));
    assert!(client.try_wait()?.is_none(), "a stopped server has answered");
    server.cont()?;
    assert!(client.wait()?.success());
    Ok(())
}

#[test]
fn a_server_with_a_password_asks_for_it() -> Test {
    let server = EtcdServer::start(&EtcdOptions::new().root_password("secret"))?;
    let denied = etcdctl(server.port(), &["put", "k", "1"]).err().map(|e| e.to_string());
    assert!(denied.is_some_and(|text| text.contains("user name is empty")));
    assert_eq!(etcdctl(server.port(), &["--user=root:secret", "put", "k", "1"])?, "OK");
    Ok(())
}

#[test]
fn a_cluster_survives_the_loss_of_its_leader() -> Test {
    let mut cluster = EtcdCluster::start(3, &EtcdOptions::new())?;
    let old = cluster.leader()?;
    etcdctl(cluster.members()[old].port(), &["put", "k", "1"])?;
    cluster.member_mut(old).kill();
    let new = cluster.leader()?;
    assert_ne!(old, new);
    let read = ["get", "k", "--print-value-only"];
    assert_eq!(etcdctl(cluster.members()[new].port(), &read)?, "1");
    cluster.member_mut(old).restart()?;
    assert_eq!(etcdctl(cluster.members()[old].port(), &read)?, "1");
    assert_eq!(cluster.url().matches("127.0.0.1").count(), 3);
    Ok(())
}

#[test]
fn an_error_shows_the_log() {
    let error = EtcdServer::start(&EtcdOptions::new().arg("--no-such-option")).err();
    let error = error.map(|e| e.to_string()).unwrap_or_default();
    assert!(error.contains("no-such-option") && error.contains("has ended"), "{error}");
}

/// A line that the server logs says what its clock shows.
#[test]
fn a_member_has_a_wall_clock_of_its_own() -> Test {
    let mut server = EtcdServer::start(&EtcdOptions::new().with_clock())?;
    let year = |server: &EtcdServer| -> Option<u32> {
        let log = server.log();
        let at = log.rfind("\"ts\":\"")?;
        log[at + 6..at + 10].parse().ok()
    };
    let before = year(&server).ok_or("a log with times")?;
    server.clock().ok_or("a clock")?.step_forward(Duration::from_secs(10 * 366 * 24 * 3600))?;
    server.restart()?;
    assert!(year(&server) >= Some(before + 9), "{}", server.log());
    Ok(())
}
