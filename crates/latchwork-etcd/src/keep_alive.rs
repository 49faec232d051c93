//! The streams on which leases are kept alive.
//!
//! An answer carries the lease and no number of its request. Per stream and lease the k-th answer
//! belongs to the k-th request, and after a break none belongs to any (a request whose asker has
//! gone away still takes its answer). Tries and renewals have streams of their own, so that many
//! tries do not delay a renewal.

use std::collections::{HashMap, VecDeque};
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
        while let Some(first) = asks.recv().await {
            let (out, requests) = mpsc::unbounded_channel();
            let mut pending = Pending { out, askers: HashMap::new() };
            pending.ask(first);
            match self.run(requests, &mut pending, &mut asks).await {
                Some(failure) => pending.fail(&failure),
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

/// Who waits for an answer, per lease in the order of the requests.
struct Pending {
    out: mpsc::UnboundedSender<LeaseKeepAliveRequest>,
    askers: HashMap<i64, VecDeque<oneshot::Sender<Answer>>>,
}

impl Pending {
    fn ask(&mut self, ask: Ask) {
        // It fails only if the stream is broken; then all who ask are told so.
        let _ = self.out.send(LeaseKeepAliveRequest { id: ask.lease });
        self.askers.entry(ask.lease).or_default().push_back(ask.answer);
    }

    fn answer(&mut self, answer: &LeaseKeepAliveResponse) {
        let Some(askers) = self.askers.get_mut(&answer.id) else { return };
        let asker = askers.pop_front();
        if askers.is_empty() {
            self.askers.remove(&answer.id);
        }
        let ttl = u64::try_from(answer.ttl).ok().filter(|ttl| *ttl > 0);
        if let Some(asker) = asker {
            // Nobody listens if the asker was dropped.
            let _ = asker.send(Ok(ttl.map(Duration::from_secs)));
        }
    }

    fn fail(&mut self, failure: &Failure) {
        for asker in self.askers.drain().flat_map(|(_, askers)| askers) {
            let _ = asker.send(Err(failure.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kth_answer_belongs_to_the_kth_request_of_a_lease() {
        let (out, _requests) = mpsc::unbounded_channel();
        let mut pending = Pending { out, askers: HashMap::new() };
        let mut ask = |lease| {
            let (answer, told) = oneshot::channel();
            pending.ask(Ask { lease, answer });
            told
        };
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
}
