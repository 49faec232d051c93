//! What a new connection asks first: who answers, and whether the tables are what they should be.

use latchwork_store::doctor::Tested;
use latchwork_store::{BackendError, BackendErrorKind, Effect};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use crate::config::PostgresConfig;
use crate::names::quoted;
use crate::server::connection::Connection;
use crate::server::lineage::Lineage;
use crate::server::reply::{column, strange};
use crate::server::schema::{FUNCTIONS_OF_A_TABLE, OF_THE_GUARD, found};
use crate::server::tls::AsItIs;

/// What the names of the tables end with.
const TABLES: [&str; 3] = ["", "_line", "_alive"];
/// The system identifier and the timeline. A standby knows the timeline of its last restart point at least.
const LINEAGE: &str = "(SELECT c.system_identifier::pg_catalog.text FROM pg_catalog.pg_control_system() c), \
     CASE WHEN pg_catalog.pg_is_in_recovery() \
     THEN (SELECT pg_catalog.to_hex(c.timeline_id) FROM pg_catalog.pg_control_checkpoint() c) \
     ELSE pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8) END";
/// Where these functions are not for everybody.
const NO_LINEAGE: &str = "NULL::pg_catalog.text, NULL::pg_catalog.text";

/// A database that speaks the protocol of PostgreSQL and is another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Sibling {
    /// CockroachDB, and its version.
    Cockroach(String),
    /// YugabyteDB, and its version.
    Yugabyte(String),
}

impl Sibling {
    /// Which one it is, by what the server says at the start of a connection.
    pub(crate) fn of<'a>(parameter: impl Fn(&str) -> Option<&'a str>) -> Option<Self> {
        if let Some(version) = parameter("crdb_version") {
            return Some(Self::Cockroach(version.to_owned()));
        }
        let (_, version) = parameter("server_version")?.split_once("-YB-")?;
        Some(Self::Yugabyte(version.to_owned()))
    }

    /// Refuses what cannot have locks.
    ///
    /// # Errors
    ///
    /// `Unsupported`.
    pub(crate) fn check(&self) -> Result<(), BackendError> {
        let Self::Cockroach(version) = self else { return Ok(()) };
        let message = format!(
            "this server is CockroachDB ({version}): its advisory locks exclude nobody, and it has no LISTEN"
        );
        let (kind, effect) = (BackendErrorKind::Unsupported, Effect::NotApplied);
        Err(BackendError::new(kind, effect, message).with_next_step(
            "use another store: PostgreSQL itself, etcd, Redis, ZooKeeper or Kubernetes",
        ))
    }

    /// What `doctor` calls it.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Cockroach(version) => format!("CockroachDB {version}"),
            Self::Yugabyte(version) => format!("YugabyteDB {version}"),
        }
    }
}

/// What the other end says.
#[derive(Debug)]
pub(crate) struct Greeting {
    /// The number of the server's process.
    process: i32,
    pub(crate) is_standby: bool,
    /// As in `server_version_num`.
    version: i32,
    /// What the table of locks says of itself; `None` if there is none.
    pub(crate) table: Option<String>,
    pub(crate) messages: String,
    /// What belongs to somebody else, or runs when a lock is written.
    strange: Option<String>,
    /// The functions that this user may not call.
    forbidden: Vec<String>,
    pub(crate) lineage: Option<Lineage>,
}

impl Greeting {
    /// Asks. `is_older` says that triggers of an older version are expected.
    pub(crate) async fn of(
        connection: &Connection,
        config: &PostgresConfig,
        is_older: bool,
    ) -> Result<Self, BackendError> {
        let asked = ask(connection, config, is_older, LINEAGE).await;
        let rows = match asked {
            Err(error) if error.kind == BackendErrorKind::Denied || is_unknown(&error) => {
                let asked = ask(connection, config, is_older, NO_LINEAGE).await;
                // Without the lineage, a user can lack no other right than that to the schema.
                asked.map_err(|error| match error.kind {
                    BackendErrorKind::Denied => error.with_next_step(grants(config)),
                    _ => error,
                })?
            }
            asked => asked?,
        };
        let [row] = &rows[..] else { return Err(strange(0)) };
        Self::read(row)
    }

