//! What happens when the system gives less than is needed: rights, room, descriptors.
//!
//! Rights are tested as a user without any, files of limited size stand for a full disk, and both
//! work in a container without the right to mount.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;

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
            "doctor" => {
                let report = latchwork_file::doctor(&dir, io()).await.unwrap();
                let told = report.findings.iter().find(|it| it.code == "directory").unwrap();
                say(format_args!("{} {}", told.severity.word(), told.remedy));
            }
            "full" => full(&dir).await,
            "descriptors" => descriptors(&dir).await,
            "renew" => renew_without_descriptors(&dir).await,
            "small" => small(&dir).await,
            "umask" => {
                rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o777));
                say(try_to_connect(&dir));
            }
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
        Err(error) => {
            format!("{:?} {} | {}", error.kind(), error, error.next_step().unwrap_or("none"))
        }
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
    mode(&locks.join("sessions"), 0o700);

    // Whether it is there cannot be known.
    mode(&locks, 0o600);
    let next_step = "give this user the right to read and write the lock directory, and to search \
                     the directories above it, or choose another one";
    let below = locks.join("below");
    let denied = as_nobody(home.path(), &below);
    assert!(denied.starts_with("Denied ") && denied.ends_with(next_step), "{denied}");
    let told = start_as_nobody(home.path(), "doctor", &below).line();
    assert_eq!(told, format!("critical {next_step}"));
    mode(&locks, 0o700);
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
    let mut process = start("limits::full", home.path());
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
        assert!(error.next_step.unwrap().contains("ulimit -f"));
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

/// Beyond its limit on the size of files, the kernel would end the whole program by a signal (SIGXFSZ).
#[test]
fn h227_a_limit_on_file_sizes_ends_no_program() {
    let home = dir();
    let mut process = start("limits::small", &home.path().join("locks"));
    assert_eq!(process.line(), "refused");
    process.end();
}

async fn small(dir: &Path) {
    let limit = Some(100);
    setrlimit(Resource::Fsize, Rlimit { current: limit, maximum: limit }).unwrap();
    let backend = connect(dir);
    let error = backend.try_acquire(&claim("k")).await.unwrap_err();
    assert_eq!((error.kind, error.effect), (BackendErrorKind::Unreachable, Effect::NotApplied));
    assert!(error.message.contains("File too large"), "{error}");
    assert!(error.next_step.unwrap().contains("ulimit -f"));
    say("refused");
}

/// It takes this user's own rights to what is made: directories, pipes and files.
#[test]
fn h226_a_umask_makes_no_unusable_directory() {
    let home = dir();
    mode(home.path(), 0o777);
    let locks = home.path().join("a/locks");
    for role in ["umask", "connect", "umask"] {
        assert_eq!(start_as_nobody(home.path(), role, &locks).line(), "connected", "{role}");
    }
    assert_eq!(locks.metadata().unwrap().mode() & 0o777, 0o700);
}

/// A program that uses up its descriptors while it holds keeps what it holds, and gives it back.
#[test]
fn h225_a_holder_without_descriptors_renews_and_releases() {
    let home = dir();
    let mut poor = start("limits::renew", home.path());
    assert_eq!(poor.line(), "held");
    poor.end();
}

async fn renew_without_descriptors(dir: &Path) {
    let backend = connect(dir);
    let held = ["a", "b", "c"].map(claim);
    for claim in &held {
        granted(backend.try_acquire(claim).await);
    }
    let used = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    let limit = Some(used + 20);
    setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit }).unwrap();
    let mut hoard = Vec::new();
    let mut hoard_all = || {
        while let Ok(file) = std::fs::File::open("/dev/null") {
            hoard.push(file);
        }
    };
    for _ in 0..3 {
        hoard_all();
        for answer in backend.renew_all(&held).await {
            assert!(matches!(answer.unwrap(), Renewal::Held { .. }));
        }
    }
    // A try of the same process does not take the descriptor away.
    blocked(backend.try_acquire(&claim("a").with(|it| it.waits = false)).await);
    hoard_all();
    for claim in &held {
        assert_eq!(release(&backend, claim).await, Released::Yes);
        hoard_all();
    }
    say("held");
}

/// A record that outgrew its file lies in another one, which a kept descriptor does not lead to.
#[tokio::test]
async fn h225_a_record_that_has_moved_is_not_written_where_it_was() {
    let home = dir();
    let (mine, other) = (connect(home.path()), connect(home.path()));
    let held = claim("k");
    let token = granted(mine.try_acquire(&held).await);
    let record = || {
        let stripes = std::fs::read_dir(home.path().join("records")).unwrap();
        let mut records =
            stripes.flat_map(|stripe| std::fs::read_dir(stripe.unwrap().path()).unwrap());
        records.next().unwrap().unwrap().metadata().unwrap().ino()
    };
    let first = record();
    let mut line = 0;
    while record() == first {
        blocked(other.try_acquire(&claim("k")).await);
        line += 1;
    }
    assert!(matches!(renew(&mine, &held).await, Renewal::Held { .. }));
    let query = Query::Key(held.key.clone());
    let snapshot = other.inspect(&query).await.unwrap().pop().unwrap();
    assert_eq!((snapshot.token, snapshot.waiters.len()), (token, line));
    assert_eq!(release(&mine, &held).await, Released::Yes);
    let snapshot = other.inspect(&query).await.unwrap().pop().unwrap();
    assert!(snapshot.holders.is_empty(), "{snapshot:?}");
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
