//! What `doctor` says of a server: as the application's role, with the rights of docs/postgres.md or without them.

use crate::common::*;
use latchwork_services::{PgBouncer, PostgresOptions, PostgresServer};
use latchwork_store::doctor::{Finding, Report, Severity};
use latchwork_store::{Backend, ErrorKind};
use tokio_postgres::NoTls;

/// A server with a role that may use the tables, and no more; and the role's address.
fn with_app(options: &PostgresOptions) -> (PostgresServer, String) {
    let server = server_with(&options.clone().setting("fsync=on"), "");
    server.psql("CREATE ROLE app LOGIN").unwrap();
    server
        .psql("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO app")
        .unwrap();
    let url = format!("postgres://app@127.0.0.1:{}/postgres", server.port());
    (server, url)
}

fn of<'a>(report: &'a Report, code: &str) -> &'a Finding {
    report.find(code).unwrap_or_else(|| panic!("{code}: {report:?}"))
}

/// Sessions of others, as long as they are kept.
async fn sessions(server: &PostgresServer, count: usize) -> Vec<tokio_postgres::Client> {
    let mut all = Vec::new();
    for _ in 0..count {
        let (client, connection) =
            tokio_postgres::connect(&server.conninfo(), NoTls).await.unwrap();
        tokio::spawn(connection);
        all.push(client);
    }
    all
}

/// H203: an account without rights sees less of other sessions, and must not take that for none.
#[test]
fn h203_connections_of_others_are_counted_without_rights() {
    let (server, url) = with_app(&PostgresOptions::new().setting("max_connections=50"));
    run(async {
        let few = examine(&url).await;
        assert_eq!(of(&few, "connections").severity, Severity::Ok, "{few:?}");
        let _others = sessions(&server, 42).await;
        let report = examine(&url).await;
        let found = of(&report, "connections");
        assert_eq!(found.severity, Severity::Warning, "{report:?}");
        let used: usize = found.found.split(' ').next().unwrap().parse().unwrap();
        assert!((43..50).contains(&used), "{report:?}");
    });
}

/// H203: what cannot be seen is named, with the right that shows it.
#[test]
fn h203_what_cannot_be_seen_is_said() {
    let (server, url) = with_app(&PostgresOptions::new().with_clock());
    run(async {
        let old = sessions(&server, 1).await;
        old[0]
            .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM latchwork")
            .await
            .unwrap();
        server.clock().unwrap().step_forward(1_000 * SEC).unwrap();
        let blind = examine(&url).await;
        let found = of(&blind, "vacuum");
        assert!(
            found.severity >= Severity::Info && found.remedy.contains("pg_monitor"),
            "{blind:?}"
        );
        let ahead = of(&blind, "clock");
        assert!(ahead.found.starts_with('+'), "{blind:?}");
        let judged = (ahead.severity, &*ahead.remedy);
        let expected = (Severity::Warning, "set both clocks with a time service (NTP)");
        assert_eq!(judged, expected, "{blind:?}");
        server.psql("GRANT pg_monitor TO app").unwrap();
        let report = examine(&url).await;
        let found = of(&report, "vacuum");
        assert_eq!(found.severity, Severity::Warning, "{report:?}");
        assert!(found.found.contains("transaction"), "{report:?}");
    });
}

/// H203: an administrator has taken the right to call functions from everybody, as is often advised.
#[test]
fn h203_a_missing_right_to_execute_is_said_at_once() {
    let (server, url) = with_app(&PostgresOptions::new());
    let functions = "latchwork_stand, latchwork_leave, latchwork_keep, latchwork_heal";
    server.psql(&format!("REVOKE EXECUTE ON FUNCTION {functions} FROM PUBLIC")).unwrap();
    run(async {
        let error = connect(&url).await.err().expect("no contended lock would work");
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.to_string().contains("EXECUTE on"), "{error}");
        assert!(error.to_string().contains("latchwork_stand"), "{error}");
        assert!(error.next_step().unwrap().contains("GRANT EXECUTE ON FUNCTION"), "{error}");
        let report = examine(&url).await;
        assert!(!report.is_fit(), "{report:?}");
        assert!(of(&report, "rights").found.contains("EXECUTE on"), "{report:?}");
        server.psql(&format!("GRANT EXECUTE ON FUNCTION {functions} TO app")).unwrap();
        bare(&url).await.granted(&claim("k")).await;
        assert!(examine(&url).await.is_fit());
    });
}

