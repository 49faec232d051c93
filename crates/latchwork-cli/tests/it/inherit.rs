//! `run --inherit`: a command under the hold of the shell or command around it runs no longer than that hold.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use latchwork_services::{
    EtcdOptions, EtcdServer, RedisOptions, RedisServer, ZooKeeperOptions, ZooKeeperServer,
};
use rustix::process::{Pid, Signal, kill_process};

use crate::common::{Holder, Running, Store, eventually, kill, pid, processes};
use crate::hold::{no_keeper_is_left, run, script, status};

const BINARY: &str = env!("CARGO_BIN_EXE_latchwork");

/// Says `inside`, and ends when the test wants it.
const INSIDE: &str =
    "sh -c 'echo inside; until [ -e \"$TRACE/go\" ]; do sleep 0.02; done; echo out'";

/// A script at this address, whose standard input the test writes.
fn at(store: &Store, url: &str, text: &str) -> Running {
    let mut command = script(store, "bash", text);
    command.env("LATCHWORK_STORE", url).stdin(Stdio::piped());
    Running::start(command)
}

fn go_on(shell: &mut Running) {
    drop(shell.child.stdin.take());
}

/// The keeper at this address.
fn keeper(url: &str) -> Option<Pid> {
    let variable = format!("LATCHWORK_STORE={url}");
    let is_keeper = |process: &i32| {
        let read = |name| fs::read(format!("/proc/{process}/{name}")).unwrap_or_default();
        let words = String::from_utf8_lossy(&read("cmdline")).into_owned();
        let environment = String::from_utf8_lossy(&read("environ")).into_owned();
        words.contains("\0hold\0") && environment.split('\0').any(|text| text == variable)
    };
    processes().into_iter().find(is_keeper).map(pid)
}

fn killed_keeper(url: &str, options: &str) {
    let store = Store::new();
    let text = format!(
        "held=$(latchwork hold --on-loss none {options} x) && eval \"$held\" || exit; echo up $LATCHWORK_TOKEN; \
         read line; latchwork run --inherit x -- sh -c 'echo in $LATCHWORK_TOKEN'"
    );
    let mut shell = at(&store, url, &text);
    let up = shell.stdout.until("up");
    kill(keeper(url).unwrap());
    eventually("its end", || keeper(url).is_none().then_some(()));
    go_on(&mut shell);
    let done = shell.finish();
    assert_eq!(done.code(), 0, "{url}: {done:?}");
    let token = |line: &str| line.rsplit(' ').next().unwrap().trim().parse::<u64>().unwrap();
    assert!(token(&done.stdout) > token(&up), "{url}: it has a hold of its own: {up} {done:?}");
}

/// The store lists the hold for the rest of its ttl, and nobody renews it.
#[test]
fn h220_inherit_takes_no_hold_whose_keeper_was_killed() {
    let redis = RedisServer::start(&RedisOptions::new()).unwrap();
    killed_keeper(&redis.url(), "--ttl 3s");
    let files = Store::new();
    killed_keeper(&files.url(), "--ttl 1s --lock-delay 2s");
}

#[test]
fn h220_inherit_takes_no_hold_of_a_killed_keeper_on_etcd() {
    let etcd = EtcdServer::start(&EtcdOptions::new()).unwrap();
    killed_keeper(&etcd.url(), "--ttl 3s");
}

#[test]
fn h220_inherit_takes_no_hold_of_a_killed_keeper_on_zookeeper() {
    let zookeeper = ZooKeeperServer::start(&ZooKeeperOptions::new()).unwrap();
    killed_keeper(&format!("{}/app", zookeeper.url()), "--ttl 4s");
}

/// Lost by the keeper's own clock: the store lists it for the lock delay.
#[test]
fn h220_inherit_takes_no_hold_that_its_keeper_has_lost() {
    let (store, mut server) = (Store::new(), RedisServer::start(&RedisOptions::new()).unwrap());
    let text = "held=$(latchwork hold --on-loss none --ttl 2s --lock-delay 8s x) && eval \"$held\" || exit; \
                echo up; read line; latchwork run --inherit --wait 0 x -- echo in; echo $?; \
                latchwork run --inherit x -- echo in";
    let mut shell = at(&store, &server.url(), text);
    shell.stdout.until("up");
    let keeper = keeper(&server.url()).unwrap();
    server.stop().unwrap();
    // It cannot give back what the store is to list.
    kill(keeper);
    std::thread::sleep(Duration::from_secs(3));
    server.cont().unwrap();
    go_on(&mut shell);
    let done = shell.finish();
    assert_eq!(done.stdout, "75\nin\n", "{done:?}");
}

/// It would end with the lock delay.
#[test]
fn h221_a_command_waits_for_the_lock_delay_of_its_shells_hold() {
    let (store, server) = (Store::new(), RedisServer::start(&RedisOptions::new()).unwrap());
    let text = "held=$(latchwork hold --on-loss none --ttl 1s --lock-delay 2s x) && eval \"$held\" || exit; \
                echo up; read line; latchwork run x -- echo in";
    let mut shell = at(&store, &server.url(), text);
    shell.stdout.until("up");
    kill(keeper(&server.url()).unwrap());
    eventually("its end", || keeper(&server.url()).is_none().then_some(()));
    go_on(&mut shell);
    let done = shell.finish();
    assert_eq!((done.code(), &*done.stdout), (0, "in\n"), "{done:?}");
}