    fn read(row: &Row) -> Result<Self, BackendError> {
        Ok(Self {
            process: column(row, 0)?,
            is_standby: column(row, 1)?,
            version: column(row, 2)?,
            table: column(row, 3)?,
            messages: column(row, 4)?,
            strange: column(row, 5)?,
            forbidden: column::<Option<Vec<String>>>(row, 6)?.unwrap_or_default(),
            lineage: Lineage::parse(column(row, 7)?, column(row, 8)?),
        })
    }

    /// Whether the server's process is another than the one that was promised.
    pub(crate) fn is_through_pooler(&self, promised: Option<i32>) -> bool {
        promised.is_some_and(|promised| promised != self.process)
    }

    pub(crate) fn version(&self) -> String {
        format!("{}.{}", self.version / 10_000, self.version % 10_000)
    }

    /// Refuses a server that lacks what the functions use.
    ///
    /// # Errors
    ///
    /// `Unsupported`.
    pub(crate) fn check_version(&self) -> Result<(), BackendError> {
        Tested::POSTGRES.refuse(&self.version()).map_or(Ok(()), Err)
    }

    /// Refuses tables and functions of somebody else, and what would run when a lock is written.
    ///
    /// # Errors
    ///
    /// `Invalid`, with what it is and whose.
    pub(crate) fn check_owners(&self, config: &PostgresConfig) -> Result<(), BackendError> {
        let Some(strange) = &self.strange else { return Ok(()) };
        let message = format!(
            "{strange}: it would run the code of others as this user, or change what a lock writes"
        );
        let step = format!(
            "remove what is not yours; or, if you trust the owner: ALTER TABLE .. OWNER TO, or \
             GRANT CREATE ON SCHEMA {} TO the owner; then REVOKE CREATE ON SCHEMA {0} FROM PUBLIC",
            quoted(&config.schema)
        );
        let (kind, effect) = (BackendErrorKind::Invalid, Effect::NotApplied);
        Err(BackendError::new(kind, effect, message).with_next_step(step))
    }

    /// Refuses a user who may not call the functions: free keys could be locked, and no others.
    ///
    /// # Errors
    ///
    /// `Denied`, with the functions.
    pub(crate) fn check_rights(&self, config: &PostgresConfig) -> Result<(), BackendError> {
        let of_the_guard = format!("{}_{OF_THE_GUARD}", config.table);
        let needed = |name: &&String| config.guard || **name != of_the_guard;
        let missing: Vec<&str> = self.forbidden.iter().filter(needed).map(|it| &**it).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let user = config.login.current().0.user;
        let message = format!("{user} lacks EXECUTE on {}", missing.join(", "));
        let step = format!("GRANT EXECUTE ON FUNCTION {} TO {}", functions(config), quoted(&user));
        let (kind, effect) = (BackendErrorKind::Denied, Effect::NotApplied);
        Err(BackendError::new(kind, effect, message).with_next_step(step))
    }
}

