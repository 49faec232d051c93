//! Locks of all kinds, whose verbs are operations.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use futures_util::StreamExt as _;
use latchwork::once::Begun;
use latchwork::{Error, Leader, Owner};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::holds::{Held, Hold};
use crate::managers::Shared;
use crate::operation::Operation;
use crate::outcomes::{Outcome, duration};

fn limit(timeout: Option<f64>) -> PyResult<Option<Duration>> {
    timeout.map(|timeout| duration(timeout, "timeout")).transpose()
}

/// What can be acquired.
#[derive(Clone)]
pub(crate) enum Kind {
    /// A mutex, or one mode of another lock.
    One(latchwork::Lock),
    Reentrant(latchwork::ReentrantMutex),
    Several(latchwork::MultiLock),
    Election(latchwork::Election),
}

/// A lock, or a place in an election. The owner is that of a reentrant lock, by its name: without one it is this
/// thread.
#[pyclass(frozen, module = "latchwork._native")]
pub(crate) struct Lock {
    kind: Kind,
    shared: Arc<Shared>,
}

impl Lock {
    pub(crate) fn new(kind: Kind, shared: Arc<Shared>) -> Self {
        Self { kind, shared }
    }

    /// Acquires it without a limit.
    pub(crate) fn acquiring(&self, owner: Option<String>) -> Operation {
        match &self.kind {
            // By itself: a future that could be of any kind is larger.
            Kind::One(lock) => {
                let lock = lock.clone();
                self.operation(async move { Ok(Some(Held::One(lock.acquire().await?))) })
            }
            kind => self.operation(acquired(kind.clone(), self::owner(owner))),
        }
    }

    pub(crate) fn is_reentrant(&self) -> bool {
        matches!(self.kind, Kind::Reentrant(_))
    }

    fn operation<F>(&self, work: F) -> Operation
    where
        F: Future<Output = Result<Option<Held>, Error>> + Send + 'static,
    {
        let shared = self.shared.clone();
        Operation::new(async move { Ok(Hold::outcome(work.await?, &shared)) })
    }
}

fn owner(name: Option<String>) -> Owner {
    name.map_or_else(Owner::current_thread, Owner::named)
}

async fn acquired(kind: Kind, owner: Owner) -> Result<Option<Held>, Error> {
    Ok(Some(match kind {
        Kind::One(lock) => Held::One(lock.acquire().await?),
        Kind::Reentrant(lock) => Held::One(lock.acquire(&owner).await?),
        Kind::Several(lock) => Held::Several(lock.acquire().await?),
        Kind::Election(it) => Held::One(it.campaign().await?.into()),
    }))
}

async fn acquired_within(kind: Kind, owner: Owner, limit: Duration) -> Result<Option<Held>, Error> {
    Ok(Some(match kind {
        Kind::One(lock) => Held::One(lock.acquire_within(limit).await?),
        Kind::Reentrant(lock) => Held::One(lock.acquire_within(&owner, limit).await?),
        Kind::Several(lock) => Held::Several(lock.acquire_within(limit).await?),
        Kind::Election(it) => Held::One(it.campaign_within(limit).await?.into()),
    }))
}

async fn tried(kind: Kind, owner: Owner) -> Result<Option<Held>, Error> {
    Ok(match kind {
        Kind::One(lock) => lock.try_acquire().await?.map(Held::One),
        Kind::Reentrant(lock) => lock.try_acquire(&owner).await?.map(Held::One),
        Kind::Several(lock) => lock.try_acquire().await?.map(Held::Several),
        Kind::Election(it) => it.try_campaign().await?.map(|it| Held::One(it.into())),
    })
}

#[pymethods]
impl Lock {
    #[pyo3(signature = (timeout=None, owner=None))]
    fn acquire(&self, timeout: Option<f64>, owner: Option<String>) -> PyResult<Operation> {
        Ok(match limit(timeout)? {
            None => self.acquiring(owner),
            Some(limit) => {
                let (kind, owner) = (self.kind.clone(), self::owner(owner));
                self.operation(acquired_within(kind, owner, limit))
            }
        })
    }

    #[pyo3(signature = (owner=None))]
    fn try_acquire(&self, owner: Option<String>) -> Operation {
        self.operation(tried(self.kind.clone(), self::owner(owner)))
    }

    /// The leader of an election.
    fn leader(&self) -> PyResult<Operation> {
        let election = self.election()?.clone();
        Ok(Operation::new(async move { Ok(Outcome::Leader(election.leader().await?)) }))
    }

    /// The leaders of an election, one after the other.
    fn observe(&self) -> PyResult<Observing> {
        let seen: Seen = Box::pin(self.election()?.observe());
        Ok(Observing { seen: Arc::new(tokio::sync::Mutex::new(seen)) })
    }
}

impl Lock {
    fn election(&self) -> PyResult<&latchwork::Election> {
        match &self.kind {
            Kind::Election(election) => Ok(election),
            _ => Err(PyTypeError::new_err("only an election has a leader")),
        }
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
            Ok(match begun {
                Begun::Run(run) => Hold::outcome(Some(Held::Run(run)), &shared),
                Begun::Skipped(why) => Outcome::Skipped(why),
            })
        }))
    }

    fn reset(&self) -> Operation {
        let once = self.once.clone();
        Operation::new(async move { Ok(Outcome::Reset(once.reset().await?)) })
    }
}
