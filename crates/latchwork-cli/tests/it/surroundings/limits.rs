//! Limits on descriptors and processes, down to where nothing can start.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Command;

use latchwork_services::{RedisOptions, RedisServer};
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::common::{Running, Store};

/// After so many limits that were enough, each larger one is.
const ENOUGH: u32 = 10;

/// The command with this limit.
fn limited(mut command: Command, resource: Resource, limit: u64) -> Running {
    let limit = Rlimit { current: Some(limit), maximum: Some(limit) };
    let set = move || Ok(setrlimit(resource, limit)?);
    // SAFETY: one system call.
    #[expect(unsafe_code, reason = "between fork and exec")]
    unsafe {
        command.pre_exec(set);
    }
    Running::start(command)
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
                let is_named = done.stderr.to_lowercase().contains("too many open files");
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
