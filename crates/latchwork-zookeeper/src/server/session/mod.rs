//! Sessions with ZooKeeper: the client, as far as locks need one.
//!
//! A session is one task that is connected to one of the servers at a time. Requests that are given
//! together are written together, on the thread of the caller, and answered in order. The caller reads
//! the answer as well (ADR 0037). The task itself connects and sends heart-beats. When the connection
//! breaks, the session goes on at another server; requests without answer are not sent again, their
//! askers are notified. Each session has a node of its own, the pulse: it is written at every
//! heart-beat, because only answers of a majority prove that the session lives ([`proof`]).

mod attach;
mod ensemble;
#[cfg(test)]
mod hostile_tests;
mod jute;
mod link;
pub(crate) mod messages;
mod mover;
mod outlet;
mod proof;
mod sasl;
mod task;
mod transport;
mod watches;

use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use latchwork_store::{BackendError, Io};
use latchwork_wire::Drive;
use tokio::sync::{mpsc, oneshot};

pub(crate) use self::attach::{probe, say_hello};
pub(crate) use self::ensemble::Ensemble;
use self::link::Link;
use self::messages::{Access, Refusal, Request, introduction};
use self::outlet::Outlet;
use self::proof::Proof;
pub(crate) use self::proof::Reading;
pub(crate) use self::transport::{ask_word, is_read_only};
use self::watches::Watches;
use crate::config::{Login, ZooKeeperConfig};
use crate::server::errors::{no_answer, strange};

/// What the server said to a request.
pub(crate) type Reply = Result<Vec<u8>, Refusal>;

/// Requests that go together.
struct Flight {
    requests: Vec<Request>,
    answer: Option<oneshot::Sender<Landed>>,
}

impl Flight {
    fn new(requests: Vec<Request>) -> (Self, oneshot::Receiver<Landed>) {
        let (answer, landed) = oneshot::channel();
        (Self { requests, answer: Some(answer) }, landed)
    }

    /// Whether the asker still waits for the answer.
    fn is_awaited(&self) -> bool {
        self.answer.as_ref().is_none_or(|answer| !answer.is_closed())
    }
}

/// The result of requests sent together.
#[derive(Debug)]
pub(crate) struct Landed {
    replies: std::vec::IntoIter<Reply>,
    /// Why there are no more replies.
    trouble: Option<BackendError>,
}

impl Landed {
    /// The reply to the next request.
    pub(crate) fn next(&mut self) -> Result<Reply, BackendError> {
        match self.replies.next() {
            Some(reply) => Ok(reply),
            None => Err(self.trouble.clone().unwrap_or_else(|| strange("a request"))),
        }
    }
}

/// An answer to what is asked later; an error if it never is.
pub(crate) type Coming = oneshot::Receiver<Landed>;

/// Requests on their way.
pub(crate) type Departed = Result<UnderWay, BackendError>;

/// Requests that were given to a connection, or wait for one.
#[derive(Debug)]
pub(crate) struct UnderWay {
    coming: Coming,
    /// Moves the connection that has them.
    drive: Option<Arc<Drive>>,
}

impl UnderWay {
    async fn landed(&mut self) -> Result<Landed, oneshot::error::RecvError> {
        match &self.drive {
            Some(drive) => drive.answer(&mut self.coming).await,
            None => (&mut self.coming).await,
        }
    }
}

/// A session that the servers know of.
#[derive(Debug, Clone)]
pub(crate) struct Up {
    pub(crate) id: i64,
    /// The path of its pulse.
    pub(crate) pulse: Arc<str>,
    /// How long the servers keep it without hearing of it.
    pub(crate) timeout: Duration,
}

/// What the session and its task share.
#[derive(Default)]
struct Shared {
    up: Mutex<Option<Up>>,
    over: OnceLock<BackendError>,
    proof: Mutex<Option<Proof>>,
    watches: Watches,
    /// The connection's way out, while there is one.
    outlet: Mutex<Option<Outlet>>,
    /// The last transaction that a server has told this session of.
    seen: AtomicI64,
}

