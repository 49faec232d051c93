//! One connection to one server.

use std::collections::HashMap;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use latchwork_store::{BackendErrorKind, Io, Moment};
use latchwork_wire::Drive;
use redis::{Cmd, PushKind, Value, cmd};
use tokio::sync::{Semaphore, SetOnce};

use crate::config::Endpoint;
use crate::lock;
use crate::server::access::Access;
use crate::server::connection::{Connection, ended};
use crate::server::errors::{Failure, Reaction, failure, strange};
use crate::server::facts::Facts;
use crate::server::reply::text;

/// A request that was given up, and no answer to any other within this time since it was sent: the
/// connection is dead.
const SILENCE: Duration = Duration::from_millis(1_500);

/// A refusal of the server replaces no connection that is younger.
const SPACING: Duration = Duration::from_secs(1);

/// The number of a connection of this process.
pub(crate) type LinkId = u64;

/// The number of one more connection.
pub(super) fn next_id() -> LinkId {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// A connection that another one replaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Predecessor {
    /// The server's process: each one numbers its connections from 1.
    pub(super) run_id: String,
    pub(super) client_id: i64,
}

/// The connections beside a shared one, for commands that wait for replicas (`confirm.rs`).
#[derive(Debug)]
pub(super) struct Beside {
    pub(super) access: Arc<Access>,
    pub(super) idle: Mutex<Vec<Link>>,
    pub(super) permits: Semaphore,
    /// The numbers of connections whose command was given up: the server may not have read it yet.
    pub(super) abandoned: Mutex<Vec<i64>>,
}

impl Beside {
    /// The most commands that wait for replicas of one server at once.
    const MOST: usize = 64;

    fn new(access: &Arc<Access>) -> Self {
        Self {
            access: access.clone(),
            idle: Mutex::default(),
            permits: Semaphore::new(Self::MOST),
            abandoned: Mutex::default(),
        }
    }
}

/// A connection.
pub(crate) struct Link {
    conn: Connection,
    /// It moves the bytes.
    drive: Arc<Drive>,
    endpoint: Endpoint,
    user: String,
    /// The version of the login.
    pub(super) login: u64,
    io: Io,
    pub(crate) facts: Facts,
    /// Tells this connection from all others of the process; 0 if its messages go to no inbox.
    pub(crate) id: LinkId,
    /// The number that the server gave to the connection.
    pub(super) client_id: Option<i64>,
    broken: Arc<AtomicBool>,
    made_at: Moment,
    /// When the first request was sent that was given up unanswered with no answer to any other
    /// since; 0 if there is none.
    unanswered_since: AtomicU64,
    /// The channels that the server has confirmed (true) or refused.
    channels: Mutex<HashMap<String, bool>>,
    pub(super) beside: Beside,
    /// Whether the server has the script of commands that are sent once, as far as is known.
    pub(super) has_script: AtomicBool,
    /// Set when another server has taken over. `None` where none can.
    superseded: Option<SetOnce<()>>,
}

impl Link {
    /// A connection about which nothing is known yet.
    pub(super) fn new(
        conn: Connection,
        drive: Arc<Drive>,
        endpoint: Endpoint,
        access: &Arc<Access>,
        broken: Arc<AtomicBool>,
        io: Io,
    ) -> Self {
        Self {
            conn,
            drive,
            endpoint,
            user: access.user(),
            login: 0,
            facts: Facts::default(),
            id: 0,
            client_id: None,
            broken,
            made_at: io.now(),
            unanswered_since: AtomicU64::new(0),
            channels: Mutex::default(),
            beside: Beside::new(access),
            has_script: AtomicBool::new(false),
            superseded: None,
            io,
        }
    }

    /// What its successor needs to know of this connection.
    pub(crate) fn as_predecessor(&self) -> Option<Predecessor> {
        let run_id = self.facts.run_id.clone();
        let client_id = self.client_id.filter(|_| !run_id.is_empty())?;
        Some(Predecessor { run_id, client_id })
    }

    /// Sends a command and awaits its answer. A dropped future counts as sent.
    pub(crate) async fn send(&self, command: &Cmd) -> Result<Value, Failure> {
        let waiting = Waiting::new(self);
        let sending = self.conn.send(command);
        let sent = async { self.drive.send(sending).await.unwrap_or_else(|| Err(ended())) };
        let answer = self.unless_superseded(pin!(sent)).await;
        waiting.answered();
        self.read(answer)
    }

    /// Sends a command that the server shall take although its slot is only being moved there.
    pub(crate) async fn send_asking(&self, command: &Cmd) -> Result<Value, Failure> {
        let answers = self.send_together(&[&cmd("ASKING"), command], 1).await;
        self.read(answers.map(|mut answers| answers.pop().unwrap_or(Value::Nil)))
    }

    /// Sends several commands at once and awaits the answers to all but the first `skip`.
    pub(crate) async fn send_together(
        &self,
        commands: &[&Cmd],
        skip: usize,
    ) -> redis::RedisResult<Vec<Value>> {
        let waiting = Waiting::new(self);
        let sending = self.conn.send_together(commands, skip);
        let sent = async { self.drive.send(sending).await.unwrap_or_else(|| Err(ended())) };
        let answers = self.unless_superseded(pin!(sent)).await;
        waiting.answered();
        answers
    }

    /// Runs a future that waits for messages on this connection.
    pub(crate) async fn listen<T>(&self, waiting: impl Future<Output = T>) -> T {
        self.drive.listen(waiting).await
    }

