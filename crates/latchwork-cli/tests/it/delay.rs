//! A key stays closed after a command that was cut short, and what it was given goes on with the floor.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::common::{Holder, Running, Store, eventually};
use crate::hold::{keepers, no_keeper_is_left, run, script, status};

const BINARY: &str = env!("CARGO_BIN_EXE_latchwork");

/// Requests of a command that was killed may still be under way.
#[test]
fn a_lock_delay_follows_a_command_that_was_cut_short() {
    let store = Store::new();
    let delay = ["--ttl", "1s", "--lock-delay", "3s"];
    for (rest, code) in [
        (&["--max-hold", "1s", "x", "--", "sleep", "60"][..], 73),
        (&["x", "--", "sh", "-c", "kill -9 $$"], 137),
        (&["x", "--", "sh", "-c", "kill -TERM $$"], 143),
    ] {
        let done = store.output(&[&["-v", "run"][..], &delay, rest].concat());
        let ended = Instant::now();
        assert_eq!(done.code(), code, "{done:?}");
        assert!(done.stderr.contains("closed for at least 3s, usually 4s"), "{done:?}");
        assert_eq!(status(&store, "x"), "held\n", "{rest:?}");
        eventually("its end", || (status(&store, "x") == "free\n").then_some(()));
        let closed = ended.elapsed();
        assert!(closed > Duration::from_millis(2_700), "{rest:?}: {closed:?}");
        assert!(closed < Duration::from_secs(6), "{rest:?}: {closed:?}");
    }
    let missing = store.file("missing").display().to_string();
    for rest in [&["x", "--", "false"][..], &["x", "--", &missing]] {
        store.output(&[&["run"][..], &delay, rest].concat());
        assert_eq!(status(&store, "x"), "free\n", "it ended by itself, or never ran: {rest:?}");
    }
}

/// A task of `once` as well.
#[test]
fn a_lock_delay_follows_a_task_that_was_killed() {
    let store = Store::new();
    let words = ["once", "--every", "1d", "--ttl", "1s", "--lock-delay", "3s", "x", "--"];
    let killed = store.output(&[&words[..], &["sh", "-c", "kill -9 $$"]].concat());
    let ended = Instant::now();
    assert_eq!((killed.code(), &*status(&store, "x")), (137, "held\n"), "{killed:?}");
    eventually("its end", || (status(&store, "x") == "free\n").then_some(()));
    assert!(ended.elapsed() > Duration::from_millis(2_700));
    assert_eq!(store.output(&[&words[..], &["echo", "ran"]].concat()).stdout, "ran\n");
}

#[test]
fn a_lock_delay_follows_a_shell_that_ended_without_a_release() {
    let store = Store::new();
    let hold =
        "held=$(latchwork hold --ttl 1s --lock-delay 3s x) && eval \"$held\" || exit; echo up;";
    for rest in ["exit 0", "kill -9 $$"] {
        let mut shell = Running::start(script(&store, "bash", &format!("{hold} {rest}")));
        shell.wait();
        let ended = Instant::now();
        eventually("the keeper's end", || keepers(&store).is_empty().then_some(()));
        assert_eq!(status(&store, "x"), "held\n", "{rest}");
        eventually("its end", || (status(&store, "x") == "free\n").then_some(()));
        let closed = ended.elapsed();
        assert!(closed > Duration::from_millis(2_700), "{rest}: {closed:?}");
    }
    let done = run(&store, &format!("{hold} latchwork release; latchwork status x"));
    assert_eq!(done.stdout, "up\nfree\n", "{done:?}");
    // Nobody ran under it.
    let waiting = store.holder(&[], "sleep 300; echo x");
    waiting.ready();
    let mut hold = Running::start(store.latchwork(&["-v", "hold", "--lock-delay", "60s", "x"]));
    hold.stderr.until("waiting for");
    drop(waiting);
    hold.signal(Signal::TERM);
    hold.wait();
    eventually("its end", || (status(&store, "x") == "free\n").then_some(()));
    no_keeper_is_left(&store);
}

/// Commands further inside would take tokens that the resource refuses.
#[test]
fn a_token_floor_is_that_of_inner_commands_too() {
    let store = Store::new();
    let floor = "3000000000000000000";
    let inner = format!("'{BINARY}' run y -- sh -c 'echo $LATCHWORK_TOKEN'");
    let done = store.output(&["--token-floor", floor, "run", "x", "-c", &inner]);
    let token: u64 = done.stdout.trim().parse().unwrap();
    assert!(token > floor.parse().unwrap(), "{token}");
    let text = format!(
        "held=$(latchwork --token-floor {floor} hold x) && eval \"$held\" || exit; {inner}; \
         latchwork run x -- true; echo $?; latchwork release"
    );
    let done = run(&store, &text);
    let lines: Vec<&str> = done.stdout.lines().collect();
    assert!(lines[0].parse::<u64>().unwrap() > floor.parse().unwrap(), "{done:?}");
    assert_eq!(lines[1], "64", "the shell's own hold was not noticed: {done:?}");
    no_keeper_is_left(&store);
}

#[test]
fn a_hold_with_another_token_floor_is_noticed() {
    let store = Store::new();
    let floors = ["1000000000000000000", "3000000000000000000"];
    for (outer, inner) in
        [(Some(floors[0]), floors[1]), (Some(floors[1]), floors[0]), (None, floors[0])]
    {
        let outer: Vec<&str> =
            outer.into_iter().flat_map(|floor| ["--token-floor", floor]).collect();
        let inner = [BINARY, "--token-floor", inner, "run", "--wait", "0", "x", "--", "true"];
        let done = store.output(&[&outer[..], &["run", "x", "--"], &inner].concat());
        assert_eq!(done.code(), 64, "{done:?}");
        assert!(done.stderr.contains("waiting would never end"), "{done:?}");
    }
}

/// Two directories count alike.
#[test]
fn another_store_with_equal_name_and_token_is_another_lock() {
    let (store, other) = (Store::new(), Store::new());
    let holder = other.holder(&["--holder", "another"], "sleep 300; echo x");
    let ready = holder.ready();
    let url = other.url();
    let inner = [BINARY, "--store", &url, "run", "--wait", "0", "x", "--", "true"];
    let script = [&["run", "x", "--"][..], &inner].concat();
    let done = store.output(&script);
    assert_eq!(done.code(), 75, "it is held by another: {done:?}");
    let token = store.output(&["run", "x", "-c", "echo $LATCHWORK_TOKEN"]).stdout;
    assert_ne!(token, "", "{ready:?}");
}
