//! The connections of a store: some for requests, one for renewals.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use latchwork_store::{BackendError, ClaimId};

use crate::connect::{Access, For};
use crate::guard::Guard;
use crate::lane::{Lane, Seat};
use crate::lock;

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
    /// One caller alone connects if there is no connection at all.
    gate: tokio::sync::Mutex<()>,
}

impl Pool {
    pub(crate) fn new(access: Arc<Access>, guard: Option<Arc<Guard>>) -> Arc<Self> {
        Arc::new(Self {
            access,
            guard,
            lanes: Mutex::default(),
            renewals: Mutex::default(),
            opening: AtomicUsize::new(0),
            gate: tokio::sync::Mutex::default(),
        })
    }

    /// A connection for a request.
    pub(crate) async fn seat(self: &Arc<Self>) -> Result<Seat, BackendError> {
        if let Some(seat) = self.present() {
            return Ok(seat);
        }
        let _gate = self.gate.lock().await;
        if let Some(seat) = self.present() {
            return Ok(seat);
        }
        let lane = self.open().await?;
        lock(&self.lanes).push(lane.clone());
        Ok(Seat::on(lane))
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
        let present = || {
            let lane = lock(&self.renewals).clone();
            lane.filter(|lane| lane.is_open() && !lane.is_doubted()).map(Seat::on)
        };
        if let Some(seat) = present() {
            return Ok(seat);
        }
        let _gate = self.gate.lock().await;
        if let Some(seat) = present() {
            return Ok(seat);
        }
        let lane = self.open().await?;
        *lock(&self.renewals) = Some(lane.clone());
        Ok(Seat::on(lane))
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
        self.opening.fetch_add(1, Ordering::Relaxed);
        let opening = Opening(Arc::downgrade(self));
        let access = self.access.clone();
        let guard = self.guard.clone();
        self.access.io.spawn(async move {
            if let Ok(lane) = open(&access, guard.as_ref()).await
                && let Some(pool) = opening.0.upgrade()
            {
                lock(&pool.lanes).push(lane);
            }
        });
    }

    async fn open(&self) -> Result<Arc<Lane>, BackendError> {
        open(&self.access, self.guard.as_ref()).await
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
