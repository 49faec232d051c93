//! What the server reads for a statement of many claims, as its plans say.

use std::fs;

use futures_util::future::join_all;

use crate::common::*;
use latchwork_services::{PostgresOptions, PostgresServer};
use latchwork_store::{Attempt, Backend, Claim, Linger, Mode, Released, Renewal};

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
    let mut is_of_keys = true;
    for line in log.lines() {
        // A new connection reads the catalogue.
        is_of_keys |= line.contains("LOG:");
        is_of_keys &= !line.contains("What a new connection asks first");
        if !is_of_keys {
            continue;
        }
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

/// A call on a key whose row somebody has locked.
#[derive(Clone, Copy, Debug)]
enum Call {
    Stand,
    Leave,
    Keep,
}

/// How long a session has the lock of a row in its first call of a function, and how long that call takes if nobody is in
/// its way, in milliseconds. `None` if the other transaction took so long that the call was given up.
async fn first_call(server: &PostgresServer, call: Call, n: usize) -> Option<(f64, f64)> {
    let mode = if matches!(call, Call::Keep) { Mode::Read } else { Mode::Exclusive };
    let key = format!("{call:?}{n}");
    let held = claim(&key).with(|it| {
        it.ttl = 60 * SEC;
        it.mode = mode;
    });
    let owner = bare(&server.url()).await;
    owner.granted(&held).await;
    if matches!(call, Call::Leave) {
        owner.blocked(&like(&held)).await;
    }
    let fresh = bare(&server.url()).await;
    let other = bare(&server.url()).await;
    let log = || fs::read_to_string(server.folder().join("log")).unwrap();
    let is_call = |line: &&str| {
        let function = match call {
            Call::Stand => line.contains("latchwork_stand"),
            // The statement that also keeps messages begins with its comment.
            Call::Leave => {
                line.contains("latchwork_leave") || line.contains("As the function alone")
            }
            Call::Keep => line.contains("latchwork_keep"),
        };
        function && line.contains("execute")
    };
    let from = log().len();
    let locked = Locked::row(server, &key, 0.3).await;
    let ask = async |bare: &Bare, claim: &Claim| match call {
        Call::Stand => drop(bare.try_acquire(claim).await.unwrap()),
        Call::Leave => drop(bare.release(claim, Linger::None).await.unwrap()),
        Call::Keep => assert!(bare.held(claim).await),
    };
    let waits = if matches!(call, Call::Stand) { like(&held) } else { held.clone() };
    ask(&fresh, &waits).await;
    locked.ends();
    let said = log().split_off(from);
    let ended = |line: &&str| {
        let (at, rest) = line.split_once(' ').unwrap();
        let duration = rest.split_once("duration: ").unwrap().1.split(' ').next().unwrap();
        (at.parse::<f64>().unwrap() * 1_000.0, duration.parse::<f64>().unwrap())
    };
    let freed =
        said.lines().find(|line| line.contains("statement: COMMIT") && line.contains("duration: "));
    let mut calls = said.lines().filter(is_call);
    let freed = ended(&freed.expect("the other transaction has ended")).0;
    let Some(last) = calls.next_back() else {
        assert!(said.contains("due to lock timeout"), "{call:?} is not in the log: {said}");
        return None;
    };
    let had = ended(&last).0 - freed;
    let from = log().len();
    let alone = claim(&format!("alone{key}")).with(|it| it.mode = Mode::Read);
    other.granted(&alone).await;
    if !matches!(call, Call::Stand) {
        ask(&other, &alone).await;
    }
    let said = log().split_off(from);
    let mut calls = said.lines().filter(is_call);
    Some((had, ended(&calls.next().expect("it was called")).1))
}

/// A session plans each statement of a function when it runs it first, and that takes longer than to run it. If many
/// processes begin to wait for one key at once, its holder's release would wait for all of that.
#[test]
fn h191_a_first_call_is_planned_before_it_locks_the_row() {
    let options = PostgresOptions::new()
        .setting("log_min_duration_statement=0")
        .setting("log_line_prefix=%n ");
    let server = server_with(&options, "");
    run(async {
        for call in [Call::Stand, Call::Leave, Call::Keep] {
            // A busy machine adds to each; the least of them is what the call itself takes.
            let least = |all: &[f64]| all.iter().copied().fold(f64::MAX, f64::min);
            let (mut had, mut planned) = (Vec::new(), Vec::new());
            for n in 0.. {
                if had.len() >= 5 && least(&had) * 2.0 < least(&planned) {
                    break;
                }
                if let Some((for_row, alone)) = first_call(&server, call, n).await {
                    had.push(for_row);
                    planned.push(alone);
                }
                assert!(
                    n < 30,
                    "{call:?}: it had the row for {had:?} ms, and planned for {planned:?} ms"
                );
            }
        }
        let rows = "SELECT count(*) FROM latchwork l FULL JOIN latchwork_line p ON p.k = l.k WHERE substr(coalesce(l.k, p.k), 1, 1) = '\\xff'";
        assert_eq!(server.psql(rows).unwrap(), "0", "a rehearsal has left something");
    });
}
