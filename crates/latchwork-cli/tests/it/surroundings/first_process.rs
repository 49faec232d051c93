//! latchwork as the first process of a container, and wherever else it gets the orphans of others.

use std::os::unix::process::CommandExt;
use std::process::Command;

use latchwork_services::{RedisOptions, RedisServer};
use rustix::process::{Pid, Signal, getpid, set_child_subreaper};

use crate::common::{Running, Store, eventually, processes, stat};

/// Leaves twenty orphans behind that end at once or soon.
const ORPHANS: &str = "for i in $(seq 10); do (true &); (sleep 0.1 &); done;";

/// Says how many processes are zombies, as soon as none is or after ten seconds.
const COUNT: &str = "for i in $(seq 100); do z=$(cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z '); \
                     [ $z = 0 ] && break; sleep 0.1; done; echo zombies $z;";

/// A command in a pid namespace of its own, in which it is the first process.
fn first_process(store: &Store, words: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]).args(words);
    store.at_this_store(command)
}

fn first_latchwork(store: &Store, args: &[&str]) -> Running {
    Running::start(first_process(store, &[&[env!("CARGO_BIN_EXE_latchwork")], args].concat()))
}

/// Orphans are waited for while the command runs, and its own end is not mistaken for one of theirs.
#[test]
fn h290_the_first_process_reaps_orphans_and_keeps_exit_codes() {
    let store = Store::new();
    let script = format!("{ORPHANS} {COUNT} exit 7");
    for verb in [&["run", "x"][..], &["once", "--every", "1d", "y"], &["elect", "z"]] {
        let done = first_latchwork(&store, &[verb, &["--", "sh", "-c", &script]].concat()).finish();
        assert_eq!((done.code(), done.stdout.trim()), (7, "zombies 0"), "{verb:?}: {done:?}");
    }
    // The orphans end in the very moment in which the command does.
    let script = format!("{ORPHANS} exit 9");
    for _ in 0..10 {
        let done = first_latchwork(&store, &["run", "x", "--", "sh", "-c", &script]).finish();
        assert_eq!(done.code(), 9, "{done:?}");
    }
}

/// Those of a term that was ended stay for none of the next.
#[test]
fn h290_a_leader_that_is_first_reaps_through_its_terms() {
    let store = Store::new();
    let script = format!(
        "if [ -e \"$TRACE/again\" ]; then {COUNT} exit 7; fi; touch \"$TRACE/again\"; {ORPHANS} sleep 300"
    );
    let leader =
        first_latchwork(&store, &["elect", "--max-hold", "2s", "x", "--", "sh", "-c", &script]);
    let done = leader.finish();
    assert_eq!((done.code(), done.stdout.trim()), (7, "zombies 0"), "{done:?}");
}

/// The command has ended, and is not waited for while another cleans up: it hides no orphan.
#[test]
fn h290_orphans_are_reaped_while_the_rest_of_a_group_cleans_up() {
    let store = Store::new();
    // The command itself is one, until the lock is released.
    let count = "cat /proc/[0-9]*/stat 2>/dev/null | grep -c \") Z \"";
    let cleaner =
        format!("trap '{ORPHANS} sleep 1; {count}; exit' TERM; echo ready; sleep 300 & wait");
    let command = format!("sh -c '{}' & trap 'exit 3' TERM; wait", cleaner.replace('\'', "'\\''"));
    let run = first_latchwork(&store, &["run", "x", "--", "sh", "-c", &command]);
    run.stdout.until("ready");
    let run_pid = eventually("the first process", || child_of(run.pid()));
    rustix::process::kill_process(run_pid, Signal::TERM).unwrap();
    assert_eq!(run.stdout.next().as_deref(), Some("1"));
    assert_eq!(run.finish().code(), 3);
}

/// A keeper and what a shell leaves behind end as children of the first process.
#[test]
fn h290_a_keeper_that_ends_leaves_no_zombie() {
    let store = Store::new();
    let script = format!(
        "set -e; for i in 1 2 3; do held=$(\"$0\" hold y); eval \"$held\"; \"$0\" release y; done; set +e; {COUNT}"
    );
    let latchwork = env!("CARGO_BIN_EXE_latchwork");
    let done = first_latchwork(&store, &["run", "x", "--", "sh", "-c", &script, latchwork]);
    let done = done.finish();
    assert_eq!((done.code(), done.stdout.trim()), (0, "zombies 0"), "{done:?}");
}

