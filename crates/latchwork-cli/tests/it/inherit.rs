//! `run --inherit`: a command under the hold of the shell or command around it runs no longer than that hold.

use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use latchwork_services::{
    Direction, EtcdOptions, EtcdServer, Process, Proxy, RedisOptions, RedisServer, ServerClock,
    ZooKeeperOptions, ZooKeeperServer, ring_for_step,
};
use rustix::process::{Pid, Signal, kill_process};

use crate::common::{Holder, Running, Store, eventually, kill, pid, processes};
use crate::hold::{no_keeper_is_left, run, script, status};

const BINARY: &str = env!("CARGO_BIN_EXE_latchwork");

/// Says `inside`, and ends when the test wants it.
const INSIDE: &str =
    "sh -c 'echo inside; until [ -e \"$TRACE/go\" ]; do sleep 0.02; done; echo out'";

/// A key at a store.
type Place<'a> = (&'a str, &'a str);

/// A script at this address, whose standard input the test writes. The key is `$K`.
fn command_at(store: &Store, (url, key): Place<'_>, text: &str) -> Command {
    let mut command = script(store, "bash", text);
    command.env("LATCHWORK_STORE", url).env("K", key).stdin(Stdio::piped());
    command
}

fn at(store: &Store, place: Place<'_>, text: &str) -> Running {
    Running::start(command_at(store, place, text))
}

fn go_on(shell: &mut Running) {
    drop(shell.child.stdin.take());
}

/// The keeper of this test's script.
fn keeper(store: &Store) -> Option<Pid> {
    let variable = format!("TRACE={}", store.path().parent().unwrap().display());
    let is_keeper = |process: &i32| {
        let read = |name| fs::read(format!("/proc/{process}/{name}")).unwrap_or_default();
        let words = String::from_utf8_lossy(&read("cmdline")).into_owned();
        let environment = String::from_utf8_lossy(&read("environ")).into_owned();
        words.contains("\0hold\0") && environment.split('\0').any(|text| text == variable)
    };
    processes().into_iter().find(is_keeper).map(pid)
}

fn status_at(store: &Store, (url, key): Place<'_>) -> String {
    store.output(&["--store", url, "status", key]).stdout
}

fn token(line: &str) -> u64 {
    line.rsplit(' ').next().unwrap().trim().parse().unwrap()
}

/// The store lists the hold for the rest of its ttl and its lock delay, and nobody renews it: `run` with and
/// without `--inherit` takes the lock when that is over.
fn has_a_hold_of_its_own(place: Place<'_>, options: &str, run: &str) {
    let store = Store::new();
    let text = format!(
        "held=$(latchwork hold --on-loss none {options} $K) && eval \"$held\" || exit; echo up $LATCHWORK_TOKEN; \
         read line; latchwork {run} $K -- sh -c 'echo in $LATCHWORK_TOKEN'"
    );
    let mut shell = at(&store, place, &text);
    let up = shell.stdout.until("up");
    kill(keeper(&store).unwrap());
    eventually("its end", || keeper(&store).is_none().then_some(()));
    go_on(&mut shell);
    let done = shell.finish();
    assert_eq!(done.code(), 0, "{place:?}: {done:?}");
    assert!(token(&done.stdout) > token(&up), "{place:?}: {up} {done:?}");
}

/// Lost by the keeper's own clock, while the store is away: `release` says so, and nothing runs under that hold,
/// neither then nor when the store is back and lists it for the lock delay.
fn is_not_revived(place: Place<'_>, server: &mut Process, ttl: &str) {
    let store = Store::new();
    let text = format!(
        "held=$(latchwork hold --on-loss none --ttl {ttl} --lock-delay 20s $K) && eval \"$held\" || exit; \
         echo \"up $LATCHWORK_TOKEN $LATCHWORK_HELD\"; read line; latchwork release; echo $?; \
         latchwork run --inherit --wait 0 $K -- echo in; echo $?; echo away; read line; \
         latchwork run --inherit --wait 0 $K -- echo in; echo $?"
    );
    let mut shell = at(&store, place, &text);
    let up = shell.stdout.until("up");
    let id = up.split("\"hold\":\"").nth(1).unwrap().split('"').next().unwrap();
    let socket = format!("@latchwork-hold-{id}");
    let listens = || fs::read_to_string("/proc/net/unix").unwrap().contains(&socket);
    assert!(listens(), "{place:?}");
    server.stop().unwrap();
    eventually("the loss", || (!listens()).then_some(()));
    let mut input = shell.child.stdin.take().unwrap();
    input.write_all(b"\n").unwrap();
    for expected in ["73", "69", "away"] {
        assert_eq!(shell.stdout.next().as_deref(), Some(expected), "{place:?}");
    }
    server.cont().unwrap();
    drop(input);
    let done = shell.finish();
    assert_eq!(done.stdout, "75\n", "{place:?}: {done:?}");
    assert!(done.stderr.contains("released earlier, or lost"), "{place:?}: {done:?}");
}

