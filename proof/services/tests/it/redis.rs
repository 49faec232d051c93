//! One server: starts, dies, comes back, and leaves nothing behind.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use latchwork_services::{Data, Persistence, RedisOptions, RedisServer, Value, redis_cli};

type Test = Result<(), Box<dyn std::error::Error>>;

fn start(options: &RedisOptions) -> Result<RedisServer, latchwork_services::Error> {
    RedisServer::start(options)
}

fn get(server: &RedisServer) -> Result<Value, latchwork_services::Error> {
    server.command(&["GET", "k"])
}

fn text(text: &str) -> Value {
    Value::Text(text.into())
}

fn runs(pid: u32) -> bool {
    std::path::Path::new(&format!("/proc/{pid}")).exists()
}

#[test]
fn a_server_answers_and_leaves_nothing_behind() -> Test {
    let server = start(&RedisOptions::new())?;
    assert_eq!(redis_cli(server.port(), &["SET", "k", "1"])?, "OK");
    assert_eq!(get(&server)?, text("1"));
    assert_eq!(server.url(), format!("redis://127.0.0.1:{}", server.port()));
    let (pid, folder) = (server.pid(), server.folder().to_owned());
    assert!(runs(pid) && folder.exists());
    drop(server);
    assert!(!runs(pid), "the process is gone and waited for");
    assert!(!folder.exists());
    Ok(())
}

#[test]
fn without_persistence_a_restart_begins_empty() -> Test {
    let mut server = start(&RedisOptions::new())?;
    let port = server.port();
    server.command(&["SET", "k", "old"])?.ok()?;
    server.save_snapshot()?;
    server.command(&["SET", "k", "new"])?.ok()?;
    server.restart(Data::Kept)?;
    assert_eq!(server.port(), port);
    assert_eq!(get(&server)?, Value::Nil);
    server.restart(Data::OldSnapshot)?;
    assert_eq!(get(&server)?, text("old"));
    Ok(())
}

#[test]
fn a_server_that_keeps_every_write_has_it_after_a_kill() -> Test {
    let options = RedisOptions::new().persistence(Persistence::EveryWrite);
    let mut server = start(&options)?;
    server.command(&["SET", "k", "old"])?.ok()?;
    server.save_snapshot()?;
    server.command(&["SET", "k", "new"])?.ok()?;
    server.kill();
    assert!(TcpStream::connect(("127.0.0.1", server.port())).is_err());
    server.restart(Data::Kept)?;
    assert_eq!(get(&server)?, text("new"));
    server.restart(Data::OldSnapshot)?;
    assert_eq!(get(&server)?, text("old"));
    server.restart(Data::Empty)?;
    assert_eq!(get(&server)?, Value::Nil);
    Ok(())
}

#[test]
fn a_server_with_snapshots_saves_at_a_clean_end_only() -> Test {
    let mut server = start(&RedisOptions::new().persistence(Persistence::Snapshot))?;
    server.command(&["SET", "k", "1"])?.ok()?;
    server.shutdown()?;
    server.restart(Data::Kept)?;
    assert_eq!(get(&server)?, text("1"));
    server.command(&["SET", "k", "2"])?.ok()?;
    server.restart(Data::Kept)?;
    assert_eq!(get(&server)?, text("1"));
    Ok(())
}

#[test]
fn a_stopped_server_answers_when_it_goes_on() -> Test {
    let mut server = start(&RedisOptions::new())?;
    server.stop()?;
    let mut client = Command::new("redis-cli")
        .args(["-p", &server.port().to_string(), "INCR", "n"])
        .stdout(Stdio::null())
        .spawn()?;
    std::thread::sleep(Duration::from_millis(50));
    assert!(client.try_wait()?.is_none(), "a stopped server has answered");
    server.cont()?;
    assert!(client.wait()?.success());
    assert_eq!(server.command(&["GET", "n"])?, text("1"));
    Ok(())
}

#[test]
fn a_server_with_users_knows_them() -> Test {
    let options = RedisOptions::new().requirepass("pw").user("app on >secret ~app:* &* +@all");
    let server = start(&options)?;
    let port = server.port();
    assert!(redis_cli(port, &["SET", "k", "1"])?.starts_with("NOAUTH"));
    assert!(redis_cli(port, &["-a", "pw", "--no-auth-warning", "SET", "k", "1"])? == "OK");
    let app = ["--user", "app", "--pass", "secret", "--no-auth-warning"];
    let denied = redis_cli(port, &[&app[..], &["SET", "k", "2"]].concat())?;
    assert!(denied.starts_with("NOPERM"), "{denied}");
    assert_eq!(redis_cli(port, &[&app[..], &["SET", "app:k", "2"]].concat())?, "OK");
    assert_eq!(get(&server)?, text("1"));
    Ok(())
}

#[test]
fn a_tls_server_has_a_signed_certificate() -> Test {
    let server = start(&RedisOptions::new().tls())?;
    let port = server.port();
    let ca = server.certificates().ok_or("no certificates")?.ca_cert.clone();
    let ca = ca.to_string_lossy();
    assert_eq!(redis_cli(port, &["--tls", "--cacert", &ca, "PING"])?, "PONG");
    let other = start(&RedisOptions::new().tls())?;
    let strange = redis_cli(other.port(), &["--tls", "--cacert", &ca, "PING"]);
    assert!(strange.is_err(), "{strange:?}");
    assert!(redis_cli(port, &["PING"]).is_err(), "answers without TLS");
    assert!(server.url().starts_with("rediss://"));
    Ok(())
}

#[test]
fn a_replica_follows() -> Test {
    let master = start(&RedisOptions::new())?;
    master.command(&["SET", "k", "1"])?.ok()?;
    let replica = start(&RedisOptions::new().replica_of(master.port()))?;
    assert_eq!(replica.info("role")?, "slave");
    master.command(&["SET", "k", "2"])?.ok()?;
    let start = Instant::now();
    while get(&replica)? != text("2") {
        assert!(start.elapsed() < Duration::from_secs(30), "{}", replica.log());
    }
    Ok(())
}

#[test]
fn an_error_shows_the_log() {
    let error = start(&RedisOptions::new().config("no-such-option 1")).err();
    let error = error.map(|e| e.to_string()).unwrap_or_default();
    assert!(error.contains("no-such-option") && error.contains("has ended"), "{error}");
}
