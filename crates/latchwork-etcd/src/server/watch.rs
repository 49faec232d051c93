//! One stream for all watches of a member.

use std::num::NonZeroI64;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use futures_channel::mpsc::{UnboundedReceiver, UnboundedSender as Teller, unbounded};
use futures_util::StreamExt;
use latchwork_store::{ClaimId, Doubts, Io, Moment};
use tokio::sync::{Mutex, mpsc};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Streaming;

use crate::config::Endpoint;
use crate::proto::watch_client::WatchClient;
use crate::proto::{WatchRequest, WatchResponse};
use crate::server::channel::{Channel, Connection};
use crate::server::errors::{Failure, needs_login};
use crate::server::identity::{Found, Identity};
use crate::server::keep_alive::REST;
use crate::server::login::{Proof, Token};
use crate::server::watchers::{Hint, Hints, Holder, Notice, Watchers, Word};

enum Order {
    Open { id: i64, key: Vec<u8>, end: Vec<u8>, notices: Teller<Notice> },
    Observe { id: i64, key: Vec<u8>, end: Vec<u8>, hints: Hints },
    Hold { key: Vec<u8>, holder: Holder, was_seen: bool },
    Close(i64),
}

/// Takes the reports on the watches of holders, except the end of their keys: the number of the
/// member, and the word.
#[derive(Debug, Clone)]
pub(crate) struct WatchReports {
    /// To the holder watch, with the member that it comes from.
    pub(crate) to_holder_watch: mpsc::UnboundedSender<(usize, Word)>,
    /// The end of a key goes to the engine at once: the holder watch may be busy with a dead member.
    pub(crate) doubts: Doubts,
}

impl WatchReports {
    /// Where no claim is held.
    pub(crate) fn to_nobody() -> Self {
        Self { to_holder_watch: mpsc::unbounded_channel().0, doubts: Doubts::default() }
    }
}

/// The watches of one member.
pub(crate) struct Watches {
    orders: mpsc::UnboundedSender<Order>,
    channel: Channel,
}

/// Listens to a watch until it is dropped.
#[derive(Debug)]
pub(crate) struct Listener {
    id: i64,
    orders: mpsc::WeakUnboundedSender<Order>,
}

/// Somebody who waits for what a watch tells.
pub(crate) struct Watch {
    // Each waiter has some: tokio's has room for 32 notices from the start.
    notices: UnboundedReceiver<Notice>,
    _listener: Listener,
}

/// An observer of a queue.
#[derive(Debug)]
pub(crate) struct Observation {
    hints: mpsc::Receiver<Hint>,
    _listener: Listener,
}

impl Observation {
    /// Waits for the next hint, the first of which says that the watch is open; `None` if the member
    /// has ended it.
    pub(crate) async fn hint(&mut self) -> Option<Hint> {
        self.hints.recv().await
    }
}

impl Watches {
    /// Starts the task of this member; the stream is opened when it is first used.
    pub(crate) fn start(
        channel: &Channel,
        proof: &Arc<Proof>,
        io: &Io,
        (member, words, identity): (usize, &WatchReports, &Arc<Identity>),
    ) -> Self {
        let (orders, todo) = mpsc::unbounded_channel();
        let (channel, proof, words) = (channel.clone(), proof.clone(), words.clone());
        let identity = identity.clone();
        let stream =
            Stream { channel: channel.clone(), proof, io: io.clone(), member, words, identity };
        io.spawn(Arc::new(stream).serve(todo));
        Self { orders, channel }
    }

    /// Watches for keys that go away, from the member's present revision on: what begins in the
    /// past is served late. An empty `end` means this key alone.
    pub(crate) fn open(&self, key: Vec<u8>, end: Vec<u8>) -> Watch {
        let listener = self.listener();
        let (sender, notices) = unbounded();
        self.order(Order::Open { id: listener.id, key, end, notices: sender });
        Watch { notices, _listener: listener }
    }

