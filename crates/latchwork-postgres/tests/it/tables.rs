//! Tables: their names, their versions, and the keys in them.

use crate::common::*;
use latchwork_store::{Backend, ErrorKind, Key, Query};

#[test]
fn a_missing_or_foreign_table_is_a_clear_error() {
    let server = latchwork_services::PostgresServer::start().unwrap();
    run(async {
        let error = connect(&server.url()).await.err().expect("there is no table");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.hint().unwrap().contains("latchwork init"), "{error}");
        assert!(!examine(&server.url()).await.is_fit());
        server.psql("CREATE TABLE latchwork (name TEXT)").unwrap();
        for error in [connect(&server.url()).await.err(), prepare(&server.url()).await.err()] {
            let error = error.expect("it is somebody else's");
            assert!(error.to_string().contains("not one of Latchwork"), "{error}");
        }
        let other = format!("{}?table=locks%20%22of%22%20ours&schema=public", server.url());
        prepare(&other).await.unwrap();
        bare(&other).await.granted(&claim("k")).await;
        server.psql("COMMENT ON TABLE \"locks \"\"of\"\" ours\" IS 'latchwork 999'").unwrap();
        let error = connect(&other).await.err().expect("it is of a later version");
        assert!(error.to_string().contains("version 999"), "{error}");
        assert!(error.hint().unwrap().contains("newer client"), "{error}");
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
        server.psql("ALTER TABLE latchwork_fence SET UNLOGGED").unwrap();
        let report = examine(&server.url()).await;
        assert!(report.find("logged").unwrap().found.contains("latchwork_fence"), "{report:?}");
    });
}

/// Version 1 had triggers for its observers: each change of a claim paid for them.
#[test]
fn init_removes_the_triggers_of_an_older_version() {
    let server = server();
    let older = "CREATE FUNCTION latchwork_observe() RETURNS trigger LANGUAGE plpgsql AS \
         $$BEGIN RAISE EXCEPTION 'a trigger'; END$$; \
         CREATE TRIGGER latchwork_observe AFTER UPDATE OF claim ON latchwork FOR EACH ROW \
         EXECUTE FUNCTION latchwork_observe(); \
         CREATE TRIGGER latchwork_observe_end AFTER DELETE ON latchwork_line FOR EACH ROW \
         EXECUTE FUNCTION latchwork_observe()";
    run(async {
        let held = claim("k").with(|it| it.ttl = 60 * SEC);
        let client = bare(&server.url()).await;
        client.granted(&held).await;
        server.psql(older).unwrap();
        server.psql("COMMENT ON TABLE latchwork IS 'latchwork 1'").unwrap();
        let error = connect(&server.url()).await.err().expect("it is of an older version");
        assert!(error.hint().unwrap().contains("latchwork init"), "{error}");
        let steps = prepare(&server.url()).await.unwrap();
        assert!(steps.iter().any(|step| step.contains("from version 1 to 2")), "{steps:?}");
        let left = "SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'latchwork%'";
        assert_eq!(server.psql(left).unwrap().trim(), "0");
        let client = bare(&server.url()).await;
        assert!(client.held(&held).await);
        client.released(&held).await;
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
        assert!(error.hint().unwrap().contains("latchwork init"), "{error}");
        let (one, two) = (prepare(&server.url()).await, prepare(&server.url()).await);
        assert!(one.unwrap().iter().any(|step| step.contains("from version 0 to 2")));
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
