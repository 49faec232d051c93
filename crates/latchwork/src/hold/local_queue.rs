//! One queue per key and process: waiters of one process share one place in the store.
//!
//! The first to come leads: it talks to the store for the queue. The others wait here, without a
//! trip, a connection or a timer at the store. The place in the store belongs to the queue, not to
//! a task: when the leader gives up, the next waiter inherits its claim.
//!
//! On release the hold is handed to the next waiter without a trip to the store, with a fresh
//! token. This is lock cohorting (Dice, Marathe, Shavit 2012) with a cap on time and number, after
//! which the hold goes back to the store so that other processes get their turn.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::hold::reaper::{Job, Orphan, Reaper};
use crate::hold::watched::Watched;
use crate::rules::options::{Plan, is_same};
use latchwork_store::{BackendError, Blocked, Cause, ClaimId, Key, Moment};

/// All queues of a manager.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    by_key: Mutex<HashMap<Key, Arc<Queue>>>,
}

/// The waiters of this process on one key.
#[derive(Debug)]
pub(crate) struct Queue {
    key: Key,
    state: Mutex<QueueState>,
}

#[derive(Default)]
struct QueueState {
    /// Somebody leads the queue or holds the key for it.
    busy: bool,
    /// The obstacle that the leader met last.
    in_the_way: Option<InTheWay>,
    /// Since when the store has not answered any leader, and what it said instead.
    trouble: Option<(Moment, BackendError)>,
    /// By the numbers of their places: the smallest is next. A waiter that gives up takes its own out.
    waiting: BTreeMap<i64, Waiting>,
    /// The numbers that were given at the front and at the back. None is given twice.
    given: (i64, i64),
}

impl QueueState {
    fn number(&mut self, wish: Wish) -> i64 {
        let (front, back) = &mut self.given;
        if wish == Wish::First {
            *front -= 1;
            *front
        } else {
            *back += 1;
            *back
        }
    }
}

/// What keeps a claim from being admitted, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum InTheWay {
    /// Somebody holds the key, and so many wait before this claim, where that is known.
    Holder(Arc<str>, Option<u32>),
    /// This holder has released the key and left it closed.
    Closed(Arc<str>),
    /// The store grants nothing for so long yet.
    Quarantine(Option<Duration>),
}

impl InTheWay {
    /// Records the answer to a blocked try.
    pub(crate) fn of(blocked: &Blocked) -> Option<Self> {
        let text = blocked.holder.as_ref().map(|holder| holder.shown());
        match blocked.cause {
            Cause::Quarantine => Some(Self::Quarantine(blocked.retry_after)),
            Cause::Linger => text.map(Self::Closed),
            Cause::Foreign => {
                let text = text.unwrap_or_else(|| "a client of another kind".into());
                Some(Self::Holder(text, blocked.ahead))
            }
            _ => text.map(|text| Self::Holder(text, blocked.ahead)),
        }
    }
}

impl fmt::Display for InTheWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Holder(holder, Some(ahead @ 1..)) => {
                write!(f, "held by {holder}, and {ahead} waited before this one")
            }
            Self::Holder(holder, _) => write!(f, "held by {holder}"),
            Self::Closed(holder) => {
                write!(f, "done by {holder}, closed until its period is over")
            }
            Self::Quarantine(left) => {
                f.write_str("the store may have lost locks and is in quarantine")?;
                match left {
                    Some(left) => write!(f, " for {left:?} more"),
                    None => Ok(()),
                }
            }
        }
    }
}

struct Waiting {
    plan: Plan,
    delivery: oneshot::Sender<Delivery>,
}

/// A waiter's place in a queue. Dropping it leaves the queue: nothing of it stays.
pub(crate) struct Place {
    queue: Arc<Queue>,
    number: i64,
    given: oneshot::Receiver<Delivery>,
}

impl Place {
    /// Waits for the hold or the lead; nothing if it was dropped on its way.
    pub(crate) async fn delivery(&mut self) -> Option<Delivery> {
        (&mut self.given).await.ok()
    }

