//! One connection to one server.

use std::collections::HashMap;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use latchwork_store::wire::Drive;
use latchwork_store::{BackendError, BackendErrorKind, Effect, Io, Moment};
use redis::{Cmd, PushInfo, PushKind, Value, cmd};
use tokio::sync::SetOnce;

use crate::config::Endpoint;
use crate::lock;
use crate::protocol::push::Ears;
use crate::protocol::replicas::Confirming;
use crate::server::connect::{
    Access, CONNECT_LIMIT, NotConnected, Probe, Protocol, connect, explained, refuses_hello,
    unreachable,
};
use crate::server::connection::{Connection, OnPush, command, ended};
use crate::server::errors::{Failure, Reaction, failure, strange};
use crate::server::facts::{Facts, Scripts, probe};
use crate::server::reply::text;

/// A request that was given up, and no answer to any other within this time since it was sent: the
/// connection is dead.
const SILENCE: Duration = Duration::from_millis(1_500);

/// A connection that another one replaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Replaced {
    /// The server's process: numbers of connections begin anew with each.
    run_id: String,
    client_id: i64,
}

/// A connection.
pub(crate) struct Link {
    conn: Connection,
    /// What moves the bytes.
    drive: Arc<Drive>,
    endpoint: Endpoint,
    user: String,
    io: Io,
    pub(crate) facts: Facts,
    /// What messages that come on this connection are known by.
    pub(crate) ears: Ears,
    /// The number that the server gave to the connection.
    client_id: Option<i64>,
    broken: Arc<AtomicBool>,
    /// When the first request was sent that was given up unanswered with no answer to any other
    /// since; 0 if there is none.
    unanswered_since: AtomicU64,
    /// The channels that the server has confirmed (true) or refused.
    channels: Mutex<HashMap<String, bool>>,
    pub(crate) confirming: Confirming,
    /// Set when another server has taken over. `None` where none can.
    superseded: Option<SetOnce<()>>,
}

impl Link {
    /// Makes a connection. Must run inside the runtime of the `Io`.
    pub(crate) async fn open(
        endpoint: Endpoint,
        access: &Arc<Access>,
        io: Io,
        on_push: OnPush,
        replaces: Option<&Replaced>,
    ) -> Result<Self, BackendError> {
        // A server that is stopped takes connections and says nothing.
        let limit = 2 * CONNECT_LIMIT;
        let opened = Self::open_slowly(endpoint.clone(), access, io.clone(), on_push, replaces);
        io.within(limit, opened).await.unwrap_or_else(|| {
            let message = format!("cannot connect to {endpoint}: no answer within {limit:?}");
            Err(BackendError::new(BackendErrorKind::Unreachable, Effect::NotApplied, message)
                .next_step("check that the server is running and not stopped"))
        })
    }

    async fn open_slowly(
        endpoint: Endpoint,
        access: &Arc<Access>,
        io: Io,
        on_push: OnPush,
        replaces: Option<&Replaced>,
    ) -> Result<Self, BackendError> {
        let mut last = None;
        for protocol in [Protocol::Resp3, Protocol::Resp2] {
            let broken = Arc::new(AtomicBool::new(false));
            let noted = {
                let (on_push, broken) = (on_push.clone(), broken.clone());
                Arc::new(move |push: PushInfo| {
                    let given_up = broken.load(Ordering::SeqCst);
                    if push.kind == PushKind::Disconnection {
                        broken.store(true, Ordering::SeqCst);
                    } else if given_up {
                        // It may come from a master of the past, which has granted something.
                        return;
                    }
                    on_push(push);
                })
            };
            match connect(&endpoint, access, protocol, noted, &io).await {
                Ok((conn, drive)) => {
                    let pushes = protocol == Protocol::Resp3;
                    let mut link = Self {
                        conn,
                        drive,
                        endpoint,
                        user: access.user(),
                        facts: Facts { pushes, ..Facts::default() },
                        ears: 0,
                        client_id: None,
                        broken,
                        unanswered_since: AtomicU64::new(0),
                        channels: Mutex::default(),
                        confirming: Confirming::new(access),
                        superseded: None,
                        io,
                    };
                    link.introduce(replaces, access.probe).await?;
                    return Ok(link);
                }
                // A server or proxy that does not know HELLO is spoken to as of old.
                Err(NotConnected::By(error))
                    if protocol == Protocol::Resp3 && refuses_hello(&error) =>
                {
                    last = Some(error);
                }
                Err(NotConnected::By(error)) => {
                    return Err(explained(&endpoint, access, &error, &io).await);
                }
                Err(NotConnected::Stale(error, problem)) => {
                    return Err(unreachable(&endpoint, access, &error).unrenewed(&problem));
                }
                Err(NotConnected::Refused(error)) => return Err(error),
            }
        }
        let error = last.expect("the loop ends with an error or a connection");
        Err(unreachable(&endpoint, access, &error))
    }

