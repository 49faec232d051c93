//! Which shell a hold belongs to, and that a script without its lock goes no further.

use std::io::Write;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::process::Stdio;
use std::time::{Duration, Instant};

use latchwork_services::{RedisOptions, RedisServer};
use latchwork_store::testing::stalls;
use rustix::process::Signal;

use crate::common::{Holder, Running, Store, eventually};
use crate::hold::{no_keeper_is_left, path, run, script, status};

/// The end of `hold` by any signal, and its absence, are a script's end.
#[test]
fn a_script_stops_if_hold_fails() {
    let store = Store::new();
    let holder = store.holder(&[], "sleep 300; echo x");
    holder.ready();
    for (signal, code) in [("TERM", 143), ("HUP", 129), ("INT", 130), ("KILL", 137)] {
        for shell in ["bash", "dash"] {
            let text = format!(
                "held=$(timeout -s {signal} 0.3 latchwork hold x) && eval \"$held\" || exit; echo on"
            );
            let done = Running::start(script(&store, shell, &text)).finish();
            // timeout says 124 where latchwork had time to end by itself.
            assert!([code, 124].contains(&done.code()), "{signal} {done:?}");
            assert_eq!(done.stdout, "", "{signal}");
        }
    }
    for (shell, text) in [
        ("bash", "held=$(latchwork-of-nobody hold x) && eval \"$held\" || exit; echo on"),
        ("bash", "eval \"$(timeout -s TERM 0.3 latchwork hold x)\" || exit; echo on"),
        ("dash", "set -e; held=$(timeout 0.3 latchwork hold x); eval \"$held\"; echo on"),
    ] {
        let done = Running::start(script(&store, shell, text)).finish();
        assert_ne!(done.code(), 0, "{done:?}");
        assert_eq!(done.stdout, "", "{text}");
    }
    no_keeper_is_left(&store);
    let shown = store.output(&["--json", "show", "x"]).stdout;
    assert!(shown.contains("\"waiters\":[]"), "{shown}");
}

/// Whatever stands between the shell and `hold`: a wrapper, a pipe, a copy of the shell.
#[test]
fn a_hold_belongs_to_the_shell_that_evaluates_it() {
    let store = Store::new();
    for shell in ["bash", "dash"] {
        for text in [
            "held=$(timeout 20 latchwork hold x) && eval \"$held\" || exit",
            "held=$(sh -c 'latchwork hold x; true') && eval \"$held\" || exit",
            "held=$(latchwork hold x | cat) && eval \"$held\" || exit",
            "latchwork hold x > \"$TRACE/held\" && . \"$TRACE/held\" || exit",
            "f() { held=$(latchwork hold x); eval \"$held\"; }; f || exit",
        ] {
            let text = format!("{text}; sleep 0.3; latchwork status x; latchwork release");
            let done = Running::start(script(&store, shell, &text)).finish();
            assert_eq!((&*done.stdout, &*done.stderr), ("held\n", ""), "{shell}: {text}");
        }
        // One worker of two waits for the end of the other, not of the script.
        let worker = "( held=$(latchwork hold x) && eval \"$held\" || exit; echo at work ) &";
        let text = format!("{worker} {worker} wait; latchwork status x");
        let mut done = Running::start(script(&store, shell, &text)).finish();
        done.stdout.truncate("at work\nat work\n".len());
        assert_eq!(done.stdout, "at work\nat work\n", "{shell}");
    }
    no_keeper_is_left(&store);
}

#[test]
fn a_hold_of_one_shell_is_not_that_of_another() {
    let store = Store::new();
    let text = "held=$(latchwork hold x) && eval \"$held\" || exit; ( eval \"$held\" || echo $? ); \
                eval \"$held\" && echo again";
    let done = run(&store, text);
    assert_eq!(done.stdout, "64\nagain\n", "{done:?}");
    let text =
        "held=$(latchwork hold x) && eval \"$held\" && latchwork release || exit; eval \"$held\"";
    let done = run(&store, text);
    assert_eq!(done.code(), 73, "{done:?}");
    assert!(done.stderr.contains("no longer held"), "{done:?}");
    no_keeper_is_left(&store);
}

/// The shell has a while to evaluate it, 10 s.
#[test]
fn an_unevaluated_hold_is_released_after_10_s() {
    let store = Store::new();
    let started = Instant::now();
    let text = "latchwork hold a > /dev/full; echo $?; latchwork hold b | true; \
                latchwork hold --pid $$ d > \"$TRACE/d\"; sleep 12";
    let mut shell = Running::start(script(&store, "bash", text));
    assert_eq!(shell.stdout.next().unwrap(), "70");
    assert_eq!(status(&store, "a"), "free\n", "what could not be written");
    eventually("the hold", || (status(&store, "d") == "held\n").then_some(()));
    no_keeper_is_left(&store);
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    for name in ["b", "d"] {
        assert_eq!(status(&store, name), "free\n", "{name}");
    }
    shell.signal(Signal::KILL);
    shell.wait();
}

