//! `latchwork resize`: changes the number of permits of a lock in use.

use latchwork::{Error, Resized};

use super::Context;
use crate::args::ResizeArgs;

/// Sets the limit, and says from what to what.
pub(crate) async fn run(args: &ResizeArgs, place: &Context) -> Result<u8, Error> {
    let resized = match place.is_missing() {
        true => Resized::Unused,
        false => {
            let manager = place.connect().await?;
            let resized = manager.semaphore(&args.name, args.of).resize().await?;
            super::close(&manager).await;
            resized
        }
    };
    Ok(place.output.resized(&place.key(&args.name), resized))
}
