//! What happens when the system gives less than is needed: rights, room, descriptors.
//!
//! Rights are tested as a user without any, files of limited size stand for a full disk, and both
//! work in a container without the right to mount.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::common::*;
use latchwork_file::FileBackend;
use latchwork_store::*;
use rustix::process::{Resource, Rlimit, Signal, setrlimit};

/// Plays a part in another test; on its own it has nothing to do.
#[test]
fn child() {
    let Some((role, dir)) = role() else { return };
    let runtime = without_io();
    runtime.block_on(async {
        match role.as_str() {
            "connect" => say(try_to_connect(&dir)),
            "full" => full(&dir).await,
            "descriptors" => descriptors(&dir).await,
            "poke" => {
                let backend = connect(&dir);
                let claim = claim("k");
                granted(backend.try_acquire(&claim).await);
                say("held");
                hear();
                assert!(!backend.polls());
                assert_eq!(release(&backend, &claim).await, Released::Yes);
                let query = Query::Key(claim.key.clone());
                let snapshot = backend.inspect(&query).await.unwrap().pop().unwrap();
                say(format_args!("{} {}", backend.polls(), snapshot.notes.join(" ")));
            }
            "hold" => {
                let backend = connect(&dir);
                let claim = claim("k");
                granted(backend.try_acquire(&claim).await);
                say("held");
                hear();
                release(&backend, &claim).await;
                say("released");
                hear();
            }
            other => panic!("no such part: {other}"),
        }
    });
}

/// Connects and takes a key; says the error if there is one.
fn try_to_connect(dir: &Path) -> String {
    match FileBackend::connect(dir, io()) {
        Ok(_) => "connected".to_owned(),
        Err(error) => format!("{:?} {} | {}", error.kind(), error, error.hint().unwrap_or("none")),
    }
}

fn dir() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

/// What a user without rights is told who connects to `path`.
fn as_nobody(home: &Path, path: &Path) -> String {
    start_as_nobody(home, "connect", path).line()
}

/// Plays a part as a user without rights. The program is copied to where that user can read it.
fn start_as_nobody(home: &Path, role: &str, path: &Path) -> Process {
    let program = home.join("program");
    if !program.exists() {
        std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    }
    let mut command = command(&program, &format!("limits::{role}"), path);
    if rustix::process::geteuid().is_root() {
        command.uid(65_534).gid(65_534);
    }
    command.current_dir("/");
    Process::spawn(command)
}

fn mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn without_rights_the_path_and_the_next_step_are_named() {
    let home = dir();
    let locks = home.path().join("locks");

    // The parent may not be written.
    mode(home.path(), 0o555);
    if !rustix::process::geteuid().is_root() {
        mode(home.path(), 0o755);
        std::fs::copy(std::env::current_exe().unwrap(), home.path().join("program")).unwrap();
        mode(home.path(), 0o555);
    }
    let denied = as_nobody(home.path(), &locks);
    assert!(denied.starts_with("Denied "), "{denied}");
    assert!(denied.contains(locks.to_str().unwrap()) && !denied.ends_with("none"), "{denied}");
    mode(home.path(), 0o755);

    // The directory belongs to somebody else.
    std::fs::create_dir(&locks).unwrap();
    drop(connect(&locks));
    mode(&locks, 0o500);
    mode(&locks.join("sessions"), 0o500);
    let denied = as_nobody(home.path(), &locks);
    assert!(denied.starts_with("Denied "), "{denied}");
    mode(&locks, 0o700);
    mode(&locks.join("sessions"), 0o700);
}

#[test]
fn a_directory_for_all_users_serves_all_of_them() {
    let home = dir();
    let locks = home.path().join("locks");
    std::fs::create_dir(&locks).unwrap();
    mode(&locks, 0o1777);
    let backend = connect(&locks);
    assert_eq!(as_nobody(home.path(), &locks), "connected");
    drop(backend);
    assert_eq!(locks.join("stripes/00").metadata().unwrap().mode() & 0o777, 0o666);
}

/// A wake file that others may not write to costs time, fails nobody, and is said.
#[tokio::test]
async fn a_waiter_that_may_not_be_woken_is_named() {
    let home = dir();
    let locks = home.path().join("locks");
    std::fs::create_dir(&locks).unwrap();
    mode(&locks, 0o777);
    let backend = connect(&locks);
    for entry in std::fs::read_dir(locks.join("sessions")).unwrap().flatten() {
        if entry.path().extension().is_some_and(|kind| kind == "wake") {
            mode(&entry.path(), 0o400);
        }
    }
    let mut other = start_as_nobody(home.path(), "poke", &locks);
    assert_eq!(other.line(), "held");
    let mine = claim("k");
    blocked(backend.try_acquire(&mine).await);
    other.tell("release");
    let said = other.line();
    assert!(said.starts_with("true ") && said.contains("cannot write to a wake file"), "{said}");
    granted(backend.try_acquire(&mine).await);
    other.end();
}

