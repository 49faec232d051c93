//! Others in the same database: users who only connect, and owners who change what is theirs.

use std::time::{Duration, Instant};

use crate::common::*;
use latchwork_services::{Cut, Direction, PgBouncer, PostgresOptions, PostgresServer, Proxy};
use latchwork_store::{Backend, ErrorKind, Wake};
use tokio_postgres::NoTls;

/// A session of a user that may connect, and nothing else.
async fn mallory(server: &PostgresServer) -> tokio_postgres::Client {
    server.psql("CREATE ROLE mallory LOGIN").unwrap();
    let conninfo = format!("host=127.0.0.1 port={} user=mallory dbname=postgres", server.port());
    let (client, connection) = tokio_postgres::connect(&conninfo, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// The channels of all processes that listen, as everybody can read them.
const CHANNELS: &str = "SELECT 'latchwork_' || lpad(to_hex(classid::bigint), 8, '0') || '_' \
     || lpad(to_hex(objid::bigint), 8, '0') FROM pg_locks WHERE locktype = 'advisory' AND granted";

/// H134: a user of the database who may only connect sends messages without end.
#[test]
fn h134_a_flood_of_forged_messages_costs_few_tries() {
    let server = server();
    run(async {
        let (holder, waiter) = (bare(&server.url()).await, bare(&server.url()).await);
        let held = claim("k").with(|it| it.ttl = 600 * SEC);
        holder.granted(&held).await;
        let waits = like(&held);
        let blocked = waiter.blocked(&waits).await;
        waiter.wait(&waits, &blocked).await.unwrap();
        let mallory = mallory(&server).await;
        let channel: String = mallory.query_one(CHANNELS, &[]).await.unwrap().get(0);
        let id = format!("{:032x}", waits.id.as_u128());
        let (mut tries, start) = (0, Instant::now());
        let flood = async {
            for n in 0..4_000 {
                let text = match n % 4 {
                    0 => format!("g {id} {n} 2000000 {id} 0"),
                    1 => format!("l {id} 0"),
                    2 => format!("l {} 0", uuid(&id)),
                    _ => format!("g {} {} 2000000 {} 0", uuid(&id), u64::MAX, uuid(&id)),
                };
                mallory.execute("SELECT pg_notify($1, $2)", &[&channel, &text]).await.unwrap();
            }
        };
        let waits_on = async {
            loop {
                let blocked = waiter.blocked(&waits).await;
                assert_eq!(waiter.wait(&waits, &blocked).await.unwrap(), Wake::Look);
                tries += 1;
            }
        };
        tokio::select! { () = flood => {} () = waits_on => {} }
        let most = 32 + 2 + start.elapsed().as_millis() / 20;
        println!("{tries} tries in {:?}", start.elapsed());
        assert!((1..=most).contains(&tries), "{tries} tries, {most} at most");
        assert!(holder.held(&held).await && !waiter.held(&waits).await);
    });
}

fn uuid(digits: &str) -> String {
    let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
    parts.join("-")
}

/// H178: a user of the database who may only connect takes the advisory locks of the table, and listens to everything.
#[test]
fn h178_a_user_who_only_connects_can_delay_and_no_more() {
    let server = server();
    run(async {
        let mallory = mallory(&server).await;
        let (one, two) = (bare(&server.url()).await, bare(&server.url()).await);
        let held = claim("k").with(|it| it.ttl = 60 * SEC);
        one.granted(&held).await;
        let waits = like(&held);
        let release = async {
            until(&server, LISTENERS, |n| n == "1").await;
            let numbers = "classid::bigint::integer, objid::bigint::integer";
            let locks = LISTENERS.replace("count(*)", numbers) + " AND granted";
            let lock = mallory.query_one(&locks, &[]).await.unwrap();
            let (class, process): (i32, i32) = (lock.get(0), lock.get(1));
            for (a, b) in [(class, 0), (class, 1), (-1 - class, 0)] {
                mallory.execute("SELECT pg_advisory_lock($1, $2)", &[&a, &b]).await.unwrap();
            }
            // It stands in line for the lock of the process that listens, as if that were its own.
            let asks = "SELECT pg_try_advisory_lock_shared($1, $2)";
            let has = mallory.query_one(asks, &[&class, &process]).await.unwrap();
            assert!(!has.get::<_, bool>(0));
            for row in mallory.query(CHANNELS, &[]).await.unwrap() {
                mallory.batch_execute(&format!("LISTEN {}", row.get::<_, String>(0))).await.ok();
            }
            let denied = mallory.query("SELECT * FROM latchwork", &[]).await.expect_err("no right");
            assert!(denied.as_db_error().is_some());
            let denied =
                mallory.query("SELECT latchwork_heal(1, true)", &[]).await.expect_err("no right");
            assert!(denied.as_db_error().is_some());
            until(&server, "SELECT count(*) FROM latchwork_line", |n| n == "1").await;
            one.released(&held).await;
            Instant::now()
        };
        let (grant, released) = tokio::join!(two.acquired(&waits), release);
        stalls::in_time(released, 5 * SEC);
        assert!(grant.token > 0 && two.held(&waits).await && !one.held(&held).await);
        // One that is still held is not lost by it either.
        one.blocked(&like(&held).with(|it| it.waits = false)).await;
    });
}

/// H179: the owner of the tables adds columns while locks are held and waited for.
#[test]
fn h179_columns_that_the_owner_adds_cost_no_lock() {
    let server = server();
    run(async {
        let (one, two) = (bare(&server.url()).await, bare(&server.url()).await);
        let held = claim("k").with(|it| it.ttl = 60 * SEC);
        one.granted(&held).await;
        let waits = like(&held);
        two.blocked(&waits).await;
        for table in ["latchwork", "latchwork_line", "latchwork_alive"] {
            server
                .psql(&format!("ALTER TABLE {table} ADD COLUMN note text DEFAULT 'ours'"))
                .unwrap();
        }
        assert!(one.held(&held).await);
        one.released(&held).await;
        let token = two.acquired(&waits).await.token;
        two.released(&waits).await;
        assert!(one.granted(&claim("k")).await.token > token);
        one.granted(&claim("new")).await;
        assert_eq!(one.show("k").await.holders.len(), 1);
        // What locks cannot do without is missed with a clear error.
        server.psql("ALTER TABLE latchwork DROP COLUMN holder").unwrap();
        let error = two.try_acquire(&claim("other")).await.expect_err("a column is missing");
        assert!(
            error.next_step.as_deref().unwrap_or_default().contains("latchwork init"),
            "{error:?}"
        );
    });
}

/// What an administrator may have set for a role or a database, none of it for locks.
const SETTINGS: [&str; 24] = [
    "search_path = evil, pg_catalog, public",
    "statement_timeout = '100ms'",
    "lock_timeout = '10ms'",
    "idle_session_timeout = '400ms'",
    "idle_in_transaction_session_timeout = '50ms'",
    "default_transaction_isolation = serializable",
    "default_transaction_deferrable = on",
    "synchronous_commit = off",
    "standard_conforming_strings = off",
    "backslash_quote = off",
    "escape_string_warning = on",
    "bytea_output = escape",
    "extra_float_digits = -15",
    "DateStyle = 'SQL, DMY'",
    "IntervalStyle = sql_standard",
    "TimeZone = 'Asia/Kathmandu'",
    "client_encoding = LATIN1",
    "client_min_messages = error",
    "plpgsql.extra_errors = 'all'",
    "transform_null_equals = on",
    "array_nulls = off",
    "quote_all_identifiers = on",
    "work_mem = 64",
    "enable_indexscan = off",
];

/// H180: settings of the role or the database that change how statements are read, run or answered.
#[test]
fn h180_settings_of_a_role_do_no_harm() {
    let server = server();
    for statement in [
        "CREATE ROLE app LOGIN SUPERUSER",
        "CREATE SCHEMA evil",
        "CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT timestamptz ''2001-01-01'''",
        "CREATE FUNCTION evil.date_part(text, timestamptz) RETURNS float8 LANGUAGE sql AS 'SELECT 1::float8'",
        "CREATE FUNCTION evil.set_config(text, text, boolean) RETURNS text LANGUAGE sql AS 'SELECT $2'",
        "CREATE TABLE evil.latchwork (k bytea)",
    ] {
        server.psql(statement).unwrap();
    }
    for setting in SETTINGS {
        server.psql(&format!("ALTER ROLE app SET {setting}")).unwrap();
    }
    run(async {
        let url = format!("postgres://app@127.0.0.1:{}/postgres?guard=true", server.port());
        prepare(&url).await.unwrap();
        let (one, two) = (bare(&url).await, bare(&url).await);
        let mut last = 0;
        for key in ["k", "ü \\ ' \u{10ffff}"] {
            let held = claim(key).with(|it| it.ttl = 60 * SEC);
            let token = one.granted(&held).await.token;
            assert!(token > 1_700_000_000_000_000, "by the server's clock: {token}");
            let waits = like(&held);
            let release = async {
                // Longer than a session may be idle.
                tokio::time::sleep(1_500 * MS).await;
                assert!(one.held(&held).await);
                one.released(&held).await;
                Instant::now()
            };
            let (grant, released) = tokio::join!(two.acquired(&waits), release);
            stalls::in_time(released, 3 * SEC);
            assert!(grant.token > token && token > last);
            last = grant.token;
            assert_eq!(one.show(key).await.holders[0].token, Some(last));
            two.released(&waits).await;
        }
    });
}

/// H180: a setting hides the warning that no standby has confirmed a commit. A session of a pooler has it as it is.
#[test]
fn h180_hidden_warnings_are_refused_behind_a_pooler() {
    let server = server();
    server.psql("ALTER ROLE postgres SET client_min_messages = error").unwrap();
    let bouncer = PgBouncer::start(server.port(), 2).unwrap();
    run(async {
        let error = connect(&bouncer.url()).await.err().expect("warnings are hidden");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains("client_min_messages"), "{error}");
        bare(&server.url()).await.granted(&claim("k")).await;
    });
}

/// The role may write, but by its settings it does not.
#[test]
fn a_role_that_is_read_only_is_a_clear_error() {
    let server = server();
    server.psql("CREATE ROLE app LOGIN SUPERUSER").unwrap();
    server.psql("ALTER ROLE app SET default_transaction_read_only = on").unwrap();
    run(async {
        let url = format!("postgres://app@127.0.0.1:{}/postgres", server.port());
        for url in [url.clone(), format!("{url}?target_session_attrs=read-write")] {
            let error = connect(&url).await.err().expect("it takes no writes");
            assert!(error.to_string().contains("default_transaction_read_only"), "{error}");
            let step = "or set default_transaction_read_only to off";
            assert!(error.next_step().unwrap().ends_with(step), "{error}");
        }
    });
}

/// H181: something between drops the connection on which a process listens, and says nothing.
#[test]
fn h181_a_silently_dropped_listening_connection_is_replaced() {
    let server = server();
    let proxy = Proxy::plain(server.port()).unwrap();
    run(async {
        let holder = bare(&server.url()).await;
        let url = format!(
            "postgres://postgres@127.0.0.1:{},127.0.0.1:{}/postgres?connect_timeout=1",
            proxy.port(),
            server.port()
        );
        let waiter = bare(&url).await;
        let held = claim("k").with(|it| it.ttl = 60 * SEC);
        holder.granted(&held).await;
        let waits = like(&held);
        let drops = async {
            let named = "SELECT count(process) FROM latchwork_line";
            until(&server, named, |n| n == "1").await;
            // Whatever is sent from now on arrives nowhere.
            proxy.freeze(Direction::ToServer);
            proxy.freeze(Direction::ToClient);
            holder.released(&held).await;
            Instant::now()
        };
        let (_, dropped) = tokio::join!(waiter.acquired(&waits), drops);
        let took = dropped.elapsed();
        println!("granted {took:?} after the connection was dropped");
        // 3 s until the next question, 2 s for its answer, 1 s for the host that does not answer, and the tries.
        assert!(
            took < stalls::widened(8 * SEC, took),
            "served after {took:?}, not when a timer of 20 s ended"
        );
        proxy.cut(Cut::Reset).unwrap();
    });
}

/// No connection is left to listen on.
#[test]
fn waiters_on_a_full_server_are_served_by_looks() {
    let options = PostgresOptions::new()
        .setting("max_connections=6")
        .setting("superuser_reserved_connections=3");
    let server = server_with(&options, "");
    server.psql("CREATE ROLE app LOGIN; GRANT ALL ON ALL TABLES IN SCHEMA public TO app").unwrap();
    run(async {
        let url = format!("postgres://app@127.0.0.1:{}/postgres?connections=1", server.port());
        let (one, two, three) = (bare(&url).await, bare(&url).await, bare(&url).await);
        let held = claim("k").with(|it| it.ttl = 60 * SEC);
        one.granted(&held).await;
        three.granted(&claim("other")).await;
        let waits = like(&held);
        let release = async {
            until(&server, "SELECT count(*) FROM latchwork_line", |n| n == "1").await;
            tokio::time::sleep(Duration::from_millis(500)).await;
            one.released(&held).await;
            Instant::now()
        };
        let (_, released) = tokio::join!(two.acquired(&waits), release);
        stalls::in_time(released, 3 * SEC);
    });
}
