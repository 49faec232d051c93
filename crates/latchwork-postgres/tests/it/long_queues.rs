//! What a call of a function reads of a long queue.

use crate::common::*;

const WAITING: usize = 5_000;

/// What a session of the store sets.
const SESSION: &str = "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_bitmapscan = off;";

/// A key and its queue, of a process with this number. The places are 2, 4, 6 and so on. With permits, one claim shares the
/// key, and none is left.
fn queue(mode: u16, limit: u16, process: &str) -> String {
    let shares = mode == 3;
    let alone = if shares { "NULL" } else { "md5('holder')::uuid" };
    let member = "INSERT INTO latchwork_line VALUES ('k', 1, md5('holder')::uuid, 3, 1, 1, true, 1, now() + interval '1 h', \
         now(), now(), 1, 1, NULL, NULL, false, 'a');";
    format!(
        "INSERT INTO latchwork (k, token, claim, mode, ends, crowd, holder) \
         VALUES ('k', 1, {alone}, {mode}, now() + interval '1 h', true, 'a'); {} \
         INSERT INTO latchwork_line SELECT 'k', n * 2, md5(n::text)::uuid, {mode}, 1, {limit}, true, NULL, \
         now() + interval '1 h', now(), now(), 1000000, 1000000, md5(n::text)::uuid, {process}, false, 'b' \
         FROM generate_series(1, {WAITING}) n;",
        if shares { member } else { "" }
    )
}

/// Keys on which one claim waits each, and what the planner learns of them.
fn other_keys(count: usize) -> String {
    format!(
        "INSERT INTO latchwork_line SELECT ('o' || n)::bytea, 1, md5('o' || n)::uuid, 0, 1, 0, true, NULL, now() + interval '1 h', \
         now(), now(), 1, 1, NULL, NULL, false, 'b' FROM generate_series(1, {count}) n; ANALYZE latchwork_line;"
    )
}

/// A try of a claim, of which `says` is read.
fn stand(says: &str, who: &str, (mode, limit): (u16, u16), waits: bool, process: &str) -> String {
    format!(
        "SELECT {says} FROM latchwork_stand('k', NULL, md5('{who}')::uuid, {mode}::smallint, 1, {limit}, true, {waits}, 60000000, 0, \
         'c', 1000000, md5('w')::uuid, {process}, NULL, 'on')"
    )
}

/// The end of a claim, by a client that knows this nonce.
fn leave(who: &str, nonce: &str, bury: u32) -> String {
    format!(
        "SELECT released FROM latchwork_leave('k', NULL, md5('{who}')::uuid, 0, 'a', {nonce}, {bury}, 'on')"
    )
}

/// Each call, and what it answers.
fn calls(mode: u16, limit: u16, process: &str) -> Vec<(String, String)> {
    let ask =
        |who: &str, waits| stand("what || coalesce(ahead, 0)", who, (mode, limit), waits, process);
    let end = |who: &str, bury| leave(who, "NULL", bury);
    let keep = "SELECT o_state FROM latchwork_keep(ARRAY['k'::bytea], ARRAY[md5('holder')::uuid], \
         ARRAY[60000000], ARRAY[0], ARRAY['a'::bytea], true, 'on')"
        .to_owned();
    let said = |count: usize| format!("h{count}");
    // Nobody has left the queue yet, so that the numbers are twice those of the waiters.
    let mut calls = vec![
        (ask("new", true), said(WAITING * 2 - 1)),
        (ask("new", true), said(WAITING * 2 - 1)),
        (ask("4000", true), said(7_998)),
        (ask("60", true), said(59)),
        (ask("nobody", false), said(WAITING * 2)),
        (keep, "h".to_owned()),
        (end("2500", 0), "t".to_owned()),
        (end("3000", 60_000_000), "t".to_owned()),
        (ask("3000", true), "e0".to_owned()),
        (end("1", 0), "t".to_owned()),
        (end("holder", 0), "t".to_owned()),
    ];
    if process != "NULL" {
        calls.push((ask("2", false), "g0".to_owned()));
    }
    calls
}

/// Runs the calls in one session. What is before the queue is there when the session plans.
fn reads_a_part(mode: u16, limit: u16, process: &str, before: &str) {
    let server = server();
    let calls = calls(mode, limit, process);
    let plan = ["stand", "leave", "keep"].map(|it| format!("SELECT latchwork_rehearse('{it}');"));
    let mut text = SESSION.to_owned() + before + &plan.concat() + &queue(mode, limit, process);
    let read = "SELECT idx_tup_fetch + seq_tup_read FROM pg_stat_xact_user_tables WHERE relname = 'latchwork_line'";
    for (call, _) in &calls {
        text += &format!("SELECT 'from ' || ({read}); {call}; SELECT 'to ' || ({read});");
    }
    let said = run(async {
        let listener = listening(&server).await;
        let said = server.psql(&text).unwrap();
        drop(listener);
        said
    });
    let said: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
    let said = &said[said.len() - calls.len() * 3..];
    for ((call, expected), said) in calls.iter().zip(said.chunks(3)) {
        let count = |text: &str| -> usize {
            text.rsplit_once(' ').and_then(|(_, count)| count.parse().ok()).unwrap()
        };
        let read = count(said[2]) - count(said[0]);
        let case = format!("mode {mode}, process {process}, after {before:.60}: {call}");
        assert_eq!(said[1], expected, "{case}");
        assert!(read <= 250, "{read} rows: {case}");
    }
}

