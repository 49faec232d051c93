//! Limits on descriptors and processes, down to where nothing can start.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::Command;

use latchwork_services::{RedisOptions, RedisServer};
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::common::{Running, Store};

/// After so many limits that were enough, each larger one is.
const ENOUGH: u32 = 10;

/// The command with this limit, started.
fn limited(command: Command, resource: Resource, limit: u64) -> Running {
    Running::start(command_with(command, resource, limit))
}

/// The command with this limit.
fn command_with(mut command: Command, resource: Resource, limit: u64) -> Command {
    let limit = Rlimit { current: Some(limit), maximum: Some(limit) };
    let set = move || Ok(setrlimit(resource, limit)?);
    // SAFETY: one system call.
    #[expect(unsafe_code, reason = "between fork and exec")]
    unsafe {
        command.pre_exec(set);
    }
    command
}

/// Each of them either does its work or says what it lacks.
#[test]
fn h224_too_few_descriptors_are_named_and_end_no_command_by_a_panic() {
    let server = RedisServer::start(&RedisOptions::new()).unwrap();
    for url in [None, Some(server.url())] {
        let store = Store::new();
        // So that every verb has something to read.
        assert_eq!(store.output(&["run", "x", "--", "true"]).code(), 0);
        // Without a limit, `run` waits for a store that is short of descriptors, too.
        for args in [&["run", "--wait", "1", "x", "--", "true"][..], &["show", "x"], &["ls"]] {
            let mut worked = 0;
            for limit in 4..=128 {
                let mut command = store.latchwork(args);
                if let Some(url) = &url {
                    command.env("LATCHWORK_STORE", url);
                }
                let done = limited(command, Resource::Nofile, limit).finish();
                if done.stderr.contains("error while loading shared libraries") {
                    // The system loads the program with one descriptor, and does so in its own words.
                    continue;
                }
                let status = done.status;
                assert_eq!(status.signal(), None, "{url:?} {args:?} {limit}: {done:?}");
                assert!(!done.stderr.contains("panicked"), "{url:?} {args:?} {limit}: {done:?}");
                let works = status.code() == Some(0);
                let said = done.stderr.to_lowercase();
                let is_named = said.contains("too many open files") && said.contains("ulimit -n");
                assert!(works || is_named, "{url:?} {args:?} {limit}: {done:?}");
                worked = if works { worked + 1 } else { 0 };
                if worked == ENOUGH {
                    break;
                }
            }
            assert_eq!(worked, ENOUGH, "{url:?} {args:?}");
        }
    }
}

/// H529: without `--wait` it waits for a descriptor for ever. The first line says what for, and what to do about it.
#[test]
fn h529_a_wait_for_descriptors_says_so_within_seconds() {
    let store = Store::new();
    assert_eq!(store.output(&["run", "x", "--", "true"]).code(), 0);
    let mut waits = 0;
    for limit in 16..=32 {
        let command = store.latchwork(&["run", "x", "--", "true"]);
        let running = limited(command, Resource::Nofile, limit);
        let Some(line) = running.stderr.next() else { continue };
        if line.contains("waiting for \"x\"") {
            waits += 1;
            let said =
                "Too many open files (os error 24); trying again; raise the limit of open files";
            assert!(line.contains(said), "{limit}: {line}");
        }
    }
    assert!(waits > 0, "some of these limits leave room for the start alone");
}

/// A thread that the system refuses once the runtime for it is there.
#[test]
fn h224_too_few_threads_are_named_and_end_no_command_by_a_panic() {
    let store = Store::new();
    let program = store.file("program");
    fs::copy(env!("CARGO_BIN_EXE_latchwork"), &program).unwrap();
    fs::set_permissions(store.file(""), fs::Permissions::from_mode(0o777)).unwrap();
    for limit in 0..=2 {
        let mut command = Command::new(&program);
        command.args(["run", "x", "--", "true"]).current_dir("/");
        if rustix::process::geteuid().is_root() {
            // The limit is for other users.
            command.uid(65_534).gid(65_534);
        }
        let done = limited(store.at_this_store(command), Resource::Nproc, limit).finish();
        assert_eq!(done.code(), 69, "{limit}: {done:?}");
        assert!(done.stderr.contains("cannot start a thread"), "{limit}: {done:?}");
    }
}

