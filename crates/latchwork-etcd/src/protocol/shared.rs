//! What all verbs share: the members, this client's claims and leases, and the clocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use latchwork_store::{BackendError, BackendErrorKind, Claim, Doubts, Effect, Error, Io};
use tokio::sync::mpsc;

use crate::config::EtcdConfig;
use crate::protocol::claims::{Claims, OwnClaim};
use crate::protocol::holder_watch::HolderWatch;
use crate::protocol::pool::{Lease, Pool, Reading, spare};
use crate::protocol::requests;
use crate::server::errors::{Failure, Reaction, error};
use crate::server::link::Link;
use crate::server::members::Members;
use crate::server::watch::{Listener, WatchReports};
use crate::server::watchers::Word;

/// How long a member may take for the first requests of a client. One without a majority says so after 7 s.
const FIRST_ANSWER: Duration = Duration::from_secs(8);

pub(crate) const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// What the watches of holders tell the holder watch, each with the number of its member.
pub(crate) type Reports = mpsc::UnboundedReceiver<(usize, Word)>;

/// What all verbs share.
pub(crate) struct Shared {
    pub(crate) store: Arc<str>,
    pub(crate) members: Arc<Members>,
    pub(crate) claims: Claims,
    pub(crate) pool: Pool,
    pub(crate) holder_watch: Arc<HolderWatch>,
    pub(crate) doubts: Doubts,
    /// The largest revision that a majority has told.
    pub(crate) newest: AtomicI64,
    pub(crate) io: Io,
}

impl Shared {
    /// Connects to nobody yet; the second is for [`HolderWatch::run`].
    pub(crate) fn new(config: &EtcdConfig, io: Io) -> Result<(Arc<Self>, Reports), Error> {
        let (to_holder_watch, told) = mpsc::unbounded_channel();
        let doubts = Doubts::default();
        let words = WatchReports { to_holder_watch, doubts: doubts.clone() };
        let shared = Self {
            store: config.shown().into(),
            members: Arc::new(Members::new(config, &io, &words)?),
            claims: Claims::default(),
            pool: Pool::default(),
            holder_watch: Arc::default(),
            doubts,
            newest: AtomicI64::new(0),
            io,
        };
        Ok((Arc::new(shared), told))
    }

    /// Finds out whether a majority answers, and whether it knows us; a lease that it has granted.
    pub(crate) async fn reach(&self) -> Result<i64, Failure> {
        for _ in 0..self.members.count() {
            // The next one is asked after one that was given up: a proxy may take requests for a member that hangs.
            if let Some(reached) = self.io.within(FIRST_ANSWER, self.reach_one()).await {
                return reached;
            }
        }
        Err(Failure::late(FIRST_ANSWER))
    }

    async fn reach_one(&self) -> Result<i64, Failure> {
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

    /// The claim holds its key, which may be watched already.
    pub(crate) fn holds(&self, claim: &Claim, lease: i64, watch: Option<Listener>) {
        self.claims.granted(claim.id, lease, claim.key.clone(), self.io.now(), watch);
        self.holder_watch.tell();
    }

    /// The largest revision that a majority has told.
    pub(crate) fn newest(&self) -> i64 {
        self.newest.load(Ordering::SeqCst)
    }

    /// What the clocks say now.
    pub(crate) fn clocks(&self) -> Reading {
        Reading::now(self.io.clock().as_ref())
    }

    /// A lease of this length, and whether it was granted just now.
    pub(crate) async fn lease(
        self: &Arc<Self>,
        seconds: i64,
    ) -> Result<(Lease, bool), BackendError> {
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
    pub(crate) fn give_back(self: &Arc<Self>, own: OwnClaim) {
        if own.unsure == 0 && !own.is_adopted {
            self.pool.put(own.seconds, own.lease);
        }
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