/// While it lives, only it can say what is left: nothing runs on the store's word alone.
#[test]
fn h220_a_stopped_keeper_lends_nothing() {
    let store = Store::new();
    let text = "held=$(latchwork hold --ttl 1m x) && eval \"$held\" || exit; echo up; read line; \
                latchwork run --inherit x -- echo in; echo $?";
    let mut shell = at(&store, &store.url(), text);
    shell.stdout.until("up");
    let keeper = keeper(&store.url()).unwrap();
    kill_process(keeper, Signal::STOP).unwrap();
    go_on(&mut shell);
    let done = shell.finish();
    kill_process(keeper, Signal::CONT).unwrap();
    assert_eq!(done.stdout, "69\n", "{done:?}");
    let step = "its latchwork process may be stopped: continue it (kill -CONT)";
    assert!(done.stderr.contains(&format!("does not answer; {step}")), "{done:?}");
}

/// A loss ends the whole group, whatever the shell does, and however the keeper ends.
#[test]
fn h222_a_command_under_a_shells_hold_ends_with_it() {
    let deaf = "sh -c 'trap \"\" TERM; echo inside; while :; do sleep 0.05; done'";
    type Fault = fn(&Store);
    let faults: [(&str, Fault); 3] = [
        ("taken", |store| {
            assert_eq!(store.output(&["release", "--force", "x"]).code(), 0);
        }),
        ("killed", |store| kill(keeper(&store.url()).unwrap())),
        ("stopped", |store| kill_process(keeper(&store.url()).unwrap(), Signal::STOP).unwrap()),
    ];
    for (fault, strike) in faults {
        let store = Store::new();
        let text = format!(
            "held=$(latchwork hold --on-loss none --ttl 3s x) && eval \"$held\" || exit; \
             latchwork run --inherit x -- {deaf}; echo $?"
        );
        let shell = at(&store, &store.url(), &text);
        shell.stdout.until("inside");
        strike(&store);
        assert_eq!(shell.stdout.next().as_deref(), Some("73"), "{fault}");
        let done = shell.finish();
        assert!(done.stderr.contains("the outer command or shell"), "{fault}: {done:?}");
        if let Some(keeper) = keeper(&store.url()) {
            let _ = kill_process(keeper, Signal::CONT);
        }
    }
}

/// On files the store would open the lock at once: the borrower's guardian keeps the session alive.
#[test]
fn h222_nobody_runs_beside_a_command_whose_keeper_was_killed() {
    let store = Store::new();
    let deaf = "exec 9>\"$TRACE/busy\"; flock -n 9 || echo OVERLAP; trap \"\" TERM; echo inside; \
                while :; do sleep 0.05; done";
    let text = format!(
        "held=$(latchwork hold --on-loss none x) && eval \"$held\" || exit; \
         latchwork run --inherit x -- sh -c '{deaf}'"
    );
    let shell = at(&store, &store.url(), &text);
    shell.stdout.until("inside");
    let next = store.waiter("true");
    kill(keeper(&store.url()).unwrap());
    next.ready();
    assert_eq!(next.finish().code(), 0);
    assert_eq!(shell.finish().code(), 73);
}

/// The lock would be free while the command goes on.
#[test]
fn h223_release_is_refused_while_a_command_runs_under_the_hold() {
    let store = Store::new();
    let text = format!(
        "held=$(latchwork hold x y) && eval \"$held\" || exit; \
         latchwork run --inherit x -- {INSIDE} & read line; \
         latchwork release; echo $?; latchwork release x; echo $?; latchwork release y; echo $?; \
         latchwork status x; touch \"$TRACE/go\"; wait; latchwork release; echo $?"
    );
    let mut shell = at(&store, &store.url(), &text);
    shell.stdout.until("inside");
    go_on(&mut shell);
    let done = shell.finish();
    assert_eq!(done.stdout, "75\n75\n0\nheld\nout\n0\n", "{done:?}");
    assert!(done.stderr.contains("`latchwork run --inherit` (process "), "{done:?}");
    no_keeper_is_left(&store);
}

#[test]
fn h223_a_command_keeps_the_hold_of_a_shell_that_ended() {
    for end in ["exit 0", "kill -9 $$"] {
        let store = Store::new();
        let text = format!(
            "held=$(latchwork hold --ttl 3s x) && eval \"$held\" || exit; \
             latchwork run --inherit x -- {INSIDE} & read line; {end}"
        );
        let mut shell = at(&store, &store.url(), &text);
        shell.stdout.until("inside");
        go_on(&mut shell);
        shell.wait();
        // Longer than a ttl: it is renewed.
        std::thread::sleep(Duration::from_millis(4_000));
        assert_eq!(status(&store, "x"), "held\n", "{end}");
        fs::write(store.file("go"), "").unwrap();
        shell.stdout.until("out");
        eventually("the release", || (status(&store, "x") == "free\n").then_some(()));
        no_keeper_is_left(&store);
    }
}

