//! ZooKeeper: starts, dies, comes back, and leaves nothing behind.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use latchwork_services::{Direction, ZooKeeperEnsemble, ZooKeeperOptions, ZooKeeperServer};

type Test = Result<(), Box<dyn std::error::Error>>;

fn runs(pid: u32) -> bool {
    std::path::Path::new(&format!("/proc/{pid}")).exists()
}

#[test]
fn a_server_answers_and_leaves_nothing_behind() -> Test {
    let server = ZooKeeperServer::start(&ZooKeeperOptions::new())?;
    assert_eq!(server.ask("ruok")?, "imok");
    assert_eq!(server.mode()?.as_deref(), Some("standalone"));
    assert!(server.count("zk_znode_count")? > 0);
    assert!(server.count("zk_no_such_thing").is_err());
    assert_eq!(server.url(), format!("zk://127.0.0.1:{}", server.port()));
    let (pid, folder) = (server.pid(), server.folder().to_owned());
    assert!(runs(pid) && folder.exists());
    drop(server);
    assert!(!runs(pid), "the process is gone and waited for");
    assert!(!folder.exists());
    Ok(())
}

#[test]
fn a_server_that_was_killed_comes_back() -> Test {
    let mut server = ZooKeeperServer::start(&ZooKeeperOptions::new())?;
    let port = server.port();
    server.kill();
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    server.restart()?;
    assert_eq!((server.port(), server.ask("ruok")?), (port, "imok".into()));
    Ok(())
}

#[test]
fn a_stopped_server_answers_when_it_goes_on() -> Test {
    let mut server = ZooKeeperServer::start(&ZooKeeperOptions::new())?;
    server.stop()?;
    let mut client = TcpStream::connect(("127.0.0.1", server.port()))?;
    client.write_all(b"ruok")?;
    client.set_read_timeout(Some(Duration::from_millis(50)))?;
    let mut answer = String::new();
    assert!(client.read_to_string(&mut answer).is_err(), "a stopped server has answered");
    server.cont()?;
    client.set_read_timeout(None)?;
    client.read_to_string(&mut answer)?;
    assert_eq!(answer, "imok");
    Ok(())
}

#[test]
fn an_ensemble_goes_on_without_its_leader() -> Test {
    let mut ensemble = ZooKeeperEnsemble::start(3, &ZooKeeperOptions::new())?;
    let old = ensemble.leader()?;
    ensemble.member_mut(old).kill();
    let new = ensemble.leader()?;
    assert_ne!(old, new);
    ensemble.member_mut(old).restart()?;
    assert_eq!(ensemble.members()[old].mode()?.as_deref(), Some("follower"));
    assert_eq!(ensemble.url().matches("127.0.0.1").count(), 3);
    Ok(())
}

#[test]
fn followers_reach_their_leader_through_the_links() -> Test {
    let ensemble = ZooKeeperEnsemble::start(3, &ZooKeeperOptions::new().links())?;
    let leader = ensemble.leader()?;
    for follower in (0..3).filter(|member| *member != leader) {
        let link = ensemble.link(follower, leader)?;
        let sent = Direction::ToClient as usize;
        let before = link.counts().bytes[sent];
        // The leader pings its followers.
        link.wait_counts(Duration::from_secs(10), |c| c.bytes[sent] > before)?;
    }
    Ok(())
}

#[test]
fn an_error_shows_the_log() {
    let error = ZooKeeperServer::start(&ZooKeeperOptions::new().setting("clientPort=none")).err();
    let error = error.map(|e| e.to_string()).unwrap_or_default();
    assert!(error.contains("clientPort") || error.contains("none"), "{error}");
}
