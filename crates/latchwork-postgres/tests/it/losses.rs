//! Servers that have lost what they had committed: with the guard, and without it.

use crate::common::*;
use latchwork_services::{PostgresOptions, PostgresServer};
use latchwork_store::{Attempt, Backend, Cause, Claim, Renewal};

const GUARDED: &str = "?guard=true&max_ttl=3s";

/// What a test does with a server to make it forget the last grant; returns the one that answers then.
type Loss =
    fn(PostgresServer, &mut dyn FnMut(&PostgresServer)) -> (PostgresServer, Option<PostgresServer>);

/// An asynchronous standby that has not got the last grant is promoted.
fn promotion(
    primary: PostgresServer,
    grant: &mut dyn FnMut(&PostgresServer),
) -> (PostgresServer, Option<PostgresServer>) {
    let standby = primary.copy(true).unwrap();
    standby.psql("ALTER SYSTEM SET primary_conninfo = ''").unwrap();
    standby.psql("SELECT pg_reload_conf()").unwrap();
    run(until(&standby, "SELECT count(*) FROM pg_stat_wal_receiver", |n| n == "0"));
    grant(&primary);
    assert_eq!(standby.psql("SELECT pg_promote()").unwrap(), "t");
    (standby, Some(primary))
}

/// A base backup from before the grant takes the server's place.
fn restore(
    primary: PostgresServer,
    grant: &mut dyn FnMut(&PostgresServer),
) -> (PostgresServer, Option<PostgresServer>) {
    let restored = primary.copy(false).unwrap();
    grant(&primary);
    (restored, Some(primary))
}

/// Somebody empties the table.
fn truncate(
    server: PostgresServer,
    grant: &mut dyn FnMut(&PostgresServer),
) -> (PostgresServer, Option<PostgresServer>) {
    grant(&server);
    server.psql("TRUNCATE latchwork, latchwork_line").unwrap();
    (server, None)
}

/// Somebody drops the table, and `init` makes it anew without a word about the guard.
fn drop_table(
    server: PostgresServer,
    grant: &mut dyn FnMut(&PostgresServer),
) -> (PostgresServer, Option<PostgresServer>) {
    grant(&server);
    server.psql("DROP TABLE latchwork, latchwork_line CASCADE").unwrap();
    run(prepare(&server.url())).unwrap();
    (server, None)
}

/// What a second client gets, while the first one still believes that it holds the lock.
fn second_after(loss: Loss, options: &str) -> (PostgresServer, Claim, Attempt) {
    let server = server_with(&PostgresOptions::new(), options);
    let held = claim("k").with(|it| it.ttl = 3 * SEC);
    let mut grant = |server: &PostgresServer| {
        let url = format!("{}{options}", server.url());
        run(async { bare(&url).await.granted(&held).await });
    };
    let (now, _old) = loss(server, &mut grant);
    let url = format!("{}{options}", now.url());
    let next = like(&held).with(|it| it.waits = false);
    let answer = run(async { bare(&url).await.try_acquire(&next).await.unwrap() });
    (now, held, answer)
}

fn two_holders_without_the_guard(loss: Loss) {
    let (_server, _, answer) = second_after(loss, "");
    assert!(matches!(answer, Attempt::Granted(_)), "the loss is no loss: {answer:?}");
}

fn one_holder_with_the_guard(loss: Loss) {
    let (server, held, answer) = second_after(loss, GUARDED);
    let Attempt::Blocked(blocked) = answer else { panic!("two holders: {answer:?}") };
    assert_eq!(blocked.cause, Cause::Quarantine, "{blocked:?}");
    let url = format!("{}{GUARDED}", server.url());
    // It ends by itself, after every lease that may have been lost has ended.
    let start = std::time::Instant::now();
    run(async { bare(&url).await.acquired(&like(&held)).await });
    assert!(start.elapsed() < 10 * SEC, "{:?}", start.elapsed());
}

/// H146: an asynchronous standby is promoted without the last locks.
#[test]
fn h146_a_promotion_without_the_guard_gives_two_holders() {
    two_holders_without_the_guard(promotion);
}

/// H146 with the guard.
#[test]
fn h146_a_promotion_with_the_guard_gives_one() {
    one_holder_with_the_guard(promotion);
}

/// H147: a backup from before the lock takes the server's place.
#[test]
fn h147_a_restored_backup_without_the_guard_gives_two_holders() {
    two_holders_without_the_guard(restore);
}

/// H147 with the guard.
#[test]
fn h147_a_restored_backup_with_the_guard_gives_one() {
    one_holder_with_the_guard(restore);
}

/// H148: TRUNCATE or DROP of the table under a holder.
#[test]
fn h148_an_emptied_table_without_the_guard_gives_two_holders() {
    two_holders_without_the_guard(truncate);
    two_holders_without_the_guard(drop_table);
}

/// H148 with the guard.
#[test]
fn h148_an_emptied_table_with_the_guard_gives_one() {
    one_holder_with_the_guard(truncate);
    one_holder_with_the_guard(drop_table);
}

