//! Checks a token, and stores it, with one call in a transaction of PostgreSQL.
//!
//! [`Fences::check`](super::sql::Fences::check) takes a transaction of `tokio_postgres` (feature `fence-tokio-postgres-0_7`) or of `sqlx`
//! (feature `fence-sqlx-0_8`). For other databases and clients use the text of the statements
//! ([`Fences::admit`](super::sql::Fences::admit)).

#[cfg(feature = "fence-sqlx-0_8")]
mod sqlx;
#[cfg(feature = "fence-tokio-postgres-0_7")]
mod tokio_postgres;

use std::error::Error as StdError;
use std::future::Future;

use super::sql::{Dialect, Fences};
use crate::Guard;
use latchwork_store::{Error, ErrorKind, Fenced, FencingToken};

pub use latchwork_store::CheckError;

use client::Statements;

/// What the two clients have in common. Others have the text.
mod client {
    use super::{Future, StdError};

    /// Runs the statements of a check in a transaction.
    pub trait Statements: Send {
        /// An error of the database or of the connection to it.
        type Error: StdError + Send + Sync + 'static;

        /// Runs a statement; says how many rows it changed.
        fn admit(
            &mut self,
            text: &str,
            resource: &str,
            token: i64,
        ) -> impl Future<Output = Result<u64, Self::Error>> + Send;

        /// Reads a token, if there is one.
        fn newest(
            &mut self,
            text: &str,
            resource: &str,
        ) -> impl Future<Output = Result<Option<i64>, Self::Error>> + Send;
    }
}

/// A transaction in which a token can be checked.
///
/// | feature | type |
/// | --- | --- |
/// | `fence-tokio-postgres-0_7` | `tokio_postgres::Transaction`, also that in a transaction of `deadpool_postgres`: give `&mut *transaction` |
/// | `fence-sqlx-0_8` | `sqlx::Transaction` of `sqlx::Postgres`, of sqlx 0.8 |
///
/// It is a transaction and not a connection because a check outside of one protects nothing: the
/// token would be kept, and the write that follows would be on its own.
pub trait Transaction: Statements {}

impl<T: Statements> Transaction for T {}

impl Fences {
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
        guard: &Guard,
    ) -> Result<(), CheckError<T::Error>> {
        self.check(transaction, guard.key().as_str(), guard.token()).await
    }

    /// Admits a token in this transaction unless a larger one was admitted for the resource, and
    /// stores it.
    ///
    /// Call it before you read or write anything else. Until the transaction ends, no other token is
    /// admitted for the resource: the transaction of another holder waits in its own check. If this one
    /// is rolled back, the token was never seen; so it is if the check was made after a savepoint, and that is rolled
    /// back. Check several resources in the order of their names, so that two transactions do not wait for each other.
    /// If the transaction is idle for longer than [`idle_limit`](Self::idle_limit), the server ends it. Costs one
    /// round trip with `tokio_postgres`, and with `sqlx` as well once the statement is prepared on the connection.
    ///
    /// # Errors
    ///
    /// - [`Refused`](CheckError::Refused) if another holder was granted the lock. The transaction
    ///   is still usable, so it must be rolled back; dropping it does that.
    /// - [`Invalid`](CheckError::Invalid) if the fences are not those of [`Dialect::PostgreSql`], or for
    ///   a token of 2^63 or more, which no store gives.
    /// - [`Database`](CheckError::Database) if the database did not answer or refused, for example because
    ///   the table does not exist. At isolation levels above `READ COMMITTED` it is a serialization error
    ///   if another token was admitted since the transaction began.
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
        let number = self.column_value(token).map_err(CheckError::Invalid)?;
        let admit = self.admit().text;
        let rows = transaction.admit(&admit, resource, number).await;
        if rows.map_err(CheckError::Database)? > 0 {
            return Ok(());
        }
        // The row is locked by the statement that has refused: this reads what it has compared.
        let newest = transaction.newest(&self.newest().text, resource).await;
        let newest = newest.map_err(CheckError::Database)?.unwrap_or_default();
        let newest = FencingToken::from_raw(newest.unsigned_abs());
        Err(CheckError::Refused(Fenced { refused: token, newest }))
    }

    fn column_value(&self, token: FencingToken) -> Result<i64, Error> {
        if self.dialect() != Dialect::PostgreSql {
            let message =
                format!("dialect: {:?}, but the transaction is PostgreSQL's", self.dialect());
            return Err(Error::new(ErrorKind::Invalid, message)
                .with_next_step("make the fences with Dialect::PostgreSql"));
        }
        token.to_bigint()
    }
}
