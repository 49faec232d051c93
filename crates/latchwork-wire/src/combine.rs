//! One request to a server for many callers that ask at the same time.
//!
//! A lone request goes out at once, by itself. When [`Limits::alone`] requests of one kind are under
//! way, the next ones gather until all tasks that are ready have run, and go out together: one command
//! for all of them, which costs the server, the wire and this process a fraction of what single ones
//! do. When [`Limits::all`] commands are under way, the next requests gather until one of these is
//! answered. Under light load nobody waits for anybody; under heavy load each waits for a part of a
//! round trip.
//!
//! Requests of one event loop gather together, and are sent and answered there. Those of callers outside
//! of any loop use the `Io`. So a runtime that is blocked, or that ends, delays no other requests. What
//! gathers on a runtime that is entered and that nobody drives, the `Io` sends.
//!
//! A request that is dropped while it gathers is never sent.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use latchwork_store::{BackendError, BackendErrorKind, Effect, Io, Verb};

use crate::event_loop::{EventLoop, LoopId, yield_now};

/// What a slot sends is given up after this long, so that what gathers behind it goes on.
const LIMIT: Duration = Duration::from_millis(2_500);
/// How often the `Io` checks whether the loops poll what sends there.
const TICK: Duration = Duration::from_millis(10);
/// After so many checks with nothing to poll it stops, until the next request gathers.
const IDLE: u32 = 10;

/// How many commands of one kind may be under way.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Before the next requests of a loop go out together.
    pub alone: usize,
    /// The same for callers outside of any loop, who need a change of threads to gather.
    pub alone_outside: usize,
    /// At most; meanwhile all others gather.
    pub all: usize,
    /// The most requests in one command, so that none holds up the server for long.
    pub most: usize,
}

/// A kind of request that can go out alone or together.
pub trait Combined: Send + Sync + 'static {
    /// What a caller asks.
    type Request: Send + Sync + 'static;
    /// What it learns.
    type Answer: Send + 'static;

    /// Sends one request.
    ///
    /// # Errors
    ///
    /// Those of the store.
    fn send(
        &self,
        request: &Self::Request,
    ) -> impl Future<Output = Result<Self::Answer, BackendError>> + Send;

    /// Sends requests in as few commands as possible, and returns the answers in the same order. A
    /// caller may have given up since its request was taken.
    fn send_all<'a>(
        &'a self,
        requests: &'a [Self::Request],
    ) -> Verb<'a, Vec<Result<Self::Answer, BackendError>>>;
}

/// Gathers requests of one kind.
pub struct Combiner<C: Combined> {
    kind: Arc<C>,
    io: Io,
    limits: Limits,
    /// One for each runtime that has requests under way, and for callers without one.
    places: Mutex<Vec<Place<C>>>,
    /// The `Io` checks whether the loops poll.
    patrols: AtomicBool,
}

/// The requests of one runtime.
struct Place<C: Combined> {
    runtime: Option<LoopId>,
    under_way: usize,
    /// A slot is taken for what gathers, and nothing is sent on it yet.
    begins: bool,
    /// Tasks that are to send, and that the runtime has not polled yet.
    unpolled: usize,
    /// How many it has polled.
    polled: u64,
    gathered: VecDeque<Gathered<C>>,
}

impl<C: Combined> Place<C> {
    /// Whether something has gathered that the runtime is to send.
    fn waits(&self) -> bool {
        self.unpolled > 0 && !self.gathered.is_empty()
    }
}

struct Gathered<C: Combined> {
    request: C::Request,
    reply: oneshot::Sender<Result<C::Answer, BackendError>>,
}

enum Entered<'a, C: Combined> {
    Alone(C::Request, Slot<'a, C>),
    Gathers(oneshot::Receiver<Result<C::Answer, BackendError>>),
}

