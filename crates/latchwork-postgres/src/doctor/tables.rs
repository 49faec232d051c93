//! Whether the tables are there, and whether this user may use them.

use latchwork_store::doctor::Finding;

use super::Server;
use crate::schema;

/// What the user needs, by the tables' names.
const RIGHTS: &[(&str, &[&str])] = &[
    ("@locks@", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("@line@", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("@alive@", &["SELECT", "INSERT", "UPDATE"]),
];

/// What is found, and whether the tables can be used.
pub(super) async fn examine(server: &Server<'_>) -> (Vec<Finding>, bool) {
    let table = &server.opened.table;
    if let Err(error) = schema::check(table.as_deref(), server.config()) {
        let found = Finding::critical("tables", error.message.clone())
            .consequence("no lock can be acquired")
            .remedy(error.next_step.unwrap_or_default());
        return (vec![found], false);
    }
    let mut findings = vec![Finding::ok("tables", format!("version {}", schema::VERSION))];
    let mut missing = Vec::new();
    for (table, rights) in RIGHTS {
        for right in *rights {
            let name = server.access.statements.fill(table);
            let text = "SELECT has_table_privilege($1, $2)";
            let params = [
                (
                    &name as &(dyn tokio_postgres::types::ToSql + Sync),
                    tokio_postgres::types::Type::TEXT,
                ),
                (right, tokio_postgres::types::Type::TEXT),
            ];
            if !matches!(server.ask(text, &params).await, Ok(Some(true))) {
                missing.push(format!("{right} on {name}"));
            }
        }
    }
    let usable = missing.is_empty();
    findings.push(match usable {
        true => Finding::ok("rights", "all that locks need"),
        false => Finding::critical("rights", format!("missing: {}", missing.join(", ")))
            .consequence("no lock can be acquired, or waited for")
            .remedy("let the owner of the tables grant them"),
    });
    findings.extend(persistence(server).await);
    findings.push(sizes(server).await);
    (findings, usable)
}

/// Somebody may have made a table faster that must survive a crash.
async fn persistence(server: &Server<'_>) -> Option<Finding> {
    let text = "SELECT string_agg(c.oid::regclass::text, ', ') FROM pg_class c \
         WHERE c.oid IN (to_regclass($1), to_regclass($2), to_regclass($3)) AND c.relpersistence <> 'p'";
    let names = ["@locks@", "@line@", "@fence@"].map(|name| server.access.statements.fill(name));
    let params = names.each_ref().map(|name| {
        (name as &(dyn tokio_postgres::types::ToSql + Sync), tokio_postgres::types::Type::TEXT)
    });
    let unlogged: String = server.ask(text, &params).await.ok().flatten()?;
    Some(
        Finding::critical("logged", format!("not logged: {unlogged}"))
            .consequence(
                "a crash empties the table: two holders, or tokens that a fence admits again",
            )
            .remedy("ALTER TABLE .. SET LOGGED"),
    )
}

async fn sizes(server: &Server<'_>) -> Finding {
    let text = "SELECT (SELECT count(*) FROM @locks@ l WHERE l.k <> '' AND (l.crowd OR l.ends > clock_timestamp() \
         AND l.claim IS NOT NULL)) || ' held or waited for; ' || (SELECT count(*) FROM @locks@ WHERE k <> '') \
         || ' rows, ' || pg_size_pretty(pg_total_relation_size('@locks@') + pg_total_relation_size('@line@'))";
    match server.value::<String>(text).await {
        Some(found) => Finding::ok("locks", found),
        None => Finding::warning("locks", "they cannot be counted")
            .consequence("the locks cannot be checked, and perhaps not acquired")
            .remedy("see the other findings"),
    }
}
