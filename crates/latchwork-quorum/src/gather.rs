//! Requests to all nodes, combined with those of callers that ask at the same time.
//!
//! A lone request goes out at once. When [`LOADS`] loads of one kind are under way, the next requests
//! gather, and go out as one load as soon as a majority has answered one of these: one request to each
//! node for all of them. A load asks each node apart, so a node that is slow holds up nobody.
//!
//! Nobody's task waits for the nodes: a load is moved on by the threads that read the answers
//! ([`finish`](latchwork_wire::finish)), and an answer is put in the tray of its claim. So a claim that was given up, or whose
//! runtime is blocked, holds up nobody either.
//!
//! A request that is given up while it gathers is not sent.

use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use latchwork_store::*;
use latchwork_store::{BackendError, BackendErrorKind, Effect, Io};
use latchwork_wire::yield_now;

use super::round::node_limit;
use super::tally::Size;

/// How many loads of one kind may be under way before others gather.
const LOADS: usize = 1;
/// The most requests in one load, so that no script holds up a server for long.
const MOST: usize = 64;
/// What gathers waits so long at most for those that are under way.
const GATHER_PATIENCE: Duration = Duration::from_millis(20);

/// What is asked of the nodes.
pub(super) trait Kind: Send + Sync + 'static {
    type Answer: Send + 'static;

    fn ask<'a>(
        node: &'a dyn Backend,
        claims: &'a [Claim],
    ) -> Verb<'a, Vec<Result<Self::Answer, BackendError>>>;
}

/// To grant claims.
pub(super) struct Tries;
/// To end claims.
pub(super) struct Releases;

impl Kind for Tries {
    type Answer = Attempt;

    fn ask<'a>(
        node: &'a dyn Backend,
        claims: &'a [Claim],
    ) -> Verb<'a, Vec<Result<Attempt, BackendError>>> {
        node.try_acquire_all(claims)
    }
}

impl Kind for Releases {
    type Answer = Released;

    fn ask<'a>(
        node: &'a dyn Backend,
        claims: &'a [Claim],
    ) -> Verb<'a, Vec<Result<Released, BackendError>>> {
        node.release_all(claims)
    }
}

/// Where the answers of all nodes to one request are put.
pub(super) struct Tray<T> {
    state: Mutex<Inside<T>>,
    /// So few answers decide nothing.
    least: usize,
}

struct Inside<T> {
    landed: Vec<(usize, T)>,
    /// So many were taken before.
    taken: usize,
    /// So many answers are still to come.
    left: usize,
    is_sent: bool,
    waker: Option<Waker>,
    owner: Owner<T>,
}

/// Takes an answer that nobody waits for.
pub(super) type OnLate<T> = Arc<dyn Fn(usize, T) + Send + Sync>;

/// Who wants the answers.
enum Owner<T> {
    Waits,
    /// Nobody; it was given up before it was sent.
    Gone,
    /// Nobody waits, but each has to be seen to.
    Late(OnLate<T>),
}

impl<T> Inside<T> {
    fn is_worth_a_look(&self, least: usize) -> bool {
        self.left == 0 || !self.landed.is_empty() && self.taken + self.landed.len() >= least
    }
}

impl<T> Tray<T> {
    fn new(size: Size) -> Arc<Self> {
        let state = Mutex::new(Inside {
            landed: Vec::with_capacity(size.nodes),
            taken: 0,
            left: size.nodes,
            is_sent: false,
            waker: None,
            owner: Owner::Waits,
        });
        Arc::new(Self { state, least: size.least() })
    }

