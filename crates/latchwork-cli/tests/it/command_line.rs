//! The command line as people type it.

use std::time::{Duration, Instant};

use latchwork_services::{RedisOptions, RedisServer};
use latchwork_store::testing::stalls;

use crate::common::{Holder, Running, SOON, Store};

#[test]
fn a_command_after_one_name_needs_no_separator() {
    let store = Store::new();
    for args in [
        &["run", "x", "echo", "hi"][..],
        &["run", "--wait", "5", "x", "echo", "hi"],
        &["run", "x", "--", "echo", "hi"],
        &["run", "x", "-c", "true && echo hi"],
        &["elect", "x", "echo", "hi"],
        &["once", "--every", "1s", "--force", "y", "echo", "hi"],
    ] {
        let done = store.output(args);
        assert_eq!((done.code(), &*done.stdout, &*done.stderr), (0, "hi\n", ""), "{args:?}");
    }
}

/// What clap advises for a word that it has taken for an option leads to the lock.
#[test]
fn a_name_with_a_leading_dash_works_in_every_verb() {
    let store = Store::new();
    let script = format!(
        "echo $LATCHWORK_KEY; for verb in show status ls; do '{}' $verb -- -foo; done",
        env!("CARGO_BIN_EXE_latchwork")
    );
    for words in [
        &["run", "--", "-foo", "--", "sh", "-c", &script][..],
        &["run", "--", "-foo", "sh", "-c", &script],
        &["lock", "-n", "-c", &script, "--", "-foo"],
        &["once", "--every", "1d", "--", "-foo", "--", "sh", "-c", &script],
        &["elect", "--", "-foo", "--", "sh", "-c", &script],
    ] {
        let done = store.output(words);
        let said: Vec<_> = done.stdout.lines().collect();
        assert_eq!((done.code(), said[0]), (0, "-foo"), "{words:?}: {done:?}");
        assert!(said[1].starts_with("-foo: held") && said.contains(&"held"), "{done:?}");
        assert!(said.last().unwrap().starts_with("-foo"), "{done:?}");
        let opened = store.output(&["once", "--reset", "--", "-foo"]);
        assert_eq!(opened.stdout.contains("is open now"), words[0] == "once", "{opened:?}");
    }
    let observer = store.latchwork(&["--json", "elect", "--observe", "--", "-foo"]);
    let leader = Running::start(observer).stdout.next().unwrap();
    assert!(leader.starts_with("{\"candidate\":null,\"key\":\"-foo\""), "{leader}");
    let script = format!(
        "held=$('{0}' hold -- -foo) && eval \"$held\" || exit; '{0}' unlock -- -foo; '{0}' status -- -foo",
        env!("CARGO_BIN_EXE_latchwork")
    );
    let held = Running::start(store.script(&script)).finish();
    assert_eq!((held.code(), &*held.stdout), (1, "free\n"), "{held:?}");
}

/// A name of which one letter is no option: the tip is for the name, and what it says works.
#[test]
fn a_tip_for_a_name_with_a_leading_dash_has_the_whole_name() {
    let store = Store::new();
    for words in [
        &["run", "-nightly", "--", "true"][..],
        &["run", "-w", "5", "-nightly", "true"],
        &["once", "--every", "1d", "-nightly", "--", "true"],
        &["hold", "-nightly"],
        &["show", "-nightly"],
        &["release", "--force", "-nightly"],
    ] {
        let refused = store.output(words);
        assert_eq!(refused.code(), 64, "{words:?}");
        for said in ["unexpected argument '-nightly'", "use '-- -nightly'"] {
            assert!(refused.stderr.contains(said), "{words:?}: {refused:?}");
        }
    }
    // A word behind the separator is none of it, and a letter alone stays one.
    let refused = store.output(&["run", "-y", "x", "--", "-my-job"]);
    assert!(refused.stderr.contains("unexpected argument '-y'"), "{refused:?}");
}

/// An installed command comes without the repository.
#[test]
fn help_prints_verbs_and_pages() {
    let store = Store::new();
    let help = |words: &[&str]| store.output(&[&["help"], words].concat()).stdout;
    assert_eq!(help(&["run"]), store.output(&["run", "--help"]).stdout);
    assert_eq!(help(&[]), store.output(&["--help"]).stdout);
    assert!(help(&["postgres"]).starts_with("# Locks on PostgreSQL\n"));
    let codes = help(&["exit-codes"]);
    assert!(codes.starts_with("## Exit codes\n") && !codes.contains("## systemd"), "{codes}");
    let listed = help(&["help"]);
    let (_, pages) = listed.split_once("Pages:\n").unwrap();
    let pages = pages.split("\n\n").next().unwrap();
    for page in pages.split_whitespace() {
        assert!(help(&[page]).starts_with('#'), "{page}");
    }
    let wrong = store.output(&["help", "nothing-such"]);
    let all = wrong.stderr.split("the pages are ").nth(1).unwrap_or_default();
    assert_eq!(all.split(", ").count(), pages.split_whitespace().count(), "{wrong:?}");
}

