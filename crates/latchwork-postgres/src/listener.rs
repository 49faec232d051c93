//! Wake-ups: the connection on which this process listens, and the claims that wait.
//!
//! There is one such connection for each process, and only while a claim waits. A notification is a hint that
//! may be lost with the connection: a waiter looks by itself as well. Behind a pooler nothing can be heard,
//! and every waiter looks at random intervals.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use latchwork_store::{
    BackendError, ClaimId, Grant, Io, Moment, Stamp, Wake, random_between, random_u128,
};
use tokio::sync::{Notify, watch};
use tokio_postgres::types::{ToSql, Type};

use crate::connect::{Access, For};
use crate::lane::Lane;
use crate::lock;
use crate::message::Message;
use crate::mover::Sink;

/// How long the connection is kept after the last waiter has gone.
const KEPT: Duration = Duration::from_secs(3);
/// In place of a channel: this process cannot listen now.
const DEAF: i32 = -1;
/// The pause before the next attempt to listen.
const PAUSE: Duration = Duration::from_secs(1);

/// The claims of this process that wait, and where they hear of it.
pub(crate) struct Listener {
    access: Arc<Access>,
    boxes: Mutex<HashMap<ClaimId, Arc<Mailbox>>>,
    /// The number of the channel on which this process is heard; 0 if it is not yet, or [`DEAF`].
    heard: watch::Sender<i32>,
    /// Changes when the connection may not be needed any more.
    left: Notify,
    running: Mutex<Option<Arc<Lane>>>,
    /// Whether there is a task that keeps the connection.
    running_task: Mutex<bool>,
    shut: watch::Sender<bool>,
}

/// Where the messages for one claim wait for it.
pub(crate) struct Mailbox {
    mail: Mutex<Mail>,
    news: Notify,
}

#[derive(Default)]
struct Mail {
    expected: Option<Expected>,
    admitted: Option<Wake>,
    look_at: Option<Moment>,
}

/// What the grant of a try must look like.
#[derive(Clone, Copy)]
pub(crate) struct Expected {
    pub(crate) word: u128,
    pub(crate) stamp: Stamp,
    pub(crate) longest: Duration,
    /// The channel that the try named; 0 for none.
    pub(crate) channel: i32,
}

