//! `latchwork-bench store`: tables, and nobody's keys but its own.

use std::process::{Command, Output};

use latchwork::{BlockOn, LockManager};
use latchwork_services::{RedisOptions, RedisServer};

/// The measurement of a store in its short form.
fn measured(url: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_latchwork-bench"));
    command.args(["store", url, "3"]).env("LATCHWORK_BENCH_SHORT", "1").output().unwrap()
}

fn connect(url: &str) -> LockManager {
    latchwork::connect(url).block_on().unwrap()
}

fn measures(url: &str) {
    let done = measured(url);
    let tables = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{tables} {}", String::from_utf8_lossy(&done.stderr));
    for row in ["| latchwork |", "3 processes of one task, one key:", "3 processes, each holds 43"]
    {
        assert!(tables.contains(row), "no {row:?} in {tables}");
    }
    let left = connect(url).list("latchwork-bench").block_on().unwrap();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn measures_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    measures(&format!("file://{}", dir.path().join("locks").display()));
}

#[test]
fn measures_a_server() {
    let server = RedisServer::start(&RedisOptions::new()).unwrap();
    measures(&server.url());
}

#[test]
fn keys_of_others_are_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("file://{}", dir.path().join("locks").display());
    let _held = connect(&url).mutex("latchwork-bench:stock").acquire().block_on().unwrap();
    let done = measured(&url);
    let told = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success() && told.contains("latchwork-bench:stock"), "{done:?}");
}
