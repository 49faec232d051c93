//! Threads for verbs that block: one that stalls delays no other.
//!
//! Verbs of a store that does file I/O block the thread that polls them, for as long as the disk
//! takes. Renewals and releases that nobody waits for run here then: their futures stand in one
//! queue, and a thread that is stuck keeps only the one that it polls. Threads are started when
//! there is work and all others are busy, and end when they have been idle for a while.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use latchwork_store::Task;

/// How many verbs may stall before others have to wait for them.
pub(crate) const MOST: usize = 4;
/// How long a thread waits for work before it ends.
const IDLE: Duration = Duration::from_secs(15);

/// Starts a thread that does this.
type StartThread = Box<dyn Fn(Box<dyn FnOnce() + Send>) -> bool + Send + Sync>;

pub(crate) struct Workers {
    state: Mutex<State>,
    more: Condvar,
    /// How many threads there are at a time.
    most: usize,
    start_thread: StartThread,
    #[cfg(feature = "testing")]
    idle: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Arc<Job>>,
    threads: usize,
    idle: usize,
    /// Jobs that somebody may still wake.
    open: usize,
    closed: bool,
    /// How many threads wait for all of these to be idle.
    #[cfg(feature = "testing")]
    watched: usize,
}

struct Job {
    workers: Weak<Workers>,
    progress: Mutex<Progress>,
}

/// The state of a job: idle, in the queue, or with a thread.
struct Progress {
    /// None while a thread polls it, and when it has ended.
    task: Option<Task>,
    queued: bool,
    /// Woken while it was polled.
    woken: bool,
}

impl Workers {
    pub(crate) fn new(
        most: usize,
        start_thread: impl Fn(Box<dyn FnOnce() + Send>) -> bool + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            more: Condvar::new(),
            most,
            start_thread: Box::new(start_thread),
            #[cfg(feature = "testing")]
            idle: Condvar::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a task to its end. Gives it back if the system grants no thread for it.
    pub(crate) fn spawn(self: &Arc<Self>, task: Task) -> Result<(), Task> {
        let mut state = self.lock();
        if state.closed {
            drop(state);
            drop(task);
            return Ok(());
        }
        if !self.ensure_thread(&mut state, 1) {
            return Err(task);
        }
        state.open += 1;
        let progress = Mutex::new(Progress { task: Some(task), queued: true, woken: false });
        state.queue.push_back(Arc::new(Job { workers: Arc::downgrade(self), progress }));
        drop(state);
        self.more.notify_one();
        Ok(())
    }

    fn push(self: &Arc<Self>, job: Arc<Job>) {
        let mut state = self.lock();
        if state.closed {
            drop(state);
            return drop(job);
        }
        // There is at least one thread for as long as a job is open.
        self.ensure_thread(&mut state, 1);
        state.queue.push_back(job);
        drop(state);
        self.more.notify_one();
    }

    /// Starts a thread if fewer are idle than there is work; `false` if there is none at all.
    fn ensure_thread(self: &Arc<Self>, state: &mut State, more: usize) -> bool {
        if state.idle < state.queue.len() + more && state.threads < self.most {
            let this = self.clone();
            if (self.start_thread)(Box::new(move || this.work())) {
                state.threads += 1;
            }
        }
        state.threads > 0
    }

    /// A thread's life.
    fn work(self: Arc<Self>) {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.queue.pop_front() {
                drop(state);
                job.run();
                drop(job);
                state = self.lock();
                continue;
            }
            if state.closed {
                break;
            }
            state.idle += 1;
            #[cfg(feature = "testing")]
            if state.watched > 0 && state.is_idle() {
                self.idle.notify_all();
            }
            let (next, waited) =
                self.more.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
            state = next;
            state.idle -= 1;
            let is_needed = state.threads == 1 && state.open > 0;
            if waited.timed_out() && state.queue.is_empty() && !is_needed {
                break;
            }
        }
        state.threads -= 1;
    }

    /// Waits until nothing can run before it is woken; `false` if that took longer than this.
    #[cfg(feature = "testing")]
    pub(crate) fn wait_idle(&self, limit: Duration) -> bool {
        let mut state = self.lock();
        state.watched += 1;
        let waited = self.idle.wait_timeout_while(state, limit, |state| !state.is_idle());
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.watched -= 1;
        state.is_idle()
    }

    /// Ends the threads, each as soon as what it polls lets go of it; what waits is dropped.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let queue = std::mem::take(&mut state.queue);
        drop(state);
        self.more.notify_all();
        drop(queue);
    }
}

