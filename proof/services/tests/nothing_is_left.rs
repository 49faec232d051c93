//! No process and no folder outlives the value or the test that started it.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use latchwork_services::{
    ClusterOptions, EtcdCluster, EtcdOptions, EtcdServer, Proxy, RedisCluster, RedisOptions,
    RedisServer, SentinelOptions, SentinelSet,
};

type Test = Result<(), Box<dyn std::error::Error>>;

/// Set for the process that starts a server and is killed.
const ROLE: &str = "LATCHWORK_SERVICES_ROLE";

/// The state of a process and its parent, as proc(5) has them after the name in brackets.
fn stat(pid: u32) -> Option<(char, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut words = stat.rsplit(") ").next()?.split(' ');
    Some((words.next()?.chars().next()?, words.next()?.parse().ok()?))
}

fn children() -> std::io::Result<Vec<u32>> {
    let all = fs::read_dir("/proc")?.flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let own = std::process::id();
    Ok(pids.filter(|pid| stat(*pid).is_some_and(|(_, parent)| parent == own)).collect())
}

fn threads() -> std::io::Result<usize> {
    Ok(fs::read_dir("/proc/self/task")?.count())
}

#[test]
fn servers_and_threads_end_with_their_owner() -> Test {
    if std::env::var_os(ROLE).is_some() {
        return be_killed();
    }
    let before = threads()?;
    assert_eq!(children()?, [0_u32; 0]);
    let mut server = RedisServer::start(&RedisOptions::new().tls().with_clock())?;
    let proxy = Proxy::redis(server.port())?;
    let mut set = SentinelSet::start(&SentinelOptions { proxies: true, ..Default::default() })?;
    let cluster = RedisCluster::start(&ClusterOptions::default())?;
    let mut etcd = EtcdServer::start(&EtcdOptions::new().tls().with_clock())?;
    let mut members = EtcdCluster::start_with_proxies(3, &EtcdOptions::new())?;
    assert_eq!(children()?.len(), 1 + 3 + 3 + 6 + 1 + 3);
    // Neither the state of a server nor the order matters.
    server.stop()?;
    set.node_mut(1).kill();
    set.sentinel_mut(1).stop()?;
    etcd.stop()?;
    members.member_mut(0).kill();
    members.member_mut(1).stop()?;
    members.silence(2, true);
    let mut folders: Vec<_> = cluster.nodes().iter().map(|node| node.folder().to_owned()).collect();
    folders.extend(members.members().iter().chain([&etcd]).map(|m| m.folder().to_owned()));
    assert!(folders.iter().all(|folder| folder.exists()));
    drop((server, proxy, set, cluster, etcd, members));
    assert_eq!(children()?, [0_u32; 0]);
    assert!(!folders.iter().any(|folder| folder.exists()));
    // One thread stays: it has started the processes.
    assert_eq!(threads()?, before + 1);

    a_killed_test_takes_its_server_along()
}

fn be_killed() -> Test {
    // On a thread that ends, for that must not matter.
    let start = || RedisServer::start(&RedisOptions::new()).map_err(|e| e.to_string());
    let server = std::thread::spawn(start).join().map_err(|_| "panicked")??;
    server.command(&["PING"])?.ok()?;
    writeln!(std::io::stdout(), "\nserver {}", server.pid())?;
    loop {
        std::thread::park();
    }
}

fn a_killed_test_takes_its_server_along() -> Test {
    let mut killed = Command::new(std::env::current_exe()?)
        .arg("--nocapture")
        .env(ROLE, "be killed")
        .stdout(Stdio::piped())
        .spawn()?;
    let lines = BufReader::new(killed.stdout.take().ok_or("no output")?).lines();
    let pid = lines
        .map_while(Result::ok)
        .find_map(|line| line.strip_prefix("server ")?.parse().ok())
        .ok_or("it started no server")?;
    assert!(matches!(stat(pid), Some((state, _)) if state != 'Z'));
    killed.kill()?;
    killed.wait()?;
    // Whoever inherits it may take its time to wait for it.
    let start = Instant::now();
    while !matches!(stat(pid), None | Some(('Z', _))) {
        assert!(start.elapsed() < Duration::from_secs(30), "the server lives on");
        std::thread::yield_now();
    }
    assert!(!Path::new(&format!("/proc/{pid}/exe")).exists());
    Ok(())
}
