//! `latchwork once`: a task of several hosts, done once in each period.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::time::{Duration, Instant};

use crate::common::{Finished, Running, SOON, Store};
use latchwork_services::{Data, Persistence, RedisOptions, RedisServer, ServerClock};
use rustix::process::Signal;
use serde_json::Value;

/// A period that ends when nobody tests any more.
const LONG: [&str; 2] = ["--every", "100y"];

fn once(store: &Store, options: &[&str], script: &str) -> Finished {
    started(store, options, script).finish()
}

fn started(store: &Store, options: &[&str], script: &str) -> Running {
    let words = [&["-v", "once"], &LONG[..], options, &["report", "--", "sh", "-c", script]];
    Running::start(store.latchwork(&words.concat()))
}

#[test]
fn three_hosts_try_at_one_time_and_one_runs() {
    let store = Store::new();
    let runs: Vec<_> =
        (0..3).map(|_| started(&store, &[], "sleep 0.3; echo ran >> \"$TRACE/ran\"")).collect();
    for run in runs {
        let done = run.finish();
        assert_eq!(done.code(), 0, "{done:?}");
    }
    let again = once(&store, &[], "echo ran >> \"$TRACE/ran\"");
    assert_eq!(again.code(), 0);
    assert!(again.stderr.contains("next run possible in"), "{again:?}");
    assert_eq!(std::fs::read_to_string(store.file("ran")).unwrap(), "ran\n");
    let strict = once(&store, &["--must-run"], "true");
    assert_eq!(strict.code(), 75, "{strict:?}");
}

/// The words before and after a time of day in a text, without the date, and the time itself.
fn around_time(text: &str) -> (String, String, String) {
    let is_time = |word: &&str| word.len() == 8 && word.bytes().filter(|b| *b == b':').count() == 2;
    let time = text.split([' ', ',']).find(is_time).unwrap_or_else(|| panic!("a time in {text:?}"));
    let (before, after) = text.split_once(time).unwrap();
    // A midnight may have passed.
    let words = before.split(' ').filter(|word| !word.starts_with(|c: char| c.is_ascii_digit()));
    (words.collect::<Vec<_>>().join(" "), time.to_owned(), after.to_owned())
}

/// How a command names its store: files, which are the default of a test, and a Redis server.
fn on_files_and_redis(tell: impl Fn(&Store, &[&str])) {
    tell(&Store::new(), &[]);
    let server = RedisServer::start(&RedisOptions::new()).unwrap();
    tell(&Store::new(), &["--store", &server.url()]);
}

/// `latchwork once` of a task that is done once in a very long time.
fn report(store: &Store, at: &[&str], options: &[&str]) -> Finished {
    let words = [at, &["-v", "once"], &LONG, options, &["report", "--", "echo", "ran"]].concat();
    store.output(&words)
}