impl<C: Combined> Combiner<C> {
    /// Creates one without requests.
    pub fn new(kind: C, limits: Limits, io: Io) -> Arc<Self> {
        Arc::new(Self {
            kind: Arc::new(kind),
            io,
            limits,
            places: Mutex::default(),
            patrols: AtomicBool::new(false),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Place<C>>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request, alone or with others.
    ///
    /// # Errors
    ///
    /// Those of [`Combined`], and an unknown effect if what sends ended without an answer.
    ///
    /// # Cancel safety
    ///
    /// A request that gathers is never sent if the future is dropped. One that has been sent stays
    /// sent.
    pub async fn send(self: &Arc<Self>, request: C::Request) -> Result<C::Answer, BackendError> {
        let (request, _slot) = match self.enter(request) {
            Entered::Alone(request, slot) => (request, slot),
            Entered::Gathers(answer) => return answer.await.unwrap_or_else(|_| Err(ended())),
        };
        self.kind.send(&request).await
    }

    fn enter(self: &Arc<Self>, request: C::Request) -> Entered<'_, C> {
        let here = EventLoop::current();
        let runtime = here.as_ref().map(EventLoop::id);
        let mut places = self.lock();
        let place = match places.iter().position(|place| place.runtime == runtime) {
            Some(index) => &mut places[index],
            None => {
                let gathered = VecDeque::new();
                let (under_way, unpolled, polled) = (0, 0, 0);
                places.push(Place {
                    runtime,
                    under_way,
                    begins: false,
                    unpolled,
                    polled,
                    gathered,
                });
                places.last_mut().expect("it was just added")
            }
        };
        let alone = match runtime {
            Some(_) => self.limits.alone,
            None => self.limits.alone_outside,
        };
        if place.under_way < alone {
            place.under_way += 1;
            return Entered::Alone(request, Slot { combiner: self, here });
        }
        let (reply, answer) = oneshot::channel();
        place.gathered.push_back(Gathered { request, reply });
        let begins = place.under_way < self.limits.all && !place.begins;
        if begins {
            place.under_way += 1;
            place.begins = true;
            place.unpolled += 1;
        }
        drop(places);
        if begins {
            self.spawn(here, true);
        } else if runtime.is_some() {
            self.patrol();
        }
        Entered::Gathers(answer)
    }

    /// Sends what gathers on a slot that is taken: at once, or after the tasks that are ready have run.
    fn spawn(self: &Arc<Self>, here: Option<EventLoop>, begins: bool) {
        let runtime = here.as_ref().map(EventLoop::id);
        let run = Run { combiner: self.clone(), runtime, is_polled: false, begins, over: false };
        let sending = run.send();
        match here {
            Some(here) => {
                here.spawn(sending);
                self.patrol();
            }
            None => self.io.spawn(sending),
        }
    }

    /// Sees to it that what gathers on a loop is sent, also if nobody drives that loop.
    fn patrol(self: &Arc<Self>) {
        if self.patrols.load(Ordering::SeqCst) || self.patrols.swap(true, Ordering::SeqCst) {
            return;
        }
        let (combiner, io) = (Arc::downgrade(self), self.io.clone());
        self.io.spawn(async move {
            let (mut idle, mut seen) = (0, Vec::new());
            while idle <= IDLE {
                io.sleep(TICK).await;
                let Some(combiner) = combiner.upgrade() else { return };
                seen = combiner.take_over(&seen);
                idle = if seen.is_empty() { idle + 1 } else { 0 };
            }
            let Some(combiner) = combiner.upgrade() else { return };
            combiner.patrols.store(false, Ordering::SeqCst);
            // What has gathered before that has found this patrol.
            if combiner.lock().iter().any(Place::waits) {
                combiner.patrol();
            }
        });
    }

    /// Sends what has gathered on loops that have polled nothing since they were seen. Returns those where something has
    /// gathered, and how much they have polled.
    fn take_over(self: &Arc<Self>, seen: &[(LoopId, u64)]) -> Vec<(LoopId, u64)> {
        let (mut waiting, mut late) = (Vec::new(), Vec::new());
        for place in self.lock().iter_mut().filter(|place| place.waits()) {
            let Some(runtime) = place.runtime else { continue };
            let now = (runtime, place.polled);
            if seen.contains(&now) {
                place.under_way += 1;
                late.push(runtime);
            }
            waiting.push(now);
        }
        for runtime in late {
            let (combiner, runtime) = (self.clone(), Some(runtime));
            let run = Run { combiner, runtime, is_polled: true, begins: false, over: false };
            self.io.spawn(run.send());
        }
        waiting
    }

    /// Returns what sends, for requests that must go out in a way of their own.
    pub fn kind(&self) -> &C {
        &self.kind
    }

    fn change(&self, runtime: Option<LoopId>, change: impl FnOnce(&mut Place<C>)) {
        self.lock().iter_mut().find(|place| place.runtime == runtime).map(change);
    }

    /// Whether the slot of a request is used for what has gathered. It is given up otherwise.
    fn keeps(&self, runtime: Option<LoopId>) -> bool {
        let mut places = self.lock();
        let Some(index) = places.iter().position(|place| place.runtime == runtime) else {
            return false;
        };
        let place = &mut places[index];
        place.gathered.retain(|gathered| !gathered.reply.is_closed());
        if place.gathered.is_empty() {
            Self::give_up(&mut places, index);
            return false;
        }
        place.unpolled += 1;
        true
    }

    fn give_up(places: &mut Vec<Place<C>>, index: usize) {
        places[index].under_way -= 1;
        if places[index].under_way == 0 {
            places.swap_remove(index);
        }
    }

    /// Takes what has gathered for a runtime, or gives the slot up.
    fn gather(&self, runtime: Option<LoopId>) -> Vec<Gathered<C>> {
        let mut places = self.lock();
        let Some(index) = places.iter().position(|place| place.runtime == runtime) else {
            return Vec::new();
        };
        let place = &mut places[index];
        let mut batch = Vec::new();
        while batch.len() < self.limits.most
            && let Some(next) = place.gathered.pop_front()
        {
            if !next.reply.is_closed() {
                batch.push(next);
            }
        }
        if batch.is_empty() {
            Self::give_up(&mut places, index);
        }
        batch
    }

    /// Sends a batch and passes on the answers.
    async fn send_batch(&self, mut batch: Vec<Gathered<C>>) {
        // Some callers may have given up since, and may have sent their release already.
        batch.retain(|gathered| !gathered.reply.is_closed());
        if batch.is_empty() {
            return;
        }
        let (requests, replies): (Vec<_>, Vec<_>) =
            batch.into_iter().map(|g| (g.request, g.reply)).unzip();
        let sent = self.io.within(LIMIT, self.kind.send_all(&requests)).await;
        let late = || requests.iter().map(|_| Err(BackendError::no_answer(LIMIT))).collect();
        let answers = sent.unwrap_or_else(late);
        for (reply, answer) in replies.into_iter().zip(answers) {
            let _ = reply.send(answer); // given up meanwhile
        }
    }
}

impl<C: Combined> fmt::Debug for Combiner<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Combiner").field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// A slot that a single request uses. When it is left, in whatever way, it goes to the requests that
/// have gathered.
struct Slot<'a, C: Combined> {
    combiner: &'a Arc<Combiner<C>>,
    here: Option<EventLoop>,
}

impl<C: Combined> Drop for Slot<'_, C> {
    fn drop(&mut self) {
        let here = self.here.take();
        if self.combiner.keeps(here.as_ref().map(EventLoop::id)) {
            self.combiner.spawn(here, false);
        }
    }
}

