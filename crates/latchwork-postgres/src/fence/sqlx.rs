//! Transactions of `sqlx` on PostgreSQL.

use sqlx::{Error, Postgres, Row, Transaction};

use super::Client;

impl Client for Transaction<'_, Postgres> {
    type Error = Error;

    async fn admit(
        &mut self,
        text: &str,
        resource: &[u8],
        token: i64,
        limit: &str,
    ) -> Result<bool, Error> {
        let admit = sqlx::query(text).bind(resource).bind(token).bind(limit);
        Ok(admit.fetch_optional(&mut **self).await?.is_some())
    }

    async fn newest(&mut self, text: &str, resource: &[u8]) -> Result<Option<i64>, Error> {
        let row = sqlx::query(text).bind(resource).fetch_optional(&mut **self).await?;
        row.map(|row| row.try_get(0)).transpose()
    }
}
