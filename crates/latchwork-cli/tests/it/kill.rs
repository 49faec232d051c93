//! Whatever is killed, the command's whole group is dead before the next one starts, and the next
//! one starts at once (hazards H15, D13).

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};

use crate::common::{Holder, Ready, Running, Store, alive, kill, kill_group, state};
use rustix::process::Signal;

/// A shell with a child of its own, and one that ignores what it can.
const SCRIPTS: [&str; 3] = [
    "echo x; sleep 30",
    "sleep 300 & sleep 300; echo x",
    "trap '' TERM INT HUP; sh -c 'while :; do sleep 0.05; done' & while :; do sleep 0.05; done",
];

/// The ready line, and the shell's children running.
fn started(run: &Running) -> Ready {
    let ready = run.ready();
    crate::common::eventually("grandchildren", || (alive(ready.group).len() > 1).then_some(()));
    ready
}

/// The waiter starts long before the ttl of 30 s is over, does not overlap, and has a larger token.
fn takes_over(waiter: Running, first: &Ready) {
    let second = waiter.ready();
    assert!(second.token > first.token, "{second:?} after {first:?}");
    assert_eq!(alive(first.group), [] as [i32; 0]);
    assert_eq!(waiter.finish().code(), 0);
}

#[test]
fn latchwork_killed() {
    for script in SCRIPTS {
        let store = Store::new();
        let mut holder = store.holder(&[], script);
        let first = started(&holder);
        let waiter = store.waiter("true");
        kill(holder.pid());
        takes_over(waiter, &first);
        assert_eq!(holder.wait().signal(), Some(9));
    }
}

#[test]
fn guardian_killed() {
    for script in SCRIPTS {
        let store = Store::new();
        let holder = store.holder(&[], script);
        let first = started(&holder);
        let waiter = store.waiter("true");
        kill(holder.guardian());
        takes_over(waiter, &first);
        let done = holder.finish();
        assert_eq!(done.code(), 70, "{done:?}");
        assert!(done.stderr.contains("guardian"), "{done:?}");
    }
}

#[test]
fn latchworks_whole_group_killed() {
    for script in SCRIPTS {
        let store = Store::new();
        let mut holder = store.holder_with(&[], script, |command| {
            command.process_group(0);
        });
        let first = started(&holder);
        let waiter = store.waiter("true");
        kill_group(holder.pid());
        takes_over(waiter, &first);
        assert_eq!(holder.wait().signal(), Some(9));
    }
}

#[test]
fn the_commands_group_killed() {
    for script in SCRIPTS {
        let store = Store::new();
        let holder = store.holder(&[], script);
        let first = started(&holder);
        let waiter = store.waiter("true");
        kill_group(first.group);
        takes_over(waiter, &first);
        let done = holder.finish();
        assert_eq!(done.code(), 137, "{done:?}");
    }
}

#[test]
fn both_groups_killed() {
    let store = Store::new();
    let mut holder = store.holder_with(&[], SCRIPTS[0], |command| {
        command.process_group(0);
    });
    let first = started(&holder);
    let waiter = store.waiter("true");
    kill_group(holder.pid());
    // Most likely dead by now.
    let _ = rustix::process::kill_process_group(first.group, Signal::KILL);
    takes_over(waiter, &first);
    assert_eq!(holder.wait().signal(), Some(9));
}

#[test]
fn latchwork_killed_while_it_waits() {
    let store = Store::new();
    let holder = store.holder(&[], "until [ -e \"$TRACE/go\" ]; do sleep 0.02; done");
    let first = holder.ready();
    let killed = store.waiter("echo never");
    let waiter = store.waiter("true");
    kill(killed.pid());
    fs::write(store.file("go"), "").unwrap();
    takes_over(waiter, &first);
    assert_eq!(killed.finish().stdout, "");
}

#[test]
fn latchwork_killed_at_any_moment_of_a_start() {
    // From before the lock to well into the command; the killed ones must never overlap.
    for step in 0..40 {
        let store = Store::new();
        let mut holder = store.holder(&[], "sh -c 'sleep 300; echo' & sleep 300; echo x");
        std::thread::sleep(std::time::Duration::from_micros(step * 500));
        kill(holder.pid());
        let done = store.holder(&[], "true").finish();
        assert_eq!(done.code(), 0, "{done:?}");
        assert!(!done.stdout.contains("OVERLAP"), "step {step}: {done:?}");
        holder.wait();
    }
}