    pub(crate) fn queue(&self) -> &Queue {
        &self.queue
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let left = self.queue.lock().waiting.remove(&self.number);
        drop(left);
    }
}

/// What a waiter is given.
#[derive(Debug)]
pub(crate) enum Delivery {
    /// The hold itself.
    Handed(Handed),
    /// The lead of the queue: the waiter has to talk to the store.
    Lead(Lead),
}

/// The right and the duty to act for a queue. Dropping it passes it on.
pub(crate) struct Lead {
    queues: Arc<Queues>,
    queue: Arc<Queue>,
    /// The claim that has a place in the store, left by a leader that gave up.
    inherited: Option<Box<Inheritance>>,
    over: bool,
}

/// How a queue is entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Only if it is empty.
    Now,
    /// Behind those who wait.
    InTurn,
    /// Before those who wait: its turn had come, and it could not take it.
    First,
}

/// What entering a queue gives.
pub(crate) enum Entered {
    Lead(Lead),
    Wait(Place),
    /// Somebody of this process holds the key or is about to.
    Busy,
}

impl Queues {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Arc<Queue>>> {
        self.by_key.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins the queue of a key.
    pub(crate) fn enter(self: &Arc<Self>, key: &Key, plan: &Plan, wish: Wish) -> Entered {
        let mut by_key = self.lock();
        let queue = match by_key.get(key) {
            Some(queue) => queue.clone(),
            None => {
                let queue = Arc::new(Queue { key: key.clone(), state: Mutex::default() });
                by_key.insert(key.clone(), queue.clone());
                queue
            }
        };
        // The table stays locked, or the queue could be taken from it between the two steps.
        let mut state = queue.lock();
        if !state.busy {
            state.busy = true;
            drop(state);
            return Entered::Lead(Lead {
                queues: self.clone(),
                queue,
                inherited: None,
                over: false,
            });
        }
        if wish == Wish::Now {
            return Entered::Busy;
        }
        let (delivery, given) = oneshot::channel();
        let number = state.number(wish);
        state.waiting.insert(number, Waiting { plan: plan.clone(), delivery });
        drop(state);
        Entered::Wait(Place { queue, number, given })
    }

    /// Takes a queue that nobody leads or waits in out of the table.
    fn retire(&self, queue: &Arc<Queue>) {
        let mut by_key = self.lock();
        let state = queue.lock();
        let known = by_key.get(&queue.key).is_some_and(|known| Arc::ptr_eq(known, queue));
        if known && !state.busy {
            drop(state);
            by_key.remove(&queue.key);
        }
    }
}

impl Queue {
    /// What keeps the leaders of this queue from an answer.
    pub(crate) fn trouble(&self) -> Option<(Moment, BackendError)> {
        self.lock().trouble.clone()
    }

    /// The obstacle, as far as this process knows.
    pub(crate) fn in_the_way(&self) -> Option<InTheWay> {
        self.lock().in_the_way.clone()
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for QueueState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueState")
            .field("busy", &self.busy)
            .field("waiting", &self.waiting.len())
            .finish()
    }
}

impl Lead {
    /// The claim that the last leader left in the store's queue, and its try that is still under way.
    pub(crate) fn take_inherited(&mut self) -> Option<(ClaimId, Option<Orphan>)> {
        self.inherited.take().map(|left| (left.job.claim.id, left.job.under_way))
    }

    /// Leaves a claim that may have a place in the store to the next waiter of the same ttl; if
    /// there is none, the reaper withdraws it.
    pub(crate) fn leave_to_next(mut self, job: Job, reaper: Reaper) {
        self.inherited = Some(Box::new(Inheritance { job, reaper }));
    }

    /// Remembers what is in the way, for those who give up waiting behind this leader.
    pub(crate) fn note(&self, in_the_way: Option<InTheWay>) {
        let mut state = self.queue.lock();
        state.in_the_way = in_the_way;
        state.trouble = None;
    }

    /// Remembers that the store does not answer, for the leaders and waiters that come after.
    pub(crate) fn note_trouble(&self, since: Moment, error: &BackendError) {
        self.queue.lock().trouble = Some((since, error.clone()));
    }

