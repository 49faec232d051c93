//! Tables: their names, their versions, and the keys in them.

use std::time::Instant;

use crate::common::*;
use latchwork_services::PostgresOptions;
use latchwork_store::doctor::Severity;
use latchwork_store::{Attempt, Backend, BackendErrorKind, Effect, ErrorKind, Key, Mode, Query};

#[test]
fn a_missing_or_foreign_table_is_a_clear_error() {
    let server = latchwork_services::PostgresServer::start().unwrap();
    run(async {
        let error = connect(&server.url()).await.err().expect("there is no table");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.next_step().unwrap().contains("latchwork init"), "{error}");
        assert!(!examine(&server.url()).await.is_fit());
        server.psql("CREATE TABLE latchwork (name TEXT)").unwrap();
        for error in [connect(&server.url()).await.err(), prepare(&server.url()).await.err()] {
            let error = error.expect("it is somebody else's");
            assert!(error.to_string().contains("not one of Latchwork"), "{error}");
        }
        let other = format!("{}?table=locks%20%22of%22%20ours&schema=public", server.url());
        prepare(&other).await.unwrap();
        bare(&other).await.granted(&claim("k")).await;
        let later = "ALTER TABLE \"locks \"\"of\"\" ours\" RENAME CONSTRAINT latchwork_version_3 TO latchwork_version_999";
        server.psql(later).unwrap();
        let error = connect(&other).await.err().expect("it is of a later version");
        assert!(error.to_string().contains("version 999"), "{error}");
        assert!(error.next_step().unwrap().contains("newer client"), "{error}");
        let error = prepare(&other).await.expect_err("it cannot be brought back");
        assert!(error.to_string().contains("version 999"), "{error}");
    });
}

/// What `init` does again: functions that were changed or dropped come back, and the data stays.
#[test]
fn init_repairs_what_is_missing_and_keeps_the_locks() {
    let server = server();
    run(async {
        let client = bare(&server.url()).await;
        let held = claim("k").with(|it| it.ttl = 60 * SEC);
        client.granted(&held).await;
        server.psql("DROP FUNCTION latchwork_stand, latchwork_leave").unwrap();
        let error = client.try_acquire(&like(&held)).await.expect_err("a function is missing");
        assert!(
            error.next_step.unwrap_or_default().contains("latchwork init"),
            "{}",
            error.message
        );
        prepare(&server.url()).await.unwrap();
        assert!(bare(&server.url()).await.held(&held).await);
        client.blocked(&like(&held)).await;
    });
}

/// A table that somebody has made faster.
#[test]
fn doctor_finds_unlogged_tables() {
    let server = server();
    run(async {
        assert!(examine(&server.url()).await.find("logged").is_none());
        server.psql("ALTER TABLE latchwork_line SET UNLOGGED").unwrap();
        let report = examine(&server.url()).await;
        let logged = report.find("logged").unwrap();
        assert_eq!(logged.severity, Severity::Critical, "{report:?}");
        assert!(logged.found.contains("latchwork_line"), "{report:?}");
        assert!(logged.remedy.ends_with(" SET LOGGED"), "{report:?}");
        // It is typed as it is printed.
        server.psql(&logged.remedy).unwrap();
        assert!(examine(&server.url()).await.find("logged").is_none());
    });
}

/// Makes version 1 of the tables.
const OLDER: &str = "ALTER TABLE latchwork DROP CONSTRAINT IF EXISTS latchwork_version_3; \
     CREATE FUNCTION latchwork_observe() RETURNS trigger LANGUAGE plpgsql AS \
     $$BEGIN RAISE EXCEPTION 'a trigger'; END$$; \
     CREATE TRIGGER latchwork_observe AFTER UPDATE OF claim ON latchwork FOR EACH ROW \
     EXECUTE FUNCTION latchwork_observe(); \
     CREATE TRIGGER latchwork_observe_end AFTER DELETE ON latchwork_line FOR EACH ROW \
     EXECUTE FUNCTION latchwork_observe(); \
     COMMENT ON TABLE latchwork IS 'latchwork 1'";

