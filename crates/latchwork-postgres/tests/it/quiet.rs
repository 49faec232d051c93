//! What locks leave behind in the database.

use std::time::Instant;

use crate::common::*;
use futures_util::future::join_all;
use latchwork_store::{Backend, Linger, Mode};

/// H135: dead rows of a busy key fill the disk, and make each lock slower.
#[test]
fn h135_a_hundred_thousand_cycles_leave_a_bounded_table() {
    let server = server();
    run(async {
        let bare = bare(&server.url()).await;
        let key = claim("k");
        for _ in 0..100_000 {
            let claim = like(&key);
            bare.granted(&claim).await;
            bare.released(&claim).await;
        }
        let size: u64 =
            server.psql("SELECT pg_total_relation_size('latchwork')").unwrap().parse().unwrap();
        assert!(size <= 128 << 10, "{size} bytes for one key");
        let hot = "SELECT n_tup_upd - n_tup_hot_upd <= n_tup_upd / 100 FROM pg_stat_user_tables WHERE relname = 'latchwork'";
        until(&server, hot, |said| said == "t").await;
    });
}

/// H135: the rows of those that wait come and go with each handover, until a vacuum makes their space usable again.
#[test]
fn h135_handovers_use_again_what_a_vacuum_has_freed() {
    let server = server();
    run(async {
        let (one, two) = (bare(&server.url()).await, bare(&server.url()).await);
        let cycles = async |bare: &Bare| {
            for _ in 0..500 {
                let claim = claim("k");
                bare.acquired(&claim).await;
                bare.released(&claim).await;
            }
        };
        let size = |table: &str| -> u64 {
            let size = format!("SELECT pg_total_relation_size('{table}')");
            server.psql(&size).unwrap().parse().unwrap()
        };
        let mut sizes = Vec::new();
        for _ in 0..3 {
            tokio::join!(cycles(&one), cycles(&one), cycles(&two), cycles(&two));
            sizes.push(size("latchwork_line"));
            // As autovacuum does each minute.
            server.psql("VACUUM latchwork_line").unwrap();
        }
        println!("2,000 handovers each: {sizes:?} bytes; the keys: {}", size("latchwork"));
        assert!(sizes[0] <= 2_000 * 1_024, "{sizes:?}: a handover has a row of less than 1 kB");
        // A vacuum leaves what another transaction may still see.
        assert!(sizes[2] <= sizes[1] + sizes[1] / 4, "{sizes:?}");
        // 6,000 rows of the key would be megabytes.
        assert!(size("latchwork") <= 512 << 10, "the row of the key itself is changed in place");
    });
}

/// Every kind of verb, under contention, watched all the time.
#[test]
fn no_transaction_stays_open_ever() {
    let options = latchwork_services::PostgresOptions::new().setting("log_statement=all");
    let server = server_with(&options, "");
    run(async {
        let (one, two) = (bare(&server.url()).await, bare(&server.url()).await);
        let done = std::sync::atomic::AtomicBool::new(false);
        let work = async {
            let modes = [Mode::Exclusive, Mode::Read, Mode::Write];
            let users = (0..12).map(|n| {
                let bare = if n % 2 == 0 { &one } else { &two };
                async move {
                    for round in 0..15 {
                        let mode = modes[(n / 2 + round) % 3];
                        let key = if mode == Mode::Exclusive { "x" } else { "rw" };
                        let claim = claim(key).with(|it| it.mode = mode);
                        bare.acquired(&claim).await;
                        assert!(bare.held(&claim).await);
                        bare.released(&claim).await;
                    }
                }
            });
            join_all(users).await;
            done.store(true, std::sync::atomic::Ordering::SeqCst);
        };
        let watch = async {
            while !done.load(std::sync::atomic::Ordering::SeqCst) {
                let open =
                    "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'";
                assert_eq!(server.psql(open).unwrap(), "0");
                tokio::time::sleep(20 * MS).await;
            }
        };
        tokio::join!(work, watch);
        assert_eq!(server.psql("SELECT count(*) FROM latchwork_line").unwrap(), "0");
        // Nothing has begun one that another statement ends.
        let log = std::fs::read_to_string(server.folder().join("log")).unwrap().to_uppercase();
        assert!(log.contains("LATCHWORK_LEAVE"), "the log has the statements");
        let begins = ["STATEMENT: BEGIN", "STATEMENT:  BEGIN", "START TRANSACTION"];
        assert!(!begins.iter().any(|begin| log.contains(begin)));
        assert!(!log.lines().any(|line| line.contains("EXECUTE ") && line.contains(": BEGIN")));
    });
}