impl Listener {
    pub(crate) fn new(access: Arc<Access>) -> Arc<Self> {
        Arc::new(Self {
            access,
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

    /// The channel on which this process can be told now; 0 if on none.
    pub(crate) fn channel(&self) -> i32 {
        (*self.heard.borrow()).max(0)
    }

    /// The name of a channel.
    pub(crate) fn name(&self, channel: i32) -> String {
        format!("latchwork_{:08x}_{channel:08x}", self.access.statements.class())
    }

    /// The mailbox of a claim that is about to ask for a place; the same one each time.
    pub(crate) fn open(&self, id: ClaimId) -> Arc<Mailbox> {
        let make = || Arc::new(Mailbox { mail: Mutex::default(), news: Notify::new() });
        lock(&self.boxes).entry(id).or_insert_with(make).clone()
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
            self.left.notify_one();
        }
        was_there
    }

    fn is_needed(&self) -> bool {
        !lock(&self.boxes).is_empty()
    }

    /// Takes a message of the store.
    pub(crate) fn deliver(&self, text: &str) {
        let Some(message) = Message::parse(text) else { return };
        let Some(mailbox) = self.find(message.id()) else { return };
        match message {
            Message::Granted { token, ttl, word, since_try, .. } => {
                let grant = Grant { token, ttl, store_time: None };
                mailbox.take(word, grant, since_try, self.io().now());
            }
            Message::Look { after, .. } => mailbox.look_at(self.io().now().plus(after)),
        }
    }

    /// Waits until this process is heard on another channel than the claim's last try has named, or until a
    /// message comes on that one. If it cannot listen, looks are all there is.
    pub(crate) async fn wait(self: &Arc<Self>, mailbox: &Mailbox, ahead: u32) -> Wake {
        let named = mailbox.channel();
        let mut heard = self.heard.subscribe();
        let lane = lock(&self.running).clone();
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
        match lane.filter(|_| named != 0) {
            // Messages are read near the caller.
            Some(lane) => lane.drive().clone().listen(waiting).await,
            None => waiting.await,
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
                Ok(lane) => {
                    self.while_needed(&lane).await;
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
    async fn listen(self: &Arc<Self>) -> Result<Arc<Lane>, BackendError> {
        let listener = Arc::downgrade(self);
        let sink: Sink = Arc::new(move |notification| {
            if let Some(listener) = listener.upgrade() {
                listener.deliver(notification.payload());
            }
        });
        let lane = self.access.open(For::Care, Some(sink)).await?.lane;
        let channel = (random_u128() as i32 & i32::MAX).max(1);
        let class = self.access.statements.class();
        lane.send(lane.client().batch_execute(&format!("LISTEN {}", self.name(channel)))).await?;
        // Whoever hands on asks by this lock whether the process still listens.
        let text = "SELECT pg_advisory_lock($1, $2)";
        let types: [(&(dyn ToSql + Sync), Type); 2] =
            [(&class, Type::INT4), (&channel, Type::INT4)];
        lane.send(lane.client().query_typed(text, &types)).await?;
        let lane = Arc::new(lane);
        *lock(&self.running) = Some(lane.clone());
        self.heard.send_replace(channel);
        Ok(lane)
    }

    /// Returns when the connection has ended, or when nobody has waited for a while.
    async fn while_needed(&self, lane: &Lane) {
        let _expected = lane.drive().expect();
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
            () = lane.gone() => {}
            () = unused => {}
        }
    }

    /// Nothing is heard any more: messages may have been lost.
    fn deafen(&self, channel: i32) {
        self.heard.send_replace(channel);
        *lock(&self.running) = None;
        let now = self.io().now();
        let boxes: Vec<_> = lock(&self.boxes).values().cloned().collect();
        for mailbox in boxes.iter().filter(|mailbox| mailbox.channel() != 0) {
            mailbox.look_at(now);
        }
    }
}

/// The pause between two looks of a waiter whom nobody can tell anything. Those further behind look less often.
pub(crate) fn pause(ahead: u32) -> Duration {
    random_between(Duration::from_millis(50), Duration::from_millis(250)) * (1 + ahead.min(7))
}

impl Mailbox {
    /// The channel that the claim's last try has named.
    fn channel(&self) -> i32 {
        lock(&self.mail).expected.map_or(0, |expected| expected.channel)
    }

    /// The claim tries again: what came before tells it nothing any more.
    pub(crate) fn tries(&self, expected: Expected) {
        *lock(&self.mail) = Mail { expected: Some(expected), ..Mail::default() };
    }

    /// Waits for a message that ends the wait.
    async fn wait(&self, io: &Io) -> Wake {
        loop {
            let news = self.news.notified();
            tokio::pin!(news);
            // Enlist before looking, or a message in between would go unnoticed.
            news.as_mut().enable();
            let at = {
                let mut mail = lock(&self.mail);
                if let Some(wake) = mail.admitted.take() {
                    return wake;
                }
                if mail.look_at.is_some_and(|at| at <= io.now()) {
                    mail.look_at = None;
                    return Wake::Look;
                }
                mail.look_at
            };
            match at {
                None => news.await,
                Some(at) => {
                    tokio::select! {
                        () = news => {}
                        () = io.clock().sleep_until(at) => {}
                    }
                }
            }
        }
    }

    fn take(&self, word: u128, grant: Grant, since_try: Duration, now: Moment) {
        let mut mail = lock(&self.mail);
        let genuine = mail.expected.take_if(|it| it.word == word && grant.ttl <= it.longest);
        let Some(Expected { stamp, .. }) = genuine else {
            drop(mail);
            // The store's answer to a try is what counts.
            return self.look_at(now);
        };
        mail.admitted = Some(Wake::Admitted { grant, stamp, since_try });
        drop(mail);
        self.news.notify_waiters();
    }

    fn look_at(&self, at: Moment) {
        let mut mail = lock(&self.mail);
        mail.look_at = Some(mail.look_at.map_or(at, |earlier| earlier.min(at)));
        drop(mail);
        self.news.notify_waiters();
    }
}
