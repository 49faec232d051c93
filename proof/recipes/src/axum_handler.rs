//! A lock for each request, with a bounded wait and a token in the write.

// recipe: axum-handler
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header::RETRY_AFTER};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use latchwork::fence::sql::bigint;
use latchwork::{ErrorKind, FencingToken, LockManager};

/// What all requests share.
#[derive(Clone)]
pub struct Shop {
    /// Connected once, when the server starts.
    pub locks: LockManager,
    /// The database with the table `stock (id, amount, token)`.
    pub db: Arc<tokio_postgres::Client>,
}

/// The routes of the shop.
pub fn router(shop: Shop) -> Router {
    Router::new().route("/stock/{id}/sell", post(sell)).with_state(shop)
}

async fn sell(State(shop): State<Shop>, Path(id): Path<i64>) -> Result<String, Refusal> {
    let lock = shop.locks.mutex(format!("stock/{id}"));
    // Shorter than the client waits for its answer.
    let guard = lock.acquire_within(Duration::from_secs(2)).await?;
    let amount = sell_one(&shop.db, id, guard.token()).await?;
    // The sale is in the database and checked: a failed release does not undo it.
    if let Err(error) = guard.release().await {
        tracing::warn!(%error, "sold, but the lock was not released");
    }
    Ok(format!("{amount} in stock\n"))
}

async fn sell_one(
    db: &tokio_postgres::Client,
    id: i64,
    token: FencingToken,
) -> Result<i64, Refusal> {
    let token = bigint(token);
    // The first statement leaves the token in the row, so that no earlier holder can write after this read.
    let read = "UPDATE stock SET token = $2 WHERE id = $1 AND token <= $2 RETURNING amount";
    let row = db.query_opt(read, &[&id, &token]).await?.ok_or(Refusal::Superseded)?;
    let amount = row.get::<_, i64>(0) - 1;
    // The work that needs the lock: ask the warehouse, charge the card.
    let write = "UPDATE stock SET amount = $3 WHERE id = $1 AND token = $2";
    match db.execute(write, &[&id, &token, &amount]).await? {
        0 => Err(Refusal::Superseded),
        _ => Ok(amount),
    }
}

enum Refusal {
    Lock(latchwork::Error),
    Database(tokio_postgres::Error),
    /// Nothing was written: a later holder was here, or there is no such article.
    Superseded,
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, text) = match &self {
            // The error names the holder: that is for the log, not for the client.
            Self::Lock(error) if error.kind() == ErrorKind::TimedOut => {
                tracing::info!(%error, "busy");
                (StatusCode::CONFLICT, "another request is changing this article\n")
            }
            Self::Lock(error)
                if matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::Busy) =>
            {
                tracing::error!(%error, "no answer from the lock store");
                (StatusCode::SERVICE_UNAVAILABLE, "try again later\n")
            }
            Self::Lock(error) => {
                tracing::error!(%error, "lock");
                (StatusCode::INTERNAL_SERVER_ERROR, "internal error\n")
            }
            Self::Database(error) => {
                tracing::error!(%error, "database");
                (StatusCode::INTERNAL_SERVER_ERROR, "internal error\n")
            }
            Self::Superseded => {
                tracing::warn!("superseded: nothing was written");
                (StatusCode::SERVICE_UNAVAILABLE, "try again later\n")
            }
        };
        match status {
            StatusCode::INTERNAL_SERVER_ERROR => (status, text).into_response(),
            _ => (status, [(RETRY_AFTER, "2")], text).into_response(),
        }
    }
}

impl From<latchwork::Error> for Refusal {
    fn from(error: latchwork::Error) -> Self {
        Self::Lock(error)
    }
}

impl From<tokio_postgres::Error> for Refusal {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error)
    }
}
// end
