//! A lock for several commands of a script.

use std::fs;
use std::process::Command;

use latchwork_services::{RedisOptions, RedisServer};
use latchwork_store::testing::stalls;
use rustix::process::Signal;

use crate::common::{Finished, Holder, Running, Store, eventually, processes};

const BINARY: &str = env!("CARGO_BIN_EXE_latchwork");

/// Where the command under test is found.
pub(crate) fn path() -> String {
    let folder = std::path::Path::new(BINARY).parent().unwrap();
    format!("{}:{}", folder.display(), env!("PATH"))
}

/// A script in which `latchwork` is the command under test.
pub(crate) fn script(store: &Store, shell: &str, text: &str) -> Command {
    let mut command = Command::new(shell);
    command.args(["-c", text]).env("PATH", path());
    store.at_this_store(command)
}

pub(crate) fn run(store: &Store, text: &str) -> Finished {
    Running::start(script(store, "bash", text)).finish()
}

pub(crate) fn status(store: &Store, name: &str) -> String {
    store.output(&["status", name]).stdout
}

/// The keepers of the test's store.
pub(crate) fn keepers(store: &Store) -> Vec<i32> {
    let url = format!("LATCHWORK_STORE={}", store.url());
    let is_keeper = |pid: &i32| {
        let read = |name| fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let words = String::from_utf8_lossy(&read("cmdline")).into_owned();
        let environment = String::from_utf8_lossy(&read("environ")).into_owned();
        words.contains("\0hold\0") && environment.split('\0').any(|variable| variable == url)
    };
    processes().into_iter().filter(is_keeper).collect()
}

pub(crate) fn no_keeper_is_left(store: &Store) {
    eventually("the keeper's end", || keepers(store).is_empty().then_some(()));
}

#[test]
fn a_script_holds_the_lock_over_several_commands() {
    let store = Store::new();
    for shell in ["bash", "dash"] {
        let text = "held=$(latchwork hold x) && eval \"$held\" || exit; latchwork status x; \
                    echo $LATCHWORK_KEY; test -n \"$LATCHWORK_TOKEN\" && latchwork status x; \
                    latchwork release; echo $?; latchwork status x";
        let done = Running::start(script(&store, shell, text)).finish();
        assert_eq!((&*done.stdout, &*done.stderr), ("held\nx\nheld\n0\nfree\n", ""), "{shell}");
        no_keeper_is_left(&store);
    }
}

/// The script ends by itself, and by SIGKILL.
#[test]
fn the_lock_ends_with_the_shell() {
    let store = Store::new();
    for (shell, text) in [
        ("bash", "eval \"$(latchwork hold x)\" || exit; echo up; read line"),
        ("dash", "eval \"$(latchwork hold x)\" || exit; echo up; read line"),
        ("bash", "held=$(latchwork hold x) || exit; eval \"$held\"; echo up; read line"),
        ("bash", "eval \"$(latchwork hold --pid $$ x)\" || exit; echo up; read line"),
    ] {
        for signal in [None, Some(Signal::KILL)] {
            let mut command = script(&store, shell, text);
            command.stdin(std::process::Stdio::piped());
            let mut shell = Running::start(command);
            shell.stdout.until("up");
            assert_eq!(status(&store, "x"), "held\n", "{text}");
            match signal {
                Some(signal) => shell.signal(signal),
                None => drop(shell.child.stdin.take()),
            }
            shell.wait();
            eventually("the release", || (status(&store, "x") == "free\n").then_some(()));
            no_keeper_is_left(&store);
        }
    }
}

#[test]
fn a_script_without_the_lock_fails() {
    let store = Store::new();
    let holder = store.holder(&["--holder", "the other"], "sleep 300; echo x");
    holder.ready();
    let done = run(&store, "eval \"$(latchwork hold --wait 0 x)\" || exit; echo went on");
    assert_eq!((done.code(), &*done.stdout), (75, ""));
    assert!(done.stderr.contains("the other"), "{done:?}");
    let done = run(&store, "set -e; eval \"$(latchwork hold --wait 0 x)\"; echo went on");
    assert_eq!((done.code(), &*done.stdout), (75, ""));
    let done = run(&store, "eval \"$(latchwork hold --ttl 1ms x)\" || exit; echo went on");
    assert_eq!((done.code(), &*done.stdout), (64, ""), "also if the command line is wrong");
    no_keeper_is_left(&store);
}

#[test]
fn several_holds_of_a_shell_are_released_by_name() {
    let store = Store::new();
    let done = run(
        &store,
        "eval \"$(latchwork hold a b)\" || exit; eval \"$(latchwork hold c)\" || exit; \
         echo \"$LATCHWORK_KEY\" | tr '\\n' ' '; latchwork release c; \
         latchwork status a; latchwork status c; latchwork release; latchwork status b",
    );
    assert_eq!(done.stdout, "c held\nfree\nfree\n", "{done:?}");
    no_keeper_is_left(&store);
}

