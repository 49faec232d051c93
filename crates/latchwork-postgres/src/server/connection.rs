//! One connection to the server, and what is asked on it.

use std::collections::HashMap;
use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use latchwork_store::{BackendError, BackendErrorKind, ClaimId, Effect, Io, Moment};
use latchwork_wire::{Drive, Sourced};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

use crate::config::Login;
use crate::lock;
use crate::server::errors::{failure, lost, not_replicated, superseded};
use crate::server::greet::Sibling;
use crate::server::lineage::Lineage;
use crate::server::mover::Orders;
use crate::server::request::Request;
use crate::server::statement::{self, Number, StatementList};

/// If a request is given up after so long, the connection is asked for a sign of life.
pub(crate) const SILENCE: Duration = Duration::from_millis(300);
/// How long it may then stay silent. A statement that waits for a row ends before that.
pub(crate) const LOOK_LIMIT: Duration = Duration::from_millis(2_500);
/// So many claims whose tries were given up are remembered.
const ORPHANS: usize = 4_096;

/// What is given to a statement.
pub(crate) type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

/// Claims whose tries may still be under way, and where: what ends them must come after.
#[derive(Default)]
pub(crate) struct Orphans(Mutex<HashMap<ClaimId, Weak<Connection>>>);

impl Orphans {
    pub(crate) fn add(&self, id: ClaimId, connection: &Arc<Connection>) {
        self.note(id, Arc::downgrade(connection));
    }

    /// As [`Self::add`], where nothing can be sent after the try for certain.
    pub(crate) fn add_astray(&self, id: ClaimId) {
        self.note(id, Weak::new());
    }

    fn note(&self, id: ClaimId, connection: Weak<Connection>) {
        let mut all = lock(&self.0);
        if all.len() >= ORPHANS {
            all.clear(); // a try that lands late is gone within its ttl
        }
        all.insert(id, connection);
    }

    /// Whether a try of this claim may be under way; with its connection, if that still answers.
    pub(crate) fn find(&self, id: ClaimId) -> Option<Option<Arc<Connection>>> {
        let connection = lock(&self.0).get(&id)?.upgrade();
        Some(connection.filter(|connection| connection.is_open() && !connection.is_doubted()))
    }

    /// The claim was ended after its tries.
    pub(crate) fn remove(&self, id: ClaimId) {
        lock(&self.0).remove(&id);
    }
}

/// One connection. It ends when nobody has it any more.
pub(crate) struct Connection {
    client: Option<Client>,
    drive: Arc<Drive>,
    orders: Arc<Orders>,
    list: Arc<StatementList>,
    /// What the server has prepared; empty behind a pooler, where each statement may meet another server
    /// process.
    prepared: Vec<Statement>,
    /// Of one request at a time, where nothing is prepared.
    exclusive: Arc<Semaphore>,
    /// How many requests are under way.
    load: AtomicUsize,
    /// It is being asked for a sign of life, and takes no requests meanwhile.
    doubted: AtomicBool,
    orphans: Arc<Orphans>,
    /// Whether the server at the other end changes with each transaction.
    pub(crate) pooled: bool,
    /// Whether the process that answers is another than the one that the login was answered with.
    pub(crate) is_through_pooler: bool,
    /// Who the server is, as far as it says.
    pub(crate) lineage: Option<Lineage>,
    /// If it is no PostgreSQL.
    pub(crate) sibling: Option<Sibling>,
    /// When its last request has ended.
    used: Mutex<Moment>,
    logins: Sourced<Login>,
    /// The version of its login.
    pub(crate) login: u64,
    /// Its user lacks a right, and the source of the login names another one.
    superseded: AtomicBool,
}

impl Connection {
    pub(crate) fn new(
        client: Client,
        drive: Arc<Drive>,
        orders: Arc<Orders>,
        list: Arc<StatementList>,
        orphans: Arc<Orphans>,
        logins: Sourced<Login>,
    ) -> Self {
        Self {
            client: Some(client),
            used: Mutex::new(drive.io().now()),
            drive,
            orders,
            list,
            prepared: Vec::new(),
            exclusive: Arc::new(Semaphore::new(1)),
            load: AtomicUsize::new(0),
            doubted: AtomicBool::new(false),
            orphans,
            pooled: false,
            is_through_pooler: false,
            lineage: None,
            sibling: None,
            logins,
            login: 0,
            superseded: AtomicBool::new(false),
        }
    }

    pub(crate) fn client(&self) -> &Client {
        self.client.as_ref().expect("it is taken when the connection ends only")
    }

    pub(crate) fn drive(&self) -> &Arc<Drive> {
        &self.drive
    }

    /// Gives the session its settings. A pooler of sessions that resets none hands on what its last client has
    /// prepared, under names that this one uses as well.
    pub(crate) async fn set_up(&self, settings: &str) -> Result<(), BackendError> {
        let text = match self.is_through_pooler {
            true => &*format!("DEALLOCATE ALL; {settings}"),
            false => settings,
        };
        self.send(self.client().batch_execute(text)).await
    }

    /// Has the server prepare all statements, in one flight.
    pub(crate) async fn prepare(&mut self) -> Result<(), BackendError> {
        let client = self.client();
        let all = self.list.own.iter();
        let prepared = all.map(|one| client.prepare_typed(&one.text, one.types));
        let prepared = self.send(futures_util::future::try_join_all(prepared)).await?;
        self.prepared = prepared;
        Ok(())
    }

    /// Has the server prepare each statement, and drop it again: what is missing is an error.
    pub(crate) async fn examine(&self) -> Result<(), BackendError> {
        for one in &self.list.own {
            self.send(self.client().prepare_typed(&one.text, one.types)).await?;
        }
        Ok(())
    }

