//! Prepares the servers of a Redlock for their first locks.

use latchwork_store::doctor::Prepared;
use latchwork_store::{Error, Io};

use super::config::{Config, endpoint};

/// Prepares each of the servers for its first locks, as [`crate::init()`] does, and says what was
/// done.
///
/// # Errors
///
/// As [`crate::init()`], with the first server that could not be prepared. Those before it are.
///
/// # Cancel safety
///
/// May be dropped at any time: what is prepared so far stays so, and it can be called again.
pub async fn init(config: Config, io: Io) -> Result<Prepared, Error> {
    let mut prepared = Prepared { store: config.shown().into(), steps: Vec::new() };
    for node in &config.nodes {
        let done = crate::init(node.clone(), io.clone()).await?;
        let at = endpoint(node);
        prepared.steps.extend(done.steps.into_iter().map(|step| format!("{at}: {step}")));
    }
    Ok(prepared)
}
