//! Where a trial is played: a runtime, a clock, a fresh store, and words for what is expected.

use std::cell::Cell;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use latchwork::{Driver, LockManager};
use latchwork_store::testing::paused_io;
use latchwork_store::testing::stalls;
use latchwork_store::{
    Attempt, BackendError, BackendErrorKind, Blocked, Claim, ClaimId, Error, ErrorKind, Grant, Io,
    Key, Linger, Mode, Moment, Order, Query, Released, Renewal, Snapshot, Stamp, random_between,
};
use tokio::runtime::{Builder, Runtime};

use crate::case::CaseFuture;
use crate::harness::{Client, Expected, Harness, Store, Time};

/// How long a real store may take for a request that nothing disturbs.
const PATIENT: Duration = Duration::from_secs(20);

/// No trial takes longer; the paused clock gets there at once when everybody hangs.
const LONGEST: Duration = Duration::from_secs(3_600);

/// The key of trials that need only one.
pub(crate) const NAME: &str = "conformance/one key";

/// What a trial works with.
pub(crate) struct Stage {
    harness: Arc<dyn Harness>,
    store: Store,
    io: Io,
    made: Cell<u32>,
    /// The longest time in which a client of this stage was opened.
    opened_in: Cell<Duration>,
}

impl Stage {
    /// Plays a check on a fresh store.
    pub(crate) fn play(harness: Arc<dyn Harness>, check: fn(Stage) -> CaseFuture) {
        let time = harness.time();
        let runtime = runtime(time);
        match time {
            Time::Paused => runtime.block_on(async {
                let (io, _) = paused_io();
                let whole = async { check(Stage::new(harness, io.clone()).await).await };
                io.within(LONGEST, whole).await.expect("the trial hangs: nobody was woken");
            }),
            Time::Real => {
                let driver = Driver::start().expect("a thread for the backend");
                let io = driver.io();
                runtime.block_on(async {
                    let whole = async { check(Stage::new(harness, io.clone()).await).await };
                    let limit = Duration::from_secs(300);
                    io.within(limit, whole).await.expect("the trial hangs");
                });
            }
        }
    }

    async fn new(harness: Arc<dyn Harness>, io: Io) -> Self {
        let store = harness.fresh(&io).await;
        Self { harness, store, io, made: Cell::new(0), opened_in: Cell::default() }
    }

    /// The same stage with another fresh store.
    pub(crate) async fn again(&self) -> Self {
        Self::new(self.harness.clone(), self.io.clone()).await
    }

    pub(crate) fn io(&self) -> Io {
        self.io.clone()
    }

    /// One more client of the store.
    pub(crate) async fn client(&self) -> Client {
        let start = self.now();
        let client = self.store.open(&self.io).await;
        self.opened_in.set(self.opened_in.get().max(self.now().since(start)));
        client
    }

    /// One more process with locks on the store, none of which runs out while it lives. A real store may share its
    /// processors with others, and answer late.
    pub(crate) async fn peer(&self) -> Peer {
        let client = self.client().await;
        let locks = LockManager::on_io(client.backend.clone(), self.io.clone());
        let brief = locks.ttl(self.harness.long_ttl());
        let locks = match self.harness.time() {
            Time::Real => brief.clone().op_timeout(PATIENT),
            Time::Paused => brief.clone(),
        };
        Peer { locks, brief, client }
    }

    /// Long enough for a request to get into a line, where waiting for it is all that can be done.
    pub(crate) fn a_while(&self) -> Duration {
        self.harness.slack()
    }

    /// Expects that the store says that it cannot do this, at once and with the reason.
    pub(crate) fn refused<T: fmt::Debug>(&self, answer: Result<T, Error>) -> String {
        let error = answer.expect_err("a store that cannot do this");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        error.next_step().unwrap_or_else(|| panic!("no next step: {error}")).to_owned()
    }

    pub(crate) fn expected(&self) -> Expected {
        self.harness.expected()
    }

    pub(crate) fn is_reserved(&self, name: &str) -> bool {
        self.harness.is_reserved(name)
    }

    pub(crate) fn now(&self) -> Moment {
        self.io.now()
    }

    pub(crate) async fn sleep(&self, length: Duration) {
        self.io.sleep(length).await;
    }

    pub(crate) async fn sleep_until(&self, at: Moment) {
        self.io.clock().sleep_until(at).await;
    }

    pub(crate) async fn within<F: Future>(&self, limit: Duration, future: F) -> Option<F::Output> {
        self.io.within(limit, future).await
    }

    /// A ttl that is meant to run out.
    pub(crate) fn short(&self) -> Duration {
        self.harness.short_ttl()
    }

    /// How late the store may be, after what happened since `from`: a server that shares the machine with others may be
    /// as slow again as when it was connected to, which is more than one request.
    pub(crate) fn lateness(&self, from: Moment) -> Duration {
        match self.harness.time() {
            Time::Paused => self.harness.slack(),
            Time::Real => self.harness.slack() + stalls::since(from).sum + self.opened_in.get(),
        }
    }