/// H311: what doctor prints for a role without any right, typed as printed, is all that it needs. So it is for one
/// right that is missing.
#[test]
fn h311_the_grants_that_doctor_prints_are_enough() {
    let server = server_with(&PostgresOptions::new(), "?schema=locks&create_schema=true&table=x");
    server.psql("CREATE ROLE \"an app\" LOGIN").unwrap();
    server.psql("REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA locks FROM PUBLIC").unwrap();
    let url =
        format!("postgres://an%20app@127.0.0.1:{}/postgres?schema=locks&table=x", server.port());
    run(async {
        let driver = latchwork::Driver::start().unwrap();
        let config = latchwork_postgres::PostgresConfig::parse(&url).unwrap();
        let error = latchwork_postgres::doctor(config, driver.io()).await.expect_err("no schema");
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        let grants = error.next_step().unwrap().to_owned();
        assert!(grants.starts_with("GRANT USAGE ON SCHEMA"), "{error}");
        let refused = connect(&url).await.err().expect("no schema");
        assert_eq!(refused.next_step(), Some(&*grants), "{refused}");
        server.psql(&grants).unwrap();
        let green = |report: &Report| {
            let rights = ["rights", "functions", "tables"];
            let mut about = report.findings.iter().filter(|one| rights.contains(&one.code));
            about.all(|one| one.severity == Severity::Ok) && report.find("rights").is_some()
        };
        let report = examine(&url).await;
        assert!(green(&report), "{report:?}");
        bare(&url).await.granted(&claim("k")).await;
        for taken in [
            "REVOKE DELETE ON locks.x FROM \"an app\"",
            "REVOKE INSERT, UPDATE ON locks.x_line FROM \"an app\"; REVOKE UPDATE ON locks.x_alive FROM \"an app\"",
            "REVOKE EXECUTE ON FUNCTION locks.x_keep FROM \"an app\"",
            "REVOKE ALL ON ALL TABLES IN SCHEMA locks FROM \"an app\"",
        ] {
            server.psql(taken).unwrap();
            let report = examine(&url).await;
            assert!(!green(&report), "{taken}: {report:?}");
            for one in report.findings.iter().filter(|one| one.code == "rights") {
                server.psql(&one.remedy).unwrap();
            }
            let report = examine(&url).await;
            assert!(green(&report), "{taken}: {report:?}");
        }
        // What one who may not make tables needs is another matter.
        let refused = prepare(&url).await.expect_err("not the owner");
        assert!(refused.next_step().unwrap().contains("as the owner of"), "{refused}");
    });
}

/// H203: what locks cannot do without, what makes them slow, and what everybody may do with them.
#[test]
fn h203_dropped_functions_and_indexes_are_found() {
    let (server, url) = with_app(&PostgresOptions::new());
    run(async {
        assert_eq!(of(&examine(&url).await, "functions").severity, Severity::Ok);
        server.psql("DROP INDEX latchwork_claims").unwrap();
        let report = examine(&url).await;
        let found = of(&report, "indexes");
        assert_eq!(found.severity, Severity::Critical, "{report:?}");
        assert!(found.found.contains("latchwork_claims"), "{report:?}");
        prepare(&server.url()).await.unwrap();
        assert!(examine(&url).await.is_fit());
        server.psql("GRANT SELECT ON latchwork_line TO PUBLIC").unwrap();
        let report = examine(&url).await;
        let found = of(&report, "public");
        assert_eq!(
            (found.severity, &*found.found),
            (Severity::Info, "everybody may read the tables"),
            "{report:?}"
        );
        assert!(found.remedy.contains("REVOKE ALL"), "{report:?}");
        server.psql("GRANT TRUNCATE ON latchwork TO PUBLIC").unwrap();
        assert_eq!(of(&examine(&url).await, "public").severity, Severity::Warning);
        server.psql("REVOKE ALL ON latchwork, latchwork_line FROM PUBLIC").unwrap();
        assert!(examine(&url).await.find("public").is_none());
        server.psql("ALTER TABLE latchwork SET (autovacuum_enabled = off)").unwrap();
        assert_eq!(of(&examine(&url).await, "autovacuum").severity, Severity::Warning);
        server.psql("DROP FUNCTION latchwork_keep").unwrap();
        let report = examine(&url).await;
        assert!(!report.is_fit(), "{report:?}");
        assert!(of(&report, "tables").found.contains("functions"), "{report:?}");
        let error = connect(&url).await.err().expect("a function is missing");
        assert!(error.to_string().contains("functions of the table"), "{error}");
        assert!(error.next_step().unwrap().contains("latchwork init"), "{error}");
    });
}

