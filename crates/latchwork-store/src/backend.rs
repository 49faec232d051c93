//! The boundary between Latchwork and a store: five verbs and their types.
//!
//! Read this page to write a backend, or to understand the whole system. Everything above it
//! (waiting, validity, renewal, handover, primitives) is written once, in the crate `latchwork`; everything
//! below it is I/O.
//!
//! Three ideas carry the trait:
//!
//! 1. **The client gives each claim an id.** Every verb is idempotent by [`Claim::id`]. So the
//!    client calls the same verb again to retry after a lost answer, to keep its place in the
//!    queue, to find its own node, or to withdraw.
//! 2. **Trying and waiting are separate.** [`Backend::try_acquire`] is atomic and immediate;
//!    [`Backend::wait`] only returns when a retry may succeed.
//! 3. **Liveness is a duration counted from the request.** No backend computes a deadline; the engine
//!    does, from the moment before it called the verb.
//!
//! # The contract
//!
//! `docs/contract.md` explains each rule; each is also the name of a conformance test.
//!
//! | rule | promise |
//! | --- | --- |
//! | B1 atomic | no two incompatible claims are granted at once, by the store's own reckoning |
//! | B2 idempotent | `try_acquire` again with the same id gives the same place, or the same grant with the same token and a restarted ttl |
//! | B3 place | a blocked fifo claim keeps its place until released, or until its ttl passes without being repeated; `waits = false` leaves nothing |
//! | B4 full measure | a grant or renewal lasts at least its `ttl` from the moment the request reached the store |
//! | B5 no revival | `renew_all` answers `Lost` only if the store says so, and never brings a lost claim back |
//! | B6 own claim only | `release` and `renew_all` touch nothing but this id; `release` is idempotent and also withdraws a waiter; with [`Linger::End`] it opens a closed key and touches no claim |
//! | B7 wake-ups | with `push`, `wait` returns soon after this claim may be admitted, also when that happened between the try and the wait; never at once again and again |
//! | B8 tokens | if one grant on a key ended before another began, the later token is greater; none is used twice |
//! | B9 honest errors | contention is not an error; `NotApplied` only when certain |
//! | B10 droppable | dropping a verb's future anywhere is safe for the process and counts as an unknown effect |
//! | B11 decides nothing by time | what keeps a hold alive runs on the [`Io`](crate::Io) given at connect and ends when the backend is dropped; it never renews a claim that the engine has not renewed within its ttl |
//! | B12 shape | a key used as two kinds of lock answers `Mismatch`, and so does another permit limit unless [`Claim::resize`] says otherwise; the permits held never exceed the largest limit asked for, and a change of the limit ends no claim |
//! | B13 keys | distinct keys never collide (case, separators, length) |
//! | B14 inspect | changes nothing |
//! | B15 no ghosts | what an attempt leaves in the store, even one that lands after its own release, disappears within its ttl |
//! | B16 beside | a claim [beside](crate::Claim::beside) a hold is granted while that is held, excludes everybody else from then on, and depends on it no longer |

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use crate::answers::Answers;
use crate::capabilities::Capabilities;
use crate::claim::{Claim, ClaimId};
use crate::doorbell::Doorbell;
use crate::doubts::Doubts;
use crate::error::BackendError;
use crate::key::Key;
use crate::lifeline::Lifeline;
use crate::watch::Watch;
use crate::words::{Attempt, Blocked, Linger, Query, Released, Renewal, Resized, Snapshot, Wake};

