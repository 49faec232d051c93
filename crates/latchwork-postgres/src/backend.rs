//! The five verbs on a table of PostgreSQL.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use latchwork_store::{
    Attempt, Backend, BackendError, Blocked, Capabilities, Claim, Error, Fencing, Io, Key, Linger,
    Query, Released, Renewal, Resized, Snapshot, Verb, Wake, Watch,
};
use latchwork_wire::mailbox::PROBATION;

use crate::config::PostgresConfig;
use crate::protocol::batch::Keys;
use crate::protocol::busy::Busy;
use crate::protocol::guard::Guard;
use crate::protocol::listener::Listener;
use crate::protocol::statements::Statements;
use crate::protocol::store::Store;
use crate::server::connect::{Access, For};
use crate::server::connection::Checkout;
use crate::server::errors::is_superseded;
use crate::server::pool::Pool;
use crate::server::schema::{REPLACING, functions_of};

/// A grant that the store makes by itself lasts at least so many round trips at first: it is renewed within a third of
/// that.
const TRIPS: u32 = 20;
/// How many tries of one key are under way at a time: a try waits for the lock of the key's row. Behind a pooler each of
/// them has a session that all clients share.
const TRIES_AT_ONCE: usize = 8;
const POOLED_TRIES_AT_ONCE: usize = 2;

/// Locks on a PostgreSQL server.
pub struct PostgresBackend {
    store: Arc<Store>,
    capabilities: Capabilities,
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
        let list = Statements::new(&config).list();
        let access = Access::new(config, list, io);
        let opened = access.open(For::Locks, None).await.map_err(|error| access.error(error))?;
        let functions = opened.said.table.as_deref().and_then(functions_of).unwrap_or_default();
        let probation = PROBATION.max(opened.trip * TRIPS);
        let connection = Arc::new(opened.connection);
        if let Some(guard) = &guard {
            let looked = guard.look(&Checkout::on(connection.clone())).await;
            looked.map_err(|error| access.error(error))?;
        }
        let pool = Pool::new(access.clone(), guard.as_ref().map(Guard::connection_check));
        let pooled = connection.pooled;
        pool.adopt(connection);
        let mut can = Capabilities::full(shown);
        can.upgrade = functions >= REPLACING;
        can.push = !pooled;
        (can.mixed_limits, can.resize) = (true, true);
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
            functions,
            probation,
            has_swept: AtomicBool::new(false),
        });
        store.sweep_now_and_then();
        Ok(Arc::new(Self { store, capabilities }))
    }
}

impl Backend for PostgresBackend {
    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> Verb<'a, Result<Attempt, BackendError>> {
        Box::pin(as_the_user_of_now(&self.store, || self.store.try_acquire(claim)))
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

    fn resize<'a>(&'a self, claim: &'a Claim) -> Verb<'a, Result<Resized, BackendError>> {
        Box::pin(as_the_user_of_now(&self.store, || self.store.resize(claim)))
    }

    fn release<'a>(
        &'a self,
        claim: &'a Claim,
        linger: Linger,
    ) -> Verb<'a, Result<Released, BackendError>> {
        Box::pin(async move {
            let released =
                as_the_user_of_now(&self.store, || self.store.release(claim, linger)).await;
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
        Box::pin(as_the_user_of_now(&self.store, || self.store.inspect(query)))
    }
}

/// Asks again if the user of the connection lacked a right and there is another one: at most on each connection that
/// the old user may have.
async fn as_the_user_of_now<T, F>(store: &Store, ask: impl Fn() -> F) -> Result<T, BackendError>
where
    F: Future<Output = Result<T, BackendError>>,
{
    let mut answer = ask().await;
    for _ in 0..=store.access.config.connections {
        match &answer {
            // Boxed: an acquire that is under way would be larger by it.
            Err(error) if is_superseded(error) => answer = Box::pin(ask()).await,
            _ => break,
        }
    }
    answer
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
