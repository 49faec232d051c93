//! `latchwork init`: prepares a store for its first locks.

use latchwork::Error;

use super::Context;

/// Prepares the store, if it needs that.
pub(crate) async fn run(place: &Context) -> Result<u8, Error> {
    let prepared = latchwork::init(place.store.address()).await;
    Ok(place.output.prepared(&prepared.map_err(|error| place.store.explained(error))?))
}
