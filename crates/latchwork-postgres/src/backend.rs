//! The five verbs on a table of PostgreSQL.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use latchwork_store::kit::mailbox::PROBATION;
use latchwork_store::{
    Attempt, Backend, BackendError, Blocked, Capabilities, Claim, ClaimId, Error, Fencing, Io, Key,
    Linger, Query, Released, Renewal, Snapshot, Verb, Wake, Watch,
};

use crate::batch::Keys;
use crate::busy::Busy;
use crate::config::PostgresConfig;
use crate::connect::{Access, For};
use crate::guard::Guard;
use crate::lane::Seat;
use crate::listener::{Listener, pause};
use crate::pool::Pool;
use crate::statements::Ask;
use crate::values::{Uuid, column, strange};

/// A grant that the store makes by itself lasts at least so many round trips at first: it is renewed within a third of
/// that.
const TRIPS: u32 = 20;
/// How often rows that nobody uses are removed.
const SWEEP: Duration = Duration::from_secs(600);
/// One of so many processes does it after its first release as well: most may live for a moment only.
const SWEEPERS: u128 = 16;
/// How long that goes on if there are many.
const SHORT_SWEEP: Duration = Duration::from_secs(2);
/// So few removed rows are less than one for each page that was looked at: there are few more, or they are far apart.
const FEW: i64 = 32;
/// How many tries of one key are under way at a time: a try waits for the lock of the key's row. Behind a pooler each of
/// them has a session that all clients share.
const TRIES_AT_ONCE: usize = 8;
const POOLED_TRIES_AT_ONCE: usize = 2;

/// Locks on a PostgreSQL server.
pub struct PostgresBackend {
    store: Arc<Store>,
    capabilities: Capabilities,
}

/// What the verbs use.
pub(crate) struct Store {
    pub(crate) access: Arc<Access>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) guard: Option<Arc<Guard>>,
    pub(crate) keys: Keys,
    pub(crate) listener: Arc<Listener>,
    pub(crate) busy: Busy,
    /// A pooler stands before the server: nothing can be heard.
    pub(crate) pooled: bool,
    /// How long a grant that the store makes by itself lasts at first, unless its ttl is shorter.
    pub(crate) probation: Duration,
    /// See [`Store::sweep_after`].
    has_swept: AtomicBool,
}

impl PostgresBackend {
    /// Connects, and checks that the tables are there.
    ///
    /// # Errors
    ///
    /// `Unreachable`, `Denied` or `Invalid`, with the server and the next step.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time; nothing is left.
    pub async fn connect(config: PostgresConfig, io: Io) -> Result<Arc<Self>, Error> {
        let shown = config.shown();
        let guard = config.guard.then(|| Arc::new(Guard::new(config.max_ttl())));
        let longest =
            guard.as_ref().map_or(Duration::from_secs(24 * 60 * 60), |_| config.max_ttl());
        let access = Access::new(config, io);
        let opened = access.open(For::Locks, None).await.map_err(|error| access.error(error))?;
        let probation = PROBATION.max(opened.trip * TRIPS);
        let lane = Arc::new(opened.lane);
        if let Some(guard) = &guard {
            let looked = guard.look(&Seat::on(lane.clone())).await;
            looked.map_err(|error| access.error(error))?;
        }
        let pool = Pool::new(access.clone(), guard.clone());
        let pooled = lane.pooled;
        pool.adopt(lane);
        let mut can = Capabilities::full(shown);
        can.push = !pooled;
        let capabilities = can
            .with_fencing(Fencing::WhileDataSurvives)
            .with_ttl(Duration::from_millis(10)..=longest, longest.min(Duration::from_secs(30)));
        let listener = Listener::new(access.clone(), &pool);
        let keys = Keys::new(&pool, guard.clone(), &access);
        let store = Arc::new(Store {
            access,
            pool,
            guard,
            keys,
            listener,
            busy: Busy::default(),
            pooled,
            probation,
            has_swept: AtomicBool::new(false),
        });
        store.sweep_now_and_then();
        Ok(Arc::new(Self { store, capabilities }))
    }
}

