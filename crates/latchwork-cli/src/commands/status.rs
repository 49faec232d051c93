//! `latchwork status`: tells by the exit code whether a lock is held.

use latchwork::Error;

use super::Context;
use crate::args::StatusArgs;
use crate::exit;
use crate::output::is_done;

/// Prints one word, and exits with the code for it.
pub(crate) async fn run(args: &StatusArgs, place: &Context) -> Result<u8, Error> {
    let seen = match place.is_missing() {
        true => None,
        false => {
            let manager = place.look().await?;
            let seen = manager.inspect(&args.name).await?;
            super::close(&manager).await;
            Some(seen)
        }
    };
    let (word, code) = match &seen {
        Some(seen) if !seen.holders.is_empty() => ("held", exit::HELD),
        Some(seen) if is_done(seen) => ("done", exit::DONE),
        _ => ("free", exit::FREE),
    };
    Ok(match place.output.status(&args.name, word, seen.as_ref()) {
        0 => code,
        broken => broken,
    })
}