/// H203: the limits of the role and of the database, which the server's own number hides.
#[test]
fn h203_limits_of_the_role_and_the_database_count() {
    let (server, url) = with_app(&PostgresOptions::new());
    run(async {
        for (limit, off) in [
            ("ALTER ROLE app CONNECTION LIMIT 2", "ALTER ROLE app CONNECTION LIMIT -1"),
            (
                "ALTER DATABASE postgres CONNECTION LIMIT 2",
                "ALTER DATABASE postgres CONNECTION LIMIT -1",
            ),
        ] {
            server.psql(limit).unwrap();
            let report = examine(&url).await;
            let found = of(&report, "connections");
            assert_eq!(found.severity, Severity::Warning, "{limit}: {report:?}");
            assert!(found.found.contains("limit"), "{limit}: {report:?}");
            server.psql(off).unwrap();
        }
        assert_eq!(of(&examine(&url).await, "connections").severity, Severity::Ok);
        // The server's last ones are for superusers.
        server.psql("ALTER ROLE app CONNECTION LIMIT 40").unwrap();
        let other = tokio_postgres::connect(&url, NoTls);
        let (_client, connection) = other.await.unwrap();
        tokio::spawn(connection);
        assert_eq!(of(&examine(&url).await, "connections").severity, Severity::Ok);
        server.psql("ALTER ROLE app CONNECTION LIMIT 3").unwrap();
        assert_eq!(of(&examine(&url).await, "connections").severity, Severity::Warning);
    });
}

/// Locks work in each mode; only a session lets waiters be notified, and the address must say so.
#[test]
fn h203_each_mode_of_a_pooler_is_judged_by_what_works() {
    let server = server_with(&PostgresOptions::new().setting("fsync=on"), "");
    let statement = PgBouncer::start_in_mode(server.port(), 10, "statement").unwrap();
    let session = PgBouncer::start_in_mode(server.port(), 10, "session").unwrap();
    run(async {
        let client = bare(&statement.url()).await;
        let held = claim("k");
        client.granted(&held).await;
        client.blocked(&like(&held)).await;
        let report = examine(&statement.url()).await;
        assert!(report.is_fit(), "{report:?}");
        assert_eq!(of(&report, "rights").severity, Severity::Ok, "{report:?}");
        assert_eq!(of(&report, "clock").severity, Severity::Ok, "{report:?}");
        let report = examine(&session.url()).await;
        assert!(of(&report, "pooler").remedy.contains("pooler=false"), "{report:?}");
        let address = format!("{}?pooler=false", session.url());
        assert!(bare(&address).await.capabilities().push);
        let transaction = PgBouncer::start(server.port(), 10).unwrap();
        let report = examine(&transaction.url()).await;
        assert!(!of(&report, "pooler").remedy.contains("pooler=false"), "{report:?}");
    });
}

/// H567: what the address says of a pooler is compared with what stands there.
#[test]
fn h567_an_address_that_is_wrong_about_its_pooler_is_told() {
    let server = server_with(&PostgresOptions::new().setting("fsync=on"), "");
    let session = PgBouncer::start_in_mode(server.port(), 10, "session").unwrap();
    let transaction = PgBouncer::start(server.port(), 10).unwrap();
    let as_address = |bouncer: &PgBouncer| format!("{}?pooler=false", bouncer.url());
    run(async {
        let report = examine(&as_address(&transaction)).await;
        let found = of(&report, "pooler");
        assert_eq!(found.severity, Severity::Warning, "{report:?}");
        assert!(found.remedy.contains("remove pooler=false"), "{report:?}");
        let report = examine(&as_address(&session)).await;
        let found = of(&report, "pooler");
        assert_eq!(found.severity, Severity::Ok, "{report:?}");
        assert!(found.found.contains("one of sessions"), "{report:?}");
    });
}

