//! What a call of a function reads of a long queue.

use crate::common::*;
use latchwork_services::PostgresServer;

const WAITING: usize = 5_000;

/// What a session of the store sets.
const SESSION: &str = "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_bitmapscan = off;";

/// A key and its queue. The places are 2, 4, 6 and so on. With permits, one claim shares the key, and none is left.
fn queue(mode: u16, limit: u16) -> String {
    let shares = mode == 3;
    let alone = if shares { "NULL" } else { "md5('holder')::uuid" };
    let member = "INSERT INTO latchwork_line VALUES ('k', 1, md5('holder')::uuid, 3, 1, 1, true, 1, now() + interval '1 h', \
         now(), now(), 1, 1, NULL, NULL, false, 'a');";
    format!(
        "INSERT INTO latchwork (k, token, claim, mode, ends, crowd, holder) \
         VALUES ('k', 1, {alone}, {mode}, now() + interval '1 h', true, 'a'); {} \
         INSERT INTO latchwork_line SELECT 'k', n * 2, md5(n::text)::uuid, {mode}, 1, {limit}, true, NULL, \
         now() + interval '1 h', now(), now(), 1000000, 1000000, md5(n::text)::uuid, 7, false, 'b' \
         FROM generate_series(1, {WAITING}) n;",
        if shares { member } else { "" }
    )
}

/// A process with the number 7 listens.
async fn listening(server: &PostgresServer) -> tokio_postgres::Client {
    let (client, connection) =
        tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let class = "SELECT (regexp_match(pg_get_functiondef('latchwork_leave'::regproc), 'lock_shared\\((\\d+)'))[1]";
    let class = server.psql(class).unwrap();
    client.batch_execute(&format!("SELECT pg_advisory_lock({class}, 7)")).await.unwrap();
    client
}

/// Each call, and what it answers.
fn calls(mode: u16, limit: u16) -> Vec<(String, String)> {
    let stand = |who: &str, waits: bool| {
        format!(
            "SELECT what || coalesce(ahead, 0) FROM latchwork_stand('k', NULL, md5('{who}')::uuid, {mode}::smallint, 1, {limit}, \
             true, {waits}, 60000000, 0, 'c', 1000000, md5('w')::uuid, 7, NULL, 'on')"
        )
    };
    let leave = |who: &str| {
        format!(
            "SELECT released FROM latchwork_leave('k', NULL, md5('{who}')::uuid, 0, 'a', NULL, 0, 'on')"
        )
    };
    let keep = "SELECT o_state FROM latchwork_keep(ARRAY['k'::bytea], ARRAY[md5('holder')::uuid], \
         ARRAY[60000000], ARRAY[0], ARRAY['a'::bytea], true, 'on')"
        .to_owned();
    let said = |count: usize| format!("h{count}");
    vec![
        // Nobody has left the queue yet, so that the numbers are twice those of the waiters.
        (stand("new", true), said(WAITING * 2 - 1)),
        (stand("new", true), said(WAITING * 2 - 1)),
        (stand("4000", true), said(7_998)),
        (stand("60", true), said(59)),
        (stand("nobody", false), said(WAITING * 2)),
        (keep, "h".to_owned()),
        (leave("2500"), "t".to_owned()),
        (leave("1"), "t".to_owned()),
        (leave("holder"), "t".to_owned()),
        (stand("2", false), "g0".to_owned()),
    ]
}

/// H107: a wait, a look and the end of a wait read a hundred rows of a queue at most, and a release a few.
#[test]
fn h107_a_call_reads_a_part_of_a_long_queue() {
    for (mode, limit) in [(0, 0), (1, 0), (3, 1)] {
        // The session plans for a table of this size when it calls a function first.
        for is_planned_before in [true, false] {
            let server = server();
            let mut text = SESSION.to_owned();
            let calls = calls(mode, limit);
            if is_planned_before {
                for (call, _) in &calls {
                    text += &format!("{call};");
                }
                text += "TRUNCATE latchwork, latchwork_line;";
            }
            text += &queue(mode, limit);
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
                assert_eq!(said[1], expected, "mode {mode}: {call}");
                let read = count(said[2]) - count(said[0]);
                assert!(
                    read <= 130,
                    "mode {mode}, planned before {is_planned_before}: {read} rows: {call}"
                );
            }
        }
    }
}

/// A waiter whose process has died leaves a row, a try that came too late a mark. Nobody reads the whole queue for them.
#[test]
fn rows_of_a_queue_that_have_ended_are_removed_by_the_one_behind() {
    let server = server();
    let look = |who: &str, mode: u16, limit: u16| {
        format!(
            "SELECT FROM latchwork_stand('k', NULL, md5('{who}')::uuid, {mode}::smallint, 1, {limit}, true, true, 60000000, 0, 'c', 1000000, \
             md5('w')::uuid, 7, NULL, 'on')"
        )
    };
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
        let call = look(who, mode, limit);
        let all = WAITING + usize::from(mode == 3);
        server.psql("TRUNCATE latchwork, latchwork_line").unwrap();
        server.psql(&format!("{} {change}; {call}", queue(mode, limit))).unwrap();
        let rows = server.psql("SELECT count(*) FROM latchwork_line").unwrap();
        assert_eq!(rows.trim(), (all - removed + added).to_string(), "{change}: {call}");
    }
}
