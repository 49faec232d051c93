//! Statements for a resource in a database.
//!
//! Use them when what the lock protects is written to PostgreSQL, MySQL or SQLite. The database
//! keeps the largest token that has written, and the statement that checks a token also stores it.
//! The number of changed rows tells whether the token was admitted. Run it inside the transaction
//! that writes, before the write: until that ends, no other token is admitted, and if it is rolled
//! back, the token was never seen.
//!
//! There are two ways. [`Fences`] is a table of its own with a row for each resource, whatever the
//! resource consists of. [`Dialect::condition`] and [`Dialect::assignment`] are for a resource that
//! is a row with a column for the token: they need no second statement.
//!
//! This is text alone, for any client. For two clients of PostgreSQL, the features `fence-tokio-postgres-0_7`
//! and `fence-sqlx-0_8` have a call that runs it: `Fences::check`. Tokens are below 2^63 and fit a `BIGINT`: [`bigint`].
//!
//! # Examples
//!
//! ```
//! use latchwork::fence::sql::{Dialect, Fences};
//!
//! # fn main() -> Result<(), latchwork::Error> {
//! let fences = Fences::new(Dialect::PostgreSql, "fences")?;
//! let once = fences.create_table();
//! let each_time = fences.admit(); // 1 row: go on and write; 0 rows: roll back
//! assert!(each_time.text.starts_with("INSERT INTO fences (resource, token) VALUES ($1, $2)"));
//!
//! let d = Dialect::Sqlite;
//! let sell = format!(
//!     "UPDATE stock SET amount = ?1, {} WHERE id = ?2 AND {}",
//!     d.assignment("token", 3)?,
//!     d.condition("token", 3)?,
//! );
//! assert_eq!(sell, "UPDATE stock SET amount = ?1, token = ?3 WHERE id = ?2 AND token <= ?3");
//! # let _ = once;
//! # Ok(())
//! # }
//! ```

use std::time::Duration;

use latchwork_store::{Error, ErrorKind, FencingToken};

/// A kind of database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dialect {
    /// PostgreSQL, from 9.6 on.
    PostgreSql,
    /// MySQL, from 5.7 on, with tables of InnoDB.
    MySql,
    /// SQLite, from 3.24 on.
    Sqlite,
}

/// A statement and its parameters, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    /// The statement.
    pub text: String,
    /// Its parameters.
    pub parameters: &'static [Parameter],
}

/// A parameter of a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Parameter {
    /// The name of the resource: text.
    Resource,
    /// The token: a 64-bit integer, see [`bigint`].
    Token,
}

use Parameter::{Resource, Token};

/// A table that keeps the largest token of each resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fences {
    dialect: Dialect,
    table: String,
    idle_limit: Option<Duration>,
}

impl Fences {
    /// Creates the statements for a table, `fences` or `app.fences`.
    ///
    /// # Errors
    ///
    /// `Invalid` for a name that would have to be quoted.
    pub fn new(dialect: Dialect, table: impl Into<String>) -> Result<Self, Error> {
        let table = table.into();
        let parts = table.split('.').count();
        if parts > 2 || !table.split('.').all(is_plain) {
            return Err(not_plain("table", &table));
        }
        Ok(Self { dialect, table, idle_limit: Some(Duration::from_secs(10)) })
    }

    /// Sets how long a transaction may be idle after its check before PostgreSQL ends it: 10 s if it is not set, `None` for
    /// no limit. At least a millisecond.
    ///
    /// The row of the resource is locked until the transaction ends. If the process of a holder stops after its check, the
    /// next holder waits for that long, and the commit of the stopped one fails. A shorter limit of the session stays.
    /// Other databases have no such limit for one transaction.
    #[must_use]
    pub fn idle_limit(self, idle_limit: impl Into<Option<Duration>>) -> Self {
        Self { idle_limit: idle_limit.into(), ..self }
    }

