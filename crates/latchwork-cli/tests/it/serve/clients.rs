//! The examples of clients in other languages, each with a running service.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::Service;
use super::client::Address;
use crate::common::Running;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/clients")
}

/// The ttl of a client.
const TTL: Duration = Duration::from_secs(3);

/// A name with what has a meaning in a path, in a query, and for a shell; and one verb of an administrator.
const ODD: &str = "x y//..%2Fé+&$\"*'/force-release";

/// A client holds a lock for longer than its ttl and its lease, releases it, and learns of a loss. It does the same with
/// several locks, which belong to a session.
fn holds_releases_and_learns_of_a_loss(program: &str, ttl: Duration, file: &Path) {
    keeps(program, ttl, file, &[ODD]);
    keeps(program, ttl, file, &["x y/1", "\"name\":]", "z"]);
}

fn keeps(program: &str, ttl: Duration, file: &Path, names: &[&str]) {
    let service = Service::start(&[]);
    let Address::Tcp(port) = service.address else { unreachable!() };
    let start = || {
        let mut command = Command::new(program);
        command.arg(file).arg(format!("http://localhost:{port}")).args(names);
        command.env("TTL_MS", ttl.as_millis().to_string());
        // A client in Java runs for seconds, for which the best code is not worth its compiling.
        command.env("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut client = Running::start(command);
        for _ in names {
            let held = client.stdout.until("held ");
            assert!(held.trim_start_matches("held ").parse::<u64>().is_ok(), "{held}");
        }
        let input = client.child.stdin.take();
        (client, input)
    };
    let held = || {
        let listed = service.ask("GET /v1/locks", "").is(200).json();
        let locks = listed["locks"].as_array().unwrap();
        locks.iter().filter(|lock| names.contains(&lock["name"].as_str().unwrap())).count()
    };
    let (client, input) = start();
    sleep(ttl * 5 / 2);
    assert_eq!(held(), names.len(), "not kept alive");
    drop(input);
    ends(program, client, "released", 0);
    assert_eq!(held(), 0);
    let (client, input) = start();
    assert_eq!(service.store.output(&["release", "--force", names[names.len() - 1]]).code(), 0);
    // It learns of the loss by itself.
    assert_eq!(client.stdout.next().as_deref(), Some("lost"));
    drop(input);
    ends(program, client, "", 73);
    assert_eq!(held(), 0, "what was left of the session is released");
    if names.len() > 1 {
        return;
    }
    // Nobody answers to the release.
    let (client, input) = start();
    drop(service);
    drop(input);
    ends(program, client, "lost", 73);
}

/// The client writes this line, if there is one, and ends with this code.
fn ends(program: &str, mut client: Running, line: &str, code: i32) {
    if !line.is_empty() {
        assert_eq!(client.stdout.next().as_deref(), Some(line));
    }
    // On a busy machine, Mono itself may hang at the end of a program that has a thread which reads.
    let start = Instant::now();
    while program == "mono" && client.child.try_wait().unwrap().is_none() {
        if start.elapsed() > TTL {
            client.signal(Signal::KILL);
            client.finish();
            return;
        }
        sleep(Duration::from_millis(50));
    }
    let done = client.finish();
    assert_eq!((done.code(), &*done.stdout), (code, ""), "{done:?}");
}

#[test]
fn a_client_in_bash() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("client.sh");
    let (client, asked) = (folder().join("lock.sh"), dir.path().join("asked"));
    // What it asks of curl is written down.
    let text = format!(
        "curl() {{ echo \"$*\" >>{}; command curl \"$@\"; }}; . {} \"$@\"",
        asked.display(),
        client.display()
    );
    std::fs::write(&script, text).unwrap();
    keeps("bash", TTL, &script, &[ODD]);
    // Nothing cuts its own wait, which is ten times the ttl.
    let asked = std::fs::read_to_string(asked).unwrap();
    let limit = asked.lines().next().unwrap().split("--max-time ").last().unwrap();
    let limit: u64 = limit.split(' ').next().unwrap().parse().unwrap();
    assert!((31..60).contains(&limit), "{asked}");
}

#[test]
fn a_client_in_go() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("lock");
    let built = Command::new("go")
        .args(["build", "-o"])
        .arg(&program)
        .arg(folder().join("lock.go"))
        .env("GOFLAGS", "-mod=mod")
        .status();
    assert!(built.unwrap().success());
    holds_releases_and_learns_of_a_loss("env", TTL, &program);
}

#[test]
fn a_client_in_java() {
    holds_releases_and_learns_of_a_loss("java", TTL, &folder().join("Lock.java"));
}

#[test]
fn a_client_in_typescript() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("lock.mjs");
    std::fs::copy(folder().join("lock.mts"), &script).unwrap();
    holds_releases_and_learns_of_a_loss("node", TTL, &script);
}

#[test]
fn a_client_in_csharp() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("Lock.exe");
    let built = Command::new("mcs")
        .args(["-r:System.Net.Http", "-r:System.Runtime.Serialization"])
        .arg(format!("-out:{}", program.display()))
        .arg(folder().join("Lock.cs"))
        .status();
    assert!(built.unwrap().success());
    // Mono compiles each part when it first comes to it, which takes a while on a busy machine.
    holds_releases_and_learns_of_a_loss("mono", 3 * TTL, &program);
}