#[test]
fn a_shell_upgrades_its_read_hold_and_downgrades_it() {
    let store = Store::new();
    for shell in ["bash", "dash"] {
        let text = "held=$(latchwork hold --read x) && eval \"$held\" || exit; first=$LATCHWORK_TOKEN; \
                    latchwork run -n --read x -- true || echo no reader; \
                    held=$(latchwork upgrade x) && eval \"$held\" || exit; second=$LATCHWORK_TOKEN; \
                    test \"$second\" -gt \"$first\" || echo the token does not grow; \
                    env -u LATCHWORK_HELD latchwork run -n --read x -- true; echo $?; \
                    latchwork run --inherit --write x -- sh -c 'echo inside $LATCHWORK_KEY'; \
                    held=$(latchwork downgrade x) && eval \"$held\" || exit; \
                    test \"$LATCHWORK_TOKEN\" -gt \"$second\" || echo the token does not grow; \
                    env -u LATCHWORK_HELD latchwork run -n --read x -- echo a reader; \
                    latchwork --json upgrade x | sed 's/\"[0-9]*\"/N/'; \
                    latchwork release; latchwork status x";
        let done = Running::start(script(&store, shell, text)).finish();
        let json = r#"{"key":"x","mode":"write","token":N}"#;
        let no_reader = "no reader\n";
        assert_eq!(
            done.stdout,
            format!("{no_reader}75\ninside x\na reader\n{json}\nfree\n"),
            "{shell}: {done:?}"
        );
        no_keeper_is_left(&store);
    }
}

#[test]
fn an_upgrade_that_fails_leaves_the_read_hold() {
    let store = Store::new();
    let other = store.holder(&["--read", "--holder", "the other"], "sleep 300; echo x");
    other.ready();
    let text = "held=$(latchwork hold --read x) && eval \"$held\" || exit; \
                eval \"$(latchwork upgrade --wait 0 x)\"; echo $?; latchwork status x; \
                latchwork --json upgrade -n x 2>&1 | grep -o '\"kind\":\"[A-Za-z]*\"'; \
                latchwork upgrade x >/dev/null & until latchwork --json show x | grep -q '\"mode\":\"write\"'; do sleep 0.02; done; kill $!; wait $!; echo $?; \
                env -u LATCHWORK_HELD latchwork run -w 5 --read x -- echo a reader; \
                latchwork downgrade x; echo $?; latchwork upgrade y; echo $?";
    let done = run(&store, text);
    assert_eq!(
        done.stdout,
        "75\nheld\n\"kind\":\"TimedOut\"\n143\na reader\n(exit 64)\n64\n(exit 64)\n64\n",
        "{done:?}"
    );
    for part in [
        "timed out without waiting: held by the other",
        "the lock is still held for reading; wait longer",
        "downgrade: the lock is held for reading, not for writing",
        "this shell holds no lock \"y\"",
        "take it by `latchwork hold --read` first",
    ] {
        assert!(done.stderr.contains(part), "{part}: {done:?}");
    }
    no_keeper_is_left(&store);
}

#[test]
fn the_second_shell_that_upgrades_is_refused() {
    let store = Store::new();
    let asking = |text: &str| {
        let mut command = script(&store, "bash", text);
        command.stdin(std::process::Stdio::piped());
        Running::start(command)
    };
    let mut first = asking(
        "eval \"$(latchwork hold --read --holder first x)\" || exit; echo up; read line; \
         held=$(latchwork upgrade x) && eval \"$held\" && echo upgraded; latchwork release",
    );
    let mut second = asking(
        "eval \"$(latchwork hold --read x)\" || exit; echo up; read line; \
         latchwork --json upgrade x 2>&1 >/dev/null; echo $?; latchwork release",
    );
    // Both have it before one of them upgrades.
    second.stdout.until("up");
    first.stdout.until("up");
    drop(first.child.stdin.take());
    let waits = || store.output(&["--json", "show", "x"]).stdout.contains("\"mode\":\"write\"");
    eventually("the first waits", || waits().then_some(()));
    drop(second.child.stdin.take());
    let refused = second.finish();
    assert!(refused.stdout.ends_with("75\n"), "{refused:?}");
    assert!(refused.stdout.contains("\"kind\":\"UpgradeConflict\""), "{refused:?}");
    assert!(refused.stdout.contains("first is upgrading its hold"), "{refused:?}");
    assert!(first.finish().stdout.contains("upgraded"));
    no_keeper_is_left(&store);
}