    /// A statement for a session of a pooler.
    pub(crate) fn statement(&self, number: Number) -> &statement::Statement {
        &self.list.pooled[number.0]
    }

    /// Waits until no other request is under way. Until the permit is dropped, none is sent.
    pub(crate) fn exclusive(&self) -> impl Future<Output = OwnedSemaphorePermit> + Send + use<> {
        let exclusive = self.exclusive.clone();
        async move { exclusive.acquire_owned().await.expect("it is never closed") }
    }

    /// Whether it takes requests.
    pub(crate) fn is_open(&self) -> bool {
        self.drive.refresh();
        !self.superseded.load(Ordering::Relaxed)
            && !self.orders.has_ended()
            && !self.drive.has_ended()
            && !self.client().is_closed()
    }

    pub(crate) fn is_doubted(&self) -> bool {
        self.doubted.load(Ordering::Relaxed)
    }

    pub(crate) fn load(&self) -> usize {
        self.load.load(Ordering::Relaxed)
    }

    /// How long nobody has used it.
    pub(crate) fn idle(&self, now: Moment) -> Duration {
        if self.load() > 0 { Duration::ZERO } else { now.since(*lock(&self.used)) }
    }

    /// Returns when the connection has ended. For one caller.
    pub(crate) async fn gone(&self) {
        self.orders.gone().await;
    }

    /// Ends it: it is of no use.
    pub(crate) fn end(&self) {
        self.orders.end();
        self.drive.move_now();
    }

    /// Gives the connection something to send, and moves its bytes until the answer is there.
    pub(crate) async fn send<T>(
        &self,
        sending: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, BackendError> {
        match self.drive.send(sending).await {
            Some(answer) => answer.map_err(|error| {
                if error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION) {
                    // Its role went to another server. A new connection finds that one.
                    self.end();
                }
                failure(&error)
            }),
            None => Err(lost("closed")),
        }
    }
}

/// A connection that is used for a request.
pub(crate) struct Checkout(Arc<Connection>);

impl Checkout {
    pub(crate) fn on(connection: Arc<Connection>) -> Self {
        connection.load.fetch_add(1, Ordering::Relaxed);
        Self(connection)
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.0
    }

    /// The rows that a statement answers. `about` is the claim that it tries to have granted.
    ///
    /// # Errors
    ///
    /// The server's, and an unknown effect if a standby has not confirmed the commit.
    ///
    /// # Cancel safety
    ///
    /// The statement may run all the same.
    pub(crate) async fn ask(
        &self,
        ask: impl Into<Number>,
        params: Params<'_>,
        about: Option<ClaimId>,
    ) -> Result<Vec<Row>, BackendError> {
        let (connection, ask) = (&self.0, ask.into());
        let Some(prepared) = connection.prepared.get(ask.0) else {
            let request = Request::on(connection, ask, params)?;
            // It sees to the connection by itself.
            return self.answered(about, None, request).await;
        };
        let asked = connection.client().query(prepared, params);
        let now = connection.drive.io().now();
        self.answered(about, Some(now), connection.send(asked)).await
    }

    /// With `since`, the connection is doubted if the caller gives up long after that.
    async fn answered(
        &self,
        about: Option<ClaimId>,
        since: Option<Moment>,
        asked: impl Future<Output = Result<Vec<Row>, BackendError>>,
    ) -> Result<Vec<Row>, BackendError> {
        let connection = &self.0;
        let warned = connection.orders.warnings();
        let flight = Flight { connection, about, since, landed: false };
        let mut answer = asked.await;
        if let Err(error) = &mut answer
            && error.kind == BackendErrorKind::Denied
            // Boxed: an acquire that is under way would be larger by it.
            && Box::pin(connection.logins.is_superseded(connection.login, connection.drive.io())).await
        {
            connection.superseded.store(true, Ordering::Relaxed);
            *error = superseded(error);
        }
        if !answer.as_ref().is_err_and(|error| error.effect == Effect::Unknown) {
            flight.lands();
        }
        if answer.is_ok() && connection.orders.warnings() != warned {
            return Err(not_replicated());
        }
        answer
    }
}

impl Drop for Checkout {
    fn drop(&mut self) {
        *lock(&self.0.used) = self.0.drive.io().now();
        self.0.load.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Notices that the caller has given up.
struct Flight<'a> {
    connection: &'a Arc<Connection>,
    about: Option<ClaimId>,
    since: Option<Moment>,
    landed: bool,
}

impl Flight<'_> {
    fn lands(mut self) {
        self.landed = true;
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        if self.landed {
            return;
        }
        if let Some(id) = self.about {
            self.connection.orphans.add(id, self.connection);
        }
        let io = self.connection.drive.io();
        if self.since.is_some_and(|since| io.now().since(since) >= SILENCE) {
            doubt(self.connection, io);
        }
    }
}

/// Asks a connection for a sign of life. It takes no requests meanwhile, and ends if there is none: the way
/// may have been closed in silence.
pub(crate) fn doubt(connection: &Arc<Connection>, io: &Io) {
    if connection.doubted.swap(true, Ordering::Relaxed) {
        return;
    }
    let (connection, own) = (connection.clone(), io.clone());
    io.spawn(async move {
        let mut asked = pin!(async {
            let _permit = connection.exclusive().await;
            connection.send(connection.client().simple_query("")).await
        });
        match own.within(LOOK_LIMIT, asked.as_mut()).await {
            Some(Ok(_)) => connection.doubted.store(false, Ordering::Relaxed),
            _ => connection.end(),
        }
    });
}

impl Drop for Connection {
    fn drop(&mut self) {
        // It takes its leave of the server, if it can at once; then it ends in any case.
        drop(self.client.take());
        self.drive.move_now();
        self.end();
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("pooled", &self.pooled).finish_non_exhaustive()
    }
}
