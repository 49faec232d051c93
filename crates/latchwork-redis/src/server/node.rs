//! One server, or the current master, and the connection to it.
//!
//! A node never sends a command twice. A broken connection is replaced when the next command needs
//! it, or at once while a claim waits for messages on it.

use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use latchwork_store::{BackendError, Backoff, Io};
use redis::{PushInfo, PushKind, Value};
use tokio::sync::watch;

use crate::config::Endpoint;
use crate::lock;
use crate::server::access::Access;
use crate::server::cluster::Cluster;
use crate::server::inbox::Inbox;
use crate::server::link::{Link, Predecessor, next_id};
use crate::server::sentinel::Sentinels;
use crate::server::slot::slot_of;

/// Which server to connect to.
#[derive(Debug)]
pub(crate) enum Target {
    /// Always this one.
    Fixed(Endpoint),
    /// The one that the Sentinels name.
    Master(Arc<Sentinels>),
}

/// The purpose of a connection.
#[derive(Debug)]
pub(crate) enum Use {
    /// Commands, and messages of channels.
    All,
    /// Commands to a node of a Cluster.
    Commands,
    /// Messages of channels on a node of a Cluster. Only subscriptions are sent here.
    Messages(Weak<Cluster>),
}

/// A server with its connection.
pub(crate) struct Node {
    target: Target,
    usage: Use,
    access: Arc<Access>,
    io: Io,
    inbox: Arc<dyn Inbox>,
    me: Weak<Node>,
    state: watch::Sender<State>,
    /// The connection that the next one replaces.
    last: Mutex<Option<Predecessor>>,
    /// The connections that were made and are still in use.
    made: Mutex<Vec<Weak<Link>>>,
    /// The master that a Sentinel has announced, until the next connection.
    named: Mutex<Option<Endpoint>>,
}

#[derive(Debug, Clone)]
enum State {
    /// Not connected, and not connecting.
    Idle,
    Connecting,
    Up(Arc<Link>),
    /// The last try to connect failed.
    Failed(BackendError),
}

