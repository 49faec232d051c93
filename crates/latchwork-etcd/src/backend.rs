//! The verbs, and the try. The others have files of their own.

use std::fmt;
use std::num::NonZeroI64;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use latchwork_store::kit::lineup::Admission;
use latchwork_store::{
    Answers, Attempt, Backend, BackendError, BackendErrorKind, Blocked, Capabilities, Cause, Claim,
    Doubts, Effect, Error, Grant, Io, Key, Linger, Order, Query, Released, Renewal, Shape,
    Snapshot, Verb, Wake, Watch,
};
use tokio::sync::mpsc;

use crate::claims::{Claims, Own};
use crate::config::EtcdConfig;
use crate::errors::{Failure, Reaction, error, strange, unsupported};
use crate::keep_alive::Lane;
use crate::link::Link;
use crate::lookout::Lookout;
use crate::members::Members;
use crate::names;
use crate::pool::{Lease, Pool, Reading, spare};
use crate::queue::{Queue, value};
use crate::requests::{self, Ask, If};
use crate::vetting::keep_examining;
use crate::watch::{Listener, Words};

/// The shortest lease that etcd grants with its usual election timeout.
const SHORTEST: Duration = Duration::from_secs(2);
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// How many tries of one key are under way at a time: a try reads the whole queue.
const TRIES_AT_ONCE: usize = 8;

/// How often a try begins again because its lease ended on the way, or others joined the queue.
const ROUNDS: u32 = 32;

/// A [`Backend`] over etcd.
pub struct EtcdBackend(pub(crate) Arc<Shared>);

pub(crate) struct Shared {
    store: Arc<str>,
    pub(crate) members: Members,
    pub(crate) claims: Claims,
    pool: Pool,
    lookout: Arc<Lookout>,
    pub(crate) doubts: Doubts,
    /// The largest revision that a majority has told.
    newest: AtomicI64,
    pub(crate) io: Io,
}

impl EtcdBackend {
    /// Connects, and finds out whether the cluster takes requests.
    ///
    /// # Errors
    ///
    /// `Unreachable`, `Denied` or `Invalid`, with the member and the next step.
    pub async fn connect(config: EtcdConfig, io: Io) -> Result<Arc<Self>, Error> {
        let (to_lookout, told) = mpsc::unbounded_channel();
        let doubts = Doubts::default();
        let words = Words { to_lookout, doubts: doubts.clone() };
        let shared = Arc::new(Shared {
            store: config.shown().into(),
            members: Members::new(&config, &io, &words)?,
            claims: Claims::default(),
            pool: Pool::default(),
            lookout: Arc::default(),
            doubts,
            newest: AtomicI64::new(0),
            io,
        });
        let reached = match shared.reach().await {
            Ok(lease) => {
                shared.members.examine_all(lease).await;
                shared.members.identity().may_grant()
            }
            Err(failure) => Err(error(failure)),
        };
        match reached {
            Ok(()) => {
                shared.io.spawn(keep_examining(Arc::downgrade(&shared), shared.io.clone()));
                let lookout = shared.lookout.clone();
                shared.io.spawn(lookout.run(Arc::downgrade(&shared), told, shared.io.clone()));
                Ok(Arc::new(Self(shared)))
            }
            Err(error) => Err(Error::from_backend(error, None, &shared.store)),
        }
    }
}

impl Drop for EtcdBackend {
    fn drop(&mut self) {
        self.0.lookout.close();
        self.0.members.identity().closed.notify_one();
        self.0.claims.close();
    }
}

/// The result of a round of a try.
enum Round {
    Done(Attempt),
    /// The lease is gone, and it takes another; or the place is not the one that it was.
    Again,
    /// The queue as it is without the claim, which might join it.
    Seen(Queue),
}

impl Shared {
    /// Finds out whether a majority answers, and whether it knows us; a lease that it has granted.
    async fn reach(&self) -> Result<i64, Failure> {
        let seconds = whole_seconds(DEFAULT_TTL);
        let lease = self.grant(seconds, spare(seconds)).await?;
        self.pool.put(seconds, lease);
        // Anybody may have a lease. Who may not read this key may read others.
        let read = |link: Arc<Link>| async move { link.range(requests::one(b"latchwork")).await };
        match self.members.ask(read).await {
            Err(failure) if failure.reaction != Reaction::NoRight => Err(failure),
            _ => Ok(lease.id),
        }
    }

