//! The version of the tables, and what makes them.

use latchwork_store::{BackendError, BackendErrorKind, Effect};

use crate::config::PostgresConfig;

/// What the table of locks says of itself, in its comment.
pub(crate) const VERSION: &str = "latchwork 1";

/// Whether the tables are those of this version.
///
/// # Errors
///
/// `Invalid`, with what to do.
pub(crate) fn check(table: Option<&str>, config: &PostgresConfig) -> Result<(), BackendError> {
    let name = format!("{}.{}", config.schema, config.table);
    let (message, step) = match table {
        Some(VERSION) => return Ok(()),
        None => (
            format!("there is no table {name} in the database {}", config.database),
            "run latchwork init with this address, once, as a user who may create tables",
        ),
        Some(other) if other.starts_with("latchwork ") => (
            format!("the table {name} is that of {other}, and this client needs {VERSION}"),
            "run latchwork init with this address and the newest client, when no lock is held",
        ),
        Some(_) => (
            format!("the table {name} is not one of Latchwork"),
            "name another one: ?table=latchwork_locks",
        ),
    };
    let (kind, effect) = (BackendErrorKind::Invalid, Effect::NotApplied);
    Err(BackendError::new(kind, effect, message).next_step(step))
}
