//! What signals do to a waiter, a keeper and a command, and what a command cannot escape with.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use latchwork_services::{RedisOptions, RedisServer};
use rustix::process::Signal;

use crate::common::pty::{CTRL_C, Terminal};
use crate::common::{Holder, Running, Store, eventually, kill, pid};
use crate::hold::{keepers, script, status};

/// All that a process can catch, but for faults and for what stops or asks to end.
fn others() -> impl Iterator<Item = i32> {
    let named = [
        libc::SIGTRAP,
        libc::SIGABRT,
        libc::SIGALRM,
        libc::SIGVTALRM,
        libc::SIGPROF,
        libc::SIGIO,
        libc::SIGPWR,
        libc::SIGXCPU,
        libc::SIGSTKFLT,
        libc::SIGURG,
    ];
    named.into_iter().chain(libc::SIGRTMIN()..=libc::SIGRTMAX())
}

#[expect(unsafe_code, reason = "real-time signals have no names")]
fn send(to: u32, number: i32) {
    // SAFETY: a system call without pointers.
    assert_eq!(unsafe { libc::kill(to as i32, number) }, 0, "signal {number}");
}

/// Each of them ended a keeper, and nobody told the shell that its lock was free.
#[test]
fn h520_no_signal_but_kill_ends_a_keeper_of_a_shell() {
    let store = Store::new();
    let text =
        "held=$(latchwork hold x) && eval \"$held\" || exit; echo up; read line; latchwork release";
    let mut command = script(&store, "bash", text);
    command.stdin(Stdio::piped());
    let mut shell = Running::start(command);
    shell.stdout.until("up");
    let keeper = keepers(&store)[0];
    let named = [libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2, libc::SIGSYS, libc::SIGTSTP];
    for number in named.into_iter().chain(others()) {
        send(keeper as u32, number);
    }
    assert_eq!(status(&store, "x"), "held\n");
    assert_eq!(keepers(&store), [keeper]);
    drop(shell.child.stdin.take());
    assert_eq!(shell.finish().code(), 0, "it answers the release");
    assert_eq!(status(&store, "x"), "free\n");
}

/// A claim of a waiter that has died keeps its place until the store drops it.
#[test]
fn h521_a_waiter_that_a_signal_ends_leaves_the_queue() {
    let (store, server) = (Store::new(), RedisServer::start(&RedisOptions::new()).unwrap());
    let at = server.url();
    let holder =
        store.holder_with(&[], "until [ -e \"$TRACE/go\" ]; do sleep 0.02; done", |command| {
            command.env("LATCHWORK_STORE", &at);
        });
    holder.ready();
    let waiter = || {
        let waiter =
            Running::start(store.latchwork(&["--store", &at, "-v", "run", "x", "--", "true"]));
        waiter.stderr.until("waiting for");
        waiter
    };
    for number in [libc::SIGQUIT, libc::SIGALRM, libc::SIGXCPU, libc::SIGRTMIN() + 3] {
        let ended = waiter();
        send(ended.child.id(), number);
        assert_eq!(ended.finish().status.signal(), Some(number));
        let shown = store.output(&["--store", &at, "--json", "show", "x"]).stdout;
        assert!(shown.contains("\"waiters\":[]"), "{number}: {shown}");
    }
    // `pkill -USR1` asks leaders to open their logs anew, and finds the other candidates as well.
    let waits = waiter();
    for number in [libc::SIGUSR1, libc::SIGUSR2] {
        send(waits.child.id(), number);
    }
    std::fs::write(store.file("go"), "").unwrap();
    assert_eq!(holder.finish().code(), 0);
    assert_eq!(waits.finish().code(), 0);
}

/// latchwork died of them, and its command got SIGKILL.
#[test]
fn h522_every_signal_reaches_the_command() {
    let store = Store::new();
    let traps: String = others().map(|n| format!("trap 'echo got {n}' {n}; ")).collect();
    let text = format!("{traps} echo up; while :; do sleep 0.02; done");
    let run = Running::start(store.latchwork(&["run", "x", "--", "bash", "-c", &text]));
    run.stdout.until("up");
    for number in others() {
        send(run.child.id(), number);
        let got = run.stdout.until("got ");
        assert_eq!(got, format!("got {number}"));
    }
    run.signal(Signal::TERM);
    assert_eq!(run.finish().code(), 143);
}

/// A command that `timeout` runs in a group of its own; it holds the lock file of the script.
const INSIDE: &str = "timeout 60 sh -c 'echo inside; sleep 300; echo'; echo end";

fn inside(store: &Store, options: &[&str], script: &str) -> Running {
    let holder = store.holder(options, script);
    holder.ready();
    holder.stdout.until("inside");
    holder
}

