//! What a task asks for, and what it holds then: one lock of any kind, several, or one twice.

use std::sync::Arc;
use std::time::Duration;

use latchwork::Lost;
use latchwork::store::{Capabilities, Mode};
use latchwork::{Error, Guard, Lock, LockManager, MultiGuard, MultiLock, Owner, ReentrantMutex};

use crate::luck::Luck;

/// How many permits there are on a key.
const PERMITS: u32 = 3;

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
    /// Elections. Clients of the service only.
    Lead,
    /// Tasks that run once in each period. Clients of the service only.
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
        match task % 10 {
            0..3 => Self::Hot,
            3 if can.fifo => Self::Fair,
            5 if can.shared => Self::Shared,
            6 if can.permits => Self::Permits,
            7 => Self::Several,
            8 => Self::Entered,
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
    lock: Wanted,
}

enum Wanted {
    One(Lock),
    Several(MultiLock),
    Entered(ReentrantMutex, Owner),
}

/// What it holds.
pub(crate) enum Held {
    One(Guard),
    Several(MultiGuard),
    Entered { outer: Guard, inner: Guard },
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
        let (keys, mode, lock) = match kind {
            Kind::Hot | Kind::Long | Kind::Lead | Kind::Once => {
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
                let lock = locks.semaphore(&key, PERMITS).permits(take);
                (vec![key], Mode::Permits { take, of: PERMITS }, Wanted::One(lock))
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
        Self { kind, keys, mode, lock }
    }

    pub(crate) async fn try_acquire(&self) -> Result<Option<Held>, Error> {
        Ok(match &self.lock {
            Wanted::One(lock) => lock.try_acquire().await?.map(Held::One),
            Wanted::Several(locks) => locks.try_acquire().await?.map(Held::Several),
            Wanted::Entered(lock, owner) => match lock.try_acquire(owner).await? {
                Some(outer) => Some(again(lock, owner, outer).await?),
                None => None,
            },
        })
    }

    pub(crate) async fn acquire(&self, within: Option<Duration>) -> Result<Held, Error> {
        Ok(match (&self.lock, within) {
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
        })
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
        }
    }

    pub(crate) async fn lost(&self) -> Lost {
        match self {
            Self::One(guard) | Self::Entered { outer: guard, .. } => guard.lost().await,
            Self::Several(guards) => guards.lost().await,
        }
    }

    pub(crate) async fn release(self) -> Result<(), Error> {
        match self {
            Self::One(guard) => guard.release().await,
            Self::Several(guards) => guards.release().await,
            Self::Entered { outer, inner } => {
                // The hold goes on until its owner has left as often as it has entered.
                inner.release().await?;
                outer.release().await
            }
        }
    }
}
