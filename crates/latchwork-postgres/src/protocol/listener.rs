//! Wake-ups: the connection on which this process listens, and the claims that wait.
//!
//! There is one such connection for each process, and only while a claim waits or somebody observes a key. A
//! notification is a hint that may be lost with the connection: a waiter checks by itself as well. A connection that is
//! dropped in silence is noticed: the server is asked for a sign of life. Behind a pooler nothing can be heard, and every
//! waiter checks at random intervals.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use latchwork_store::{BackendError, ClaimId, Grant, Io, Wake, random_between, random_u128};
use latchwork_wire::mailbox;
use tokio::sync::{Notify, watch};
use tokio_postgres::types::{ToSql, Type};

use crate::lock;
use crate::protocol::message::Message;
use crate::protocol::observe::Observers;
use crate::protocol::statements::{self, seen};
use crate::server::connect::{Access, For, SESSION};
use crate::server::connection::Connection;
use crate::server::errors::lost;
use crate::server::mover::Sink;
use crate::server::pool::Pool;

/// How long the connection is kept after the last waiter has gone.
const KEPT: Duration = Duration::from_secs(3);
/// In place of a channel: this process cannot listen now.
const DEAF: i32 = -1;
/// The pause before the next attempt to listen.
const PAUSE: Duration = Duration::from_secs(1);
/// How often the server is asked for a sign of life, and how long that may take. A connection that was dropped in
/// silence is noticed within both.
const ASK_EVERY: Duration = Duration::from_secs(3);
const ASK_LIMIT: Duration = Duration::from_secs(2);

/// What the grant of a try is known by: its word, and the channel that it has named (0 for none).
pub(crate) type Sign = (u128, i32);
pub(crate) type ExpectedGrant = mailbox::ExpectedGrant<Sign>;
pub(crate) type Mailbox = mailbox::Mailbox<Sign>;

/// The claims of this process that wait, and where they hear of it.
pub(crate) struct Listener {
    access: Arc<Access>,
    pool: Weak<Pool>,
    pub(crate) observers: Observers,
    boxes: Mutex<HashMap<ClaimId, Arc<Mailbox>>>,
    /// The number of the channel on which this process is heard; 0 if it is not yet, or [`DEAF`].
    heard: watch::Sender<i32>,
    /// Changes when the connection may not be needed any more.
    left: Notify,
    running: Mutex<Option<Arc<Connection>>>,
    /// Whether there is a task that keeps the connection.
    running_task: Mutex<bool>,
    shut: watch::Sender<bool>,
}

impl Listener {
    pub(crate) fn new(access: Arc<Access>, pool: &Arc<Pool>) -> Arc<Self> {
        Arc::new(Self {
            access,
            pool: Arc::downgrade(pool),
            observers: Observers::default(),
            boxes: Mutex::default(),
            heard: watch::Sender::new(0),
            left: Notify::new(),
            running: Mutex::default(),
            running_task: Mutex::default(),
            shut: watch::Sender::new(false),
        })
    }

    fn io(&self) -> &Io {
        &self.access.io
    }

    /// The channel on which this process can be notified now; 0 if there is none.
    pub(crate) fn channel(&self) -> i32 {
        (*self.heard.borrow()).max(0)
    }

    /// The name of a channel.
    pub(crate) fn name(&self, channel: i32) -> String {
        format!("{}{channel:08x}", statements::channel(self.access.config.class()))
    }

    /// The mailbox of a claim that is about to ask for a place; the same one each time.
    pub(crate) fn open(&self, id: ClaimId) -> Arc<Mailbox> {
        lock(&self.boxes).entry(id).or_default().clone()
    }

    pub(crate) fn find(&self, id: ClaimId) -> Option<Arc<Mailbox>> {
        lock(&self.boxes).get(&id).cloned()
    }

    /// Closes the mailbox of a claim that waits no more; tells whether there was one: it was waiting, or
    /// its grant has come by a message.
    pub(crate) fn close(&self, id: ClaimId) -> bool {
        let mut boxes = lock(&self.boxes);
        let was_there = boxes.remove(&id).is_some();
        if was_there && boxes.is_empty() {
            drop(boxes);
            self.is_left();
        }
        was_there
    }

    /// The connection may not be needed any more.
    pub(crate) fn is_left(&self) {
        self.left.notify_one();
    }

    fn is_needed(&self) -> bool {
        !lock(&self.boxes).is_empty() || self.observers.are_there()
    }

    /// Takes a message that has come on this channel.
    pub(crate) fn deliver(&self, text: &str, channel: i32) {
        let Some(message) = Message::parse(text) else { return };
        let Some(mailbox) = self.find(message.id()) else { return };
        match message {
            Message::Granted { token, ttl, word, since_try, .. } => {
                let grant = Grant::new(token, ttl);
                mailbox.take((word, channel), grant, since_try, self.io().now());
            }
            Message::Look { after, .. } => mailbox.look_at(self.io().now().plus(after)),
        }
    }

    /// Waits until this process is heard on another channel than the claim's last try has named, or until a
    /// message comes on that one. If it cannot listen, looks are all there is.
    pub(crate) async fn wait(self: &Arc<Self>, mailbox: &Mailbox, ahead: u32) -> Wake {
        let named = channel_of(mailbox);
        let mut heard = self.heard.subscribe();
        let connection = lock(&self.running).clone();
        let changed = async {
            let changed = heard.wait_for(|channel| *channel != 0 && *channel != named).await;
            let is_deaf = changed.is_ok_and(|channel| *channel == DEAF);
            if is_deaf {
                self.io().sleep(pause(ahead)).await;
            }
        };
        let waiting = async {
            tokio::select! {
                wake = mailbox.wait(self.io()) => wake,
                () = changed => Wake::Look,
            }
        };
        self.start();
        match connection.filter(|_| named != 0) {
            // Messages are read near the caller.
            Some(connection) => connection.drive().clone().listen(waiting).await,
            None => waiting.await,
        }
    }