/// What the user of an address needs on the tables, by the ends of their names.
pub(crate) const RIGHTS: [(&str, &[&str]); 3] = [
    ("", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("_line", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("_alive", &["SELECT", "INSERT", "UPDATE"]),
];

/// A table with its schema, as a statement names it.
pub(crate) fn table(config: &PostgresConfig, suffix: &str) -> String {
    format!("{}.{}", quoted(&config.schema), quoted(&format!("{}{suffix}", config.table)))
}

/// All that the user of an address needs, as the owner of the tables grants it.
fn grants(config: &PostgresConfig) -> String {
    let user = quoted(&config.login.current().0.user);
    let on_table = |(suffix, rights): (&str, &[&str])| {
        format!("GRANT {} ON {} TO {user}; ", rights.join(", "), table(config, suffix))
    };
    let on_tables: String = RIGHTS.into_iter().map(on_table).collect();
    let (schema, functions) = (quoted(&config.schema), functions(config));
    format!(
        "GRANT USAGE ON SCHEMA {schema} TO {user}; {on_tables}GRANT EXECUTE ON FUNCTION {functions} TO {user}"
    )
}

/// The functions with their schema, as a statement names them.
pub(crate) fn functions(config: &PostgresConfig) -> String {
    let name = |suffix: &&str| {
        format!("{}.{}", quoted(&config.schema), quoted(&format!("{}_{suffix}", config.table)))
    };
    FUNCTIONS_OF_A_TABLE.iter().map(name).collect::<Vec<_>>().join(", ")
}

/// A server that goes by the name of PostgreSQL has no such function, or does not implement it.
fn is_unknown(error: &BackendError) -> bool {
    ["42883", "0A000", "55000", "58P01"].iter().any(|code| error.message.contains(code))
}

async fn ask(
    connection: &Connection,
    config: &PostgresConfig,
    is_older: bool,
    lineage: &str,
) -> Result<Vec<Row>, BackendError> {
    let text = include_str!("../sql/greet.sql")
        .replace("===", "OPERATOR(pg_catalog.=)")
        .replace("@found@", &found())
        .replace("@lineage@", lineage);
    let tables = TABLES.map(|suffix| format!("{}{suffix}", config.table));
    let functions = FUNCTIONS_OF_A_TABLE.map(|suffix| format!("{}_{suffix}", config.table));
    // As `to_regclass` reads it.
    let table = format!("{}.{}", quoted(&config.schema), quoted(&config.table));
    let (tables, functions) = (&tables[..], &functions[..]);
    let params: [(&(dyn ToSql + Sync), Type); 6] = [
        (&table, Type::TEXT),
        (&config.schema, Type::TEXT),
        (&config.table, Type::TEXT),
        (&tables, Type::TEXT_ARRAY),
        (&functions, Type::TEXT_ARRAY),
        (&is_older, Type::BOOL),
    ];
    connection.send(connection.client().query_typed(&text, &params)).await
}

/// Which server process the other end of the connection says it is. A pooler says a number of its own, and the
/// server says its own in the answer to a statement.
///
/// The library tells it only to a server that it asks to cancel something; nothing is sent to one here.
pub(crate) async fn process_of(client: &Client) -> Option<i32> {
    let (near, mut far) = tokio::io::duplex(64);
    // The answer to the question for TLS, if it is asked.
    far.write_all(b"S").await.ok()?;
    client.cancel_token().cancel_query_raw(near, AsItIs).await.ok()?;
    let mut said = Vec::new();
    far.read_to_end(&mut said).await.ok()?;
    let number = said.len().checked_sub(8).and_then(|at| said.get(at..at + 4))?;
    Some(i32::from_be_bytes(number.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_databases_are_known_by_what_they_say() {
        let of = |name: &'static str, value: &'static str| {
            Sibling::of(move |asked| (asked == name).then_some(value))
        };
        let cockroach = of("crdb_version", "CockroachDB CCL v25.4.2").unwrap();
        let refused = cockroach.check().unwrap_err();
        assert_eq!(refused.kind, BackendErrorKind::Unsupported);
        assert!(refused.message.contains("CockroachDB CCL v25.4.2"), "{refused:?}");
        assert!(refused.next_step.unwrap().starts_with("use another store"));
        let yugabyte = of("server_version", "15.12-YB-2025.2.3.0-b0").unwrap();
        assert_eq!(yugabyte.name(), "YugabyteDB 2025.2.3.0-b0");
        assert!(yugabyte.check().is_ok());
        assert_eq!(of("server_version", "18.4 (Debian 18.4-1)"), None);
    }
}