#[test]
fn a_path_that_is_not_a_directory_is_unreachable() {
    let home = dir();
    let file = home.path().join("file");
    std::fs::write(&file, "").unwrap();
    for path in [file.clone(), file.join("below")] {
        let text = try_to_connect(&path);
        assert!(text.starts_with("Unreachable "), "{text}");
        assert!(text.contains(file.to_str().unwrap()) && !text.ends_with("none"), "{text}");
    }
    let deep = home.path().join("a/b/c");
    assert_eq!(try_to_connect(&deep), "connected", "what is missing is made");
    assert_eq!(home.path().join("a").metadata().unwrap().mode() & 0o777, 0o700);
}

/// A limit on the size of files stands for a full disk: a new record does not fit, and one that
/// outgrows its slots finds no room to grow.
#[test]
fn a_full_disk_leaves_the_old_record() {
    let home = dir();
    let program = std::env::current_exe().unwrap();
    // The limit would end the process with a signal if nobody ignored it, and only a shell can.
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]).arg(&program);
    let inner = command(&program, "limits::full", home.path());
    shell.args(inner.get_args());
    for (name, value) in inner.get_envs() {
        shell.env(name, value.unwrap());
    }
    let mut process = Process::spawn(shell);
    assert_eq!(process.line(), "done");
    process.end();
}

async fn full(dir: &Path) {
    let backend = connect(dir);
    let held = claim("held");
    let token = granted(backend.try_acquire(&held).await);
    let spare = claim("spare");
    granted(backend.try_acquire(&spare).await);
    let limit = Some(3_000);
    setrlimit(Resource::Fsize, Rlimit { current: limit, maximum: limit }).unwrap();

    for _ in 0..3 {
        let error = backend.try_acquire(&claim("new")).await.unwrap_err();
        assert_eq!((error.kind, error.effect), (BackendErrorKind::Unreachable, Effect::NotApplied));
        assert!(error.message.contains(dir.to_str().unwrap()), "{error}");
        assert!(error.next_step.unwrap().contains("free space"));
    }
    let records = std::fs::read_dir(dir.join("records")).unwrap();
    let records = records.flat_map(|stripe| std::fs::read_dir(stripe.unwrap().path()).unwrap());
    assert_eq!(records.count(), 2, "nothing half-made is left");

    // What is there can be changed until it needs more room, and then stays as it was.
    let mut line = 0;
    let error = loop {
        match backend.try_acquire(&claim("held")).await {
            Ok(_) => line += 1,
            Err(error) => break error,
        }
    };
    assert!(line > 3);
    assert_eq!((error.kind, error.effect), (BackendErrorKind::Unreachable, Effect::NotApplied));
    let query = Query::Key(Key::new("held").unwrap());
    let snapshot = backend.inspect(&query).await.unwrap().pop().unwrap();
    assert_eq!((snapshot.token, snapshot.waiters.len()), (token, line));
    assert!(matches!(renew(&backend, &held).await, Renewal::Held { .. }));
    assert_eq!(release(&backend, &held).await, Released::Yes);
    assert_eq!(release(&backend, &spare).await, Released::Yes);
    say("done");
}

/// Without descriptors a verb says so, and a waiter that cannot be told by the system polls.
#[test]
fn a_waiter_without_descriptors_polls_and_says_so() {
    let home = dir();
    let mut holder = start("limits::hold", home.path());
    assert_eq!(holder.line(), "held");
    let mut poor = start("limits::descriptors", home.path());
    assert_eq!(poor.line(), "polling");
    holder.signal(Signal::KILL);
    assert_eq!(poor.line(), "taken over");
    poor.end();
}

async fn descriptors(dir: &Path) {
    let backend = connect(dir);
    let mine = claim("k");
    // The stripe is open from now on, as in a program that has run for a while.
    blocked(backend.try_acquire(&claim("k").with(|it| it.waits = false)).await);
    let used = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    let limit = Some(used + 20);
    setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit }).unwrap();
    let open = || std::fs::File::open("/dev/null");
    let mut hoard = Vec::new();
    while let Ok(file) = open() {
        hoard.push(file);
    }
    let error = backend.try_acquire(&mine).await.unwrap_err();
    assert_eq!((error.kind, error.effect), (BackendErrorKind::Unreachable, Effect::NotApplied));
    assert!(error.next_step.unwrap().contains("ulimit"));

    // One descriptor is enough for a verb. The driver stands still until it is taken again, so
    // that the watch on the holder finds none.
    assert!(!backend.polls());
    let (go_on, stand_still) = std::sync::mpsc::channel::<()>();
    io().spawn(async move {
        let _ = stand_still.recv();
    });
    hoard.pop();
    let mut answer = blocked(backend.try_acquire(&mine).await);
    hoard.push(open().unwrap());
    drop(go_on);
    while !backend.polls() {
        io().sleep(std::time::Duration::from_millis(5)).await;
    }
    say("polling");
    hoard.clear();
    loop {
        soon("the end of the wait", backend.wait(&mine, &answer)).await.unwrap();
        match backend.try_acquire(&mine).await.unwrap() {
            Attempt::Granted(_) => break,
            Attempt::Blocked(again) => answer = again,
        }
    }
    say("taken over");
}