/// Rows of keys that nobody has used for an hour are removed; the next token is above the last one.
#[test]
fn rows_that_nobody_uses_are_removed_and_tokens_go_on() {
    let server = server_with(&latchwork_services::PostgresOptions::new().with_clock(), "");
    run(async {
        let first = bare(&server.url()).await;
        let (old, lingers) = (claim("old"), claim("lingers"));
        let before = first.granted(&old).await.token;
        first.released(&old).await;
        first.granted(&lingers).await;
        first.release(&lingers, Linger::For(5 * 3_600 * SEC)).await.unwrap();
        server.clock().unwrap().step_forward(2 * 3_600 * SEC).unwrap();
        let held = claim("held");
        first.granted(&held).await;
        for _ in 0..2 {
            sweep(&server.url()).await;
        }
        until(&server, "SELECT count(*) FROM latchwork WHERE k = 'old'", |n| n == "0").await;
        let left = server
            .psql("SELECT convert_from(k, 'UTF8') FROM latchwork WHERE k <> '' ORDER BY 1")
            .unwrap();
        assert_eq!(left, "held\nlingers\nsweeps");
        assert!(first.granted(&like(&old)).await.token > before);
    });
}

/// Makes rows of keys that nobody has used for two hours.
fn idle(server: &latchwork_services::PostgresServer, from: u32, to: u32) {
    let made = format!(
        "INSERT INTO latchwork (k, token, ends) SELECT ('job/' || n)::bytea, 1, now() - interval '2 hours' \
         FROM generate_series({from}, {}) n",
        to - 1
    );
    server.psql(&made).unwrap();
}

fn rows(server: &latchwork_services::PostgresServer) -> u32 {
    server.psql("SELECT count(*) FROM latchwork").unwrap().parse().unwrap()
}

/// H196: a new key for each job, and processes that live for a moment. One of 16 removes rows, so 500 new keys for each of
/// those are more than a process of cron makes.
#[test]
fn h196_short_processes_leave_a_bounded_table() {
    let server = server();
    run(async {
        let mut most = 0;
        for n in 0..30 {
            idle(&server, n * 500, (n + 1) * 500);
            sweep(&server.url()).await;
            most = most.max(rows(&server));
        }
        assert!(most < 5_000, "{most} rows");
        // Without new keys, they go on: each one ends with its process, after a statement at the least.
        for _ in 0..60 {
            if rows(&server) < 1_000 {
                return;
            }
            sweep(&server.url()).await;
        }
        panic!("{} rows are left", rows(&server));
    });
}

/// H196: a hundred new keys a second for ten minutes.
#[test]
fn h196_a_sweep_goes_on_until_few_rows_are_left() {
    let server = server();
    run(async {
        idle(&server, 0, 60_000);
        // The first one raises the token below which rows may go.
        sweep(&server.url()).await;
        let (start, mut most) = (Instant::now(), 0);
        while rows(&server) > 3_000 {
            assert!(start.elapsed() < 240 * SEC, "{} rows are left", rows(&server));
            let before = rows(&server);
            let (bare, claim) = (bare(&server.url()).await, sweeps());
            bare.acquired(&claim).await;
            bare.released(&claim).await;
            // A client has two seconds.
            tokio::time::sleep(2_500 * MS).await;
            most = most.max(before.saturating_sub(rows(&server)));
        }
        // A statement removes what is in 32 of some hundred pages, which are some thousand rows; the client goes on for
        // several.
        assert!(most > 8_000, "{most} rows by one client");
    });
}
