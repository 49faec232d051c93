//! What the server reads for a statement of many claims, as its plans say.

use std::fs;

use futures_util::future::join_all;

use crate::common::*;
use latchwork_services::{PostgresOptions, PostgresServer};
use latchwork_store::{Attempt, Backend, Linger, Released, Renewal};

const CLAIMS: usize = 512;

/// A server that logs the plan of each statement, and how many rows each part of it has read.
fn explaining() -> PostgresServer {
    let mut options = PostgresOptions::new().setting("shared_preload_libraries=auto_explain");
    for setting in ["log_min_duration=0", "log_analyze=on", "log_timing=off"] {
        options = options.setting(format!("auto_explain.{setting}"));
    }
    server_with(&options, "")
}

/// The number behind a word of a line.
fn after(line: &str, word: &str) -> Option<usize> {
    let rest = line.split_once(word)?.1;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// The most rows that one part of a plan has read or thrown away, and that part. The plan says them for one of its loops.
fn most(log: &str) -> (usize, String) {
    let (mut most, mut of, mut part, mut loops) = (0, String::new(), "", 1);
    for line in log.lines() {
        if let Some(count) = after(line, " loops=") {
            (part, loops) = (line, count);
        }
        for words in ["(actual rows=", "Rows Removed by Join Filter: ", "Rows Removed by Filter: "]
        {
            if let Some(rows) = after(line, words)
                && rows * loops >= most
            {
                (most, of) = (rows * loops, format!("{part}\n{line}"));
            }
        }
    }
    (most, of)
}

/// The server keeps the plan that it has made for a table of another size: with no row, with one, or with many.
#[test]
fn h190_a_statement_of_many_reads_each_row_once() {
    for rows in [0, 1, 10_000] {
        let server = explaining();
        server
            .psql(&format!(
                "INSERT INTO latchwork (k, name, token, ends) \
                 SELECT n::text::bytea, n::text::bytea, 1, 'epoch' FROM generate_series(1, {rows}) n"
            ))
            .unwrap();
        server.psql("VACUUM ANALYZE latchwork").unwrap();
        let log = run(use_many(&server));
        for statement in ["Takes free keys", "Starts the ttl", "Ends claims"] {
            assert!(log.contains(statement), "{statement} is not in the log");
        }
        let (read, part) = most(&log);
        assert!((1..=CLAIMS).contains(&read), "planned with {rows} rows: {read} rows: {part}");
    }
}

/// What the server logs while many keys are taken, renewed and freed.
async fn use_many(server: &PostgresServer) -> String {
    let bare = bare(&server.url()).await;
    let first = claim("first");
    bare.granted(&first).await;
    assert!(bare.held(&first).await);
    let claims: Vec<_> = (0..CLAIMS).map(|n| claim(&format!("k{n}"))).collect();
    let log = || fs::read_to_string(server.folder().join("log")).unwrap();
    let from = log().len();
    // The first use of a key makes its row; the second one finds it.
    for _ in 0..2 {
        let tries = join_all(claims.iter().map(|claim| bare.try_acquire(claim))).await;
        assert!(tries.iter().all(|it| matches!(it, Ok(Attempt::Granted(_)))));
        let renewed = bare.renew_all(&claims).await;
        assert!(renewed.iter().all(|it| matches!(it, Ok(Renewal::Held { .. }))));
        let ends = claims.iter().map(|claim| bare.release(claim, Linger::None));
        let ended = join_all(ends).await;
        assert!(ended.iter().all(|it| matches!(it, Ok(Released::Yes))));
    }
    log().split_off(from)
}

/// How long each call of the function that waits has taken, in milliseconds.
fn tries(log: &str) -> Vec<f64> {
    let calls =
        log.lines().filter(|line| line.contains("execute") && line.contains("latchwork_stand"));
    calls
        .map(|line| {
            line.split_once("duration: ").unwrap().1.split(' ').next().unwrap().parse().unwrap()
        })
        .collect()
}

/// A session plans each statement of a function when it runs it first, and that takes longer than to run it. If many
/// processes begin to wait for one key at once, its holder's release would wait for all of that.
#[test]
fn h191_a_first_try_is_planned_before_it_locks_the_row() {
    let options = PostgresOptions::new().setting("log_min_duration_statement=0");
    let server = server_with(&options, "");
    run(async {
        let (owner, held) = (bare(&server.url()).await, claim("k"));
        owner.granted(&held).await;
        owner.blocked(&like(&held)).await;
        let log = || fs::read_to_string(server.folder().join("log")).unwrap();
        let from = log().len();
        let mut waiters = Vec::new();
        for ahead in 1..10 {
            let waiter = bare(&server.url()).await;
            let blocked = waiter.blocked(&like(&held)).await;
            assert_eq!(blocked.ahead, Some(ahead), "the plan has left nothing");
            waiters.push(waiter);
        }
        let calls = tries(&log()[from..]);
        assert_eq!(calls.len(), 18, "each session plans once: {calls:?}");
        let (mut plans, mut asked): (Vec<f64>, Vec<f64>) =
            calls.chunks(2).map(|pair| (pair[0], pair[1])).unzip();
        plans.sort_by(f64::total_cmp);
        asked.sort_by(f64::total_cmp);
        // 18 times as long; one statement that is not planned yet makes it 7.
        assert!(asked[4] * 10.0 < plans[4], "planned in {plans:?} ms, asked in {asked:?} ms");
        let keys = server.psql("SELECT count(*) FROM latchwork WHERE k <> ''").unwrap();
        assert_eq!(keys.trim(), "1");
        assert_eq!(owner.released(&held).await, Released::Yes);
    });
}