    async fn try_claim(self: &Arc<Self>, claim: &Claim) -> Result<Attempt, BackendError> {
        if claim.floor > 0 {
            return Err(unsupported(
                "etcd does not support token floors inside a claim; use `token_floor`",
            ));
        }
        self.members.identity().may_grant()?;
        let prefix = names::queue(&claim.key);
        let takes_place = claim.waits && claim.order == Order::Fifo;
        let mut condition = if takes_place { If::NoPlace } else { If::NobodyThere };
        for _ in 0..ROUNDS {
            match self.round(claim, &prefix, condition, takes_place).await? {
                Round::Done(attempt) => return Ok(attempt),
                Round::Again => {}
                Round::Seen(queue) => condition = If::NobodyJoinedSince(queue.revision),
            }
        }
        // Others have joined all the time; a claim that wants no place cannot prevail.
        Ok(Attempt::Blocked(
            Blocked::by(Cause::Queued).with(|it| it.retry_after = Some(Duration::from_millis(20))),
        ))
    }

    async fn round(
        self: &Arc<Self>,
        claim: &Claim,
        prefix: &[u8],
        condition: If,
        takes_place: bool,
    ) -> Result<Round, BackendError> {
        let known = self.claims.get(claim.id);
        if let Some(own) = known
            && let Some(far) = self.claims.far(claim.id)
            && let Some(blocked) = self.look_from_afar(claim, prefix, own, far).await?
        {
            return Ok(Round::Done(Attempt::Blocked(blocked)));
        }
        let revision = known.and_then(|own| own.revision);
        let seconds = known.map_or(whole_seconds(claim.ttl), |own| own.seconds);
        let (lease, is_new) = match known {
            Some(own) => (own.lease, false),
            None => self.lease(seconds).await?,
        };
        let key = names::claim(prefix, lease.id);
        let value = value(claim, self.io.clock().wall());
        let sent_at = self.clocks();
        let is_fresh = is_new || lease.lasts(sent_at);
        let newest = self.newest();
        self.claims.begin(claim.id, lease, seconds);
        let (answer, alive) = self
            .members
            .ask(|link| {
                // A claim with a place only reads: a transaction that may put costs the servers a write.
                let request = match revision.filter(|_| takes_place) {
                    Some(own) => Ask::Read(requests::queue_up_to(prefix, own)),
                    None => Ask::Put(requests::put(condition, prefix, &key, &value, lease.id)),
                };
                let (key, value) = (&key, &value);
                async move {
                    let queue = async {
                        match request {
                            Ask::Read(read) => {
                                link.range(read).await.map(requests::queue_in).map(Some)
                            }
                            Ask::Put(put) => {
                                let answer = link.txn(put).await;
                                answer.map(|it| requests::queue_of(it, key, value, lease.id))
                            }
                        }
                    };
                    let alive = async {
                        match is_fresh {
                            true => Ok(Some(lease.ttl + lease.spare)),
                            false => link.keep_alive(Lane::Try, lease.id).await,
                        }
                    };
                    // In one flight; both answers are needed.
                    let (answer, alive) = tokio::join!(queue, alive);
                    match answer {
                        Ok(answer) => Ok((Ok(answer), alive)),
                        Err(gone) if gone.reaction == Reaction::LeaseGone => Ok((Err(gone), alive)),
                        Err(failure) => Err(failure),
                    }
                }
            })
            .await
            .map_err(|failure| self.failed(claim, lease, failure))?;
        let queue = match answer {
            Err(_) => {
                self.claims.forget(claim.id, lease.id);
                return Ok(Round::Again);
            }
            Ok(queue) => queue
                .ok_or_else(|| strange("a transaction"))?
                .without_what_is_over(self.io.clock().wall()),
        };
        let me = queue.find(&key);
        self.claims.answered(claim.id, lease.id, |own| {
            own.revision = me.and_then(|me| NonZeroI64::new(queue.places[me].revision));
        });
        if queue.revision < newest {
            return Err(went_back(newest, queue.revision));
        }
        self.newest.fetch_max(queue.revision, Ordering::SeqCst);
        // The transaction's effect is known; the lease's ttl must be, too.
        let ttl = match alive {
            Ok(Some(granted)) => lease.usable(granted),
            Ok(None) => {
                // A leader that is behind may say so of a lease that it will yet learn of.
                self.revoke(claim, lease.id).await.map_err(Failure::after_another)?;
                return Ok(Round::Again);
            }
            Err(failure) => {
                let nothing_was_put = me.is_none() && self.is_settled(claim);
                if nothing_was_put {
                    self.claims.forget(claim.id, lease.id);
                }
                let effect = if nothing_was_put { Effect::NotApplied } else { Effect::Unknown };
                return Err(error(failure).with_effect(effect));
            }
        };
        let alive_at = if is_fresh { lease.alive_at } else { sent_at };
        self.claims.alive(claim.id, lease.id, ttl, alive_at);
        match me {
            Some(me) => self.in_queue(claim, &queue, me, prefix, ttl, takes_place).await,
            // A request without an answer made its place again, further behind.
            None if takes_place && revision.is_some() => Ok(Round::Again),
            None => self.beside(claim, queue, prefix, lease.id).await,
        }
    }

