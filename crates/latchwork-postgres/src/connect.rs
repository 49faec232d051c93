//! Makes connections, and finds out who is at the other end.

use std::sync::Arc;
use std::time::Duration;

use latchwork_store::wire::{Drive, Socket};
use latchwork_store::{BackendError, BackendErrorKind, Effect, Error, ErrorKind, Io};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio_postgres::tls::NoTls;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Config, Connection};

use crate::config::{PostgresConfig, Secret, SslMode};
use crate::errors::{no_socket, not_connected, not_reached, without_password};
use crate::host::{self, Host};
use crate::lane::{Lane, Orphans};
use crate::mover::{Mover, Orders, Sink};
use crate::passfile::Found;
use crate::schema;
use crate::statements::Statements;
use crate::tls::{AsItIs, Greeter};
use crate::values::column;

/// How a session behaves, where it is ours alone. A statement waits for a row that somebody has locked
/// no longer than a verb waits for its answer. Each statement is planned once, and reads by the index, however
/// small the tables are at that time.
///
/// What the role or the database has set may not hide the warning that no standby has confirmed a commit, replace
/// the server's functions by others of the same name, or end a connection that is idle. The server ends one whose
/// client has vanished.
pub(crate) const SESSION: &str = "SET search_path = pg_catalog, pg_temp; SET lock_timeout = '2s'; SET statement_timeout = 0; \
     SET default_transaction_isolation = 'read committed'; SET idle_in_transaction_session_timeout = '10s'; \
     SET client_min_messages = 'notice'; SET tcp_keepalives_idle = 30; SET tcp_keepalives_interval = 10; \
     SET tcp_keepalives_count = 3; SET plan_cache_mode = force_generic_plan; SET jit = off; SET enable_seqscan = off; \
     SET enable_bitmapscan = off; SELECT set_config(name, '0', false) FROM pg_settings \
     WHERE name IN ('idle_session_timeout', 'transaction_timeout')";
/// The server's own functions and operators, and no others.
const PATH: &str = "SET search_path = pg_catalog, pg_temp";
/// As [`PATH`], for a transaction behind a pooler.
pub(crate) const LOCAL_PATH: &str = "SET LOCAL search_path = pg_catalog, pg_temp";
/// What such a setting hides.
const SILENT: [&str; 3] = ["error", "fatal", "panic"];

/// What connections are made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum For {
    /// Locks: the tables must be there, and the server must take writes.
    Locks,
    /// To examine or to prepare a server.
    Care,
    /// To listen: the caller makes the session ready.
    Messages,
}

/// What all connections of a store have in common.
pub(crate) struct Access {
    pub(crate) config: PostgresConfig,
    pub(crate) statements: Arc<Statements>,
    pub(crate) io: Io,
    pub(crate) orphans: Arc<Orphans>,
}

/// A new connection, and what its server has said.
pub(crate) struct Opened {
    pub(crate) lane: Lane,
    pub(crate) at: Host,
    /// As in `server_version_num`.
    pub(crate) version: i32,
    pub(crate) is_standby: bool,
    /// What the table of locks says of itself; `None` if there is none.
    pub(crate) table: Option<String>,
    /// How long one round trip has taken.
    pub(crate) trip: Duration,
}

impl Access {
    pub(crate) fn new(config: PostgresConfig, io: Io) -> Arc<Self> {
        let statements = Arc::new(Statements::new(&config));
        Arc::new(Self { config, statements, io, orphans: Arc::default() })
    }

    /// Connects to the first server of the address that will do. The connection is made where the
    /// `Io` runs. Dropping the future ends that.
    pub(crate) async fn open(
        self: &Arc<Self>,
        purpose: For,
        sink: Option<Sink>,
    ) -> Result<Opened, BackendError> {
        let (mut told, opened) = oneshot::channel();
        let this = self.clone();
        self.io.spawn(async move {
            let opened = tokio::select! {
                opened = this.first_of_all(purpose, sink) => opened,
                () = told.closed() => return,
            };
            let _ = told.send(opened);
        });
        opened.await.unwrap_or_else(|_| Err(driver_gone()))
    }

