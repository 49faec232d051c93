//! `latchwork init`: prepares a store for its first locks.

use latchwork::Error;

use crate::output::Output;

/// Prepares the store, if it needs that.
pub(crate) async fn run(store: &str, output: &Output) -> Result<u8, Error> {
    Ok(output.prepared(&latchwork::init(store).await?))
}
