//! Renewals that a holder asks for itself: those of one turn go to the store in one call.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::hold::backlog::BATCH;
use crate::hold::lease::Sent;
use crate::runtime::turns::yield_now;
use latchwork_store::{Answers, Backend, BackendError, Claim, Io, Renewal};

/// The store's answer to one renewal, and when it was asked.
type Answer = (Sent, Result<Renewal, BackendError>);

/// The renewals that wait to be sent. There are none but while somebody asks.
pub(crate) struct Renewals {
    backend: Arc<dyn Backend>,
    /// Where calls of the store may block their thread.
    io: Io,
    waiting: Mutex<Vec<Asked>>,
}

struct Asked {
    claim: Claim,
    limit: Duration,
    answer: oneshot::Sender<Answer>,
}

impl Renewals {
    pub(crate) fn new(backend: Arc<dyn Backend>, io: Io) -> Arc<Self> {
        Arc::new(Self { backend, io, waiting: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Asked>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Renews one claim now, and waits for the answer for at most `limit` from when it is sent.
    pub(crate) async fn ask(
        self: &Arc<Self>,
        claim: Claim,
        limit: Duration,
    ) -> Result<(Sent, Renewal), BackendError> {
        let (answer, answered) = oneshot::channel();
        let is_first = {
            let mut waiting = self.lock();
            waiting.push(Asked { claim, limit, answer });
            waiting.len() == 1
        };
        if is_first {
            let this = self.clone();
            self.io.spawn(async move { this.send().await });
        }
        match answered.await {
            Ok((sent, answer)) => answer.map(|answer| (sent, answer)),
            // Latchwork's threads have ended.
            Err(_) => Err(BackendError::no_answer(limit)),
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

    async fn renew(&self, asked: Vec<Asked>) {
        let limit = asked.iter().map(|it| it.limit).min().unwrap_or_default();
        let (claims, senders): (Vec<_>, Vec<_>) =
            asked.into_iter().map(|it| (it.claim, Some(it.answer))).unzip();
        let mut senders = senders;
        let answers = Answers::default();
        // Nothing is counted from later than this.
        let sent = Sent::now(self.io.clock().as_ref());
        let mut verb = self.backend.renew_each(&claims, &answers);
        let answering = poll_fn(|cx| {
            let is_over = verb.as_mut().poll(cx).is_ready();
            for (claim, answer) in answers.take() {
                if let Some(sender) = senders.get_mut(claim).and_then(Option::take) {
                    // Fails if nobody waits for it any more.
                    let _ = sender.send((sent, answer));
                }
            }
            if is_over { Poll::Ready(()) } else { Poll::Pending }
        });
        self.io.within(limit, answering).await;
        for sender in senders.into_iter().flatten() {
            let _ = sender.send((sent, Err(BackendError::no_answer(limit))));
        }
    }
}