    async fn first_of_all(&self, purpose: For, sink: Option<Sink>) -> Result<Opened, BackendError> {
        let mut problem = None;
        for at in &self.config.hosts {
            let limit = self.config.connect_timeout;
            let opened = self.io.within(limit, self.connect(at, purpose, sink.clone())).await;
            let late = || Err(not_reached(&at.to_string(), &format!("no answer within {limit:?}")));
            match opened.unwrap_or_else(late) {
                Ok(opened) => return Ok(opened),
                Err(error) => {
                    // What a server that answers says is of more use than that another one does not.
                    let keep = problem.as_ref().is_some_and(|kept: &BackendError| {
                        kept.kind != BackendErrorKind::Unreachable
                    });
                    if !keep {
                        problem = Some(error);
                    }
                }
            }
        }
        Err(problem.unwrap_or_else(|| not_reached("no host", "the address names none")))
    }

    async fn connect(
        &self,
        at: &Host,
        purpose: For,
        sink: Option<Sink>,
    ) -> Result<Opened, BackendError> {
        let shown = at.to_string();
        let failed = |error: std::io::Error| not_reached(&shown, &error.to_string());
        let (socket, drive) =
            Drive::open(self.reach(at, &shown).await?, &self.io).map_err(failed)?;
        // As for psql: a socket in the file system has no TLS.
        let (mode, host) = match (at, self.config.ssl_mode) {
            (Host::Net(at), SslMode::Prefer) => {
                (tokio_postgres::config::SslMode::Prefer, &*at.host)
            }
            (Host::Net(at), SslMode::Require) => {
                (tokio_postgres::config::SslMode::Require, &*at.host)
            }
            _ => (tokio_postgres::config::SslMode::Disable, ""),
        };
        let mut login = Config::new();
        login.user(&self.config.user).dbname(&self.config.database).ssl_mode(mode);
        login.application_name(&self.config.application_name);
        let (password, reason) = self.password(at)?;
        if let Some(password) = &password {
            login.password(&password.0);
        }
        let refused = |error: tokio_postgres::Error| {
            without_password(not_connected(&shown, &error), reason.as_deref())
        };
        let lane = if host.is_empty() {
            let made = login.connect_raw(socket, NoTls).await;
            self.begin(made.map_err(refused)?, drive, sink)
        } else {
            let greeting = self.config.tls.greeting(host)?;
            let made = login.connect_raw(socket, Greeter(greeting)).await;
            self.begin(made.map_err(refused)?, drive, sink)
        };
        let effect = |error: BackendError| error.with_effect(Effect::NotApplied);
        self.look(lane, at, purpose).await.map_err(effect)
    }

    /// A stream to the server.
    async fn reach(&self, at: &Host, shown: &str) -> Result<std::net::TcpStream, BackendError> {
        let failed = |error: std::io::Error| not_reached(shown, &error.to_string());
        match at {
            Host::Net(at) => {
                let stream = TcpStream::connect((&*at.host, at.port)).await.map_err(failed)?;
                stream.set_nodelay(true).map_err(failed)?;
                stream.into_std().map_err(failed)
            }
            Host::Socket { .. } => {
                let socket = at.socket().unwrap_or_default();
                host::connect(&socket).await.map_err(|error| no_socket(shown, &error))
            }
        }
    }

    /// The password, or why none was found.
    fn password(&self, at: &Host) -> Result<(Option<Secret>, Option<String>), BackendError> {
        let config = &self.config;
        Ok(match (&config.password, &config.passfile) {
            (Some(password), _) => (Some(password.clone()), None),
            (None, Some(file)) => match file.find(at, &config.database, &config.user)? {
                Found::Password(password) => (Some(password), None),
                Found::Nothing(reason) => (None, reason),
            },
            (None, None) => (None, None),
        })
    }

