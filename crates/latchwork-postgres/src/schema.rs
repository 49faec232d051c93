//! The version of the tables, and what makes them.

use latchwork_store::{BackendError, BackendErrorKind, Effect};

use crate::config::PostgresConfig;

/// The version of the tables that this client uses. The table of locks says its own in its comment.
pub(crate) const VERSION: u32 = 2;

/// The statements that bring tables of each version to the next one, the oldest first. Each checks the version by
/// itself: two clients may prepare the tables at the same time.
pub(crate) const STEPS: [&str; VERSION as usize] =
    [include_str!("sql/from_0.sql"), include_str!("sql/from_1.sql")];

/// What the comment of a table of this version is.
pub(crate) fn comment(version: u32) -> String {
    format!("latchwork {version}")
}

/// The version that a comment tells of.
pub(crate) fn version_of(comment: &str) -> Option<u32> {
    comment.strip_prefix("latchwork ")?.parse().ok()
}

/// Whether `init` can bring the tables to this version.
///
/// # Errors
///
/// As for [`check`].
pub(crate) fn can_be_migrated(
    table: Option<&str>,
    config: &PostgresConfig,
) -> Result<(), BackendError> {
    match table.and_then(version_of) {
        Some(version) if version < VERSION => Ok(()),
        _ => check(table, config),
    }
}

/// Whether the tables are those of this version.
///
/// # Errors
///
/// `Invalid`, with what to do.
pub(crate) fn check(table: Option<&str>, config: &PostgresConfig) -> Result<(), BackendError> {
    let name = format!("{}.{}", config.schema, config.table);
    let (message, step) = match (table, table.and_then(version_of)) {
        (_, Some(VERSION)) => return Ok(()),
        (None, _) => (
            format!("there is no table {name} in the database {}", config.database),
            "run latchwork init with this address, once, as a user who may create tables",
        ),
        (_, Some(newer)) if newer > VERSION => (
            format!(
                "the table {name} is of version {newer}, and this client knows versions up to {VERSION}"
            ),
            "use a newer client, or another table: ?table=latchwork_locks",
        ),
        (_, Some(older)) => (
            format!("the table {name} is of version {older}, and this client needs {VERSION}"),
            "run latchwork init with this address, as the owner of the table: it keeps the locks that are held",
        ),
        (Some(_), None) => (
            format!("the table {name} is not one of Latchwork"),
            "name another one: ?table=latchwork_locks",
        ),
    };
    let (kind, effect) = (BackendErrorKind::Invalid, Effect::NotApplied);
    Err(BackendError::new(kind, effect, message).next_step(step))
}