    fn lock(&self) -> MutexGuard<'_, Inside<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answers that have come, if they may decide or are the last.
    pub(super) fn poll_take(&self, cx: &mut Context<'_>) -> Poll<Vec<(usize, T)>> {
        let mut state = self.lock();
        if state.is_worth_a_look(self.least) {
            drop(state);
            return Poll::Ready(self.landed());
        }
        if !state.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            state.waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    /// The answers that have come.
    pub(super) fn landed(&self) -> Vec<(usize, T)> {
        let mut state = self.lock();
        state.taken += state.landed.len();
        mem::take(&mut state.landed)
    }

    /// Whether all answers were taken.
    pub(super) fn is_empty(&self) -> bool {
        let state = self.lock();
        state.left == 0 && state.landed.is_empty()
    }

    fn deliver(&self, node: usize, answer: T) {
        let mut state = self.lock();
        state.left -= 1;
        match &state.owner {
            Owner::Waits => {
                state.landed.push((node, answer));
                let wakes = state.is_worth_a_look(self.least);
                let waker = state.waker.take_if(|_| wakes);
                drop(state);
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
            Owner::Gone => {}
            Owner::Late(late) => {
                let late = late.clone();
                drop(state);
                late(node, answer);
            }
        }
    }

    /// Nobody waits for the answers any more: `late` takes those that were not taken, and those to come.
    /// If `unless_sent`, it is not sent any more.
    pub(super) fn leave(&self, unless_sent: bool, late: OnLate<T>) {
        let (landed, waker) = {
            let mut state = self.lock();
            let gone = unless_sent && !state.is_sent;
            state.owner = if gone { Owner::Gone } else { Owner::Late(late.clone()) };
            (mem::take(&mut state.landed), state.waker.take())
        };
        drop(waker);
        landed.into_iter().for_each(|(node, answer)| late(node, answer));
    }

    /// Whether it is to be sent; it is from now on.
    fn start(&self) -> bool {
        let mut state = self.lock();
        state.is_sent = !matches!(state.owner, Owner::Gone);
        state.is_sent
    }
}

type AnswerOf<K> = Result<<K as Kind>::Answer, BackendError>;

/// A request that is to be sent.
struct Request<K: Kind> {
    claim: Claim,
    tray: Arc<Tray<AnswerOf<K>>>,
}

/// Gathers the requests of one kind.
pub(super) struct Gatherer<K: Kind> {
    nodes: Arc<[Arc<dyn Backend>]>,
    size: Size,
    io: Io,
    state: Mutex<State<K>>,
}

struct State<K: Kind> {
    under_way: usize,
    gathered: Vec<Request<K>>,
    /// How many loads were sent.
    sent: u64,
    /// The last load had more than one request, so more than one is likely to come.
    is_busy: bool,
    /// A task checks that what gathers is sent in time.
    is_watched: bool,
}

impl<K: Kind> Gatherer<K> {
    pub(super) fn new(nodes: Arc<[Arc<dyn Backend>]>, size: Size, io: Io) -> Arc<Self> {
        let state = Mutex::new(State {
            under_way: 0,
            gathered: Vec::new(),
            sent: 0,
            is_busy: false,
            is_watched: false,
        });
        Arc::new(Self { nodes, size, io, state })
    }

    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks all nodes, if [`Self::flush`] is called soon.
    pub(super) fn ask(self: &Arc<Self>, claim: Claim) -> Arc<Tray<AnswerOf<K>>> {
        let tray = Tray::new(self.size);
        let request = Request { claim, tray: tray.clone() };
        let watches = {
            let mut state = self.lock();
            if state.under_way < LOADS && !state.is_busy {
                state.under_way += 1;
                drop(state);
                self.send(vec![request]);
                return tray;
            }
            state.gathered.push(request);
            !mem::replace(&mut state.is_watched, true)
        };
        if watches {
            self.watch();
        }
        tray
    }

    /// Lets others ask who are about to, and sends what has gathered.
    pub(super) async fn flush(self: &Arc<Self>) {
        if self.lock().is_busy {
            yield_now().await;
        }
        self.flush_now();
    }

    /// Sends what has gathered, if nothing is under way.
    pub(super) fn flush_now(self: &Arc<Self>) {
        let load = {
            let mut state = self.lock();
            if state.under_way >= LOADS || state.gathered.is_empty() {
                return;
            }
            state.under_way += 1;
            Self::take(&mut state)
        };
        self.send_or_leave(load);
    }

    /// Sees to it that what gathers is sent soon, though what is under way is not answered.
    fn watch(self: &Arc<Self>) {
        let this = self.clone();
        // Not by `finish`: it waits for no answer.
        self.io.spawn(async move {
            loop {
                let seen = this.lock().sent;
                this.io.sleep(GATHER_PATIENCE).await;
                let load = {
                    let mut state = this.lock();
                    if state.gathered.is_empty() {
                        state.is_watched = false;
                        return;
                    }
                    if state.sent != seen {
                        continue;
                    }
                    state.under_way += 1;
                    Self::take(&mut state)
                };
                this.send_or_leave(load);
            }
        });
    }

    /// Takes what has gathered, as far as it may be one load.
    fn take(state: &mut State<K>) -> Vec<Request<K>> {
        let limit = state.gathered.first().map(|request| node_limit(request.claim.ttl));
        let fits = |request: &Request<K>| Some(node_limit(request.claim.ttl)) == limit;
        let most = state.gathered.len().min(MOST);
        let count = state.gathered[..most].iter().take_while(|request| fits(request)).count();
        state.gathered.drain(..count).collect()
    }

    /// A lane is free.
    fn next(self: &Arc<Self>) {
        let load = Self::take(&mut self.lock());
        self.send_or_leave(load);
    }

    fn send_or_leave(self: &Arc<Self>, mut load: Vec<Request<K>>) {
        loop {
            load.retain(|request| request.tray.start());
            if !load.is_empty() {
                return self.send_started(load);
            }
            let mut state = self.lock();
            load = Self::take(&mut state);
            if load.is_empty() {
                state.under_way -= 1;
                return;
            }
        }
    }

    fn send(self: &Arc<Self>, load: Vec<Request<K>>) {
        load.iter().for_each(|request| assert!(request.tray.start(), "it was not given up yet"));
        self.send_started(load);
    }

    fn send_started(self: &Arc<Self>, load: Vec<Request<K>>) {
        {
            let mut state = self.lock();
            state.sent += 1;
            state.is_busy = load.len() > 1 || !state.gathered.is_empty();
        }
        let limit = load.iter().map(|request| node_limit(request.claim.ttl)).min();
        let limit = limit.unwrap_or_default();
        let (claims, trays): (Vec<_>, Vec<_>) =
            load.into_iter().map(|request| (request.claim, request.tray)).unzip();
        let load =
            Arc::new(Load { claims, trays, gatherer: self.clone(), answered: AtomicUsize::new(0) });
        for (node, backend) in self.nodes.iter().enumerate() {
            let (backend, io) = (backend.clone(), self.io.clone());
            let part = Part { load: load.clone(), node, is_answered: false };
            latchwork_wire::finish(&self.io, async move {
                let ask = async { Ok(K::ask(&*backend, &part.load.claims).await) };
                let answers = io.answer(limit, ask).await;
                part.deliver(answers);
            });
        }
    }
}

/// Requests that are sent together.
struct Load<K: Kind> {
    claims: Vec<Claim>,
    trays: Vec<Arc<Tray<AnswerOf<K>>>>,
    gatherer: Arc<Gatherer<K>>,
    answered: AtomicUsize,
}

/// A load at one node.
struct Part<K: Kind> {
    load: Arc<Load<K>>,
    node: usize,
    is_answered: bool,
}

impl<K: Kind> Part<K> {
    fn deliver(mut self, answers: Result<Vec<AnswerOf<K>>, BackendError>) {
        self.put(answers);
    }

    fn put(&mut self, answers: Result<Vec<AnswerOf<K>>, BackendError>) {
        self.is_answered = true;
        let load = &self.load;
        match answers {
            Ok(answers) => {
                let mut answers = answers.into_iter();
                for tray in &load.trays {
                    let answer = answers.next();
                    let answer = answer
                        .unwrap_or_else(|| Err(super::corrupt("the node left out an answer")));
                    tray.deliver(self.node, answer);
                }
            }
            Err(error) => {
                for tray in &load.trays {
                    tray.deliver(self.node, Err(error.clone()));
                }
            }
        }
        // Once, when it is decided or cannot be decided by fewer.
        if load.answered.fetch_add(1, Ordering::SeqCst) + 1 == load.gatherer.size.majority {
            load.gatherer.next();
        }
    }
}

impl<K: Kind> Drop for Part<K> {
    fn drop(&mut self) {
        if !self.is_answered {
            // The `Io` has ended.
            let message = "the driver was shut down before the answer came";
            let ended = BackendError::new(BackendErrorKind::Unreachable, Effect::Unknown, message);
            self.put(Err(ended));
        }
    }
}
