//! `latchwork show`: the holders and the waiters of locks.

use latchwork::Error;
use latchwork_store::{Key, Snapshot};

use super::Context;
use crate::args::ShowArgs;

/// Shows the locks.
pub(crate) async fn run(args: &ShowArgs, place: &Context) -> Result<u8, Error> {
    let mut all = Vec::with_capacity(args.names.len());
    if place.is_missing() {
        for name in &args.names {
            all.push(Snapshot::free(Key::new(place.key(name))?));
        }
    } else {
        let manager = place.look().await?;
        for name in &args.names {
            all.push(manager.inspect(name).await?);
        }
        super::close(&manager).await;
    }
    Ok(place.output.show(&all))
}
