//! What PostgreSQL and the connection say, in the words of the contract.

use std::error::Error as _;
use std::time::Duration;

use latchwork_store::{BackendError, BackendErrorKind, Effect};
use latchwork_wire::tls;
use tokio_postgres::Error;
use tokio_postgres::error::{DbError, Severity, SqlState};

/// The server refused or failed what was asked, or the connection ended.
pub(crate) fn failure(error: &Error) -> BackendError {
    match error.as_db_error() {
        Some(said) => refusal(said),
        None => lost(&root_cause(error)),
    }
}

/// The connection ended before the answer came.
pub(crate) fn lost(why: &str) -> BackendError {
    BackendError::new(
        BackendErrorKind::Unreachable,
        Effect::Unknown,
        format!("the connection ended before the answer came: {why}"),
    )
    .with_next_step("check that the server is running; `latchwork doctor` examines it")
}

/// Nothing was asked.
pub(crate) fn unsent(why: &str) -> BackendError {
    let (kind, effect) = (BackendErrorKind::Unreachable, Effect::NotApplied);
    BackendError::new(kind, effect, format!("the request was not sent: {why}"))
        .with_next_step("check that the server is running; `latchwork doctor` examines it")
}

/// A connection could not be made: nothing was asked.
pub(crate) fn not_connected(at: &str, error: &Error) -> BackendError {
    match error.as_db_error() {
        Some(said) => {
            let mut refused = refusal(said).with_effect(Effect::NotApplied);
            refused.message = format!("{at} refuses the connection: {}", said.message());
            refused
        }
        None => match tls::refusal(error, &WORDS) {
            Some(refusal) => not_reached(at, &refusal.said).with_next_step(refusal.step),
            None => not_reached(at, &root_cause(error)),
        },
    }
}

/// What an address calls the parts of TLS.
const WORDS: tls::OptionNames = tls::OptionNames {
    authority: "sslrootcert=/path",
    client: "sslcert=/path and sslkey=/path",
    plain: "sslmode=disable",
    secure: "sslmode=require",
};

/// No connection to the server, for this reason.
pub(crate) fn not_reached(at: &str, why: &str) -> BackendError {
    let (kind, step) = if why.contains(NO_TLS) {
        (
            BackendErrorKind::Unreachable,
            "set ssl = on at the server, or sslmode=disable in the address",
        )
    } else if why.contains(PASSWORD_MISSING) {
        // No later try has one, unless the source of the address does.
        (
            BackendErrorKind::Denied,
            "give a password: postgres://user:password@host/database, PGPASSWORD, or a line of ~/.pgpass",
        )
    } else {
        (
            BackendErrorKind::Unreachable,
            "check that the server is running and the address is correct",
        )
    };
    BackendError::new(kind, Effect::NotApplied, format!("no connection to {at}: {why}"))
        .with_next_step(step)
}

/// The server did not answer within the limit of the address, on a connection or to a request for one.
pub(crate) fn late(at: &str, limit: Duration, has_taken_it: bool) -> BackendError {
    match has_taken_it {
        true => not_reached(at, &format!("it takes connections, and did not answer within {limit:?}"))
            .with_next_step(
                "check that the server, or the one behind a pooler or a balancer, is running; a slow login needs a larger \
                 connect_timeout in the address",
            ),
        false => not_reached(at, &format!("no answer within {limit:?}")),
    }
}

/// What the library says if TLS is required, and the server has none.
const NO_TLS: &str = "server does not support TLS";
/// What the library says if the server asks for a password and it has none.
const PASSWORD_MISSING: &str = "password missing";

/// Adds why no password was found, if that is what the connection failed for.
pub(crate) fn without_password(mut error: BackendError, reason: Option<&str>) -> BackendError {
    if let Some(reason) = reason.filter(|_| error.message.contains(PASSWORD_MISSING)) {
        error.message = format!("{}: {reason}", error.message);
    }
    error
}

/// Whether it is the login that was refused, or is missing. A pooler has no code of its own for it.
pub(crate) fn is_login_refused(error: &BackendError) -> bool {
    let says = |words| error.message.contains(words);
    error.kind == BackendErrorKind::Denied
        || says(PASSWORD_MISSING)
        || says("authentication failed")
}

/// Whether `pg_hba.conf` refuses the user, as opposed to a password.
pub(crate) fn is_by_rules(error: &Error) -> bool {
    error.code() == Some(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION)
}

const SUPERSEDED: &str = "the source of the login names another one now";

/// The user of a connection lacks a right, and is not the one that is to be used now.
pub(crate) fn superseded(refusal: &BackendError) -> BackendError {
    let message = format!("{}; {SUPERSEDED}", refusal.message);
    BackendError::new(BackendErrorKind::Unreachable, refusal.effect, message)
        .with_next_step("try again: the next connection is that of the other login")
}

