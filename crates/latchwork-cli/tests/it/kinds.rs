//! `latchwork run` with readers, writers, permits and several names.

#![allow(clippy::disallowed_methods, reason = "tests")]

use crate::common::{Running, Store};

/// A run that says `ready` and ends when a file is there.
fn holding(store: &Store, options: &[&str], names: &[&str]) -> Running {
    let script = "echo ready; until [ -e \"$TRACE/go\" ]; do sleep 0.02; done";
    let words = [&["run"], options, names, &["--", "sh", "-c", script]].concat();
    let run = Running::start(store.latchwork(&words));
    assert_eq!(run.stdout.next().as_deref(), Some("ready"));
    run
}

/// Whether a run with these words is admitted now.
#[track_caller]
fn is_admitted(store: &Store, words: &[&str]) -> bool {
    let done = store.output(&[&["run", "--wait", "0"], words, &["--", "true"]].concat());
    match done.code() {
        0 => true,
        75 => false,
        code => panic!("exit {code}: {done:?}"),
    }
}

fn let_go(store: &Store, runs: impl IntoIterator<Item = Running>) {
    std::fs::write(store.file("go"), "").unwrap();
    for run in runs {
        assert_eq!(run.finish().code(), 0);
    }
}

#[test]
fn readers_run_together_and_a_writer_alone() {
    let store = Store::new();
    let readers = [holding(&store, &["--read"], &["x"]), holding(&store, &["--read"], &["x"])];
    assert!(!is_admitted(&store, &["--write", "x"]));
    assert!(is_admitted(&store, &["--read", "x"]));
    let_go(&store, readers);
    assert!(is_admitted(&store, &["--write", "x"]));
}

#[test]
fn as_many_commands_run_as_permits() {
    let store = Store::new();
    let runs = [
        holding(&store, &["--permits", "2/3"], &["x"]),
        holding(&store, &["--permits", "1/3"], &["x"]),
    ];
    assert!(!is_admitted(&store, &["--permits", "1/3", "x"]));
    let other = store.output(&["run", "--wait", "0", "--permits", "1/4", "x", "--", "true"]);
    assert_eq!(other.code(), 78, "another limit: {other:?}");
    let_go(&store, runs);
    assert!(is_admitted(&store, &["--permits", "3/3", "x"]));
}

/// A deployment from 3 permits to 5 and back: no command is refused, and none is ended.
#[test]
fn the_number_of_permits_changes_while_commands_run() {
    let store = Store::new();
    let mine = |permits| ["--permits", permits, "--resize", "to-mine", "x"];
    let old = holding(&store, &mine("3/3")[..4], &["x"]);
    assert!(!is_admitted(&store, &mine("1/3")));
    let new = holding(&store, &mine("2/5")[..4], &["x"]);
    assert!(!is_admitted(&store, &mine("1/5")));
    assert!(!is_admitted(&store, &["--permits", "1/9", "--resize", "follow", "x"]));
    let other = store.output(&["run", "--wait", "0", "--permits", "1/3", "x", "--", "true"]);
    assert_eq!(other.code(), 78, "{other:?}");
    assert!(other.stderr.contains("latchwork resize"), "{other:?}");
    let raised = store.output(&["resize", "x", "6"]);
    assert_eq!(raised.code(), 0, "{raised:?}");
    assert_eq!(raised.stdout, "x: the limit was changed from 5 to 6; 5 permits are held\n");
    assert!(is_admitted(&store, &["--permits", "1/9", "--resize", "follow", "x"]));
    let lowered = store.output(&["--json", "resize", "x", "2"]);
    assert_eq!(lowered.stdout, "{\"from\":6,\"held\":5,\"key\":\"x\",\"to\":2}\n", "{lowered:?}");
    assert!(!is_admitted(&store, &["--permits", "1/9", "--resize", "follow", "x"]));
    let_go(&store, [old, new]);
    let unused = store.output(&["resize", "x", "2"]);
    assert_eq!((unused.code(), unused.stdout.contains("not in use")), (0, true), "{unused:?}");
}

#[test]
fn run_with_several_names_takes_all_or_none() {
    let store = Store::new();
    let script = "echo \"$LATCHWORK_KEY\"; echo \"$LATCHWORK_TOKEN\"";
    let done = store.output(&["run", "b", "a", "--", "sh", "-c", script]);
    let lines: Vec<_> = done.stdout.lines().collect();
    assert_eq!(lines[..2], ["a", "b"], "{done:?}");
    for token in &lines[2..] {
        token.parse::<u64>().unwrap();
    }
    let held = holding(&store, &[], &["b"]);
    assert!(!is_admitted(&store, &["a", "b", "c"]));
    for name in ["a", "c"] {
        assert!(is_admitted(&store, &[name]), "{name} was left locked");
    }
    let_go(&store, [held]);
    assert!(is_admitted(&store, &["a", "b", "c"]));
    let twice = store.output(&["run", "a", "a", "--", "true"]);
    assert_eq!(twice.code(), 64, "{twice:?}");
}

#[test]
fn the_loss_of_one_of_several_ends_the_command() {
    let store = Store::new();
    let run = holding(&store, &["--ttl", "2s"], &["a", "b"]);
    assert_eq!(store.output(&["release", "b", "--force"]).code(), 0);
    let done = run.finish();
    assert_eq!(done.code(), 73, "{done:?}");
    assert!(is_admitted(&store, &["a", "b"]));
}

#[test]
fn modes_that_contradict_each_other_are_a_usage_error() {
    let store = Store::new();
    for words in
        [&["--read", "--write"][..], &["--read", "--permits", "1/2"], &["--permits", "3/2"]]
    {
        let done = store.output(&[&["run"], words, &["x", "--", "true"]].concat());
        assert_eq!(done.code(), 64, "{words:?}: {done:?}");
    }
}

/// A reader is not kept out by a reader, so the one to blame is the holder of the other lock.
#[test]
fn a_timeout_names_holder_key_store_and_next_step() {
    let store = Store::new();
    let hold = |holder: &str, mode: &str, name: &str| {
        let words =
            ["run", "--holder", holder, mode, name, "--", "sh", "-c", "echo ready; exec sleep 300"];
        let held = Running::start(store.latchwork(&words));
        assert_eq!(held.stdout.next().as_deref(), Some("ready"));
        held
    };
    let _reader = hold("the reader", "--read", "a");
    let _writer = hold("the writer", "--write", "b");
    let done = store.output(&["run", "--wait", "0", "--read", "a", "b", "--", "true"]);
    assert_eq!(done.code(), 75, "{done:?}");
    assert!(!done.stderr.contains("the reader"), "{done:?}");
    for part in ["held by the writer", "key \"b\"", "store ", "`latchwork show b`"] {
        assert!(done.stderr.contains(part), "{part}: {done:?}");
    }
    let done = store.output(&["run", "--wait", "0", "--write", "a", "--", "true"]);
    assert!(done.stderr.contains("held by the reader"), "{done:?}");
}