/// Version 1 had triggers for its observers: each change of a claim paid for them.
#[test]
fn init_removes_the_triggers_of_an_older_version() {
    let server = server();
    run(async {
        let held = claim("k").with(|it| it.ttl = 60 * SEC);
        let client = bare(&server.url()).await;
        client.granted(&held).await;
        server.psql(OLDER).unwrap();
        let error = connect(&server.url()).await.err().expect("it is of an older version");
        assert!(error.next_step().unwrap().contains("latchwork init"), "{error}");
        let steps = prepare(&server.url()).await.unwrap();
        assert!(steps.iter().any(|step| step.contains("from version 1 to 3")), "{steps:?}");
        let left = "SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'latchwork%'";
        assert_eq!(server.psql(left).unwrap().trim(), "0");
        let client = bare(&server.url()).await;
        assert!(client.held(&held).await);
        client.released(&held).await;
    });
}

/// A dump reads the tables in one long transaction. The change of a table waits for its end, and everybody else behind
/// that change: no lock could be renewed.
#[test]
fn init_gives_way_to_a_dump_and_costs_no_hold() {
    let server = server();
    run(async {
        let client = bare(&server.url()).await;
        let held = claim("k").with(|it| it.ttl = 60 * SEC);
        client.granted(&held).await;
        assert!(client.held(&held).await);
        server.psql(OLDER).unwrap();
        let reads = "LOCK TABLE latchwork, latchwork_line IN ACCESS SHARE MODE";
        let dump = Locked::by(&server, "all", reads, 8.0).await;
        let url = server.url();
        let renews = async {
            until(&server, "SELECT count(*) FROM pg_locks WHERE NOT granted", |n| n == "1").await;
            let start = Instant::now();
            assert!(client.held(&held).await);
            start.elapsed()
        };
        let (migrated, took) = tokio::join!(prepare(&url), renews);
        assert!(took < 4 * SEC && !dump.has_ended(), "renewed after {took:?}");
        let error = migrated.expect_err("the dump is under way");
        assert!(error.to_string().contains("55P03"), "{error}");
        dump.ends();
        prepare(&url).await.unwrap();
        assert!(client.held(&held).await);
    });
}

/// Two operators run it at the same time, on a table of an older version.
#[test]
fn two_that_init_at_the_same_time_leave_one_table() {
    let server = server();
    run(async {
        let client = bare(&server.url()).await;
        let held = claim("k").with(|it| it.ttl = 60 * SEC);
        client.granted(&held).await;
        for older in [OLDER, ""] {
            server.psql(older).unwrap();
            let all = (0..8).map(|_| async { prepare(&server.url()).await });
            let all = futures_util::future::join_all(all).await;
            assert!(all.iter().all(Result::is_ok), "{all:?}");
            assert!(bare(&server.url()).await.held(&held).await);
        }
    });
}

/// H287: another client makes the tables at this moment. Until it has committed, they are missing.
#[test]
fn h287_a_client_outlasts_an_init_that_makes_its_tables() {
    let server = latchwork_services::PostgresServer::start().unwrap();
    run(async {
        let session = async || {
            let (session, connection) =
                tokio_postgres::connect(&server.conninfo(), tokio_postgres::NoTls).await.unwrap();
            tokio::spawn(connection);
            session
        };
        let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted";
        let (slow, hinders, url) = (session().await, session().await, server.url());
        // It keeps a name that `init` needs.
        slow.batch_execute("BEGIN; CREATE TABLE latchwork_line (n INT)").await.unwrap();
        let connects = async {
            until(&server, waiting, |n| n == "1").await;
            bare(&url).await
        };
        let ends = async {
            until(&server, waiting, |n| n == "2").await;
            let class = "SELECT DISTINCT classid::bigint FROM pg_locks WHERE locktype = 'advisory'";
            let class: i64 = hinders.query_one(class, &[]).await.unwrap().get(0);
            slow.batch_execute("ROLLBACK").await.unwrap();
            i32::from_ne_bytes((class as u32).to_ne_bytes())
        };
        let (made, client, class) = tokio::join!(prepare(&url), connects, ends);
        made.unwrap();
        client.granted(&claim("k")).await;
        server.psql("DROP TABLE latchwork CASCADE").unwrap();
        hinders.batch_execute(&format!("SELECT pg_advisory_lock({class}, 1)")).await.unwrap();
        let error = connect(&url).await.err().expect("an init that takes long is under way");
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert!(error.to_string().contains("another client is making the table"), "{error}");
        assert!(error.next_step().unwrap().contains("try again when that has ended"), "{error}");
    });
}