/// The future a verb returns: boxed, so that [`Backend`] is object safe.
pub type Verb<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A store that can hold claims on keys.
///
/// The futures are polled on the caller's task, on any runtime. Connections, timers and streams
/// belong on the [`Io`](crate::Io) that the backend was given when it was made; they must end when
/// the backend is dropped.
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// Returns what this store can do. The answer never changes over the life of the backend.
    fn capabilities(&self) -> Capabilities;

    /// Asks the store, in one atomic step, to grant `claim` now.
    ///
    /// # To ensure correctness
    ///
    /// - The same id is the same claim (B2): a held claim keeps its token and restarts its ttl, a
    ///   waiting one keeps its place.
    /// - The token of a new grant is greater than every earlier one on the key and at least
    ///   [`Claim::floor`] (B8).
    /// - If [`Claim::waits`] is false, nothing is left behind when the answer is `Blocked` (B3).
    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> Verb<'a, Result<Attempt, BackendError>>;

    /// Tries several claims at once, as [`Self::try_acquire`] does; one answer for each claim, in
    /// order.
    ///
    /// Implement it if one request can serve several claims. By default, each claim is tried by
    /// itself, all at the same time.
    fn try_acquire_all<'a>(
        &'a self,
        claims: &'a [Claim],
    ) -> Verb<'a, Vec<Result<Attempt, BackendError>>> {
        each(claims.iter().map(|claim| self.try_acquire(claim)).collect())
    }

    /// Returns when a retry may succeed.
    ///
    /// Called after `Blocked`, with that answer. It may return early, but not at once again and
    /// again; it may also never return: the engine tries again by itself when `retry_after` is over
    /// and every third of the claim's ttl, and then drops this future (B7, B10).
    fn wait<'a>(
        &'a self,
        claim: &'a Claim,
        blocked: &'a Blocked,
    ) -> Verb<'a, Result<Wake, BackendError>>;

    /// Restarts the ttl of held claims; one answer for each claim, in order.
    ///
    /// # To ensure correctness
    ///
    /// - `Lost` means that the store says that the claim is not held. If the backend does not know,
    ///   it returns an `Err` (B5).
    /// - Never re-creates a claim, whatever happened to it (B5).
    /// - If a claim's [`Claim::floor`] is larger than its token, it raises the token that the store
    ///   remembers for the key, but only while this claim is held. The answer has the result.
    fn renew_all<'a>(&'a self, claims: &'a [Claim])
    -> Verb<'a, Vec<Result<Renewal, BackendError>>>;

    /// Renews as [`Self::renew_all`] does, and reports each answer as soon as it arrives.
    ///
    /// The engine calls this one. It waits longer for a call that still reports answers, and keeps
    /// them if it abandons the rest. So implement it if the store is asked about claims one by one,
    /// or may be late with some of them. By default, all answers are reported at the end.
    fn renew_each<'a>(&'a self, claims: &'a [Claim], answers: &'a Answers) -> Verb<'a, ()> {
        Box::pin(async move {
            for (claim, answer) in self.renew_all(claims).await.into_iter().enumerate() {
                answers.say(claim, answer);
            }
        })
    }

    /// Ends `claim`, held or waiting, and nothing else (B6).
    ///
    /// With [`Linger::For`], a claim that was held leaves the key closed to all claims for that
    /// long. [`Linger::End`] is a different request: it ends no claim, and opens a closed key.
    fn release<'a>(
        &'a self,
        claim: &'a Claim,
        linger: Linger,
    ) -> Verb<'a, Result<Released, BackendError>>;

    /// Releases several claims at once, without a linger; one answer for each claim, in order.
    ///
    /// By default each is released by itself, all at the same time.
    fn release_all<'a>(
        &'a self,
        claims: &'a [Claim],
    ) -> Verb<'a, Vec<Result<Released, BackendError>>> {
        each(claims.iter().map(|claim| self.release(claim, Linger::None)).collect())
    }

    /// Sets the limit of permits to that of `claim`'s mode, for all claims that hold the key or wait for
    /// it at that moment, in one atomic step. The id of the claim may be unknown.
    ///
    /// # To ensure correctness
    ///
    /// - No claim ends, also where more permits are held than the new limit admits.
    /// - Waiters that may be admitted by the new limit are woken (B7).
    /// - A waiter keeps the new limit when its try is repeated. With the policy
    ///   [`ToMine`](crate::Resize::ToMine) it may go on by its own.
    ///
    /// By default the store does not support it, as [`Capabilities::resize`] says.
    fn resize<'a>(&'a self, claim: &'a Claim) -> Verb<'a, Result<Resized, BackendError>> {
        let _ = claim;
        Box::pin(async { Err(BackendError::cannot_resize()) })
    }

    /// Whether verbs may block the thread that polls them, as file I/O does.
    ///
    /// If so, the engine polls background verbs on separate threads, so that one that stalls delays
    /// no renewal of another key. The answer never changes.
    fn blocks(&self) -> bool {
        false
    }

    /// Whether a renewal may ask for another ttl than the try that was granted did. The answer never
    /// changes.
    fn ttl_may_change(&self) -> bool {
        false
    }

    /// Returns how many tries on one key the engine may have in flight, if a try reads the whole
    /// queue of the key. `None` sets no limit. Waiting claims and woken claims have this limit
    /// each. The answer never changes.
    ///
    /// Claims that share a place in the process's own queue have one try at a time anyway.
    fn tries_at_once(&self) -> Option<usize> {
        None
    }

    /// Returns the descriptor that keeps the session alive, if the store has one.
    fn lifeline(&self) -> Option<Lifeline> {
        None
    }

    /// Returns whether a process may renew and release, by its id, a claim that another process has
    /// acquired, and so adopt its hold. `false` if a claim belongs to the session of a process.
    fn renews_for_others(&self) -> bool {
        false
    }

    /// Returns whether all clients count the rest of a lease ([`Party::remaining`](crate::Party::remaining)) from the same
    /// moment. `false` if each counts from when it first saw the claim: others may see its end sooner.
    fn counts_for_all(&self) -> bool {
        true
    }

    /// Lets go of a claim that this process holds: from now on any process may renew and release it.
    /// Returns the id by which they do.
    fn detach(&self, claim: &Claim) -> ClaimId {
        claim.id
    }

    /// Returns the claim of a hold that any process may have acquired, as this backend renews it.
    /// `token` is the number of its grant.
    fn adopt(&self, claim: Claim, token: u64) -> Claim {
        let _ = token;
        claim
    }

    /// Returns the descriptor on which a blocked thread can wait for the store's wake-ups.
    fn doorbell(&self) -> Option<Doorbell> {
        None
    }

    /// Returns the doubts through which this backend reports claims that may have ended, if its
    /// store notifies it.
    fn doubts(&self) -> Option<&Doubts> {
        None
    }

    /// Subscribes to the changes of a key's holders; `None` from a store that has no notifications.
    ///
    /// The subscription begins before the answer: each change after the answer gives a hint
    /// ([`Watch::changed`]). An observer subscribes, reads the holders, and waits for a hint or a
    /// timer, so a lost hint only delays it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves no subscription behind.
    fn watch<'a>(
        &'a self,
        _key: &'a Key,
    ) -> Verb<'a, Result<Option<Box<dyn Watch>>, BackendError>> {
        Box::pin(async { Ok(None) })
    }

    /// Returns the holders and the waiters, and changes nothing (B14).
    ///
    /// For one key the answer has exactly one entry, free or not; for a prefix it has the keys
    /// that are held, waited for or lingering, sorted by key.
    fn inspect<'a>(&'a self, query: &'a Query) -> Verb<'a, Result<Vec<Snapshot>, BackendError>>;
}

/// Runs verbs at the same time.
fn each<'a, T: Send + 'a>(verbs: Vec<Verb<'a, T>>) -> Verb<'a, Vec<T>> {
    Box::pin(async move {
        let mut verbs: Vec<_> = verbs.into_iter().map(Some).collect();
        let mut answers: Vec<Option<T>> = verbs.iter().map(|_| None).collect();
        poll_fn(|cx| {
            for (verb, answer) in verbs.iter_mut().zip(&mut answers) {
                if let Some(Poll::Ready(ended)) = verb.as_mut().map(|verb| verb.as_mut().poll(cx)) {
                    (*answer, *verb) = (Some(ended), None);
                }
            }
            if verbs.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        answers.into_iter().flatten().collect()
    })
}
