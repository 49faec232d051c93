//! `latchwork-bench store`: counts, times, a picture, and nobody's keys but its own.

use std::process::{Command, Stdio};

use latchwork::{BlockOn, LockManager};
use latchwork_services::program::{Finished, Running};
use latchwork_services::{RedisOptions, RedisServer};

/// The measurement of a store.
fn start(url: &str, words: &[&str]) -> Running {
    let mut command = Command::new(env!("CARGO_BIN_EXE_latchwork-bench"));
    command.args(["store", "--store", url]).args(words);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Running::start(command)
}

fn output(url: &str, words: &[&str]) -> Finished {
    start(url, words).finish()
}

fn connect(url: &str) -> LockManager {
    latchwork::connect(url).block_on().unwrap()
}

/// A directory of its own, and its address.
fn directory() -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("file://{}", dir.path().join("locks").display());
    (dir, url)
}

/// What a program reads of a workload.
fn number(json: &str, workload: &str, field: &str) -> f64 {
    let value: serde_json::Value = serde_json::from_str(json).unwrap();
    let of = value["workloads"].as_array().unwrap().iter().find(|w| w["name"] == workload);
    let found = &of.unwrap_or_else(|| panic!("no {workload} in {json}"))[field];
    found.as_f64().unwrap_or_else(|| panic!("{field} of {workload} is {found}"))
}

fn measures(url: &str) {
    let folder = tempfile::tempdir().unwrap();
    let svg = folder.path().join("bench.svg");
    let words = ["--json", "--for", "700ms", "--processes", "3", "--svg", svg.to_str().unwrap()];
    let done = output(url, &words);
    assert_eq!(done.code(), 0, "{done:?}");
    for workload in ["free", "free, 64 tasks", "contended", "hand-off"] {
        assert!(number(&done.stdout, workload, "pairs_per_second") > 1.0, "{}", done.stdout);
        let (median, p99) =
            (number(&done.stdout, workload, "median_us"), number(&done.stdout, workload, "p99_us"));
        assert!(median > 0.0 && median <= p99, "{}", done.stdout);
    }
    for workload in ["contended", "hand-off"] {
        assert!(number(&done.stdout, workload, "handovers_per_second") > 1.0, "{}", done.stdout);
        assert_eq!(number(&done.stdout, workload, "overlaps"), 0.0);
        assert_eq!(number(&done.stdout, workload, "lost"), 0.0);
    }
    // A hold takes 43 ms at least.
    assert!(number(&done.stdout, "hand-off", "pairs_per_second") < 1_000.0 / 43.0);
    let picture = std::fs::read_to_string(svg).unwrap();
    assert!(picture.contains("contended: from a release to the next hold"));
    let left = connect(url).list("latchwork-bench").block_on().unwrap();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn measures_a_directory() {
    let (_dir, url) = directory();
    measures(&url);
}

#[test]
fn measures_a_server() {
    let server = RedisServer::start(&RedisOptions::new()).unwrap();
    measures(&server.url());
}

#[test]
fn a_table_for_people() {
    let (_dir, url) = directory();
    let done = output(&url, &["--for", "200ms", "--processes", "2"]);
    assert_eq!(done.code(), 0, "{done:?}");
    for word in ["WORKLOAD", "hand-off", "FAIRNESS", "times of free; free, 64 tasks"] {
        assert!(done.stdout.contains(word), "{word}: {}", done.stdout);
    }
}

#[test]
fn keys_of_others_are_not_touched() {
    let (_dir, url) = directory();
    let _held = connect(&url).mutex("shop:stock").acquire().block_on().unwrap();
    let done = output(&url, &["--for", "200ms", "--namespace", "shop"]);
    assert_eq!(done.code(), 78, "{done:?}");
    assert!(done.stderr.contains("shop:stock"), "{done:?}");
    // Elsewhere on the same store it may.
    let done = output(&url, &["--for", "200ms", "--processes", "2"]);
    assert_eq!(done.code(), 0, "{done:?}");
}

#[test]
fn numbers_that_make_no_sense_are_refused() {
    let (_dir, url) = directory();
    for words in [["--for", "1ms"], ["--for", "1h"], ["--processes", "1"], ["--namespace", ""]] {
        let done = output(&url, &words);
        assert_eq!(done.code(), 64, "{done:?}");
    }
}

/// Somebody takes the lock away from its holders all the time: they overlap, and the bench fails.
#[test]
fn a_broken_lock_is_an_error() {
    let server = RedisServer::start(&RedisOptions::new()).unwrap();
    let mut bench = start(&server.url(), &["--json", "--for", "1500ms", "--processes", "3"]);
    while bench.child.try_wait().unwrap().is_none() {
        server.command(&["DEL", "latchwork-bench:hand-off"]).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let done = bench.finish();
    assert_eq!(done.code(), 70, "{done:?}");
    assert!(number(&done.stdout, "hand-off", "overlaps") > 0.0, "{done:?}");
    assert!(done.stderr.contains("the lock was broken"), "{done:?}");
}
