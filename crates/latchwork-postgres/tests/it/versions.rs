//! Versions of the tables and of their functions, and what a name may be.

use crate::common::*;
use latchwork_services::{PostgresOptions, PostgresServer};
use latchwork_store::doctor::Severity;
use latchwork_store::{Backend as _, BackendErrorKind, ErrorKind, Mode, Released, Resize};

/// Makes version 2 of the tables.
const BEFORE: &str = "ALTER TABLE latchwork DROP CONSTRAINT latchwork_version_3; \
     DROP FUNCTION latchwork_rehearse, latchwork_recheck; DELETE FROM latchwork WHERE k = ''; \
     COMMENT ON TABLE latchwork IS 'latchwork 2'";

/// The functions say that they are of this revision.
fn functions(server: &PostgresServer, revision: u32) {
    let change = format!(
        "DO $$ DECLARE f regprocedure; BEGIN FOR f IN SELECT oid FROM pg_proc WHERE proname ^@ 'latchwork_' LOOP \
         EXECUTE regexp_replace(pg_get_functiondef(f), '(latchwork \\d+ functions) \\d+', '\\1 {revision}'); END LOOP; END $$"
    );
    server.psql(&change).unwrap();
}

fn source(server: &PostgresServer) -> String {
    server.psql("SELECT string_agg(prosrc, '' ORDER BY proname) FROM pg_proc WHERE proname ^@ 'latchwork_'").unwrap()
}

/// H300: a server that lacks what the functions use.
#[test]
fn h300_a_server_that_is_too_old_is_refused_by_its_version() {
    let server = PostgresServer::start_with(&PostgresOptions::too_old()).unwrap();
    run(async {
        for error in [connect(&server.url()).await.err(), prepare(&server.url()).await.err()] {
            let error = error.expect("it is refused");
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains("PostgreSQL 12.22, and locks need 13"), "{error}");
            assert_eq!(error.next_step(), Some("upgrade the server"));
        }
        let report = examine(&server.url()).await;
        assert_eq!(report.find("version").unwrap().severity, Severity::Critical, "{report:#?}");
    });
}

/// H197: the version was in a comment, which a dump may leave out and anybody may change.
#[test]
fn h197_a_comment_of_somebody_is_no_other_version() {
    let server = server();
    run(async {
        let held = claim("k").with(|it| it.ttl = 60 * SEC);
        bare(&server.url()).await.granted(&held).await;
        for comment in ["'the locks of the shop'", "'latchwork 999'", "NULL"] {
            server.psql(&format!("COMMENT ON TABLE latchwork IS {comment}")).unwrap();
            assert!(bare(&server.url()).await.held(&held).await);
            assert!(
                examine(&server.url()).await.find("tables").unwrap().found.contains("version 3")
            );
            server.psql(&format!("COMMENT ON TABLE latchwork IS {comment}")).unwrap();
            let steps = prepare(&server.url()).await.unwrap();
            assert!(steps.iter().any(|step| step.contains("is there")), "{steps:?}");
            let said = "SELECT obj_description('latchwork'::regclass, 'pg_class')";
            assert_eq!(server.psql(said).unwrap(), "latchwork 3", "older clients read it");
        }
        // A table of an older version as well.
        server.psql(BEFORE).unwrap();
        server.psql("COMMENT ON TABLE latchwork IS 'the locks of the shop'").unwrap();
        let steps = prepare(&server.url()).await.unwrap();
        assert!(steps.iter().any(|step| step.contains("from version 2 to 3")), "{steps:?}");
        assert!(bare(&server.url()).await.held(&held).await);
    });
}