    /// Creates the table if it does not exist.
    ///
    /// A resource's name has at most 255 bytes on MySQL, and 2,600 on PostgreSQL. The table refuses what is no token: a negative number, and on
    /// SQLite a text, bytes or a fraction. MySQL before 8.0.16 and MariaDB before 10.2 do not check that.
    pub fn create_table(&self) -> String {
        let table = &self.table;
        match self.dialect {
            // In the order of bytes: with another one, an index is out of order after an upgrade of the C library, a
            // row is not found, and its resource gets a second one.
            Dialect::PostgreSql => format!(
                "CREATE TABLE IF NOT EXISTS {table} (\
                 resource TEXT COLLATE \"C\" PRIMARY KEY, token BIGINT NOT NULL CHECK (token >= 0))"
            ),
            // Bytes, so that no collation takes two names for one.
            Dialect::MySql => format!(
                "CREATE TABLE IF NOT EXISTS {table} (\
                 resource VARBINARY(255) PRIMARY KEY, \
                 token BIGINT NOT NULL CHECK (token >= 0), \
                 admitted BIGINT NOT NULL DEFAULT 0) ENGINE=InnoDB"
            ),
            Dialect::Sqlite => format!(
                "CREATE TABLE IF NOT EXISTS {table} (\
                 resource TEXT PRIMARY KEY NOT NULL, token INTEGER NOT NULL \
                 CHECK (typeof(token) = 'integer' AND token >= 0)) WITHOUT ROWID"
            ),
        }
    }

    /// Inserts the row of a resource if it does not exist.
    ///
    /// Needed on MySQL only, once, when a resource is made: until then
    /// [`admit`](Fences::admit) admits no token for it. It may also run before each `admit`, in the same transaction.
    pub fn register(&self) -> Statement {
        let (table, one) = (&self.table, self.dialect.parameter(1));
        let text = match self.dialect {
            Dialect::PostgreSql | Dialect::Sqlite => format!(
                "INSERT INTO {table} (resource, token) VALUES ({one}, 0) \
                 ON CONFLICT (resource) DO NOTHING"
            ),
            // `INSERT IGNORE` would share the lock of a row that is there, so that of two transactions that want it for
            // themselves next, in `admit`, one is ended as a deadlock; and it would cut a name that is too long.
            Dialect::MySql => format!(
                "INSERT INTO {table} (resource, token) VALUES ({one}, 0) \
                 ON DUPLICATE KEY UPDATE token = token"
            ),
        };
        Statement { text, parameters: &[Resource] }
    }

    /// Admits a token unless a larger one was admitted for the resource, and stores it.
    ///
    /// It changes one row if the token is admitted and none if it is not: roll back then, the lock
    /// has passed on. Two transactions that ask for one resource wait for each other; at the
    /// isolation levels above `READ COMMITTED` the second may fail with a serialization error in
    /// place of an answer. On PostgreSQL it also sets the [`idle_limit`](Self::idle_limit) of the transaction.
    pub fn admit(&self) -> Statement {
        let table = &self.table;
        let (one, two) = (self.dialect.parameter(1), self.dialect.parameter(2));
        match self.dialect {
            Dialect::PostgreSql | Dialect::Sqlite => Statement {
                text: format!(
                    "INSERT INTO {table} (resource, token) VALUES ({one}, {two}) \
                     ON CONFLICT (resource) DO UPDATE SET token = excluded.token \
                     WHERE {}.token <= excluded.token{}{}",
                    self.unqualified(),
                    self.only_integers(),
                    self.returning_limit()
                ),
                parameters: &[Resource, Token],
            },
            // An upsert there takes no condition, and counts an update as one row or as two, as
            // the client likes. The count of a plain update is one either way if the row changes,
            // which `admitted` sees to when the token is the same.
            Dialect::MySql => Statement {
                text: format!(
                    "UPDATE {table} SET token = ?, admitted = admitted + 1 \
                     WHERE resource = ? AND token <= ?"
                ),
                parameters: &[Token, Resource, Token],
            },
        }
    }