    /// Asks the server for what matters later, all at once.
    async fn introduce(
        &mut self,
        replaces: Option<&Replaced>,
        ask: Probe,
    ) -> Result<(), BackendError> {
        let mut id = cmd("CLIENT");
        id.arg("ID");
        let info = cmd("INFO");
        let probe = async {
            match ask {
                Probe::No => Ok(None),
                Probe::Store => probe(self, false).await.map(Some),
                Probe::Cluster => probe(self, true).await.map(Some),
            }
        };
        let listeners = async {
            let count = match ask {
                Probe::No => return false,
                Probe::Store => "NUMSUB",
                Probe::Cluster => "SHARDNUMSUB",
            };
            self.send(&command(&["PUBSUB", count])).await.is_ok()
        };
        let (id, info, probed, counts_listeners) =
            tokio::join!(self.send(&id), self.send(&info), probe, listeners);
        let probed = probed?;
        let facts = match info {
            Ok(info) => Facts::read(&text(&info).unwrap_or_default()),
            Err(failure) if failure.reaction == Reaction::Reconnect => return Err(failure.error),
            Err(_) => Facts::default(),
        };
        let pushes = self.facts.pushes && probed.as_ref().is_none_or(|probed| probed.channels);
        let scripts = probed.as_ref().map_or(Scripts::Whole, |probed| probed.scripts);
        let refused = probed.and_then(|probed| probed.refused);
        self.facts = Facts { pushes, scripts, refused, counts_listeners, ..facts };
        self.client_id = match id {
            // The connection that a proxy shares out is not ours to end.
            Ok(Value::Int(id)) if scripts == Scripts::Whole => Some(id),
            _ => None,
        };
        // What the old connection has sent and the server has not read yet must not run after what
        // is sent here. Without the right to do so the ttl bounds it. In another process of the
        // server, or another server, the number would be that of a stranger.
        if let Some(old) = replaces.filter(|old| old.run_id == self.facts.run_id) {
            let mut kill = cmd("CLIENT");
            kill.arg("KILL").arg("ID").arg(old.client_id);
            let _ = self.send(&kill).await;
        }
        Ok(())
    }

    /// What a connection that is made instead of this one needs to know.
    pub(crate) fn as_replaced(&self) -> Option<Replaced> {
        let run_id = self.facts.run_id.clone();
        let client_id = self.client_id.filter(|_| !run_id.is_empty())?;
        Some(Replaced { run_id, client_id })
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

    /// Another server has taken over. What this one answers from now on does not count: it may have
    /// been stopped, and grant what its successor has granted to others.
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
            // What a master of the past answers does not count, be it here already.
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

    pub(crate) fn client_id(&self) -> Option<i64> {
        self.client_id
    }

    /// Whether messages of this channel come.
    pub(crate) fn hears(&self, channel: &str) -> bool {
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
        // Something in between calls the channel otherwise, or speaks an older protocol: its messages
        // would not be known, or be taken for answers.
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
            // A dead link that nobody has told us of.
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

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // The connection is kept until what is under way is answered.
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