impl Shared {
    /// Acts on the requests of the connection, if there is one.
    fn with_link(&self, act: impl FnOnce(&mut Link)) {
        if let Some(outlet) = &mut *locked(&self.outlet) {
            act(&mut outlet.link);
        }
    }

    /// Ends the connection, and returns the requests that wait for its answers.
    fn shut(&self) -> Option<Link> {
        let Outlet { link, drive, .. } = locked(&self.outlet).take()?;
        // What moves it sees that it is not needed any more.
        drive.move_now();
        Some(link)
    }

    /// The drive of the connection, while there is one.
    fn drive(&self) -> Option<Arc<Drive>> {
        locked(&self.outlet).as_ref().map(|outlet| outlet.drive.clone())
    }
}

/// A session. Dropping it closes it.
pub(crate) struct Session {
    flights: mpsc::UnboundedSender<Flight>,
    shared: Arc<Shared>,
    io: Io,
    ended: Mutex<Option<Ended>>,
    /// How many bytes the paths of its claims have.
    paths: AtomicUsize,
}

/// The path of a claim's node, as long as the session may have it. When a session ends, the servers write the paths of
/// all its nodes as one transaction.
#[derive(Debug)]
pub(crate) struct Room {
    session: Arc<Session>,
    bytes: usize,
}

