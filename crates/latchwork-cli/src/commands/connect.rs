//! Connecting to a store for as long as a command may wait for its lock.

use std::sync::Arc;
use std::time::Duration;

use latchwork::{Error, ErrorKind, LockManager};
use latchwork_store::clock::boot_time;
use latchwork_store::random_between;
use tokio::sync::mpsc::UnboundedReceiver;

use super::{Context, nap, passing, within};
use crate::news::{Heard, News, REPORT};

/// The longest pause before a store that took no connection is asked again.
const RETRY: Duration = Duration::from_millis(500);

/// The shortest time for the first try to connect, unless it is the only one: as a rule a store says in this time why
/// it takes no connection.
const FIRST: Duration = Duration::from_secs(2);

/// A connection that took no longer does not count: the rest of the time is what the command line says.
const AT_ONCE: Duration = Duration::from_millis(250);

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
    let output = &place.output;
    let (news, heard) = News::new(output.tells_waiting(), output.is_verbose());
    let (manager, waited) = reach(place, wait).await?;
    let manager = manager.holder(holder).observer(news.clone());
    let left = wait.map(|wait| wait.saturating_sub(waited));
    Ok(Connected { manager, left, news, heard })
}

/// Connects; returns how much of the time to wait that took.
///
/// A store that takes no more clients is asked again for as long as the command may wait for its lock, and so
/// is one that does not answer, if the wait has an end: without one, a wrong address would never be noticed.
async fn reach(place: &Context, wait: Option<Duration>) -> Result<(LockManager, Duration), Error> {
    let output = &place.output;
    let begun_at = boot_time();
    let first = wait.filter(|wait| !wait.is_zero()).map(|wait| wait.max(FIRST));
    let connected = match first {
        None => Some(place.connect().await),
        Some(limit) => tokio::select! {
            biased;
            connected = place.connect() => Some(connected),
            () = passing(limit) => None,
        },
    };
    let mut error = match connected {
        Some(Err(error)) if may_pass(&error, wait) => error,
        Some(connected) => {
            let took = Some(boot_time().since(begun_at)).filter(|took| *took > AT_ONCE);
            return Ok((connected?, took.unwrap_or_default()));
        }
        None => no_answer(place, first.unwrap_or_default()),
    };
    let mut is_reported = false;
    loop {
        let left = || wait.map(|wait| wait.saturating_sub(boot_time().since(begun_at)));
        if left() == Some(Duration::ZERO) {
            return Err(error);
        }
        if !is_reported && (output.tells_waiting() || boot_time().since(begun_at) >= REPORT) {
            output.note("waiting", &format!("waiting for a connection: {error}"), &[]);
            is_reported = true;
        }
        nap(random_between(RETRY / 10, RETRY).min(left().unwrap_or(RETRY))).await;
        error = match within(left().unwrap_or(Duration::MAX), place.connect()).await {
            Some(Err(error)) if may_pass(&error, wait) => error,
            Some(other) => return Ok((other?, boot_time().since(begun_at))),
            None => error,
        };
    }
}

/// The error of a store that did not answer while the command could wait.
fn no_answer(place: &Context, waited: Duration) -> Error {
    let message = format!("{}: no answer within {waited:?}", place.store.shown());
    let error = Error::new(ErrorKind::Unreachable, message);
    let error = match place.store.address().starts_with("zk") {
        // It says nothing to a client that it has no connection for.
        true => error.with_next_step(
            "check that the server is running and has a connection to spare (maxClientCnxns), and that the address is \
             correct, or wait longer (--wait)",
        ),
        false => error.with_next_step(
            "check that the server is running and the address is correct, or wait longer (--wait)",
        ),
    };
    place.store.explained(error)
}

/// Whether a connection may succeed within the time to wait.
fn may_pass(error: &Error, wait: Option<Duration>) -> bool {
    match error.kind() {
        ErrorKind::Busy => true,
        ErrorKind::Unreachable => wait.is_some_and(|wait| !wait.is_zero()),
        _ => false,
    }
}
