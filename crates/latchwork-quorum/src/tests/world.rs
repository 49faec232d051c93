//! Nodes that forget, and links to them that lose, delay and repeat what they carry.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::Quorum;
use latchwork_store::*;
use latchwork_store::{
    BackendError, BackendErrorKind, Capabilities, Effect, Io, MemoryBackend, Moment,
};

/// A store in memory that can forget everything, and then grants nothing for a while.
#[derive(Debug)]
pub(super) struct Node {
    io: Io,
    state: Mutex<(Arc<MemoryBackend>, Moment)>,
    quarantine: Duration,
}

impl Node {
    pub(super) fn new(io: &Io, quarantine: Duration) -> Arc<Self> {
        let state = Mutex::new((MemoryBackend::new(io.clone()), Moment::from_nanos(0)));
        Arc::new(Self { io: io.clone(), state, quarantine })
    }

    /// Restarts without data.
    pub(super) fn forget(&self) {
        let until = self.io.now().plus(self.quarantine);
        *self.state.lock().unwrap() = (MemoryBackend::new(self.io.clone()), until);
    }

    pub(super) fn memory(&self) -> Arc<MemoryBackend> {
        self.state.lock().unwrap().0.clone()
    }

    /// Holds a key at this node alone.
    pub(super) async fn hold(&self, claim: &Claim) {
        let held = self.memory().try_acquire(claim).await;
        assert!(matches!(held, Ok(Attempt::Granted(_))), "{held:?}");
    }

    /// Keeps a key closed at this node alone, for half a minute.
    pub(super) async fn close(&self, claim: &Claim) {
        self.hold(claim).await;
        let linger = Linger::For(Duration::from_secs(30));
        self.memory().release(claim, linger).await.unwrap();
    }

    pub(super) async fn snapshot(&self, key: &str) -> Snapshot {
        let query = Query::Key(latchwork_store::Key::new(key).unwrap());
        self.memory().inspect(&query).await.unwrap().remove(0)
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, BackendError> {
        let (memory, until) = self.state.lock().unwrap().clone();
        let left = until.since(self.io.now());
        if left.is_zero() || self.holds(claim).await {
            return memory.try_acquire(claim).await;
        }
        Ok(Attempt::Blocked(Blocked::by(Cause::Quarantine).with(|it| it.retry_after = Some(left))))
    }

    async fn holds(&self, claim: &Claim) -> bool {
        let holders = self.snapshot(claim.key.as_str()).await.holders;
        holders.iter().any(|party| party.id == Some(claim.id))
    }
}

/// What is asked of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Try,
    Renew,
    Release,
}

/// What happens to one message and its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    LoseRequest,
    LoseAnswer,
    /// Refused without effect.
    Refuse,
    /// The request travels for so long, then the answer.
    Delay(Duration, Duration),
    /// A copy of the request lands so much later.
    Again(Duration),
    /// The node forgets everything just before the request lands.
    Forget,
}

type Plan = dyn FnMut(Kind, &Claim) -> Fault + Send;

/// The way of one process to one node. What was sent lands even if the sender went away.
pub(super) struct Link {
    node: Arc<Node>,
    io: Io,
    plan: Mutex<Box<Plan>>,
    pub(super) sent: Mutex<Vec<(Kind, ClaimId)>>,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Link")
    }
}

impl Link {
    pub(super) fn to(node: &Arc<Node>) -> Arc<Self> {
        Arc::new(Self {
            node: node.clone(),
            io: node.io.clone(),
            plan: Mutex::new(Box::new(|_, _| Fault::None)),
            sent: Mutex::new(Vec::new()),
        })
    }

    pub(super) fn plan(&self, plan: impl FnMut(Kind, &Claim) -> Fault + Send + 'static) {
        *self.plan.lock().unwrap() = Box::new(plan);
    }

    /// Every message meets this.
    pub(super) fn always(&self, fault: Fault) {
        self.plan(move |_, _| fault);
    }

    /// The next messages of this kind meet these, one each.
    pub(super) fn next(&self, kind: Kind, faults: impl IntoIterator<Item = Fault>) {
        let mut faults: VecDeque<Fault> = faults.into_iter().collect();
        self.plan(move |asked, _| match asked == kind {
            true => faults.pop_front().unwrap_or(Fault::None),
            false => Fault::None,
        });
    }

    /// How often the node was asked for this.
    pub(super) fn asked(&self, kind: Kind) -> usize {
        self.sent.lock().unwrap().iter().filter(|(asked, _)| *asked == kind).count()
    }