impl Room {
    pub(crate) fn new(session: &Arc<Session>, bytes: usize) -> Arc<Self> {
        session.paths.fetch_add(bytes, Ordering::Relaxed);
        Arc::new(Self { session: session.clone(), bytes })
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.session.paths.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Comes to an end when a session has closed its connection.
pub(crate) type Ended = oneshot::Receiver<()>;

impl Session {
    /// Begins a session that the servers shall keep for so long without hearing of it; not before
    /// another one has closed its connection, if there is such a one.
    pub(crate) fn open(
        ensemble: &Arc<Ensemble>,
        timeout: Duration,
        io: &Io,
        after: Option<Ended>,
    ) -> Arc<Self> {
        let (flights, todo) = mpsc::unbounded_channel();
        let (runs, ended) = oneshot::channel();
        let shared = Arc::new(Shared::default());
        let task = task::run(ensemble.clone(), timeout, shared.clone(), todo, io.clone(), after);
        io.spawn(async move {
            task.await;
            drop(runs);
        });
        let ended = Mutex::new(Some(ended));
        Arc::new(Self { flights, shared, io: io.clone(), ended, paths: AtomicUsize::new(0) })
    }

    /// Whether the paths of its claims have at most so many bytes with these.
    pub(crate) fn has_room(&self, bytes: usize, most: usize) -> bool {
        self.paths.load(Ordering::Relaxed).saturating_add(bytes) <= most
    }

    /// Returns, once, what completes when its connection is closed.
    pub(crate) fn ended(&self) -> Option<Ended> {
        locked(&self.ended).take()
    }

    /// Sends requests that go together.
    ///
    /// # Cancel safety
    ///
    /// What was not sent yet is not sent any more, or all of it is.
    pub(crate) async fn fly(&self, requests: Vec<Request>) -> Landed {
        self.landed(&mut self.depart(requests)).await
    }

    /// Sends requests that go together, and does not wait for their answers. What was not sent yet
    /// is not sent any more when the value is dropped.
    pub(crate) fn depart(&self, requests: Vec<Request>) -> Departed {
        let (flight, coming) = Flight::new(requests);
        let drive = self.give(flight)?;
        Ok(UnderWay { coming, drive })
    }

    /// Writes it on this thread, or leaves it to the session's task. Tells what moves the connection
    /// that has it.
    fn give(&self, flight: Flight) -> Result<Option<Arc<Drive>>, BackendError> {
        let drive = {
            let mut outlet = locked(&self.shared.outlet);
            let Some(outlet) = outlet.as_mut().filter(|outlet| outlet.is_open()) else {
                return self.flights.send(flight).map(|()| None).map_err(|_| self.over());
            };
            outlet.link.take(flight, Reading::now(&self.io));
            outlet.drive.clone()
        };
        drive.move_now();
        Ok(Some(drive))
    }

    /// Says to the server of a connection that stands who we are as well. It heeds that before any request after it.
    pub(crate) fn introduce(&self, login: &Login) {
        let drive = match &mut *locked(&self.shared.outlet) {
            Some(outlet) => {
                outlet.link.out.extend(introduction(&login.user, &login.password));
                outlet.drive.clone()
            }
            // The next connection does.
            None => return,
        };
        drive.move_now();
    }

    /// The answers to requests that were sent; to be asked for until they are there, and not again.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and asked again.
    pub(crate) async fn landed(&self, departed: &mut Departed) -> Landed {
        let trouble = match departed {
            Ok(under_way) => match under_way.landed().await {
                Ok(landed) => return landed,
                Err(_) => no_answer("the connections to ZooKeeper were closed"),
            },
            Err(error) => error.clone(),
        };
        Landed { replies: Vec::new().into_iter(), trouble: Some(trouble) }
    }

    /// Sends requests whose answers nobody waits for.
    pub(crate) fn send(&self, requests: Vec<Request>) {
        // If the session has ended, so has all that it could do.
        let _ = self.give(Flight { requests, answer: None });
    }

    /// The session as the servers know it, once they do.
    pub(crate) async fn up(&self) -> Result<Up, BackendError> {
        if let Some(up) = self.known() {
            return Ok(up);
        }
        if let Some(trouble) = self.fly(Vec::new()).await.trouble {
            return Err(trouble);
        }
        self.known().ok_or_else(|| self.over())
    }

    fn known(&self) -> Option<Up> {
        locked(&self.shared.up).clone()
    }

    /// Whether the servers have said that it has ended, or that they do not want us.
    pub(crate) fn is_over(&self) -> bool {
        self.shared.over.get().is_some() || self.flights.is_closed()
    }

    fn over(&self) -> BackendError {
        let over = self.shared.over.get().cloned();
        over.unwrap_or_else(|| no_answer("the connections to ZooKeeper were closed"))
    }

    /// For how long from `sent` on the session certainly lives, now that a write that was sent no
    /// earlier has been answered.
    pub(crate) fn lives_for(&self, sent: Reading) -> Duration {
        locked(&self.shared.proof).as_ref().map_or(Duration::ZERO, |p| p.lives_for(sent))
    }

    /// Since when, and for how long from then on, the session certainly lives by what was answered
    /// so far.
    pub(crate) fn proven(&self) -> Option<(Reading, Duration)> {
        locked(&self.shared.proof).as_ref().map(Proof::proven)
    }

    /// Asks something as soon as there is news of a node. What comes is an error if the connection
    /// ended first, and with it the watch. Tells also whether the server watches the node already.
    pub(crate) fn at_news(&self, path: &str, requests: Vec<Request>) -> (Coming, bool) {
        let (flight, landed) = Flight::new(requests);
        let stands = self.shared.watches.at_news(path, flight, self.io.now());
        (landed, stands)
    }

    /// Waits for news near the caller.
    pub(crate) async fn listen<F: Future>(&self, waiting: F) -> F::Output {
        match self.shared.drive() {
            Some(drive) => drive.listen(waiting).await,
            None => waiting.await,
        }
    }

    /// Whether the server watches a node.
    pub(crate) fn watches(&self, path: &str) -> bool {
        self.shared.watches.is_standing(path)
    }

    /// Whether two are the same session.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("up", &self.known()).finish_non_exhaustive()
    }
}

/// Who may do what with the nodes that are made.
pub(crate) fn access(config: &ZooKeeperConfig) -> Access {
    if config.login.current().0.now.is_some() { Access::Creator } else { Access::Everybody }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
