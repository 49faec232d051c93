//! The connections of a store: some for requests, one for renewals.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use latchwork_store::{BackendError, ClaimId, Moment};
use tokio::sync::{oneshot, watch};

use crate::lock;
use crate::server::connect::{Access, For, driver_gone};
use crate::server::connection::{Checkout, Connection, doubt};

/// How long no more connections are asked for after the server has refused one.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a request waits for a connection of its own kind while there is another one.
const OPENING_PATIENCE: Duration = Duration::from_millis(250);
/// How long a connection is kept that nobody uses. One for requests stays, and the one for renewals stays longer: it is
/// used once in a third of a ttl.
const KEPT: Duration = Duration::from_secs(30);
const KEPT_FOR_RENEWALS: Duration = Duration::from_secs(120);
/// How often that is checked.
const CHECK: Duration = Duration::from_secs(5);

/// Connections that are made when they are needed.
///
/// A statement runs alone on its connection, and a durable commit takes its time there; the server writes those
/// of several connections to the disk together. So a request takes a connection that is idle. If none is, it
/// goes behind the others of the least busy one, and one more connection is made for those that follow.
pub(crate) struct Pool {
    access: Arc<Access>,
    check: Option<Check>,
    connections: Mutex<Vec<Arc<Connection>>>,
    /// Renewals wait behind no other request.
    renewals: Mutex<Option<Arc<Connection>>>,
    opening: AtomicUsize,
    /// When one more connection for requests, or the one for renewals, could not be made: the server may have none left.
    refused: [Mutex<Option<Moment>>; 2],
    /// The first connection that is being made for requests, and the one for renewals.
    pending: [Mutex<Option<Pending>>; 2],
    /// Whether there is a task that closes what nobody uses.
    is_tended: AtomicBool,
    /// Ends with the pool.
    lives: watch::Sender<()>,
}

/// A connection that is being made, for all callers that wait for it. It goes on if they are gone: a caller with
/// little time must not start over each time, or a far server would never be reached.
type Pending = Shared<BoxFuture<'static, Result<Arc<Connection>, BackendError>>>;

/// What a new connection has to pass before it is used: the guard asks who the server is.
pub(crate) type Check =
    Arc<dyn Fn(Checkout) -> BoxFuture<'static, Result<(), BackendError>> + Send + Sync>;

/// What a connection is made for.
#[derive(Clone, Copy)]
enum Use {
    Requests,
    Renewals,
}

impl Pool {
    pub(crate) fn new(access: Arc<Access>, check: Option<Check>) -> Arc<Self> {
        Arc::new(Self {
            access,
            check,
            connections: Mutex::default(),
            renewals: Mutex::default(),
            opening: AtomicUsize::new(0),
            refused: Default::default(),
            pending: Default::default(),
            is_tended: AtomicBool::new(false),
            lives: watch::Sender::new(()),
        })
    }

    /// A connection for a request.
    pub(crate) async fn checkout(self: &Arc<Self>) -> Result<Checkout, BackendError> {
        if let Some(checkout) = self.present() {
            return Ok(checkout);
        }
        self.made(Use::Requests).await
    }

    /// A new connection; or any other, if the server has no room for that one or takes its time.
    async fn made(self: &Arc<Self>, purpose: Use) -> Result<Checkout, BackendError> {
        if self.any().is_some() && self.was_refused(purpose) {
            return self.any().ok_or_else(driver_gone);
        }
        let made = self.make(purpose);
        let answer = match self.any().is_some() {
            true => self.access.io.within(OPENING_PATIENCE, made.clone()).await,
            false => Some(made.clone().await),
        };
        match answer {
            Some(Ok(connection)) => Ok(Checkout::on(connection)),
            Some(Err(error)) => self.any().ok_or(error),
            None => match self.any() {
                Some(checkout) => Ok(checkout),
                None => Ok(Checkout::on(made.await?)),
            },
        }
    }

    /// The least busy connection of all.
    fn any(&self) -> Option<Checkout> {
        let open = self.all().into_iter().filter(|connection| self.is_fit(connection));
        open.min_by_key(|connection| connection.load()).map(Checkout::on)
    }

    /// All connections, to be checked without the lock: a check reads from a connection, and what it reads wakes tasks.
    fn all(&self) -> Vec<Arc<Connection>> {
        let mut all = lock(&self.connections).clone();
        all.extend(lock(&self.renewals).clone());
        all
    }

    /// Whether it takes requests.
    fn is_fit(&self, connection: &Connection) -> bool {
        connection.is_open() && !connection.is_doubted() && !self.was_replaced(connection)
    }

    /// Whether the server at the other end was replaced by another one, which this client has met.
    fn was_replaced(&self, connection: &Connection) -> bool {
        let seen = &self.access.seen;
        connection.lineage.as_ref().is_some_and(|server| seen.replaces(server).is_some())
    }

    fn was_refused(&self, purpose: Use) -> bool {
        let now = self.access.io.now();
        lock(&self.refused[purpose as usize]).is_some_and(|at| now.since(at) < PAUSE)
    }