    /// Since when the store has not answered any leader of this queue.
    pub(crate) fn failing_since(&self) -> Option<Moment> {
        self.queue.lock().trouble.as_ref().map(|(since, _)| *since)
    }

    /// The next waiter that still waits, if it asked for just what was granted.
    ///
    /// Others keep their turn: they must ask the store themselves.
    pub(crate) fn next_for(&self, granted: &Plan) -> Option<NextWaiter> {
        let mut state = self.queue.lock();
        let next = state.waiting.first_entry()?;
        next.get().plan.suits(granted).then(|| NextWaiter(next.remove().delivery))
    }

    /// Passes the lead to the next waiter, or ends it.
    fn pass_on(&mut self) {
        let mut inherited = self.inherited.take();
        loop {
            let mut state = self.queue.lock();
            let Some((_, next)) = state.waiting.pop_first() else {
                state.busy = false;
                drop(state);
                break;
            };
            drop(state);
            // A store keeps the text of the first try.
            let suits = inherited.as_ref().is_some_and(|left| {
                let (claim, plan) = (&left.job.claim, &next.plan);
                claim.ttl == plan.ttl && is_same(&claim.holder, &plan.holder)
            });
            let lead = Lead {
                queues: self.queues.clone(),
                queue: self.queue.clone(),
                inherited: if suits { inherited.take() } else { None },
                over: false,
            };
            let Err(unwanted) = next.delivery.send(Delivery::Lead(lead)) else {
                withdraw(inherited);
                return;
            };
            // That waiter has gone: the lead is still ours to pass on.
            if let Delivery::Lead(mut lead) = unwanted {
                lead.over = true;
                inherited = inherited.or_else(|| lead.inherited.take());
            }
        }
        withdraw(inherited);
        self.queues.retire(&self.queue);
    }
}

/// A claim that may have a place in the store, and who withdraws it if nobody inherits it.
struct Inheritance {
    job: Job,
    reaper: Reaper,
}

fn withdraw(inherited: Option<Box<Inheritance>>) {
    if let Some(left) = inherited {
        left.reaper.reap(left.job);
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        if !self.over {
            self.over = true;
            self.pass_on();
        }
    }
}

impl fmt::Debug for Lead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lead").field("key", &self.queue.key).finish_non_exhaustive()
    }
}

/// A waiter that is about to be given the hold.
pub(crate) struct NextWaiter(oneshot::Sender<Delivery>);

impl NextWaiter {
    /// Gives it the hold; `false` if it has gone, and the hold is still the caller's.
    pub(crate) fn hand(self, maker: Arc<dyn EndHold>, watched: &Arc<Watched>, index: u32) -> bool {
        let handed = Handed { maker: Some(maker), watched: watched.clone(), index };
        match self.0.send(Delivery::Handed(handed)) {
            Ok(()) => true,
            Err(Delivery::Handed(unwanted)) => {
                unwanted.accept();
                false
            }
            Err(Delivery::Lead(_)) => unreachable!("a hold was handed, not a lead"),
        }
    }
}

/// Ends holds as the drop of their guard does.
pub(crate) trait EndHold: Send + Sync {
    /// Ends a hold that no waiter has accepted.
    fn end_hold(self: Arc<Self>, watched: Arc<Watched>, index: u32);
}

/// A hold on its way to a waiter. If nobody accepts it, it ends.
pub(crate) struct Handed {
    maker: Option<Arc<dyn EndHold>>,
    watched: Arc<Watched>,
    /// How often the store's grant was handed over until here.
    index: u32,
}

impl Handed {
    /// Takes the hold out; from here on the caller is responsible for its end.
    pub(crate) fn accept(mut self) -> (Arc<Watched>, u32) {
        self.maker = None;
        (self.watched.clone(), self.index)
    }
}

impl Drop for Handed {
    fn drop(&mut self) {
        if let Some(maker) = self.maker.take() {
            maker.end_hold(self.watched.clone(), self.index);
        }
    }
}

impl fmt::Debug for Handed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handed").field("index", &self.index).finish_non_exhaustive()
    }
}
