//! Asks the store now and then for how long it keeps what is held, while the workers work.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use latchwork::LockManager;
use latchwork_store::clock::boot_time;

use crate::event::What;
use crate::log::Log;
use crate::pause::{Beside, pause};

/// How often.
const EVERY: Duration = Duration::from_millis(100);

/// A thread that asks until it is dropped.
pub(crate) struct Survey {
    _thread: Beside,
}

impl Survey {
    /// Begins, with a connection of its own: the faults of the run may spoil it. A store that says how long it
    /// keeps a claim in steps of `grain`, rounded down, keeps it for less than a step more.
    pub(crate) fn start(
        store: &str,
        namespace: &str,
        grain: Duration,
        log: Arc<Log>,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let locks = runtime.block_on(latchwork::connect(store)).map_err(io::Error::other)?;
        let (locks, prefix) = (locks.namespace(namespace), format!("{namespace}:"));
        let thread = Beside::start(move |goes_on| {
            while goes_on() {
                // A store that is broken just now has nothing to say.
                let _ = runtime.block_on(ask(&locks, &prefix, grain, &log));
                pause(EVERY);
            }
            runtime.block_on(locks.close());
        });
        Ok(Self { _thread: thread })
    }
}

async fn ask(
    locks: &LockManager,
    prefix: &str,
    grain: Duration,
    log: &Log,
) -> Result<(), latchwork::Error> {
    let asked = boot_time();
    for seen in locks.list("").await? {
        let name = seen.key.as_str();
        let key: Arc<str> = name.strip_prefix(prefix).unwrap_or(name).into();
        for party in seen.holders {
            if let (Some(grant), Some(remaining)) = (party.token, party.remaining) {
                let remaining = remaining + grain;
                log.note(None, What::Kept { key: key.clone(), grant, asked, remaining });
            }
        }
    }
    Ok(())
}
