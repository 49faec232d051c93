//! Changes the limit of permits while the key is in use.

use super::{Alive, Now, Record, Wakeup};
use crate::claim::{Claim, Order, Shape};
use crate::error::BackendError;
use crate::words::Resized;

impl Record {
    /// Gives all claims that hold the key or have a place in its queue the limit of `claim`. Ends no claim.
    pub fn resize(
        &mut self,
        claim: &Claim,
        now: Now,
        alive: Alive<'_>,
    ) -> (Result<Resized, BackendError>, Vec<Wakeup>) {
        let moved = self.sweep(now, alive);
        let answer = match (self.shape_without(claim.id), claim.mode.limit()) {
            (None, _) => Ok(Resized::Unused),
            (Some(Shape::Semaphore { of }), Some(to)) => {
                if of != to {
                    // Patience with the first waiter is counted from now on.
                    self.open_since = self.open_since.max(now.lease);
                }
                self.limit_holders(claim.mode);
                // A claim without a place brings its own limit with each try.
                let places = self.queue.iter_mut().filter(|w| w.order == Order::Fifo);
                places.for_each(|w| w.mode = w.mode.with_limit(to));
                Ok(Resized::of(of, to, self.held.iter().map(|m| m.mode)))
            }
            (Some(shape), _) => Err(claim.mismatch(shape)),
        };
        (answer, self.wakeups(&moved, None, now))
    }
}
