//! Whom a keeper obeys, whom it tells, and what becomes of a hold whose shell cannot speak any more.

use std::process::Stdio;
use std::time::{Duration, Instant};

use latchwork_services::{RedisOptions, RedisServer};
use latchwork_store::testing::stalls;
use rustix::process::{Pid, Signal, kill_process};

use crate::common::{Holder, Running, Store, eventually, pid, processes, stat};
use crate::hold::{keepers, no_keeper_is_left, path, run, script, status};

/// A script that has a keeper, says `up`, and reads a line then.
fn shell_and_keeper(store: &Store, text: &str) -> (Running, Pid) {
    let mut command = script(store, "bash", text);
    command.stdin(Stdio::piped());
    let shell = Running::start(command);
    shell.stdout.until("up");
    let keeper = pid(keepers(store)[0]);
    (shell, keeper)
}

/// An inner script knows the hold's id as well.
#[test]
fn an_inner_command_releases_no_hold_of_its_shell() {
    let store = Store::new();
    let held = "held=$(latchwork hold x) && eval \"$held\" || exit;";
    for inner in [
        "sh -c 'latchwork release; echo $?; true'",
        "sh -c 'latchwork release x; echo $?; true'",
        "latchwork run y -- latchwork release; echo $?",
        "latchwork run --inherit x -- sh -c 'latchwork release; echo $?; true'",
        "bash -c 'held=$(latchwork hold y) && eval \"$held\" && latchwork release'; echo 64",
        "sh -c 'held=$(latchwork hold y) && eval \"$held\" && latchwork release; latchwork release; echo $?'",
    ] {
        let done = run(&store, &format!("{held} {inner}; latchwork status x; latchwork release"));
        assert_eq!(done.stdout, "64\nheld\n", "{inner}: {done:?}");
        assert_eq!(
            done.stderr.contains("; process "),
            !inner.contains("bash"),
            "{inner}: {done:?}"
        );
    }
    no_keeper_is_left(&store);
}

#[test]
fn a_subshell_releases_the_hold_that_it_names() {
    let store = Store::new();
    for shell in ["bash", "dash"] {
        let text = "held=$(latchwork hold x) && eval \"$held\" || exit; \
                    ( latchwork release --pid 1; echo $?; latchwork release x --pid $$; echo $? ); \
                    latchwork status x";
        let done = Running::start(script(&store, shell, text)).finish();
        assert_eq!(done.stdout, "64\n0\nfree\n", "{shell}: {done:?}");
    }
    no_keeper_is_left(&store);
}

/// The process that gets its children must not be taken for the shell: it may never end.
#[test]
fn a_shell_that_is_killed_while_it_evaluates_holds_nothing() {
    let store = Store::new();
    let text = "held=$(latchwork hold x) || exit; echo up; read line; eval \"$held\"; echo on";
    let (mut shell, keeper) = shell_and_keeper(&store, text);
    kill_process(keeper, Signal::STOP).unwrap();
    drop(shell.child.stdin.take());
    let own = shell.child.id().to_string();
    let is_asked = |child: &i32| {
        let line = std::fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
        stat(*child).is_some_and(|stat| stat[1] == own)
            && String::from_utf8_lossy(&line).contains("\0attach\0")
            && std::fs::read_to_string(format!("/proc/{child}/wchan"))
                .is_ok_and(|place| place.contains("unix"))
    };
    let asks = || processes().into_iter().find(is_asked);
    // It asks, and the keeper cannot answer. Some systems do not say where a process waits.
    let patience = Instant::now();
    while asks().is_none() && patience.elapsed() < Duration::from_secs(2) {
        std::thread::sleep(Duration::from_millis(10));
    }
    shell.signal(Signal::KILL);
    shell.wait();
    kill_process(keeper, Signal::CONT).unwrap();
    let started = Instant::now();
    no_keeper_is_left(&store);
    stalls::in_time(started, Duration::from_secs(15));
    assert_eq!(status(&store, "x"), "free\n");
}

