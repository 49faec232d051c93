//! `latchwork ls`: the locks that are held or waited for.

use std::time::Duration;

use latchwork::{Error, ErrorKind, LockManager};

use super::{Context, nap};
use crate::args::LsArgs;

/// Lists the locks, once or again and again.
pub(crate) async fn run(args: &LsArgs, place: &Context) -> Result<u8, Error> {
    let Some(interval) = args.watch else {
        if place.is_missing() {
            return Ok(place.output.list(&[]));
        }
        let manager = place.look().await?;
        let all = manager.list(&args.prefix).await?;
        super::close(&manager).await;
        return Ok(place.output.list(&all));
    };
    watch(args, interval, place).await
}

/// Lists the locks at each interval, until a signal ends it or nobody reads it any more. While the store
/// does not answer, says so and asks again.
async fn watch(args: &LsArgs, interval: Duration, place: &Context) -> Result<u8, Error> {
    let mut manager: Option<LockManager> = None;
    // Said once.
    let mut is_missing = place.is_missing();
    while place.output.is_read() {
        is_missing = is_missing && !place.exists();
        if manager.is_none() && !is_missing {
            manager = Some(place.look().await?);
        }
        let listed = match &manager {
            Some(manager) => manager.list(&args.prefix).await,
            None => Ok(Vec::new()),
        };
        let code = match listed {
            Ok(all) => place.output.list_again(&all, &place.store.shown()),
            Err(error) if error.kind() == ErrorKind::Unreachable => {
                place.output.note("unreachable", &format!("{error}; asking again"), &[]);
                0
            }
            Err(error) => return Err(error),
        };
        if code != 0 {
            return Ok(code);
        }
        nap(interval).await;
    }
    Ok(0)
}