    async fn carry<T: Send + 'static>(
        &self,
        kind: Kind,
        claim: &Claim,
        land: impl AsyncLand<T>,
    ) -> Result<T, BackendError> {
        self.sent.lock().unwrap().push((kind, claim.id));
        let fault = (self.plan.lock().unwrap())(kind, claim);
        let (node, io) = (self.node.clone(), self.io.clone());
        let (tell, told) = oneshot::channel();
        match fault {
            Fault::LoseRequest => return std::future::pending().await,
            Fault::Refuse => {
                let (kind, effect) = (BackendErrorKind::Unreachable, Effect::NotApplied);
                return Err(BackendError::new(kind, effect, "connection refused"));
            }
            Fault::None => return Ok(land.land(&node).await),
            Fault::Forget => {
                node.forget();
                return Ok(land.land(&node).await);
            }
            Fault::LoseAnswer => {
                land.land(&node).await;
                return std::future::pending().await;
            }
            Fault::Delay(there, back) => self.io.spawn(async move {
                io.sleep(there).await;
                let answer = land.land(&node).await;
                io.sleep(back).await;
                let _ = tell.send(answer);
            }),
            Fault::Again(later) => {
                let answer = land.clone().land(&node).await;
                let _ = tell.send(answer);
                self.io.spawn(async move {
                    io.sleep(later).await;
                    land.land(&node).await;
                });
            }
        }
        Ok(told.await.expect("the task goes on"))
    }
}

/// What a request does when it lands, as often as it does.
trait AsyncLand<T>: Clone + Send + 'static {
    fn land(&self, node: &Arc<Node>) -> impl Future<Output = T> + Send;
}

#[derive(Clone)]
struct Try(Claim);
#[derive(Clone)]
struct Renew(Vec<Claim>);
#[derive(Clone)]
struct Release(Claim, Linger);

impl AsyncLand<Result<Attempt, BackendError>> for Try {
    async fn land(&self, node: &Arc<Node>) -> Result<Attempt, BackendError> {
        node.try_acquire(&self.0).await
    }
}

impl AsyncLand<Vec<Result<Renewal, BackendError>>> for Renew {
    async fn land(&self, node: &Arc<Node>) -> Vec<Result<Renewal, BackendError>> {
        node.memory().renew_all(&self.0).await
    }
}

impl AsyncLand<Result<Released, BackendError>> for Release {
    async fn land(&self, node: &Arc<Node>) -> Result<Released, BackendError> {
        node.memory().release(&self.0, self.1).await
    }
}

impl Backend for Link {
    fn capabilities(&self) -> Capabilities {
        self.node.memory().capabilities()
    }

    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> Verb<'a, Result<Attempt, BackendError>> {
        Box::pin(async move { self.carry(Kind::Try, claim, Try(claim.clone())).await? })
    }

    fn wait<'a>(
        &'a self,
        claim: &'a Claim,
        blocked: &'a Blocked,
    ) -> Verb<'a, Result<Wake, BackendError>> {
        Box::pin(async move { self.node.memory().wait(claim, blocked).await })
    }

    fn renew_all<'a>(
        &'a self,
        claims: &'a [Claim],
    ) -> Verb<'a, Vec<Result<Renewal, BackendError>>> {
        Box::pin(async move {
            let answers = self.carry(Kind::Renew, &claims[0], Renew(claims.to_vec())).await;
            answers.unwrap_or_else(|error| vec![Err(error); claims.len()])
        })
    }

    fn release<'a>(
        &'a self,
        claim: &'a Claim,
        linger: Linger,
    ) -> Verb<'a, Result<Released, BackendError>> {
        Box::pin(
            async move { self.carry(Kind::Release, claim, Release(claim.clone(), linger)).await? },
        )
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> Verb<'a, Result<Vec<Snapshot>, BackendError>> {
        Box::pin(async move { self.node.memory().inspect(query).await })
    }
}

/// A process: its own quorum, and its links to the nodes.
pub(super) struct Process {
    pub(super) quorum: Arc<Quorum>,
    pub(super) links: Vec<Arc<Link>>,
}

impl Process {
    pub(super) fn over(nodes: &[Arc<Node>], io: &Io) -> Self {
        let links: Vec<Arc<Link>> = nodes.iter().map(Link::to).collect();
        let backends = links.iter().map(|link| link.clone() as Arc<dyn Backend>).collect();
        Self { quorum: Quorum::new(backends, io.clone()).unwrap(), links }
    }

    /// How often each node was asked for this.
    pub(super) fn asked(&self, kind: Kind) -> Vec<usize> {
        self.links.iter().map(|link| link.asked(kind)).collect()
    }

    #[track_caller]
    pub(super) fn granted(&self, attempt: Result<Attempt, BackendError>) -> Grant {
        match attempt {
            Ok(Attempt::Granted(grant)) => grant,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    pub(super) fn blocked(&self, attempt: Result<Attempt, BackendError>) -> Blocked {
        match attempt {
            Ok(Attempt::Blocked(blocked)) => blocked,
            other => panic!("{other:?}"),
        }
    }

    pub(super) async fn renew(&self, claim: &Claim) -> Result<Renewal, BackendError> {
        self.quorum.renew_all(std::slice::from_ref(claim)).await.remove(0)
    }
}