fn json(text: &str) -> Value {
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

/// A moment in milliseconds since 1970, as `12:30:14` in UTC.
fn time_of_day(ms: &Value) -> String {
    let seconds = ms.as_u64().unwrap() / 1000 % (24 * 60 * 60);
    format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[test]
fn a_skip_names_the_host_and_time_of_the_run() {
    on_files_and_redis(|store, at| {
        assert_eq!(report(store, at, &["--holder", "web-2"]).stdout, "ran\n");
        let skipped = report(store, at, &["--holder", "web-3"]);
        assert_eq!((skipped.code(), &*skipped.stdout), (0, ""));
        let (before, utc, after) = around_time(skipped.stderr.lines().last().unwrap());
        assert_eq!(before, "latchwork: skipped \"report\": done ");
        assert!(after.starts_with(" UTC by web-2, next run possible in "), "{skipped:?}");
        // The time of the zone that the period is counted in, which is 14 hours ahead.
        let ahead = report(store, at, &["--tz", "Pacific/Kiritimati"]);
        let (_, local, after) = around_time(ahead.stderr.lines().last().unwrap());
        assert!(after.starts_with(" by web-2, next run possible in "), "{ahead:?}");
        let hour = |time: &str| time[..2].parse::<u32>().unwrap();
        assert_eq!((hour(&local), &local[2..]), ((hour(&utc) + 14) % 24, &utc[2..]));
        let told = json(&report(store, &[at, &["--json"]].concat(), &[]).stderr);
        assert_eq!((&told["event"], &told["key"]), (&"done".into(), &"report".into()));
        assert_eq!((&told["by"], time_of_day(&told["at_ms"])), (&"web-2".into(), utc));
        assert!(told["closed_for_ms"].as_u64().is_some(), "{told}");
        let strict = report(store, at, &["--must-run"]);
        assert_eq!(strict.code(), 75, "{strict:?}");
    });
}

#[test]
fn show_ls_and_status_name_the_host_of_a_done_task() {
    on_files_and_redis(|store, at| {
        assert_eq!(report(store, at, &["--holder", "web-2"]).stdout, "ran\n");
        let says = |words: &[&str]| store.output(&[at, words].concat());
        let shown = says(&["show", "report"]);
        let (before, utc, after) = around_time(shown.stdout.lines().next().unwrap());
        assert_eq!(before, "report: done ");
        assert!(after.starts_with(" UTC by web-2, next run possible in "), "{shown:?}");
        let list = says(&["ls"]).stdout;
        let row = list.lines().nth(1).unwrap_or_default();
        assert!(row.contains("(done by web-2)") && row.starts_with("report"), "{list}");
        for words in
            [&["--json", "show", "report"][..], &["--json", "ls"], &["--json", "status", "report"]]
        {
            let shown = json(&says(words).stdout);
            let shown = if shown.is_array() { &shown[0] } else { &shown };
            let by = &shown["closed_by"];
            assert_eq!(
                (&by["text"], time_of_day(&by["closed_at_ms"])),
                (&"web-2".into(), utc.clone())
            );
            assert!(shown["linger_ms"].as_u64().is_some(), "{shown}");
        }
        let status = says(&["status", "report"]);
        assert_eq!((status.code(), &*status.stdout, &*status.stderr), (2, "done\n", ""));
        let status = says(&["-v", "status", "report"]);
        assert_eq!((status.code(), &*status.stdout), (2, "done\n"), "{status:?}");
        let (before, again, after) = around_time(status.stderr.lines().last().unwrap());
        assert_eq!((&*before, again), ("latchwork: report: done ", utc));
        assert!(after.starts_with(" UTC by web-2, next run possible in "), "{status:?}");
        // One that waits for the name is told that nobody holds it.
        let waited = says(&["run", "--wait", "1", "report", "--", "true"]);
        assert_eq!(waited.code(), 75, "{waited:?}");
        // On a busy machine the store was reached late, and less than a second was left.
        let said =
            waited.stderr.split_once("timed out after ").and_then(|it| it.1.split_once(": "));
        assert!(said.is_some_and(|(_, why)| why.starts_with("done by web-2,")), "{waited:?}");
        // Open again, nobody has closed it.
        assert_eq!(says(&["once", "--reset", "report"]).code(), 0);
        assert_eq!(json(&says(&["--json", "show", "report"]).stdout)["closed_by"], Value::Null);
        assert_eq!(says(&["status", "report"]).stdout, "free\n");
    });
}

/// An earlier version closed the key and left no name: that it is done is told, and until when.
#[test]
fn a_task_that_was_closed_without_a_name_is_done() {
    let (store, server) = (Store::new(), RedisServer::start(&RedisOptions::new()).unwrap());
    // The end of the century, with which a period of a hundred years ends.
    let left = 4_102_444_800_000 - latchwork_store::clock::wall_time().as_millis() as u64;
    let set = ["SET", "report", "lw:c:-:", "PX", &left.to_string()];
    server.command(&set).unwrap().ok().unwrap();
    let url = server.url();
    let at = ["--store", &url];
    let skipped = report(&store, &at, &[]);
    assert_eq!((skipped.code(), &*skipped.stdout), (0, ""), "{skipped:?}");
    let says = "skipped \"report\": done, next run possible in ";
    assert!(skipped.stderr.contains(says), "{skipped:?}");
    let told = json(&report(&store, &["--store", &url, "--json"], &[]).stderr);
    assert_eq!(
        (&told["event"], &told["by"], &told["at_ms"]),
        (&"done".into(), &Value::Null, &Value::Null)
    );
    let shown = store.output(&["--store", &url, "show", "report"]).stdout;
    assert!(shown.starts_with("report: done, next run possible in "), "{shown}");
    let list = store.output(&["--store", &url, "ls"]).stdout;
    assert!(list.contains("(done)"), "{list}");
}

/// `run`, `hold` and `elect` of the name wait for the end of a period, which may be far away.
#[test]
fn a_name_that_is_done_says_so_to_other_verbs() {
    on_files_and_redis(|store, at| {
        assert_eq!(report(store, at, &["--holder", "web-2"]).stdout, "ran\n");
        let says = |text: &str| {
            assert!(
                text.contains("done ") && text.contains(" by web-2, next run possible"),
                "{text}"
            );
            assert!(text.contains("once --reset report`"), "{text}");
        };
        for verb in [&["run", "-v"][..], &["elect", "-v"], &["hold", "-v"]] {
            let words =
                [at, verb, &["report"], if verb[0] == "hold" { &[] } else { &["--", "true"] }];
            let waiting = Running::start(store.latchwork(&words.concat()));
            says(&waiting.stderr.until("waiting for"));
        }
        for wait in ["0", "300ms"] {
            let words = [at, &["run", "--wait", wait, "report", "--", "true"]].concat();
            let busy = store.output(&words);
            assert_eq!(busy.code(), 75, "{busy:?}");
            assert!(busy.stderr.contains("by web-2"), "{busy:?}");
            assert!(busy.stderr.contains("once --reset report`"), "{busy:?}");
            assert!(!busy.stderr.contains("may be free"), "{busy:?}");
        }
        let released = store.output(&[at, &["release", "--force", "report"]].concat());
        assert!(released.stdout.starts_with("report: not held, but done"), "{released:?}");
        says(&released.stdout);
    });
}

/// A host with a wrong clock, or another period, is named.
#[test]
fn a_period_mismatch_names_the_closing_holder() {
    on_files_and_redis(|store, at| {
        assert_eq!(report(store, at, &["--holder", "web-2"]).stdout, "ran\n");
        let words = [at, &["once", "--every", "1d", "report", "--", "echo", "ran"]].concat();
        let refused = store.output(&words);
        assert_eq!((refused.code(), &*refused.stdout), (78, ""), "{refused:?}");
        assert!(
            refused.stderr.contains(" (by web-2), but its period (1d in UTC) ends in "),
            "{refused:?}"
        );
        let error = refused.stderr.split(" ends in ").nth(1).unwrap();
        let length = error.split(": ").next().unwrap();
        assert!(length.contains(['h', 'm']), "as people write it: {length}");
    });
}

#[test]
fn a_failure_leaves_the_task_to_others() {
    let store = Store::new();
    assert_eq!(once(&store, &[], "exit 3").code(), 3);
    assert_eq!(once(&store, &[], "kill -9 $$").code(), 137);
    assert_eq!(once(&store, &[], "echo ran").stdout, "ran\n");
    assert_eq!(once(&store, &[], "echo ran").stdout, "");
}

/// A command that cleans up on SIGTERM and exits with 0 has not done its task.
#[test]
fn h114_a_run_that_was_asked_to_end_closes_nothing() {
    let store = Store::new();
    let script = "trap 'exit 0' TERM; echo ready; while :; do sleep 0.02; done";
    let stopped = started(&store, &[], script);
    assert_eq!(stopped.stdout.next().as_deref(), Some("ready"));
    stopped.signal(Signal::TERM);
    let done = stopped.finish();
    assert_eq!(done.code(), 0, "the exit code is the command's: {done:?}");
    assert!(done.stderr.contains("open for another run"), "{done:?}");
    assert_eq!(once(&store, &[], "echo ran").stdout, "ran\n");
    assert_eq!(once(&store, &[], "echo ran").stdout, "");
}

/// `--every 1y` closes a name for a year, and says nothing about the minutes of `--every 1m`.
#[test]
fn h114_a_changed_period_is_a_mismatch() {
    let store = Store::new();
    assert_eq!(once(&store, &[], "echo ran").stdout, "ran\n");
    let daily = store.output(&["once", "--every", "1d", "report", "--", "echo", "ran"]);
    assert_eq!((daily.code(), &*daily.stdout), (78, ""), "{daily:?}");
    assert!(daily.stderr.contains("another period"), "{daily:?}");
}

/// The clock of one host was three years and some hours ahead for one run: its successors refuse, and a reset is the way back.
#[test]
fn h114_a_reset_opens_a_task_that_a_wrong_clock_closed() {
    let (store, clock) = (Store::new(), ServerClock::of_clients().unwrap());
    let words = ["once", "--every", "1d", "report", "--", "echo", "ran"];
    clock.step_forward(Duration::from_secs((1_100 * 24 + 7) * 3600)).unwrap();
    let mut ahead = store.latchwork(&words);
    clock.give_to(&mut ahead);
    assert_eq!(Running::start(ahead).finish().stdout, "ran\n");
    let refused = store.output(&words);
    assert_eq!((refused.code(), &*refused.stdout), (78, ""), "{refused:?}");
    assert!(refused.stderr.contains("check their clocks"), "{refused:?}");
    assert_eq!(store.output(&["release", "--force", "report"]).code(), 0);
    assert_eq!(store.output(&words).code(), 78, "it takes a hold away, and nobody holds it");
    let reset = store.output(&["once", "--reset", "report"]);
    assert_eq!(reset.code(), 0, "{reset:?}");
    assert!(reset.stdout.starts_with("report: was closed for another "), "{reset:?}");
    let again = store.output(&words);
    assert_eq!((again.code(), &*again.stdout), (0, "ran\n"), "{again:?}");
    let done = store.output(&words);
    assert_eq!((done.code(), &*done.stdout), (0, ""), "closed for its own day: {done:?}");
}

/// Nothing is closed, somebody is at it, it is closed, and nothing is closed any more.
#[test]
fn a_reset_reports_its_effect() {
    let store = Store::new();
    let reset = || store.output(&["once", "--reset", "report"]);
    let json = || store.output(&["--json", "once", "--reset", "report"]).stdout;
    let nothing = reset();
    let said = "report: was not closed, nothing to reset\n";
    assert_eq!((nothing.code(), &*nothing.stdout), (0, said), "{nothing:?}");
    let script = "echo ready $LATCHWORK_TOKEN; until [ -e \"$TRACE/go\" ]; do sleep 0.02; done";
    let first = started(&store, &["--holder", "the first"], script);
    let old = first.stdout.next().unwrap();
    let held = reset();
    assert_eq!((held.code(), &*held.stdout), (75, ""), "{held:?}");
    assert!(held.stderr.contains("is being run by the first"), "{held:?}");
    std::fs::write(store.file("go"), "").unwrap();
    assert_eq!(first.finish().code(), 0);
    assert_eq!(once(&store, &[], "echo ran").stdout, "", "the run closed it: it was left alone");
    let opened: serde_json::Value = serde_json::from_str(&json()).unwrap();
    assert_eq!((&opened["key"], &opened["was_closed"]), (&"report".into(), &true.into()));
    assert!(opened["closed_for_ms"].as_u64().is_some_and(|left| left > 1_000), "{opened}");
    assert_eq!(json(), "{\"closed_for_ms\":null,\"key\":\"report\",\"was_closed\":false}\n");
    let token = |line: &str| line.rsplit(' ').next().unwrap().trim().parse::<u64>().unwrap();
    let next = once(&store, &[], "echo ready $LATCHWORK_TOKEN").stdout;
    assert!(token(&next) > token(&old), "{next} after {old}");
}

#[test]
fn a_reset_takes_no_command_and_no_options_of_one() {
    let store = Store::new();
    for words in [
        &["--reset"][..],
        &["--reset", "report", "--", "true"],
        &["--reset", "--every", "1d", "report"],
        &["--reset", "--tz", "UTC", "report"],
        &["--reset", "--must-run", "report"],
        &["--reset", "--wait", "1s", "report"],
        &["report", "--", "true"],
        &["--every", "1d", "report"],
    ] {
        let done = store.output(&[&["once"], words].concat());
        assert_eq!(done.code(), 64, "{words:?}: {done:?}");
        assert!(!done.stderr.is_empty(), "{words:?}");
    }
}

#[test]
fn a_second_host_can_wait_for_the_first_to_fail() {
    let store = Store::new();
    let first =
        started(&store, &[], "echo ready; until [ -e \"$TRACE/go\" ]; do sleep 0.02; done; exit 1");
    assert_eq!(first.stdout.next().as_deref(), Some("ready"));
    let skipped = once(&store, &[], "echo ran");
    assert_eq!((skipped.code(), &*skipped.stdout), (0, ""));
    assert!(skipped.stderr.contains("being done by"), "{skipped:?}");
    let second = started(&store, &["--wait", "5m"], "echo ran");
    second.stderr.until("waiting");
    std::fs::write(store.file("go"), "").unwrap();
    assert_eq!(first.finish().code(), 1);
    let second = second.finish();
    assert_eq!((second.code(), &*second.stdout), (0, "ran\n"), "{second:?}");
}

#[test]
fn a_host_that_is_killed_leaves_the_task_to_others() {
    let store = Store::new();
    let first = started(&store, &[], "echo ready; sleep 300; echo x");
    assert_eq!(first.stdout.next().as_deref(), Some("ready"));
    first.signal(Signal::KILL);
    let start = Instant::now();
    let second = once(&store, &["--wait", "5m"], "echo ran");
    assert_eq!(second.stdout, "ran\n", "{second:?}");
    assert!(start.elapsed() < SOON);
}

#[test]
fn the_next_period_is_open() {
    let store = Store::new();
    let run = || {
        let words = ["once", "--every", "3s", "tick", "--", "sh", "-c", "echo $LATCHWORK_TOKEN"];
        store.output(&words).stdout
    };
    let mut tokens = Vec::new();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(7) {
        tokens.extend(run().lines().map(|line| line.parse::<u64>().unwrap()));
        std::thread::sleep(Duration::from_millis(50));
    }
    // 7 s touch three periods or four.
    assert!((3..=4).contains(&tokens.len()), "{tokens:?}");
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

#[test]
fn a_bad_period_or_zone_is_named() {
    let store = Store::new();
    for (words, named) in [
        (&["--every", "soon"][..], "every"),
        (&["--every", "1d", "--tz", "Europe/Atlantis"], "tz"),
        (&["--every", "1h", "--tz", "Europe/Berlin"], "tz"),
    ] {
        let done = store.output(&[&["once"], words, &["x", "--", "true"]].concat());
        assert_eq!(done.code(), 64, "{words:?}: {done:?}");
        assert!(done.stderr.contains(named), "{done:?}");
    }
}

/// A run on a server, whose command has ended well just after `go`.
fn ends_after(
    store: &Store,
    server: &mut RedisServer,
    ttl: &str,
    go: impl FnOnce(&mut RedisServer),
) -> Running {
    let script = "echo ready; until [ -e \"$TRACE/go\" ]; do sleep 0.02; done";
    let words = [&["once"], &LONG[..], &["--ttl", ttl, "report", "--", "sh", "-c", script]];
    let mut command = store.latchwork(&words.concat());
    command.env("LATCHWORK_STORE", server.url());
    let run = Running::start(command);
    assert_eq!(run.stdout.next().as_deref(), Some("ready"));
    go(server);
    std::fs::write(store.file("go"), "").unwrap();
    run
}

/// The server is away when the command ends, and comes back after 5 s.
fn is_closed_later(
    options: &RedisOptions,
    go: impl FnOnce(&mut RedisServer),
    come: impl FnOnce(&mut RedisServer),
) {
    let (store, mut server) = (Store::new(), RedisServer::start(options).unwrap());
    let mut run = ends_after(&store, &mut server, "30s", go);
    std::thread::sleep(Duration::from_secs(5));
    assert!(run.child.try_wait().unwrap().is_none(), "it waits for the closing");
    come(&mut server);
    let done = run.finish();
    assert_eq!(done.code(), 0, "{done:?}");
    assert!(done.stderr.contains("not closed yet"), "{done:?}");
    let shown = store.output(&["--store", &server.url(), "show", "report"]);
    assert!(shown.stdout.starts_with("report: done "), "{shown:?}");
}

#[test]
fn the_period_is_closed_once_the_server_goes_on() {
    let stop = |server: &mut RedisServer| server.stop().unwrap();
    is_closed_later(&RedisOptions::new(), stop, |server| server.cont().unwrap());
}

#[test]
fn the_period_is_closed_once_the_server_is_back() {
    let options = RedisOptions::new().persistence(Persistence::EveryWrite);
    is_closed_later(&options, |server| server.kill(), |server| server.restart(Data::Kept).unwrap());
}

#[test]
fn an_unclosed_period_is_reported() {
    let mut server = RedisServer::start(&RedisOptions::new()).unwrap();
    let store = Store::new();
    let run = ends_after(&store, &mut server, "2s", |server| server.stop().unwrap());
    let done = run.finish();
    assert_eq!(done.code(), 69, "{done:?}");
    assert!(
        done.stderr.contains("the period was not closed, so another host may run the task again"),
        "{done:?}"
    );
}

#[test]
fn a_period_of_a_server_that_lost_its_data_is_not_closed() {
    let store = Store::new();
    let mut server = RedisServer::start(&RedisOptions::new()).unwrap();
    let run = ends_after(&store, &mut server, "30s", |server| server.kill());
    run.stderr.until("not closed yet");
    server.restart(Data::Empty).unwrap();
    let done = run.finish();
    assert_eq!(done.code(), 69, "{done:?}");
}

#[test]
fn the_help_names_the_exit_code_of_a_quarantine() {
    let help = Store::new().output(&["once", "--help"]).stdout;
    assert!(help.contains("quarantine") && help.contains("75, also without --must-run"), "{help}");
}