/// The guard stays as it was: a migration loses no lock, so the operator need not vouch for anything.
#[test]
fn init_migrates_a_guarded_table_whose_locks_are_held() {
    let server = server_with(&PostgresOptions::new(), "?guard=true&max_ttl=1h");
    run(async {
        let url = format!("{}?guard=true&max_ttl=1h", server.url());
        let held = claim("k").with(|it| it.ttl = 60 * SEC);
        bare(&url).await.granted(&held).await;
        server.psql(OLDER).unwrap();
        let steps = prepare(&url).await.expect("it is the next step of the error");
        assert!(steps.iter().any(|step| step.contains("from version 1 to 3")), "{steps:?}");
        assert!(steps.iter().any(|step| step.contains("the guard was not reset")), "{steps:?}");
        let client = bare(&url).await;
        assert!(client.held(&held).await);
        client.blocked(&like(&held)).await;
        client.granted(&claim("other")).await;
        let error = prepare(&url).await.expect_err("nobody can vouch while locks are held");
        assert!(error.to_string().contains("locks are in use"), "{error}");
    });
}

/// A user without rights changes nothing, and the error says what is missing.
#[test]
fn init_by_a_user_without_rights_is_denied_and_changes_nothing() {
    let server = server();
    server.psql("CREATE ROLE app LOGIN; GRANT ALL ON ALL TABLES IN SCHEMA public TO app").unwrap();
    let url = format!("postgres://app@127.0.0.1:{}/postgres", server.port());
    run(async {
        let held = claim("k").with(|it| it.ttl = 60 * SEC);
        bare(&url).await.granted(&held).await;
        for comment in ["latchwork 2", "latchwork 1"] {
            server.psql(&format!("COMMENT ON TABLE latchwork IS '{comment}'")).unwrap();
            let error = prepare(&url).await.expect_err("it is the owner's");
            assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
            let said = "SELECT obj_description('latchwork'::regclass, 'pg_class')";
            assert_eq!(server.psql(said).unwrap(), comment);
        }
        let other = format!("{url}?table=other");
        let error = prepare(&other).await.expect_err("nothing may be created");
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        prepare(&server.url()).await.unwrap();
        assert!(bare(&url).await.held(&held).await);
    });
}

/// Somebody removes the row of a key just after it was made: what was granted would be in no row, and the next claim
/// would be granted as well.
#[test]
fn a_row_that_is_removed_at_once_holds_no_grant() {
    let server = server();
    let removes = "CREATE FUNCTION made() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN \
         IF pg_trigger_depth() = 1 THEN INSERT INTO public.latchwork (k, token, ends) VALUES ('k', 0, 'epoch'); END IF; RETURN NULL; END$$; \
         CREATE FUNCTION removed() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN \
         IF pg_trigger_depth() = 1 THEN DELETE FROM public.latchwork WHERE k = 'k'; END IF; RETURN NULL; END$$; \
         CREATE TRIGGER made BEFORE INSERT ON latchwork FOR EACH STATEMENT EXECUTE FUNCTION made(); \
         CREATE TRIGGER removed AFTER INSERT ON latchwork FOR EACH STATEMENT EXECUTE FUNCTION removed()";
    run(async {
        let (one, two) = (bare(&server.url()).await, bare(&server.url()).await);
        let reads = claim("k").with(|it| {
            it.ttl = 60 * SEC;
            it.mode = Mode::Read;
        });
        server.psql(removes).unwrap();
        let answer = one.try_acquire(&reads).await;
        server.psql("DROP TRIGGER made ON latchwork; DROP TRIGGER removed ON latchwork").unwrap();
        let writes = like(&reads).with(|it| it.mode = Mode::Write);
        let other = two.try_acquire(&writes).await;
        let are_granted = [&answer, &other].map(|it| matches!(it, Ok(Attempt::Granted(_))));
        assert_ne!(are_granted, [true, true], "{answer:?} {other:?}");
        let error = answer.expect_err("there is no row");
        assert_eq!((error.kind, error.effect), (BackendErrorKind::Unreachable, Effect::NotApplied));
    });
}

