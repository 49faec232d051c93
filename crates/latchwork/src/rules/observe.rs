//! Hooks for logs, metrics and traces.

use std::time::Duration;

use latchwork_store::{BackendError, Blocked, FencingToken, Key, Lost};

/// Receives an event for each change of a lock. Set one with
/// [`LockManager::observer`](crate::LockManager::observer).
///
/// The calls come from the caller's task or from Latchwork's own thread, and delay the reported
/// operation. So they must be quick, and must not block or panic.
pub trait Observer: Send + Sync {
    /// Tells of one event.
    fn event(&self, event: &Event<'_>);
}

/// A pair of observers; the first receives each event first.
impl<A: Observer, B: Observer> Observer for (A, B) {
    fn event(&self, event: &Event<'_>) {
        self.0.event(event);
        self.1.event(event);
    }
}

impl<O: Observer + ?Sized> Observer for std::sync::Arc<O> {
    fn event(&self, event: &Event<'_>) {
        (**self).event(event);
    }
}

/// An event in the life of a lock.
///
/// Each grant has one end: each [`Acquired`](Event::Acquired) and [`Adopted`](Event::Adopted) is
/// followed by one of [`Lost`](Event::Lost), [`Released`](Event::Released),
/// [`Detached`](Event::Detached) and [`ReleaseFailed`](Event::ReleaseFailed) with a hold, however
/// often it was handed over in between. If another thread reports the end, it may arrive before the
/// beginning.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A wait began: the lock is held, other waiters of this process are ahead, or the store does
    /// not answer.
    ///
    /// An acquire that is granted at once reports nothing, and neither does a single try. For an
    /// owner of a reentrant mutex, all of its calls report one wait.
    ///
    /// Each is followed by one [`WaitEnded`](Event::WaitEnded).
    WaitBegan {
        /// The key.
        key: &'a Key,
    },
    /// A wait ended: it was granted, failed, timed out or was dropped.
    WaitEnded {
        /// The key.
        key: &'a Key,
        /// How long it has waited.
        waited: Duration,
        /// Whether the lock was granted.
        admitted: bool,
    },
    /// A try was blocked, and the acquire keeps waiting. Reported after each blocked try.
    Waiting {
        /// The key.
        key: &'a Key,
        /// Why, by which holder, and when to retry.
        blocked: &'a Blocked,
    },
    /// A try failed and will be retried.
    TryFailed {
        /// The key.
        key: &'a Key,
        /// The error.
        error: &'a BackendError,
    },
    /// The store granted a claim.
    Acquired {
        /// The key.
        key: &'a Key,
        /// The token of the grant.
        token: FencingToken,
        /// How long the acquire took, waiting included.
        waited: Duration,
        /// Whether the acquire had to wait.
        contended: bool,
    },
    /// A hold was handed to the next waiter of this process, without a request to the store.
    /// Reported for the hold that ends.
    HandedOver {
        /// The key.
        key: &'a Key,
        /// The token of the hold that ends.
        from: FencingToken,
        /// The token of the new hold.
        token: FencingToken,
        /// How long the hold that ends has lasted.
        held: Duration,
    },
    /// A waiter of this process has received a hold that was handed over.
    Received {
        /// The key.
        key: &'a Key,
        /// The token of the hold.
        token: FencingToken,
        /// How long the acquire took.
        waited: Duration,
    },
    /// A renewal succeeded.
    Renewed {
        /// The key.
        key: &'a Key,
        /// The token of the hold.
        token: FencingToken,
        /// How long the renewal took.
        took: Duration,
        /// How much later than planned it was sent.
        late: Duration,
        /// The rest of the validity now.
        remaining: Duration,
    },
    /// A renewal failed and will be retried until the validity ends.
    RenewFailed {
        /// The key.
        key: &'a Key,
        /// The token of the hold.
        token: FencingToken,
        /// The error.
        error: &'a BackendError,
        /// The rest of the validity.
        remaining: Duration,
    },
    /// A hold is in doubt until the store confirms it.
    Suspect {
        /// The key.
        key: &'a Key,
        /// The token of the hold.
        token: FencingToken,
    },
    /// The store's clock was set or changed its rate between two answers.
    ///
    /// It advanced more, or less, than the travel times of the answers and its known rate explain.
    /// The hold is in doubt until the next answer. Until the answer after that decides between a
    /// step and a rate, the event counts as both.
    ClockStepped {
        /// The key.
        key: &'a Key,
        /// By how many nanoseconds; negative if the clock was set back.
        by: i64,
    },
    /// The store's clock runs at a new rate, more than 1 % off this machine's. A ratio of about 1
    /// means that it is back to normal. While it runs fast, the validity is divided by the ratio.
    ClockUnsteady {
        /// The key.
        key: &'a Key,
        /// The rate of the store's clock divided by that of this machine's clock.
        ratio: f64,
    },
    /// A hold ended without a release.
    Lost {
        /// The key.
        key: &'a Key,
        /// The token of the hold.
        token: FencingToken,
        /// Why and when.
        lost: Lost,
        /// How long the hold lasted.
        held: Duration,
    },
    /// A hold was released.
    Released {
        /// The key.
        key: &'a Key,
        /// The token of the hold.
        token: FencingToken,
        /// How long the hold lasted.
        held: Duration,
    },
    /// A hold was detached for another process ([`Guard::detach`](crate::Guard::detach)); in this
    /// process it has ended.
    Detached {
        /// The key.
        key: &'a Key,
        /// The token of the hold.
        token: FencingToken,
        /// How long the hold lasted.
        held: Duration,
    },
    /// A detached hold was adopted ([`LockManager::adopt`](crate::LockManager::adopt)).
    Adopted {
        /// The key.
        key: &'a Key,
        /// The token of the hold.
        token: FencingToken,
    },
    /// An unused claim was released in the background.
    ///
    /// It came from an acquire that was dropped or failed, from a grant that arrived too late, or
    /// from a lost hold. Until its release it may have blocked others.
    Settled {
        /// The key.
        key: &'a Key,
    },
    /// A release failed; the claim expires with its ttl.
    ReleaseFailed {
        /// The key.
        key: &'a Key,
        /// The token of the hold and how long it lasted; `None` if no guard had it.
        held: Option<(FencingToken, Duration)>,
        /// The error of the last attempt.
        error: &'a BackendError,
    },
}