/// A subshell that outlives its shell.
#[test]
fn orphans_of_a_shell_cannot_attach() {
    let store = Store::new();
    let text = "held=$(latchwork hold x) || exit; \
                ( sleep 0.5; eval \"$held\"; echo $? ) & kill -9 $$";
    let mut shell = Running::start(script(&store, "bash", text));
    assert_eq!(shell.stdout.next().unwrap(), "64");
    shell.wait();
    no_keeper_is_left(&store);
}

/// It would never hear of the loss: the warning came before it was there.
#[test]
fn a_shell_cannot_attach_to_a_suspect_hold() {
    let store = Store::new();
    let mut server = RedisServer::start(&RedisOptions::new()).unwrap();
    let text = "held=$(latchwork hold --ttl 6s x) || exit; echo up; read line; eval \"$held\" || exit; echo on";
    let mut command = script(&store, "bash", text);
    command.env("LATCHWORK_STORE", server.url()).env("PATH", path()).stdin(Stdio::piped());
    let mut shell = Running::start(command);
    shell.stdout.until("up");
    server.stop().unwrap();
    std::thread::sleep(Duration::from_millis(4_600));
    drop(shell.child.stdin.take());
    let done = shell.finish();
    server.cont().unwrap();
    assert_eq!((done.code(), &*done.stdout), (73, ""), "{done:?}");
    assert!(done.stderr.contains("before the shell evaluated"), "{done:?}");
}

/// A service manager that ends a service signals all of its processes, and the script may clean up under the
/// lock.
#[test]
fn a_signal_to_the_keeper_takes_no_lock_from_its_shell() {
    let store = Store::new();
    let text = "held=$(latchwork hold --ttl 2s x) && eval \"$held\" || exit; echo up; read line; latchwork release";
    let (mut shell, keeper) = shell_and_keeper(&store, text);
    for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
        kill_process(keeper, signal).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(status(&store, "x"), "held\n", "{signal:?}");
    }
    drop(shell.child.stdin.take());
    assert_eq!(shell.finish().code(), 0);
    assert_eq!(status(&store, "x"), "free\n");
}

/// The process that is to print the lines was stopped by Ctrl-Z while it waited.
#[test]
fn a_stopped_hold_keeps_the_lock_for_no_longer_than_others() {
    let store = Store::new();
    let holder = store.holder(&[], "sleep 300; echo x");
    holder.ready();
    let waiting = Running::start(store.latchwork(&["-v", "hold", "x"]));
    waiting.stderr.until("waiting for");
    waiting.signal(Signal::STOP);
    kill_process(holder.guardian(), Signal::KILL).unwrap();
    holder.finish();
    eventually("the grant", || (status(&store, "x") == "held\n").then_some(()));
    let started = Instant::now();
    eventually("its end", || (status(&store, "x") == "free\n").then_some(()));
    stalls::in_time(started, Duration::from_secs(13));
    waiting.signal(Signal::CONT);
    waiting.signal(Signal::KILL);
    waiting.finish();
}

#[test]
fn lines_that_nobody_can_read_are_refused() {
    let store = Store::new();
    for output in [">&-", "> /dev/null"] {
        let done = run(&store, &format!("latchwork hold x {output}; echo $?; latchwork status x"));
        assert_eq!(done.stdout, "64\nfree\n", "{output}: {done:?}");
        assert!(done.stderr.contains("standard output is closed"), "{done:?}");
    }
}

/// An upgrade comes while the lock is waited for.
#[test]
fn a_hold_outlives_the_file_that_it_was_started_from() {
    let store = Store::new();
    let holder = store.holder(&[], "sleep 300; echo x");
    holder.ready();
    let program = store.file("latchwork-old");
    std::fs::copy(env!("CARGO_BIN_EXE_latchwork"), &program).unwrap();
    let text = "held=$(\"$TRACE/latchwork-old\" -v hold x) && eval \"$held\" || exit; latchwork status x; \
                latchwork release";
    let shell = Running::start(script(&store, "bash", text));
    shell.stderr.until("waiting for");
    std::fs::remove_file(&program).unwrap();
    kill_process(holder.guardian(), Signal::KILL).unwrap();
    holder.finish();
    assert_eq!(shell.finish().stdout, "held\n");
    no_keeper_is_left(&store);
}

