//! What a task asks for, and what it holds then: one lock of any kind, several, one twice, a term, or
//! a run in a period.

use std::sync::Arc;
use std::time::Duration;

use latchwork::once::{Begun, Run};
use latchwork::{
    Election, Error, ErrorKind, Guard, Leadership, Lock, LockManager, Lost, MultiGuard, MultiLock,
};
use latchwork::{Once, Owner, Period, ReentrantMutex, Resize, Semaphore};
use latchwork_store::{Capabilities, Mode};

use crate::luck::Luck;

/// The period of the tasks that run once in each.
pub(crate) const EVERY: &str = "2s";

/// How many permits there are on a key: the tasks disagree, and change it.
pub(crate) const LIMITS: [u32; 2] = [3, 2];

/// How long a try waits that is cancelled before.
const LONG: Duration = Duration::from_secs(60);

/// What a key is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Short holds by many tasks: handover at its busiest.
    Hot,
    /// Holds of up to two ttls, some of them with a `max_hold` that they exceed.
    Long,
    /// Fair attempts only, mostly short.
    Fair,
    /// Readers beside each other, and writers.
    Shared,
    /// Some of a few permits.
    Permits,
    /// Two keys at once.
    Several,
    /// One key, entered twice by its owner.
    Entered,
    /// Elections.
    Lead,
    /// Tasks that run once in each period.
    Once,
}

impl Kind {
    /// All kinds that have keys of their own.
    pub(crate) const ALL: [Kind; 9] = [
        Kind::Hot,
        Kind::Long,
        Kind::Fair,
        Kind::Shared,
        Kind::Permits,
        Kind::Several,
        Kind::Entered,
        Kind::Lead,
        Kind::Once,
    ];

    /// What this task of a worker does, at a store that can do so much.
    pub(crate) fn of(task: u32, can: &Capabilities) -> Self {
        match task % 12 {
            0..3 => Self::Hot,
            3 if can.fifo => Self::Fair,
            5 if can.shared => Self::Shared,
            6 if can.permits => Self::Permits,
            7 => Self::Several,
            8 => Self::Entered,
            10 => Self::Lead,
            11 => Self::Once,
            _ => Self::Long,
        }
    }

    /// How many keys of this kind there are, if there are so many of each.
    pub(crate) fn keys(self, each: u32) -> u32 {
        // Any two of them are taken together.
        if self == Self::Several { each + 2 } else { each }
    }

    /// The name of a key.
    pub(crate) fn key(self, number: u32) -> Arc<str> {
        let kind = match self {
            Self::Hot => "hot",
            Self::Long => "long",
            Self::Fair => "fair",
            Self::Shared => "shared",
            Self::Permits => "permits",
            Self::Several => "several",
            Self::Entered => "entered",
            Self::Lead => "lead",
            Self::Once => "once",
        };
        format!("{kind}{number}").into()
    }
}

/// What a task asks for.
pub(crate) struct Wish {
    pub(crate) kind: Kind,
    pub(crate) keys: Vec<Arc<str>>,
    pub(crate) mode: Mode,
    /// Sets the limit of the key first.
    resizes: Option<Semaphore>,
    lock: Wanted,
}

enum Wanted {
    One(Lock),
    Several(MultiLock),
    Entered(ReentrantMutex, Owner),
    Term(Election),
    Task(Once),
}

/// What it holds.
pub(crate) enum Held {
    One(Guard),
    Several(MultiGuard),
    Entered { outer: Guard, inner: Guard },
    Term(Leadership),
    Run(Run),
}

impl Wish {
    /// A wish of this kind, for one or two of so many keys. `max_hold` is for a mutex alone.
    pub(crate) fn of(
        kind: Kind,
        each: u32,
        locks: &LockManager,
        owner: &str,
        max_hold: Option<Duration>,
        luck: &mut Luck,
    ) -> Self {
        let count = kind.keys(each) as usize;
        let first = luck.below(count);
        let key = kind.key(first as u32);
        let limited = |lock: Lock| match max_hold {
            Some(longest) => lock.max_hold(longest),
            None => lock,
        };
        let mut resizes = None;
        let (keys, mode, lock) = match kind {
            Kind::Lead => {
                let term = Wanted::Term(locks.election(&key).candidate(owner));
                (vec![key], Mode::Exclusive, term)
            }
            Kind::Once => {
                let every = Period::parse(EVERY, None).expect("it is a period");
                let task = Wanted::Task(locks.once(&key, every));
                (vec![key], Mode::Exclusive, task)
            }
            Kind::Hot | Kind::Long => {
                let lock = Wanted::One(limited(locks.mutex(&key)));
                (vec![key], Mode::Exclusive, lock)
            }
            Kind::Fair => {
                let lock = Wanted::One(limited(locks.mutex(&key).fair()));
                (vec![key], Mode::Exclusive, lock)
            }
            Kind::Shared => {
                let both = locks.rwlock(&key);
                let (mode, lock) = match luck.percent(70) {
                    true => (Mode::Read, both.read()),
                    false => (Mode::Write, both.write()),
                };
                (vec![key], mode, Wanted::One(lock))
            }
            Kind::Permits => {
                let take = if luck.percent(70) { 1 } else { 2 };
                let can = locks.capabilities();
                let of = if can.mixed_limits && luck.percent(40) { LIMITS[1] } else { LIMITS[0] };
                let mut semaphore = locks.semaphore(&key, of);
                if can.mixed_limits {
                    let policy = if luck.percent(70) { Resize::ToMine } else { Resize::Follow };
                    semaphore = semaphore.resize_policy(policy);
                }
                resizes = (can.resize && luck.percent(15)).then(|| semaphore.clone());
                let lock = semaphore.permits(take);
                (vec![key], Mode::Permits { take, of }, Wanted::One(lock))
            }
            Kind::Several => {
                let second = (first + 1 + luck.below(count - 1)) % count;
                let keys = vec![key, kind.key(second as u32)];
                let lock = MultiLock::of(keys.iter().map(|key| locks.mutex(key)));
                (keys, Mode::Exclusive, Wanted::Several(lock))
            }
            Kind::Entered => {
                let lock = Wanted::Entered(locks.reentrant(&key), Owner::named(owner));
                (vec![key], Mode::Exclusive, lock)
            }
        };
        Self { kind, keys, mode, resizes, lock }
    }