/// The next holder ran beside what `timeout` had started.
#[test]
fn h523_what_timeout_runs_ends_with_the_command() {
    let store = Store::new();
    let next = || store.holder(&["--wait", "20s"], "true").ready();
    let bare = INSIDE.replace("timeout", "env -i timeout");
    for script in [INSIDE, &bare] {
        let done = inside(&store, &["--ttl", "2s", "--max-hold", "2s"], script).finish();
        assert_eq!(done.code(), 73, "{done:?}");
        next();
        let asked = inside(&store, &[], script);
        asked.signal(Signal::TERM);
        assert_eq!(asked.finish().code(), 143);
        next();
    }
    let killed = inside(&store, &[], INSIDE);
    kill(killed.pid());
    next();
    killed.finish();
    let stopped = inside(&store, &["--ttl", "2s"], INSIDE);
    stopped.signal(Signal::STOP);
    next();
    stopped.signal(Signal::CONT);
    assert_eq!(stopped.finish().code(), 73);
}

/// A command that has become root, as by sudo: latchwork has the right to let it, and none to signal it.
#[test]
fn h543_a_command_that_became_another_user_is_told_of() {
    const ROOT: &str = "setpriv --reuid 0 --regid 0 --clear-groups";
    let store = Store::new();
    let program = store.file("program");
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_latchwork")).arg(&program).status();
    assert!(copied.unwrap().success());
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(store.file(""), open).unwrap();
    let start = |options: &[&str], script: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
        let rights = ["--inh-caps=-all,+setuid,+setgid", "--ambient-caps=-all,+setuid,+setgid"];
        command.args(rights).arg("--").arg(&program).arg("run").args(options);
        command.args(["x", "--", "bash", "-c", script]).current_dir("/");
        let run = Running::start(store.at_this_store(command));
        run.stdout.until("up");
        run
    };
    let told = "cannot signal the command: it runs as another user; run latchwork under sudo";
    // It is not waited for, and keeps no output open.
    let root = format!("{ROOT} sh -c 'echo up; exec sleep 20 > /dev/null 2>&1'");
    for script in [format!("exec {root}"), format!("{root}; :"), format!("set -m; {root}; :")] {
        let done = start(&["--ttl", "2s", "--max-hold", "2s"], &script).finish();
        assert_eq!(done.code(), 73, "{script}: {done:?}");
        assert_eq!(done.stderr.matches(told).count(), 1, "{script}: {done:?}");
        assert!(
            done.stderr.contains("could not be ended, and may still run"),
            "{script}: {done:?}"
        );
    }
    let asked = start(&[], &format!("exec {ROOT} sh -c 'echo up; sleep 4'"));
    asked.signal(Signal::WINCH);
    asked.signal(Signal::TERM);
    asked.signal(Signal::TERM);
    let done = asked.finish();
    assert_eq!((done.code(), done.stderr.matches(told).count()), (0, 1), "{done:?}");
}

/// A service that a deployment starts is to outlive it.
#[test]
fn h523_a_daemon_of_the_command_stays() {
    let store = Store::new();
    let daemon =
        "setsid -f sh -c 'exec >/dev/null 2>&1 9>&-; echo $$ > \"$TRACE/daemon\"; exec sleep 300'";
    let wait = "until [ -s \"$TRACE/daemon\" ]; do sleep 0.02; done; sleep 300; echo x";
    let script = format!("{daemon}; {wait}");
    let done = store.holder(&["--ttl", "2s", "--max-hold", "2s"], &script).finish();
    assert_eq!(done.code(), 73, "{done:?}");
    let daemon = std::fs::read_to_string(store.file("daemon")).unwrap();
    let daemon = pid(daemon.trim().parse().unwrap());
    assert_eq!(crate::common::state(daemon), 'S');
    kill(daemon);
}

/// Half of the work is done, and the exit code is 0.
#[test]
fn h524_a_task_that_was_hung_up_is_not_done() {
    let store = Store::new();
    let script = "trap 'exit 0' HUP; echo ready; while :; do sleep 0.02; done";
    let words = ["once", "--every", "1d", "report", "--", "sh", "-c", script];
    let hung_up = Running::start(store.latchwork(&words));
    hung_up.stdout.until("ready");
    hung_up.signal(Signal::HUP);
    let done = hung_up.finish();
    assert_eq!(done.code(), 0, "{done:?}");
    assert!(done.stderr.contains("open for another run"), "{done:?}");
}

#[test]
fn h524_a_task_that_ctrl_c_cut_short_is_not_done() {
    let store = Store::new();
    for mut terminal in [Terminal::bash(&store), Terminal::sh(&store)] {
        terminal.line(
            "latchwork once --every 1d report -- sh -c 'trap \"exit 0\" INT; echo pg=$$; while :; do sleep 0.02; done'",
        );
        terminal.number("pg=");
        terminal.keys(CTRL_C);
        terminal.until("open for another run");
        eventually("an open task", || (status(&store, "report") == "free\n").then_some(()));
    }
}
