//! Reopens a task that is closed.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::Once;
use super::length::shown;
use latchwork_store::{
    Claim, ClaimId, Error, Linger, Mode, Order, Query, Released, Snapshot, Stamp,
};

/// The result of a reset.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reset {
    /// The task was closed and is open now.
    Opened {
        /// How much longer it would have stayed closed, if the store knows.
        closed_for: Option<Duration>,
    },
    /// The task was not closed. Nothing changed.
    NotClosed,
    /// The task is running. Nothing changed: a reset never ends a run.
    Running {
        /// The holder that runs it, if the store knows.
        holder: Option<Arc<str>>,
    },
}

impl fmt::Display for Reset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Opened { closed_for: Some(left) } => {
                write!(f, "opened; it was closed for another {}", shown(*left))
            }
            Self::Opened { closed_for: None } => f.write_str("opened"),
            Self::NotClosed => f.write_str("not closed; nothing changed"),
            Self::Running { holder: Some(holder) } => {
                write!(f, "being done by {holder}; nothing changed")
            }
            Self::Running { holder: None } => f.write_str("being done; nothing changed"),
        }
    }
}

impl Once {
    /// Opens a closed task, so that it can run again before its period ends.
    ///
    /// Use it to repeat a task that was done, and after a `Mismatch` whose message names an end
    /// that is too far away: a clock that was wrong for one run closes the task until then. The
    /// period of this `Once` is not used. Callers that wait for the key are woken. Tokens keep
    /// growing: the next run has a larger one than the run that closed the task.
    ///
    /// A run in progress continues, and closes its period when it succeeds.
    ///
    /// # Errors
    ///
    /// `Unsupported` on a store that cannot keep a key closed. `Unreachable` if the store did not answer,
    /// or too few servers of a majority did: the task may be open or closed, so call `reset` again.
    /// `Denied`, `Closed`, `Forked` and `Invalid` as for [`Lock::try_acquire`](crate::Lock::try_acquire).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the task either closed or open; a call again settles it.
    ///
    /// # Examples
    ///
    /// ```
    /// # use latchwork::once::{OnceOutcome, Reset};
    /// # use latchwork::Period;
    /// # use latchwork::{Driver, LockManager};
    /// # use latchwork::store::MemoryBackend;
    /// # let driver = Driver::start().unwrap();
    /// # let locks = LockManager::new(MemoryBackend::new(driver.io()), driver);
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let report = locks.once("report", Period::daily("Europe/Berlin")?);
    /// report.run(async |_| Ok::<_, ()>(())).await?;
    /// assert!(matches!(report.reset().await?, Reset::Opened { .. }));
    /// let again = report.run(async |_| Ok::<_, ()>(())).await?;
    /// assert!(matches!(again, OnceOutcome::Done(())));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub async fn reset(&self) -> Result<Reset, Error> {
        let engine = self.lock.engine();
        let answer = engine.native(self.reopen()).await;
        engine.told(answer, self.lock.key().ok())
    }

    async fn reopen(&self) -> Result<Reset, Error> {
        let (engine, key) = (self.lock.engine(), self.lock.key()?);
        self.check_linger()?;
        engine.check_open(Some(key))?;
        let plan = self.lock.plan()?;
        let before = self.look().await?;
        if let Some(running) = running(before.as_ref()) {
            return Ok(running);
        }
        let claim = Claim::new(
            key.clone(),
            ClaimId::random(),
            Mode::Exclusive,
            plan.ttl,
            Stamp::new(engine.io.now()),
        )
        .with(|it| {
            it.order = Order::Barging;
            it.holder = plan.holder.clone();
            it.waits = false;
        });
        // Sent for a key that looks open, too: of a majority, a few servers may still have it closed.
        let limit = plan.rules.op_timeout(plan.ttl);
        let opened = engine.reaper.release_once(&claim, Linger::End, limit).await;
        if opened.map_err(|error| engine.seen(error, Some(key)))? == Released::Yes {
            return Ok(Reset::Opened { closed_for: before.and_then(|seen| seen.linger) });
        }
        let after = self.look().await?;
        if let Some(running) = running(after.as_ref()) {
            return Ok(running);
        }
        // If it is closed now, it was held when the request came, and that run has succeeded since.
        let is_closed = after.is_some_and(|seen| seen.linger.is_some());
        Ok(if is_closed { Reset::Running { holder: None } } else { Reset::NotClosed })
    }

    /// What the store holds for the task.
    pub(super) async fn look(&self) -> Result<Option<Snapshot>, Error> {
        let (engine, key) = (self.lock.engine(), self.lock.key()?);
        let limit = latchwork_store::validity::op_timeout(engine.capabilities.default_ttl);
        let seen = engine.inspect(&Query::Key(key.clone()), limit, Some(key)).await?;
        Ok(seen.into_iter().next())
    }
}

fn running(seen: Option<&Snapshot>) -> Option<Reset> {
    let holder = seen?.holders.first()?;
    Some(Reset::Running { holder: Some(holder.holder.shown()) })
}
