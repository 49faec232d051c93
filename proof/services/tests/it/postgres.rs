//! PostgreSQL: starts, answers, and leaves nothing behind.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use latchwork_services::PostgresServer;

type Test = Result<(), Box<dyn std::error::Error>>;

/// Segments of shared memory of System V, by their keys: PostgreSQL has one for each server.
fn segments_of(pid: u32) -> std::io::Result<usize> {
    let table = fs::read_to_string("/proc/sysvipc/shm")?;
    let pid = pid.to_string();
    Ok(table.lines().filter(|line| line.split_whitespace().nth(4) == Some(&*pid)).count())
}

/// Set for the process that starts a server and is killed.
const ROLE: &str = "LATCHWORK_SERVICES_ROLE";

#[test]
fn a_killed_test_takes_its_server_along() -> Test {
    if std::env::var_os(ROLE).is_some() {
        let server = PostgresServer::start()?;
        writeln!(std::io::stdout(), "\nserver {}", server.pid())?;
        loop {
            std::thread::park();
        }
    }
    let mut killed = Command::new(std::env::current_exe()?)
        .args(["--exact", "postgres::a_killed_test_takes_its_server_along", "--nocapture"])
        .env(ROLE, "be killed")
        .stdout(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(killed.stdout.take().ok_or("no output")?).lines();
    let server = |line: Result<String, _>| line.ok()?.strip_prefix("server ")?.parse().ok();
    let pid = lines.find_map(server).ok_or("it started no server")?;
    assert_eq!(segments_of(pid)?, 1);
    killed.kill()?;
    killed.wait()?;
    let start = Instant::now();
    while segments_of(pid)? > 0 || runs(pid) {
        assert!(start.elapsed() < Duration::from_secs(30), "the server lives on");
        std::thread::yield_now();
    }
    Ok(())
}

/// Whoever inherits a process may take its time to wait for it.
fn runs(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

#[test]
fn a_server_answers_and_leaves_nothing_behind() -> Test {
    let server = PostgresServer::start()?;
    server.psql("CREATE TABLE t (x BIGINT); INSERT INTO t VALUES (1), (2)")?;
    assert_eq!(server.psql("SELECT x, x + 1 FROM t ORDER BY x")?, "1|2\n2|3");
    let error = server.psql("SELECT y FROM t").err().map(|e| e.to_string()).unwrap_or_default();
    assert!(error.contains("column \"y\" does not exist"), "{error}");
    let (pid, folder) = (server.pid(), server.folder().to_owned());
    assert!(Path::new(&format!("/proc/{pid}")).exists() && folder.exists());
    assert_eq!(segments_of(pid)?, 1);
    drop(server);
    assert!(!Path::new(&format!("/proc/{pid}")).exists(), "the process is gone and waited for");
    assert!(!folder.exists());
    assert_eq!(segments_of(pid)?, 0);
    Ok(())
}