/// H148: the holder learns of it at its next renewal, and the next token is larger.
#[test]
fn h148_the_holder_of_an_emptied_table_loses_its_lock() {
    let server = server();
    run(async {
        let client = bare(&server.url()).await;
        let held = claim("k");
        let token = client.granted(&held).await.token;
        server.psql("TRUNCATE latchwork, latchwork_line").unwrap();
        assert_eq!(client.renewed(&held).await, Renewal::Lost);
        assert!(client.granted(&like(&held)).await.token > token);
        server.psql("DROP TABLE latchwork CASCADE").unwrap();
        let error = client.try_acquire(&claim("x")).await.expect_err("there is no table");
        assert!(
            error.next_step.unwrap_or_default().contains("latchwork init"),
            "{}",
            error.message
        );
    });
}

/// H149: grants that do not wait for the disk, and a crash.
#[test]
fn h149_fast_grants_survive_a_crash_by_the_guard() {
    fast_grants_are_guarded(|server| server.crash().unwrap());
}

/// H149: one server process is killed, and the server recovers by itself: its start stays the same.
#[test]
fn h149_fast_grants_survive_a_killed_process_by_the_guard() {
    fast_grants_are_guarded(|server| {
        let start = "SELECT pg_postmaster_start_time()";
        let before = server.psql(start).unwrap();
        let ours =
            "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'latchwork%' LIMIT 1";
        crate::faults::kill(server.psql(ours).unwrap().parse().unwrap());
        run(until(server, start, |said| said == before));
    });
}

fn fast_grants_are_guarded(crash: impl FnOnce(&mut PostgresServer) + Send) {
    let options = "?guard=true&max_ttl=3s&durability=fast";
    let mut server = server_with(&PostgresOptions::new(), options);
    let url = format!("{}{options}", server.url());
    run(async {
        let client = bare(&url).await;
        let held = claim("k").with(|it| it.ttl = 3 * SEC);
        let token = client.granted(&held).await.token;
        std::thread::scope(|scope| scope.spawn(|| crash(&mut server)).join().unwrap());
        let next = like(&held).with(|it| it.waits = false);
        let blocked = client.blocked(&next).await;
        assert!(matches!(blocked.cause, Cause::Quarantine | Cause::Held), "{blocked:?}");
        let other = claim("other").with(|it| it.ttl = 3 * SEC);
        assert_eq!(
            client.blocked(&other.clone().with(|it| it.waits = false)).await.cause,
            Cause::Quarantine
        );
        assert!(client.acquired(&like(&held)).await.token > token);
        client.granted(&other).await;
    });
}

/// A clean restart loses nothing, and costs no pause.
#[test]
fn a_clean_restart_is_no_loss() {
    let mut server = server_with(&PostgresOptions::new(), GUARDED);
    let url = format!("{}{GUARDED}", server.url());
    run(async {
        let client = bare(&url).await;
        let held = claim("k").with(|it| it.ttl = 3 * SEC);
        client.granted(&held).await;
        server.restart().unwrap();
        client.granted(&claim("other").with(|it| it.ttl = 3 * SEC)).await;
        assert!(client.held(&held).await || client.show("k").await.is_free());
    });
}

/// A server that begins with the guard and without `init` waits; `init` vouches that nothing is held.
#[test]
fn init_takes_the_quarantine_off_unless_locks_are_in_use() {
    let server = server();
    run(async {
        let url = format!("{}?guard=true&max_ttl=1h", server.url());
        let client = bare(&url).await;
        let looks = claim("k").with(|it| it.waits = false);
        assert_eq!(client.blocked(&looks).await.cause, Cause::Quarantine);
        let report = examine(&url).await;
        assert!(report.find("quarantine").is_some(), "{report:?}");
        prepare(&url).await.unwrap();
        client.granted(&looks).await;
        let error = prepare(&url).await.expect_err("a lock is held");
        assert!(error.to_string().contains("in use"), "{error}");
        let error = connect(&format!("{}?guard=true&max_ttl=2h", server.url())).await.err();
        assert!(error.unwrap().to_string().contains("max_ttl"));
        let too_long = claim("k").with(|it| it.ttl = 7_200 * SEC);
        let error =
            client.try_acquire(&too_long).await.expect_err("the guard would not outlast it");
        let step = "choose a shorter ttl, or a longer max_ttl in all addresses; `latchwork init` changes it";
        assert_eq!(error.next_step.as_deref(), Some(step), "{error:?}");
    });
}

/// H580: a standby that lacks the row of a key gives its next token by its own clock, which is behind. A quarantine
/// that is longer than the difference of the clocks is enough, and so is the row.
#[test]
fn h580_a_promoted_standby_gives_tokens_of_lost_rows_by_its_clock() {
    for (options, ahead, grows) in [("", 3_600 * SEC, false), (GUARDED, 2 * SEC, true)] {
        let primary = server_with(&PostgresOptions::new().with_clock(), options);
        primary.clock().unwrap().step_forward(ahead).unwrap();
        let [kept, lost] = ["kept", "lost"].map(|key| claim(key).with(|it| it.ttl = 3 * SEC));
        let url = |server: &PostgresServer| format!("{}{options}", server.url());
        let grant = |server: &PostgresServer, claim: &Claim| {
            run(async {
                let client = bare(&url(server)).await;
                let token = client.granted(claim).await.token;
                client.released(claim).await;
                token
            })
        };
        let before = grant(&primary, &kept);
        let mut last = 0;
        let (standby, _primary) =
            promotion(primary, &mut |primary| last = grant(primary, &like(&lost)));
        run(async {
            let client = bare(&url(&standby)).await;
            let again = like(&lost).with(|it| it.waits = true);
            let next = client.acquired(&again).await.token;
            assert_eq!(next > last, grows, "{options}: {next} after {last}");
            let next = client.acquired(&like(&kept)).await.token;
            assert!(next > before, "{options}: {next} after {before}");
        });
    }
}