    /// A connection on which what ends this claim comes after its tries. If there is none, any other, and
    /// true: a try may still land.
    pub(crate) async fn checkout_after(
        self: &Arc<Self>,
        id: ClaimId,
    ) -> Result<(Checkout, bool), BackendError> {
        match self.access.orphans.find(id) {
            None => Ok((self.checkout().await?, false)),
            Some(Some(connection)) => Ok((Checkout::on(connection), false)),
            Some(None) => Ok((self.checkout().await?, true)),
        }
    }

    /// The connection for renewals. While it cannot be made, any other: a hold must not end because the server has no
    /// room for a second connection.
    pub(crate) async fn checkout_for_renewals(self: &Arc<Self>) -> Result<Checkout, BackendError> {
        let connection = lock(&self.renewals).clone();
        if let Some(connection) = connection.filter(|connection| self.is_fit(connection)) {
            return Ok(Checkout::on(connection));
        }
        self.made(Use::Renewals).await
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
        let (pool, access, check) = (Arc::downgrade(self), self.access.clone(), self.check.clone());
        self.access.io.spawn(async move {
            let opened = open(&access, check.as_ref()).await;
            let Some(pool) = pool.upgrade() else { return };
            match (&opened, purpose) {
                (Ok(connection), Use::Requests) => lock(&pool.connections).push(connection.clone()),
                (Ok(connection), Use::Renewals) => *lock(&pool.renewals) = Some(connection.clone()),
                (Err(_), _) => {
                    *lock(&pool.refused[purpose as usize]) = Some(pool.access.io.now());
                }
            }
            pool.tend();
            // First, so that no later caller gets an earlier answer.
            *lock(&pool.pending[purpose as usize]) = None;
            let _ = tell.send(opened);
        });
        made
    }

    fn present(self: &Arc<Self>) -> Option<Checkout> {
        let all = lock(&self.connections).clone();
        let stays =
            |connection: &Arc<Connection>| connection.is_open() && !self.was_replaced(connection);
        let (open, ended): (Vec<_>, Vec<_>) = all.into_iter().partition(stays);
        if !ended.is_empty() {
            lock(&self.connections)
                .retain(|connection| ended.iter().all(|ended| !Arc::ptr_eq(connection, ended)));
        }
        let fit = open.iter().filter(|connection| !connection.is_doubted());
        let least = fit.min_by_key(|connection| connection.load())?.clone();
        if least.load() > 0 && open.len() + self.opening.load(Ordering::Relaxed) < self.most() {
            self.add();
        }
        Some(Checkout::on(least))
    }

    fn most(&self) -> usize {
        self.access.config.connections
    }

    /// Makes one more connection, in the background.
    fn add(self: &Arc<Self>) {
        if self.was_refused(Use::Requests) {
            return;
        }
        self.opening.fetch_add(1, Ordering::Relaxed);
        let opening = Opening(Arc::downgrade(self));
        let access = self.access.clone();
        let check = self.check.clone();
        self.access.io.spawn(async move {
            let opened = open(&access, check.as_ref()).await;
            let Some(pool) = opening.0.upgrade() else { return };
            match opened {
                Ok(connection) => lock(&pool.connections).push(connection),
                Err(_) => {
                    *lock(&pool.refused[Use::Requests as usize]) = Some(access.io.now());
                }
            }
            pool.tend();
        });
    }

    /// Sees to it that connections that nobody uses are closed, as long as there are more than one.
    fn tend(self: &Arc<Self>) {
        if self.is_tended.swap(true, Ordering::Relaxed) {
            return;
        }
        let (pool, io) = (Arc::downgrade(self), self.access.io.clone());
        let mut lives = self.lives.subscribe();
        self.access.io.spawn(async move {
            loop {
                tokio::select! {
                    () = io.sleep(CHECK) => {}
                    _ = lives.changed() => return,
                }
                let Some(pool) = pool.upgrade() else { return };
                if !pool.close_unused() {
                    return;
                }
            }
        });
    }

    /// Closes what nobody uses; says whether there may be more of it later.
    fn close_unused(&self) -> bool {
        let now = self.access.io.now();
        let mut unused = Vec::new();
        let mut renewals = lock(&self.renewals);
        unused.extend(renewals.take_if(|connection| connection.idle(now) >= KEPT_FOR_RENEWALS));
        let mut connections = lock(&self.connections);
        // The first one stays, whatever it does.
        for at in (1..connections.len()).rev() {
            if connections[at].idle(now) >= KEPT {
                unused.push(connections.remove(at));
            }
        }
        let goes_on = connections.len() > 1 || renewals.is_some();
        if !goes_on {
            self.is_tended.store(false, Ordering::Relaxed);
        }
        drop((renewals, connections));
        // They take their leave of the server when the last of those who have them is done.
        drop(unused);
        goes_on
    }

    /// Asks each connection for a sign of life: the way to the server may have been closed in silence.
    pub(crate) fn doubt_all(&self) {
        for connection in self.all() {
            doubt(&connection, &self.access.io);
        }
    }

    /// Takes in a connection that was made before.
    pub(crate) fn adopt(&self, connection: Arc<Connection>) {
        lock(&self.connections).push(connection);
    }
}

async fn open(
    access: &Arc<Access>,
    check: Option<&Check>,
) -> Result<Arc<Connection>, BackendError> {
    let connection = Arc::new(access.open(For::Locks, None).await?.connection);
    if let Some(check) = check {
        check(Checkout::on(connection.clone())).await?;
    }
    Ok(connection)
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