/// H197: what `pg_dump --no-comments` leaves out. The lock that was held when the dump was made is held after the restore.
#[test]
fn h197_a_dump_without_comments_is_restored() {
    let server = server_with(&PostgresOptions::of_the_system(), "");
    run(async {
        let held = claim("k").with(|it| it.ttl = 60 * SEC);
        bare(&server.url()).await.granted(&held).await;
        let dump = server.dump(&["--no-comments"]).unwrap();
        assert!(!dump.contains("COMMENT ON"), "{dump}");
        server.psql("DROP SCHEMA public CASCADE; CREATE SCHEMA public").unwrap();
        server.load(&dump).unwrap();
        let said = "SELECT obj_description('latchwork'::regclass, 'pg_class')";
        assert_eq!(server.psql(said).unwrap(), "");
        assert!(bare(&server.url()).await.held(&held).await);
        let report = examine(&server.url()).await;
        for (code, found) in [("tables", "version 3"), ("functions", "this client's version")] {
            let finding = report.find(code).unwrap();
            assert_eq!(finding.severity, Severity::Ok, "{report:?}");
            assert!(finding.found.contains(found), "{report:?}");
        }
        prepare(&server.url()).await.unwrap();
        assert_eq!(server.psql(said).unwrap(), "latchwork 3");
        assert!(bare(&server.url()).await.held(&held).await);
    });
}

/// Locks that are held stay held, and those that wait keep their places.
#[test]
fn init_brings_version_2_to_this_one_and_keeps_held_locks() {
    let server = server();
    run(async {
        let old = bare(&server.url()).await;
        let held = claim("alone").with(|it| it.ttl = 60 * SEC);
        let reads = claim("shared").with(|it| {
            it.ttl = 60 * SEC;
            it.mode = Mode::Read;
        });
        let token = old.granted(&held).await.token;
        old.granted(&reads).await;
        let waits = like(&held);
        old.blocked(&waits).await;
        server.psql(BEFORE).unwrap();
        let error = connect(&server.url()).await.err().expect("it is of an older version");
        assert!(error.to_string().contains("version 2"), "{error}");
        assert!(error.next_step().unwrap().contains("latchwork init"), "{error}");
        let (one, two) = (prepare(&server.url()).await, prepare(&server.url()).await);
        assert!(one.unwrap().iter().any(|step| step.contains("from version 2 to 3")));
        assert!(two.unwrap().iter().any(|step| step.contains("is there")));
        let new = bare(&server.url()).await;
        assert!(new.held(&held).await && new.held(&reads).await && old.held(&held).await);
        let floor = format!("SELECT token > {token} FROM latchwork WHERE k = ''");
        assert_eq!(server.psql(&floor).unwrap(), "t", "older clients have removed rows");
        assert_eq!(new.released(&held).await, Released::Yes);
        assert!(old.acquired(&waits).await.token > token);
    });
}

/// H197: functions carry a revision of their own, and no client puts older ones back.
#[test]
fn h197_functions_of_a_newer_client_stay() {
    let server = server();
    run(async {
        functions(&server, 999);
        let newer = source(&server);
        let steps = prepare(&server.url()).await.unwrap();
        assert!(steps.iter().any(|step| step.contains("revision 999")), "{steps:?}");
        assert_eq!(source(&server), newer);
        bare(&server.url()).await.granted(&claim("k")).await;
    });
}

/// H197: a function is missing, or was made by a client that is too old.
#[test]
fn h197_missing_or_older_functions_are_a_clear_error() {
    let server = server();
    run(async {
        let held = claim("k").with(|it| it.ttl = 60 * SEC);
        bare(&server.url()).await.granted(&held).await;
        for older in [true, false] {
            match older {
                true => functions(&server, 0),
                false => drop(server.psql("DROP FUNCTION latchwork_keep").unwrap()),
            }
            let error = connect(&server.url()).await.err().expect("it cannot use them");
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            assert!(error.to_string().contains("functions"), "{error}");
            assert!(error.next_step().unwrap().contains("latchwork init"), "{error}");
            assert!(!examine(&server.url()).await.is_fit());
            prepare(&server.url()).await.unwrap();
            assert!(bare(&server.url()).await.held(&held).await);
        }
    });
}