/// Whether the same may be asked as the user that counts now.
pub(crate) fn is_superseded(error: &BackendError) -> bool {
    error.effect == Effect::NotApplied && error.message.ends_with(SUPERSEDED)
}

/// No connection through a socket in the file system.
pub(crate) fn no_socket(at: &str, error: &std::io::Error) -> BackendError {
    let step = match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            "let this user enter the folder: unix_socket_permissions and unix_socket_group of the server"
        }
        _ => "check that the server is running, and its unix_socket_directories and port",
    };
    not_reached(at, &error.to_string()).with_next_step(step)
}

/// What an error goes back to.
fn root_cause(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = error.to_string();
        cause = error.source();
    }
    text
}

fn refusal(said: &DbError) -> BackendError {
    use BackendErrorKind::{Corrupt, Denied, Invalid, Unreachable};
    let code = said.code();
    let is = |codes: &[&SqlState]| codes.contains(&code);
    let starts = |class: &str| code.code().starts_with(class);
    // PgBouncer has one code for all that it refuses.
    let pooler_says = |words: &str| starts("08") && said.message().contains(words);
    let (kind, step) = if starts("28") && said.message().contains("no encryption") {
        (Denied, "use sslmode=require: pg_hba.conf lets this user in by TLS alone")
    } else if starts("28") || pooler_says("authentication failed") {
        (Denied, "check the user, the password and pg_hba.conf")
    } else if is(&[&SqlState::INSUFFICIENT_PRIVILEGE]) {
        (
            Denied,
            "run `latchwork doctor` with this address: it prints the GRANT statements that are missing",
        )
    } else if is(&[&SqlState::INVALID_SCHEMA_NAME]) {
        (
            Invalid,
            "make the schema, or add create_schema=true to the address and run `latchwork init`",
        )
    } else if is(&[&SqlState::UNDEFINED_TABLE, &SqlState::UNDEFINED_FUNCTION]) {
        (Invalid, "run `latchwork init` with this address, once")
    } else if is(&[&SqlState::UNDEFINED_COLUMN, &SqlState::DATATYPE_MISMATCH]) {
        (Corrupt, "the tables are of another version: run `latchwork init` with this address")
    } else if pooler_says(" pkt") {
        (
            Invalid,
            "this is the console of PgBouncer: name the database of the locks in the address, after the host and a /",
        )
    } else if is(&[&SqlState::INVALID_CATALOG_NAME])
        || pooler_says("no such database")
        || (pooler_says("database") && pooler_says("does not exist"))
    {
        (Invalid, "create the database, or name another one in the address")
    } else if is(&[&SqlState::READ_ONLY_SQL_TRANSACTION]) {
        (Unreachable, NO_WRITES_STEP)
    } else if is(&[&SqlState::LOCK_NOT_AVAILABLE]) {
        (Unreachable, "another transaction keeps the row or the table locked: end it, or try again")
    } else if is(&[&SqlState::QUERY_CANCELED]) {
        (Unreachable, "try again; statement_timeout of the role or the database is too short")
    } else if starts("40") {
        (Unreachable, "try again; `latchwork doctor` checks the isolation level")
    } else if is(&[&SqlState::DISK_FULL]) {
        (Unreachable, "make room on the server's disk")
    } else if is(&[&SqlState::OUT_OF_MEMORY]) {
        (
            Unreachable,
            "the server has no memory or no room for locks: see its log, and pg_locks for the session that has most of them; \
             end it, or raise max_locks_per_transaction",
        )
    } else if starts("53") {
        (
            Unreachable,
            "the server takes no more connections: raise max_connections, or use a pooler",
        )
    } else {
        (Unreachable, "")
    };
    // After an error of a statement the transaction was rolled back. When the server ends the
    // connection, the transaction may have been committed before.
    let ends = matches!(said.parsed_severity(), Some(Severity::Fatal | Severity::Panic) | None);
    let effect = if ends { Effect::Unknown } else { Effect::NotApplied };
    let message = format!("PostgreSQL says: {} (SQLSTATE {})", said.message(), code.code());
    let error = BackendError::new(kind, effect, message);
    if step.is_empty() { error } else { error.with_next_step(step) }
}

/// What to do about a server that takes no writes.
pub(crate) const NO_WRITES_STEP: &str =
    "name the primary, or all servers, in the address, or set default_transaction_read_only to off";

/// The statement has waited for a lock of the server's for as long as it may, and has had no effect.
pub(crate) fn is_locked(error: &BackendError) -> bool {
    let code = SqlState::LOCK_NOT_AVAILABLE.code();
    error.effect == Effect::NotApplied && error.message.ends_with(&format!("(SQLSTATE {code})"))
}

/// The commit is in this server's log, and no standby has confirmed it.
pub(crate) fn not_replicated() -> BackendError {
    BackendError::new(
        BackendErrorKind::Unreachable,
        Effect::Unknown,
        "the commit was not confirmed by the synchronous standby",
    )
    .with_next_step("check the standby; the claim is settled by its id")
}