    /// Watches a queue for an observer: for keys that are put and keys that go away.
    pub(crate) fn observe(&self, key: Vec<u8>, end: Vec<u8>) -> Observation {
        let listener = self.listener();
        let (sender, hints) = mpsc::channel(1);
        self.order(Order::Observe { id: listener.id, key, end, hints: sender });
        Observation { hints, _listener: listener }
    }

    /// Watches the key of a claim that was created at this revision and holds the lock. When it ends
    /// the engine is asked to renew the claim; see [`Word`] for the rest. A key that was seen since somebody
    /// else has watched it here need not be looked at for this.
    pub(crate) fn hold(
        &self,
        key: Vec<u8>,
        claim: ClaimId,
        revision: NonZeroI64,
        was_seen: bool,
    ) -> Listener {
        let listener = self.listener();
        if let Some(number) = NonZeroI64::new(listener.id) {
            let holder = Holder { listener: number, claim, revision };
            self.order(Order::Hold { key, holder, was_seen });
        }
        listener
    }

    /// Gives an order to the task, on the thread of the caller if there is a connection.
    fn order(&self, order: Order) {
        // If the task is gone, so is what the order has of its own, and that ends a watch.
        let give = || drop(self.orders.send(order));
        match self.channel.present() {
            Some(connection) => connection.drive().give(give),
            None => give(),
        }
    }

    fn listener(&self) -> Listener {
        // Another one at each member, too. 0 asks the server to choose.
        static NEXT: AtomicI64 = AtomicI64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Listener { id, orders: self.orders.downgrade() }
    }
}

impl Watch {
    pub(crate) async fn notice(&mut self, from: &Endpoint) -> Result<Notice, Failure> {
        self.notices.next().await.ok_or_else(|| Failure::broken(from, "watches").of_a_read())
    }
}

impl Listener {
    pub(crate) fn id(&self) -> i64 {
        self.id
    }
}

#[cfg(test)]
impl Listener {
    pub(crate) fn of_nothing() -> Self {
        Self { id: 1, orders: mpsc::unbounded_channel().0.downgrade() }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(orders) = self.orders.upgrade() {
            let _ = orders.send(Order::Close(self.id));
        }
    }
}

struct Stream {
    channel: Channel,
    proof: Arc<Proof>,
    io: Io,
    member: usize,
    words: WatchReports,
    identity: Arc<Identity>,
}

impl Stream {
    async fn serve(self: Arc<Self>, orders: mpsc::UnboundedReceiver<Order>) {
        let orders = Arc::new(Mutex::new(orders));
        loop {
            let Some(first) = orders.lock().await.recv().await else { return };
            if matches!(first, Order::Close(_)) {
                continue; // it ended with its stream
            }
            // Its end notifies the listeners and holders that are still in here.
            let (out, requests) = mpsc::unbounded_channel();
            let mut watchers = Telling(Watchers::new(out, self.to_holders()));
            self.carry_out(first, &mut watchers.0);
            let Ok(connection) = self.channel.connection().await else { continue };
            let (stream, on, orders) = (self.clone(), connection.clone(), orders.clone());
            // It runs on the thread that moves the connection, so news changes no thread.
            let done = connection.run(async move {
                let mut orders = orders.lock().await;
                let _messages = on.drive().expect();
                stream.run(on, requests, &mut watchers.0, &mut orders).await
            });
            if done.await == Some(None) {
                return;
            }
        }
    }

