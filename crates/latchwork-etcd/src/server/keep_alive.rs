//! The streams on which leases are kept alive.
//!
//! A member serves the requests of a stream one by one, and a follower asks the leader about each. So
//! the leases wait here, and several streams take them: another one is opened when a lease has waited
//! for a moment. Each stream has only so many requests under way that it stays busy meanwhile: a
//! caller that gives up before its turn costs the store nothing.
//!
//! An answer carries the lease and no number of its request. Per stream and lease the k-th answer
//! belongs to the k-th request, and after a break none belongs to any (a request whose asker has
//! gone away still takes its answer). It counts for no other asker, though it be for the same lease: a
//! ttl begins when its own request arrives. Tries and renewals have streams of their own, so that many
//! tries do not delay a renewal.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use latchwork_store::{Io, Moment};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Status, Streaming};

use crate::config::Endpoint;
use crate::proto::lease_client::LeaseClient;
use crate::proto::{LeaseKeepAliveRequest, LeaseKeepAliveResponse};
use crate::server::channel::{Channel, Connection};
use crate::server::errors::{Failure, Reaction, failure};
use crate::server::login::Proof;

/// How many streams each purpose has at most.
const STREAMS: usize = 32;
/// How many requests are under way on a stream at most.
const WINDOW: usize = 32;
/// How long a lease waits before another stream is opened.
const STREAM_PATIENCE: Duration = Duration::from_millis(25);
/// How long a stream without a request is kept: the server may not be pinged without any stream.
pub(crate) const REST: Duration = Duration::from_secs(15);

/// What a lease is kept alive for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Try,
    Renew,
}

type Answer = Result<Option<Duration>, Failure>;

struct Ask {
    lease: i64,
    since: Moment,
    answer: oneshot::Sender<Answer>,
}

/// The streams of one member.
pub(crate) struct KeepAlives([Arc<Desk>; 2]);

/// Where leases wait for a stream of one purpose.
struct Desk {
    channel: Channel,
    from: Endpoint,
    proof: Arc<Proof>,
    io: Io,
    waiting: Mutex<Waiting>,
    news: Notify,
}

#[derive(Default)]
struct Waiting {
    asks: VecDeque<Ask>,
    streams: usize,
    closed: bool,
}

impl KeepAlives {
    /// A stream is opened when it is first used.
    pub(crate) fn new(channel: &Channel, from: &Endpoint, proof: &Arc<Proof>, io: &Io) -> Self {
        let desk = || {
            Arc::new(Desk {
                channel: channel.clone(),
                from: from.clone(),
                proof: proof.clone(),
                io: io.clone(),
                waiting: Mutex::default(),
                news: Notify::new(),
            })
        };
        Self([desk(), desk()])
    }

    /// See [`Link::keep_alive`](crate::server::link::Link::keep_alive).
    pub(crate) async fn ask(&self, purpose: Purpose, lease: i64) -> Answer {
        let desk = &self.0[purpose as usize];
        let told = match desk.channel.present() {
            // Sent on this thread, and answered near it.
            Some(connection) => {
                let drive = connection.drive().clone();
                drop(connection);
                let told = drive.give(|| desk.put(lease));
                drive.answer(told).await
            }
            None => desk.put(lease).await,
        };
        told.unwrap_or_else(|_| Err(Failure::broken(&desk.from, "keep-alives")))
    }
}

impl Drop for KeepAlives {
    fn drop(&mut self) {
        for desk in &self.0 {
            let mut waiting = desk.lock();
            waiting.closed = true;
            waiting.asks.clear();
            drop(waiting);
            desk.news.notify_waiters();
        }
    }
}

impl Waiting {
    fn put(&mut self, ask: Ask) {
        // Those who gave up, mostly the oldest: where no stream takes any, nobody else takes them out.
        while self.asks.front().is_some_and(|ask| ask.answer.is_closed()) {
            self.asks.pop_front();
        }
        self.asks.push_back(ask);
    }

    /// The first one whose asker still waits.
    fn take(&mut self) -> Option<Ask> {
        std::iter::from_fn(|| self.asks.pop_front()).find(|ask| !ask.answer.is_closed())
    }
}

/// How the life of a stream ended.
enum Over {
    /// Nothing was to be asked for a while.
    Idle,
    /// Its token was refused, and there is a newer one.
    Outdated,
    Broken(Failure),
    /// Nobody can ask any more.
    Closed,
}

impl Desk {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(self: &Arc<Self>, lease: i64) -> oneshot::Receiver<Answer> {
        let (answer, told) = oneshot::channel();
        let mut waiting = self.lock();
        waiting.put(Ask { lease, since: self.io.now(), answer });
        if waiting.streams == 0 {
            self.open_another(&mut waiting);
        }
        drop(waiting);
        // The last one to have had nothing to do, so that the others come to rest.
        self.news.notify_last();
        told
    }

    fn open_another(self: &Arc<Self>, waiting: &mut Waiting) {
        waiting.streams += 1;
        self.io.spawn(self.clone().serve());
    }

