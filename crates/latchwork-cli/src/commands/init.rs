//! `latchwork init`: prepares a store for its first locks.

use latchwork::Error;

use super::Place;

/// Prepares the store, if it needs that.
pub(crate) async fn run(place: &Place) -> Result<u8, Error> {
    Ok(place.output.prepared(&latchwork::init(place.store.address()).await?))
}
