//! Filters of system calls (seccomp), as containers and units of systemd have them: each call that a run makes
//! is refused in turn.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::sync::Mutex;
use std::thread;

use latchwork_services::{RedisOptions, RedisServer, Refused};
use rustix::io::Errno;

use crate::common::{Running, Store};

/// Without these no program of Rust starts, or the answer has no error to give: what happens then is not
/// latchwork's to say.
const ASSUMED: [&str; 12] = [
    "execve",
    "exit_group",
    "futex",
    "mmap",
    "rt_sigaction",
    "rt_sigreturn",
    "poll",
    "ppoll",
    "getpid",
    "getppid",
    "getuid",
    "geteuid",
];

/// What the loader says that does not get a program started.
const LOADER: [&str; 3] = [
    "error while loading shared libraries",
    "cannot set up thread-local storage",
    "cannot apply additional memory protection",
];

/// The codes of docs/guide/command.md for a run that cannot start or cannot go on.
const CODES: [i32; 4] = [64, 69, 70, 77];

fn run(store: &Store, url: Option<&str>, name: &str) -> Command {
    let words = ["run", "--wait", "300ms", name, "--", "true"];
    let mut command = store.latchwork(&words);
    if let Some(url) = url {
        command.env("LATCHWORK_STORE", url);
    }
    command
}