    /// Judges a claim that has a place.
    async fn in_queue(
        self: &Arc<Self>,
        claim: &Claim,
        queue: &Queue,
        me: usize,
        prefix: &[u8],
        ttl: Duration,
        takes_place: bool,
    ) -> Result<Round, BackendError> {
        let place = &queue.places[me];
        if let Some(used) = queue.clash(claim.mode, me) {
            self.withdraw(claim).await?;
            return Err(mismatch(used, claim.mode.shape()));
        }
        let is_held = self.claims.get(claim.id).is_some_and(|own| own.granted);
        let admission = if is_held { queue.admission(me) } else { queue.admission_of_waiter(me) };
        if admission == Admission::Granted {
            let token = place.revision as u64;
            self.holds(claim, place.lease, None);
            return Ok(Round::Done(Attempt::Granted(Grant { token, ttl, store_time: None })));
        }
        let blocked = queue.blocked(me, &admission, prefix.len());
        let blocked = Box::pin(self.until_it_opens(queue, blocked)).await;
        if takes_place {
            let far = queue.far(me, &admission, prefix.len(), &blocked);
            self.claims.set_far(claim.id, place.lease, far);
        } else {
            self.withdraw(claim).await?;
        }
        Ok(Round::Done(Attempt::Blocked(blocked)))
    }

    /// Judges a claim that has no place and does not want one unless it is the key.
    async fn beside(
        self: &Arc<Self>,
        claim: &Claim,
        queue: Queue,
        prefix: &[u8],
        lease: i64,
    ) -> Result<Round, BackendError> {
        let end = queue.places.len();
        let clash = queue.clash(claim.mode, end);
        let admission = queue.admission_of_newcomer(claim.mode);
        if clash.is_none() && admission == Admission::Granted {
            return Ok(Round::Seen(queue));
        }
        // A request without answer may still put the key: then the release has to know of it.
        if self.is_settled(claim)
            && let Some(own) = self.claims.forget(claim.id, lease)
        {
            self.give_back(own);
        }
        match clash {
            Some(used) => Err(mismatch(used, claim.mode.shape())),
            None => {
                let blocked = queue.blocked(end, &admission, prefix.len());
                let blocked = Box::pin(self.until_it_opens(&queue, blocked)).await;
                Ok(Round::Done(Attempt::Blocked(blocked)))
            }
        }
    }

    /// Whether no request of this claim is still under way.
    fn is_settled(&self, claim: &Claim) -> bool {
        self.claims.get(claim.id).is_some_and(|own| own.unsure == 0)
    }

    /// The claim holds its key, which may be watched already.
    pub(crate) fn holds(&self, claim: &Claim, lease: i64, watch: Option<Listener>) {
        self.claims.granted(claim.id, lease, claim.key.clone(), self.io.now(), watch);
        self.lookout.tell();
    }

    /// The largest revision that a majority has told.
    pub(crate) fn newest(&self) -> i64 {
        self.newest.load(Ordering::SeqCst)
    }

    /// What the clocks say now.
    pub(crate) fn clocks(&self) -> Reading {
        Reading::now(self.io.clock().as_ref())
    }

    /// Takes the place of a claim back.
    async fn withdraw(self: &Arc<Self>, claim: &Claim) -> Result<(), BackendError> {
        self.release_claim(claim).await.map(drop).map_err(Failure::after_another)
    }

    /// What is known after an error.
    fn failed(&self, claim: &Claim, lease: Lease, failure: Failure) -> BackendError {
        if failure.error.effect == Effect::NotApplied {
            self.claims.answered(claim.id, lease.id, |_| {});
            let own = self.claims.get(claim.id);
            if own.is_some_and(|own| own.unsure == 0 && own.revision.is_none()) {
                self.claims.forget(claim.id, lease.id);
            }
        }
        error(failure)
    }

    /// A lease of this length, and whether it was granted just now.
    async fn lease(self: &Arc<Self>, seconds: i64) -> Result<(Lease, bool), BackendError> {
        let (lease, refill) = self.pool.take(seconds, self.clocks());
        if refill {
            // The next one is granted while this one is used.
            let shared = Arc::downgrade(self);
            self.io.spawn(async move {
                if let Some(shared) = shared.upgrade() {
                    let lease = shared.grant(seconds, spare(seconds)).await.ok();
                    shared.pool.refilled(seconds, lease);
                }
            });
        }
        match lease {
            Some(lease) => Ok((lease, false)),
            None => {
                let lease = self.grant(seconds, spare(seconds)).await.map_err(error)?;
                Ok((lease, true))
            }
        }
    }

