//! What the tasks of a machine do.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use latchwork::{Error, ErrorKind, LockManager, Resize};
use latchwork_store::{Clock, Mode, validity};
use tokio::time::Instant;

use crate::judge::{Held, Judge, Rule};
use crate::machine::Machine;
use crate::plan::{Lock, Op, PERMITS, Start, Stop};

/// One task: its operations, and how many of them have begun. A process that starts after a crash
/// goes on with the next one.
#[derive(Clone)]
pub(crate) struct Worker {
    pub(crate) number: usize,
    pub(crate) ops: Arc<[Op]>,
    pub(crate) begun: Arc<AtomicUsize>,
    pub(crate) done: Arc<AtomicUsize>,
    pub(crate) judge: Arc<Judge>,
    pub(crate) ttl: Duration,
}

impl Worker {
    pub(crate) fn is_done(&self) -> bool {
        self.done.load(Ordering::SeqCst) == self.ops.len()
    }

    pub(crate) fn describe(&self) -> String {
        let begun = self.begun.load(Ordering::SeqCst);
        let op = begun.checked_sub(1).and_then(|it| self.ops.get(it));
        format!("task {} is still at {op:?}", self.number)
    }

    /// Works on a machine until all is done.
    pub(crate) async fn run(self, machine: Arc<Machine>, locks: LockManager) {
        // What a crash interrupted counts as done.
        let mut next = self.begun.load(Ordering::SeqCst);
        self.done.store(next, Ordering::SeqCst);
        while let Some(op) = self.ops.get(next) {
            self.begun.store(next + 1, Ordering::SeqCst);
            self.one(&machine, &locks, op).await;
            next += 1;
            self.done.store(next, Ordering::SeqCst);
        }
    }

    async fn one(&self, machine: &Arc<Machine>, locks: &LockManager, op: &Op) {
        let (begun, ran) = (Instant::now(), machine.ran());
        let mode = match op.lock {
            Lock::Mutex { .. } | Lock::Both => Mode::Exclusive,
            Lock::Read => Mode::Read,
            Lock::Write => Mode::Write,
            Lock::Permits(take) => Mode::Permits { take, of: self.limit() },
        };
        self.judge.note(format!("task {} asks for {:?}, {:?}", self.number, op.lock, op.start));
        let acquired = self.acquire(machine, locks, op).await;
        let took = machine.ran() - ran;
        let verbs = if matches!(op.lock, Lock::Both | Lock::Permits(_)) { 2 } else { 1 };
        let verb = validity::op_timeout(self.ttl) * verbs;
        match op.start {
            Start::Try => self.judge.took(self.number, "a try", took, verb),
            Start::Within(limit) => {
                self.judge.took(self.number, "a bounded wait", took, limit + verb);
            }
            Start::Wait | Start::Cancel(_) => {}
        }
        match acquired {
            Ok(Some(held)) => self.hold(machine, op, mode, held, begun).await,
            Ok(None) => self.judge.note(format!("task {} gets nothing", self.number)),
            Err(error) => self.failed(op, &error),
        }
        machine.clock.sleep_until(machine.clock.now().plus(op.rest)).await;
    }

    /// The limit of permits that it asks with.
    fn limit(&self) -> u32 {
        PERMITS - self.number as u32 % 2
    }

    async fn acquire(
        &self,
        machine: &Machine,
        locks: &LockManager,
        op: &Op,
    ) -> Result<Option<Held>, Error> {
        let names = ["m0", "m1"];
        let lock = match op.lock {
            Lock::Both => {
                let multi = locks.multi(names);
                let wait = async { multi.acquire().await.map(|it| Some(Held::Both(it))) };
                return match op.start {
                    Start::Try => Ok(multi.try_acquire().await?.map(Held::Both)),
                    Start::Within(limit) => {
                        multi.acquire_within(limit).await.map(|it| Some(Held::Both(it)))
                    }
                    Start::Wait => wait.await,
                    Start::Cancel(after) => unless(machine, after, wait).await,
                };
            }
            Lock::Mutex { key, fair } => {
                let mutex = locks.mutex(names[usize::from(key)]);
                if fair { mutex.fair() } else { mutex }
            }
            Lock::Read => locks.rwlock("rw").read(),
            Lock::Write => locks.rwlock("rw").write(),
            Lock::Permits(take) => {
                let semaphore = locks.semaphore("permits", self.limit());
                let semaphore = semaphore.resize_policy(match self.number % 3 {
                    0 => Resize::Follow,
                    _ => Resize::ToMine,
                });
                if self.number.is_multiple_of(4) {
                    // A store that does not answer may have done it or not.
                    let _ = semaphore.resize().await;
                }
                semaphore.permits(take)
            }
        };
        let wait = async { lock.acquire().await.map(|it| Some(Held::One(it))) };
        match op.start {
            Start::Try => Ok(lock.try_acquire().await?.map(Held::One)),
            Start::Within(limit) => lock.acquire_within(limit).await.map(|it| Some(Held::One(it))),
            Start::Wait => wait.await,
            Start::Cancel(after) => unless(machine, after, wait).await,
        }
    }

    async fn hold(&self, machine: &Arc<Machine>, op: &Op, mode: Mode, held: Held, begun: Instant) {
        let held = Arc::new(held);
        let numbers = self.judge.granted(self.number, machine, &held, mode, begun);
        for (guard, number) in held.guards().iter().zip(numbers.clone()) {
            let (loss, judge) = (guard.watch_loss(), self.judge.clone());
            machine.spawn(async move { judge.lost(number, loss.await) });
        }
        machine.clock.sleep_until(machine.clock.now().plus(op.hold)).await;
        for number in &numbers {
            self.judge.ending(*number);
        }
        let Some(held) = Arc::into_inner(held) else { return };
        if op.stop == Stop::Drop {
            return drop(held);
        }
        let ran = machine.ran();
        let several = held.guards().len() as u32;
        let released = match held {
            Held::One(guard) => guard.release().await,
            Held::Both(guards) => guards.release().await,
        };
        let limit = validity::op_timeout(self.ttl) * several;
        self.judge.took(self.number, "a release", machine.ran() - ran, limit);
        match released {
            Ok(()) => numbers.iter().for_each(|number| self.judge.ended(*number)),
            Err(error) => self.failed(op, &error),
        }
    }

    /// What may fail while something else fails.
    fn failed(&self, op: &Op, error: &Error) {
        let kind = error.kind();
        self.judge.note(format!("task {}: {kind:?}", self.number));
        let expected = match kind {
            ErrorKind::TimedOut => matches!(op.start, Start::Within(_)),
            ErrorKind::Unreachable | ErrorKind::Lost => !self.judge.is_calm(),
            _ => false,
        };
        if !expected {
            self.judge.broken(Rule::NoError, format!("{op:?} of task {}: {error}", self.number));
        }
    }
}

/// Waits, or drops the wait after so long.
async fn unless(
    machine: &Machine,
    after: Duration,
    wait: impl Future<Output = Result<Option<Held>, Error>>,
) -> Result<Option<Held>, Error> {
    tokio::select! {
        biased;
        acquired = wait => acquired,
        () = machine.clock.sleep_until(machine.clock.now().plus(after)) => Ok(None),
    }
}
