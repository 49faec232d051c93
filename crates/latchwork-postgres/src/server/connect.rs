//! Makes connections, and finds out who is at the other end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use latchwork_store::{BackendError, BackendErrorKind, Effect, Error, ErrorKind, Io};
use latchwork_wire::{Drive, Reached, Socket, dial, first_to_answer, is_silent, resolve};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::NoTls;
use tokio_postgres::{Client, Config};

use crate::address::host::Host;
use crate::address::passfile::Found;
use crate::config::{Login, PostgresConfig, SslMode};
use crate::server::connection::{Connection, Orphans};
use crate::server::errors::{
    NO_WRITES_STEP, is_by_rules, is_locked, is_login_refused, is_superseded, late, no_socket,
    not_connected, not_reached, superseded, without_password,
};
use crate::server::greet::{Greeting, Sibling, process_of};
use crate::server::lineage::Seen;
use crate::server::mover::{Mover, Orders, Sink};
use crate::server::schema;
use crate::server::statement::StatementList;
use crate::server::tls::{Greeter, Talk};

/// How a session behaves, where it is ours alone. A statement waits for a row that somebody has locked
/// no longer than a verb waits for its answer. Each statement is planned once, and reads by the index, however
/// small the tables are at that time.
///
/// What the role or the database has set may not hide the warning that no standby has confirmed a commit, replace
/// the server's functions by others of the same name, or end a connection that is idle. The server ends one whose
/// client has vanished.
///
/// It is one statement, and one entry in `pg_stat_statements`.
pub(crate) const SESSION: &str = "SELECT pg_catalog.count(pg_catalog.set_config(n.name, n.value, false)) FROM (VALUES \
     ('search_path', 'pg_catalog, pg_temp'), ('lock_timeout', '2s'), ('statement_timeout', '0'), \
     ('default_transaction_isolation', 'read committed'), ('idle_in_transaction_session_timeout', '10s'), \
     ('client_min_messages', 'notice'), ('tcp_keepalives_idle', '30'), ('tcp_keepalives_interval', '10'), \
     ('tcp_keepalives_count', '3'), ('plan_cache_mode', 'force_generic_plan'), ('jit', 'off'), ('enable_seqscan', 'off'), \
     ('enable_bitmapscan', 'off'), ('idle_session_timeout', '0'), ('transaction_timeout', '0')) n (name, value) \
     WHERE pg_catalog.current_setting(n.name, true) IS NOT NULL";
/// The server's own functions and operators, and no others.
const PATH: &str = "SET search_path = pg_catalog, pg_temp";
/// As [`PATH`], for a transaction behind a pooler.
pub(crate) const LOCAL_PATH: &str = "SET LOCAL search_path = pg_catalog, pg_temp";
/// What such a setting hides.
const SILENT: [&str; 3] = ["error", "fatal", "panic"];
/// How long the other servers of an address have to answer after one that takes writes.
const OTHER_SERVERS_PATIENCE: Duration = Duration::from_secs(1);
/// If a connection takes longer, another address of the same name is tried beside it.
const ANSWERED: Duration = Duration::from_secs(1);
/// How long they have to take the connection: a server of the same address that is off costs no more.
const REACHED: Duration = Duration::from_millis(300);
/// For the first packet of a connection.
const NO_HURRY: &str = "-c statement_timeout=0";

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
    list: Arc<StatementList>,
    pub(crate) io: Io,
    pub(crate) orphans: Arc<Orphans>,
    /// The timelines that this client has seen.
    pub(crate) seen: Arc<Seen>,
    /// Statements of the role may last so short that a connection needs more time from its first packet on.
    is_hurried: AtomicBool,
}

/// A new connection, and what its server has said.
pub(crate) struct Opened {
    pub(crate) connection: Connection,
    pub(crate) at: Host,
    pub(crate) said: Greeting,
    /// How long one round trip has taken.
    pub(crate) trip: Duration,
}

/// How a client logs in.
#[derive(Clone, Copy)]
struct Manner {
    is_hurried: bool,
    /// Without TLS, although the address prefers it.
    is_plain: bool,
}

/// Why there is no connection.
struct Refusal {
    error: BackendError,
    /// `pg_hba.conf` refuses the user on such a connection, and the server got no password.
    is_by_rules: bool,
}

impl From<BackendError> for Refusal {
    fn from(error: BackendError) -> Self {
        Self { error, is_by_rules: false }
    }
}

/// How far one of the servers of an address has come.
struct Progress {
    /// It took no connection a moment ago.
    was_silent: bool,
    /// It has taken the connection.
    reached: Reached,
    /// It has answered, or failed.
    has_ended: AtomicBool,
}

