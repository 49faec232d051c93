//! The streams on which leases are kept alive.
//!
//! An answer carries the lease and no number of its request. Per stream and lease the k-th answer
//! belongs to the k-th request, and after a break none belongs to any (a request whose asker has
//! gone away still takes its answer). Tries and renewals have streams of their own, so that many
//! tries do not delay a renewal.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use latchwork_core::Io;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use crate::config::Endpoint;
use crate::errors::{Failure, Reaction, failure};
use crate::proof::Proof;
use crate::proto::lease_client::LeaseClient;
use crate::proto::{LeaseKeepAliveRequest, LeaseKeepAliveResponse};

/// How many streams each purpose has. A member serves the requests of a stream one by one.
const STREAMS: usize = 2;

/// What a lease is kept alive for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    Try,
    Renew,
}

type Answer = Result<Option<Duration>, Failure>;

struct Ask {
    lease: i64,
    answer: oneshot::Sender<Answer>,
}

/// The streams of one member.
pub(crate) struct KeepAlives {
    streams: [[mpsc::UnboundedSender<Ask>; STREAMS]; 2],
}

impl KeepAlives {
    /// Starts the tasks; a stream is opened when it is first used.
    pub(crate) fn start(channel: &Channel, from: &Endpoint, proof: &Arc<Proof>, io: &Io) -> Self {
        let start = || {
            let (sender, asks) = mpsc::unbounded_channel();
            let stream =
                Stream { channel: channel.clone(), from: from.clone(), proof: proof.clone() };
            io.spawn(stream.serve(asks));
            sender
        };
        Self { streams: [0; 2].map(|_| [0; STREAMS].map(|_| start())) }
    }

    /// See [`Link::keep_alive`](crate::link::Link::keep_alive).
    pub(crate) async fn ask(&self, lane: Lane, lease: i64, from: &Endpoint) -> Answer {
        let (answer, told) = oneshot::channel();
        let stream = &self.streams[lane as usize][lease as usize % STREAMS];
        let broken = || Failure::broken(from, "keep-alives");
        stream.send(Ask { lease, answer }).map_err(|_| broken())?;
        told.await.unwrap_or_else(|_| Err(broken()))
    }
}

/// One stream, opened again after each break.
struct Stream {
    channel: Channel,
    from: Endpoint,
    proof: Arc<Proof>,
}

impl Stream {
    async fn serve(self, mut asks: mpsc::UnboundedReceiver<Ask>) {
        let mut waiting = VecDeque::new();
        loop {
            if waiting.is_empty() {
                match asks.recv().await {
                    Some(first) => waiting.push_back(first),
                    None => return,
                }
            }
            let (out, requests) = mpsc::unbounded_channel();
            let mut pending = Pending { out, askers: VecDeque::new() };
            waiting.drain(..).for_each(|ask| pending.ask(ask));
            match self.run(requests, &mut pending, &mut asks).await {
                Some(failure) => waiting = pending.fail(&failure),
                None => return,
            }
        }
    }

    /// Runs until the stream breaks; `None` if nobody can ask any more.
    async fn run(
        &self,
        requests: mpsc::UnboundedReceiver<LeaseKeepAliveRequest>,
        pending: &mut Pending,
        asks: &mut mpsc::UnboundedReceiver<Ask>,
    ) -> Option<Failure> {
        let mut client = LeaseClient::new(self.channel.clone());
        let token = self.proof.token();
        let requests = UnboundedReceiverStream::new(requests);
        let requests = self.proof.request_as(requests, token.clone());
        let failure = |status: Option<&Status>| {
            let failure = self.failure(status);
            if failure.reaction == Reaction::LogIn {
                self.proof.refused(token.as_ref());
            }
            Some(failure)
        };
        let mut opening = std::pin::pin!(client.lease_keep_alive(requests));
        // The server opens its side with the first answer.
        let mut answers: Streaming<LeaseKeepAliveResponse> = loop {
            tokio::select! {
                opened = &mut opening => match opened {
                    Ok(opened) => break opened.into_inner(),
                    Err(status) => return failure(Some(&status)),
                },
                ask = asks.recv() => pending.ask(ask?),
            }
        };
        loop {
            tokio::select! {
                answer = answers.message() => match answer {
                    Ok(Some(answer)) => pending.answer(&answer),
                    Ok(None) => return failure(None),
                    Err(status) => return failure(Some(&status)),
                },
                ask = asks.recv() => pending.ask(ask?),
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

/// Who waits for an answer, in the order of the requests.
struct Pending {
    out: mpsc::UnboundedSender<LeaseKeepAliveRequest>,
    askers: VecDeque<Ask>,
}

impl Pending {
    fn ask(&mut self, ask: Ask) {
        // It fails only if the stream is broken; then all who ask are told so.
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

    /// Tells them of the end of the stream. A member ends it, too, when it refuses one lease: that
    /// of the first request without an answer. The others are given back, to be asked anew.
    fn fail(&mut self, failure: &Failure) -> VecDeque<Ask> {
        let refused = if failure.reaction == Reaction::NoRight { 1 } else { self.askers.len() };
        for asker in self.askers.drain(..refused.min(self.askers.len())) {
            let _ = asker.answer.send(Err(failure.clone()));
        }
        let mut others = std::mem::take(&mut self.askers);
        others.retain(|ask| !ask.answer.is_closed());
        others
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
        pending.ask(Ask { lease, answer });
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

    #[test]
    fn who_is_refused_spoils_it_for_nobody_else_and_a_broken_stream_for_all() {
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