    /// Reads the largest token that was admitted for the resource: one row with it, or none.
    ///
    /// For a message after a token was refused, in the same transaction.
    pub fn newest(&self) -> Statement {
        let (table, one) = (&self.table, self.dialect.parameter(1));
        // A plain read there may show what was before the transaction began.
        let lock = if self.dialect == Dialect::MySql { " LOCK IN SHARE MODE" } else { "" };
        let text = format!("SELECT token FROM {table} WHERE resource = {one}{lock}");
        Statement { text, parameters: &[Resource] }
    }

    #[cfg(any(feature = "fence-sqlx-0_8", feature = "fence-tokio-postgres-0_7"))]
    pub(super) fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// SQLite keeps a text or a fraction in a column of integers, and orders every text above them: a table
    /// without the check of [`create_table`](Self::create_table) could have one.
    fn only_integers(&self) -> String {
        match self.dialect {
            Dialect::PostgreSql | Dialect::MySql => String::new(),
            Dialect::Sqlite => format!(
                " AND typeof({0}.token) = 'integer' AND typeof(excluded.token) = 'integer' \
                 AND excluded.token >= 0",
                self.unqualified()
            ),
        }
    }

    /// Limits how long the transaction may be idle, unless a shorter limit is set.
    fn returning_limit(&self) -> String {
        let (Dialect::PostgreSql, Some(limit)) = (self.dialect, self.idle_limit) else {
            return String::new();
        };
        let limit = limit.as_millis().clamp(1, 2_147_483_647);
        let set = "pg_catalog.current_setting('idle_in_transaction_session_timeout')";
        format!(
            " RETURNING pg_catalog.set_config('idle_in_transaction_session_timeout', \
             CASE WHEN CAST({set} AS interval) BETWEEN interval '1 ms' AND interval '{limit} ms' \
             THEN {set} ELSE '{limit}ms' END, true)"
        )
    }

    /// The table's name as the row of an upsert is called.
    fn unqualified(&self) -> &str {
        self.table.rsplit('.').next().unwrap_or(&self.table)
    }
}

impl Dialect {
    /// The condition that admits a token, for a row with a column that keeps the largest: `token <=
    /// $3`. No row changed means that the holder was superseded, or that there is no such row.
    ///
    /// On MySQL, whose parameters have no numbers, the token is given again for each `?`; and a
    /// client that counts changed rows only, not found ones, needs a write that changes the row.
    ///
    /// # Errors
    ///
    /// `Invalid` for a column that would have to be quoted.
    pub fn condition(self, column: &str, parameter: usize) -> Result<String, Error> {
        self.compare(column, "<=", parameter)
    }

    /// The assignment that stores the token: `token = $3`.
    ///
    /// # Errors
    ///
    /// `Invalid` for a column that would have to be quoted.
    pub fn assignment(self, column: &str, parameter: usize) -> Result<String, Error> {
        self.compare(column, "=", parameter)
    }

    fn compare(self, column: &str, sign: &str, parameter: usize) -> Result<String, Error> {
        if !is_plain(column) {
            return Err(not_plain("column", column));
        }
        Ok(format!("{column} {sign} {}", self.parameter(parameter)))
    }

    /// The `number`-th parameter, from 1.
    fn parameter(self, number: usize) -> String {
        match self {
            Self::PostgreSql => format!("${number}"),
            Self::Sqlite => format!("?{number}"),
            Self::MySql => "?".to_owned(),
        }
    }
}

/// Returns the token as the integer that a database stores.
///
/// Tokens of holds are below 2^63. A number above, which no store gives, becomes a negative one: no fence admits it
/// after any other, and a table of [`Fences`] refuses it altogether. [`FencingToken::to_bigint`] is an error for it.
pub fn bigint(token: FencingToken) -> i64 {
    i64::try_from(token.get()).unwrap_or(i64::MIN)
}