/// A token of an earlier hold would be refused by the resource, and an environment that grows ends in errors.
#[test]
fn latchwork_held_lists_current_holds() {
    let store = Store::new();
    let text = "for i in 1 2 3 4 5 6 7 8; do \
                held=$(latchwork hold x) && eval \"$held\" || exit; \
                echo \"$LATCHWORK_TOKEN\" | wc -l; echo \"$LATCHWORK_KEY ${#LATCHWORK_HELD}\"; \
                latchwork release x || exit; done";
    let done = run(&store, text);
    assert_eq!(done.code(), 0, "{done:?}");
    let lines: Vec<_> = done.stdout.lines().collect();
    assert_eq!(lines.len(), 16, "{done:?}");
    assert!(lines.chunks(2).all(|pair| pair == &lines[..2]), "{done:?}");
    assert_eq!(lines[0], "1", "{done:?}");
    let text = "held=$(latchwork hold --permits 1/3 s) && eval \"$held\" || exit; \
                held=$(latchwork hold --permits 1/3 s) && eval \"$held\" || exit; \
                latchwork hold --permits 2/3 s; latchwork --json show s";
    let done = run(&store, text);
    assert!(done.stdout.starts_with("(exit 64)\n"), "{done:?}");
    assert_eq!(done.stdout.matches("\"token\"").count(), 2 + 1, "two holders: {done:?}");
    no_keeper_is_left(&store);
}

/// Nobody waits for the lock any more when the shell is gone.
#[test]
fn killing_a_waiting_shell_withdraws_its_claim() {
    let store = Store::new();
    let holder = store.holder(&[], "sleep 300; echo x");
    holder.ready();
    let waiters =
        || store.output(&["--json", "show", "x"]).stdout.matches("\"age_ms\"").count() - 1;
    for shell in ["bash", "dash"] {
        for text in [
            "held=$(latchwork hold x) && eval \"$held\" || exit; echo on",
            "held=$(sh -c 'latchwork hold x; true') && eval \"$held\" || exit; echo on",
            "latchwork hold --pid $$ x > \"$TRACE/held\"; echo on",
            "echo up; latchwork hold x > \"$TRACE/held\"; echo on",
        ] {
            let mut shell = Running::start(script(&store, shell, text));
            eventually("the claim", || (waiters() == 1).then_some(()));
            shell.signal(Signal::KILL);
            shell.wait();
            eventually("its end", || (waiters() == 0).then_some(()));
            no_keeper_is_left(&store);
        }
    }
}

/// One who connects to the keeper and says nothing.
#[test]
fn a_silent_client_delays_no_report_of_a_loss() {
    let store = Store::new();
    let text = "trap 'echo told; exit 9' TERM; held=$(latchwork hold --ttl 1s x) && eval \"$held\" || exit; \
                echo \"$LATCHWORK_HELD\"; while :; do sleep 0.1; done";
    let shell = Running::start(script(&store, "bash", text));
    let held = shell.stdout.next().unwrap();
    let id = held.split("\"hold\":\"").nth(1).unwrap().split('"').next().unwrap();
    let address = SocketAddr::from_abstract_name(format!("latchwork-hold-{id}")).unwrap();
    let silent: Vec<_> = (0..40).map(|_| UnixStream::connect_addr(&address).unwrap()).collect();
    let nothing = UnixStream::connect_addr(&address).unwrap();
    nothing.shutdown(std::net::Shutdown::Write).unwrap();
    drop(nothing);
    let mut half = UnixStream::connect_addr(&address).unwrap();
    half.write_all(b"release").unwrap();
    drop(half);
    assert_eq!(status(&store, "x"), "held\n", "an empty request releases nothing");
    let started = Instant::now();
    assert_eq!(store.output(&["release", "--force", "x"]).code(), 0);
    shell.stdout.until("told");
    stalls::in_time(started, Duration::from_secs(5));
    drop(silent);
    assert_eq!(shell.finish().code(), 9);
}

/// The store confirms the lock again in between.
#[test]
fn each_doubt_signals_the_shell() {
    let store = Store::new();
    let mut server = RedisServer::start(&RedisOptions::new()).unwrap();
    let text = "trap 'echo told' USR1; \
                held=$(latchwork hold --ttl 6s --on-loss usr1 x) && eval \"$held\" || exit; echo up; \
                while read -t 0.1 line || [ $? -gt 128 ]; do :; done";
    let mut command = script(&store, "bash", text);
    command.env("LATCHWORK_STORE", server.url()).env("PATH", path()).stdin(Stdio::piped());
    let mut shell = Running::start(command);
    shell.stdout.until("up");
    for _ in 0..2 {
        server.stop().unwrap();
        shell.stdout.until("told");
        server.cont().unwrap();
        let held = || {
            let seen = store.output(&["--store", &server.url(), "--json", "show", "x"]).stdout;
            let left = seen.split("\"remaining_ms\":").nth(1)?.split(',').next()?.parse().ok();
            left.filter(|left: &u64| *left > 4_500).map(drop)
        };
        eventually("the renewal", held);
    }
    drop(shell.child.stdin.take());
    shell.wait();
}