    /// From now on another server may take over: see [`Self::mark_superseded`].
    pub(crate) fn may_be_superseded(&mut self) {
        self.superseded = Some(SetOnce::new());
    }

    /// Another server has taken over. Answers of this one do not count from now on: it may have been
    /// stopped, and grant a lock that its successor has granted to another client.
    pub(crate) fn mark_superseded(&self) {
        self.give_up();
        if let Some(superseded) = &self.superseded {
            let _ = superseded.set(());
        }
    }

    pub(crate) async fn unless_superseded<T>(
        &self,
        answer: Pin<&mut impl Future<Output = redis::RedisResult<T>>>,
    ) -> redis::RedisResult<T> {
        let Some(superseded) = &self.superseded else { return answer.await };
        tokio::select! {
            // Answers of a replaced master do not count, even if they are here already.
            biased;
            _ = superseded.wait() => {
                let gone = "a failover has replaced the master";
                Err(std::io::Error::other(gone).into())
            }
            answer = answer => answer,
        }
    }

    pub(crate) fn io(&self) -> &Io {
        &self.io
    }

    /// Whether messages of this channel come on this connection.
    pub(crate) fn is_subscribed(&self, channel: &str) -> bool {
        self.channel(channel) == Some(true)
    }

    /// Whether the server has refused this channel on this connection.
    pub(crate) fn refuses(&self, channel: &str) -> bool {
        self.channel(channel) == Some(false)
    }

    fn channel(&self, channel: &str) -> Option<bool> {
        lock(&self.channels).get(channel).copied()
    }

    /// Asks for the messages of a channel.
    pub(crate) async fn subscribe(&self, channel: &str, sharded: bool) -> Result<(), Failure> {
        let mut subscribe = cmd(if sharded { "SSUBSCRIBE" } else { "SUBSCRIBE" });
        subscribe.arg(channel);
        let answer = self.send(&subscribe).await;
        // A proxy renames the channel, or speaks an older protocol: its messages would not be recognised,
        // or be mistaken for answers.
        if let Ok(answer) = &answer
            && !confirms(answer, channel)
        {
            self.give_up();
            return Err(Failure { error: strange(answer), reaction: Reaction::Reconnect });
        }
        let refused = |failure: &Failure| failure.error.kind == BackendErrorKind::Denied;
        if answer.as_ref().is_ok() || answer.as_ref().is_err_and(refused) {
            let mut channels = lock(&self.channels);
            channels.insert(channel.to_owned(), answer.is_ok());
        }
        answer.map(drop)
    }

    /// The server does not send the messages of a channel any more.
    pub(crate) fn forget(&self, channel: &str) {
        lock(&self.channels).remove(channel);
    }

    pub(crate) fn read(&self, answer: redis::RedisResult<Value>) -> Result<Value, Failure> {
        let error = match answer {
            Ok(Value::ServerError(error)) => error.into(),
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        let mut failure = failure(&error, &self.endpoint);
        if failure.error.kind == BackendErrorKind::Denied {
            failure.error.message = format!("{} (user {:?})", failure.error.message, self.user);
        }
        if failure.reaction == Reaction::Reconnect {
            self.give_up();
        }
        Err(failure)
    }

    /// Notices the end of a connection that was idle. Call it without a lock: it may bring messages.
    pub(crate) fn refresh(&self) {
        self.drive.refresh();
    }

    /// Whether more can be sent.
    pub(crate) fn is_alive(&self) -> bool {
        let since = self.unanswered_since.load(Ordering::Relaxed);
        if since != 0 && self.io.now().since(Moment::from_nanos(since)) >= SILENCE {
            // A dead connection of which no error has come.
            self.give_up();
        }
        !self.broken.load(Ordering::SeqCst) && !self.drive.has_ended()
    }

    /// Whether a request was given up and nothing has been answered since.
    pub(crate) fn is_silent(&self) -> bool {
        self.unanswered_since.load(Ordering::Relaxed) != 0
    }

    pub(crate) fn give_up(&self) {
        self.broken.store(true, Ordering::SeqCst);
    }

    /// Whether it is old enough for another one to take its place, because a new login or another server behind the
    /// same address may do what was refused here.
    pub(crate) fn may_be_replaced(&self) -> bool {
        self.io.now().since(self.made_at) >= SPACING
    }

    /// Whether its user, who lacks a right, is not the one that the source of the login names now.
    pub(crate) async fn is_superseded(&self) -> bool {
        self.beside.access.credentials.is_superseded(self.login, &self.io).await
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // The connection stays open until the requests under way are answered.
        self.give_up();
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

/// A request that waits for its answer; remembered if it is given up.
struct Waiting<'a> {
    link: &'a Link,
    since: u64,
}

impl<'a> Waiting<'a> {
    fn new(link: &'a Link) -> Self {
        Self { link, since: link.io.now().as_nanos() }
    }

    fn answered(self) {
        self.link.unanswered_since.store(0, Ordering::Relaxed);
        std::mem::forget(self);
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let first = &self.link.unanswered_since;
        let _ = first.compare_exchange(0, self.since, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Whether this is the confirmation that messages of a channel come from now on.
fn confirms(answer: &Value, channel: &str) -> bool {
    match answer {
        Value::Push { kind: PushKind::Subscribe | PushKind::SSubscribe, data } => {
            data.first().and_then(text).is_some_and(|name| name == channel)
        }
        _ => false,
    }
}