#[test]
fn a_stopped_command_is_killed_too() {
    let store = Store::new();
    let mut holder = store.holder(&[], SCRIPTS[0]);
    let first = started(&holder);
    let waiter = store.waiter("true");
    rustix::process::kill_process_group(first.group, Signal::STOP).unwrap();
    crate::common::eventually("a stop", || (state(first.group) == 'T').then_some(()));
    kill(holder.pid());
    takes_over(waiter, &first);
    holder.wait();
}

#[test]
fn the_guardian_ignores_ordinary_signals() {
    let store = Store::new();
    let mut holder = store.holder(&[], SCRIPTS[0]);
    let first = started(&holder);
    let guardian = holder.guardian();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::PIPE, Signal::TSTP]
    {
        rustix::process::kill_process(guardian, signal).unwrap();
    }
    let stat = crate::common::stat(guardian.as_raw_nonzero().get()).unwrap();
    let own = guardian.as_raw_nonzero().to_string();
    crate::common::eventually("a name that ps shows", || {
        (fs::read_to_string(format!("/proc/{own}/comm")).unwrap() == "lw-guardian\n").then_some(())
    });
    assert_eq!((&stat[2], &stat[3]), (&own, &own), "a session and group of its own");
    let waiter = store.waiter("true");
    kill(holder.pid());
    takes_over(waiter, &first);
    holder.wait();
}

#[test]
fn the_guardian_holds_the_lifeline_and_the_command_does_not() {
    let store = Store::new();
    // A file of the caller, inherited by latchwork and by the command, but not by the guardian.
    let callers = fs::File::create(store.file("callers")).unwrap();
    // The script opens its descriptor 9 anew.
    let callers = rustix::io::fcntl_dupfd_cloexec(callers, 20).unwrap();
    rustix::io::fcntl_setfd(&callers, rustix::io::FdFlags::empty()).unwrap();
    let holder = store.holder(&[], "sleep 300; echo x");
    let ready = started(&holder);
    let open = |pid: i32| -> Vec<String> {
        fs::read_dir(format!("/proc/{pid}/fd"))
            .unwrap()
            .filter_map(|fd| {
                Some(fs::read_link(fd.ok()?.path()).ok()?.to_string_lossy().into_owned())
            })
            .collect()
    };
    let life = |files: &[String]| files.iter().filter(|file| file.ends_with(".life")).count();
    let guardian = holder.guardian().as_raw_nonzero().get();
    assert!(life(&open(holder.child.id() as i32)) > 0);
    // It makes its timer when it has started.
    let timer = |files: &[String]| files.iter().any(|file| file.contains("timerfd"));
    let files =
        crate::common::eventually("a timer", || Some(open(guardian)).filter(|files| timer(files)));
    assert_eq!(life(&files), 1, "{files:?}");
    // Two pipes to latchwork, /dev/null, the timer, the lifeline: nothing of the caller's.
    assert_eq!(files.len(), 5, "{files:?}");
    assert!(!files.iter().any(|file| file.contains("callers")), "{files:?}");
    for member in alive(ready.group) {
        let files = open(member);
        assert!(!files.iter().any(|file| file.contains("/locks/")), "{files:?}");
        assert!(!files.iter().any(|file| file.contains("eventpoll")), "{files:?}");
    }
    assert!(open(ready.group.as_raw_nonzero().get()).iter().any(|file| file.ends_with("callers")));
}

/// Its writes may still be under way, so its death does not open the lock.
#[test]
fn a_lock_delay_outlives_a_killed_holder() {
    let store = Store::new();
    let options = ["--ttl", "2s", "--lock-delay", "2s"];
    let holder = store.holder(&options, "sleep 300; echo x");
    let first = holder.ready();
    let killed_at = std::time::Instant::now();
    kill(holder.pid());
    kill_group(first.group);
    let next = store.output(&["run", "--wait", "1s", "x", "--", "true"]);
    assert_eq!(next.code(), 75, "{next:?}");
    let next = store.output(&["run", "x", "--", "true"]);
    assert_eq!(next.code(), 0, "{next:?}");
    let took = killed_at.elapsed();
    assert!(took.as_millis() >= 2_000 && took.as_secs() < 10, "{took:?}");
    let released = store.output(&["run", "--ttl", "9s", "--lock-delay", "9s", "x", "--", "true"]);
    assert_eq!(released.code(), 0, "{released:?}");
    let next = store.output(&["run", "--wait", "0", "x", "--", "true"]);
    assert_eq!(next.code(), 0, "a release opens it: {next:?}");
}