/// What gathers is sent on one slot until nothing gathers any more.
struct Run<C: Combined> {
    combiner: Arc<Combiner<C>>,
    runtime: Option<LoopId>,
    is_polled: bool,
    /// What gathers meanwhile needs no other slot.
    begins: bool,
    over: bool,
}

impl<C: Combined> Run<C> {
    async fn send(mut self) {
        self.is_polled();
        if self.begins {
            yield_now().await;
            self.begin();
        }
        loop {
            let batch = self.combiner.gather(self.runtime);
            if batch.is_empty() {
                break;
            }
            self.combiner.send_batch(batch).await;
        }
        self.over = true;
    }

    fn is_polled(&mut self) {
        if !std::mem::replace(&mut self.is_polled, true) {
            self.combiner.change(self.runtime, |place| {
                place.unpolled -= 1;
                place.polled += 1;
            });
        }
    }

    /// What gathers from now on is for another slot.
    fn begin(&mut self) {
        if std::mem::take(&mut self.begins) {
            self.combiner.change(self.runtime, |place| place.begins = false);
        }
    }
}

impl<C: Combined> Drop for Run<C> {
    fn drop(&mut self) {
        self.is_polled();
        self.begin();
        // The runtime has ended. What has gathered there is dropped with its callers.
        while !self.over {
            self.over = self.combiner.gather(self.runtime).is_empty();
        }
    }
}