/// The letters of `flock`.
#[test]
fn letters_of_flock_bound_the_wait() {
    let store = Store::new();
    let holder = store.holder(&[], "sleep 300; echo x");
    holder.ready();
    for options in [&["-n"][..], &["-w", "0.2"], &["-w0.2"], &["-nE", "75"]] {
        let done = store.output(&[&["run"], options, &["x", "--", "true"]].concat());
        assert_eq!(done.code(), 75, "{options:?}: {done:?}");
    }
}

/// Behind a `--` is the command, whatever the words before it look like.
#[test]
fn names_that_look_like_a_command_are_warned_about() {
    let store = Store::new();
    let done = store.output(&["run", "x", "ls", "-v", "--", "echo", "hi"]);
    assert_eq!((done.code(), &*done.stdout), (0, "hi\n"), "{done:?}");
    assert!(
        done.stderr
            .contains("\"ls\" is read as the name of a second lock, and \"echo\" as the command"),
        "{done:?}"
    );
    let done = store.output(&["run", "x", "orders-of-nobody", "--", "echo", "hi"]);
    assert_eq!((&*done.stdout, &*done.stderr), ("hi\n", ""));
    let done = store.output(&["run", "-c", "echo hi", "x", "y"]);
    assert_eq!((&*done.stdout, &*done.stderr), ("hi\n", ""), "two names and a text");
    let done = store.output(&["run", "hold"]);
    assert_eq!((done.code(), &*done.stdout), (64, ""), "nothing to evaluate");
}

#[test]
fn a_missing_command_is_explained_with_the_usage() {
    let store = Store::new();
    for args in [&["run", "x"][..], &["once", "--every", "1d", "x"], &["elect", "x"]] {
        let done = store.output(args);
        assert_eq!(done.code(), 64, "{done:?}");
        assert!(done.stderr.contains("no command to run"), "{done:?}");
        assert!(done.stderr.contains(&format!("latchwork {}", args[0])), "{done:?}");
    }
}

#[test]
fn errors_of_the_command_line_follow_json() {
    let store = Store::new();
    for args in [
        &["--json", "run", "x"][..],
        &["--json", "run", "--wait", "soon", "x", "--", "true"],
        &["ls", "--json", "--frobnicate"],
    ] {
        let done = store.output(args);
        assert_eq!((done.code(), done.stderr.lines().count()), (64, 1), "{done:?}");
        assert!(done.stderr.starts_with("{\"error\":{\"kind\":\"Usage\""), "{done:?}");
    }
    // That of the command is the command's.
    let done = store.output(&["run", "--wait", "soon", "x", "--", "echo", "--json"]);
    assert!(done.stderr.starts_with("error:"), "{done:?}");
}

#[test]
fn a_lock_that_is_not_free_exits_as_asked() {
    let store = Store::new();
    let holder = store.holder(&[], "sleep 300; echo x");
    holder.ready();
    for (options, code) in [(&["-E", "0"][..], 0), (&["--conflict-exit-code=9"], 9), (&[], 75)] {
        let args = [&["run", "--wait", "0"][..], options, &["x", "--", "true"]].concat();
        assert_eq!(store.output(&args).code(), code);
    }
    assert_eq!(store.output(&["run", "-E", "256", "x", "--", "true"]).code(), 64);
}

#[test]
fn the_environment_gives_wait_and_ttl() {
    let store = Store::new();
    let holder = store.holder(&[], "sleep 300; echo x");
    holder.ready();
    let with = |name: &str, value: &str, args: &[&str]| {
        let mut command = store.latchwork(args);
        command.env(name, value);
        Running::start(command).finish()
    };
    let busy = ["run", "x", "--", "true"];
    assert_eq!(with("LATCHWORK_WAIT", "0", &busy).code(), 75);
    assert_eq!(with("LATCHWORK_WAIT", "0.1", &busy).code(), 75);
    let option = ["run", "--wait", "0", "x", "--", "true"];
    assert_eq!(with("LATCHWORK_WAIT", "1h", &option).code(), 75, "the option counts");
    let refused = with("LATCHWORK_WAIT", "soon", &busy);
    assert_eq!(refused.code(), 64, "{refused:?}");
    assert!(refused.stderr.contains("LATCHWORK_WAIT=soon"), "{refused:?}");
    let binary = env!("CARGO_BIN_EXE_latchwork");
    let free = ["run", "y", "--", binary, "--json", "show", "y"];
    let left = |done: crate::common::Finished| {
        let text = done.stdout.split("\"remaining_ms\":").nth(1).unwrap_or_default().to_owned();
        text.split(',').next().unwrap().trim_end_matches(['}', ']', '\n']).parse::<u64>().unwrap()
    };
    assert!(left(with("LATCHWORK_TTL", "5", &free)) <= 5_000);
    assert!(left(with("LATCHWORK_TTL", "", &free)) > 5_000, "an empty one is not set");
    assert_eq!(with("LATCHWORK_TTL", "10ms", &free).code(), 64);
}