/// The next one enters when nothing of the command is left.
fn nobody_runs_beside_a_borrower(url: &str, options: &str) {
    let store = Store::new();
    let deaf = "exec 9>\"$TRACE/busy\"; flock -n 9 || echo OVERLAP; trap \"\" TERM; echo inside; \
                while :; do sleep 0.05; done";
    let text = format!(
        "held=$(latchwork hold --on-loss none {options} $K) && eval \"$held\" || exit; \
         latchwork run --inherit $K -- sh -c '{deaf}'"
    );
    let shell = at(&store, (url, "x"), &text);
    shell.stdout.until("inside");
    let next = store.holder_with(&[], "true", |command| {
        command.env("LATCHWORK_STORE", url);
    });
    next.stderr.until("waiting for");
    kill(keeper(&store).unwrap());
    next.ready();
    assert_eq!(next.finish().code(), 0, "{url}");
    assert_eq!(shell.finish().code(), 73, "{url}");
}

/// The lock would be free while the command goes on.
fn release_is_refused(place: Place<'_>, others: bool) {
    let store = Store::new();
    let (both, single) = match others {
        true => ("$K y", "latchwork release $K; echo $?; latchwork release y; echo $?;"),
        false => ("$K", ""),
    };
    let text = format!(
        "held=$(latchwork hold {both}) && eval \"$held\" || exit; \
         latchwork run --inherit $K -- {INSIDE} & read line; latchwork release; echo $?; {single} \
         latchwork status $K; touch \"$TRACE/go\"; wait; latchwork release; echo $?"
    );
    let mut shell = at(&store, place, &text);
    shell.stdout.until("inside");
    go_on(&mut shell);
    let done = shell.finish();
    let single = if others { "75\n0\n" } else { "" };
    assert_eq!(done.stdout, format!("75\n{single}held\nout\n0\n"), "{place:?}: {done:?}");
    assert!(done.stderr.contains("`latchwork run --inherit` (process "), "{done:?}");
    eventually("the keeper's end", || keeper(&store).is_none().then_some(()));
}

/// A command keeps the hold of a shell that ended.
fn outlives_its_shell(place: Place<'_>, ttl: &str, longer: Duration, end: &str) {
    let store = Store::new();
    let text = format!(
        "held=$(latchwork hold --ttl {ttl} $K) && eval \"$held\" || exit; \
         latchwork run --inherit $K -- {INSIDE} & read line; {end}"
    );
    let mut shell = at(&store, place, &text);
    shell.stdout.until("inside");
    go_on(&mut shell);
    shell.wait();
    // Longer than a ttl: it is renewed.
    std::thread::sleep(longer);
    assert_eq!(status_at(&store, place), "held\n", "{place:?}: {end}");
    fs::write(store.file("go"), "").unwrap();
    shell.stdout.until("out");
    eventually("the release", || (status_at(&store, place) == "free\n").then_some(()));
    eventually("the keeper's end", || keeper(&store).is_none().then_some(()));
}

/// All of the above at a server, with a ttl of so many seconds.
fn holds_at_a_server(url: &str, server: &mut Process, ttl: u64) {
    let (options, longer) = (format!("{ttl}s"), Duration::from_secs(ttl + 1));
    let with = |more: &str| format!("--ttl {options} {more}");
    std::thread::scope(|scope| {
        scope.spawn(|| has_a_hold_of_its_own((url, "killed"), &with(""), "run --inherit"));
        scope.spawn(|| has_a_hold_of_its_own((url, "delay"), &with("--lock-delay 2s"), "run"));
        scope.spawn(|| nobody_runs_beside_a_borrower(url, &with("")));
        scope.spawn(|| release_is_refused((url, "release"), false));
        scope.spawn(|| outlives_its_shell((url, "shell"), &options, longer, "exit 0"));
    });
    is_not_revived((url, "lost"), server, &options);
}

#[test]
fn h220_h223_inherit_on_redis() {
    let mut redis = RedisServer::start(&RedisOptions::new()).unwrap();
    holds_at_a_server(&redis.url(), &mut redis, 2);
}