/// H197: functions of revision 1 know one limit for each key; a client says so, and its other claims work.
#[test]
fn h197_older_functions_cannot_change_a_limit() {
    let server = server();
    run(async {
        functions(&server, 1);
        let old = bare(&server.url()).await;
        let permits = |of| claim("k").with(|it| it.mode = Mode::Permits { take: 1, of });
        let held = permits(3);
        old.granted(&held).await;
        let mine = permits(5).with(|it| it.resize = Resize::ToMine);
        let tried = old.try_acquire(&mine).await.err();
        for error in [tried, old.resize(&permits(5)).await.err()] {
            let error = error.expect("the functions are older");
            assert_eq!(error.kind, BackendErrorKind::Unsupported, "{error}");
            assert!(error.next_step.unwrap().contains("latchwork init"));
        }
        prepare(&server.url()).await.unwrap();
        let new = bare(&server.url()).await;
        new.granted(&mine).await;
        assert!(old.held(&held).await && new.held(&mine).await);
        // A client of before calls the functions in the same way.
        old.granted(&permits(5)).await;
    });
}

/// An administrator meets the tables without this documentation.
#[test]
fn tables_columns_and_functions_say_what_they_are() {
    let server = server();
    let silent = "SELECT string_agg(x.name, ' ') FROM ( \
           SELECT c.relname AS name FROM pg_class c WHERE c.relname ^@ 'latchwork' AND c.relkind = 'r' AND obj_description(c.oid, 'pg_class') IS NULL \
           UNION ALL SELECT c.relname || '.' || a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid \
             WHERE c.relname ^@ 'latchwork' AND c.relkind = 'r' AND a.attnum > 0 AND col_description(c.oid, a.attnum) IS NULL \
           UNION ALL SELECT p.proname FROM pg_proc p WHERE p.proname ^@ 'latchwork' AND obj_description(p.oid, 'pg_proc') IS NULL) x";
    assert_eq!(server.psql(silent).unwrap(), "");
}

#[test]
fn init_makes_a_missing_schema_if_it_is_told_to() {
    let server = server();
    run(async {
        let url = format!("{}?schema=the%20locks", server.url());
        let error = prepare(&url).await.expect_err("there is no schema");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains("the locks"), "{error}");
        assert!(error.next_step().unwrap().contains("create_schema=true"), "{error}");
        for _ in 0..2 {
            prepare(&format!("{url}&create_schema=true")).await.unwrap();
        }
        bare(&url).await.granted(&claim("k")).await;
    });
}

/// A name as a part of an address.
fn encoded(name: &str) -> String {
    name.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

/// H195: a name is taken for a part of a statement or of the templates that the statements are made from.
#[test]
fn h195_hostile_table_names_are_names() {
    let server = server();
    let names = [
        "a$name$b",
        "a$$b",
        "a\nb",
        "x.job",
        "$stand$",
        "$body0$",
        "$body0$$body1$",
        "@us@",
        "@locks@",
        "@line@ @stand@",
        "@row:x@",
        "@",
        "@@",
        "it's",
        "back\\slash",
        "\\'; DROP TABLE latchwork; --",
        "\"@literal:locks@",
    ];
    run(async {
        for name in names {
            let url = format!(
                "{}?table={}&schema={}&create_schema=true&guard=true&max_ttl=1h",
                server.url(),
                encoded(name),
                encoded(&format!("s{name}"))
            );
            prepare(&url).await.unwrap_or_else(|error| panic!("{name}: {error}"));
            let made = format!(
                "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
                 WHERE c.relname = E'{0}' AND n.nspname = E's{0}'",
                name.replace('\\', "\\\\").replace('\'', "''")
            );
            assert_eq!(server.psql(&made).unwrap(), "1", "{name}");
            let client = bare(&url).await;
            let held = claim("k").with(|it| it.ttl = 60 * SEC);
            client.granted(&held).await;
            let waits = like(&held);
            client.blocked(&waits).await;
            assert!(client.held(&held).await, "{name}");
            assert_eq!(client.released(&held).await, Released::Yes, "{name}");
            client.acquired(&waits).await;
            client.released(&waits).await;
            let last = sweeps();
            client.granted(&last).await;
            client.released(&last).await;
        }
    });
}