    fn to_holders(&self) -> impl Fn(Word) + Send + 'static {
        let (words, member) = (self.words.clone(), self.member);
        move |word| match word {
            Word::Gone(claim) => words.doubts.raise(claim),
            // Nobody takes it when the client ends.
            word => drop(words.to_holder_watch.send((member, word))),
        }
    }

    /// Runs until the stream breaks; `None` if nobody can ask any more.
    async fn run(
        &self,
        connection: Connection,
        requests: mpsc::UnboundedReceiver<WatchRequest>,
        watchers: &mut Watchers,
        orders: &mut mpsc::UnboundedReceiver<Order>,
    ) -> Option<()> {
        let origin = connection.origin();
        let mut client =
            WatchClient::with_origin(connection, origin).max_decoding_message_size(256 << 20);
        let token = self.proof.token();
        let requests = UnboundedReceiverStream::new(requests);
        let requests = self.proof.request_as(requests, token.clone());
        let mut opening = std::pin::pin!(client.watch(requests));
        let mut answers: Streaming<WatchResponse> = loop {
            tokio::select! {
                opened = &mut opening => match opened {
                    Ok(opened) => break opened.into_inner(),
                    Err(_) => return Some(()),
                },
                order = orders.recv() => self.carry_out(order?, watchers),
            }
        };
        let mut rests_until = Moment::NEVER;
        loop {
            rests_until = match watchers.is_empty() {
                true => rests_until.min(self.io.now().plus(REST)),
                false => Moment::NEVER,
            };
            tokio::select! {
                () = self.io.clock().sleep_until(rests_until), if rests_until != Moment::NEVER => {
                    return Some(());
                }
                answer = answers.message() => match answer {
                    Ok(Some(answer)) => {
                        if answer.canceled {
                            let (why, now) = (&answer.cancel_reason, self.proof.token());
                            if is_of_another_login(why, token.as_ref(), now.as_ref()) {
                                self.proof.refused(token.as_ref());
                                return Some(());
                            }
                        }

                        if self.identity.check(self.member, answer.header.as_ref()).is_err() {
                            return Some(());
                        }
                        if watchers.is_of_a_front(&answer) {
                            self.identity.set(self.member, Found::Front);
                            return Some(());
                        }
                        watchers.tell(answer);
                    }
                    Ok(None) | Err(_) => return Some(()),
                },
                order = orders.recv() => self.carry_out(order?, watchers),
                () = self.io.clock().sleep_until(watchers.next_sweep()) => {
                    watchers.sweep(self.io.now());
                }
            }
        }
    }

    fn carry_out(&self, order: Order, watchers: &mut Watchers) {
        match order {
            Order::Open { id, key, end, notices } => watchers.open(id, (key, end), notices),
            Order::Observe { id, key, end, hints } => watchers.observe(id, (key, end), hints),
            Order::Hold { key, holder, was_seen } => watchers.hold(key, holder, was_seen),
            Order::Close(id) => watchers.close(id, self.io.now()),
        }
    }
}

/// Whether a watch was refused because its stream was opened with a token that counts no more, or
/// without one. Some versions say only that it is not permitted.
fn is_of_another_login(why: &str, token: Option<&Token>, now: Option<&Token>) -> bool {
    needs_login(why)
        || why.contains("authentication is not enabled")
        || why.contains("permission denied") && now != token
}

/// When it is dropped, with the connection or before, it tells the holders that nobody watches them.
struct Telling(Watchers);

impl Drop for Telling {
    fn drop(&mut self) {
        self.0.broken();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_ends_with_its_login_alone() {
        let (old, new) = (Token::from_static("old"), Token::from_static("new"));
        let old = Some(&old);
        for why in ["invalid auth token", "user name is empty", "revision of auth store is old"] {
            let why = format!("rpc error: code = Unauthenticated desc = etcdserver: {why}");
            assert!(is_of_another_login(&why, old, old));
        }
        // From 3.4.25 on, 3.4 says this of a token that has ended; so did 3.5 before 3.5.5.
        let denied = "rpc error: code = PermissionDenied desc = etcdserver: permission denied";
        for (token, now) in [(old, Some(&new)), (old, None), (None, old)] {
            assert!(is_of_another_login(denied, token, now));
        }
        assert!(!is_of_another_login(denied, old, old), "this user may not read this key");
        assert!(!is_of_another_login("etcdserver: mvcc: required revision", None, old));
    }
}
