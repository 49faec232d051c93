//! The connections of a store: some for requests, one for renewals.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use latchwork_store::{BackendError, ClaimId, Moment};
use tokio::sync::oneshot;

use crate::connect::{Access, For, driver_gone};
use crate::guard::Guard;
use crate::lane::{Lane, Seat, doubt};
use crate::lock;

/// How long no more connections are asked for after the server has refused one.
const PAUSE: Duration = Duration::from_secs(1);

/// Connections that are made when they are needed.
///
/// A statement runs alone on its connection, and a durable commit takes its time there; the server writes those
/// of several connections to the disk together. So a request takes a connection that is idle. If none is, it
/// goes behind the others of the least busy one, and one more connection is made for those that follow.
pub(crate) struct Pool {
    access: Arc<Access>,
    guard: Option<Arc<Guard>>,
    lanes: Mutex<Vec<Arc<Lane>>>,
    /// Renewals wait behind no other request.
    renewals: Mutex<Option<Arc<Lane>>>,
    opening: AtomicUsize,
    /// When one more connection could not be made: the server may have none left.
    refused: Mutex<Option<Moment>>,
    /// The first connection that is being made for requests, and the one for renewals.
    pending: [Mutex<Option<Pending>>; 2],
}

/// A connection that is being made, for all callers that wait for it. It goes on if they are gone: a caller with
/// little time must not begin anew each time, or a far server would never be reached.
type Pending = Shared<BoxFuture<'static, Result<Arc<Lane>, BackendError>>>;

/// What a connection is made for.
#[derive(Clone, Copy)]
enum Use {
    Requests,
    Renewals,
}

impl Pool {
    pub(crate) fn new(access: Arc<Access>, guard: Option<Arc<Guard>>) -> Arc<Self> {
        Arc::new(Self {
            access,
            guard,
            lanes: Mutex::default(),
            renewals: Mutex::default(),
            opening: AtomicUsize::new(0),
            refused: Mutex::default(),
            pending: Default::default(),
        })
    }

    /// A connection for a request.
    pub(crate) async fn seat(self: &Arc<Self>) -> Result<Seat, BackendError> {
        if let Some(seat) = self.present() {
            return Ok(seat);
        }
        Ok(Seat::on(self.make(Use::Requests).await?))
    }

    /// A connection on which what ends this claim comes after its tries. If there is none, any other, and
    /// true: a try may still land.
    pub(crate) async fn seat_after(
        self: &Arc<Self>,
        id: ClaimId,
    ) -> Result<(Seat, bool), BackendError> {
        match self.access.orphans.find(id) {
            None => Ok((self.seat().await?, false)),
            Some(Some(lane)) => Ok((Seat::on(lane), false)),
            Some(None) => Ok((self.seat().await?, true)),
        }
    }

    /// The connection for renewals.
    pub(crate) async fn seat_for_renewals(self: &Arc<Self>) -> Result<Seat, BackendError> {
        let lane = lock(&self.renewals).clone();
        if let Some(lane) = lane.filter(|lane| lane.is_open() && !lane.is_doubted()) {
            return Ok(Seat::on(lane));
        }
        Ok(Seat::on(self.make(Use::Renewals).await?))
    }

    /// Makes a connection in the background, unless one for the same use is being made.
    fn make(self: &Arc<Self>, purpose: Use) -> Pending {
        let mut pending = lock(&self.pending[purpose as usize]);
        if let Some(pending) = &*pending {
            return pending.clone();
        }
        let (tell, told) = oneshot::channel();
        let made = async { told.await.unwrap_or_else(|_| Err(driver_gone())) }.boxed().shared();
        *pending = Some(made.clone());
        let (pool, access, guard) = (Arc::downgrade(self), self.access.clone(), self.guard.clone());
        self.access.io.spawn(async move {
            let opened = open(&access, guard.as_ref()).await;
            let Some(pool) = pool.upgrade() else { return };
            if let Ok(lane) = &opened {
                match purpose {
                    Use::Requests => lock(&pool.lanes).push(lane.clone()),
                    Use::Renewals => *lock(&pool.renewals) = Some(lane.clone()),
                }
            }
            // First, so that no later caller gets an earlier answer.
            *lock(&pool.pending[purpose as usize]) = None;
            let _ = tell.send(opened);
        });
        made
    }

    fn present(self: &Arc<Self>) -> Option<Seat> {
        let mut lanes = lock(&self.lanes);
        lanes.retain(|lane| lane.is_open());
        let fit = lanes.iter().filter(|lane| !lane.is_doubted());
        let least = fit.min_by_key(|lane| lane.load())?.clone();
        if least.load() > 0 && lanes.len() + self.opening.load(Ordering::Relaxed) < self.most() {
            self.add();
        }
        Some(Seat::on(least))
    }

    fn most(&self) -> usize {
        self.access.config.connections
    }

    /// Makes one more connection, in the background.
    fn add(self: &Arc<Self>) {
        let now = self.access.io.now();
        if lock(&self.refused).is_some_and(|at| now.since(at) < PAUSE) {
            return;
        }
        self.opening.fetch_add(1, Ordering::Relaxed);
        let opening = Opening(Arc::downgrade(self));
        let access = self.access.clone();
        let guard = self.guard.clone();
        self.access.io.spawn(async move {
            let opened = open(&access, guard.as_ref()).await;
            let Some(pool) = opening.0.upgrade() else { return };
            match opened {
                Ok(lane) => lock(&pool.lanes).push(lane),
                Err(_) => *lock(&pool.refused) = Some(access.io.now()),
            }
        });
    }

    /// Asks each connection for a sign of life: the way to the server may have been closed in silence.
    pub(crate) fn doubt_all(&self) {
        let renewals = lock(&self.renewals).clone();
        for lane in lock(&self.lanes).iter().chain(&renewals) {
            doubt(lane, &self.access.io);
        }
    }

    /// Takes in a connection that was made before.
    pub(crate) fn adopt(&self, lane: Arc<Lane>) {
        lock(&self.lanes).push(lane);
    }
}

async fn open(access: &Arc<Access>, guard: Option<&Arc<Guard>>) -> Result<Arc<Lane>, BackendError> {
    let lane = Arc::new(access.open(For::Locks, None).await?.lane);
    if let Some(guard) = guard {
        // Another server may answer than before.
        guard.look(&Seat::on(lane.clone())).await?;
    }
    Ok(lane)
}

/// A connection that is being made.
struct Opening(Weak<Pool>);

impl Drop for Opening {
    fn drop(&mut self) {
        if let Some(pool) = self.0.upgrade() {
            pool.opening.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
