//! PostgreSQL: starts, answers, and leaves nothing behind.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use latchwork_services::{PgBouncer, PostgresOptions, PostgresServer};

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

/// A crash loses no more than what is not logged; a copy is another server with the same data.
#[test]
fn a_server_comes_back_after_a_crash_and_can_be_copied() -> Test {
    let mut server = PostgresServer::start_with(&PostgresOptions::new().with_clock())?;
    server.psql("CREATE TABLE t (x BIGINT); CREATE UNLOGGED TABLE u (x BIGINT)")?;
    server.psql("INSERT INTO t VALUES (1); INSERT INTO u VALUES (1)")?;
    let counts = "SELECT (SELECT count(*) FROM t), (SELECT count(*) FROM u)";
    server.restart()?;
    assert_eq!(server.psql(counts)?, "1|1");
    server.crash()?;
    assert_eq!(server.psql(counts)?, "1|0");
    let standby = server.copy(true)?;
    assert_eq!(standby.psql("SELECT pg_is_in_recovery()")?, "t");
    assert_eq!(standby.psql("SELECT pg_promote()")?, "t");
    assert_eq!(standby.psql(counts)?, "1|0");
    let copy = server.copy(false)?;
    assert_eq!(copy.psql("SELECT pg_is_in_recovery()")?, "f");
    assert_eq!(copy.psql(counts)?, "1|0");
    let clock = "SELECT floor(date_part('epoch', clock_timestamp()))";
    let before: u64 = server.psql(clock)?.parse()?;
    server.clock().ok_or("no clock")?.step_forward(Duration::from_secs(36_000))?;
    assert!(server.psql(clock)?.parse::<u64>()? >= before + 36_000);
    Ok(())
}

#[test]
fn pgbouncer_passes_transactions_on() -> Test {
    let server = PostgresServer::start()?;
    let mut bouncer = PgBouncer::start(server.port(), 2)?;
    let conninfo = format!("host=127.0.0.1 port={} user=anybody dbname=postgres", bouncer.port());
    let ask =
        || Command::new("psql").args(["-XAt", &conninfo, "-c", "SELECT current_user"]).output();
    assert_eq!(String::from_utf8(ask()?.stdout)?, "postgres\n");
    bouncer.kill();
    assert!(!ask()?.status.success());
    bouncer.revive()?;
    assert_eq!(String::from_utf8(ask()?.stdout)?, "postgres\n");
    Ok(())
}
