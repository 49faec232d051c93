//! A change of the limit of permits while the key is in use (B12).
//!
//! The limit is a key of its own, beside the queue, and is read in the transactions that read the queue. It is
//! changed in the two steps of [`kit::limit`](latchwork_store::kit::limit). The last claim that it applies to
//! deletes it. If that one has died, the next claim that uses the key does.

use std::time::Duration;

use latchwork_store::kit::limit::Limit;
use latchwork_store::{BackendError, BackendErrorKind, Claim, Effect, Resized, Shape};

use crate::proto::response_op::Response;
use crate::protocol::queue::{Place, Queue};
use crate::protocol::shared::Shared;
use crate::protocol::{names, requests};
use crate::server::errors::{Failure, error, strange};

/// How often a change begins again because another one, or the leave of the first claim, came between.
const ROUNDS: u32 = 32;
/// How often, and how long each time, a change waits for the second step of another one.
const STEP_PATIENCE: u32 = 4;
const PAUSE: Duration = Duration::from_millis(25);

impl Shared {
    pub(crate) async fn resize(&self, claim: &Claim) -> Result<Resized, BackendError> {
        let prefix = names::queue(&claim.key);
        let Some(to) = claim.mode.limit() else { return Err(BackendError::cannot_resize()) };
        for round in 0..ROUNDS {
            let queue = self.queue(&prefix).await?;
            if round < STEP_PATIENCE
                && queue.limit.as_ref().is_some_and(|limit| !limit.is_settled())
            {
                // Another client makes its second step, or has died.
                self.io.clock().sleep_until(self.io.now().plus(PAUSE)).await;
                continue;
            }
            match queue.used_as(queue.places.len()) {
                None => return Ok(Resized::Unused),
                Some(Shape::Semaphore { .. }) => {}
                Some(shape) => return Err(claim.mismatch(shape)),
            }
            let has_it = |place: &Place| queue.mode_of(place).limit() == Some(to);
            if queue.limit.as_ref().is_none_or(Limit::is_settled) && queue.open_places().all(has_it)
            {
                return Ok(changed(&queue, to));
            }
            if let Some(seen) = self.begin(&prefix, &queue, to).await? {
                self.settle(&prefix, &seen, to).await;
                return Ok(changed(&seen, to));
            }
        }
        let message = "the limit could not be changed: others have changed the key all the time";
        Err(BackendError::new(BackendErrorKind::Unreachable, Effect::NotApplied, message))
    }

    /// The first step; returns the queue as it was then, with the limit before it. `None` if the key has changed.
    async fn begin(
        &self,
        prefix: &[u8],
        queue: &Queue,
        to: u32,
    ) -> Result<Option<Queue>, BackendError> {
        let begun = Limit::begin(queue.limit.as_ref(), to, Limit::HERE).to_text();
        let asked = self.members.ask(|link| {
            let (first, changed) = (queue.open_places().next(), queue.limit_changed.unwrap_or(0));
            let request = requests::set_limit(prefix, changed, &begun, first);
            async move { link.txn(request).await }
        });
        let answer = asked.await.map_err(error)?;
        if !answer.succeeded {
            return Ok(None);
        }
        let revision = answer.header.map_or(0, |header| header.revision);
        match answer.responses.into_iter().next_back().and_then(|op| op.response) {
            Some(Response::ResponseRange(range)) => {
                let limit = queue.limit.clone();
                Ok(Some(Queue { limit, ..Queue::new(range.kvs, revision) }))
            }
            _ => Err(strange("a transaction")),
        }
    }

    /// The second step, with the queue as it was at the first one. Without it the limit counts all the same.
    async fn settle(&self, prefix: &[u8], seen: &Queue, to: u32) {
        let places = seen.places.iter().zip(seen.holding());
        let places = places.map(|(place, holds)| (place.revision, place.mode, holds));
        let Some(settled) = Limit::settle(seen.limit.as_ref(), to, places) else {
            return;
        };
        let text = settled.to_text();
        let asked = self.members.ask(|link| {
            let request = requests::set_limit(prefix, seen.revision, &text, None);
            async move { link.txn(request).await }
        });
        let _ = asked.await;
    }

    /// The queue with the limit beside it, as a majority has them.
    pub(crate) async fn queue_and_limit(&self, prefix: &[u8]) -> Result<Queue, BackendError> {
        let asked = self.members.ask(|link| {
            let request = requests::queue_and_limit(prefix, None);
            async move { link.txn(request).await.map_err(Failure::of_a_read) }
        });
        let answer = asked.await.map_err(error)?;
        requests::queue_of(answer, b"", b"", 0, true).ok_or_else(|| strange("a transaction"))
    }

    /// Deletes the limit if it applies to no place any more. What is not deleted is with the next use.
    pub(crate) async fn tidy_limit(&self, prefix: &[u8]) {
        let Ok(queue) = self.queue_and_limit(prefix).await else { return };
        if let Some(changed) = queue.idle_limit() {
            self.delete_limit(prefix, changed).await;
        }
    }

    /// Deletes the limit that was changed at this revision. Places that come later are not among those that it
    /// applies to, so it may come late.
    pub(crate) async fn delete_limit(&self, prefix: &[u8], changed: i64) {
        let asked = self.members.ask(|link| {
            let request = requests::delete_limit(prefix, changed);
            async move { link.txn(request).await }
        });
        let _ = asked.await;
    }
}

/// The answer to a change of the limit that this queue had.
fn changed(queue: &Queue, to: u32) -> Resized {
    let shape = queue.used_as(queue.places.len());
    let Some(from) = shape.and_then(Shape::limit) else { return Resized::Unused };
    let holding = queue.places.iter().zip(queue.holding());
    let held = holding.filter(|(place, holds)| *holds && place.closed.is_none());
    Resized::of(from, to, held.map(|(place, _)| place.mode))
}