/// The system calls that a run makes, with their numbers.
fn calls(store: &Store, url: Option<&str>) -> BTreeMap<u32, String> {
    let (run, traces) = (run(store, url, "traced"), store.file("traces"));
    let mut strace = Command::new("strace");
    strace.args(["-f", "-n", "-qq", "-o"]).arg(&traces);
    strace.arg(run.get_program()).args(run.get_args());
    let mut strace = store.at_this_store(strace);
    strace.envs(run.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let done = Running::start(strace).finish();
    assert_eq!(done.code(), 0, "{done:?}");
    let traces = fs::read_to_string(traces).unwrap();
    let call = |line: &str| {
        let (number, rest) = line.split_once('[')?.1.split_once("] ")?;
        // The end of a call that another thread has interrupted is on a line of its own.
        let name = rest.split_once('(')?.0;
        let is_whole = !name.starts_with('<');
        is_whole.then_some((number.trim().parse().ok()?, name.to_owned()))
    };
    let calls: BTreeMap<u32, String> = traces.lines().filter_map(call).collect();
    assert!(calls.len() > 40, "{calls:?}");
    calls
}

/// Runs with each of them refused: it works without, or says what was refused, with a documented code.
fn each_refused(url: Option<&str>) {
    let store = Store::new();
    let calls = calls(&store, url);
    let assumed = |name: &str| ASSUMED.contains(&name);
    let todo: Vec<_> = calls.iter().filter(|(_, name)| !assumed(name)).collect();
    let todo: Vec<_> = todo
        .iter()
        .flat_map(|call| [Errno::PERM, Errno::NOSYS].map(|error| (*call, error)))
        .collect();
    let (todo, wrong) = (Mutex::new(todo.into_iter()), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let next = todo.lock().unwrap().next();
                    let Some(((&call, name), error)) = next else { return };
                    let mut run = run(&store, url, &format!("{name}-{error}"));
                    Refused { call, errno: error.raw_os_error() as u16 }.to(&mut run);
                    let done = Running::start(run).finish();
                    let said = &done.stderr;
                    if LOADER.iter().any(|words| said.contains(words)) {
                        continue;
                    }
                    // Where nothing can be written, nothing can be said.
                    let is_named = said.contains(&format!("os error {}", error.raw_os_error()));
                    let is_right = match done.status.code() {
                        Some(0) => true,
                        Some(code) => CODES.contains(&code) && (is_named || name == "write"),
                        None => false,
                    };
                    if !is_right {
                        wrong.lock().unwrap().push(format!("{name} {error:?}: {done:?}"));
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn h291_a_refused_system_call_is_named_by_a_run_on_files() {
    each_refused(None);
}

#[test]
fn h291_a_refused_system_call_is_named_by_a_run_on_redis() {
    let server = RedisServer::start(&RedisOptions::new()).unwrap();
    each_refused(Some(&server.url()));
}

/// What else a run says of it: which call it was, and what to do.
#[test]
fn h291_a_refused_start_says_what_to_allow() {
    let store = Store::new();
    let said = |call: libc::c_long, errno: Errno| {
        let mut run = run(&store, None, "x");
        Refused { call: call as u32, errno: errno.raw_os_error() as u16 }.to(&mut run);
        let done = Running::start(run).finish();
        (done.code(), done.stderr)
    };
    for (call, code, words) in [
        (libc::SYS_setsid, 70, "guardian process, which ended at its start: setsid: "),
        (libc::SYS_setpgid, 70, "cannot prepare the command's process: setpgid: "),
        (libc::SYS_prctl, 70, "cannot prepare the command's process: prctl: "),
        (libc::SYS_clone3, 64, "cannot start a thread: "),
        (libc::SYS_socketpair, 70, "cannot start: "),
        (libc::SYS_waitid, 70, "cannot watch the command: "),
    ] {
        let (ended, said) = said(call, Errno::PERM);
        assert!(ended == code && said.contains(words), "{ended} {said}");
        assert!(said.contains("seccomp") || call == libc::SYS_setsid, "{said}");
    }
}

/// The other verbs, with what all of them need. What works works, and what does not says why.
#[test]
fn h291_every_verb_names_what_it_was_refused() {
    let store = Store::new();
    let calls = [
        libc::SYS_clone3,
        libc::SYS_clone,
        libc::SYS_socketpair,
        libc::SYS_socket,
        libc::SYS_epoll_create1,
        libc::SYS_eventfd2,
        libc::SYS_timerfd_create,
        libc::SYS_pipe2,
        libc::SYS_recvfrom,
    ];
    let mut keys = 0;
    for call in calls {
        for error in [Errno::PERM, Errno::AGAIN] {
            keys += 1;
            let [task, leader, held] =
                ["task", "leader", "held"].map(|kind| format!("{kind}{keys}"));
            // It would mean that nothing has come yet.
            if call == libc::SYS_recvfrom && error == Errno::AGAIN {
                continue;
            }
            let verbs = [
                &["ls"][..],
                &["status", &held],
                &["show", &held],
                &["doctor"],
                &["release", "--force", &held],
                &["once", "--every", "1d", &task, "--", "true"],
                &["elect", &leader, "--", "true"],
                &["hold", "--wait", "0", &held],
                &["serve", "--listen", "127.0.0.1:0", "--drain", "0s"],
            ];
            for verb in verbs {
                let is_service = verb[0] == "serve";
                let starts_anyway = [libc::SYS_clone, libc::SYS_timerfd_create, libc::SYS_pipe2];
                // A candidate tries again for as long as it takes, unless that is of no use.
                if verb[0] == "elect" && error == Errno::AGAIN {
                    continue;
                }
                if is_service && (starts_anyway.contains(&call) || call == libc::SYS_socket) {
                    continue;
                }
                let mut command = store.latchwork(verb);
                Refused { call: call as u32, errno: error.raw_os_error() as u16 }.to(&mut command);
                let done = Running::start(command).finish();
                let code = done.code();
                let named = format!("os error {}", error.raw_os_error());
                let works = [0, 1].contains(&code) && !is_service;
                let is_told = [64, 69, 70, 71, 77].contains(&code)
                    && (done.stderr.contains(&named) || done.stdout.contains(&named));
                assert!(works || is_told, "{verb:?} {call} {error:?}: {done:?}");
                assert!(!done.stderr.contains("panicked"), "{verb:?} {call} {error:?}: {done:?}");
            }
        }
    }
}