impl Progress {
    fn is_open(&self) -> bool {
        !self.has_ended.load(Ordering::Relaxed)
    }
}

impl Access {
    /// `list` has the statements that connections for locks prepare.
    pub(crate) fn new(config: PostgresConfig, list: Arc<StatementList>, io: Io) -> Arc<Self> {
        let (orphans, seen) = (Arc::default(), Arc::default());
        Arc::new(Self { config, list, io, orphans, seen, is_hurried: AtomicBool::new(false) })
    }

    /// Connects to the server of the address that counts ([`Self::choose`]). The connection is made where the
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
                opened = this.open_at_ease(purpose, sink) => opened,
                () = told.closed() => return,
            };
            let _ = told.send(opened);
        });
        opened.await.unwrap_or_else(|_| Err(driver_gone()))
    }

    /// If the server has cancelled a statement after the first one, the second attempt has no limit from the first packet on.
    async fn open_at_ease(
        self: &Arc<Self>,
        purpose: For,
        sink: Option<Sink>,
    ) -> Result<Opened, BackendError> {
        match self.best_of_all(purpose, sink.clone()).await {
            Err(error) if is_superseded(&error) => self.best_of_all(purpose, sink).await,
            Err(error) if is_cut_short(&error) && self.config.pooler != Some(true) => {
                self.is_hurried.store(true, Ordering::Relaxed);
                self.best_of_all(purpose, sink).await
            }
            opened => opened,
        }
    }

    /// Asks all servers of the address at once. When one that takes writes has answered, the others have
    /// [`OTHER_SERVERS_PATIENCE`] to say that it was replaced; one that takes no connection has until [`REACHED`].
    async fn best_of_all(
        self: &Arc<Self>,
        purpose: For,
        sink: Option<Sink>,
    ) -> Result<Opened, BackendError> {
        let begun = self.io.now();
        let progress: Vec<_> = self.config.hosts.iter().map(|at| self.progress(at)).collect();
        let asked = self.config.hosts.iter().zip(&progress).enumerate();
        let mut asked: FuturesUnordered<_> = asked
            .map(|(place, (at, progress))| {
                let connected = self.connect_in_time(at, sink.clone(), &progress.reached);
                async move { (place, connected.await) }
            })
            .collect();
        let mut answers = Vec::new();
        let (mut patience, mut is_last) = (None, false);
        loop {
            let answer = match &mut patience {
                None => asked.next().await,
                Some(patience) => tokio::select! {
                    answer = asked.next() => answer,
                    () = &mut *patience => {
                        // Those that have taken the connection may be slow.
                        let mut open = progress.iter().filter(|it| it.is_open());
                        if is_last || !open.any(|it| it.reached.is_any()) {
                            break;
                        }
                        is_last = true;
                        *patience = self.io.sleep(OTHER_SERVERS_PATIENCE);
                        continue;
                    }
                },
            };
            let Some(answer) = answer else { break };
            progress[answer.0].has_ended.store(true, Ordering::Relaxed);
            let takes_writes =
                answer.1.as_ref().is_ok_and(|opened: &Opened| !opened.said.is_standby);
            answers.push(answer);
            if takes_writes && patience.is_none() {
                let mut open = progress.iter().filter(|it| it.is_open());
                let left = match open.all(|it| it.was_silent) {
                    true => Duration::ZERO,
                    false => REACHED.saturating_sub(self.io.now().since(begun)),
                };
                patience = Some(self.io.sleep(left));
            }
        }
        drop(asked);
        answers.sort_by_key(|(place, _)| *place);
        let chosen =
            self.choose(answers.into_iter().map(|(_, answer)| answer).collect(), purpose)?;
        let login = chosen.connection.login;
        let error = match self.make_ready(chosen, purpose).await {
            Ok(opened) => return Ok(opened),
            Err(error) => error.with_effect(Effect::NotApplied),
        };
        // Its user may log in, and lacks a right.
        if error.kind == BackendErrorKind::Denied
            && self.config.login.is_superseded(login, &self.io).await
        {
            return Err(superseded(&error));
        }
        Err(error)
    }

    fn progress(&self, at: &Host) -> Progress {
        let was_silent = matches!(at, Host::Net(at) if is_silent(at, &self.io));
        Progress { was_silent, reached: Reached::default(), has_ended: AtomicBool::new(false) }
    }

    /// Of the servers that take writes and were not replaced, the first one. `init` and `doctor` also take a standby.
    fn choose(
        &self,
        answers: Vec<Result<Opened, BackendError>>,
        purpose: For,
    ) -> Result<Opened, BackendError> {
        let opened = answers.iter().flatten();
        opened.filter_map(|it| it.said.lineage.as_ref()).for_each(|it| self.seen.note(it));
        let (mut problems, mut standby) = (Vec::new(), None);
        for answer in answers {
            problems.push(match answer {
                // What a server that answers says is of more use than that another one does not.
                Err(error) if error.kind == BackendErrorKind::Unreachable => (3, error),
                Err(error) => (0, error),
                Ok(opened) if opened.said.is_standby && purpose == For::Care => {
                    standby.get_or_insert(opened);
                    continue;
                }
                Ok(opened) if opened.said.is_standby => (2, takes_no_writes(&opened.at)),
                Ok(opened) => match self.replaced(&opened) {
                    None => return Ok(opened),
                    Some(error) => (1, error),
                },
            });
        }
        let none = || not_reached("no host", "the address names none");
        let problem = problems.into_iter().min_by_key(|(rank, _)| *rank);
        standby.ok_or_else(|| problem.map_or_else(none, |(_, error)| error))
    }

    /// Why this server does not count, if another one has taken its place.
    fn replaced(&self, opened: &Opened) -> Option<BackendError> {
        let lineage = opened.said.lineage.as_ref()?;
        let larger = self.seen.replaces(lineage)?;
        let message = format!(
            "{} was replaced: it is on timeline {}, and this client has seen timeline {larger} of the same system",
            opened.at, lineage.timeline
        );
        let step = "make it a standby of the new primary (pg_rewind), or stop it; if it was restored on purpose, \
             restart this process";
        let (kind, effect) = (BackendErrorKind::Unreachable, Effect::NotApplied);
        Some(BackendError::new(kind, effect, message).with_next_step(step))
    }

    /// Connects to one server within the limit of the address, by whichever of its own addresses answers.
    async fn connect_in_time(
        &self,
        at: &Host,
        sink: Option<Sink>,
        reached: &Reached,
    ) -> Result<Opened, BackendError> {
        let (end, limit) = (at.endpoint(), self.config.connect_timeout);
        // The lookup of a name may take longer.
        let failed = |error: std::io::Error| not_reached(&at.to_string(), &error.to_string());
        resolve(&end, &self.io).await.map_err(failed)?;
        let make = || self.connect(at, sink.clone(), reached);
        let is_said = |error: &BackendError| error.kind != BackendErrorKind::Unreachable;
        let made = first_to_answer(&end, reached, ANSWERED, &self.io, make, is_said);
        let made = self.io.within(limit, made).await;
        made.unwrap_or_else(|| Err(late(&at.to_string(), limit, reached.is_any())))
    }

    /// Connects to one server, and finds out who answers.
    async fn connect(
        &self,
        at: &Host,
        sink: Option<Sink>,
        reached: &Reached,
    ) -> Result<Opened, BackendError> {
        if self.is_hurried.load(Ordering::Relaxed) {
            if let Ok(opened) = self.log_in(at, sink.clone(), true, reached).await {
                return Ok(opened);
            }
            self.is_hurried.store(false, Ordering::Relaxed);
        }
        let cut_short = match self.log_in(at, sink.clone(), false, reached).await {
            Err(error) if is_cut_short(&error) && self.config.pooler != Some(true) => error,
            answer => return answer,
        };
        // A pooler refuses such a packet, or ignores it: then the first error says more.
        let opened = self.log_in(at, sink, true, reached).await.map_err(|_| cut_short)?;
        self.is_hurried.store(true, Ordering::Relaxed);
        Ok(opened)
    }

    async fn log_in(
        &self,
        at: &Host,
        sink: Option<Sink>,
        is_hurried: bool,
        reached: &Reached,
    ) -> Result<Opened, BackendError> {
        let (login, seen) = self.config.login.current();
        let (login, reason) = self.with_password(login, at)?;
        let of = |version: u64| {
            move |mut opened: Opened| {
                opened.connection.login = version;
                opened
            }
        };
        let refusal =
            match self.log_in_as(&login, reason, at, sink.clone(), is_hurried, reached).await {
                Err(error) if is_login_refused(&error) => error,
                made => return made.map(of(seen)),
            };
        let (newer, seen) = match self.config.login.after_refusal(seen, &self.io).await {
            Ok(newer) => newer.unwrap_or_else(|| self.config.login.current()),
            Err(problem) => return Err(refusal.unrenewed(&problem)),
        };
        // The file with passwords may have been replaced since it was read.
        let (newer, reason) = self.with_password(newer, at)?;
        if newer == login {
            return Err(refusal);
        }
        self.log_in_as(&newer, reason, at, sink, is_hurried, reached).await.map(of(seen))
    }

    /// Logs in; with `sslmode=prefer` once more without TLS, if the server lets this user in by no other way.
    async fn log_in_as(
        &self,
        who: &Login,
        reason: Option<String>,
        at: &Host,
        sink: Option<Sink>,
        is_hurried: bool,
        reached: &Reached,
    ) -> Result<Opened, BackendError> {
        let as_asked = Manner { is_hurried, is_plain: false };
        let asked = self.log_in_once(who, reason.clone(), at, sink.clone(), as_asked, reached);
        let refusal = match asked.await {
            Ok(opened) => return Ok(opened),
            Err(refusal) if refusal.is_by_rules && self.config.ssl_mode == SslMode::Prefer => {
                refusal.error
            }
            Err(refusal) => return Err(refusal.error),
        };
        let plainly = Manner { is_plain: true, ..as_asked };
        match self.log_in_once(who, reason, at, sink, plainly, reached).await {
            Err(second) if second.is_by_rules => Err(refusal),
            made => made.map_err(|second| second.error),
        }
    }

    async fn log_in_once(
        &self,
        who: &Login,
        reason: Option<String>,
        at: &Host,
        sink: Option<Sink>,
        manner: Manner,
        reached: &Reached,
    ) -> Result<Opened, Refusal> {
        let shown = at.to_string();
        let failed = |error: std::io::Error| not_reached(&shown, &error.to_string());
        let stream = self.reach(at, &shown).await?;
        reached.note(&stream);
        let (socket, drive) = Drive::open(stream, &self.io).map_err(failed)?;
        // As for psql: a socket in the file system has no TLS.
        let (mode, host) = match (at, self.config.ssl_mode) {
            (Host::Net(at), SslMode::Prefer) if !manner.is_plain => {
                (tokio_postgres::config::SslMode::Prefer, &*at.host)
            }
            (Host::Net(at), SslMode::Require) => {
                (tokio_postgres::config::SslMode::Require, &*at.host)
            }
            _ => (tokio_postgres::config::SslMode::Disable, ""),
        };
        let mut login = Config::new();
        login.user(&who.user).dbname(&self.config.database).ssl_mode(mode);
        login.application_name(&self.config.application_name);
        if manner.is_hurried {
            login.options(NO_HURRY);
        }
        if let Some(password) = &who.password {
            login.password(&password.0);
        }
        let talk = Arc::<Talk>::default();
        let refused = |error: tokio_postgres::Error| Refusal {
            is_by_rules: is_by_rules(&error) && (manner.is_plain || talk.is_unanswered()),
            error: without_password(not_connected(&shown, &error), reason.as_deref()),
        };
        let connection = if host.is_empty() {
            let made = login.connect_raw(socket, NoTls).await;
            self.begin(made.map_err(refused)?, drive, sink)
        } else {
            let greeter = Greeter { greeting: self.config.tls.greeting(host)?, talk: talk.clone() };
            let made = login.connect_raw(socket, greeter).await;
            self.begin(made.map_err(refused)?, drive, sink)
        };
        let greeted = self.greet(connection, at).await;
        greeted.map_err(|error| error.with_effect(Effect::NotApplied).into())
    }

    /// Finds out who answers.
    async fn greet(&self, mut connection: Connection, at: &Host) -> Result<Opened, BackendError> {
        connection.sibling.as_ref().map_or(Ok(()), Sibling::check)?;
        let promised = process_of(connection.client()).await;
        let sent = self.io.now();
        let said = Greeting::of(&connection, &self.config, false).await?;
        let trip = self.io.now().since(sent);
        connection.is_through_pooler = said.is_through_pooler(promised);
        connection.pooled = self.config.pooler.unwrap_or(connection.is_through_pooler);
        connection.lineage = said.lineage.clone();
        Ok(Opened { connection, at: at.clone(), said, trip })
    }

    /// A stream to the server.
    async fn reach(&self, at: &Host, shown: &str) -> Result<std::net::TcpStream, BackendError> {
        let failed = |error: std::io::Error| match at {
            Host::Net(_) => not_reached(shown, &error.to_string()),
            Host::Socket { .. } => no_socket(shown, &error),
        };
        dial(&at.endpoint(), &self.io).await.map_err(failed)
    }

    /// The login with its password, or why none was found.
    fn with_password(
        &self,
        login: Login,
        at: &Host,
    ) -> Result<(Login, Option<String>), BackendError> {
        let config = &self.config;
        let Some(file) = config.passfile.as_ref().filter(|_| login.password.is_none()) else {
            return Ok((login, None));
        };
        Ok(match file.find(at, &config.database, &login.user)? {
            Found::Password(password) => (Login { password: Some(password), ..login }, None),
            Found::Nothing(reason) => (login, reason),
        })
    }

    fn begin<T>(
        &self,
        (client, connection): (Client, tokio_postgres::Connection<Socket, T>),
        drive: Arc<Drive>,
        sink: Option<Sink>,
    ) -> Connection
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let orders = Arc::<Orders>::default();
        let sibling = Sibling::of(|name| connection.parameter(name));
        drive.start(Mover::new(connection, orders.clone(), sink));
        let (list, orphans) = (self.list.clone(), self.orphans.clone());
        let logins = self.config.login.clone();
        let mut connection = Connection::new(client, drive, orders, list, orphans, logins);
        connection.sibling = sibling;
        connection
    }

    /// Makes a connection ready for requests.
    async fn make_ready(&self, mut opened: Opened, purpose: For) -> Result<Opened, BackendError> {
        let said = &opened.said;
        match purpose {
            For::Messages => return Ok(opened),
            For::Care if opened.connection.pooled => return Ok(opened),
            For::Care => {
                opened.connection.set_up(PATH).await?;
                return Ok(opened);
            }
            For::Locks => {}
        }
        opened.said.check_version()?;
        if schema::check(said.table.as_deref(), &self.config).is_err() {
            self.outlast_init(&opened.connection).await?;
            opened.said = Greeting::of(&opened.connection, &self.config, false).await?;
        }
        let said = &opened.said;
        schema::check(said.table.as_deref(), &self.config)?;
        said.check_owners(&self.config)?;
        said.check_rights(&self.config)?;
        if opened.connection.pooled && SILENT.contains(&&*said.messages) {
            let message = format!(
                "client_min_messages is {}: a commit that no standby has confirmed would look like one",
                said.messages
            );
            let (kind, effect) = (BackendErrorKind::Invalid, Effect::NotApplied);
            return Err(BackendError::new(kind, effect, message).with_next_step(
                "ALTER ROLE .. SET client_min_messages = 'warning' for the user of the address",
            ));
        }
        if !opened.connection.pooled {
            opened.connection.set_up(SESSION).await?;
            opened.connection.prepare().await?;
        }
        Ok(opened)
    }

    /// Waits for the end of an `init` of another client that is making the tables at this moment: they are missing, or
    /// old, until it has committed.
    async fn outlast_init(&self, connection: &Connection) -> Result<(), BackendError> {
        // As `make_tables` of init.rs locks it, but shared with others that wait.
        let text = format!(
            "{LOCAL_PATH}; SET LOCAL lock_timeout = '2s'; SELECT pg_advisory_xact_lock_shared({}, 1)",
            self.config.class(),
        );
        match connection.send(connection.client().batch_execute(&text)).await {
            Err(error) if is_locked(&error) => {
                let message = format!(
                    "another client is making the table {}.{} (latchwork init)",
                    self.config.schema, self.config.table
                );
                Err(BackendError::new(BackendErrorKind::Unreachable, Effect::NotApplied, message)
                    .with_next_step(
                        "try again when that has ended; pg_stat_activity shows its session",
                    ))
            }
            done => done,
        }
    }

    /// An error of this store for its user.
    pub(crate) fn error(&self, error: BackendError) -> Error {
        Error::from_backend(error, None, &self.config.shown().into())
    }

    pub(crate) fn invalid(&self, message: String) -> Error {
        Error::new(ErrorKind::Invalid, message).with_store(self.config.shown().into())
    }
}

/// What runs connections has ended, and they with it.
pub(crate) fn driver_gone() -> BackendError {
    let (kind, effect) = (BackendErrorKind::Unreachable, Effect::NotApplied);
    BackendError::new(kind, effect, "the driver was shut down")
}

pub(crate) fn takes_no_writes(at: &Host) -> BackendError {
    let message = format!(
        "{at} is a standby, or default_transaction_read_only is on for this user or database"
    );
    BackendError::new(BackendErrorKind::Unreachable, Effect::NotApplied, message)
        .with_next_step(NO_WRITES_STEP)
}

/// Whether the server has cancelled a statement.
fn is_cut_short(error: &BackendError) -> bool {
    error.message.contains(SqlState::QUERY_CANCELED.code())
}
