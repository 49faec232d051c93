//! Connecting to a store for as long as a command may wait for its lock.

use std::sync::Arc;
use std::time::Duration;

use latchwork::store::clock::boot_time;
use latchwork::store::random_between;
use latchwork::{Error, ErrorKind, LockManager};
use tokio::sync::mpsc::UnboundedReceiver;

use super::{Context, nap, within};
use crate::news::{Heard, News};

/// The longest pause before a store that took no connection is asked again.
const RETRY: Duration = Duration::from_millis(500);

/// A store to take locks at, and what it reports.
pub(super) struct Connected {
    pub(super) manager: LockManager,
    /// The rest of the time to wait.
    pub(super) left: Option<Duration>,
    pub(super) news: Arc<News>,
    pub(super) heard: UnboundedReceiver<Heard>,
}

/// Connects as `holder`, within the time to wait.
pub(super) async fn connect(
    place: &Context,
    wait: Option<Duration>,
    holder: &str,
) -> Result<Connected, Error> {
    let (news, heard) = News::new(place.output.tells_waiting(), place.output.is_verbose());
    let (manager, waited) = reach(place, wait).await?;
    let manager = manager.holder(holder).observer(news.clone());
    let left = wait.map(|wait| wait.saturating_sub(waited));
    Ok(Connected { manager, left, news, heard })
}

/// Connects; returns how long that took beside the first try.
///
/// A store that takes no more clients is asked again for as long as the command may wait for its lock, and so
/// is one that does not answer, if the wait has an end: without one, a wrong address would never be noticed.
/// The first try gets the time that the store gives a request, also if the wait is shorter.
async fn reach(place: &Context, wait: Option<Duration>) -> Result<(LockManager, Duration), Error> {
    let output = &place.output;
    let begun_at = boot_time();
    let mut error = match place.connect().await {
        Err(error) if may_pass(&error, wait) => error,
        other => return Ok((other?, Duration::ZERO)),
    };
    if output.tells_waiting() {
        output.note("waiting", &format!("waiting for a connection: {error}"), &[]);
    }
    loop {
        let left = || wait.map(|wait| wait.saturating_sub(boot_time().since(begun_at)));
        if left() == Some(Duration::ZERO) {
            return Err(error);
        }
        nap(random_between(RETRY / 10, RETRY).min(left().unwrap_or(RETRY))).await;
        error = match within(left().unwrap_or(Duration::MAX), place.connect()).await {
            Some(Err(error)) if may_pass(&error, wait) => error,
            Some(other) => return Ok((other?, boot_time().since(begun_at))),
            None => error,
        };
    }
}

/// Whether a connection may succeed within the time to wait.
fn may_pass(error: &Error, wait: Option<Duration>) -> bool {
    match error.kind() {
        ErrorKind::Busy => true,
        ErrorKind::Unreachable => wait.is_some_and(|wait| !wait.is_zero()),
        _ => false,
    }
}