    /// The connection, as soon as it is there.
    ///
    /// # Errors
    ///
    /// Why there is none.
    pub(crate) async fn connection(self: &Arc<Self>) -> Result<Arc<Connection>, BackendError> {
        let mut heard = self.heard.subscribe();
        loop {
            self.start();
            let known = *heard.borrow_and_update();
            let running = lock(&self.running).clone();
            match running {
                Some(connection) if known > 0 => return Ok(connection),
                _ if known == DEAF => {
                    return Err(lost("the server takes no connection to listen on"));
                }
                _ => {}
            }
            if heard.changed().await.is_err() {
                return Err(lost("closed"));
            }
        }
    }

    /// Makes the connection unless it is there.
    pub(crate) fn start(self: &Arc<Self>) {
        if std::mem::replace(&mut *lock(&self.running_task), true) {
            return;
        }
        let (this, mut shut) = (self.clone(), self.shut.subscribe());
        self.io().spawn(async move {
            tokio::select! {
                () = this.run() => {}
                _ = shut.wait_for(|is_shut| *is_shut) => this.deafen(0),
            }
        });
    }

    /// Ends the connection for good.
    pub(crate) fn shut(&self) {
        self.shut.send_replace(true);
    }

    /// Says when that was done.
    pub(crate) fn is_shut(&self) -> watch::Receiver<bool> {
        self.shut.subscribe()
    }

    async fn run(self: &Arc<Self>) {
        loop {
            match self.listen().await {
                Ok(connection) => {
                    self.while_needed(&connection).await;
                    self.deafen(0);
                }
                Err(_) => {
                    self.deafen(DEAF);
                    self.io().sleep(PAUSE).await;
                }
            }
            let mut running = lock(&self.running_task);
            if !self.is_needed() {
                *running = false;
                return;
            }
        }
    }

    /// Connects and listens.
    async fn listen(self: &Arc<Self>) -> Result<Arc<Connection>, BackendError> {
        let (listener, class) = (Arc::downgrade(self), self.access.config.class());
        let channel = (random_u128() as i32 & i32::MAX).max(1);
        let (own, seen) = (self.name(channel), seen(class));
        let listen = format!("{SESSION}; LISTEN {own}");
        let sink: Sink = Arc::new(move |notification| {
            let Some(listener) = listener.upgrade() else { return };
            if notification.channel() == own {
                listener.deliver(notification.payload(), channel);
            } else if notification.channel() == seen {
                listener.observers.notify(notification.payload());
            }
        });
        let connection = self.access.open(For::Messages, Some(sink)).await?.connection;
        connection.send(connection.client().batch_execute(&listen)).await?;
        // A client that hands a key on checks by this lock whether the process still listens.
        let text = "SELECT pg_advisory_lock($1, $2)";
        let types: [(&(dyn ToSql + Sync), Type); 2] =
            [(&class, Type::INT4), (&channel, Type::INT4)];
        connection.send(connection.client().query_typed(text, &types)).await?;
        let connection = Arc::new(connection);
        *lock(&self.running) = Some(connection.clone());
        self.heard.send_replace(channel);
        Ok(connection)
    }

    /// Returns when the connection has ended, or when nobody has waited for a while.
    async fn while_needed(&self, connection: &Connection) {
        let _expected = connection.drive().expect();
        let unused = async {
            loop {
                while self.is_needed() {
                    self.left.notified().await;
                }
                self.io().sleep(KEPT).await;
                if !self.is_needed() {
                    return;
                }
            }
        };
        tokio::select! {
            () = connection.gone() => {}
            () = unused => {}
            () = self.silent(connection) => {
                // The others go the same way, and may have been dropped as well.
                if let Some(pool) = self.pool.upgrade() {
                    pool.doubt_all();
                }
                connection.end();
            }
        }
    }

    /// Returns when the server gives no sign of life, or was replaced.
    async fn silent(&self, connection: &Connection) {
        loop {
            self.io().sleep(ASK_EVERY).await;
            let asked = connection.send(connection.client().simple_query(""));
            if !matches!(self.io().within(ASK_LIMIT, asked).await, Some(Ok(_))) {
                return;
            }
            // One that was replaced by another server has nothing to say.
            let seen = &self.access.seen;
            if connection.lineage.as_ref().is_some_and(|server| seen.replaces(server).is_some()) {
                return;
            }
        }
    }

    /// Nothing is heard any more: messages may have been lost.
    fn deafen(&self, channel: i32) {
        self.heard.send_replace(channel);
        *lock(&self.running) = None;
        self.observers.end();
        let now = self.io().now();
        let boxes: Vec<_> = lock(&self.boxes).values().cloned().collect();
        for mailbox in boxes.iter().filter(|mailbox| channel_of(mailbox) != 0) {
            mailbox.distrust(now);
        }
    }
}

/// The pause between two looks of a waiter whom nobody can tell anything. Those further behind look less often.
pub(crate) fn pause(ahead: u32) -> Duration {
    random_between(Duration::from_millis(50), Duration::from_millis(250)) * (1 + ahead.min(7))
}

/// The channel that the claim's last try has named.
fn channel_of(mailbox: &Mailbox) -> i32 {
    mailbox.expected().map_or(0, |expected| expected.sign.1)
}