    /// What is to be asked next, if there is something now.
    fn take(self: &Arc<Self>) -> Option<Ask> {
        let mut waiting = self.lock();
        let ask = waiting.take()?;
        if !waiting.asks.is_empty() {
            self.news.notify_last();
        }
        let waited = self.io.now().since(ask.since);
        if waited >= STREAM_PATIENCE && waiting.streams < self.most() {
            self.open_another(&mut waiting);
        }
        Some(ask)
    }

    /// How many streams there may be: with those of the other purpose, half of what the member allows. Requests and watches
    /// need the rest.
    fn most(&self) -> usize {
        let allowed = self.channel.present().map_or(usize::MAX, |connection| connection.streams());
        (allowed / 4).clamp(1, STREAMS)
    }

    /// What is to be asked next; `None` if nobody can ask any more.
    async fn next(self: &Arc<Self>) -> Option<Ask> {
        loop {
            let mut news = std::pin::pin!(self.news.notified());
            news.as_mut().enable();
            if self.lock().closed {
                return None;
            }
            if let Some(ask) = self.take() {
                return Some(ask);
            }
            news.await;
        }
    }

    /// One stream, opened again after each break as long as there is something to ask.
    async fn serve(self: Arc<Self>) {
        let mut again = VecDeque::new();
        loop {
            if again.is_empty() {
                match self.take_or_end() {
                    Some(first) => again.push_back(first),
                    None => return,
                }
            }
            let (out, requests) = mpsc::unbounded_channel();
            let mut pending = Pending { out, askers: VecDeque::new() };
            again.drain(..).for_each(|ask| pending.ask(ask));
            let connection = match self.channel.connection().await {
                Ok(connection) => connection,
                Err(status) => {
                    again = pending.fail(&self.failure(Some(&status)));
                    continue;
                }
            };
            let (desk, on) = (self.clone(), connection.clone());
            // It runs on the thread that moves the connection, so a caller changes no thread.
            let done = connection.run(async move {
                let over = desk.run(on, requests, &mut pending).await;
                (over, pending)
            });
            match done.await {
                Some((Over::Broken(failure), mut pending)) => again = pending.fail(&failure),
                Some((Over::Outdated, mut pending)) => again = pending.left(),
                Some((Over::Closed, _)) => return,
                // Without the connection, the callers have been notified.
                Some((Over::Idle, _)) | None => {}
            }
        }
    }

    /// As [`Self::take`]; without anything to ask there is a stream less.
    fn take_or_end(self: &Arc<Self>) -> Option<Ask> {
        let mut waiting = self.lock();
        let ask = waiting.take();
        waiting.streams -= usize::from(ask.is_none());
        ask
    }

    async fn run(
        self: &Arc<Self>,
        connection: Connection,
        requests: mpsc::UnboundedReceiver<LeaseKeepAliveRequest>,
        pending: &mut Pending,
    ) -> Over {
        let origin = connection.origin();
        let mut client = LeaseClient::with_origin(connection, origin);
        let token = self.proof.token();
        let requests = UnboundedReceiverStream::new(requests);
        let requests = self.proof.request_as(requests, token.clone());
        let broken = |status: Option<&Status>| {
            let failure = self.failure(status);
            if self.proof.is_outdated(&failure, token.as_ref()) {
                return Over::Outdated;
            }
            if self.proof.can_mend(&failure) {
                self.proof.refused(token.as_ref());
            }
            Over::Broken(failure)
        };
        let mut opening = std::pin::pin!(client.lease_keep_alive(requests));
        // The server opens its side with the first answer.
        let mut answers: Streaming<LeaseKeepAliveResponse> = loop {
            tokio::select! {
                opened = &mut opening => match opened {
                    Ok(opened) => break opened.into_inner(),
                    Err(status) => return broken(Some(&status)),
                },
                ask = self.next(), if pending.has_room() => match ask {
                    Some(ask) => pending.ask(ask),
                    None => return Over::Closed,
                },
            }
        };
        loop {
            let rests_until = match pending.askers.is_empty() {
                true => self.io.now().plus(REST),
                false => Moment::NEVER,
            };
            tokio::select! {
                answer = answers.message() => match answer {
                    Ok(Some(answer)) => pending.answer(&answer),
                    Ok(None) => return broken(None),
                    Err(status) => return broken(Some(&status)),
                },
                ask = self.next(), if pending.has_room() => match ask {
                    Some(ask) => pending.ask(ask),
                    None => return Over::Closed,
                },
                () = self.io.clock().sleep_until(rests_until), if rests_until != Moment::NEVER => {
                    return Over::Idle;
                }
            }
        }
    }

    fn failure(&self, status: Option<&Status>) -> Failure {
        match status {
            Some(status) => failure(status, &self.from),
            None => Failure::broken(&self.from, "keep-alives"),
        }
    }
}

