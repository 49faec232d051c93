//! The network: messages take time, are late, are lost, and pass only where nothing is cut.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use futures_util::future::join_all;
use latchwork_store::*;
use latchwork_store::{BackendError, BackendErrorKind, Capabilities, Effect};
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::level::Level;
use crate::machine::Machine;
use crate::planted::Planted;
use crate::server::Server;

pub(crate) struct Network {
    rng: Mutex<Rng>,
    losses: u32,
    delays: u32,
    /// How often the way between a machine and a server is cut.
    cut: Level<HashMap<(usize, usize), u32>>,
}

/// What happens to one request and its answer.
struct Passage {
    there: Duration,
    back: Duration,
    request_lost: bool,
    answer_lost: bool,
    /// Whether a message that meets a cut is sent again once it has ended.
    patient: bool,
}

impl Network {
    pub(crate) fn new(seed: u64, losses: u32, delays: u32) -> Arc<Self> {
        let rng = Mutex::new(Rng::with_seed(seed));
        Arc::new(Self { rng, losses, delays, cut: Level::default() })
    }

    fn draw(&self) -> Passage {
        let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
        let mut delay = || {
            let late = rng.u32(..1_000) < self.delays;
            Duration::from_micros(if late {
                rng.u64(5_000..2_000_000)
            } else {
                rng.u64(100..2_000)
            })
        };
        let (there, back) = (delay(), delay());
        let (request_lost, answer_lost) =
            (rng.u32(..1_000) < self.losses, rng.u32(..1_000) < self.losses);
        Passage { there, back, request_lost, answer_lost, patient: rng.bool() }
    }

    fn one_of(&self, several: u32) -> bool {
        self.rng.lock().unwrap_or_else(PoisonError::into_inner).u32(..several) == 0
    }

    pub(crate) fn cut(&self, way: (usize, usize)) {
        self.cut.change(|cut| *cut.entry(way).or_default() += 1);
    }

    pub(crate) fn heal(&self, way: (usize, usize)) {
        self.cut.change(|cut| *cut.entry(way).or_default() -= 1);
    }

    fn is_cut(&self, way: (usize, usize)) -> bool {
        self.cut.read(|cut| cut.get(&way).is_some_and(|count| *count > 0))
    }

    async fn healed(&self, way: (usize, usize)) {
        self.cut.until(|cut| cut.get(&way).is_none_or(|count| *count == 0)).await;
    }
}

/// The way from a machine to a server, as the machine's store.
pub(crate) struct Link {
    pub(crate) machine: Arc<Machine>,
    pub(crate) server: Arc<Server>,
    pub(crate) network: Arc<Network>,
    /// Their numbers.
    pub(crate) way: (usize, usize),
    pub(crate) planted: Option<Planted>,
    /// The last grant of each key, for a bug.
    pub(crate) grants: Arc<Mutex<HashMap<Key, Grant>>>,
}

fn broken<T>(effect: Effect) -> Result<T, BackendError> {
    Err(BackendError::new(BackendErrorKind::Unreachable, effect, "the connection broke"))
}

impl Link {
    /// Sends a request, which goes on if nobody waits for its answer any more.
    async fn call<T, F>(
        &self,
        act: impl FnOnce(Arc<Server>) -> F + Send + 'static,
    ) -> Result<T, BackendError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, BackendError>> + Send,
    {
        let (say, answer) = oneshot::channel();
        let (network, server, way) = (self.network.clone(), self.server.clone(), self.way);
        if self.machine.is_dead() {
            return std::future::pending().await;
        }
        tokio::spawn(async move {
            let _ = say.send(carry(&network, server, way, act).await);
        });
        match answer.await {
            Ok(answer) => answer,
            Err(_) => std::future::pending().await,
        }
    }
}

