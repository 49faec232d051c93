//! H202: tables, functions and triggers of somebody else, which would run their code as the user of the locks.

use crate::common::*;
use latchwork_services::{PostgresOptions, PostgresServer};
use latchwork_store::ErrorKind;
use latchwork_store::doctor::Severity;

/// A server whose schema `public` is open to everybody, as it was up to version 14, and a user who makes use of it.
fn with_guest() -> (PostgresServer, String) {
    let server = PostgresServer::start_with(&PostgresOptions::new().setting("fsync=on")).unwrap();
    server.psql("CREATE ROLE guest LOGIN; GRANT CREATE ON SCHEMA public TO PUBLIC").unwrap();
    let url = format!("postgres://guest@127.0.0.1:{}/postgres", server.port());
    (server, url)
}

fn as_guest(server: &PostgresServer, statement: &str) {
    server.psql(&format!("SET ROLE guest; {statement}")).unwrap();
}

/// `init`, a connection and `doctor` refuse what is there, and name this.
async fn refused(url: &str, named: &str) {
    for error in [prepare(url).await.err(), connect(url).await.err()] {
        let error = error.unwrap_or_else(|| panic!("{named}: it is refused"));
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains(named), "{error}");
        assert!(error.next_step().is_some(), "{error}");
    }
    found(url, named).await;
}

async fn found(url: &str, named: &str) {
    let report = examine(url).await;
    let finding = report.find("owners").unwrap_or_else(|| panic!("{named}: {report:?}"));
    assert_eq!(finding.severity, Severity::Critical, "{report:?}");
    assert!(finding.found.contains(named), "{report:?}");
}

const ESCALATES: &str = "CREATE FUNCTION rises() RETURNS trigger LANGUAGE plpgsql AS \
     $$BEGIN EXECUTE 'ALTER ROLE guest SUPERUSER'; RETURN new; EXCEPTION WHEN OTHERS THEN RETURN new; END$$;";
const TRIGGER: &str = "CREATE TRIGGER rises BEFORE INSERT OR UPDATE ON latchwork FOR EACH ROW EXECUTE FUNCTION rises()";

/// A guest prepares the tables in the operator's place, with a trigger that makes the guest a superuser.
#[test]
fn h202_tables_of_a_stranger_never_run_code_as_a_superuser() {
    let (server, guest) = with_guest();
    run(async {
        prepare(&guest).await.unwrap();
        let url = server.url();
        for url in [url.clone(), format!("{url}?guard=true"), format!("{url}?pooler=true")] {
            refused(&url, "belongs to guest").await;
        }
        as_guest(&server, &format!("{ESCALATES} {TRIGGER}"));
        for url in [url.clone(), format!("{url}?guard=true"), format!("{url}?pooler=true")] {
            refused(&url, "guest").await;
        }
        assert_eq!(
            server.psql("SELECT rolsuper FROM pg_roles WHERE rolname = 'guest'").unwrap(),
            "f"
        );
        // An application of somebody else would run their code as well.
        server
            .psql("CREATE ROLE app LOGIN; GRANT ALL ON ALL TABLES IN SCHEMA public TO app")
            .unwrap();
        let app = format!("postgres://app@127.0.0.1:{}/postgres", server.port());
        let error = connect(&app).await.err().expect("a stranger's tables");
        assert!(error.to_string().contains("guest"), "{error}");
    });
}

/// One table or function that is there already becomes a part of what `init` makes.
#[test]
fn h202_one_object_of_a_stranger_is_refused_as_well() {
    for planted in [
        "CREATE TABLE latchwork_line (k bytea)",
        "CREATE TABLE latchwork_alive (k bytea, token bigint)",
        "CREATE FUNCTION latchwork_stand(integer) RETURNS integer LANGUAGE sql AS 'SELECT 1'",
    ] {
        let (server, _) = with_guest();
        as_guest(&server, planted);
        run(async {
            let error = prepare(&server.url()).await.expect_err("a stranger's");
            assert!(error.to_string().contains("belongs to guest"), "{planted}: {error}");
            assert_eq!(server.psql("SELECT to_regclass('latchwork')").unwrap(), "");
        });
    }
}

/// What else would run, or hide rows, when a lock is written. The tables themselves are the operator's.
#[test]
fn h202_triggers_rules_and_policies_are_refused() {
    let (server, _) = with_guest();
    run(async {
        let url = server.url();
        prepare(&url).await.unwrap();
        // Each of them by itself: what makes it, what is named, and what takes it away.
        server.psql("GRANT TRIGGER ON latchwork TO guest").unwrap();
        as_guest(&server, &format!("{ESCALATES} {TRIGGER}"));
        refused(&url, "trigger rises on latchwork").await;
        server.psql("DROP TRIGGER rises ON latchwork").unwrap();
        for (make, named, undo) in [
            (
                "CREATE RULE watches AS ON INSERT TO latchwork_line DO ALSO NOTIFY seen",
                "rule watches on latchwork_line",
                "DROP RULE watches ON latchwork_line",
            ),
            (
                "ALTER TABLE latchwork ENABLE ROW LEVEL SECURITY",
                "row security of latchwork",
                "ALTER TABLE latchwork DISABLE ROW LEVEL SECURITY",
            ),
            (
                "ALTER FUNCTION latchwork_leave OWNER TO guest",
                "function latchwork_leave belongs to guest",
                "ALTER FUNCTION latchwork_leave OWNER TO postgres",
            ),
        ] {
            server.psql(make).unwrap();
            refused(&url, named).await;
            server.psql(undo).unwrap();
            bare(&url).await.granted(&claim(named)).await;
        }
        assert!(examine(&url).await.is_fit());
    });
}

/// The roles of docs/postgres.md: the owner makes the tables in a schema of its own, and the application uses them.
#[test]
fn the_owner_and_the_application_of_the_page_work() {
    let page = include_str!("../../../../docs/postgres.md");
    let recipe = page.split("```sql\n").find(|it| it.starts_with("CREATE ROLE locks_owner"));
    let recipe = recipe.expect("the page has it").split("```").next().unwrap();
    let (before, after) = recipe.split_once("-- latchwork init").expect("it has two parts");
    let server = PostgresServer::start_with(&PostgresOptions::new()).unwrap();
    server.psql("CREATE DATABASE shop").unwrap();
    let in_shop = |statements: &str| {
        let psql = std::process::Command::new("psql")
            .args(["-XqAt", "--set=ON_ERROR_STOP=1", "--dbname"])
            .arg(server.conninfo().replace("dbname=postgres", "dbname=shop"))
            .args(["--command", statements])
            .output()
            .unwrap();
        assert!(psql.status.success(), "{psql:?}");
    };
    in_shop(before);
    let url = |user: &str| {
        format!("postgres://{user}@127.0.0.1:{}/shop?schema=locks&guard=true", server.port())
    };
    run(async {
        prepare(&url("locks_owner")).await.unwrap();
        in_shop(after.split_once('\n').unwrap().1);
        let app = bare(&url("app")).await;
        let held = claim("k");
        app.granted(&held).await;
        app.blocked(&like(&held)).await;
        let report = examine(&url("app")).await;
        assert!(report.is_fit(), "{report:?}");
        assert!(report.find("vacuum").unwrap().found.contains("nothing"), "{report:?}");
        // The one who owns the schema is known to the administrator.
        bare(&url("postgres")).await;
        assert!(examine(&url("postgres")).await.is_fit());
    });
}
