//! The check of a fencing token in the transaction that writes the data.
//!
//! A lock cannot stop a process that is paused between its check and its write. The database can: [`fence()`] admits the
//! token of a guard in your transaction unless a larger one was admitted for its key, and keeps it. Call it before the
//! transaction reads or writes anything else. [`Fence`] does the same for a table with another name, and for a resource
//! that is not called like the lock.
//!
//! The row of the resource stays locked until the transaction ends, so the transaction of the next holder waits in its
//! own check. If the process of this one stops meanwhile, the server ends the transaction after a while
//! ([`Fence::idle_limit`]), and its commit fails.
//!
//! Until the next holder's first check, a holder whose lease has ended can still commit. So every transaction that reads
//! in order to decide checks first: then it reads what the one before has committed, or supersedes it.
//!
//! ```no_run
//! # async fn sell(client: &mut tokio_postgres::Client, guard: &latchwork::Guard) -> Result<(), Box<dyn std::error::Error>> {
//! let mut transaction = client.transaction().await?;
//! latchwork_postgres::fence(&mut transaction, guard).await?; // dropping the transaction rolls back
//! transaction.execute("UPDATE stock SET amount = amount - 1 WHERE id = 42", &[]).await?;
//! transaction.commit().await?;
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "sqlx")]
mod sqlx;
mod tokio_postgres;

use std::sync::LazyLock;
use std::time::Duration;

pub use latchwork_store::CheckError;
use latchwork_store::{Fenced, FencingToken, Held, Key};

use crate::config::PostgresConfig;
use crate::names::stored;
use crate::protocol::statements::Statements;

use client::Client;

/// What the two clients have in common.
mod client {
    use std::error::Error as StdError;
    use std::future::Future;

    /// What a transaction is asked to do.
    pub trait Client: Send {
        /// An error of the database or of the connection to it.
        type Error: StdError + Send + Sync + 'static;

        /// Runs the statement that admits; says whether it has.
        fn admit(
            &mut self,
            text: &str,
            resource: &[u8],
            token: i64,
            limit: &str,
        ) -> impl Future<Output = Result<bool, Self::Error>> + Send;

        /// Reads a token, if there is one.
        fn newest(
            &mut self,
            text: &str,
            resource: &[u8],
        ) -> impl Future<Output = Result<Option<i64>, Self::Error>> + Send;
    }
}

/// A transaction in which a token can be checked: `tokio_postgres::Transaction`, and with the feature `sqlx`
/// `sqlx::Transaction` of `sqlx::Postgres`, of sqlx 0.8.
pub trait Transaction: Client {}

impl<T: Client> Transaction for T {}

/// The fences of one table of locks, in the table that `init` has made beside it.
#[derive(Debug, Clone)]
pub struct Fence {
    admit: String,
    newest: String,
    idle_limit: Duration,
}

impl Default for Fence {
    /// The fences beside the table `latchwork` in the schema `public`.
    fn default() -> Self {
        Self::of(&Statements::of_tables("public", "latchwork"))
    }
}

/// Admits the token of a guard in this transaction unless a larger one was admitted for its key, and keeps it. One
/// round trip.
///
/// The fences are those beside the table `latchwork` in the schema `public`. For another one use
/// [`Fence::check_guard`], and for a resource with a name of its own [`Fence::check`].
///
/// # Errors
///
/// As for [`Fence::check`].
///
/// # Cancel safety
///
/// The database may still run the statement: drop the transaction too, which rolls it back.
pub async fn fence<T: Transaction>(
    transaction: &mut T,
    guard: &(impl Held + Sync),
) -> Result<(), CheckError<T::Error>> {
    // Its statements are text: they are put together once.
    static USUAL: LazyLock<Fence> = LazyLock::new(Fence::default);
    USUAL.check_guard(transaction, guard).await
}

impl Fence {
    /// The fences beside the table of locks that the address names. The data is in the same database.
    pub fn new(config: &PostgresConfig) -> Self {
        Self::of(&Statements::new(config))
    }

    fn of(statements: &Statements) -> Self {
        Self {
            admit: statements.fill(include_str!("sql/fence.sql")),
            newest: statements.fill("SELECT token FROM @fence@ WHERE k = $1"),
            idle_limit: Duration::from_secs(10),
        }
    }

    /// How long the transaction may be idle before the server ends it; 10 s if it is not set. At least a millisecond.
    #[must_use]
    pub fn idle_limit(self, idle_limit: Duration) -> Self {
        Self { idle_limit, ..self }
    }

    /// As [`check`](Self::check), with the key and the token of a guard.
    ///
    /// # Errors
    ///
    /// As for [`check`](Self::check).
    ///
    /// # Cancel safety
    ///
    /// As for [`check`](Self::check).
    pub async fn check_guard<T: Transaction>(
        &self,
        transaction: &mut T,
        guard: &(impl Held + Sync),
    ) -> Result<(), CheckError<T::Error>> {
        self.admit(transaction, guard.key(), guard.token()).await
    }

    /// Admits a token in this transaction unless a larger one was admitted for the resource, and keeps it. One round trip.
    ///
    /// If the transaction is rolled back, the token was never seen. Check several resources in the order of their
    /// names, so that two transactions do not wait for each other.
    ///
    /// # Errors
    ///
    /// - [`Refused`](CheckError::Refused) if the lock has passed on. The transaction is still usable, so roll it back;
    ///   dropping it does that.
    /// - [`Invalid`](CheckError::Invalid) for a name that is no key, or a token of 2^63 or more, which no store gives.
    /// - [`Database`](CheckError::Database) if the database did not answer or refused. At isolation levels above
    ///   `READ COMMITTED` it is a serialization error if another token was admitted since the transaction began.
    ///
    /// # Cancel safety
    ///
    /// The database may still run the statement: drop the transaction too, which rolls it back.
    pub async fn check<T: Transaction>(
        &self,
        transaction: &mut T,
        resource: &str,
        token: FencingToken,
    ) -> Result<(), CheckError<T::Error>> {
        let key = Key::new(resource).map_err(CheckError::Invalid)?;
        self.admit(transaction, &key, token).await
    }

    async fn admit<T: Transaction>(
        &self,
        transaction: &mut T,
        key: &Key,
        token: FencingToken,
    ) -> Result<(), CheckError<T::Error>> {
        let (key, _) = stored(key);
        let number = token.to_bigint().map_err(CheckError::Invalid)?;
        let limit = format!("{}ms", self.idle_limit.as_millis().clamp(1, 2_147_483_647));
        let admitted = transaction.admit(&self.admit, &key, number, &limit).await;
        if admitted.map_err(CheckError::Database)? {
            return Ok(());
        }
        // The statement that has refused has locked the row: this reads what it has compared.
        let newest = transaction.newest(&self.newest, &key).await;
        let newest = newest.map_err(CheckError::Database)?.unwrap_or_default();
        let newest = FencingToken::from_raw(newest.unsigned_abs());
        Err(CheckError::Refused(Fenced { refused: token, newest }))
    }
}