    /// A new lease of so many seconds, and some to spare.
    pub(crate) async fn grant(&self, seconds: i64, spare: i64) -> Result<Lease, Failure> {
        let alive_at = self.clocks();
        let asked = seconds + spare;
        let answer = self.members.ask(|link| async move { link.grant(asked).await }).await;
        let answer = answer?;
        let granted = Duration::from_secs(answer.ttl.try_into().unwrap_or(0));
        let spare = Duration::from_secs(spare.try_into().unwrap_or(0));
        let mut lease = Lease { id: answer.id, ttl: Duration::ZERO, spare, alive_at };
        lease.ttl = lease.usable(granted);
        Ok(lease)
    }

    /// Puts the lease of a claim that is over into the pool, if nothing of it is unknown.
    pub(crate) fn give_back(self: &Arc<Self>, own: Own) {
        if own.unsure == 0 {
            self.pool.put(own.seconds, own.lease);
        }
    }
}

impl Backend for EtcdBackend {
    fn capabilities(&self) -> Capabilities {
        Capabilities::full(self.0.store.clone()).with_ttl(SHORTEST..=LONGEST, DEFAULT_TTL)
    }

    fn doubts(&self) -> Option<&Doubts> {
        Some(&self.0.doubts)
    }

    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> Verb<'a, Result<Attempt, BackendError>> {
        Box::pin(self.0.try_claim(claim))
    }

    fn wait<'a>(
        &'a self,
        claim: &'a Claim,
        blocked: &'a Blocked,
    ) -> Verb<'a, Result<Wake, BackendError>> {
        Box::pin(self.0.wait_for(claim, blocked))
    }

    fn renew_all<'a>(
        &'a self,
        claims: &'a [Claim],
    ) -> Verb<'a, Vec<Result<Renewal, BackendError>>> {
        Box::pin(async move {
            let answers = Answers::default();
            self.0.renew(claims, &answers).await;
            let mut told: Vec<_> = claims.iter().map(|_| None).collect();
            for (claim, answer) in answers.take() {
                told[claim].get_or_insert(answer);
            }
            told.into_iter().map(|a| a.unwrap_or_else(|| Err(strange("a renewal")))).collect()
        })
    }

    fn renew_each<'a>(&'a self, claims: &'a [Claim], answers: &'a Answers) -> Verb<'a, ()> {
        Box::pin(self.0.renew(claims, answers))
    }

    fn release<'a>(
        &'a self,
        claim: &'a Claim,
        linger: Linger,
    ) -> Verb<'a, Result<Released, BackendError>> {
        Box::pin(async move {
            match linger {
                Linger::None => self.0.release_claim(claim).await,
                Linger::For(length) => self.0.close(claim, length).await,
                Linger::End => self.0.open(&claim.key).await,
            }
        })
    }

    fn tries_at_once(&self) -> Option<usize> {
        Some(TRIES_AT_ONCE)
    }

    fn watch<'a>(&'a self, key: &'a Key) -> Verb<'a, Result<Option<Box<dyn Watch>>, BackendError>> {
        Box::pin(self.0.observe(key))
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> Verb<'a, Result<Vec<Snapshot>, BackendError>> {
        Box::pin(self.0.look(query))
    }
}

impl fmt::Debug for EtcdBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdBackend").field("store", &self.0.store).finish_non_exhaustive()
    }
}

/// etcd counts whole seconds; a claim must not end early.
pub(crate) fn whole_seconds(ttl: Duration) -> i64 {
    (ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0)) as i64
}

/// A token of such a store would be smaller than others before it.
pub(crate) fn went_back(newest: i64, now: i64) -> BackendError {
    let message = format!(
        "the store's revision went back from {newest} to {now}: it was restored from a backup, \
         and its tokens would be smaller than earlier ones"
    );
    BackendError::new(BackendErrorKind::Corrupt, Effect::Unknown, message).with_next_step(
        "restore it with --bump-revision; or restart this program if no resource remembers an \
         earlier token",
    )
}

fn mismatch(used: Shape, wanted: Shape) -> BackendError {
    BackendError::new(
        BackendErrorKind::Mismatch,
        Effect::NotApplied,
        format!("the key is in use as {used}, and this client asks for {wanted}"),
    )
}
