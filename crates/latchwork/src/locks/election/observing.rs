//! Decides when an observer of an election asks the store.

use std::mem;
use std::time::Duration;

use futures_util::FutureExt;
use latchwork_store::{Backoff, Error, ErrorKind, Watch};

use super::{Election, Leader, leader_of};

/// How often a store without notifications is asked, unless the user says otherwise.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The longest pause on a store with notifications: a hint may be lost.
const LONGEST: Duration = Duration::from_secs(10);
/// The shortest pause for the sake of a ttl: a store may let a claim stand for a while after it.
const SHORTEST: Duration = Duration::from_millis(100);
/// Hints within this time are one look: a resignation and the next term mostly come together.
const BURST: Duration = Duration::from_millis(10);
/// For so long a store may take to subscribe. Meanwhile the observer does not look.
const SUBSCRIBE_LIMIT: Duration = Duration::from_secs(2);

pub(super) struct Observing {
    election: Election,
    watch: Option<Box<dyn Watch>>,
    /// Between a subscription that broke and the next.
    backoff: Backoff,
    /// The last item.
    seen: Option<Result<Option<Leader>, ErrorKind>>,
    /// The remaining ttl of the leader.
    left: Option<Duration>,
}

impl Observing {
    pub(super) fn new(election: Election) -> Self {
        let backoff = Backoff::new(BURST, LOOK_EVERY);
        Self { election, watch: None, backoff, seen: None, left: None }
    }

    /// Waits for the next item.
    pub(super) async fn next(mut self) -> Option<(Result<Option<Leader>, Error>, Self)> {
        loop {
            // Told of it once, a child has nothing more to hear.
            if self.seen == Some(Err(ErrorKind::Forked)) {
                return None;
            }
            if self.seen.is_some() {
                self.pause().await;
            }
            // Before the look, so that no change falls between the two.
            self.subscribe().await;
            let found = self.look().await;
            let told = found.as_ref().map_err(Error::kind).cloned();
            if self.seen.as_ref() != Some(&told) {
                self.seen = Some(told);
                return Some((found, self));
            }
        }
    }

    async fn look(&mut self) -> Result<Option<Leader>, Error> {
        self.left = None;
        let seen = self.election.locks.inspect(&*self.election.name).await?;
        self.left = seen.holders.first().and_then(|leader| leader.remaining);
        Ok(leader_of(&seen))
    }

    /// A store that cannot be asked says so to the look that follows.
    async fn subscribe(&mut self) {
        if self.watch.is_none()
            && let Ok(key) = self.election.lock.key()
        {
            self.watch = self.election.lock.engine().watch(key, SUBSCRIBE_LIMIT).await;
        }
    }

    /// Waits until another request may show a change.
    async fn pause(&mut self) {
        let limit = self.longest_pause();
        let engine = self.election.lock.engine();
        let Some(watch) = &mut self.watch else { return engine.io.sleep(limit).await };
        let hint = engine.native(engine.io.within(limit, watch.changed())).await;
        // In a child the look tells.
        let Ok(Some(hint)) = hint else { return };
        let is_broken = match hint {
            Ok(()) => {
                self.backoff.reset();
                engine.io.sleep(BURST).await;
                // What came meanwhile is seen by the same look.
                matches!(watch.changed().now_or_never(), Some(Err(_)))
            }
            Err(_) => {
                engine.io.sleep(self.backoff.pause()).await;
                true
            }
        };
        if is_broken {
            self.watch = None;
        }
    }

    fn longest_pause(&self) -> Duration {
        let asked = self.election.look_every;
        if self.watch.is_none() {
            return asked.unwrap_or(LOOK_EVERY);
        }
        let left = self.left.map_or(LONGEST, |left| left.max(SHORTEST));
        left.min(LONGEST).min(asked.unwrap_or(LONGEST))
    }
}

impl Drop for Observing {
    fn drop(&mut self) {
        if !self.election.lock.engine().is_here() {
            // The subscription is that of the process that this one was forked from.
            mem::forget(self.watch.take());
        }
    }
}