/// What has no room in the environment would not be released, or nothing could be started.
#[test]
fn locks_that_the_environment_has_no_room_for_are_refused() {
    let store = Store::new();
    let names: Vec<String> = (0..600).map(|number| format!("{number:0200}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for (verb, rest) in [("run", &["--", "true"][..]), ("hold", &[])] {
        let done = store.output(&[&[verb][..], &names, rest].concat());
        assert_eq!(done.code(), 64, "{verb}");
        assert!(done.stderr.contains("would exceed 64 KiB"), "{}", done.stderr);
    }
    let few = [&["run"][..], &names[..90], &["--", "true"]].concat();
    assert_eq!(store.output(&few).code(), 0);
    // The locks of the shells around count as well.
    let text = "name=$(printf %0900d 7); for i in $(seq 70); do \
                held=$(latchwork hold \"$name$i\") && eval \"$held\" || exit; done";
    let done = run(&store, text);
    assert_eq!(done.code(), 64, "{done:?}");
    assert!(done.stderr.contains("LATCHWORK_HELD"), "{done:?}");
    no_keeper_is_left(&store);
    assert_eq!(store.output(&["ls"]).stdout, "");
}

/// Another user may listen at the address of a keeper that has ended, and answer nothing.
#[test]
fn a_foreign_listener_does_not_block_release() {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
    let store = Store::new();
    let id = "0123456789abcdef0123456789abcdef";
    let address = SocketAddr::from_abstract_name(format!("latchwork-hold-{id}")).unwrap();
    let _listener = UnixListener::bind_addr(&address).unwrap();
    let held =
        format!("[{{\"key\":\"y\",\"token\":\"1024\",\"holder\":\"me\",\"hold\":\"{id}\"}}]");
    // It is full after these.
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let full: Vec<_> = (0..5_000)
            .map_while(|_| {
                sender.send(()).ok()?;
                UnixStream::connect_addr(&address).ok()
            })
            .collect();
        drop(full);
    });
    while receiver.recv_timeout(Duration::from_secs(1)).is_ok() {}
    let started = Instant::now();
    let mut command = store.latchwork(&["run", "x", "--", "true"]);
    command.env("LATCHWORK_HELD", &held);
    assert_eq!(Running::start(command).finish().code(), 0);
    let mut command = store.latchwork(&["release"]);
    command.env("LATCHWORK_HELD", &held);
    assert_eq!(Running::start(command).finish().code(), 73);
    stalls::in_time(started, Duration::from_secs(10));
}

#[test]
fn a_stopped_keeper_is_not_waited_for_without_end() {
    let store = Store::new();
    let text = "held=$(latchwork hold x) && eval \"$held\" || exit; echo up; read line; latchwork release; echo $?";
    let (mut shell, keeper) = shell_and_keeper(&store, text);
    kill_process(keeper, Signal::STOP).unwrap();
    drop(shell.child.stdin.take());
    assert_eq!(shell.stdout.next().as_deref(), Some("69"));
    kill_process(keeper, Signal::CONT).unwrap();
    shell.wait();
    no_keeper_is_left(&store);
}

/// Nobody works under the lock yet.
#[test]
fn no_signal_is_sent_before_a_shell_has_attached() {
    let store = Store::new();
    let text = "sleep 60 & held=$(latchwork hold --ttl 2s --pid $! x) || exit; \
                latchwork release --force x; sleep 1.5; kill -0 $! && echo lives; kill $!";
    let done = run(&store, text);
    assert!(done.stdout.ends_with("\nlives\n"), "{done:?}");
    no_keeper_is_left(&store);
}
