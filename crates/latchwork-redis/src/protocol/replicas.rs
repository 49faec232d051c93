//! `min_replicas`: the scripted verbs, whose grants and renewals count only when replicas have
//! them.
//!
//! A grant that too few replicas confirm in time is taken back before the error is told, and such a
//! renewal leaves the validity where it was. A grant that a releaser has pushed is confirmed by a
//! renewal before it counts. A release needs no replica: one that a failover loses ends by its ttl.
//!
//! `WAIT` blocks its connection. On the shared one it would hold up everybody else, so each such
//! command has a connection of its own while it is under way; they are kept for the next ones.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use latchwork_store::{
    Attempt, BackendError, BackendErrorKind, Claim, ClaimId, Effect, Grant, Linger, Released,
    Renewal, Stamp, Wake,
};
use redis::{Cmd, PushInfo, Value, cmd};
use tokio::sync::{Semaphore, oneshot};

use crate::lock;
use crate::protocol::renew::Prepare;
use crate::protocol::scripted::Scripted;
use crate::server::connect::Access;
use crate::server::errors::Failure;
use crate::server::link::Link;
use crate::server::reply::number;

/// How long replicas may take at most.
const LIMIT: Duration = Duration::from_millis(500);
/// The most commands that wait for replicas of one server at once.
const MOST: usize = 64;

/// The scripted verbs, confirmed by replicas.
pub(crate) struct Replicated {
    pub(crate) inner: Arc<Scripted>,
    replicas: u32,
    /// Claims that were taken back without an answer. A release of theirs may still be under way,
    /// and would hit a new grant to one of them.
    undone: Mutex<HashSet<ClaimId>>,
}

impl Replicated {
    pub(crate) fn new(inner: Arc<Scripted>, replicas: u32) -> Self {
        Self { inner, replicas, undone: Mutex::default() }
    }

    fn undone(&self) -> MutexGuard<'_, HashSet<ClaimId>> {
        lock(&self.undone)
    }

    fn confirm(&self, ttl: Duration) -> Confirm {
        Confirm { replicas: self.replicas, limit: limit(ttl) }
    }

    pub(crate) async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, BackendError> {
        if self.undone().contains(&claim.id) {
            self.take_back(claim).await?;
        }
        let names = self.inner.names(claim)?;
        let route = self.inner.store.topology.route(names.slot()).await?;
        let mut route = route.confirmed_by(self.confirm(claim.ttl));
        let attempt = self.inner.try_on(&mut route, &names, claim).await?;
        if matches!(attempt, Attempt::Granted(_))
            && let Err(short) = route.check_replicas()
        {
            let effect = match self.take_back(claim).await {
                Ok(()) => Effect::NotApplied,
                Err(_) => Effect::Unknown,
            };
            return Err(short.with_effect(effect));
        }
        Ok(attempt)
    }

    /// Takes back a grant that does not count. Until that is answered, whatever becomes of this
    /// future, the claim is not tried again.
    async fn take_back(&self, claim: &Claim) -> Result<(), BackendError> {
        self.undone().insert(claim.id);
        let limit = limit(claim.ttl);
        let released = self.inner.store.io.within(limit, self.release(claim, Linger::None)).await;
        released.unwrap_or_else(|| Err(BackendError::no_answer(limit))).map(drop)
    }

    pub(crate) async fn release(
        &self,
        claim: &Claim,
        linger: Linger,
    ) -> Result<Released, BackendError> {
        let slot = self.inner.store.topology.names(&claim.key)?.slot();
        self.inner.store.topology.link(slot).await?.end_abandoned().await;
        let released = self.inner.release(claim, linger).await?;
        if linger != Linger::End {
            self.undone().remove(&claim.id);
        }
        Ok(released)
    }

    pub(crate) async fn renew_all(&self, claims: &[Claim]) -> Vec<Result<Renewal, BackendError>> {
        self.inner.renew_all(claims, &|route, ttl| route.confirmed_by(self.confirm(ttl))).await
    }

    /// Confirms a grant that a releaser has pushed. If that fails the claim tries by itself, and
    /// then it is told why or taken back.
    pub(crate) async fn wait(&self, claim: &Claim) -> Result<Wake, BackendError> {
        let wake = self.inner.wait(claim).await?;
        if !matches!(wake, Wake::Admitted { .. }) {
            return Ok(wake);
        }
        let names = self.inner.store.topology.names(&claim.key)?;
        let stamp = Stamp::new(self.inner.store.io.now());
        let prepare: Prepare<'_> = &|route, ttl| route.confirmed_by(self.confirm(ttl));
        Ok(match self.inner.renew_one(claim, &names, prepare).await {
            Ok(Renewal::Held { ttl, token, store_time }) => Wake::Admitted {
                grant: Grant { token, ttl, store_time },
                stamp,
                since_try: Duration::ZERO,
            },
            Ok(Renewal::Lost) | Err(_) => Wake::Look,
        })
    }
}