#[test]
fn a_hold_is_not_downgraded_under_a_command_that_inherits_it() {
    let store = Store::new();
    let text = "eval \"$(latchwork hold --write x)\" || exit; \
                latchwork run --inherit --write x -- sh -c 'touch \"$TRACE/inside\"; exec sleep 300' & \
                until [ -e \"$TRACE/inside\" ]; do sleep 0.02; done; \
                latchwork downgrade x; echo $?; kill $!; wait $!; \
                until latchwork downgrade x >/dev/null; do sleep 0.02; done; echo done";
    let done = run(&store, text);
    assert_eq!(done.stdout, "(exit 75)\n75\ndone\n", "{done:?}");
    assert!(done.stderr.contains("not downgraded: `latchwork run --inherit`"), "{done:?}");
    no_keeper_is_left(&store);
}

#[test]
fn a_hold_of_several_locks_is_not_upgraded() {
    let store = Store::new();
    let done = run(
        &store,
        "eval \"$(latchwork hold --read a b)\" || exit; latchwork upgrade a; latchwork upgrade --pid 1 a",
    );
    assert!(done.stderr.contains("hold a alone to upgrade or downgrade it"), "{done:?}");
    assert!(done.stderr.contains("run this command there, or add --pid"), "{done:?}");
    no_keeper_is_left(&store);
}

/// A waiter's message names the script to check; the keeper's process number would not help.
#[test]
fn the_holder_of_a_hold_is_its_shell_or_script() {
    let store = Store::new();
    let show = "latchwork show x | grep holder; echo $$";
    let script_text = format!("held=$(latchwork hold x) && eval \"$held\" || exit; {show}");
    fs::write(store.file("deploy.sh"), &script_text).unwrap();
    for shell in ["bash", "dash"] {
        let mut command = Command::new(shell);
        command.arg(store.file("deploy.sh")).env("PATH", path());
        let done = Running::start(store.at_this_store(command)).finish();
        let [holder, pid] = &done.stdout.lines().collect::<Vec<_>>()[..] else {
            panic!("{done:?}")
        };
        assert!(holder.contains(&format!("latchwork hold for pid {pid}, {shell} ")), "{done:?}");
        assert!(holder.contains("deploy.sh, held for "), "{done:?}");
    }
}

/// The keeper of both goes on for the other, up to its release.
#[test]
fn a_release_frees_only_the_names_it_is_given() {
    let store = Store::new();
    let done = run(
        &store,
        "eval \"$(latchwork hold a b c)\" || exit; each() { for n in a b c; do latchwork status $n; done; }; \
         latchwork release b && each; latchwork run b true && echo ran; latchwork release b; echo $?; \
         latchwork release a c && each; latchwork release; echo $?",
    );
    let expected = "held\nfree\nheld\nran\n64\nfree\nfree\nfree\n73\n";
    assert_eq!(done.stdout, expected, "{done:?}");
    no_keeper_is_left(&store);
}

/// The names that are still held end with the shell, and the keeper reports their loss.
#[test]
fn the_rest_of_a_hold_is_still_watched() {
    let store = Store::new();
    let text = "trap 'echo told; exit 9' TERM; eval \"$(latchwork hold --ttl 1s a b)\" || exit; \
                latchwork release a; echo up; while :; do sleep 0.1; done";
    let shell = Running::start(script(&store, "bash", text));
    shell.stdout.until("up");
    assert_eq!(store.output(&["run", "--wait", "0", "a", "true"]).code(), 0);
    assert_eq!(store.output(&["release", "--force", "b"]).code(), 0);
    shell.stdout.until("told");
    assert_eq!(shell.finish().code(), 9);
    no_keeper_is_left(&store);
}

/// In a name, a newline ends nothing.
#[test]
fn a_hold_is_released_by_any_name() {
    let store = Store::new();
    for name in ["it's", "a\nb", "$HOME `x` \"y\""] {
        let mut command = script(
            &store,
            "bash",
            "eval \"$(latchwork hold \"$NAME\")\" || exit; latchwork status \"$NAME\"; \
             latchwork release \"$NAME\" && latchwork status \"$NAME\"",
        );
        command.env("NAME", name);
        let done = Running::start(command).finish();
        assert_eq!((&*done.stdout, &*done.stderr), ("held\nfree\n", ""), "{name:?}");
    }
    no_keeper_is_left(&store);
}

#[test]
fn a_subshell_may_have_a_hold_of_its_own() {
    let store = Store::new();
    let text = "( held=$(latchwork hold x) && eval \"$held\" || exit; latchwork status x ); \
                until latchwork status x | grep -q free; do sleep 0.05; done; echo released";
    let done = run(&store, text);
    assert_eq!(done.stdout, "held\nreleased\n", "{done:?}");
    no_keeper_is_left(&store);
}