    fn begin<T>(
        &self,
        (client, connection): (Client, Connection<Socket, T>),
        drive: Arc<Drive>,
        sink: Option<Sink>,
    ) -> Lane
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let orders = Arc::<Orders>::default();
        drive.start(Mover::new(connection, orders.clone(), sink));
        Lane::new(client, drive, orders, self.statements.clone(), self.orphans.clone())
    }

    /// Finds out who answers, and makes the connection ready for requests.
    async fn look(&self, mut lane: Lane, at: &Host, purpose: For) -> Result<Opened, BackendError> {
        let promised = process_of(lane.client()).await;
        let table = self.statements.table();
        // The session has the search_path of the role or the database, in which anybody may have made functions.
        let text = format!(
            "SELECT pg_catalog.pg_backend_pid(), pg_catalog.pg_is_in_recovery() \
             OR pg_catalog.current_setting('transaction_read_only') OPERATOR(pg_catalog.=) 'on', \
             pg_catalog.current_setting('server_version_num')::integer, {}, \
             pg_catalog.current_setting('client_min_messages')",
            schema::found()
        );
        let (schema, name) = (&self.config.schema, &self.config.table);
        let names: [(&(dyn ToSql + Sync), Type); 3] =
            [(&table, Type::TEXT), (schema, Type::TEXT), (name, Type::TEXT)];
        let sent = self.io.now();
        let rows = lane.send(lane.client().query_typed(&text, &names)).await?;
        let trip = self.io.now().since(sent);
        let [row] = &rows[..] else { return Err(crate::values::strange(0)) };
        let process: i32 = column(row, 0)?;
        let noticed = promised.is_some_and(|promised| promised != process);
        lane.pooled = self.config.pooler.unwrap_or(noticed);
        let (is_standby, version, table) = (column(row, 1)?, column(row, 2)?, column(row, 3)?);
        let messages: String = column(row, 4)?;
        let mut opened = Opened { lane, at: at.clone(), version, is_standby, table, trip };
        match purpose {
            For::Messages => return Ok(opened),
            For::Care if opened.lane.pooled => return Ok(opened),
            For::Care => {
                opened.lane.send(opened.lane.client().batch_execute(PATH)).await?;
                return Ok(opened);
            }
            For::Locks => {}
        }
        if is_standby {
            let message = format!(
                "{at} is a standby, or default_transaction_read_only is on for this user or database"
            );
            return Err(BackendError::new(
                BackendErrorKind::Unreachable,
                Effect::NotApplied,
                message,
            )
            .next_step("name the primary, or all servers, in the address"));
        }
        schema::check(opened.table.as_deref(), &self.config)?;
        if opened.lane.pooled && SILENT.contains(&&*messages) {
            let message = format!(
                "client_min_messages is {messages}: a commit that no standby has confirmed would look like one"
            );
            let (kind, effect) = (BackendErrorKind::Invalid, Effect::NotApplied);
            return Err(BackendError::new(kind, effect, message).next_step(
                "ALTER ROLE .. SET client_min_messages = 'warning' for the user of the address",
            ));
        }
        if !opened.lane.pooled {
            opened.lane.send(opened.lane.client().batch_execute(SESSION)).await?;
            opened.lane.prepare().await?;
        }
        Ok(opened)
    }

    /// An error of this store for its user.
    pub(crate) fn error(&self, error: BackendError) -> Error {
        Error::from_backend(error, None, &self.config.shown().into())
    }

    pub(crate) fn invalid(&self, message: String) -> Error {
        Error::new(ErrorKind::Invalid, message).store(self.config.shown().into())
    }
}

/// What runs connections has ended, and they with it.
pub(crate) fn driver_gone() -> BackendError {
    let (kind, effect) = (BackendErrorKind::Unreachable, Effect::NotApplied);
    BackendError::new(kind, effect, "the driver was shut down")
}

/// Which server process the other end of the connection says it is. A pooler says a number of its own, and the
/// server says its own in the answer to a statement.
///
/// The library tells it only to a server that it asks to cancel something; nothing is sent to one here.
async fn process_of(client: &Client) -> Option<i32> {
    let (near, mut far) = tokio::io::duplex(64);
    // The answer to the question for TLS, if it is asked.
    far.write_all(b"S").await.ok()?;
    client.cancel_token().cancel_query_raw(near, AsItIs).await.ok()?;
    let mut said = Vec::new();
    far.read_to_end(&mut said).await.ok()?;
    let number = said.len().checked_sub(8).and_then(|at| said.get(at..at + 4))?;
    Some(i32::from_be_bytes(number.try_into().ok()?))
}
