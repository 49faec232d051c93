//! Transactions of `sqlx` on PostgreSQL.

use sqlx::postgres::{PgArguments, PgConnection};
use sqlx::query::Query;
use sqlx::{Connection as _, Error, Postgres, Row, Transaction};

use super::Statements;

/// A query whose statement stays on the connection if others of the program do. Behind a pooler none may stay, and sqlx
/// names a statement even if it has no room to keep it.
fn query<'q>(connection: &PgConnection, text: &'q str) -> Query<'q, Postgres, PgArguments> {
    sqlx::query(text).persistent(connection.cached_statements_size() > 0)
}

impl Statements for Transaction<'_, Postgres> {
    type Error = Error;

    async fn admit(&mut self, text: &str, resource: &str, token: i64) -> Result<u64, Error> {
        let admit = query(self, text).bind(resource).bind(token);
        Ok(admit.execute(&mut **self).await?.rows_affected())
    }

    async fn newest(&mut self, text: &str, resource: &str) -> Result<Option<i64>, Error> {
        let row = query(self, text).bind(resource).fetch_optional(&mut **self).await?;
        row.map(|row| row.try_get(0)).transpose()
    }
}
