//! Hooks for logs, metrics and traces.

use std::time::Duration;

use latchwork_store::{BackendError, Blocked, FencingToken, Key, Lost};

/// Is told what happens to locks. Give one to [`LockManager::observer`](crate::LockManager).
///
/// The calls come from the caller's task or from Latchwork's own thread and delay what they tell
/// of, so they must be quick and must not block; they must not panic.
pub trait Observer: Send + Sync {
    /// Tells of one event.
    fn event(&self, event: &Event<'_>);
}

/// Two observers are one, which tells the first one first.
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

/// What can happen to a lock.
///
/// What is granted has one end: each [`Acquired`](Event::Acquired) and [`Adopted`](Event::Adopted) is followed by
/// one of [`Lost`](Event::Lost), [`Released`](Event::Released), [`Detached`](Event::Detached) and
/// [`ReleaseFailed`](Event::ReleaseFailed) with a hold, however often it was handed over in between. The end may be told before the beginning if another
/// thread tells it.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// An acquire has something in its way and waits from now on: the lock is held, others of this
    /// process are before it, or the store does not answer. An acquire that is admitted at once
    /// tells nothing, and neither does a single try. An owner of a reentrant mutex tells it once, for
    /// all of its calls.
    ///
    /// Each is followed by one [`WaitEnded`](Event::WaitEnded).
    WaitBegan {
        /// The key.
        key: &'a Key,
    },
    /// An acquire waits no more: it was admitted, has failed or timed out, or its future was dropped.
    WaitEnded {
        /// The key.
        key: &'a Key,
        /// How long it has waited.
        waited: Duration,
        /// Whether it was admitted.
        admitted: bool,
    },
    /// A try was blocked and the acquire goes on waiting. Told after each such try.
    Waiting {
        /// The key.
        key: &'a Key,
        /// Why, by whom, and when looking again may pay.
        blocked: &'a Blocked,
    },
    /// A try failed and is repeated.
    TryFailed {
        /// The key.
        key: &'a Key,
        /// What went wrong.
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
        /// Whether anything was in its way.
        contended: bool,
    },
    /// A hold passed to the next waiter of this process without a trip to the store. Told of the
    /// one that ends.
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
    /// The store confirmed a hold.
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
    /// A renewal failed and is repeated until the validity is over.
    RenewFailed {
        /// The key.
        key: &'a Key,
        /// The token of the hold.
        token: FencingToken,
        /// What went wrong.
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
    /// The store's clock went further (or less far) between two answers than their travel and its
    /// rate so far explain: it was set, or has begun to run at another rate. The hold is in doubt
    /// until the next answer, and until the one after that tells the two apart, it counts as both.
    ClockStepped {
        /// The key.
        key: &'a Key,
        /// By how many nanoseconds; negative if the clock was set back.
        by: i64,
    },
    /// The store's clock runs at another rate than before, and more than 1 % off ours or, with a
    /// ratio of about 1, no longer. While it runs fast the validity is shorter by the ratio.
    ClockUnsteady {
        /// The key.
        key: &'a Key,
        /// The speed of the store's clock over that of ours.
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
        /// How long it had lasted.
        held: Duration,
    },
    /// A hold was given back to the store.
    Released {
        /// The key.
        key: &'a Key,
        /// The token of the hold.
        token: FencingToken,
        /// How long it had lasted.
        held: Duration,
    },
    /// A hold was left to another process ([`Guard::detach`](crate::Guard::detach)); for this one it has ended.
    Detached {
        /// The key.
        key: &'a Key,
        /// The token of the hold.
        token: FencingToken,
        /// How long it had lasted.
        held: Duration,
    },
    /// A hold of another process goes on here ([`LockManager::adopt`](crate::LockManager::adopt)).
    Adopted {
        /// The key.
        key: &'a Key,
        /// The token of the hold.
        token: FencingToken,
    },
    /// What nobody uses any more was taken back from the store, in the background: after an acquire
    /// that was dropped or failed, a grant that came too late, a hold that was lost. Until then it
    /// may have kept others out.
    Settled {
        /// The key.
        key: &'a Key,
    },
    /// A claim could not be given back; the store frees it when its ttl is over.
    ReleaseFailed {
        /// The key.
        key: &'a Key,
        /// The token of the hold, and how long it had lasted; none if nobody had it.
        held: Option<(FencingToken, Duration)>,
        /// What went wrong at the last try.
        error: &'a BackendError,
    },
}
