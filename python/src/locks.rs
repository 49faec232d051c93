//! Locks of all kinds, whose verbs are operations.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use futures_util::StreamExt as _;
use latchwork::{Error, Guard, Leader, Owner};
use pyo3::prelude::*;

use crate::holds::Held;
use crate::managers::{Shared, duration};
use crate::operation::Operation;
use crate::outcomes::Outcome;

fn limit(timeout: Option<f64>) -> PyResult<Option<Duration>> {
    timeout.map(|timeout| duration(timeout, "timeout")).transpose()
}

/// A mutex, or one mode of another lock.
#[pyclass(frozen, module = "latchwork._native")]
pub(crate) struct Lock {
    lock: latchwork::Lock,
    shared: Arc<Shared>,
}

impl Lock {
    pub(crate) fn new(lock: latchwork::Lock, shared: Arc<Shared>) -> Self {
        Self { lock, shared }
    }
}

#[pymethods]
impl Lock {
    #[pyo3(signature = (timeout=None))]
    fn acquire(&self, timeout: Option<f64>) -> PyResult<Operation> {
        let (lock, shared, limit) = (self.lock.clone(), self.shared.clone(), limit(timeout)?);
        Ok(Operation::new(async move {
            let guard = match limit {
                Some(limit) => lock.acquire_within(limit).await?,
                None => lock.acquire().await?,
            };
            Ok(Outcome::hold(Some(Held::One(guard)), &shared))
        }))
    }

    fn try_acquire(&self) -> Operation {
        let (lock, shared) = (self.lock.clone(), self.shared.clone());
        Operation::new(async move {
            Ok(Outcome::hold(lock.try_acquire().await?.map(Held::One), &shared))
        })
    }
}

/// A mutex that its owner may acquire again.
#[pyclass(frozen, module = "latchwork._native")]
pub(crate) struct Reentrant {
    lock: latchwork::ReentrantMutex,
    shared: Arc<Shared>,
}

impl Reentrant {
    pub(crate) fn new(lock: latchwork::ReentrantMutex, shared: Arc<Shared>) -> Self {
        Self { lock, shared }
    }
}

/// The owner by its name, or this thread.
fn owner(name: Option<String>) -> Owner {
    name.map_or_else(Owner::current_thread, Owner::named)
}

#[pymethods]
impl Reentrant {
    #[pyo3(signature = (name, timeout=None))]
    fn acquire(&self, name: Option<String>, timeout: Option<f64>) -> PyResult<Operation> {
        let (lock, shared) = (self.lock.clone(), self.shared.clone());
        let (owner, limit) = (owner(name), limit(timeout)?);
        Ok(Operation::new(async move {
            let guard = match limit {
                Some(limit) => lock.acquire_within(&owner, limit).await?,
                None => lock.acquire(&owner).await?,
            };
            Ok(Outcome::hold(Some(Held::One(guard)), &shared))
        }))
    }

    fn try_acquire(&self, name: Option<String>) -> Operation {
        let (lock, shared, owner) = (self.lock.clone(), self.shared.clone(), owner(name));
        Operation::new(async move {
            Ok(Outcome::hold(lock.try_acquire(&owner).await?.map(Held::One), &shared))
        })
    }
}

/// Several mutexes that are acquired together.
#[pyclass(frozen, module = "latchwork._native")]
pub(crate) struct Multi {
    lock: latchwork::MultiLock,
    shared: Arc<Shared>,
}

impl Multi {
    pub(crate) fn new(lock: latchwork::MultiLock, shared: Arc<Shared>) -> Self {
        Self { lock, shared }
    }
}

#[pymethods]
impl Multi {
    #[pyo3(signature = (timeout=None))]
    fn acquire(&self, timeout: Option<f64>) -> PyResult<Operation> {
        let (lock, shared, limit) = (self.lock.clone(), self.shared.clone(), limit(timeout)?);
        Ok(Operation::new(async move {
            let guards = match limit {
                Some(limit) => lock.acquire_within(limit).await?,
                None => lock.acquire().await?,
            };
            Ok(Outcome::hold(Some(Held::Several(guards)), &shared))
        }))
    }

    fn try_acquire(&self) -> Operation {
        let (lock, shared) = (self.lock.clone(), self.shared.clone());
        Operation::new(async move {
            Ok(Outcome::hold(lock.try_acquire().await?.map(Held::Several), &shared))
        })
    }
}

/// An election.
#[pyclass(frozen, module = "latchwork._native")]
pub(crate) struct Election {
    election: latchwork::Election,
    shared: Arc<Shared>,
}

impl Election {
    pub(crate) fn new(election: latchwork::Election, shared: Arc<Shared>) -> Self {
        Self { election, shared }
    }
}

#[pymethods]
impl Election {
    #[pyo3(signature = (timeout=None))]
    fn acquire(&self, timeout: Option<f64>) -> PyResult<Operation> {
        let (election, shared) = (self.election.clone(), self.shared.clone());
        let limit = limit(timeout)?;
        Ok(Operation::new(async move {
            let leadership = match limit {
                Some(limit) => election.campaign_within(limit).await?,
                None => election.campaign().await?,
            };
            Ok(Outcome::hold(Some(Held::One(leadership.into())), &shared))
        }))
    }

    fn try_acquire(&self) -> Operation {
        let (election, shared) = (self.election.clone(), self.shared.clone());
        Operation::new(async move {
            let leadership = election.try_campaign().await?.map(|it| Held::One(Guard::from(it)));
            Ok(Outcome::hold(leadership, &shared))
        })
    }

    fn leader(&self) -> Operation {
        let election = self.election.clone();
        Operation::new(async move { Ok(Outcome::Leader(election.leader().await?)) })
    }

    fn observe(&self) -> Observing {
        let seen: Seen = Box::pin(self.election.observe());
        Observing { seen: Arc::new(tokio::sync::Mutex::new(seen)) }
    }
}

type Seen = Pin<Box<dyn Stream<Item = Result<Option<Leader>, Error>> + Send>>;

/// The leaders of an election, one after the other.
#[pyclass(frozen, module = "latchwork._native")]
pub(crate) struct Observing {
    seen: Arc<tokio::sync::Mutex<Seen>>,
}

#[pymethods]
impl Observing {
    /// Completes with the next leader; with `...` at the end.
    fn next(&self) -> Operation {
        let seen = self.seen.clone();
        Operation::new(async move {
            match seen.lock().await.next().await {
                Some(leader) => Ok(Outcome::Leader(leader?)),
                None => Ok(Outcome::End),
            }
        })
    }
}

/// A task that runs once in each period.
#[pyclass(frozen, module = "latchwork._native")]
pub(crate) struct Once {
    once: latchwork::Once,
    shared: Arc<Shared>,
}

impl Once {
    pub(crate) fn new(once: latchwork::Once, shared: Arc<Shared>) -> Self {
        Self { once, shared }
    }
}

#[pymethods]
impl Once {
    #[pyo3(signature = (timeout=None))]
    fn begin(&self, timeout: Option<f64>) -> PyResult<Operation> {
        let (once, shared, limit) = (self.once.clone(), self.shared.clone(), limit(timeout)?);
        Ok(Operation::new(async move {
            let begun = match limit {
                Some(limit) => once.begin_within(limit).await?,
                None => once.try_begin().await?,
            };
            Ok(Outcome::Begun(Box::new(begun), shared))
        }))
    }

    fn reset(&self) -> Operation {
        let once = self.once.clone();
        Operation::new(async move { Ok(Outcome::Reset(once.reset().await?)) })
    }
}