/// How long replicas may take for a claim of this ttl: a part of what core allows the verb.
fn limit(ttl: Duration) -> Duration {
    (ttl / 10).clamp(Duration::from_millis(1), LIMIT)
}

/// How many replicas to ask, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Confirm {
    replicas: u32,
    limit: Duration,
}

impl Confirm {
    /// Checks that enough of them have what was done.
    pub(crate) fn check(&self, had: &Result<u32, BackendError>) -> Result<(), BackendError> {
        let wanted = self.replicas;
        match had {
            Ok(confirmed) if *confirmed >= wanted => Ok(()),
            Ok(confirmed) => Err(BackendError::new(
                BackendErrorKind::Unreachable,
                Effect::Unknown,
                format!("{confirmed} of {wanted} replicas confirmed the lock in time"),
            )
            .next_step("check the replicas (INFO replication), or lower min_replicas")),
            Err(error) => Err(error.clone().with_effect(Effect::Unknown)),
        }
    }
}

/// The connections beside a shared one for commands that wait for replicas.
#[derive(Debug)]
pub(crate) struct Confirming {
    access: Arc<Access>,
    idle: Mutex<Vec<Link>>,
    turns: Semaphore,
    /// The numbers of connections whose command was given up: the server may not have read it yet.
    abandoned: Mutex<Vec<i64>>,
}

impl Confirming {
    pub(crate) fn new(access: &Arc<Access>) -> Self {
        Self {
            access: access.clone(),
            idle: Mutex::default(),
            turns: Semaphore::new(MOST),
            abandoned: Mutex::default(),
        }
    }
}

impl Link {
    /// Sends a command, and awaits its answer and how many replicas have what it did.
    pub(crate) async fn send_confirmed(
        &self,
        command: &Cmd,
        asking: bool,
        confirm: Confirm,
    ) -> Result<(Value, Result<u32, BackendError>), Failure> {
        let _turn = self.confirming.turns.acquire().await;
        let own = loop {
            let idle = lock(&self.confirming.idle).pop();
            match idle {
                Some(link) if link.is_alive() => break link,
                Some(_) => {}
                None => break self.open_beside().await?,
            }
        };
        let millis = u64::try_from(confirm.limit.as_millis()).unwrap_or(u64::MAX).max(1);
        let (ask, mut wait) = (cmd("ASKING"), cmd("WAIT"));
        wait.arg(confirm.replicas).arg(millis);
        let commands = [&ask, command, &wait];
        let commands = &commands[usize::from(!asking)..];
        let mut given_up = GivenUp { of: self, client_id: own.client_id() };
        let answers = own.send_together(commands, usize::from(asking));
        let answers = self.unless_superseded(pin!(answers)).await;
        given_up.client_id = None;
        let (value, replicas) = match answers {
            Ok(answers) => {
                let mut answers = answers.into_iter();
                (Ok(answers.next().unwrap_or(Value::Nil)), answers.next().unwrap_or(Value::Nil))
            }
            Err(error) => (Err(error), Value::Nil),
        };
        let value = own.read(value)?;
        let replicas = own.read(Ok(replicas)).map_err(|failure| failure.error);
        if own.is_alive() {
            lock(&self.confirming.idle).push(own);
        }
        Ok((value, replicas.map(|count| number(&count).unwrap_or(0) as u32)))
    }

    /// One more connection to the same server.
    async fn open_beside(&self) -> Result<Link, BackendError> {
        let (sender, opened) = oneshot::channel();
        let (endpoint, access) = (self.endpoint().clone(), self.confirming.access.clone());
        let io = self.io().clone();
        // Connections live on the runtime of the Io.
        self.io().spawn(async move {
            let nobody = Arc::new(|_: PushInfo| {});
            let _ = sender.send(Link::open(endpoint, &access, io, nobody, None).await);
        });
        opened.await.unwrap_or_else(|_| {
            let message = "the store is closed";
            Err(BackendError::new(BackendErrorKind::Unreachable, Effect::NotApplied, message))
        })
    }

    /// Ends the connections whose commands were given up, so that none of them runs after what is
    /// sent now.
    async fn end_abandoned(&self) {
        let abandoned = std::mem::take(&mut *lock(&self.confirming.abandoned));
        for id in abandoned {
            let mut kill = cmd("CLIENT");
            kill.arg("KILL").arg("ID").arg(id);
            let _ = self.send(&kill).await;
        }
    }
}

/// Remembers the connection of a command that is dropped before its answer came.
struct GivenUp<'a> {
    of: &'a Link,
    client_id: Option<i64>,
}

impl Drop for GivenUp<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.client_id {
            lock(&self.of.confirming.abandoned).push(id);
        }
    }
}
