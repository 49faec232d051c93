//! `ls`, `show`, `release --force`, completions, and JSON.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::process::Command;

use crate::common::{Holder, Running, Store};
use serde_json::Value;

fn json(store: &Store, args: &[&str]) -> Value {
    let mut all = vec!["--json"];
    all.extend(args);
    let done = store.output(&all);
    assert_eq!(done.code(), 0, "{done:?}");
    assert_eq!(done.stdout.lines().count(), 1, "{done:?}");
    serde_json::from_str(&done.stdout).unwrap()
}

#[test]
fn shows_holder_waiters_and_token() {
    let store = Store::new();
    assert!(store.output(&["show", "x"]).stdout.starts_with("x: free\n"));
    let holder = store.holder(&["--holder", "me"], "sleep 300; echo x");
    let ready = holder.ready();
    let waiter = store.waiter("true");
    let text = store.output(&["show", "x"]).stdout;
    assert!(text.starts_with("x: held (a mutex)\n  holder   me, "), "{text}");
    assert!(text.contains("\n  waiter   "), "{text}");
    assert!(text.contains(&format!("\n  token    {}\n", ready.token)), "{text}");
    let value = json(&store, &["show", "x"]);
    assert_eq!(value["key"], "x");
    assert_eq!(value["held"], true);
    assert_eq!(value["kind"], "mutex");
    assert_eq!(value["token"], ready.token.to_string());
    assert_eq!(value["holders"][0]["holder"], "me");
    assert_eq!(value["holders"][0]["token"], ready.token.to_string());
    let left = value["holders"][0]["remaining_ms"].as_u64().unwrap();
    assert!(left > 0 && left <= 30_000, "{left}");
    assert_eq!(value["waiters"].as_array().unwrap().len(), 1);
    drop(waiter);
}

#[test]
fn the_holder_is_named_by_default() {
    let store = Store::new();
    let mut command =
        store.latchwork(&["run", "x", "--", "sh", "-c", "echo up; sleep 300; : \x1b[31m"]);
    command.env("USER", "ada");
    let run = Running::start(command);
    run.stdout.until("up");
    // As in cron and in containers.
    let mut command =
        store.latchwork(&["run", "y", "--", env!("CARGO_BIN_EXE_latchwork"), "show", "y"]);
    command.env_remove("USER");
    let user = Running::start(store.script("id -un")).finish().stdout;
    let unset = Running::start(command).finish().stdout;
    assert!(unset.contains(&format!("holder   {}@", user.trim())), "{unset}");
    let value = json(&store, &["show", "x"]);
    let holder = value["holders"][0]["holder"].as_str().unwrap();
    assert!(holder.starts_with("ada@"), "{holder}");
    assert!(holder.contains(&format!("pid {}: sh -c echo up", run.child.id())), "{holder}");
    let text = store.output(&["show", "x"]).stdout;
    assert!(!text.contains('\x1b'), "{text:?}");
    assert!(text.contains("\\u{1b}[31m"), "{text:?}");
}