#[test]
fn h220_h223_inherit_on_etcd() {
    let mut etcd = EtcdServer::start(&EtcdOptions::new()).unwrap();
    holds_at_a_server(&etcd.url(), &mut etcd, 3);
}

#[test]
fn h220_h223_inherit_on_zookeeper() {
    let mut zookeeper = ZooKeeperServer::start(&ZooKeeperOptions::new()).unwrap();
    holds_at_a_server(&format!("{}/app", zookeeper.url()), &mut zookeeper, 4);
}

#[test]
fn h220_h221_a_keeper_on_files_that_was_killed_holds_nothing() {
    let files = Store::new();
    for run in ["run --inherit", "run"] {
        has_a_hold_of_its_own((&files.url(), "x"), "--ttl 1s --lock-delay 2s", run);
    }
}

/// H581: the keeper is cut off, and a wall clock was set: its hold is in doubt. Nothing runs under it before it is confirmed.
#[test]
fn h581_a_keeper_in_doubt_lends_nothing() {
    let (store, clock) = (Store::new(), ServerClock::of_clients().unwrap());
    let redis = RedisServer::start(&RedisOptions::new()).unwrap();
    let proxy = Proxy::plain(redis.port()).unwrap();
    let text = "held=$(latchwork hold --on-loss none --ttl 30s $K) && eval \"$held\" || exit; \
                export LATCHWORK_STORE=$DIRECT; echo up; read line; \
                latchwork run --inherit $K -- echo in; echo $?; echo asked; read line; \
                latchwork run --inherit $K -- echo in; echo $?";
    let url = format!("redis://127.0.0.1:{}", proxy.port());
    let mut command = command_at(&store, (&url, "x"), text);
    command.env("DIRECT", redis.url());
    clock.give_to(&mut command);
    let mut shell = Running::start(command);
    shell.stdout.until("up");
    proxy.freeze(Direction::ToServer);
    clock.step_forward(Duration::from_secs(5)).unwrap();
    let keeper = keeper(&store).unwrap().as_raw_nonzero().get();
    assert_eq!(ring_for_step(keeper as u32).unwrap(), 1);
    let mut input = shell.child.stdin.take().unwrap();
    input.write_all(b"\n").unwrap();
    assert_eq!(shell.stdout.next().as_deref(), Some("69"));
    let step =
        "check that the outer latchwork process reaches the store, and run this command again";
    shell.stderr.until(step);
    shell.stdout.until("asked");
    proxy.thaw(Direction::ToServer);
    drop(input);
    let done = shell.finish();
    assert_eq!(done.stdout, "in\n0\n", "{done:?}");
}

/// While it lives, only it can say what is left: nothing runs on the store's word alone.
#[test]
fn h220_a_stopped_keeper_lends_nothing() {
    let store = Store::new();
    let text = "held=$(latchwork hold --ttl 1m x) && eval \"$held\" || exit; echo up; read line; \
                latchwork run --inherit x -- echo in; echo $?";
    let mut shell = at(&store, (&store.url(), "x"), text);
    shell.stdout.until("up");
    let keeper = keeper(&store).unwrap();
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
        ("killed", |store| kill(keeper(store).unwrap())),
        ("stopped", |store| kill_process(keeper(store).unwrap(), Signal::STOP).unwrap()),
    ];
    for (fault, strike) in faults {
        let store = Store::new();
        let text = format!(
            "held=$(latchwork hold --on-loss none --ttl 3s x) && eval \"$held\" || exit; \
             latchwork run --inherit x -- {deaf}; echo $?"
        );
        let shell = at(&store, (&store.url(), "x"), &text);
        shell.stdout.until("inside");
        strike(&store);
        assert_eq!(shell.stdout.next().as_deref(), Some("73"), "{fault}");
        let done = shell.finish();
        assert!(done.stderr.contains("the outer command or shell"), "{fault}: {done:?}");
        if let Some(keeper) = keeper(&store) {
            let _ = kill_process(keeper, Signal::CONT);
        }
    }
}

/// On files the store would open the lock at once: the borrower's guardian keeps the session alive.
#[test]
fn h222_nobody_runs_beside_a_command_whose_keeper_was_killed() {
    nobody_runs_beside_a_borrower(&Store::new().url(), "");
}

#[test]
fn h223_release_is_refused_while_a_command_runs_under_the_hold() {
    release_is_refused((&Store::new().url(), "x"), true);
}

#[test]
fn h223_a_command_keeps_the_hold_of_a_shell_that_ended() {
    let files = Store::new();
    for end in ["exit 0", "kill -9 $$"] {
        outlives_its_shell((&files.url(), "x"), "3s", Duration::from_secs(4), end);
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