fn ended() -> BackendError {
    BackendError::new(
        BackendErrorKind::Unreachable,
        Effect::Unknown,
        "the connection was closed before the answer came",
    )
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Waker};

    use latchwork_store::Task;
    use latchwork_store::testing::paused_io;

    use crate::event_loop::{ForeignLoop, Watched};

    use super::*;

    const LIMITS: Limits = Limits { alone: 4, alone_outside: 4, all: 6, most: 64 };

    /// A store that does not answer while it is stopped.
    struct Store(Arc<Mutex<Vec<u32>>>);

    impl Store {
        async fn answer(&self, requests: &[u32]) {
            self.0.lock().unwrap().extend(requests);
            if requests.iter().any(|request| *request < 100) {
                std::future::pending::<()>().await;
            }
        }
    }

    impl Combined for Store {
        type Request = u32;
        type Answer = u32;

        async fn send(&self, request: &u32) -> Result<u32, BackendError> {
            self.answer(&[*request]).await;
            Ok(*request)
        }

        fn send_all<'a>(&'a self, requests: &'a [u32]) -> Verb<'a, Vec<Result<u32, BackendError>>> {
            Box::pin(async move {
                self.answer(requests).await;
                requests.iter().map(|request| Ok(*request)).collect()
            })
        }
    }

    /// A loop that keeps its tasks, and polls none by itself.
    struct Tasks(Mutex<Vec<Task>>);

    impl ForeignLoop for Tasks {
        fn spawn(&self, task: Task) {
            self.0.lock().unwrap().push(task);
        }

        fn watch(&self, _: std::net::TcpStream) -> Box<dyn Watched> {
            unreachable!("there is no connection")
        }
    }

    /// Polls a future once.
    fn start<F: Future>(future: F) -> Pin<Box<F>> {
        let mut future = Box::pin(future);
        let mut cx = Context::from_waker(Waker::noop());
        assert!(future.as_mut().poll(&mut cx).is_pending());
        future
    }

    async fn others_run() {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_unanswered_request_frees_its_slot() {
        let sent = Arc::new(Mutex::new(Vec::new()));
        let combiner = Combiner::new(Store(sent.clone()), LIMITS, paused_io().0);
        let alone: Vec<_> = (0..4).map(|n| start(combiner.send(n))).collect();
        let mut gathered = Vec::new();
        for n in 4..6 {
            gathered.push(start(combiner.send(n)));
            others_run().await;
        }
        for (n, alone) in (6..).zip(alone) {
            gathered.push(start(combiner.send(n)));
            drop(alone);
            others_run().await;
        }
        assert_eq!(*sent.lock().unwrap(), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(combiner.lock()[0].under_way, LIMITS.all);
        assert_eq!(combiner.send(100).await.unwrap(), 100);
        for request in gathered {
            assert!(request.await.is_err());
        }
        others_run().await;
        assert!(combiner.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    #[allow(clippy::disallowed_methods, reason = "a thread outside of the loop")]
    async fn callers_outside_of_a_loop_go_alone_more_often() {
        let sent = Arc::new(Mutex::new(Vec::new()));
        let limits = Limits { alone: 1, alone_outside: 2, ..LIMITS };
        let combiner = Combiner::new(Store(sent.clone()), limits, paused_io().0);
        let _here = [1, 2].map(|n| start(combiner.send(n)));
        assert_eq!(*sent.lock().unwrap(), [1]);
        let outside = || {
            let _outside = [3, 4].map(|n| start(combiner.send(n)));
            assert_eq!(*sent.lock().unwrap(), [1, 3, 4]);
        };
        std::thread::scope(|scope| scope.spawn(outside).join().unwrap());
    }

    /// Four are under way. The tasks that run next have a request each, and all of these go out by one
    /// command, though there is a slot for each of two. On this kind of runtime a new task runs before
    /// those that were ready.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    #[expect(clippy::disallowed_methods, reason = "tasks of one runtime")]
    async fn requests_of_one_turn_go_out_together() {
        struct Sizes(Arc<Mutex<Vec<usize>>>);
        impl Combined for Sizes {
            type Request = ();
            type Answer = ();

            async fn send(&self, _: &()) -> Result<(), BackendError> {
                self.0.lock().unwrap().push(1);
                std::future::pending().await
            }

            fn send_all<'a>(
                &'a self,
                requests: &'a [()],
            ) -> Verb<'a, Vec<Result<(), BackendError>>> {
                self.0.lock().unwrap().push(requests.len());
                Box::pin(async { requests.iter().map(|()| Ok(())).collect() })
            }
        }
        let sizes = Arc::new(Mutex::new(Vec::new()));
        let combiner = Combiner::new(Sizes(sizes.clone()), LIMITS, paused_io().0);
        let _alone: Vec<_> = (0..LIMITS.alone).map(|_| start(combiner.send(()))).collect();
        let asked = combiner.clone();
        let on_the_worker = tokio::spawn(async move {
            let ask = |_| {
                let combiner = asked.clone();
                tokio::spawn(async move { combiner.send(()).await.unwrap() })
            };
            (0..7).map(ask).collect::<Vec<_>>()
        });
        for request in on_the_worker.await.unwrap() {
            request.await.unwrap();
        }
        assert_eq!(*sizes.lock().unwrap(), [1, 1, 1, 1, 7]);
    }

    /// A loop that is not tokio's has slots of its own, and polls what sends on them.
    #[tokio::test(start_paused = true)]
    async fn requests_of_a_foreign_loop_go_out_in_its_turn() {
        let (sent, tasks) = (Arc::default(), Arc::new(Tasks(Mutex::default())));
        let combiner = Combiner::new(Store(Arc::clone(&sent)), LIMITS, paused_io().0);
        let here = EventLoop::foreign(tasks.clone());
        let entered = here.enter();
        let _alone: Vec<_> = (0..4).map(|n| start(combiner.send(n))).collect();
        let gathered: Vec<_> = (100..103).map(|n| start(combiner.send(n))).collect();
        drop(entered);
        others_run().await;
        assert_eq!(*sent.lock().unwrap(), [0, 1, 2, 3]);
        let turn = std::mem::take(&mut *tasks.0.lock().unwrap());
        assert_eq!(turn.len(), 1);
        for task in turn {
            task.await;
        }
        for (n, answer) in (100..).zip(gathered) {
            assert_eq!(answer.await.unwrap(), n);
        }
    }

    /// A blocked runtime has all slots, and what it has gathered; then it ends.
    #[tokio::test(start_paused = true)]
    async fn requests_of_a_blocked_runtime_delay_none_of_another() {
        let sent = Arc::new(Mutex::new(Vec::new()));
        let combiner = Combiner::new(Store(sent.clone()), LIMITS, paused_io().0);
        let other = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let entered = other.enter();
        let mut alone: Vec<_> = (0..4).map(|n| start(combiner.send(n))).collect();
        let gathers = start(combiner.send(4));
        // What has gathered would be sent by a runtime that does not run.
        drop(alone.pop());
        drop(entered);
        assert_eq!(combiner.send(100).await.unwrap(), 100);
        assert_eq!(combiner.lock()[0].under_way, LIMITS.alone + 1);
        #[expect(clippy::disallowed_methods, reason = "a runtime may not end inside another")]
        std::thread::spawn(|| drop(other)).join().unwrap();
        drop(alone);
        assert!(gathers.await.is_err());
        assert!(combiner.lock().is_empty());
        assert_eq!(*sent.lock().unwrap(), [0, 1, 2, 3, 100]);
    }

    /// Nobody polls what the loop is to send, and the callers are polled by another executor.
    #[tokio::test(start_paused = true)]
    async fn h461_what_gathers_where_nobody_drives_is_sent() {
        let (sent, tasks) = (Arc::default(), Arc::new(Tasks(Mutex::default())));
        let io = paused_io().0;
        let combiner = Combiner::new(Store(Arc::clone(&sent)), LIMITS, io.clone());
        let here = EventLoop::foreign(tasks.clone());
        for first in [100, 200] {
            let entered = here.enter();
            let mut alone: Vec<_> = (0..4).map(|n| start(combiner.send(n))).collect();
            let gathered = [first, first + 1, first + 2].map(|n| start(combiner.send(n)));
            // It leaves its slot to them.
            drop(alone.pop());
            drop(entered);
            for (n, answer) in (first..).zip(gathered) {
                assert_eq!(answer.await.unwrap(), n);
            }
            drop(alone);
            // Until no patrol is under way any more.
            io.sleep(TICK * (IDLE + 5)).await;
            assert!(!combiner.patrols.load(Ordering::SeqCst));
            // The loop drops what it has not polled.
            let unpolled = std::mem::take(&mut *tasks.0.lock().unwrap());
            drop(unpolled);
            assert!(combiner.lock().is_empty());
        }
        let sent = sent.lock().unwrap();
        assert!(sent.ends_with(&[200, 201, 202]), "{sent:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_abandoned_request_is_never_sent() {
        let sent = Arc::new(Mutex::new(Vec::new()));
        let combiner = Combiner::new(Store(sent.clone()), LIMITS, paused_io().0);
        let alone: Vec<_> = (0..4).map(|n| start(combiner.send(n))).collect();
        let gathers = start(combiner.send(100));
        // Its turn comes, and the task that sends it has not begun.
        drop(alone);
        drop(gathers);
        others_run().await;
        assert_eq!(*sent.lock().unwrap(), [0, 1, 2, 3]);
        assert!(combiner.lock().is_empty());
    }
}
