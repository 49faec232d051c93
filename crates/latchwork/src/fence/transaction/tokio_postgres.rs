//! Transactions of `tokio_postgres`.

use tokio_postgres::types::Type;
use tokio_postgres::{Error, Transaction};

use super::Statements;

impl Statements for Transaction<'_> {
    type Error = Error;

    async fn admit(&mut self, text: &str, resource: &str, token: i64) -> Result<u64, Error> {
        // With the types said, the statement needs no preparation: one trip, also behind a pooler.
        self.execute_typed(text, &[(&resource, Type::TEXT), (&token, Type::INT8)]).await
    }

    async fn newest(&mut self, text: &str, resource: &str) -> Result<Option<i64>, Error> {
        let row = self.query_typed_opt(text, &[(&resource, Type::TEXT)]).await?;
        row.map(|row| row.try_get(0)).transpose()
    }
}