#[test]
fn ls_lists_locks_in_use() {
    let store = Store::new();
    let done = store.output(&["ls"]);
    assert_eq!((done.code(), &*done.stdout), (0, ""));
    assert_eq!(json(&store, &["ls"]), Value::Array(vec![]));
    let runs: Vec<_> = ["shop/b", "shop/a", "zoo"]
        .map(|name| {
            let script = "echo up; sleep 300; echo x";
            let run = Running::start(store.latchwork(&["run", name, "--", "sh", "-c", script]));
            run.stdout.until("up");
            run
        })
        .into();
    let names = |value: Value| -> Vec<String> {
        let all = value.as_array().unwrap().iter();
        all.map(|one| one["key"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(json(&store, &["ls"])), ["shop/a", "shop/b", "zoo"]);
    assert_eq!(names(json(&store, &["ls", "shop/"])), ["shop/a", "shop/b"]);
    let text = store.output(&["ls"]).stdout;
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert!(lines[0].starts_with("NAME    KIND   HOLDER"), "{text}");
    assert!(lines[3].starts_with("zoo     mutex  "), "{text}");
    drop(runs);
}

#[test]
fn force_moves_the_token_on() {
    let store = Store::new();
    let free = json(&store, &["release", "x", "--force"]);
    assert_eq!(free["evicted"], Value::Array(vec![]));
    let holder = store.holder(&["--holder", "me"], "sleep 300; echo x");
    let ready = holder.ready();
    let done = store.output(&["release", "x", "--force"]);
    assert!(done.stdout.starts_with("x: taken away from me; token "), "{done:?}");
    assert_eq!(json(&store, &["show", "x"])["held"], false);
    let next =
        store.output(&["run", "--wait", "0", "x", "--", "sh", "-c", "echo $LATCHWORK_TOKEN"]);
    let named: u64 = done.stdout.split(' ').nth(6).unwrap().parse().unwrap();
    assert!(named > ready.token);
    assert!(next.stdout.trim().parse::<u64>().unwrap() > named);
}

#[test]
fn a_missing_pipe_reader_is_no_error() {
    let store = Store::new();
    let script = format!("'{}' completions bash | head -c 1", env!("CARGO_BIN_EXE_latchwork"));
    let done = Running::start(store.script(&script)).finish();
    assert_eq!(done.stderr, "");
}

#[test]
fn an_output_that_cannot_be_written_is_an_error() {
    let store = Store::new();
    let holder = store.holder(&[], "sleep 300; echo x");
    holder.ready();
    for args in [
        &["ls"][..],
        &["--json", "ls"],
        &["show", "x"],
        &["doctor"],
        &["init"],
        &["completions", "bash"],
    ] {
        let mut command = store.latchwork(args);
        command.stdout(std::fs::File::options().write(true).open("/dev/full").unwrap());
        let done = command.output().unwrap();
        assert_eq!(done.status.code(), Some(70), "{args:?}: {done:?}");
        assert!(String::from_utf8_lossy(&done.stderr).contains("standard output"), "{done:?}");
    }
    let mut command = store.latchwork(&["--help"]);
    command.stdout(std::fs::File::options().write(true).open("/dev/full").unwrap());
    assert_eq!(command.status().unwrap().code(), Some(70));
}

#[test]
fn completions_name_every_command() {
    let store = Store::new();
    for shell in ["bash", "zsh", "fish"] {
        let done = store.output(&["completions", shell]);
        assert_eq!(done.code(), 0);
        for word in [
            "run",
            "ls",
            "show",
            "release",
            "doctor",
            "init",
            "completions",
            "wait",
            "max-hold",
            "force",
        ] {
            assert!(done.stdout.contains(word), "{shell} without {word}");
        }
    }
    let file = store.file("latchwork.bash");
    std::fs::write(&file, store.output(&["completions", "bash"]).stdout).unwrap();
    let script = "source \"$1\"; COMP_WORDS=(latchwork r); COMP_CWORD=1; \
                  _latchwork latchwork r latchwork; echo \"${COMPREPLY[@]}\"";
    let mut command = Command::new("bash");
    command
        .args(["--norc", "-c", script, "bash"])
        .arg(&file)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    assert_eq!(Running::start(command).finish().stdout, "run release resize\n");
}

#[test]
fn the_default_store_belongs_to_the_user() {
    let store = Store::new();
    let home = store.file("home");
    std::fs::create_dir(&home).unwrap();
    let mut command = store.latchwork(&["run", "x", "--", "sh", "-c", "echo $LATCHWORK_STORE"]);
    command.env_remove("LATCHWORK_STORE").env_remove("XDG_STATE_HOME").env("HOME", &home);
    let done = Running::start(command).finish();
    assert_eq!(done.stdout, format!("file://{}/.local/state/latchwork\n", home.display()));
    assert!(home.join(".local/state/latchwork").is_dir());
}