/// The callers that wait for an answer, in the order of the requests.
struct Pending {
    out: mpsc::UnboundedSender<LeaseKeepAliveRequest>,
    askers: VecDeque<Ask>,
}

impl Pending {
    fn has_room(&self) -> bool {
        self.askers.len() < WINDOW
    }

    fn ask(&mut self, ask: Ask) {
        // It fails only if the stream is broken; then all callers get that error.
        let _ = self.out.send(LeaseKeepAliveRequest { id: ask.lease });
        self.askers.push_back(ask);
    }

    fn answer(&mut self, answer: &LeaseKeepAliveResponse) {
        // The first, for a member serves one after the other.
        let asker = self.askers.iter().position(|ask| ask.lease == answer.id);
        let Some(asker) = asker.and_then(|at| self.askers.remove(at)) else { return };
        let ttl = u64::try_from(answer.ttl).ok().filter(|ttl| *ttl > 0);
        // Nobody listens if the asker was dropped.
        let _ = asker.answer.send(Ok(ttl.map(Duration::from_secs)));
    }

    /// Reports the end of the stream to the callers. A member also ends it when it refuses one
    /// lease: that of the first request without an answer. The others are returned, to ask again.
    fn fail(&mut self, failure: &Failure) -> VecDeque<Ask> {
        let refused = if failure.reaction == Reaction::NoRight { 1 } else { self.askers.len() };
        for asker in self.askers.drain(..refused.min(self.askers.len())) {
            let _ = asker.answer.send(Err(failure.clone()));
        }
        self.left()
    }

    /// Those who still wait for an answer, to ask again.
    fn left(&mut self) -> VecDeque<Ask> {
        let mut left = std::mem::take(&mut self.askers);
        left.retain(|ask| !ask.answer.is_closed());
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pending() -> (Pending, mpsc::UnboundedReceiver<LeaseKeepAliveRequest>) {
        let (out, requests) = mpsc::unbounded_channel();
        (Pending { out, askers: VecDeque::new() }, requests)
    }

    fn ask(pending: &mut Pending, lease: i64) -> oneshot::Receiver<Answer> {
        let (answer, told) = oneshot::channel();
        pending.ask(Ask { lease, since: Moment::from_nanos(0), answer });
        told
    }

    #[test]
    fn the_kth_answer_belongs_to_the_kth_request_of_a_lease() {
        let (mut pending, _requests) = pending();
        let mut ask = |lease| ask(&mut pending, lease);
        let (gone, mut first, mut second) = (ask(1), ask(2), ask(1));
        drop(gone);
        let answer = |id, ttl| LeaseKeepAliveResponse { header: None, id, ttl };
        pending.answer(&answer(1, 5));
        assert!(second.try_recv().is_err(), "that was the answer of the one who left");
        pending.answer(&answer(1, 0));
        assert!(matches!(second.try_recv(), Ok(Ok(None))), "no such lease");
        assert!(first.try_recv().is_err());
        pending.answer(&answer(2, 7));
        assert!(matches!(first.try_recv(), Ok(Ok(Some(ttl))) if ttl == Duration::from_secs(7)));
        assert!(pending.askers.is_empty());
    }

    /// An answer that nobody waits for would cost the store as much as any other.
    #[test]
    fn h99_an_ask_that_was_given_up_is_not_sent() {
        let mut waiting = Waiting::default();
        let mut put = |lease| {
            let (answer, told) = oneshot::channel();
            waiting.put(Ask { lease, since: Moment::from_nanos(0), answer });
            told
        };
        let told = [1, 2, 3, 1].map(&mut put);
        let [first, second, third, again] = told;
        drop((first, third));
        let left: Vec<_> = std::iter::from_fn(|| waiting.take()).map(|ask| ask.lease).collect();
        assert_eq!(left, [2, 1]);
        drop((second, again));
        // Nor is it kept where no stream takes any.
        for lease in 0..1_000 {
            let (answer, _) = oneshot::channel();
            waiting.put(Ask { lease, since: Moment::from_nanos(0), answer });
        }
        assert_eq!(waiting.asks.len(), 1);
    }

    #[test]
    fn a_refused_keep_alive_fails_alone_a_broken_stream_fails_all() {
        let from = Endpoint { host: "h".into(), port: 1 };
        let refused = failure(&Status::permission_denied("etcdserver: permission denied"), &from);
        let (mut pending, _requests) = pending();
        let (mut first, mut second, third) =
            (ask(&mut pending, 1), ask(&mut pending, 2), ask(&mut pending, 3));
        drop(third);
        let others = pending.fail(&refused);
        assert!(matches!(first.try_recv(), Ok(Err(_))));
        assert_eq!(others.iter().map(|ask| ask.lease).collect::<Vec<_>>(), [2]);
        others.into_iter().for_each(|ask| pending.ask(ask));
        assert!(pending.fail(&Failure::broken(&from, "keep-alives")).is_empty());
        assert!(matches!(second.try_recv(), Ok(Err(_))));
    }
}
