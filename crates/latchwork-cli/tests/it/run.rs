//! `latchwork run`: turns, tokens, exit codes, streams, signals, environment.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use latchwork_store::testing::stalls;

use crate::common::{Holder, Running, SOON, Store, alive, eventually, exists};
use rustix::process::Signal;

#[test]
fn runs_take_turns_and_tokens_grow() {
    let store = Store::new();
    let script = "exec 9>\"$TRACE/busy\"; flock -n 9 || echo OVERLAP; \
                  echo $LATCHWORK_TOKEN >> \"$TRACE/tokens\"";
    let runs: Vec<_> = (0..8)
        .map(|_| Running::start(store.latchwork(&["run", "x", "--", "sh", "-c", script])))
        .collect();
    for run in runs {
        let done = run.finish();
        assert_eq!(done.code(), 0, "{done:?}");
        assert_eq!(done.stdout, "");
    }
    let tokens = std::fs::read_to_string(store.file("tokens")).unwrap();
    let tokens: Vec<u64> = tokens.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(tokens.len(), 8);
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

#[test]
fn a_waiter_starts_when_the_holder_ends() {
    let store = Store::new();
    let holder = store.holder(&[], "until [ -e \"$TRACE/go\" ]; do sleep 0.02; done; exit 5");
    let first = holder.ready();
    let waiter = store.waiter("true");
    std::fs::write(store.file("go"), "").unwrap();
    assert_eq!(holder.finish().code(), 5);
    let second = waiter.ready();
    assert!(second.token > first.token);
    assert_eq!(waiter.finish().code(), 0);
}

#[test]
fn different_names_do_not_wait_for_each_other() {
    let store = Store::new();
    let holder = store.holder(&[], "sleep 300; echo x");
    holder.ready();
    assert_eq!(store.output(&["run", "--wait", "0", "y", "--", "true"]).code(), 0);
    assert_eq!(store.output(&["run", "--wait", "0", "X", "--", "true"]).code(), 0);
}

#[test]
fn passes_exit_codes_back() {
    let store = Store::new();
    let missing = store.file("missing/command").display().to_string();
    for (command, code) in [
        (&["true"][..], 0),
        (&["sh", "-c", "exit 7"], 7),
        (&["sh", "-c", "exit 255"], 255),
        (&["sh", "-c", "kill -TERM $$"], 143),
        (&["sh", "-c", "kill -KILL $$"], 137),
        (&["sh", "-c", "kill -INT $$"], 130),
        (&[&missing], 127),
        (&["no-such-command-anywhere"], 127),
        (&["/etc/passwd"], 126),
        (&["/"], 126),
    ] {
        let mut args = vec!["run", "--wait", "0", "x", "--"];
        args.extend(command);
        let done = store.output(&args);
        assert_eq!(done.code(), code, "{command:?}: {done:?}");
    }
}

#[test]
fn a_usage_error_names_the_argument() {
    let store = Store::new();
    for (args, word) in [
        (&["run", "x"][..], "COMMAND"),
        (&["run", "--wait", "soon", "x", "--", "true"], "--wait"),
        (&["run", "--ttl", "10ms", "x", "--", "true"], "--ttl"),
        (&["run", "--ttl", "400d", "x", "--", "true"], "ttl"),
        (&["run", "", "--", "true"], "name"),
        (&["--store", "nowhere", "run", "x", "--", "true"], "store"),
        (&["--store", "file://relative", "ls"], "store"),
        (&["release", "x"], "--force"),
        (&["frobnicate"], "frobnicate"),
    ] {
        let done = store.output(args);
        assert_eq!(done.code(), 64, "{args:?}: {done:?}");
        assert!(done.stderr.contains(word), "{args:?}: {done:?}");
    }
    assert_eq!(store.output(&["--help"]).code(), 0);
    assert!(store.output(&["run", "--help"]).stdout.contains("Examples"));
    assert_eq!(store.output(&["--version"]).code(), 0);
}

#[test]
fn passes_stdin_and_stdout_through() {
    let store = Store::new();
    let mut command = store.latchwork(&["run", "x", "--", "cat"]);
    command.stdin(Stdio::piped());
    let mut run = Running::start(command);
    let text: String = (0..50_000).map(|line| format!("line {line}\n")).collect();
    let mut stdin = run.child.stdin.take().unwrap();
    let writer = std::thread::spawn({
        let text = text.clone();
        move || stdin.write_all(text.as_bytes()).unwrap()
    });
    let done = run.finish();
    writer.join().unwrap();
    assert_eq!(done.code(), 0);
    assert!(done.stdout == text, "{} of {} bytes", done.stdout.len(), text.len());
    assert_eq!(done.stderr, "", "says nothing of its own when there is nothing to say");
}

#[test]
fn a_pipeline_ends_with_its_command() {
    let store = Store::new();
    let binary = env!("CARGO_BIN_EXE_latchwork");
    let done =
        Running::start(store.script(&format!("'{binary}' run x -- echo hi | cat; echo end")))
            .finish();
    assert_eq!(done.stdout, "hi\nend\n");
}

#[test]
fn the_command_finds_key_token_and_store() {
    let store = Store::new();
    let script = "echo \"$LATCHWORK_KEY|$LATCHWORK_TOKEN|$LATCHWORK_STORE|$HOME\"";
    let mut command = store.latchwork(&["run", "../a b", "--", "sh", "-c", script]);
    command.env("HOME", "/home/of the caller");
    let done = Running::start(command).finish();
    let fields: Vec<_> = done.stdout.trim_end().split('|').collect();
    assert_eq!(fields[0], "../a b");
    assert!(fields[1].parse::<u64>().unwrap() > 1 << 53);
    assert_eq!(fields[2], store.url());
    assert_eq!(fields[3], "/home/of the caller");
    let inner = "exec \"$BIN\" run --wait 0 y -- true";
    let mut nested =
        store.latchwork(&["--store", &store.url(), "run", "x", "--", "sh", "-c", inner]);
    nested.env_remove("LATCHWORK_STORE").env("BIN", env!("CARGO_BIN_EXE_latchwork"));
    assert_eq!(Running::start(nested).finish().code(), 0, "a nested run uses the same store");
}

#[test]
fn signals_reach_the_command() {
    let store = Store::new();
    for (signal, name) in [
        (Signal::TERM, "TERM"),
        (Signal::INT, "INT"),
        (Signal::HUP, "HUP"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
        (Signal::WINCH, "WINCH"),
    ] {
        let script =
            format!("trap 'echo got {name}; exit 9' {name}; echo up; while :; do sleep 0.05; done");
        let run = Running::start(store.latchwork(&["run", name, "--", "sh", "-c", &script]));
        run.stdout.until("up");
        run.signal(signal);
        let done = run.finish();
        assert_eq!((done.code(), &*done.stdout), (9, &*format!("got {name}\n")), "{done:?}");
    }
}

#[test]
fn a_stop_reaches_the_command_and_latchwork_renews_on() {
    let store = Store::new();
    // One process: a shell in the middle of starting another cannot be stopped.
    let run = store.holder(&["--ttl", "2s"], "exec sleep 300");
    let ready = run.ready();
    let token = || store.output(&["--json", "show", "x"]).stdout;
    run.signal(Signal::TSTP);
    eventually("a stopped command", || (crate::common::state(ready.group) == 'T').then_some(()));
    // Longer than the ttl: without a terminal only the command is stopped.
    std::thread::sleep(Duration::from_secs(3));
    assert!(token().contains("\"held\":true"));
    run.signal(Signal::CONT);
    eventually("a continued command", || (crate::common::state(ready.group) == 'S').then_some(()));
    run.signal(Signal::TERM);
    assert_eq!(run.finish().code(), 143);
}

#[test]
fn signals_ignored_by_the_caller_stay_ignored() {
    let store = Store::new();
    let binary = env!("CARGO_BIN_EXE_latchwork");
    let script =
        format!("trap '' HUP; exec '{binary}' run x -- sh -c 'kill -HUP $PPID $$; echo alive'");
    let done = Running::start(store.script(&script)).finish();
    assert_eq!((done.code(), &*done.stdout), (0, "alive\n"), "{done:?}");
}

#[test]
fn the_command_starts_with_the_callers_signal_settings() {
    let store = Store::new();
    let ask = "exec grep -E '^Sig(Blk|Ign)' /proc/self/status";
    for prepare in ["", "trap '' INT PIPE;"] {
        let direct = Command::new("sh").args(["-c", &format!("{prepare} {ask}")]).output().unwrap();
        let direct = String::from_utf8(direct.stdout).unwrap();
        let pipe = 1 << (Signal::PIPE.as_raw() - 1);
        assert_eq!(sets(&direct)[1] & pipe != 0, prepare.contains("PIPE"), "{direct}");
        let binary = env!("CARGO_BIN_EXE_latchwork");
        let script = format!("{prepare} exec '{binary}' run x -- sh -c \"{ask}\"");
        let done = Running::start(store.script(&script)).finish();
        assert_eq!(sets(&done.stdout), sets(&direct), "{done:?}");
    }
}

#[test]
#[allow(unsafe_code, reason = "pre_exec")]
fn signals_blocked_by_the_caller_are_handled() {
    let store = Store::new();
    let blocked = |words: &[&str]| {
        let mut command = store.latchwork(&["run", "x", "--"]);
        command.args(words);
        // SAFETY: system calls only.
        unsafe {
            command.pre_exec(|| {
                let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
                libc::sigemptyset(set.as_mut_ptr());
                for signal in [libc::SIGCHLD, libc::SIGTERM, libc::SIGUSR1] {
                    libc::sigaddset(set.as_mut_ptr(), signal);
                }
                libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
                Ok(())
            });
        }
        Running::start(command)
    };
    let start = Instant::now();
    let done = blocked(&["grep", "SigBlk", "/proc/self/status"]).finish();
    // Without the signal, it would be seen at the next refresh, in five seconds.
    stalls::in_time(start, Duration::from_secs(4));
    assert_eq!(done.code(), 0, "{done:?}");
    let own = (1 << (libc::SIGCHLD - 1)) | (1 << (libc::SIGTERM - 1)) | (1 << (libc::SIGUSR1 - 1));
    assert_eq!(sets(&done.stdout), [own], "the command has the caller's mask");
    // The shell unblocks what it was started with.
    let run = blocked(&[
        "sh",
        "-c",
        "trap 'echo got; exit 4' TERM; echo up; while :; do sleep 0.05; done",
    ]);
    run.stdout.until("up");
    run.signal(Signal::TERM);
    assert_eq!(run.finish().code(), 4);
}

/// Blocked and ignored signals, without those that the C library keeps to itself.
fn sets(text: &str) -> Vec<u64> {
    let sets = text.lines().map(|line| line.rsplit('\t').next().unwrap());
    sets.map(|set| u64::from_str_radix(set, 16).unwrap() & 0x7fff_ffff).collect()
}

#[test]
fn an_unusable_store_is_reported() {
    let store = Store::new();
    std::fs::write(store.file("file"), "").unwrap();
    let url = format!("file://{}/locks", store.file("file").display());
    for args in
        [&["run", "x", "--", "true"][..], &["ls"], &["show", "x"], &["release", "x", "--force"]]
    {
        let mut all = vec!["--store", &url];
        all.extend(args);
        let done = store.output(&all);
        assert_eq!(done.code(), 69, "{args:?}: {done:?}");
        assert!(done.stderr.contains("file"), "{done:?}");
    }
}

#[test]
fn a_wait_that_is_over_names_the_holder() {
    let store = Store::new();
    let holder = store.holder(&["--holder", "the nightly backup"], "sleep 300; echo x");
    holder.ready();
    for wait in ["0", "0s", "300ms"] {
        let done = store.output(&["run", "--wait", wait, "x", "--", "echo", "no"]);
        assert_eq!(done.code(), 75, "{done:?}");
        assert!(done.stderr.contains("the nightly backup"), "{done:?}");
        assert_eq!(done.stderr.lines().count(), 1, "{done:?}");
        assert_eq!(done.stdout, "");
    }
    let done = store.output(&["--json", "run", "--wait", "0", "x", "--", "true"]);
    assert!(done.stderr.starts_with("{\"error\":{\"kind\":\"TimedOut\""), "{done:?}");
    drop(holder);
}

#[test]
fn a_wait_lasts_its_time_limit() {
    let store = Store::new();
    let holder = store.holder(&[], "sleep 300; echo x");
    holder.ready();
    let start = Instant::now();
    assert_eq!(store.output(&["run", "--wait", "300ms", "x", "--", "true"]).code(), 75);
    let waited = start.elapsed();
    assert!(waited >= Duration::from_millis(300) && waited < SOON, "{waited:?}");
}

#[test]
fn a_bounded_wait_is_admitted_in_its_time() {
    let store = Store::new();
    let holder = store.holder(&[], "until [ -e \"$TRACE/go\" ]; do sleep 0.02; done");
    let first = holder.ready();
    let waiter = store.holder(&["--wait", "1m"], "true");
    waiter.stderr.until("waiting for");
    std::fs::write(store.file("go"), "").unwrap();
    assert!(waiter.ready().token > first.token);
    assert_eq!(waiter.finish().code(), 0);
}

#[test]
fn run_v_reports_waiting_once() {
    let store = Store::new();
    let holder =
        store.holder(&["--holder", "me"], "until [ -e \"$TRACE/go\" ]; do sleep 0.02; done");
    holder.ready();
    let quiet = Running::start(store.latchwork(&["run", "x", "--", "true"]));
    let waiter = store.holder(&[], "true");
    let line = waiter.stderr.until("waiting for");
    assert!(line.contains("held by me"), "{line}");
    std::fs::write(store.file("go"), "").unwrap();
    assert_eq!(quiet.finish().stderr, "");
    let done = waiter.finish();
    assert!(!done.stderr.contains("held by me"), "{done:?}");
}

#[test]
fn an_interrupted_waiter_leaves_the_queue() {
    let store = Store::new();
    let holder = store.holder(&[], "until [ -e \"$TRACE/go\" ]; do sleep 0.02; done");
    holder.ready();
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let waiter = store.waiter("touch \"$TRACE/ran\"");
        waiter.signal(signal);
        let done = waiter.finish();
        assert_eq!(done.status.signal(), Some(signal.as_raw()), "{done:?}");
    }
    let shown = store.output(&["--json", "show", "x"]).stdout;
    assert!(shown.contains("\"waiters\":[]"), "{shown}");
    std::fs::write(store.file("go"), "").unwrap();
    assert_eq!(holder.finish().code(), 0);
    assert!(exists(&store.file("ran")).is_none());
}

#[test]
fn background_processes_do_not_keep_the_lock() {
    let store = Store::new();
    let script = "sleep 300 >/dev/null 2>&1 & echo up $$ $!";
    let done = store.output(&["run", "x", "--", "sh", "-c", script]);
    assert_eq!(done.code(), 0);
    let words: Vec<i32> =
        done.stdout.split_whitespace().skip(1).map(|w| w.parse().unwrap()).collect();
    assert_eq!(store.output(&["run", "--wait", "0", "x", "--", "true"]).code(), 0);
    assert_eq!(alive(crate::common::pid(words[0])), [words[1]], "runs on, as the help says");
    crate::common::kill(crate::common::pid(words[1]));
}

#[test]
fn leaves_no_process_behind() {
    let store = Store::new();
    let run = store.holder(&[], "until [ -e \"$TRACE/go\" ]; do sleep 0.02; done");
    let ready = run.ready();
    let guardian = run.guardian();
    std::fs::write(store.file("go"), "").unwrap();
    assert_eq!(run.finish().code(), 0);
    assert!(alive(ready.group).is_empty());
    assert_eq!(crate::common::state(guardian), '-', "waited for before latchwork ends");
}

#[test]
fn the_group_cleans_up_under_the_lock_after_a_signal() {
    let store = Store::new();
    let member = "trap 'sleep 1; echo cleaned; exit' TERM; echo member; \
                  while :; do sleep 0.05; done";
    std::fs::write(store.file("member"), member).unwrap();
    let run = store.holder(
        &[],
        "trap 'echo ended; exit 9' TERM; sh \"$TRACE/member\" & while :; do sleep 0.05; done",
    );
    let first = run.ready();
    run.stdout.until("member");
    let waiter = store.waiter("true");
    run.signal(Signal::TERM);
    // It says so if anybody of the first one still runs.
    assert!(waiter.ready().token > first.token);
    let done = run.finish();
    assert_eq!((done.code(), &*done.stdout), (9, "ended\ncleaned\n"), "{done:?}");
}

#[test]
fn a_member_that_never_cleans_up_does_not_keep_the_lock() {
    let store = Store::new();
    std::fs::write(store.file("member"), "trap '' TERM; echo member; exec sleep 300").unwrap();
    let mut run = store.holder(&["--ttl", "2s"], "sh \"$TRACE/member\" & sleep 300; echo x");
    let ready = run.ready();
    run.stdout.until("member");
    let start = Instant::now();
    run.signal(Signal::TERM);
    assert_eq!(run.wait().code(), Some(143));
    assert!(start.elapsed() >= Duration::from_secs(10), "{:?}", start.elapsed());
    assert_eq!(store.output(&["run", "--wait", "0", "x", "--", "true"]).code(), 0);
    assert_eq!(alive(ready.group).len(), 1);
    crate::common::kill_group(ready.group);
}

#[test]
fn an_unread_stderr_blocks_nothing() {
    let store = Store::new();
    let (_read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    rustix::io::ioctl_fionbio(&write, true).unwrap();
    while rustix::io::write(&write, &[b'x'; 4096]).is_ok() {}
    rustix::io::ioctl_fionbio(&write, false).unwrap();
    let mut command = store.latchwork(&["run", "-v", "x", "--", "sh", "-c", "exit 5"]);
    command.stdout(Stdio::null()).stderr(write);
    let mut child = command.spawn().unwrap();
    let ended = eventually("the end", || child.try_wait().unwrap());
    assert_eq!(ended.code(), Some(5));
}

#[test]
fn events_have_fields_for_programs() {
    let store = Store::new();
    let holder =
        store.holder(&["--holder", "me"], "until [ -e \"$TRACE/go\" ]; do sleep 0.02; done");
    holder.ready();
    let args =
        ["--json", "run", "-v", "--holder", "you", "x", "--", "sh", "-c", "echo $LATCHWORK_TOKEN"];
    let waiter = Running::start(store.latchwork(&args));
    let json = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap();
    let waiting = json(&waiter.stderr.until("waiting"));
    assert_eq!((&waiting["event"], &waiting["key"]), (&"waiting".into(), &"x".into()));
    assert_eq!(waiting["holder"], "me");
    std::fs::write(store.file("go"), "").unwrap();
    let acquired = json(&waiter.stderr.until("\"event\":\"acquired\""));
    let released = json(&waiter.stderr.until("\"event\":\"released\""));
    let done = waiter.finish();
    let ended = json(done.stderr.lines().last().unwrap());
    assert_eq!((&ended["event"], &ended["exit_code"]), (&"ended".into(), &0.into()));
    for event in [acquired, released, ended] {
        assert_eq!((&event["key"], &event["holder"]), (&"x".into(), &"you".into()), "{event}");
        assert_eq!(event["token"], done.stdout.trim(), "{event}");
    }
}

/// Without `-v` as well: one document says how it ended.
#[test]
fn json_says_how_a_command_or_a_task_ended() {
    let store = Store::new();
    let last = |words: &[&str], code| {
        let done = store.output(&[&["--json"], words].concat());
        assert_eq!((done.code(), &*done.stdout), (code, ""), "{done:?}");
        assert_eq!(done.stderr.lines().count(), 1, "{done:?}");
        serde_json::from_str::<serde_json::Value>(&done.stderr).unwrap()
    };
    let ended = last(&["run", "x", "--", "sh", "-c", "exit 3"], 3);
    assert_eq!((&ended["event"], &ended["key"]), (&"ended".into(), &"x".into()));
    assert_eq!(ended["exit_code"], 3);
    let once = ["once", "--every", "1d", "report", "--", "true"];
    assert_eq!(last(&once, 0)["event"], "ended");
    let skipped = last(&once, 0);
    assert_eq!((&skipped["event"], &skipped["key"]), (&"done".into(), &"report".into()));
    assert_eq!(last(&["elect", "y", "--", "true"], 0)["exit_code"], 0);
}

/// Several locks are taken in an order of their own: whatever it is, each key stands where its token
/// does, for programs and for people.
#[test]
fn keys_and_tokens_of_several_locks_stand_in_one_order() {
    let store = Store::new();
    // So that the tokens are not the same.
    for _ in 0..3 {
        assert_eq!(store.output(&["run", "b", "--", "true"]).code(), 0);
    }
    let script = "echo \"$LATCHWORK_KEY\"; echo \"$LATCHWORK_TOKEN\"";
    let done = store.output(&["run", "--json", "-v", "b", "a", "--", "sh", "-c", script]);
    let told: Vec<_> = done.stdout.lines().collect();
    assert_eq!(told[..2], ["a", "b"], "{done:?}");
    assert_ne!(told[2], told[3]);
    let events: Vec<serde_json::Value> =
        done.stderr.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for name in ["acquired", "released"] {
        let event = events.iter().find(|event| event["event"] == name).unwrap();
        assert_eq!(event["key"], told[..2].join("\n"), "{event}");
        assert_eq!(event["token"], told[2..].join("\n"), "{event}");
    }
    let done = store.output(&["run", "-v", "b", "a", "--", "sh", "-c", script]);
    let told: Vec<_> = done.stdout.lines().collect();
    let line = format!("acquired \"a\", \"b\", token {}, {}", told[2], told[3]);
    assert!(done.stderr.contains(&line), "{done:?}");
}