/// Whether a name needs no quotes: letters, digits and `_`, a letter or `_` first.
fn is_plain(name: &str) -> bool {
    let first = name.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    first && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

fn not_plain(field: &str, name: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("{field}: {name:?} would have to be quoted"))
        .with_next_step("use ASCII letters, digits and _, not beginning with a digit")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_dialect_has_its_own_words() {
        let of = |dialect| Fences::new(dialect, "app.fences").unwrap().idle_limit(None);
        let upsert = "ON CONFLICT (resource) DO UPDATE SET token = excluded.token \
                      WHERE fences.token <= excluded.token";
        for (dialect, values) in [(Dialect::PostgreSql, "($1, $2)"), (Dialect::Sqlite, "(?1, ?2)")]
        {
            let admit = of(dialect).admit();
            let insert = format!("INSERT INTO app.fences (resource, token) VALUES {values} ");
            let integers = match dialect {
                Dialect::Sqlite => {
                    " AND typeof(fences.token) = 'integer' AND typeof(excluded.token) = 'integer' \
                     AND excluded.token >= 0"
                }
                _ => "",
            };
            assert_eq!(admit.text, insert + upsert + integers);
            assert_eq!(admit.parameters, [Resource, Token]);
            let limited = of(dialect).idle_limit(Duration::ZERO).admit().text;
            let limit = limited.strip_prefix(&admit.text).unwrap();
            assert_eq!(limit.contains("ELSE '1ms' END"), dialect == Dialect::PostgreSql, "{limit}");
        }
        let mysql = of(Dialect::MySql);
        assert_eq!(
            mysql.admit().text,
            "UPDATE app.fences SET token = ?, admitted = admitted + 1 \
             WHERE resource = ? AND token <= ?"
        );
        assert_eq!(mysql.admit().parameters, [Token, Resource, Token]);
        assert_eq!(
            mysql.register().text,
            "INSERT INTO app.fences (resource, token) VALUES (?, 0) ON DUPLICATE KEY UPDATE token = token"
        );
        assert_eq!(
            mysql.create_table(),
            "CREATE TABLE IF NOT EXISTS app.fences (resource VARBINARY(255) PRIMARY KEY, \
             token BIGINT NOT NULL CHECK (token >= 0), admitted BIGINT NOT NULL DEFAULT 0) ENGINE=InnoDB"
        );
    }

    #[test]
    fn every_parameter_has_a_place() {
        for dialect in [Dialect::PostgreSql, Dialect::MySql, Dialect::Sqlite] {
            let fences = Fences::new(dialect, "fences").unwrap();
            for statement in [fences.register(), fences.admit(), fences.newest()] {
                let places = statement.text.matches(['$', '?']).count();
                assert_eq!(places, statement.parameters.len(), "{statement:?}");
            }
        }
    }

    #[test]
    fn a_column_in_the_users_own_row() {
        assert_eq!(Dialect::PostgreSql.condition("token", 3).unwrap(), "token <= $3");
        assert_eq!(Dialect::PostgreSql.assignment("token", 3).unwrap(), "token = $3");
        assert_eq!(Dialect::Sqlite.condition("t", 1).unwrap(), "t <= ?1");
        assert_eq!(Dialect::MySql.condition("token", 3).unwrap(), "token <= ?");
    }

    #[test]
    fn a_name_that_could_be_more_than_a_name_is_refused() {
        for bad in ["", "a b", "a;", "1a", "a.b.c", "a.", "a\"", "naïve", "x--", "a."] {
            let error = Fences::new(Dialect::Sqlite, bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{bad:?}");
            assert!(error.to_string().starts_with("table: "), "{error}");
            assert!(error.next_step().unwrap().starts_with("use ASCII letters, digits and _"));
        }
        let error = Dialect::MySql.condition("t.c", 1).unwrap_err();
        assert!(error.to_string().starts_with("column: "), "{error}");
    }

    #[test]
    fn a_token_fits() {
        let largest = FencingToken::from_grant(u64::MAX).handed_over(1_023).unwrap();
        assert_eq!(bigint(largest), i64::MAX);
        assert_eq!(bigint(FencingToken::from_raw(u64::MAX)), i64::MIN);
    }
}