/// A service that has become the first process, with the children of the script that it was.
#[test]
fn h290_a_service_that_is_first_reaps_orphans() {
    let store = Store::new();
    let script =
        "(sleep 0.3 &); sleep 0.3 & exec \"$0\" serve --insecure-no-tokens --listen 127.0.0.1:0";
    let words = ["sh", "-c", script, env!("CARGO_BIN_EXE_latchwork")];
    let service = Running::start(first_process(&store, &words));
    service.stderr.until("ready");
    let first = eventually("the first process", || child_of(service.pid()));
    eventually("no child", || (!has_children(first)).then_some(()));
    rustix::process::kill_process(first, Signal::TERM).unwrap();
    assert_eq!(service.finish().code(), 0);
}

/// A subreaper, and one that has the children of the shell which it was.
#[test]
fn h290_a_subreaper_reaps_what_it_adopts() {
    let store = Store::new();
    let script = format!("{ORPHANS} read go; exit 7");
    let mut command = store.latchwork(&["run", "x", "--", "sh", "-c", &script]);
    command.stdin(std::process::Stdio::piped());
    // SAFETY: one system call.
    #[expect(unsafe_code, reason = "between fork and exec")]
    unsafe {
        command.pre_exec(|| Ok(set_child_subreaper(Some(getpid()))?));
    }
    reaps(Running::start(command), 2);
    let words =
        "sleep 0.2 & sleep 0.3 & exec \"$0\" run x -- sh -c 'sleep 0.5; echo; read go; exit 7'";
    let mut command = store.script(words);
    command.arg(env!("CARGO_BIN_EXE_latchwork")).stdin(std::process::Stdio::piped());
    reaps(Running::start(command), 2);
}

/// Waits until a run has only its guardian and its command as children, and lets the command end.
fn reaps(mut run: Running, own: usize) {
    let parent = run.child.id().to_string();
    let children = || {
        let mine = |pid: &i32| stat(*pid).is_some_and(|stat| stat[1] == parent);
        processes().into_iter().filter(mine).count()
    };
    eventually("the children of its own", || (children() == own).then_some(()));
    drop(run.child.stdin.take());
    assert_eq!(run.finish().code(), 7);
}

/// The script of a container without an init: a note says what happens at its end, and its trap keeps it from that.
#[test]
fn h542_a_hold_of_the_first_process_is_told_of_and_can_be_released() {
    let store = Store::new();
    let server = RedisServer::start(&RedisOptions::new()).unwrap();
    let hold = "held=$(latchwork hold --ttl 20s x) && eval \"$held\" || exit; echo held";
    let start = |words: &[&str], url: &str| {
        let mut command = first_process(&store, words);
        command.env("PATH", crate::hold::path()).env("LATCHWORK_STORE", url);
        Running::start(command).finish()
    };
    let note = "this script is the first process of its container";
    let status = || store.output(&["--store", &server.url(), "status", "x"]).code();
    for shell in ["sh", "bash"] {
        let trapped = format!("trap 'latchwork release' EXIT; {hold}");
        let done = start(&[shell, "-c", &trapped], &server.url());
        assert_eq!((done.code(), &*done.stdout), (0, "held\n"), "{shell}: {done:?}");
        assert!(done.stderr.contains(note) && done.stderr.contains("trap"), "{shell}: {done:?}");
        assert_eq!(status(), 1, "{shell}: released at once");
        // On files the lock ends with the keeper, and a script below an init keeps its keeper.
        let done = start(&[shell, "-c", &format!("{hold}; exit 0")], &store.url());
        assert_eq!((done.code(), &*done.stderr), (0, ""), "{shell}: {done:?}");
        let below = format!("{shell} -c '{hold}; latchwork release; exit 0'; exit $?");
        let done = start(&["sh", "-c", &below], &server.url());
        assert_eq!((done.code(), &*done.stderr), (0, ""), "{shell}: {done:?}");
    }
    let done = start(&["sh", "-c", &format!("{hold}; exit 0")], &server.url());
    assert!(done.code() == 0 && done.stderr.contains(note), "{done:?}");
    assert_eq!(status(), 0, "nobody has released it");
}

fn has_children(parent: Pid) -> bool {
    child_of(parent).is_some()
}

fn child_of(parent: Pid) -> Option<Pid> {
    let parent = parent.as_raw_nonzero().get().to_string();
    let is_child = |pid: &i32| stat(*pid).is_some_and(|stat| stat[1] == parent);
    processes().into_iter().find(is_child).and_then(Pid::from_raw)
}