/// Where files may not grow, latchwork says so. The command is ended by the signal as ever.
#[test]
fn h294_a_limit_on_file_sizes_ends_no_verb_by_a_signal() {
    let store = Store::new();
    assert_eq!(store.output(&["run", "x", "--", "true"]).code(), 0);
    let verbs = [
        &["run", "--wait", "300ms", "x", "--", "true"][..],
        &["once", "--every", "1d", "y", "--", "true"],
        &["hold", "--wait", "0", "h"],
        &["ls"],
        &["show", "x"],
        &["doctor"],
        &["man"],
        &["--help"],
    ];
    for verb in verbs {
        for limit in [0, 1, 100] {
            for to_a_file in [false, true] {
                let mut command = store.latchwork(verb);
                if to_a_file {
                    command.stdout(fs::File::create(store.file("output")).unwrap());
                }
                let mut child = command_with(command, Resource::Fsize, limit);
                let done = child.output().unwrap();
                let said = String::from_utf8_lossy(&done.stderr);
                let code = done.status.code();
                let is_told = said.contains("File too large") || said.contains("ulimit -f");
                let is_right = code == Some(0) || (code.is_some_and(|code| code < 100) && is_told);
                // What cannot be written for people is not worth an error code.
                assert!(
                    is_right || verb == ["--help"] && code.is_some(),
                    "{verb:?} {limit}: {done:?}"
                );
                assert!(!said.contains("panicked"), "{verb:?} {limit}: {said}");
            }
        }
    }
    let redis = RedisServer::start(&RedisOptions::new()).unwrap();
    let script = "head -c 100000 /dev/zero > \"$TRACE/large\"; echo $?";
    let mut command = store.latchwork(&["run", "x", "--", "sh", "-c", script]);
    command.env("LATCHWORK_STORE", redis.url());
    let done = limited(command, Resource::Fsize, 1_000).finish();
    assert_eq!((done.code(), done.stdout.trim()), (0, "153"), "{done:?}");
}

/// In a mount namespace of its own, in which `before` has been run.
fn mounted(store: &Store, before: &str, args: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    let script = format!("{before} && exec \"$@\"");
    command
        .args(["--mount", "sh", "-c", &script, "sh", env!("CARGO_BIN_EXE_latchwork")])
        .args(args);
    store.at_this_store(command)
}

/// On files it is the cause, and on servers nothing needs it.
#[test]
fn h295_without_proc_a_verb_works_or_says_so() {
    let store = Store::new();
    assert_eq!(store.output(&["run", "x", "--", "true"]).code(), 0);
    let redis = RedisServer::start(&RedisOptions::new()).unwrap();
    let verbs = [
        &["run", "x", "--", "sh", "-c", "sleep 0.1; exit 7"][..],
        &["once", "--every", "1d", "y", "--", "sh", "-c", "exit 7"],
        &["elect", "z", "--", "sh", "-c", "exit 7"],
        &["ls"],
        &["show", "x"],
        &["doctor"],
    ];
    for verb in verbs {
        let command = mounted(&store, "mount -t tmpfs none /proc", verb);
        let done = Running::start(command).finish();
        assert!([64, 71].contains(&done.code()), "{verb:?} {done:?}");
        let said = format!("{}{}", done.stdout, done.stderr);
        assert!(said.contains("/proc") && !said.contains("panicked"), "{verb:?} {done:?}");
        let mut command = mounted(&store, "mount -t tmpfs none /proc", verb);
        command.env("LATCHWORK_STORE", redis.url());
        let done = Running::start(command).finish();
        let code = if verb.contains(&"--") { 7 } else { 0 };
        assert_eq!(done.code(), code, "{verb:?} {done:?}");
    }
}

#[test]
fn h295_a_read_only_file_system_is_named() {
    let store = Store::new();
    let locks = store.path();
    for is_there in [false, true] {
        if is_there {
            assert_eq!(store.output(&["run", "x", "--", "true"]).code(), 0);
        }
        for verb in [
            &["run", "x", "--", "true"][..],
            &["once", "--every", "1d", "y", "--", "true"],
            &["elect", "z", "--", "true"],
            &["hold", "--wait", "0", "h"],
        ] {
            let done = Running::start(mounted(&store, &read_only(&locks), verb)).finish();
            assert!([64, 77].contains(&done.code()), "{verb:?} {done:?}");
            assert!(done.stderr.contains("Read-only file system"), "{verb:?} {done:?}");
        }
        for verb in [&["ls"][..], &["show", "x"]] {
            let done = Running::start(mounted(&store, &read_only(&locks), verb)).finish();
            assert_eq!(done.code(), 0, "{verb:?} {done:?}");
        }
    }
}

