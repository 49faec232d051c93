//! The version of the tables, and what makes them.

use latchwork_store::{BackendError, BackendErrorKind, Effect};

use crate::config::PostgresConfig;

/// The version of the tables that this client uses. The table of locks says its own by the name of a constraint, and in its
/// comment for older clients.
pub(crate) const VERSION: u32 = 3;

/// The revision of the functions that `init` makes. Raise it with each change of theirs.
pub(crate) const FUNCTIONS: u32 = 2;

/// The oldest revision of the functions that can replace a hold.
pub(crate) const REPLACING: u32 = 2;

/// The oldest revision of the functions that this client can use.
const OLDEST: u32 = 1;

/// The oldest revision whose functions know limits that change.
const RESIZING: u32 = 2;

/// The functions of a table, without its name.
pub(crate) const FUNCTIONS_OF_A_TABLE: [&str; 6] =
    ["stand", "leave", "keep", OF_THE_GUARD, "rehearse", "recheck"];
/// The one that only clients of a guarded table call.
pub(crate) const OF_THE_GUARD: &str = "heal";

/// What each function says of itself, for [`found`].
pub(crate) fn made() -> String {
    format!("latchwork {VERSION} functions {FUNCTIONS}")
}

/// What the sessions note once they have planned a function.
pub(crate) fn revision() -> String {
    format!("{VERSION}.{FUNCTIONS}")
}

/// What tells of the tables, as a part of a statement: see found.sql.
pub(crate) fn found() -> String {
    let names = FUNCTIONS_OF_A_TABLE
        .map(|name| format!("$3::text OPERATOR(pg_catalog.||) '_{name}'::text"));
    let text = include_str!("../sql/found.sql").lines().filter(|line| !line.starts_with("--"));
    let text = text.collect::<Vec<_>>().join("\n");
    text.replace("@functions@", &FUNCTIONS_OF_A_TABLE.len().to_string())
        .replace("@names@", &names.join(", "))
}

/// The statements that bring tables of each version to the next one, the oldest first. Each checks the version by
/// itself: two clients may prepare the tables at the same time.
pub(crate) const STEPS: [&str; VERSION as usize] = [
    include_str!("../sql/from_0.sql"),
    include_str!("../sql/from_1.sql"),
    include_str!("../sql/from_2.sql"),
];

/// What the comment of a table of this version is.
pub(crate) fn comment(version: u32) -> String {
    format!("latchwork {version}")
}

/// The version of tables of which that was [`found`].
pub(crate) fn version_of(found: &str) -> Option<u32> {
    found.strip_prefix("latchwork ")?.split(' ').next()?.parse().ok()
}

/// The revision of their functions; none for tables of a version before 3.
pub(crate) fn functions_of(found: &str) -> Option<u32> {
    found.strip_prefix("latchwork ")?.split(' ').nth(1)?.parse().ok()
}

/// Checks that the functions of a table of which that was [`found`] know limits that change.
///
/// # Errors
///
/// `Unsupported`, with what to do.
pub(crate) fn check_resizing(found: u32, config: &PostgresConfig) -> Result<(), BackendError> {
    if found >= RESIZING {
        return Ok(());
    }
    let message = format!(
        "functions of the table {}.{} are older than a change of the limit needs",
        config.schema, config.table
    );
    Err(BackendError::new(BackendErrorKind::Unsupported, Effect::NotApplied, message)
        .with_next_step(
            "run `latchwork init` with this address, as the owner of the table, and connect again: \
             it keeps the locks that are held",
        ))
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
        Some(version) if version <= VERSION => Ok(()),
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
    let functions = table.and_then(functions_of).unwrap_or(0);
    let (message, step) = match (table, table.and_then(version_of)) {
        (_, Some(VERSION)) if functions >= OLDEST => return Ok(()),
        (_, Some(VERSION)) => (
            format!("functions of the table {name} are missing or older than this client needs"),
            "run `latchwork init` with this address, as the owner of the table: it keeps the locks that are held",
        ),
        (None, _) => (
            format!("there is no table {name} in the database {}", config.database),
            "run `latchwork init` with this address, once, as a user who may create tables",
        ),
        (_, Some(newer)) if newer > VERSION => (
            format!(
                "the table {name} is of version {newer}, and this client knows versions up to {VERSION}"
            ),
            "use a newer client, or another table: ?table=latchwork_locks",
        ),
        (_, Some(older)) => (
            format!("the table {name} is of version {older}, and this client needs {VERSION}"),
            "run `latchwork init` with this address, as the owner of the table: it keeps the locks that are held",
        ),
        (Some(_), None) => (
            format!("the table {name} is not one of Latchwork"),
            "name another one: ?table=latchwork_locks",
        ),
    };
    let (kind, effect) = (BackendErrorKind::Invalid, Effect::NotApplied);
    Err(BackendError::new(kind, effect, message).with_next_step(step))
}