#[test]
fn status_tells_by_its_exit_code() {
    let store = Store::new();
    let holder = store.holder(&[], "sleep 300; echo x");
    holder.ready();
    assert_eq!(store.output(&["once", "--every", "1d", "report", "--", "true"]).code(), 0);
    for (name, word, code) in [("x", "held", 0), ("y", "free", 1), ("report", "done", 2)] {
        let done = store.output(&["status", name]);
        assert_eq!((done.code(), &*done.stdout), (code, &*format!("{word}\n")));
        let done = store.output(&["--quiet", "status", name]);
        assert_eq!((done.code(), &*done.stdout, &*done.stderr), (code, "", ""));
        let done = store.output(&["--json", "status", name]);
        let told: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
        assert_eq!((&told["key"], &told["status"]), (&name.into(), &word.into()));
        assert_eq!(
            (told["linger_ms"].is_null(), told["closed_by"].is_null()),
            (code < 2, code < 2)
        );
    }
}

#[test]
fn several_names_are_shown_and_released() {
    let store = Store::new();
    let holder = store.holder(&[], "sleep 300; echo x");
    holder.ready();
    let shown = store.output(&["show", "x", "y"]);
    assert_eq!(shown.code(), 0, "{shown:?}");
    assert!(
        shown.stdout.starts_with("x: held") && shown.stdout.contains("\ny: free\n"),
        "{shown:?}"
    );
    let shown = store.output(&["--json", "show", "x", "y"]);
    assert!(shown.stdout.starts_with("[{"), "{shown:?}");
    let released = store.output(&["release", "--force", "x", "y"]);
    assert_eq!(released.stdout.lines().count(), 2, "{released:?}");
    assert_eq!(holder.finish().code(), 73);
}

#[test]
fn a_namespace_is_a_part_of_the_name() {
    let store = Store::new();
    let binary = env!("CARGO_BIN_EXE_latchwork");
    let args = ["--namespace", "shop", "run", "x", "--", binary, "ls"];
    let done = store.output(&args);
    assert!(done.stdout.contains("shop:x"), "{done:?}");
    let args = ["--namespace", "shop", "run", "x", "--", binary, "status", "shop:x"];
    assert_eq!(store.output(&args).stdout, "held\n");
    let refused = store.output(&["--namespace", "a:b", "status", "x"]);
    assert_eq!(refused.code(), 64, "{refused:?}");
}

/// A task that was done runs again, one that is running does not.
#[test]
fn once_force_runs_a_done_task() {
    let store = Store::new();
    let once = |options: &[&str]| {
        let args = [&["once", "--every", "1d"][..], options, &["report", "--", "echo", "ran"]];
        store.output(&args.concat())
    };
    assert_eq!(once(&[]).stdout, "ran\n");
    assert_eq!(once(&[]).stdout, "");
    assert_eq!(once(&["--force"]).stdout, "ran\n");
    assert_eq!(once(&[]).stdout, "", "it was closed again");
    let running = Running::start(store.latchwork(&[
        "once",
        "--every",
        "1d",
        "--force",
        "report",
        "--",
        "sh",
        "-c",
        "echo up; sleep 300; echo",
    ]));
    running.stdout.until("up");
    let skipped = once(&["--force", "--must-run"]);
    assert_eq!((skipped.code(), &*skipped.stdout), (75, ""));
}