#[cfg(feature = "testing")]
impl State {
    /// Whether every thread waits for work, and there is none.
    fn is_idle(&self) -> bool {
        self.queue.is_empty() && (self.idle == self.threads || self.closed)
    }
}

impl Job {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Polls the task once.
    fn run(self: &Arc<Self>) {
        let mut progress = self.progress();
        progress.queued = false;
        let Some(mut task) = progress.task.take() else { return };
        drop(progress);
        let waker = Waker::from(self.clone());
        let polled =
            catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(&mut Context::from_waker(&waker))));
        if !matches!(polled, Ok(Poll::Pending)) {
            let _ = catch_unwind(AssertUnwindSafe(|| drop(task)));
            return;
        }
        let mut progress = self.progress();
        progress.task = Some(task);
        if std::mem::take(&mut progress.woken) {
            progress.queued = true;
            drop(progress);
            self.requeue();
        }
    }

    fn requeue(self: &Arc<Self>) {
        if let Some(workers) = self.workers.upgrade() {
            workers.push(self.clone());
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if let Some(workers) = self.workers.upgrade() {
            workers.lock().open -= 1;
        }
    }
}

impl Wake for Job {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut progress = self.progress();
        if progress.queued {
            return;
        }
        if progress.task.is_none() {
            progress.woken = true;
            return;
        }
        progress.queued = true;
        drop(progress);
        self.requeue();
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "tests start and block threads")]

    use std::sync::mpsc;

    use super::*;

    fn workers() -> Arc<Workers> {
        Workers::new(MOST, |work| {
            std::thread::spawn(work);
            true
        })
    }

    #[test]
    fn a_task_that_blocks_delays_no_other() {
        let workers = workers();
        let (release, blocked) = mpsc::channel::<()>();
        let (done, ended) = mpsc::channel();
        assert!(
            workers
                .spawn(Box::pin(async move {
                    let _ = blocked.recv();
                }))
                .is_ok()
        );
        for n in 0..100 {
            let done = done.clone();
            let task = async move {
                tokio::task::yield_now().await;
                done.send(n).unwrap();
            };
            assert!(workers.spawn(Box::pin(task)).is_ok());
        }
        let mut seen: Vec<_> = ended.iter().take(100).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..100).collect::<Vec<_>>());
        assert!(workers.lock().threads <= MOST);
        release.send(()).unwrap();
    }

    #[test]
    fn no_more_threads_than_the_limit_are_started() {
        let workers = workers();
        let (release, gate) = mpsc::channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        let (done, ended) = mpsc::channel();
        for _ in 0..3 * MOST {
            let (gate, done) = (gate.clone(), done.clone());
            let task = async move {
                let _ = gate.lock().unwrap().recv();
                done.send(()).unwrap();
            };
            assert!(workers.spawn(Box::pin(task)).is_ok());
        }
        assert_eq!(workers.lock().threads, MOST);
        drop(release);
        assert_eq!(ended.iter().take(3 * MOST).count(), 3 * MOST);
    }

    #[test]
    fn a_task_that_panics_ends_alone() {
        let workers = workers();
        let (done, ended) = mpsc::channel();
        assert!(workers.spawn(Box::pin(async { std::panic::panic_any("on purpose") })).is_ok());
        assert!(workers.spawn(Box::pin(async move { done.send(()).unwrap() })).is_ok());
        ended.recv().unwrap();
    }

    #[test]
    fn a_wake_up_during_a_poll_is_not_lost() {
        let workers = workers();
        let (done, ended) = mpsc::channel();
        let mut polls = 0;
        let task = std::future::poll_fn(move |cx| {
            polls += 1;
            cx.waker().wake_by_ref();
            if polls < 1_000 { Poll::Pending } else { Poll::Ready(()) }
        });
        let task = async move {
            task.await;
            done.send(()).unwrap();
        };
        assert!(workers.spawn(Box::pin(task)).is_ok());
        ended.recv().unwrap();
    }

    #[test]
    fn closing_the_workers_drops_queued_jobs() {
        let workers = workers();
        let (kept, dropped) = mpsc::channel::<()>();
        let task = async move {
            std::future::pending::<()>().await;
            drop(kept);
        };
        assert!(workers.spawn(Box::pin(task)).is_ok());
        workers.close();
        let (late, refused) = mpsc::channel::<()>();
        assert!(workers.spawn(Box::pin(async move { drop(late) })).is_ok());
        assert!(refused.recv().is_err() && dropped.recv().is_err());
    }

    #[test]
    fn without_a_thread_the_task_comes_back() {
        let workers = Workers::new(MOST, |_| false);
        assert!(workers.spawn(Box::pin(async {})).is_err());
    }
}
