//! What an event loop has to do in its next turn, noted by any thread: operations to go on with, and the tasks and
//! connections of stores, to which the loop lends its thread.
//!
//! A note rings the bell only if the loop would not check by itself: not while it polls, and not while a turn is due.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use futures_util::task::AtomicWaker;
use latchwork_store::{Origin, Task};
use latchwork_wire::{EventLoop, ForeignLoop, Watched};

use crate::bell::Bell;
use crate::waiter::Slot;

/// How often the tasks are polled at a time, at most, because they have woken each other.
const ROUNDS: u32 = 8;

/// What a loop has to do in its next turn.
pub(crate) struct Agenda {
    todo: Mutex<Todo>,
    /// The tasks of stores; `None` once the loop has ended.
    tasks: Mutex<Option<FuturesUnordered<Task>>>,
    bell: Bell,
    origin: Origin,
}

#[derive(Default)]
struct Todo {
    notice: Notice,
    /// Operations that were woken.
    woken: VecDeque<Arc<Slot>>,
    new_tasks: Vec<Task>,
    tasks_are_woken: bool,
    to_watch: Vec<Arc<Watch>>,
    to_leave: Vec<Arc<Watch>>,
    has_ended: bool,
}

/// Whether the loop knows that there is something to do.
#[derive(Default, PartialEq, Eq, Clone, Copy)]
enum Notice {
    #[default]
    None,
    /// The thread of the loop polls, and checks afterwards.
    Promised,
    /// The bell has rung, or a turn is due or under way.
    Given,
}

impl Todo {
    fn is_empty(&self) -> bool {
        self.woken.is_empty()
            && self.new_tasks.is_empty()
            && !self.tasks_are_woken
            && self.to_watch.is_empty()
            && self.to_leave.is_empty()
    }
}

thread_local! {
    /// The address of the agenda that this thread checks after what it does now.
    static SECTION: Cell<usize> = const { Cell::new(0) };
}

impl Agenda {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            todo: Mutex::default(),
            tasks: Mutex::new(Some(FuturesUnordered::new())),
            bell: Bell::new()?,
            origin: Origin::here(),
        })
    }

    pub(crate) fn bell(&self) -> &Bell {
        &self.bell
    }

    /// Whether this is the process of the loop, and not a child of it.
    pub(crate) fn is_here(&self) -> bool {
        self.origin.is_here()
    }

    fn lock(&self) -> MutexGuard<'_, Todo> {
        self.todo.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Notes something, and sees to it that the loop checks. What is noted after the end of the loop is dropped.
    fn note<T>(&self, noted: T, note: impl FnOnce(&mut Todo, T)) {
        let mut todo = self.lock();
        if todo.has_ended {
            drop(todo);
            drop(noted); // not under the lock: it may note something itself
            return;
        }
        note(&mut todo, noted);
        if todo.notice != Notice::None {
            return;
        }
        if SECTION.get() == self.address() {
            todo.notice = Notice::Promised;
            return;
        }
        todo.notice = Notice::Given;
        drop(todo);
        self.bell.ring();
    }

    /// An operation was woken.
    pub(crate) fn go_on(&self, slot: Arc<Slot>) {
        self.note(slot, |todo, slot| todo.woken.push_back(slot));
    }

    /// Begins something after which this thread, which is the loop's, checks by itself.
    pub(crate) fn section(&self) -> Section<'_> {
        Section { agenda: self, before: SECTION.replace(self.address()) }
    }

    /// Takes the promise over; tells whether there was one.
    fn take_promise(&self) -> bool {
        let mut todo = self.lock();
        let promised = todo.notice == Notice::Promised;
        if promised {
            todo.notice = Notice::Given;
        }
        promised
    }

    /// Begins a turn of the loop: no note needs the bell until its end.
    pub(crate) fn begin(&self) {
        self.lock().notice = Notice::Given;
    }

    /// Ends a turn; tells whether another one is due.
    pub(crate) fn end(&self) -> bool {
        let mut todo = self.lock();
        let more = !todo.is_empty();
        todo.notice = if more { Notice::Given } else { Notice::None };
        more
    }

    /// How many operations were woken so far.
    pub(crate) fn woken(&self) -> usize {
        self.lock().woken.len()
    }

    /// The next operation that was woken.
    pub(crate) fn next_woken(&self) -> Option<Arc<Slot>> {
        self.lock().woken.pop_front()
    }

    /// The connections to watch from now on, and those to watch no more.
    pub(crate) fn changes(&self) -> (Vec<Arc<Watch>>, Vec<Arc<Watch>>) {
        let mut todo = self.lock();
        (std::mem::take(&mut todo.to_watch), std::mem::take(&mut todo.to_leave))
    }

    /// Polls the tasks that were woken.
    pub(crate) fn poll_tasks(self: &Arc<Self>, here: &EventLoop) {
        let Ok(mut tasks) = self.tasks.try_lock() else { return };
        let Some(tasks) = tasks.as_mut() else { return };
        let waker = Waker::from(self.clone());
        let mut cx = Context::from_waker(&waker);
        let _entered = here.enter();
        for _ in 0..ROUNDS {
            {
                let mut todo = self.lock();
                let woken = std::mem::take(&mut todo.tasks_are_woken);
                if !woken && todo.new_tasks.is_empty() {
                    return;
                }
                tasks.extend(todo.new_tasks.drain(..));
            }
            loop {
                let polled = catch_unwind(AssertUnwindSafe(|| tasks.poll_next_unpin(&mut cx)));
                // A panic ends its task, as on a runtime, and not the others.
                if matches!(polled, Ok(Poll::Pending | Poll::Ready(None))) {
                    break;
                }
            }
        }
    }

    /// The loop has ended: its tasks are dropped, and nothing is watched any more.
    pub(crate) fn close(self: &Arc<Self>) {
        if !self.origin.is_here() {
            // What is here belongs to the parent of this process.
            std::mem::forget(self.clone());
            return;
        }
        let noted = {
            let mut todo = self.lock();
            let ended = Todo { has_ended: true, notice: Notice::Given, ..Todo::default() };
            std::mem::replace(&mut *todo, ended)
        };
        let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(tasks);
        drop(noted);
    }
}