#[test]
fn a_wait_covers_the_connection() {
    let store = Store::new();
    let mut server = RedisServer::start(&RedisOptions::new()).unwrap();
    let url = server.url();
    server.kill();
    let start = Instant::now();
    let done = store.output(&["--store", &url, "run", "--wait", "500ms", "x", "--", "true"]);
    assert_eq!(done.code(), 69, "{done:?}");
    assert!(start.elapsed() >= Duration::from_millis(500), "{:?}", start.elapsed());
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    server.restart(latchwork_services::Data::Kept).unwrap();
    server.stop().unwrap();
    let start = Instant::now();
    let done = store.output(&["--store", &url, "run", "--wait", "4s", "x", "--", "true"]);
    assert_eq!(done.code(), 69, "{done:?}");
    let took = start.elapsed();
    assert!(
        took >= Duration::from_secs(4)
            && took < stalls::widened(Duration::from_millis(5_500), took),
        "{took:?}"
    );
    server.kill();
    let waiting = Running::start(
        store.latchwork(&["-v", "--store", &url, "run", "--wait", "1m", "x", "--", "echo", "ran"]),
    );
    waiting.stderr.until("waiting for a connection");
    server.restart(latchwork_services::Data::Kept).unwrap();
    let done = waiting.finish();
    assert_eq!((done.code(), &*done.stdout), (0, "ran\n"));
}

/// The time is that at which the command had to be asked, not the limit itself.
#[test]
fn the_end_by_max_hold_says_when_it_came() {
    let store = Store::new();
    let args = ["run", "--max-hold", "3s", "x", "--", "sleep", "300"];
    let done = store.output(&args);
    assert_eq!(done.code(), 73, "{done:?}");
    assert!(done.stderr.contains("SIGTERM was sent after 2s"), "{done:?}");
}

#[test]
fn failed_renewals_are_reported_with_the_time_left() {
    let store = Store::new();
    let mut server = RedisServer::start(&RedisOptions::new()).unwrap();
    let url = server.url();
    let script = "echo up; sleep 300; echo";
    let run =
        Running::start(store.latchwork(&[
            "-v", "--store", &url, "run", "--ttl", "6s", "x", "--", "sh", "-c", script,
        ]));
    run.stdout.until("up");
    server.stop().unwrap();
    let line = run.stderr.until("cannot renew \"x\"");
    assert!(line.contains("the lock is held for"), "{line}");
    server.cont().unwrap();
    run.stderr.until("renewed again");
}

#[test]
fn ls_watch_repeats_the_list() {
    let store = Store::new();
    let holder = store.holder(&[], "sleep 300; echo x");
    holder.ready();
    let watch = Running::start(store.latchwork(&["ls", "--watch=100ms"]));
    for _ in 0..3 {
        watch.stdout.until("1 locks");
        watch.stdout.until("NAME");
    }
    drop(holder);
    watch.stdout.until("0 locks");
    assert_eq!(store.output(&["ls", "--watch=1ms"]).code(), 64);
}

#[test]
fn a_missing_directory_is_reported_once() {
    let store = Store::new();
    let watch = Running::start(store.latchwork(&["ls", "--watch=100ms"]));
    for _ in 0..3 {
        watch.stdout.until("0 locks");
    }
    let holder = store.holder(&[], "sleep 300; echo x");
    holder.ready();
    watch.stdout.until("1 locks");
    drop(holder);
    watch.signal(rustix::process::Signal::INT);
    let told = watch.finish().stderr;
    assert_eq!(told.matches("does not exist").count(), 1, "{told}");
}

/// For locks that move from another store: the resource has seen the tokens of that one.
#[test]
fn a_token_floor_lifts_all_tokens() {
    let store = Store::new();
    let floor = "4000000000000000000";
    let run = |args: &[&str]| {
        let words = ["x", "--", "sh", "-c", "echo $LATCHWORK_TOKEN"];
        store.output(&[args, &words].concat())
    };
    let token = |done: &crate::common::Finished| done.stdout.trim().parse::<u64>().unwrap();
    assert!(token(&run(&["run"])) < floor.parse().unwrap());
    let lifted = token(&run(&["--token-floor", floor, "run"]));
    assert!(lifted > floor.parse().unwrap(), "{lifted}");
    let mut command = store.latchwork(&["run", "x", "--", "sh", "-c", "echo $LATCHWORK_TOKEN"]);
    command.env("LATCHWORK_TOKEN_FLOOR", floor);
    assert!(token(&Running::start(command).finish()) > lifted);
    let inner = ["run", "--inherit", "x", "--", "echo", "in"];
    let binary = env!("CARGO_BIN_EXE_latchwork");
    let mut command = store.latchwork(&[&["run", "x", "--", binary][..], &inner].concat());
    command.env("LATCHWORK_TOKEN_FLOOR", floor);
    assert_eq!(Running::start(command).finish().stdout, "in\n", "the same token inside");
    for wrong in ["many", "-1", "99999999999999999999"] {
        let done = run(&["--token-floor", wrong, "run"]);
        assert_eq!(done.code(), 64, "{done:?}");
    }
    let done = run(&["--token-floor", "9223372036854775807", "run"]);
    assert_eq!(done.code(), 64, "{done:?}");
    assert!(done.stderr.contains("token_floor"), "{done:?}");
}