/// What a command leaves behind in the background runs on without the lock, but not if it runs under it.
#[test]
fn h223_run_keeps_the_lock_for_an_inherited_command_in_the_background() {
    let store = Store::new();
    let text = format!(
        "'{BINARY}' run --inherit x -- {INSIDE} & until [ -e \"$TRACE/end\" ]; do sleep 0.02; done; exit 4"
    );
    let mut outer =
        Running::start(store.latchwork(&["run", "--ttl", "3s", "x", "--", "sh", "-c", &text]));
    outer.stdout.until("inside");
    fs::write(store.file("end"), "").unwrap();
    outer.stderr.until("still runs under its lock");
    std::thread::sleep(Duration::from_millis(4_000));
    assert_eq!(status(&store, "x"), "held\n");
    assert!(outer.child.try_wait().unwrap().is_none());
    fs::write(store.file("go"), "").unwrap();
    assert_eq!(outer.wait().code(), Some(4));
    assert_eq!(status(&store, "x"), "free\n");
}

/// In a session of its own, out of reach of the outer command's group.
#[test]
fn h222_an_inherited_command_in_a_session_of_its_own_ends_with_the_outer() {
    // The mark of a running command belongs to the inner one: `latchwork` itself may end after it.
    let inner = format!(
        "exec 9>&-; setsid '{BINARY}' run --inherit x -- \
         sh -c 'exec 9>\"$TRACE/busy\"; flock -n 9 && echo inside; sleep 300; echo x'; echo $?"
    );
    for is_killed in [false, true] {
        let store = Store::new();
        let outer = store.holder(&["--ttl", "3s"], &inner);
        outer.stdout.until("inside");
        match is_killed {
            true => {
                let next = store.waiter("true");
                outer.signal(Signal::KILL);
                next.ready();
                assert_eq!(next.finish().code(), 0);
            }
            false => {
                assert_eq!(store.output(&["release", "--force", "x"]).code(), 0);
                assert_eq!(outer.finish().code(), 73);
                eventually("its end", || {
                    Command::new("flock")
                        .arg("-n")
                        .arg(store.file("busy"))
                        .arg("true")
                        .status()
                        .unwrap()
                        .success()
                        .then_some(())
                });
            }
        }
    }
}

/// They are the outer hold's.
#[test]
fn h223_inherit_refuses_options_that_it_cannot_obey() {
    let store = Store::new();
    for option in [["--ttl", "5s"], ["--lock-delay", "5s"], ["--holder", "me"]] {
        let inner = [&["run", "--inherit"][..], &option, &["x", "--", "true"]].concat();
        let done = store.output(&[&["run", "x", "--", BINARY][..], &inner].concat());
        assert_eq!(done.code(), 64, "{option:?}: {done:?}");
        assert!(done.stderr.contains(option[0]), "{done:?}");
        assert_eq!(store.output(&inner).code(), 0, "without an outer hold it obeys");
    }
}

/// The deployment recipe has the option.
#[test]
fn h223_max_hold_limits_an_inherited_command() {
    let store = Store::new();
    let done = run(
        &store,
        "held=$(latchwork hold x) && eval \"$held\" || exit; \
         latchwork run --inherit --max-hold 1s x -- sleep 300; echo $?; latchwork status x",
    );
    assert_eq!(done.stdout, "73\nheld\n", "{done:?}");
    assert!(done.stderr.contains("--max-hold 1s reached"), "{done:?}");
}

/// The keeper's socket can be reached from a PID namespace and not from a network namespace.
#[test]
fn h224_another_namespace_is_told_as_what_it_is() {
    let store = Store::new();
    let shell = |inner: &str| {
        run(
            &store,
            &format!(
                "held=$(latchwork hold x) && eval \"$held\" || exit; {inner}; echo $?; latchwork status x"
            ),
        )
    };
    for (namespace, name) in [("--pid --fork", "PID namespace"), ("--net", "network namespace")] {
        for names in ["", "x"] {
            let done = shell(&format!("unshare {namespace} latchwork release {names}"));
            assert_eq!(done.stdout, "77\nheld\n", "{namespace}: {done:?}");
            assert!(done.stderr.contains(name), "{namespace}: {done:?}");
        }
    }
    let done = shell("unshare --net latchwork run --inherit x -- echo in");
    assert_eq!(done.stdout, "77\nheld\n", "{done:?}");
    let step = "run this command as the same user and in the same network namespace, outside of the container";
    assert!(done.stderr.contains(step), "{done:?}");
    let done = shell("unshare --net latchwork run --wait 0 x -- echo in");
    assert_eq!(done.stdout, "64\nheld\n", "{done:?}");
    let done = shell("unshare --pid --fork latchwork run --inherit x -- echo in");
    assert_eq!(done.stdout, "in\n0\nheld\n", "{done:?}");
    no_keeper_is_left(&store);
}