impl Node {
    pub(crate) fn new(
        target: Target,
        usage: Use,
        access: Arc<Access>,
        io: Io,
        inbox: Arc<dyn Inbox>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            target,
            usage,
            last: Mutex::default(),
            made: Mutex::default(),
            named: Mutex::default(),
            access,
            io,
            inbox,
            me: me.clone(),
            state: watch::Sender::new(State::Idle),
        })
    }

    /// The connection; it connects if there is none.
    ///
    /// # Errors
    ///
    /// Why it could not be made. Nothing was sent.
    pub(crate) async fn link(&self) -> Result<Arc<Link>, BackendError> {
        if let Some(link) = self.current() {
            return Ok(link);
        }
        let mut news = self.state.subscribe();
        self.connect();
        loop {
            match &*news.borrow_and_update() {
                State::Up(link) => return Ok(link.clone()),
                State::Failed(error) => return Err(error.clone()),
                State::Idle | State::Connecting => {}
            }
            // The sender is `self`.
            let _ = news.changed().await;
        }
    }

    /// The connection, if there is one.
    pub(crate) fn current(&self) -> Option<Arc<Link>> {
        let link = match &*self.state.borrow() {
            State::Up(link) => link.clone(),
            _ => return None,
        };
        link.refresh();
        link.is_alive().then_some(link)
    }

    /// Starts to connect, unless that is under way.
    fn connect(&self) {
        let mut again = false;
        let start = self.state.send_if_modified(|state| match state {
            State::Connecting => false,
            State::Up(link) if link.is_alive() => false,
            _ => {
                if let State::Up(old) = state {
                    *lock(&self.last) = old.as_predecessor();
                }
                again = !matches!(state, State::Idle);
                *state = State::Connecting;
                true
            }
        });
        let Some(me) = self.me.upgrade().filter(|_| start) else { return };
        // The task keeps the node for as long as a connection may take to be made.
        self.io.spawn(async move {
            let replaces = lock(&me.last).clone();
            let state = match me.open(replaces.as_ref()).await {
                Ok(link) => {
                    let link = Arc::new(link);
                    let mut made = lock(&me.made);
                    made.retain(|link| link.strong_count() > 0);
                    made.push(Arc::downgrade(&link));
                    drop(made);
                    State::Up(link)
                }
                Err(error) => State::Failed(error),
            };
            let connected = matches!(state, State::Up(_));
            me.state.send_replace(state);
            if again && connected {
                me.check_again();
            }
        });
    }

    async fn open(&self, replaces: Option<&Predecessor>) -> Result<Link, BackendError> {
        let endpoint = match &self.target {
            Target::Fixed(endpoint) => endpoint.clone(),
            Target::Master(sentinels) => {
                let named = lock(&self.named).take();
                match named {
                    Some(named) => named,
                    None => sentinels.master().await?,
                }
            }
        };
        let (me, inbox, id) = (self.me.clone(), self.inbox.clone(), next_id());
        let on_push = Arc::new(move |push: PushInfo| match push.kind {
            PushKind::Disconnection => {
                if let Some(node) = me.upgrade() {
                    node.disconnected();
                }
            }
            PushKind::SUnsubscribe => {
                if let Some(node) = me.upgrade() {
                    node.channel_moved(&push);
                }
            }
            _ => inbox.deliver(&push, id),
        });
        let mut link =
            Link::open(endpoint, &self.access, self.io.clone(), on_push, replaces).await?;
        link.id = id;
        if !matches!((&self.target, &self.usage), (Target::Fixed(_), Use::All)) {
            link.may_be_superseded();
        }
        if let Target::Master(sentinels) = &self.target {
            sentinels.check(&link)?;
            // A replaced master reports that it is the master until it hears of the failover.
            let mut named = lock(&self.named);
            named.take_if(|named| named == link.endpoint());
            if let Some(named) = &*named {
                return Err(sentinels.overtaken(link.endpoint(), named));
            }
        }
        Ok(link)
    }

    /// Messages on the connection may have been lost: the claims that wait for them check again, and
    /// subscribe again.
    fn check_again(&self) {
        match &self.usage {
            Use::All => self.inbox.check_again(&|_| true),
            Use::Commands => {}
            Use::Messages(cluster) => {
                if let Some(cluster) = cluster.upgrade() {
                    cluster.check_slots_of(&self.target);
                }
            }
        }
    }

    /// Ends when the node is dropped.
    pub(crate) fn life(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut news = self.state.subscribe();
        async move { while news.changed().await.is_ok() {} }
    }

    /// Gives up the connection: it leads to a server that is not the master any more.
    pub(crate) fn leave(&self) {
        if let State::Up(link) = &*self.state.borrow() {
            link.give_up();
        }
        self.disconnected();
    }

    /// Another server is the master now: answers of the old one do not count any more.
    pub(crate) fn follow(&self, master: &Endpoint) {
        if self.current().is_some_and(|link| link.endpoint() == master) {
            return;
        }
        *lock(&self.named) = Some(master.clone());
        let made: Vec<_> = lock(&self.made).iter().filter_map(Weak::upgrade).collect();
        for link in made.iter().filter(|link| link.endpoint() != master) {
            link.mark_superseded();
        }
        self.disconnected();
    }

    /// Other servers have all that this one had.
    pub(crate) fn mark_superseded(&self) {
        let made: Vec<_> = lock(&self.made).iter().filter_map(Weak::upgrade).collect();
        made.iter().for_each(|link| link.mark_superseded());
    }

    /// The server has moved a channel away with its slot.
    fn channel_moved(&self, push: &PushInfo) {
        let Some(Value::BulkString(channel)) = push.data.first() else { return };
        let channel = String::from_utf8_lossy(channel);
        if let State::Up(link) = &*self.state.borrow() {
            link.forget(&channel);
        }
        let moved = slot_of(&channel);
        self.inbox.check_again(&|slot| slot == Some(moved));
    }

    /// The connection has ended. If claims wait for messages, it is made again, and they check again.
    pub(crate) fn disconnected(&self) {
        if matches!(self.usage, Use::Commands) || !self.inbox.is_awaited() {
            return;
        }
        let me = self.me.clone();
        let io = self.io.clone();
        self.io.spawn(async move {
            let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
            loop {
                let Some(node) = me.upgrade() else { return };
                if !node.inbox.is_awaited() {
                    return;
                }
                // When the connection is up, they check.
                if node.link().await.is_ok() {
                    return;
                }
                if let Use::Messages(cluster) = &node.usage {
                    let Some(cluster) = cluster.upgrade() else { return };
                    // Its slots may have another master by now; then this node is dropped, and the
                    // claims that wait for these slots check again.
                    let _ = cluster.refresh().await;
                }
                drop(node);
                io.sleep(backoff.pause()).await;
            }
        });
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("target", &self.target).finish_non_exhaustive()
    }
}