    /// A pause long enough that whoever was spawned has got where it waits. Nothing may depend on
    /// it: a check must hold as well when it is too short.
    pub(crate) async fn settle(&self) {
        self.sleep(Duration::from_millis(5)).await;
    }

    /// A fresh claim on the key of the trial: long ttl, in line, waiting.
    pub(crate) fn claim(&self, mode: Mode) -> Claim {
        self.made.set(self.made.get() + 1);
        Claim::new(
            Key::new(NAME).expect("a good key"),
            ClaimId::random(),
            mode,
            self.harness.long_ttl(),
            Stamp::new(self.now()),
        )
        .with(|it| it.holder = format!("holder {}", self.made.get()).into())
    }

    /// A fresh claim that leaves nothing behind when it is blocked.
    pub(crate) fn passer(&self, mode: Mode) -> Claim {
        self.claim(mode).with(|it| {
            it.waits = false;
            it.order = Order::Barging;
        })
    }

    /// A fresh claim that is meant to run out.
    pub(crate) fn short_claim(&self, mode: Mode) -> Claim {
        self.claim(mode).with(|it| it.ttl = self.short())
    }

    /// All modes that the backend can do, each a claim that fills its key.
    pub(crate) fn filling_modes(&self) -> Vec<Mode> {
        let mut modes = vec![Mode::Exclusive];
        if self.expected().shared {
            modes.extend([Mode::Read, Mode::Write]);
        }
        if self.expected().permits {
            modes.push(Mode::Permits { take: 2, of: 2 });
        }
        modes
    }

    /// Expects a grant. One that is due may be as late as the slack allows.
    pub(crate) async fn granted(&self, client: &Client, claim: &Claim, why: &str) -> Grant {
        let start = self.now();
        loop {
            match client.attempt(claim).await {
                Ok(Attempt::Granted(grant)) => return grant,
                Ok(Attempt::Blocked(blocked)) if self.now().since(start) > self.lateness(start) => {
                    panic!("{why}: expected a grant of {claim:?}, got {blocked:?}")
                }
                Ok(Attempt::Blocked(_)) => self.sleep(self.harness.slack() / 10).await,
                // What was of another kind may be cleared a moment after it was released, and a busy server may answer
                // too late.
                Err(error)
                    if matches!(
                        error.kind,
                        BackendErrorKind::Mismatch | BackendErrorKind::Unreachable
                    ) && self.now().since(start) <= self.lateness(start) =>
                {
                    self.sleep(self.harness.slack() / 10).await;
                }
                Err(error) => panic!("{why}: expected a grant of {claim:?}, got {error:?}"),
            }
        }
    }

    /// Takes a key as core does: try, wait, and look again in time; the number of tries is bounded.
    pub(crate) async fn acquire(&self, client: &Client, claim: &Claim) -> Grant {
        acquire(&self.io, client, claim).await
    }

    /// Expects that a key is soon shown as free.
    pub(crate) async fn soon_free(&self, client: &Client, key: &Key, why: &str) {
        self.soon(client, key, why, Snapshot::is_free).await;
    }

    /// Expects that a key is soon shown so. Marks, and what a minority of nodes has, may be
    /// cleared behind the answer to a release, but not later than the slack allows.
    pub(crate) async fn soon(
        &self,
        client: &Client,
        key: &Key,
        why: &str,
        is_so: impl Fn(&Snapshot) -> bool,
    ) {
        let start = self.now();
        loop {
            let asked_at = self.now();
            let shown = client.show(key).await;
            if is_so(&shown) {
                return;
            }
            let late = asked_at.since(start);
            assert!(late <= self.lateness(start), "{why}: {late:?} later there is {shown:?}");
            self.settle().await;
        }
    }

    /// Polls an acquire until the store shows that it waits, and a while longer: it is not granted.
    pub(crate) async fn waits<T: fmt::Debug>(
        &self,
        peer: &Peer,
        mut acquire: impl Future<Output = T> + Unpin,
        why: &str,
    ) {
        let key = peer.locks.mutex(NAME).key().expect("a good name").clone();
        let start = self.now();
        while peer.client.show(&key).await.waiters.is_empty() {
            assert!(self.now().since(start) < PATIENT, "it is not seen to wait");
            let early = self.within(Duration::from_millis(10), &mut acquire).await;
            assert!(early.is_none(), "{why}: {early:?}");
        }
        let early = self.within(self.a_while(), acquire).await;
        assert!(early.is_none(), "{why}: {early:?}");
    }

