//! Transactions of `tokio_postgres`.

use tokio_postgres::types::Type;
use tokio_postgres::{Error, Transaction};

use super::Client;

impl Client for Transaction<'_> {
    type Error = Error;

    async fn admit(
        &mut self,
        text: &str,
        resource: &[u8],
        token: i64,
        limit: &str,
    ) -> Result<bool, Error> {
        // With the types said, the statement needs no preparation: one trip, also behind a pooler.
        let params =
            [(&resource as _, Type::BYTEA), (&token as _, Type::INT8), (&limit as _, Type::TEXT)];
        Ok(self.query_typed_opt(text, &params).await?.is_some())
    }

    async fn newest(&mut self, text: &str, resource: &[u8]) -> Result<Option<i64>, Error> {
        let row = self.query_typed_opt(text, &[(&resource, Type::BYTEA)]).await?;
        row.map(|row| row.try_get(0)).transpose()
    }
}
