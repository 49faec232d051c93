//! Makes the tables and functions, and vouches for a guarded table.

use std::sync::Arc;

use latchwork_store::doctor::Prepared;
use latchwork_store::{BackendError, BackendErrorKind, Error, Io};
use tokio_postgres::types::Type;

use crate::config::PostgresConfig;
use crate::names::quoted;
use crate::protocol::guard;
use crate::protocol::statements::Statements;
use crate::server::connect::{Access, For, LOCAL_PATH, Opened, takes_no_writes};
use crate::server::connection::{Checkout, Connection};
use crate::server::greet::Greeting;
use crate::server::reply::column;
use crate::server::schema::{
    FUNCTIONS, STEPS, VERSION, can_be_migrated, comment, functions_of, version_of,
};

/// Prepares a database for its first locks, and says what was done.
///
/// It makes the tables and functions that the address names, and with `create_schema=true` their schema. A table of an
/// older version is brought to this one. Functions of a newer client stay as they are. With `guard=true` the caller vouches that no lock is held that the server does not know of, and the
/// quarantine ends. That is also the way to another `max_ttl`.
///
/// # Errors
///
/// `Invalid` if the table is not one of Latchwork, if a table, a function or a trigger of it belongs to somebody else,
/// or if locks are in use and the caller vouches that there are none; else as for a connection.
///
/// # Cancel safety
///
/// May be dropped at any time, and called again.
pub async fn init(config: PostgresConfig, io: Io) -> Result<Prepared, Error> {
    let statements = Statements::new(&config);
    let access = Access::new(config, statements.list(), io);
    let mut prepared = Prepared { store: access.config.shown().into(), steps: Vec::new() };
    let opened = access.open(For::Care, None).await.map_err(|error| access.error(error))?;
    if opened.said.is_standby {
        return Err(access.error(takes_no_writes(&opened.at)));
    }
    let made = make_tables(&access, &statements, &opened, &mut prepared).await;
    let are_migrated = made.map_err(|error| {
        access.error(match error.kind {
            BackendErrorKind::Denied => error.with_next_step(format!(
                "run `latchwork init` as the owner of the tables, or of the schema, or let this user make them: \
                 GRANT CREATE ON SCHEMA {} TO {}",
                quoted(&access.config.schema),
                quoted(&access.config.login.current().0.user)
            )),
            _ => error,
        })
    })?;
    if access.config.guard {
        let checkout = Checkout::on(Arc::new(opened.connection));
        let held = in_use(&statements, &checkout).await.map_err(|error| access.error(error))?;
        if held > 0 && are_migrated {
            // Nobody has lost a lock by it.
            prepared
                .steps
                .push(format!("{held} locks are in use and stay held; the guard was not reset"));
            return Ok(prepared);
        }
        if held > 0 {
            return Err(access.invalid(format!("store: {held} locks are in use")).with_next_step(
                "stop all clients that use them, or wait for the end of the quarantine",
            ));
        }
        let max_ttl = access.config.max_ttl();
        let vouched = guard::ask(&checkout, max_ttl, true).await;
        vouched.map_err(|error| access.error(error))?;
        prepared
            .steps
            .push(format!("no quarantine for the server as it runs now; max_ttl {max_ttl:?}"));
    }
    Ok(prepared)
}

/// Says whether the tables were of an older version.
async fn make_tables(
    access: &Access,
    statements: &Statements,
    opened: &Opened,
    prepared: &mut Prepared,
) -> Result<bool, BackendError> {
    opened.said.check_version()?;
    let (schema, table) = (&access.config.schema, &access.config.table);
    let found = opened.said.table.as_deref();
    let version = found.and_then(version_of);
    let newer = found.and_then(functions_of).filter(|functions| *functions > FUNCTIONS);
    let mut migrations = String::new();
    match (found, version, newer) {
        (None, ..) => {
            if access.config.create_schema {
                migrations = format!("CREATE SCHEMA IF NOT EXISTS {};", quoted(schema));
            }
            prepared.steps.push(format!("made the table {schema}.{table} and what belongs to it"))
        }
        (_, Some(VERSION), Some(newer)) => {
            prepared.steps.push(format!(
                "the table {schema}.{table} is there; its functions are of a newer client (revision {newer}) and stay"
            ));
            return Ok(false);
        }
        (_, Some(VERSION), None) => {
            prepared
                .steps
                .push(format!("the table {schema}.{table} is there; its functions were replaced"));
        }
        (other, ..) => {
            can_be_migrated(other, &access.config)?;
            let older = version.unwrap_or_default();
            migrations = statements.fill(&STEPS[older as usize..].join("\n"));
            prepared.steps.push(format!(
                "brought the table {schema}.{table} from version {older} to {VERSION}"
            ));
        }
    }
    check_owners(access, &opened.connection, true).await?;
    let [tables, functions, comments] = statements.schema();
    // One text is one transaction. Two that are sent at the same time wait for each other. A session that waits for a
    // lock of the whole table keeps all others waiting behind it, and their renewals too.
    let text = format!(
        "{LOCAL_PATH}; SET LOCAL lock_timeout = '2s'; SELECT pg_advisory_xact_lock({}, 1);\n{migrations}\n{tables}\n{functions}\n{comments}\n{}\n{}",
        access.config.class(),
        statements.fill(&format!("COMMENT ON TABLE @locks@ IS '{}';", comment(VERSION))),
        "SELECT set_config('synchronous_commit', 'on', true);",
    );
    let connection = &opened.connection;
    connection.send(connection.client().batch_execute(&text)).await?;
    // What somebody else has made meanwhile.
    check_owners(access, connection, false).await?;
    Ok(version.is_some_and(|version| version < VERSION))
}

/// Refuses what belongs to somebody else, before a statement that writes could run their code.
async fn check_owners(
    access: &Access,
    connection: &Connection,
    is_older: bool,
) -> Result<(), BackendError> {
    let said = Greeting::of(connection, &access.config, is_older).await?;
    said.check_owners(&access.config)
}

/// How many keys are held, waited for or closed.
async fn in_use(statements: &Statements, checkout: &Checkout) -> Result<i64, BackendError> {
    let text = statements.fill(
        "SELECT count(*) FROM @locks@ l WHERE l.k <> '' AND (l.claim IS NOT NULL AND l.ends > clock_timestamp() \
         OR EXISTS (SELECT FROM @line@ p WHERE p.k = l.k AND p.mode <> 9 AND p.ends > clock_timestamp()))",
    );
    let connection = checkout.connection();
    let nothing: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 0] = [];
    let rows = connection.send(connection.client().query_typed(&text, &nothing)).await?;
    column(rows.first().ok_or_else(|| crate::server::reply::strange(0))?, 0)
}