/// H147: a dump from before the lock is restored into a new server.
#[test]
fn h147_a_restored_dump_raises_tokens_and_the_guard_notices() {
    let server = server_with(&PostgresOptions::of_the_system(), GUARDED);
    let url = |server: &PostgresServer| format!("{}{GUARDED}", server.url());
    let held = claim("k").with(|it| it.ttl = 3 * SEC);
    let (dump, last) = run(async {
        let client = bare(&url(&server)).await;
        let first = like(&held);
        client.granted(&first).await;
        client.released(&first).await;
        let dump = server.dump(&[]).unwrap();
        (dump, client.granted(&held).await.token)
    });
    let other = PostgresServer::start_with(&PostgresOptions::new().of_its_own()).unwrap();
    other.load(&dump).unwrap();
    run(async {
        let plain = bare(&other.url()).await;
        let unguarded = claim("x");
        assert!(plain.granted(&unguarded).await.token > last, "tokens follow the clock");
        let client = bare(&url(&other)).await;
        let next = like(&held);
        let blocked = client.blocked(&next.clone().with(|it| it.waits = false)).await;
        assert_eq!(blocked.cause, Cause::Quarantine, "another server: {blocked:?}");
        assert!(client.acquired(&next).await.token > last);
    });
}

/// H148: only the table of those that share and wait is emptied. Who holds a permit or reads is in it.
#[test]
fn h148_an_emptied_line_with_the_guard_gives_no_second_holder() {
    use latchwork_store::Mode;
    let server = server_with(&PostgresOptions::new(), GUARDED);
    let url = format!("{}{GUARDED}", server.url());
    run(async {
        let client = bare(&url).await;
        let reads = |key: &str| {
            claim(key).with(|it| {
                it.mode = Mode::Read;
                it.ttl = 3 * SEC;
            })
        };
        for (key, ends_first) in [("k", false), ("l", true)] {
            let (reader, other) = (reads(key), reads(key));
            client.acquired(&reader).await;
            client.granted(&other).await;
            server.psql("TRUNCATE latchwork_line").unwrap();
            if ends_first {
                // The release must not hide what was lost.
                client.release(&other, latchwork_store::Linger::None).await.unwrap();
            }
            let writer = reads(key).with(|it| {
                it.mode = Mode::Write;
                it.waits = false;
            });
            let blocked = client.blocked(&writer).await;
            assert_eq!(blocked.cause, Cause::Quarantine, "{key}: {blocked:?}");
            let start = std::time::Instant::now();
            client.acquired(&writer.clone().with(|it| it.waits = true)).await;
            assert!(start.elapsed() < 10 * SEC, "{:?}", start.elapsed());
            client.released(&writer).await;
        }
    });
}

/// H194: a try has read the nonce and waits for the row of its key, and somebody deletes all rows, the guard's too.
#[test]
fn h194_a_try_beside_a_delete_of_all_rows_is_not_granted() {
    let options = "?guard=true&max_ttl=1h";
    let server = server_with(&PostgresOptions::new(), options);
    run(async {
        let client = bare(&format!("{}{options}", server.url())).await;
        for is_held in [true, false] {
            prepare(&format!("{}{options}", server.url())).await.unwrap();
            let key = if is_held { "held" } else { "free" };
            let holder = claim(key).with(|it| it.ttl = 60 * SEC);
            client.acquired(&holder).await;
            if !is_held {
                client.released(&holder).await;
            }
            let [other, watcher] =
                [plain_client(server.port()).await, plain_client(server.port()).await];
            other.batch_execute("BEGIN; DELETE FROM latchwork").await.unwrap();
            let ends = async {
                // The try waits for 2 s at most, and a process that asks may take as long to start.
                let waits = "SELECT FROM pg_locks WHERE NOT granted";
                let seen = async { while watcher.query(waits, &[]).await.unwrap().is_empty() {} };
                tokio::time::timeout(20 * SEC, seen).await.expect("the try waits");
                other.batch_execute("COMMIT").await.unwrap();
            };
            let again = like(&holder);
            let (tried, ()) = tokio::join!(client.try_acquire(&again), ends);
            assert!(!matches!(tried, Ok(Attempt::Granted(_))), "{key}: {tried:?}");
            let passes = like(&holder).with(|it| it.waits = false);
            let blocked = client.blocked(&passes).await;
            assert_eq!(blocked.cause, Cause::Quarantine, "{blocked:?}");
        }
    });
}