/// The table of the prototype, with a lock that is held and one that is not.
#[test]
fn init_migrates_an_older_table_and_keeps_held_locks() {
    let server = latchwork_services::PostgresServer::start().unwrap();
    let older = "CREATE TABLE latchwork (k bytea PRIMARY KEY, token bigint NOT NULL, claim uuid, ends timestamptz NOT NULL, \
         crowd boolean NOT NULL DEFAULT false, closed timestamptz, holder bytea); \
         COMMENT ON TABLE latchwork IS 'latchwork 0'; CREATE TABLE latchwork_line (k bytea); \
         INSERT INTO latchwork_line VALUES ('held')";
    server.psql(older).unwrap();
    let held = claim("held").with(|it| it.ttl = 60 * SEC);
    let id = format!("{:032x}", held.id.as_u128());
    let token = 9_000_000_000_000_000_u64;
    let rows = format!(
        "INSERT INTO latchwork VALUES ('held', {token}, '{id}', now() + interval '1 hour', true), \
         ('free', {token}, NULL, now(), false)"
    );
    server.psql(&rows).unwrap();
    run(async {
        let error = connect(&server.url()).await.err().expect("it is of an older version");
        assert!(error.next_step().unwrap().contains("latchwork init"), "{error}");
        let (one, two) = (prepare(&server.url()).await, prepare(&server.url()).await);
        assert!(one.unwrap().iter().any(|step| step.contains("from version 0 to 3")));
        assert!(two.unwrap().iter().any(|step| step.contains("is there")));
        let client = bare(&server.url()).await;
        assert!(client.held(&held).await);
        let waits = like(&held);
        client.blocked(&waits).await;
        assert!(client.granted(&claim("free")).await.token > token);
        client.released(&held).await;
        assert!(client.acquired(&waits).await.token > token);
    });
}

/// Two tables, and two schemas, in one database do not meet.
#[test]
fn tables_and_schemas_keep_their_locks_apart() {
    let server = server();
    server.psql("CREATE SCHEMA ops").unwrap();
    run(async {
        let urls = ["", "?table=other", "?schema=ops"].map(|it| format!("{}{it}", server.url()));
        for url in &urls {
            prepare(url).await.unwrap();
            let client = bare(url).await;
            client.granted(&claim("k")).await;
            client.blocked(&claim("k")).await;
        }
    });
}

/// H152: a key is taken for a part of a statement.
#[test]
fn h152_hostile_names_are_data() {
    let server = server();
    run(async {
        let client = bare(&server.url()).await;
        let long = "k".repeat(3_000);
        let names = [
            "'; DROP TABLE latchwork; --",
            "$1",
            "a\0b",
            "\\x00",
            "A",
            "a",
            "ä",
            "a\u{308}",
            "%",
            "_",
            " ",
            "\u{10ffff}",
            &format!("{long}1"),
            &format!("{long}2"),
        ];
        for name in names {
            let claim = claim(name).with(|it| it.holder = "'; --\0\u{1f}x".into());
            client.granted(&claim).await;
            client.blocked(&like(&claim)).await;
            assert_eq!(client.show(name).await.holders.len(), 1, "{name:?}");
        }
        let all = client.inspect(&Query::Prefix("".into())).await.unwrap();
        assert_eq!(all.len(), names.len());
        for prefix in ["a", "%", "kkk", long.as_str(), "\u{10ffff}"] {
            let found = client.inspect(&Query::Prefix(prefix.into())).await.unwrap();
            let expected = names.iter().filter(|name| name.starts_with(prefix)).count();
            assert_eq!(found.len(), expected, "{:.9}", prefix);
            assert!(found.iter().all(|one| one.key != Key::new("A").unwrap()));
        }
    });
}
