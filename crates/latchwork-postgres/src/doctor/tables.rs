//! Whether the tables are there, whose they are, and whether this user may use them.

use latchwork_store::BackendError;
use latchwork_store::doctor::Finding;

use super::Server;
use crate::names::quoted;
use crate::protocol::statements::literal;
use crate::server::greet::{RIGHTS, table};
use crate::server::schema;

/// The indexes that statements search and constrain by, those of the primary keys aside.
const INDEXES: [&str; 2] = ["@claims@", "@held@"];
/// More rows that nobody has used for an hour are worth a word.
const MANY: i64 = 100_000;

/// What is found, and whether the tables can be used.
pub(super) async fn examine(server: &Server<'_>) -> (Vec<Finding>, bool) {
    let (said, config) = (&server.opened.said, server.config());
    let unusable = |code, error: BackendError| {
        Finding::critical(code, error.message)
            .consequence("no lock can be acquired")
            .remedy(error.next_step.unwrap_or_default())
    };
    if let Err(error) = schema::check(said.table.as_deref(), config) {
        return (vec![unusable("tables", error)], false);
    }
    let mut findings = vec![Finding::ok("tables", format!("version {}", schema::VERSION))];
    let owners = said.check_owners(config);
    let mut usable = owners.is_ok();
    findings.push(match owners {
        Ok(()) => Finding::ok("owners", "tables and functions belong to those who are trusted"),
        Err(error) => unusable("owners", error),
    });
    let (found, are_granted) = rights(server).await;
    findings.push(found);
    usable &= are_granted;
    findings.push(functions(server).await);
    findings.extend(indexes(server).await);
    findings.extend(persistence(server).await);
    findings.extend(autovacuum(server).await);
    findings.extend(public(server).await);
    findings.push(sizes(server).await);
    findings.extend(idle_rows(server).await);
    (findings, usable)
}

/// What the user may not do, and the statements that let it.
async fn rights(server: &Server<'_>) -> (Finding, bool) {
    let config = server.config();
    let user = quoted(&config.login.current().0.user);
    let (mut missing, mut grants) = (Vec::new(), Vec::new());
    for (suffix, rights) in RIGHTS {
        let name = table(config, suffix);
        let mut lacking = Vec::new();
        for right in rights {
            let text = format!("SELECT has_table_privilege({}, '{right}')", literal(&name));
            if server.value(&text).await != Some(true) {
                lacking.push(*right);
            }
        }
        if lacking.is_empty() {
            continue;
        }
        missing.push(format!("{} on {name}", lacking.join(", ")));
        grants.push(format!("GRANT {} ON {name} TO {user}", lacking.join(", ")));
    }
    if let Err(error) = server.opened.said.check_rights(config) {
        missing.push(error.message);
        grants.extend(error.next_step);
    }
    let usable = missing.is_empty();
    let finding = match usable {
        true => Finding::ok("rights", "all that locks need"),
        false => Finding::critical("rights", format!("missing: {}", missing.join(", ")))
            .consequence("no lock can be acquired, or waited for")
            .remedy(grants.join("; ")),
    };
    (finding, usable)
}

/// Each statement is prepared, unless a pooler could keep it: that names a function which is missing.
async fn functions(server: &Server<'_>) -> Finding {
    let connection = &server.opened.connection;
    let found = match connection.pooled {
        true => None,
        false => connection.examine().await.err(),
    };
    let Some(error) = found else {
        return Finding::ok("functions", "those of this client's version");
    };
    Finding::critical("functions", error.message)
        .consequence("no lock can be acquired")
        .remedy(error.next_step.unwrap_or_default())
}

async fn indexes(server: &Server<'_>) -> Option<Finding> {
    let mut missing = Vec::new();
    for index in INDEXES {
        let text = format!(
            "SELECT EXISTS (SELECT FROM pg_index i WHERE i.indexrelid = to_regclass({}) AND i.indisvalid)",
            server.literal(index)
        );
        if server.value(&text).await == Some(false) {
            missing.push(server.statements.fill(index));
        }
    }
    if missing.is_empty() {
        return None;
    }
    Some(
        Finding::critical("indexes", format!("missing or not valid: {}", missing.join(", ")))
            .consequence("each change of a queue reads the whole table, and locks come too late")
            .remedy("run `latchwork init` with this address, as the owner of the tables"),
    )
}

