//! Transactions of `sqlx` on PostgreSQL.

use sqlx::{Error, Postgres, Row, Transaction};

use super::Statements;

impl Statements for Transaction<'_, Postgres> {
    type Error = Error;

    async fn admit(&mut self, text: &str, resource: &str, token: i64) -> Result<u64, Error> {
        let admit = sqlx::query(text).bind(resource).bind(token);
        Ok(admit.execute(&mut **self).await?.rows_affected())
    }

    async fn newest(&mut self, text: &str, resource: &str) -> Result<Option<i64>, Error> {
        let row = sqlx::query(text).bind(resource).fetch_optional(&mut **self).await?;
        row.map(|row| row.try_get(0)).transpose()
    }
}