    /// Watches a claim run out, whose end is known to lie between two moments: before it nobody
    /// else may have the key, and soon after it somebody must.
    pub(crate) async fn free_between(
        &self,
        client: &Client,
        mode: Mode,
        first: Moment,
        last: Moment,
        why: &str,
    ) {
        let start = self.now();
        let step = self.short() / 40;
        loop {
            let sent_at = self.now();
            let probe = self.passer(mode);
            match client.attempt(&probe).await {
                Ok(Attempt::Granted(_)) => {
                    let early = first.since(self.now());
                    assert!(early.is_zero(), "{why}: granted to another {early:?} too early");
                    client.release(&probe).await;
                    return;
                }
                Ok(Attempt::Blocked(blocked)) => {
                    let late = sent_at.since(last);
                    let most = self.lateness(start);
                    assert!(late <= most, "{why}: still {:?} {late:?} too late", blocked.cause);
                }
                Err(error) => panic!("{why}: {error:?}"),
            }
            // The last look before the end is as near to it as the clock can tell.
            let near = first.minus(Duration::from_millis(2));
            let next = self.now().plus(step);
            self.sleep_until(if self.now() < near { next.min(near) } else { next }).await;
        }
    }
}

/// A process with locks on the store.
pub(crate) struct Peer {
    pub(crate) locks: LockManager,
    /// The same without patience, for a short ttl.
    pub(crate) brief: LockManager,
    pub(crate) client: Client,
}

/// Takes a key as core does.
pub(crate) async fn acquire(io: &Io, client: &Client, claim: &Claim) -> Grant {
    let mut claim = claim.clone();
    for _ in 0..10_000 {
        claim.stamp = Stamp::new(io.now());
        match client.attempt(&claim).await.expect("contention is no error") {
            Attempt::Granted(grant) => return grant,
            Attempt::Blocked(blocked) => {
                let third = claim.ttl / 3;
                let pause = blocked.retry_after.unwrap_or(third).min(third);
                let wait = client.backend.wait(&claim, &blocked);
                if let Some(wake) = io.within(pause, wait).await {
                    wake.expect("a wait without fault");
                }
                io.sleep(random_between(Duration::ZERO, Duration::from_millis(2))).await;
            }
        }
    }
    panic!("no grant after 10,000 tries: {claim:?}")
}

impl Client {
    pub(crate) async fn attempt(&self, claim: &Claim) -> Result<Attempt, BackendError> {
        self.backend.try_acquire(claim).await
    }

    /// Expects that something is in the way.
    pub(crate) async fn blocked(&self, claim: &Claim, why: &str) -> Blocked {
        match self.attempt(claim).await {
            Ok(Attempt::Blocked(blocked)) => blocked,
            other => panic!("{why}: expected {claim:?} to be blocked, got {other:?}"),
        }
    }

    /// Renews one claim.
    pub(crate) async fn renew(&self, claim: &Claim) -> Renewal {
        let mut answers = self.backend.renew_all(std::slice::from_ref(claim)).await;
        assert_eq!(answers.len(), 1, "one answer for one claim");
        answers.remove(0).expect("a renewal without fault")
    }

    /// Expects that a claim is held; returns its ttl and token.
    pub(crate) async fn held(&self, claim: &Claim, why: &str) -> (Duration, u64) {
        match self.renew(claim).await {
            Renewal::Held { ttl, token, .. } => (ttl, token),
            Renewal::Lost => panic!("{why}: expected that {claim:?} is held, it is lost"),
        }
    }

    /// Expects that a claim is not held.
    pub(crate) async fn lost(&self, claim: &Claim, why: &str) {
        let renewal = self.renew(claim).await;
        assert_eq!(renewal, Renewal::Lost, "{why}: {claim:?}");
    }

    pub(crate) async fn release(&self, claim: &Claim) -> Released {
        self.backend.release(claim, Linger::None).await.expect("a release without fault")
    }

    /// Expects that there was something to release.
    pub(crate) async fn released(&self, claim: &Claim, why: &str) {
        assert_eq!(self.release(claim).await, Released::Yes, "{why}: {claim:?}");
    }

    /// What the store shows of a key.
    pub(crate) async fn show(&self, key: &Key) -> Snapshot {
        let query = Query::Key(key.clone());
        let mut list = self.backend.inspect(&query).await.expect("an inspection without fault");
        assert_eq!(list.len(), 1, "one key, one snapshot");
        assert_eq!(list[0].key, *key);
        list.remove(0)
    }
}

/// Polls a future at most `polls` times and drops it then; its output, if it ended before.
pub(crate) async fn drop_after<F: Future>(polls: u32, future: F) -> Option<F::Output> {
    if polls == 0 {
        return None;
    }
    let mut left = polls;
    let mut future = pin!(future);
    poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        left -= 1;
        if left == 0 { Poll::Ready(None) } else { Poll::Pending }
    })
    .await
}

fn runtime(time: Time) -> Runtime {
    let paused = time == Time::Paused;
    Builder::new_current_thread()
        .enable_all()
        .start_paused(paused)
        .build()
        .expect("a runtime for the trial")
}