/// Somebody may have made a table faster that must survive a crash.
async fn persistence(server: &Server<'_>) -> Option<Finding> {
    let names = ["@locks@", "@line@"]
        .map(|name| format!("to_regclass({})", server.literal(name)))
        .join(", ");
    let text = format!(
        "SELECT string_agg(c.oid::regclass::text, chr(10)) FROM pg_class c WHERE c.oid IN ({names}) AND c.relpersistence <> 'p'"
    );
    let unlogged: String = server.value(&text).await?;
    let tables: Vec<_> = unlogged.lines().collect();
    Some(
        Finding::critical("logged", format!("not logged: {}", tables.join(", ")))
            .consequence("a crash empties the table: two holders")
            .remedy(
                tables
                    .iter()
                    .map(|table| format!("ALTER TABLE {table} SET LOGGED"))
                    .collect::<Vec<_>>()
                    .join("; "),
            ),
    )
}

async fn autovacuum(server: &Server<'_>) -> Option<Finding> {
    let names = ["@locks@", "@line@"]
        .map(|name| format!("to_regclass({})", server.literal(name)))
        .join(", ");
    let text = format!(
        "SELECT string_agg(c.oid::regclass::text, ', ') FROM pg_class c WHERE c.oid IN ({names}) \
         AND (current_setting('autovacuum') = 'off' OR EXISTS (SELECT FROM unnest(c.reloptions) o (o) \
         WHERE o IN ('autovacuum_enabled=off', 'autovacuum_enabled=false', 'autovacuum_enabled=0', 'autovacuum_enabled=no')))"
    );
    let off: String = server.value(&text).await?;
    Some(
        Finding::warning("autovacuum", format!("off for {off}"))
            .consequence("dead rows of queues stay: the tables grow, and each lock becomes slower")
            .remedy("set autovacuum on; ALTER TABLE .. RESET (autovacuum_enabled)"),
    )
}

/// What everybody may do with the tables.
async fn public(server: &Server<'_>) -> Option<Finding> {
    let (locks, line) = (server.literal("@locks@"), server.literal("@line@"));
    let may = |rights: &str| {
        format!(
            "SELECT has_table_privilege('public', {locks}, '{rights}') OR has_table_privilege('public', {line}, '{rights}')"
        )
    };
    let remedy =
        "REVOKE ALL ON the tables FROM PUBLIC, and grant the rights to the users of the locks";
    if server.value(&may("INSERT, UPDATE, DELETE, TRUNCATE")).await == Some(true) {
        return Some(
            Finding::warning("public", "everybody may change the tables")
                .consequence("any user of the database can end a hold, or take a lock for another")
                .remedy(remedy),
        );
    }
    if server.value(&may("SELECT")).await == Some(true) {
        return Some(
            Finding::info("public", "everybody may read the tables")
                .consequence("names of locks and of their holders are no secret in this database")
                .remedy(remedy),
        );
    }
    None
}

async fn sizes(server: &Server<'_>) -> Finding {
    let text = format!(
        "SELECT (SELECT count(*) FROM @locks@ l WHERE l.k <> '' AND (l.crowd OR l.ends > clock_timestamp() \
         AND l.claim IS NOT NULL)) || ' held or waited for; ' || (SELECT count(*) FROM @locks@ WHERE k <> '') \
         || ' rows, ' || pg_size_pretty(pg_total_relation_size(to_regclass({})) + pg_total_relation_size(to_regclass({})))",
        server.literal("@locks@"),
        server.literal("@line@")
    );
    match server.value::<String>(&text).await {
        Some(found) => Finding::ok("locks", found),
        None => Finding::warning("locks", "they cannot be counted")
            .consequence("the locks cannot be checked, and perhaps not acquired")
            .remedy("see the other findings"),
    }
}

/// Rows of keys stay for a while after their last use.
async fn idle_rows(server: &Server<'_>) -> Option<Finding> {
    let text = "SELECT count(*) FROM @locks@ l WHERE l.k <> '' AND NOT l.crowd \
         AND l.ends < clock_timestamp() - interval '1 hour' \
         AND (l.closed IS NULL OR l.closed < clock_timestamp() - interval '1 hour')";
    let rows: i64 = server.value(text).await?;
    if rows <= MANY {
        return None;
    }
    Some(
        Finding::info("idle-rows", format!("{rows} rows of keys that nobody has used for an hour"))
            .consequence("they take room on the disk, and make listings slower")
            .remedy("keep a client running: every ten minutes it removes them; use names that come back, not a new id each time"),
    )
}