#[test]
fn releasing_an_unheld_lock_is_refused() {
    let store = Store::new();
    let nothing = store.output(&["release"]);
    assert_eq!(nothing.code(), 64, "{nothing:?}");
    let done = run(&store, "eval \"$(latchwork hold x)\" || exit; latchwork release y");
    assert_eq!(done.code(), 64, "{done:?}");
    assert!(done.stderr.contains("holds no lock \"y\""), "{done:?}");
    let done = run(&store, "eval \"$(latchwork hold x)\"; latchwork release; latchwork release");
    assert_eq!(done.code(), 73, "{done:?}");
    assert!(done.stderr.contains("released earlier, or lost"), "{done:?}");
    no_keeper_is_left(&store);
}

#[test]
fn a_loss_signals_the_shell() {
    let store = Store::new();
    let text = "trap 'echo told; latchwork release; echo $?; exit 9' TERM; \
                eval \"$(latchwork hold --ttl 1s x)\" || exit; echo up; \
                while :; do sleep 0.1; done";
    let shell = Running::start(script(&store, "bash", text));
    shell.stdout.until("up");
    assert_eq!(store.output(&["release", "--force", "x"]).code(), 0);
    shell.stdout.until("told");
    assert_eq!(shell.finish().code(), 9);
    no_keeper_is_left(&store);
    let text = "eval \"$(latchwork hold --ttl 1s --on-loss none x)\"; echo up; read line; echo on";
    let mut command = script(&store, "bash", text);
    command.stdin(std::process::Stdio::piped());
    let mut shell = Running::start(command);
    shell.stdout.until("up");
    assert_eq!(store.output(&["release", "--force", "x"]).code(), 0);
    no_keeper_is_left(&store);
    drop(shell.child.stdin.take());
    assert_eq!(shell.finish().stdout, "on\n");
}

/// The store does not confirm the lock: the shell hears of it before another can get it.
#[test]
fn a_shell_is_signalled_before_the_lock_expires() {
    let store = Store::new();
    let mut server = RedisServer::start(&RedisOptions::new()).unwrap();
    let text = "trap 'echo told; exit 9' TERM; \
                eval \"$(latchwork hold --ttl 3s x)\" || exit; echo up; while :; do sleep 0.1; done";
    let mut command = script(&store, "bash", text);
    command.env("LATCHWORK_STORE", server.url());
    let shell = Running::start(command);
    shell.stdout.until("up");
    let start = std::time::Instant::now();
    server.stop().unwrap();
    shell.stdout.until("told");
    stalls::in_time(start, std::time::Duration::from_millis(2_800));
    server.cont().unwrap();
    assert_eq!(shell.finish().code(), 9);
}

#[test]
fn an_interrupted_hold_withdraws() {
    let store = Store::new();
    let holder = store.holder(&[], "sleep 300; echo x");
    holder.ready();
    let waiting = Running::start(store.latchwork(&["-v", "hold", "x"]));
    waiting.stderr.until("waiting for");
    waiting.signal(Signal::INT);
    no_keeper_is_left(&store);
    // A process that ends shows no words before it lets go of its files.
    eventually("the withdrawal", || {
        let shown = store.output(&["--json", "show", "x"]).stdout;
        shown.contains("\"waiters\":[]").then_some(())
    });
}

/// A pipe that the keeper kept open would never end.
#[test]
fn a_keeper_keeps_nothing_of_the_shell_open() {
    let store = Store::new();
    let text = "exec 9>\"$TRACE/busy\"; flock -n 9 || exit 1; \
                { eval \"$(latchwork hold --pid $PPID x 2>&1)\"; echo done; } 7>&1 | cat; \
                exec 9>&-; flock -n \"$TRACE/busy\" true && echo unlocked; latchwork status x";
    let done = run(&store, &format!("bash -c '{text}'; true"));
    assert_eq!(done.stdout, "done\nunlocked\nheld\n", "{done:?}");
    no_keeper_is_left(&store);
    assert_eq!(status(&store, "x"), "free\n", "it goes with the process of --pid");
}

#[test]
fn a_command_does_not_wait_for_its_shells_hold() {
    let store = Store::new();
    let done = run(&store, "eval \"$(latchwork hold x)\"; latchwork run x true; echo $?");
    assert_eq!(done.stdout, "64\n", "{done:?}");
    let text = "eval \"$(latchwork hold x)\"; latchwork run --inherit x echo in; latchwork release; \
                latchwork run x echo free";
    let done = run(&store, text);
    assert_eq!((&*done.stdout, &*done.stderr), ("in\nfree\n", ""));
}