/// Makes the directory above read-only.
fn read_only(path: &Path) -> String {
    let dir = path.parent().unwrap().display();
    format!("mount --bind {dir} {dir} && mount -o remount,bind,ro {dir}")
}

/// What cannot be executed says why: its interpreter, or its file system. With too little memory for a thread, the
/// limits on memory are named.
#[test]
fn a_command_that_cannot_start_names_the_cause() {
    let store = Store::new();
    let script = |name: &str, first: &str, mode: u32| {
        fs::write(store.file(name), format!("{first}echo ran\n")).unwrap();
        fs::set_permissions(store.file(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    script("windows", "#!/bin/sh\r\n", 0o755);
    script("moved", "#!/opt/none/bin/sh\n", 0o755);
    script("plain", "#!/bin/sh\n", 0o644);
    script("good", "#!/bin/sh\n", 0o755);
    let path = format!("{}:{}", store.file("").display(), std::env::var("PATH").unwrap());
    for by_path in [false, true] {
        for (name, code, part) in [
            ("windows", 127, "interpreter in its first line is missing"),
            ("moved", 127, "interpreter in its first line is missing"),
            ("plain", 126, "check its mode (chmod +x)"),
            ("none", 127, "command not found"),
        ] {
            let word =
                if by_path { name.to_owned() } else { store.file(name).display().to_string() };
            let mut command = store.latchwork(&["run", "x", "--", &word]);
            command.env("PATH", &path).current_dir(store.file(""));
            let done = Running::start(command).finish();
            assert_eq!(done.code(), code, "{done:?}");
            assert!(done.stderr.contains(part), "{done:?}");
        }
        // A file here that `PATH` does not lead to is not what was meant.
        let mut command = store.latchwork(&["run", "x", "--", "good"]);
        command.current_dir(store.file(""));
        let done = Running::start(command).finish();
        assert!(done.code() == 127 && done.stderr.contains("command not found"), "{done:?}");
    }
    let dir = store.file("").display().to_string();
    let noexec = format!("mount --bind {dir} {dir} && mount -o remount,bind,noexec {dir}");
    let good = store.file("good").display().to_string();
    let done = Running::start(mounted(&store, &noexec, &["run", "x", "--", &good])).finish();
    assert!(done.code() == 126 && done.stderr.contains("noexec"), "{done:?}");
    // Below this, the program itself is not loaded; above, there is room for a thread.
    let mut told = 0;
    for megabytes in 8..=64 {
        let command = store.latchwork(&["run", "x", "--", "true"]);
        let done = limited(command, Resource::As, megabytes << 20).finish();
        if done.stderr.contains("cannot start a thread") {
            assert!(done.stderr.contains("ulimit -v"), "{megabytes}: {done:?}");
            told += 1;
        }
    }
    assert!(told > 0, "no limit left no room for a thread alone");
}

/// The limit of a container is reached while the lock is held, and nothing can be started any more.
#[test]
fn h293_a_limit_on_threads_that_is_reached_later_loses_no_lock() {
    let store = Store::new();
    let program = store.file("program");
    fs::copy(env!("CARGO_BIN_EXE_latchwork"), &program).unwrap();
    fs::set_permissions(store.file(""), fs::Permissions::from_mode(0o777)).unwrap();
    let mut command = Command::new(&program);
    command.args([
        "once",
        "--ttl",
        "3s",
        "--every",
        "1d",
        "x",
        "--",
        "sh",
        "-c",
        "prlimit --pid $PPID --nproc=0; echo $?; read end; exit 0",
    ]);
    if rustix::process::geteuid().is_root() {
        // The limit is for other users; this number has no other process.
        command.uid(65_533).gid(65_533);
    }
    let mut command = store.at_this_store(command);
    command.current_dir("/").stdin(std::process::Stdio::piped());
    let mut run = Running::start(command);
    assert_eq!(run.stdout.next().as_deref(), Some("0"));
    // More than a ttl: it is renewed, or its command is ended.
    std::thread::sleep(std::time::Duration::from_secs(4));
    drop(run.child.stdin.take());
    let done = run.finish();
    // `read` fails at the end of its input, and the script goes on.
    assert_eq!((done.code(), &*done.stderr), (0, ""), "{done:?}");
    let done = store.output(&["once", "--every", "1d", "x", "--", "echo", "again"]);
    assert_eq!((done.code(), &*done.stdout), (0, ""), "{done:?}");
}
