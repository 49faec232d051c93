//! Releases abandoned claims in the background.
//!
//! An acquire that was cancelled or gave up may have taken effect, a dropped guard must be freed,
//! and a hold that was lost by the holder's own clock may still be kept by the store for a live
//! session. All three end here: a release of the same id, repeated until the store answers or the
//! claim's ttl and lock delay are over. A failed renewal never comes here.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;

use crate::hold::delayed::Delayed;
use crate::hold::local_queue::Lead;
use crate::rules::observe::Event;
use crate::rules::options::Rules;
use crate::runtime::driver::{Work, WorkTicket};
use latchwork_store::{
    Attempt, BackendError, BackendErrorKind, Backoff, Claim, Effect, FencingToken, Io, Key, Linger,
    Moment, Released,
};

/// A try whose caller has gone.
pub(crate) type Orphan =
    Pin<Box<dyn Future<Output = Result<Attempt, BackendError>> + Send + 'static>>;

/// The claim to release.
pub(crate) struct Job {
    pub(crate) claim: Claim,
    pub(crate) rules: Arc<Rules>,
    /// Until when the key is to stay closed afterwards.
    pub(crate) closed_until: Option<Moment>,
    /// The hold that ends with it, its token and how long it has lasted; none if nobody had it.
    pub(crate) held: Option<(FencingToken, Duration)>,
    /// A try of this claim that is still under way: the release goes after its answer.
    pub(crate) under_way: Option<Orphan>,
    /// The turn of the local queue, passed on after the first release that was answered or failed.
    pub(crate) lead: Option<Lead>,
    /// It is free again when this claim is settled: the turn to replace a hold, or the end of a hold that was
    /// replaced.
    pub(crate) turn: Option<OwnedMutexGuard<()>>,
    /// Before that the key must stay closed: the hold was lost, and has a lock delay. The queue need not wait for
    /// it.
    pub(crate) not_before: Option<Moment>,
}

impl Job {
    /// A claim without a holder, to be released at once.
    pub(crate) fn of(claim: Claim, rules: Arc<Rules>) -> Self {
        Self {
            claim,
            rules,
            closed_until: None,
            held: None,
            under_way: None,
            lead: None,
            turn: None,
            not_before: None,
        }
    }
}

#[derive(Clone)]
pub(crate) struct Reaper {
    backend: Delayed,
    io: Io,
    work: Arc<Work>,
}

impl Reaper {
    pub(crate) fn new(backend: Delayed, io: Io, work: Arc<Work>) -> Self {
        Self { backend, io, work }
    }

    /// What keeps a manager that is closed waiting until it is dropped.
    pub(crate) fn work(&self) -> WorkTicket {
        self.work.begin()
    }

    /// Takes over a job. Never blocks and never panics: callable from a drop, outside any runtime.
    pub(crate) fn reap(&self, job: Job) {
        // A lock delay may be long, and the store ends the claim after it anyway: a close does not wait for it.
        let ticket = job.not_before.is_none().then(|| self.work());
        let this = self.clone();
        let untold = Untold::of(&job);
        self.io.spawn(async move {
            this.give_back(job, untold, ticket).await;
        });
    }

    async fn give_back(&self, job: Job, mut untold: Untold, ticket: Option<WorkTicket>) {
        let Job { claim, rules, closed_until, held, under_way, mut lead, turn, not_before } = job;
        let _turn = turn;
        let op_timeout = rules.op_timeout(claim.ttl);
        if let Some(try_under_way) = under_way {
            // Whatever it answers: the release settles it, and goes after it.
            let _ = self.io.within(op_timeout, try_under_way).await;
        }
        if let Some(at) = not_before {
            drop(lead.take());
            self.io.sleep(at.since(self.io.now())).await;
        }
        let _ticket = ticket.unwrap_or_else(|| self.work());
        // What the claim may have left ends by itself then (B15).
        let give_up = self.io.now().plus(Delayed::kept_for(&claim));
        let first = Duration::from_millis(20).min(op_timeout);
        let mut backoff = Backoff::new(first, op_timeout);
        loop {
            let linger = linger_until(closed_until, self.io.now());
            let answer = self.release_once(&claim, linger, op_timeout).await;
            drop(lead.take());
            let error = match answer {
                Ok(_) => {
                    untold.0 = None;
                    return tell_released(&rules, &claim.key, held);
                }
                Err(error) => error,
            };
            let pause = backoff.pause();
            if self.io.now().plus(pause) >= give_up {
                untold.0 = None;
                let key = &claim.key;
                return rules.tell(&Event::ReleaseFailed { key, held, error: &error });
            }
            self.io.sleep(pause).await;
        }
    }

    pub(crate) async fn release_once(
        &self,
        claim: &Claim,
        linger: Linger,
        op_timeout: Duration,
    ) -> Result<Released, BackendError> {
        self.io.answer(op_timeout, self.backend.release(claim, linger)).await
    }
}

/// A hold whose end the observer has not received yet. It receives it also if the job ends early, as with
/// Latchwork's threads.
struct Untold(Option<(Arc<Rules>, Key, (FencingToken, Duration))>);

impl Untold {
    fn of(job: &Job) -> Self {
        Self(job.held.map(|held| (job.rules.clone(), job.claim.key.clone(), held)))
    }
}

impl Drop for Untold {
    fn drop(&mut self) {
        if let Some((rules, key, held)) = self.0.take() {
            let error = BackendError::new(
                BackendErrorKind::Unreachable,
                Effect::Unknown,
                "the store had not answered the release when the connection was given up",
            );
            rules.tell(&Event::ReleaseFailed { key: &key, held: Some(held), error: &error });
        }
    }
}

/// How long a key stays closed that is to be closed until then: a release that is repeated does not
/// close it for longer.
pub(crate) fn linger_until(closed_until: Option<Moment>, now: Moment) -> Linger {
    match closed_until.map(|until| until.since(now)) {
        None | Some(Duration::ZERO) => Linger::None,
        Some(left) => Linger::For(left),
    }
}

/// Tells that a claim has left the store.
pub(crate) fn tell_released(rules: &Rules, key: &Key, held: Option<(FencingToken, Duration)>) {
    rules.tell(&match held {
        Some((token, held)) => Event::Released { key, token, held },
        None => Event::Settled { key },
    });
}

/// A release that somebody waits for: if they stop waiting, the reaper goes on with it.
pub(crate) struct Withdrawal {
    reaper: Reaper,
    /// `None` once it is settled.
    job: Option<Job>,
}

impl Withdrawal {
    pub(crate) fn new(reaper: &Reaper, job: Job) -> Self {
        Self { reaper: reaper.clone(), job: Some(job) }
    }

    /// The claim to release.
    pub(crate) fn job(&self) -> &Job {
        self.job.as_ref().expect("it is settled only when it was answered")
    }

    /// Passes the queue's turn on, and goes on with the release.
    pub(crate) fn pass_on(&mut self) {
        drop(self.job.as_mut().and_then(|job| job.lead.take()));
    }

    /// The store has answered: nothing is left to do, and the queue's turn passes on.
    pub(crate) fn settled(&mut self) {
        self.job = None;
    }
}

impl Drop for Withdrawal {
    fn drop(&mut self) {
        if let Some(job) = self.job.take() {
            self.reaper.reap(job);
        }
    }
}