    /// Sets the limit, if this wish does. A store that does not answer may have done it or not.
    async fn resize(&self) -> Result<(), Error> {
        let Some(semaphore) = &self.resizes else { return Ok(()) };
        match semaphore.resize().await {
            Err(error) if error.kind() == ErrorKind::Mismatch => Err(error),
            _ => Ok(()),
        }
    }

    pub(crate) async fn try_acquire(&self) -> Result<Option<Held>, Error> {
        self.resize().await?;
        Ok(match &self.lock {
            Wanted::One(lock) => lock.try_acquire().await?.map(Held::One),
            Wanted::Several(locks) => locks.try_acquire().await?.map(Held::Several),
            Wanted::Entered(lock, owner) => match lock.try_acquire(owner).await? {
                Some(outer) => Some(again(lock, owner, outer).await?),
                None => None,
            },
            Wanted::Term(election) => election.try_campaign().await?.map(Held::Term),
            Wanted::Task(task) => run(task.try_begin().await?),
        })
    }

    /// `None` only where there is nothing to wait for: the task is done.
    pub(crate) async fn acquire(&self, within: Option<Duration>) -> Result<Option<Held>, Error> {
        self.resize().await?;
        Ok(Some(match (&self.lock, within) {
            (Wanted::One(lock), None) => Held::One(lock.acquire().await?),
            (Wanted::One(lock), Some(limit)) => Held::One(lock.acquire_within(limit).await?),
            (Wanted::Several(locks), None) => Held::Several(locks.acquire().await?),
            (Wanted::Several(locks), Some(limit)) => {
                Held::Several(locks.acquire_within(limit).await?)
            }
            (Wanted::Entered(lock, owner), limit) => {
                let outer = match limit {
                    None => lock.acquire(owner).await?,
                    Some(limit) => lock.acquire_within(owner, limit).await?,
                };
                again(lock, owner, outer).await?
            }
            (Wanted::Term(election), None) => Held::Term(election.campaign().await?),
            (Wanted::Term(election), Some(limit)) => {
                Held::Term(election.campaign_within(limit).await?)
            }
            (Wanted::Task(task), limit) => {
                let begun = task.begin_within(limit.unwrap_or(LONG)).await?;
                return Ok(run(begun));
            }
        }))
    }
}

/// A run, if one has begun.
fn run(begun: Begun) -> Option<Held> {
    match begun {
        Begun::Run(run) => Some(Held::Run(run)),
        Begun::Skipped(_) => None,
    }
}

/// Enters once more. Where the hold was lost meanwhile, that is a new one, or none.
async fn again(lock: &ReentrantMutex, owner: &Owner, outer: Guard) -> Result<Held, Error> {
    Ok(match lock.try_acquire(owner).await? {
        Some(inner) if inner.token() == outer.token() => Held::Entered { outer, inner },
        Some(anew) => Held::One(anew),
        None => Held::One(outer),
    })
}

impl Held {
    /// The locks, each once.
    pub(crate) fn guards(&self) -> &[Guard] {
        match self {
            Self::One(guard) | Self::Entered { outer: guard, .. } => std::slice::from_ref(guard),
            Self::Several(guards) => guards.guards(),
            Self::Term(term) => std::slice::from_ref::<Guard>(term),
            Self::Run(run) => std::slice::from_ref::<Guard>(run),
        }
    }

    /// When the period of a run began, on the wall clock.
    pub(crate) fn period_start(&self) -> Option<Duration> {
        match self {
            Self::Run(run) => Some(run.period().start),
            _ => None,
        }
    }

    pub(crate) async fn lost(&self) -> Lost {
        match self {
            Self::One(guard) | Self::Entered { outer: guard, .. } => guard.lost().await,
            Self::Several(guards) => guards.lost().await,
            Self::Term(term) => term.lost().await,
            Self::Run(run) => run.lost().await,
        }
    }

    pub(crate) async fn release(self) -> Result<(), Error> {
        match self {
            Self::One(guard) => guard.release().await,
            Self::Several(guards) => guards.release().await,
            Self::Term(term) => term.resign().await,
            Self::Run(run) => run.succeed().await,
            Self::Entered { outer, inner } => {
                // The hold goes on until its owner has left as often as it has entered.
                inner.release().await?;
                outer.release().await
            }
        }
    }
}
