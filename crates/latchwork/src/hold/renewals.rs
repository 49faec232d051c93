//! Renewals that a holder asks for itself: those of one turn go to the store in one call.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::hold::backlog::BATCH;
use crate::hold::delayed::Delayed;
use crate::hold::lease::Sent;
use latchwork_store::{Answers, BackendError, Claim, Io, Renewal};
use latchwork_wire::yield_now;

/// The store's answer to one renewal, and when it was asked.
type Answer = (Sent, Result<Renewal, BackendError>);

/// The renewals that wait to be sent. There are none but while somebody asks.
pub(crate) struct Renewals {
    backend: Delayed,
    /// Where calls of the store may block their thread.
    io: Io,
    waiting: Mutex<Vec<PendingRenewal>>,
}

struct PendingRenewal {
    claim: Claim,
    limit: Duration,
    answer: oneshot::Sender<Answer>,
}

impl Renewals {
    pub(crate) fn new(backend: Delayed, io: Io) -> Arc<Self> {
        Arc::new(Self { backend, io, waiting: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<PendingRenewal>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Renews one claim now, and waits for the answer for at most `limit`.
    pub(crate) async fn ask(
        self: &Arc<Self>,
        claim: Claim,
        limit: Duration,
    ) -> Result<(Sent, Renewal), BackendError> {
        let (answer, answered) = oneshot::channel();
        let is_first = {
            let mut waiting = self.lock();
            waiting.push(PendingRenewal { claim, limit, answer });
            waiting.len() == 1
        };
        if is_first {
            let this = self.clone();
            self.io.spawn(async move { this.send().await });
        }
        match self.io.within(limit, answered).await {
            Some(Ok((sent, answer))) => answer.map(|answer| (sent, answer)),
            // There was none in time, or Latchwork's threads have ended.
            None | Some(Err(_)) => Err(BackendError::no_answer(limit)),
        }
    }

    /// Sends what waits, with what others of the same turn ask for.
    async fn send(self: Arc<Self>) {
        yield_now().await;
        let mut all = std::mem::take(&mut *self.lock());
        while all.len() > BATCH {
            let (this, chunk) = (self.clone(), all.split_off(all.len() - BATCH));
            self.io.spawn(async move { this.renew(chunk).await });
        }
        self.renew(all).await;
    }

    async fn renew(&self, asked: Vec<PendingRenewal>) {
        // Each one is waited for by its own limit.
        let limit = asked.iter().map(|it| it.limit).max().unwrap_or_default();
        let (mut claims, mut senders) = (Vec::new(), Vec::<Vec<_>>::new());
        let mut places = HashMap::new();
        for PendingRenewal { claim, answer, .. } in asked {
            // Requests for one claim share its answer.
            let place = *places.entry(claim.id).or_insert(claims.len());
            if place == claims.len() {
                claims.push(claim);
                senders.push(Vec::new());
            }
            senders[place].push(answer);
        }
        let answers = Answers::default();
        // Nothing is counted from later than this.
        let sent = Sent::now(self.io.clock().as_ref());
        let mut verb = self.backend.renew_each(&claims, &answers);
        let answering = poll_fn(|cx| {
            let is_over = verb.as_mut().poll(cx).is_ready();
            for (claim, answer) in answers.take() {
                for sender in senders.get_mut(claim).map(std::mem::take).unwrap_or_default() {
                    // Fails if nobody waits for it any more.
                    let _ = sender.send((sent, answer.clone()));
                }
            }
            if is_over { Poll::Ready(()) } else { Poll::Pending }
        });
        // Who still waits gets no answer then.
        self.io.within(limit, answering).await;
    }
}
