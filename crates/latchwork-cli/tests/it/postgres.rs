//! The command on PostgreSQL: a table that `init` makes, and what is seen of it.

#![allow(clippy::disallowed_methods, reason = "tests")]

use crate::common::{Holder, Store};
use crate::doctor::{at, explains_its_findings};
use latchwork_services::{PostgresOptions, PostgresServer};
use serde_json::Value;

#[test]
fn init_makes_what_run_needs_and_doctor_says_so() {
    let server = PostgresServer::start_with(&PostgresOptions::new().setting("fsync=on")).unwrap();
    let url = server.url();
    let early = at(&url, &["run", "x", "--", "true"]);
    assert_ne!(early.code(), 0);
    let step = format!("run `latchwork --store {url} init` with this address, once");
    assert!(early.stderr.contains(&step), "{early:?}");
    let unfit = at(&url, &["doctor"]);
    assert!(unfit.code() != 0 && unfit.stdout.contains("there is no table"), "{unfit:?}");
    assert_eq!(at(&url, &["init"]).code(), 0);
    assert_eq!(at(&url, &["run", "x", "--", "true"]).code(), 0);
    let fit = at(&url, &["--json", "doctor"]);
    assert_eq!(fit.code(), 0, "{fit:?}");
    let report: Value = serde_json::from_str(&fit.stdout).unwrap();
    explains_its_findings(&report);
}

#[test]
fn a_lock_is_listed_shown_and_taken_away() {
    let (store, server) = (Store::new(), PostgresServer::start().unwrap());
    let url = server.url();
    assert_eq!(at(&url, &["init"]).code(), 0);
    let holder = store.holder_with(&["--ttl", "3s"], "sleep 300", |command| {
        command.env("LATCHWORK_STORE", &url);
    });
    holder.ready();
    let listed = at(&url, &["ls"]);
    assert!(
        listed.stdout.lines().count() == 2 && listed.stdout.contains("sleep 300"),
        "{listed:?}"
    );
    let name = listed.stdout.lines().nth(1).and_then(|line| line.split(' ').next()).unwrap();
    assert!(at(&url, &["show", name]).stdout.contains("held (a mutex)"));
    assert_eq!(at(&url, &["release", "--force", name]).code(), 0);
    let done = holder.finish();
    assert_eq!(done.code(), 73, "{done:?}");
    assert!(done.stderr.contains("lost"), "{done:?}");
    assert!(at(&url, &["show", name]).stdout.contains("free"));
}