impl Store {
    /// What a try tells the guard.
    pub(crate) fn nonce(&self) -> Option<Uuid> {
        self.guard.as_ref().and_then(|guard| guard.nonce())
    }

    async fn wait(&self, claim: &Claim, blocked: &Blocked) -> Result<Wake, BackendError> {
        if !claim.waits {
            return std::future::pending().await; // only the engine's own timer can tell it to look
        }
        let ahead = blocked.ahead.unwrap_or(0);
        if self.pooled {
            self.access.io.sleep(pause(ahead)).await;
            return Ok(Wake::Look);
        }
        Ok(match self.listener.find(claim.id) {
            Some(mailbox) => self.listener.wait(&mailbox, ahead).await,
            // The place is gone: it has to be asked for again.
            None => Wake::Look,
        })
    }

    /// Removes rows that nobody has used for long, as long as the backend lives.
    fn sweep_now_and_then(self: &Arc<Self>) {
        let (io, store) = (self.access.io.clone(), Arc::downgrade(self));
        let mut shut = self.listener.is_shut();
        self.access.io.spawn(async move {
            loop {
                tokio::select! {
                    () = io.sleep(SWEEP) => {}
                    _ = shut.wait_for(|is_shut| *is_shut) => return,
                }
                let Some(store) = store.upgrade() else { return };
                // Another client may do it, or the next time.
                let _ = io.within(SWEEP, store.sweep()).await;
            }
        });
    }

    /// Now and then, the first claim that a process ends has it remove such rows. Its id is random.
    pub(crate) fn sweep_after(self: &Arc<Self>, id: ClaimId) {
        if self.has_swept.swap(true, Ordering::Relaxed) || !id.as_u128().is_multiple_of(SWEEPERS) {
            return;
        }
        let store = self.clone();
        self.access.io.finish(async move {
            let _ = store.access.io.within(SHORT_SWEEP, store.sweep()).await;
        });
    }

    /// Removes such rows until there are few.
    async fn sweep(&self) -> Result<(), BackendError> {
        loop {
            let seat = self.pool.seat().await?;
            let rows = seat.ask(Ask::Sweep, &[], None).await?;
            let [row] = &rows[..] else { return Err(strange(0)) };
            let (removed, has_prepared): (i64, bool) = (column(row, 0)?, column(row, 1)?);
            if removed < FEW && !has_prepared {
                return Ok(());
            }
        }
    }
}

impl Backend for PostgresBackend {
    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> Verb<'a, Result<Attempt, BackendError>> {
        Box::pin(self.store.try_acquire(claim))
    }

    fn wait<'a>(
        &'a self,
        claim: &'a Claim,
        blocked: &'a Blocked,
    ) -> Verb<'a, Result<Wake, BackendError>> {
        Box::pin(self.store.wait(claim, blocked))
    }

    fn renew_all<'a>(
        &'a self,
        claims: &'a [Claim],
    ) -> Verb<'a, Vec<Result<Renewal, BackendError>>> {
        Box::pin(self.store.renew_all(claims))
    }

    fn release<'a>(
        &'a self,
        claim: &'a Claim,
        linger: Linger,
    ) -> Verb<'a, Result<Released, BackendError>> {
        Box::pin(async move {
            let released = self.store.release(claim, linger).await;
            self.store.sweep_after(claim.id);
            released
        })
    }

    fn renews_for_others(&self) -> bool {
        true
    }

    fn ttl_may_change(&self) -> bool {
        true
    }

    fn tries_at_once(&self) -> Option<usize> {
        Some(if self.store.pooled { POOLED_TRIES_AT_ONCE } else { TRIES_AT_ONCE })
    }

    fn watch<'a>(&'a self, key: &'a Key) -> Verb<'a, Result<Option<Box<dyn Watch>>, BackendError>> {
        Box::pin(self.store.observe(key))
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> Verb<'a, Result<Vec<Snapshot>, BackendError>> {
        Box::pin(self.store.inspect(query))
    }
}

impl Drop for PostgresBackend {
    fn drop(&mut self) {
        self.store.listener.shut();
    }
}

impl fmt::Debug for PostgresBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresBackend")
            .field("store", &self.store.access.config.shown())
            .finish_non_exhaustive()
    }
}
