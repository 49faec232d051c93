//! One command for many who ask at the same time.
//!
//! A lone request goes out at once, as a command of its own. When [`LANES`] commands of one kind are
//! under way, the next ones gather, and go out together as soon as one of these is answered: one
//! script call for all of them, which costs the server, the wire and this process a fraction of
//! what single calls do. Under light load nobody waits for anybody; under heavy load each waits for
//! a part of a round trip.
//!
//! A request that is dropped while it gathers is never sent.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use latchwork_core::{BackendError, Io, Verb};
use tokio::sync::oneshot;

/// How many commands of one kind may be under way before others gather.
const LANES: usize = 4;
/// The most requests in one command, so that no script holds up the server for long.
const MOST: usize = 64;

/// A kind of request that can go out alone or together.
pub(crate) trait Combined: Send + Sync + 'static {
    type Request: Send + Sync + 'static;
    type Answer: Send + 'static;

    /// Sends one request.
    fn alone<'a>(
        &'a self,
        request: &'a Self::Request,
    ) -> Verb<'a, Result<Self::Answer, BackendError>>;

    /// Sends several in one command; the answers in the same order.
    fn together<'a>(
        &'a self,
        requests: &'a [Self::Request],
    ) -> Verb<'a, Result<Vec<Self::Answer>, BackendError>>;
}

/// Gathers requests of one kind.
pub(crate) struct Combiner<C: Combined> {
    kind: Arc<C>,
    io: Io,
    state: Mutex<State<C>>,
}

struct State<C: Combined> {
    under_way: usize,
    gathered: VecDeque<Gathered<C>>,
}

struct Gathered<C: Combined> {
    request: C::Request,
    reply: oneshot::Sender<Result<C::Answer, BackendError>>,
}

enum Entered<C: Combined> {
    Alone(C::Request),
    Gathers(oneshot::Receiver<Result<C::Answer, BackendError>>),
}

impl<C: Combined> Combiner<C> {
    pub(crate) fn new(kind: C, io: Io) -> Arc<Self> {
        let state = State { under_way: 0, gathered: VecDeque::new() };
        Arc::new(Self { kind: Arc::new(kind), io, state: Mutex::new(state) })
    }

    fn lock(&self) -> MutexGuard<'_, State<C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request, alone or with others.
    pub(crate) async fn send(
        self: &Arc<Self>,
        request: C::Request,
    ) -> Result<C::Answer, BackendError> {
        let request = match self.enter(request) {
            Entered::Alone(request) => request,
            Entered::Gathers(answer) => return answer.await.unwrap_or_else(|_| Err(ended())),
        };
        let _lane = Lane(self);
        self.kind.alone(&request).await
    }

    fn enter(&self, request: C::Request) -> Entered<C> {
        let mut state = self.lock();
        if state.under_way < LANES {
            state.under_way += 1;
            return Entered::Alone(request);
        }
        let (reply, answer) = oneshot::channel();
        state.gathered.push_back(Gathered { request, reply });
        Entered::Gathers(answer)
    }

    /// Sends a request alone, whatever is under way.
    pub(crate) async fn alone(&self, request: &C::Request) -> Result<C::Answer, BackendError> {
        self.kind.alone(request).await
    }

    /// Takes what has gathered, or gives the lane up.
    fn gather(&self) -> Vec<Gathered<C>> {
        let mut state = self.lock();
        let mut batch = Vec::new();
        while batch.len() < MOST
            && let Some(next) = state.gathered.pop_front()
        {
            if !next.reply.is_closed() {
                batch.push(next);
            }
        }
        if batch.is_empty() {
            state.under_way -= 1;
        }
        batch
    }

    /// Sends what gathers on one lane until nothing does.
    async fn run(self: Arc<Self>, mut batch: Vec<Gathered<C>>) {
        while !batch.is_empty() {
            let (requests, replies): (Vec<_>, Vec<_>) =
                batch.into_iter().map(|g| (g.request, g.reply)).unzip();
            let answers = if let [only] = &requests[..] {
                self.kind.alone(only).await.map(|answer| vec![answer])
            } else {
                self.kind.together(&requests).await
            };
            match answers {
                Ok(answers) => {
                    for (reply, answer) in replies.into_iter().zip(answers) {
                        let _ = reply.send(Ok(answer)); // given up meanwhile
                    }
                }
                Err(error) => {
                    for reply in replies {
                        let _ = reply.send(Err(error.clone()));
                    }
                }
            }
            batch = self.gather();
        }
    }
}

/// A lane that a single request uses. When it is left, in whatever way, it goes to those who have
/// gathered.
struct Lane<'a, C: Combined>(&'a Arc<Combiner<C>>);

impl<C: Combined> Drop for Lane<'_, C> {
    fn drop(&mut self) {
        let batch = self.0.gather();
        if !batch.is_empty() {
            let combiner = self.0.clone();
            self.0.io.spawn(async move { combiner.run(batch).await });
        }
    }
}

fn ended() -> BackendError {
    BackendError::new(
        latchwork_core::BackendErrorKind::Unreachable,
        latchwork_core::Effect::Unknown,
        "the connection was closed before the answer came",
    )
}