impl Wake for Agenda {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.note((), |todo, ()| todo.tasks_are_woken = true);
    }
}

/// While it lives, what this thread notes needs no bell.
#[must_use = "it has to be ended"]
pub(crate) struct Section<'a> {
    agenda: &'a Agenda,
    before: usize,
}

impl Section<'_> {
    /// Tells whether the loop needs a turn.
    pub(crate) fn end(self) -> bool {
        let agenda = self.agenda;
        let is_outer = self.leave();
        std::mem::forget(self);
        is_outer && agenda.take_promise()
    }

    fn leave(&self) -> bool {
        SECTION.set(self.before);
        self.before != self.agenda.address()
    }
}

impl Drop for Section<'_> {
    fn drop(&mut self) {
        // After a panic.
        if self.leave() && self.agenda.take_promise() {
            self.agenda.bell.ring();
        }
    }
}

/// The loop as stores see it.
pub(crate) struct Lent(pub(crate) Arc<Agenda>);

impl ForeignLoop for Lent {
    fn spawn(&self, task: Task) {
        self.0.note(task, |todo, task| todo.new_tasks.push(task));
    }

    fn watch(&self, stream: TcpStream) -> Box<dyn Watched> {
        let watch = Arc::new(Watch {
            stream,
            readable: AtomicBool::new(false),
            refused: AtomicBool::new(false),
            waker: AtomicWaker::new(),
        });
        self.0.note(watch.clone(), |todo, watch| todo.to_watch.push(watch));
        Box::new(Watching { watch, agenda: self.0.clone() })
    }
}

/// A connection that the loop watches.
pub(crate) struct Watch {
    stream: TcpStream,
    readable: AtomicBool,
    refused: AtomicBool,
    waker: AtomicWaker,
}

impl Watch {
    pub(crate) fn descriptor(&self) -> RawFd {
        self.stream.as_raw_fd()
    }

    /// The loop has seen something to read.
    pub(crate) fn is_readable(&self) {
        self.readable.store(true, Ordering::SeqCst);
        self.waker.wake();
    }

    /// The loop does not watch it.
    pub(crate) fn refuse(&self) {
        self.refused.store(true, Ordering::SeqCst);
        self.waker.wake();
    }
}

/// The store's end of a watch. The descriptor is closed only after the loop has left it.
struct Watching {
    watch: Arc<Watch>,
    agenda: Arc<Agenda>,
}

impl Watched for Watching {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.watch.waker.register(cx.waker());
        if self.watch.refused.load(Ordering::SeqCst) {
            return Poll::Ready(Err(io::ErrorKind::Unsupported.into()));
        }
        if self.watch.readable.swap(false, Ordering::SeqCst) {
            return Poll::Ready(Ok(()));
        }
        Poll::Pending
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.agenda.note(self.watch.clone(), |todo, watch| todo.to_leave.push(watch));
    }
}