/// Names are data for doctor as well.
#[test]
fn odd_names_are_examined_like_others() {
    let server = PostgresServer::start_with(&PostgresOptions::new().setting("fsync=on")).unwrap();
    server.psql("CREATE SCHEMA \"it's\"").unwrap();
    run(async {
        let url = format!("{}?schema=it%27s&table=T%22a", server.url());
        prepare(&url).await.unwrap();
        bare(&url).await.granted(&claim("k")).await;
        let report = examine(&url).await;
        assert!(report.is_fit(), "{report:?}");
        assert!(of(&report, "locks").found.starts_with("1 held"), "{report:?}");
    });
}

/// A crash of the machine may take back what was granted; the guard then waits until all of it has ended.
#[test]
fn doctor_finds_settings_that_lose_commits() {
    let server = server();
    run(async {
        let guarded = format!("{}?guard=true&max_ttl=1h", server.url());
        for (url, severity) in [(server.url(), Severity::Critical), (guarded, Severity::Info)] {
            let report = examine(&url).await;
            let found = of(&report, "durability");
            assert_eq!(found.severity, severity, "{report:?}");
            assert_eq!(found.found, "fsync off, full_page_writes on");
            assert_eq!(found.remedy, "set fsync and full_page_writes to on");
        }
    });
}

/// Rows stay for a while after their last use; many of them are worth a word.
#[test]
fn doctor_counts_rows_that_nobody_uses() {
    let server = server();
    run(async {
        assert!(examine(&server.url()).await.find("idle-rows").is_none());
        let rows = "INSERT INTO latchwork (k, token, ends) SELECT ('k' || n)::bytea, 1, now() - interval '2 hours' \
             FROM generate_series(1, 100001) n";
        server.psql(rows).unwrap();
        let report = examine(&server.url()).await;
        let found = of(&report, "idle-rows");
        assert!(found.found.contains("100001"), "{report:?}");
        assert_eq!(found.severity, Severity::Info, "{report:?}");
        let remedy = "keep a client running: every ten minutes it removes them; use names that come back, not a new id each time";
        assert_eq!(found.remedy, remedy);
    });
}

/// H205: the lock table of the server is shared by all its databases, and anybody who may connect can fill it.
#[test]
fn h205_a_full_lock_table_is_said_and_ends_with_its_session() {
    let server = server_with(
        &PostgresOptions::new()
            .setting("max_connections=12")
            .setting("max_locks_per_transaction=10"),
        "",
    );
    server.psql("CREATE ROLE mallory LOGIN").unwrap();
    run(async {
        let client = bare(&server.url()).await;
        let held = claim("k").with(|it| it.ttl = 60 * SEC);
        client.granted(&held).await;
        assert!(client.held(&held).await);
        assert_eq!(of(&examine(&server.url()).await, "lock-table").severity, Severity::Ok);
        let conninfo = server.conninfo().replace("user=postgres", "user=mallory");
        let (mallory, connection) = tokio_postgres::connect(&conninfo, NoTls).await.unwrap();
        tokio::spawn(connection);
        let mut taken = 0_i64;
        let takes = "SELECT pg_advisory_lock_shared($1)";
        while taken < 80 {
            mallory.execute(takes, &[&taken]).await.unwrap();
            taken += 1;
        }
        let report = examine(&server.url()).await;
        let found = of(&report, "lock-table");
        assert_eq!(found.severity, Severity::Warning, "{report:?}");
        assert!(found.found.contains("process"), "{report:?}");
        while mallory.execute(takes, &[&taken]).await.is_ok() {
            taken += 1;
        }
        let error = client.try_acquire(&claim("new")).await.expect_err("no room for a lock");
        assert!(error.message.contains("53200"), "{error:?}");
        let step = error.next_step.unwrap();
        assert!(step.contains("pg_locks") && step.contains("max_locks_per_transaction"), "{step}");
        drop(mallory);
        assert!(client.held(&held).await, "its session has ended");
    });
}

/// H206: statements of the role may last a millisecond, and the first one of a connection comes before any setting.
#[test]
fn h206_a_role_with_a_tiny_statement_timeout_connects() {
    let (server, url) = with_app(&PostgresOptions::new());
    server.psql("ALTER ROLE app SET statement_timeout = '1ms'").unwrap();
    run(async {
        for _ in 0..3 {
            let client = connect(&url).await.unwrap();
            let held = claim("k");
            client.acquired(&held).await;
            client.blocked(&like(&held).with(|it| it.waits = false)).await;
            assert!(client.held(&held).await);
            client.released(&held).await;
        }
    });
}
