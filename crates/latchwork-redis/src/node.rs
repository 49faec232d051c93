//! One server, or whichever server is the master now, and the connection to it.
//!
//! A command that was sent is never sent again here. A broken connection is made anew when the
//! next command needs it, or at once while somebody waits for messages on it.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use latchwork_core::{Backoff, BackendError, Io};
use redis::{PushInfo, PushKind};
use tokio::sync::watch;

use crate::config::Endpoint;
use crate::link::{Access, Former, Link};
use crate::push::Pushes;
use crate::sentinel::Sentinels;

/// Which server to connect to.
#[derive(Debug)]
pub(crate) enum Target {
    /// Always this one.
    Fixed(Endpoint),
    /// The one that the Sentinels name.
    Master(Arc<Sentinels>),
}

/// A server with its connection.
pub(crate) struct Node {
    target: Target,
    access: Arc<Access>,
    io: Io,
    pushes: Arc<Pushes>,
    me: Weak<Node>,
    state: watch::Sender<State>,
    /// The last connection, until one that follows it has ended it at the server.
    former: Mutex<Option<Former>>,
}

#[derive(Debug, Clone)]
enum State {
    /// Not connected, and nobody tries.
    Idle,
    Connecting,
    Up(Arc<Link>),
    /// The last try to connect failed.
    Failed(BackendError),
}

impl Node {
    pub(crate) fn new(target: Target, access: Arc<Access>, io: Io, pushes: Arc<Pushes>) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            target,
            access,
            io,
            pushes,
            me: me.clone(),
            state: watch::Sender::new(State::Idle),
            former: Mutex::default(),
        })
    }

    /// The connection; made now if there is none.
    ///
    /// # Errors
    ///
    /// Why it could not be made. Nothing was sent.
    pub(crate) async fn link(&self) -> Result<Arc<Link>, BackendError> {
        if let State::Up(link) = &*self.state.borrow() {
            if link.is_alive() {
                return Ok(link.clone());
            }
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
        match &*self.state.borrow() {
            State::Up(link) if link.is_alive() => Some(link.clone()),
            _ => None,
        }
    }

    /// Starts to connect, unless somebody does.
    fn connect(&self) {
        let start = self.state.send_if_modified(|state| match state {
            State::Connecting => false,
            State::Up(link) if link.is_alive() => false,
            _ => {
                if let State::Up(old) = state {
                    *self.former() = old.former();
                }
                *state = State::Connecting;
                true
            }
        });
        let Some(me) = self.me.upgrade().filter(|_| start) else { return };
        // The task keeps the node for as long as a connection may take to be made.
        self.io.spawn(async move {
            let former = me.former().clone();
            let state = match me.open(former.as_ref()).await {
                Ok(link) => {
                    *me.former() = None;
                    State::Up(Arc::new(link))
                }
                Err(error) => State::Failed(error),
            };
            me.state.send_replace(state);
        });
    }

    fn former(&self) -> MutexGuard<'_, Option<Former>> {
        self.former.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn open(&self, former: Option<&Former>) -> Result<Link, BackendError> {
        let endpoint = match &self.target {
            Target::Fixed(endpoint) => endpoint.clone(),
            Target::Master(sentinels) => sentinels.master().await?,
        };
        let (me, pushes) = (self.me.clone(), self.pushes.clone());
        let on_push = Arc::new(move |push: PushInfo| {
            if push.kind != PushKind::Disconnection {
                return pushes.deliver(&push);
            }
            if let Some(node) = me.upgrade() {
                node.disconnected();
            }
        });
        let link =
            Link::open(endpoint, &self.access, self.io.clone(), on_push, former).await?;
        if let Target::Master(sentinels) = &self.target {
            sentinels.check(&link)?;
        }
        Ok(link)
    }

    /// Tells when the node is dropped.
    pub(crate) fn life(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut news = self.state.subscribe();
        async move { while news.changed().await.is_ok() {} }
    }

    /// Drops the connection: it leads to a server that is not the master any more.
    pub(crate) fn leave(&self) {
        if let State::Up(link) = &*self.state.borrow() {
            link.give_up();
        }
        self.disconnected();
    }

    /// The connection is gone. If somebody waits for messages, it is made again, and they look.
    pub(crate) fn disconnected(&self) {
        if !self.pushes.is_awaited() {
            return;
        }
        let me = self.me.clone();
        let io = self.io.clone();
        self.io.spawn(async move {
            let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
            loop {
                let Some(node) = me.upgrade() else { return };
                if !node.pushes.is_awaited() {
                    return;
                }
                if node.link().await.is_ok() {
                    // Messages may have been lost meanwhile. Who looks, subscribes again.
                    node.pushes.look_all();
                    return;
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