/// Takes a request to the server, and its answer back.
async fn carry<T, F>(
    network: &Network,
    server: Arc<Server>,
    way: (usize, usize),
    act: impl FnOnce(Arc<Server>) -> F,
) -> Result<T, BackendError>
where
    F: Future<Output = Result<T, BackendError>>,
{
    let passage = network.draw();
    if network.is_cut(way) && !passage.patient {
        sleep(passage.there).await;
        return broken(Effect::NotApplied);
    }
    sleep(passage.there).await;
    if passage.request_lost {
        return broken(Effect::Unknown);
    }
    network.healed(way).await;
    let acted = async {
        server.running().await;
        act(server.clone()).await
    };
    let answer = tokio::select! {
        biased;
        () = server.restarted() => return broken(Effect::Unknown),
        answer = acted => answer,
    };
    server.running().await;
    if passage.answer_lost || (network.is_cut(way) && !passage.patient) {
        sleep(passage.back).await;
        return broken(Effect::Unknown);
    }
    network.healed(way).await;
    sleep(passage.back).await;
    answer
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("way", &self.way).finish_non_exhaustive()
    }
}

// Not enrolled: it delays and loses the requests to a store that is.
impl Backend for Link {
    fn capabilities(&self) -> Capabilities {
        self.server.capabilities()
    }

    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> Verb<'a, Result<Attempt, BackendError>> {
        Box::pin(async move {
            let asked = claim.clone();
            let attempt =
                self.call(|server| async move { server.try_acquire(asked).await }).await?;
            if self.planted != Some(Planted::OldAnswers) {
                return Ok(attempt);
            }
            let mut grants = self.grants.lock().unwrap_or_else(PoisonError::into_inner);
            match (attempt, grants.get(&claim.key)) {
                (Attempt::Blocked(_), Some(old)) if self.network.one_of(3) => {
                    Ok(Attempt::Granted(*old))
                }
                (attempt, _) => {
                    if let Attempt::Granted(grant) = &attempt {
                        grants.insert(claim.key.clone(), *grant);
                    }
                    Ok(attempt)
                }
            }
        })
    }

    fn wait<'a>(
        &'a self,
        claim: &'a Claim,
        blocked: &'a Blocked,
    ) -> Verb<'a, Result<Wake, BackendError>> {
        Box::pin(async move {
            // The wait itself is at the server; only its end travels.
            let (claim, blocked) = (claim.clone(), blocked.clone());
            let (server, network, way) = (self.server.clone(), self.network.clone(), self.way);
            let passage = network.draw();
            let wake = tokio::select! {
                biased;
                () = server.restarted() => return broken(Effect::Unknown),
                wake = server.wait(claim, blocked) => wake,
            };
            server.running().await;
            network.healed(way).await;
            if passage.answer_lost {
                return std::future::pending().await;
            }
            sleep(passage.back).await;
            wake
        })
    }

    fn renew_all<'a>(
        &'a self,
        claims: &'a [Claim],
    ) -> Verb<'a, Vec<Result<Renewal, BackendError>>> {
        Box::pin(async move {
            let renew = |claim: &Claim| {
                let claim = claim.clone();
                self.call(|server| async move { server.renew(claim).await })
            };
            join_all(claims.iter().map(renew)).await
        })
    }

    fn resize<'a>(&'a self, claim: &'a Claim) -> Verb<'a, Result<Resized, BackendError>> {
        Box::pin(async move {
            let claim = claim.clone();
            self.call(move |server| async move { server.resize(claim).await }).await
        })
    }

    fn release<'a>(
        &'a self,
        claim: &'a Claim,
        linger: Linger,
    ) -> Verb<'a, Result<Released, BackendError>> {
        Box::pin(async move {
            let claim = claim.clone();
            self.call(move |server| async move { server.release(claim, linger).await }).await
        })
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> Verb<'a, Result<Vec<Snapshot>, BackendError>> {
        Box::pin(async move {
            let query = query.clone();
            self.call(|server| async move { server.inspect(query).await }).await
        })
    }
}