/// H107: a wait, a look and the end of a wait read two hundred rows of a queue at most, whatever the planner has learned.
#[test]
fn h107_a_call_reads_a_part_of_a_long_queue() {
    let called = |mode, limit| {
        let calls = calls(mode, limit, "7").into_iter().map(|(call, _)| call + ";");
        calls.collect::<String>() + "TRUNCATE latchwork, latchwork_line;"
    };
    for (mode, limit) in [(0, 0), (3, 1)] {
        for before in ["", &called(mode, limit), &other_keys(60), &other_keys(45_000)] {
            reads_a_part(mode, limit, "7", before);
        }
    }
    reads_a_part(1, 0, "7", "");
    // Behind a pooler no process can be named.
    reads_a_part(0, 0, "NULL", "");
    reads_a_part(3, 1, "NULL", "");
}

/// With the guard, somebody has emptied the line alone, and a claim is ended whose connection is gone: a try of it that comes
/// late is refused.
#[test]
fn a_mark_in_a_line_that_was_emptied_is_found() {
    let server = server_with(&latchwork_services::PostgresOptions::new(), "?guard=true&max_ttl=2s");
    let ends = leave("b", "(SELECT nonce FROM latchwork_alive)", 60_000_000);
    server
        .psql(&format!(
            "INSERT INTO latchwork (k, token, ends, crowd) VALUES ('k', 1, 'epoch', true); {ends}"
        ))
        .unwrap();
    for mode in [0, 3] {
        let comes_late = stand("what", "b", (mode, mode), true, "7");
        assert_eq!(server.psql(&comes_late).unwrap().trim(), "e");
    }
}

/// A waiter whose process has died leaves a row, a try that came too late a mark. Nobody reads the whole queue for them.
#[test]
fn rows_of_a_queue_that_have_ended_are_removed_by_the_one_behind() {
    let server = server();
    let end = |places: &str| {
        format!("UPDATE latchwork_line SET ends = now() - interval '1 s' WHERE pos IN ({places})")
    };
    let mark = "UPDATE latchwork_line SET mode = 9, fifo = false, process = NULL, ends = now() - interval '1 s' WHERE pos = 2";
    let cases = [
        (end("6000, 8000"), (0, 0), "4001", 2, 0),
        (end("6000"), (0, 0), "100", 0, 0),
        (end("10000"), (0, 0), "new", 1, 1),
        (end("2, 4, 5000"), (0, 0), "100", 3, 0),
        // A claim that shares the key is before the first in line.
        (end("2"), (3, 1), "100", 1, 0),
        (mark.to_owned(), (0, 0), "100", 1, 0),
    ];
    for (change, (mode, limit), who, removed, added) in cases {
        let call = stand("what", who, (mode, limit), true, "7");
        let all = WAITING + usize::from(mode == 3);
        server.psql("TRUNCATE latchwork, latchwork_line").unwrap();
        server.psql(&format!("{} {change}; {call}", queue(mode, limit, "7"))).unwrap();
        let rows = server.psql("SELECT count(*) FROM latchwork_line").unwrap();
        assert_eq!(rows.trim(), (all - removed + added).to_string(), "{change}: {call}");
    }
}

/// Two waiters of a process that does not listen, and one behind them of a process that does. The second one looks by itself.
#[test]
fn a_look_gives_the_key_to_nobody_behind_it() {
    let server = server();
    let look =
        |who: &str, process: &str| stand("what || cardinality(tell)", who, (0, 0), true, process);
    let ask = |text: &str| server.psql(text).unwrap().trim().to_owned();
    assert_eq!(ask(&look("holder", "1")), "g0");
    for (who, process) in [("first", "1"), ("second", "1"), ("last", "7")] {
        assert_eq!(ask(&look(who, process)), "h0");
    }
    assert_eq!(ask(&leave("holder", "NULL", 0)), "t");
    run(async {
        let listener = listening(&server).await;
        let said = ask(&look("second", "1"));
        assert!(said.starts_with('q'), "{said}");
        let granted = ask("SELECT count(claim) FROM latchwork WHERE k = 'k'");
        assert_eq!(granted, "0", "the last one was granted the key");
        drop(listener);
    });
}
