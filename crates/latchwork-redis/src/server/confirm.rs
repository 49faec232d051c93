//! Commands that replicas have to confirm (`WAIT`).
//!
//! `WAIT` blocks its connection. On the shared one it would hold up all other requests, so each such command has a
//! connection beside it while it runs. These connections are kept for the next commands.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use latchwork_store::{BackendError, BackendErrorKind, Effect};
use redis::{Cmd, PushInfo, Value, cmd};
use tokio::sync::oneshot;

use crate::lock;
use crate::server::errors::Failure;
use crate::server::link::Link;
use crate::server::reply::number;

/// How many replicas to ask, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Confirm {
    pub(crate) replicas: u32,
    pub(crate) limit: Duration,
}

impl Confirm {
    /// Checks that enough of them have the change.
    pub(crate) fn check(&self, had: &Result<u32, BackendError>) -> Result<(), BackendError> {
        let wanted = self.replicas;
        match had {
            Ok(confirmed) if *confirmed >= wanted => Ok(()),
            Ok(confirmed) => Err(BackendError::new(
                BackendErrorKind::Unreachable,
                Effect::Unknown,
                format!("{confirmed} of {wanted} replicas confirmed the lock in time"),
            )
            .with_next_step("check the replicas (INFO replication), or lower min_replicas")),
            Err(error) => Err(error.clone().with_effect(Effect::Unknown)),
        }
    }
}

impl Link {
    /// Sends a command, and awaits its answer and the number of replicas that have the change.
    pub(crate) async fn send_confirmed(
        &self,
        command: &Cmd,
        asking: bool,
        confirm: Confirm,
    ) -> Result<(Value, Result<u32, BackendError>), Failure> {
        let _permit = self.beside.permits.acquire().await;
        let beside = loop {
            let idle = lock(&self.beside.idle).pop();
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
        let mut given_up = GivenUp { of: self, client_id: beside.client_id };
        let answers = beside.send_together(commands, usize::from(asking));
        let answers = self.unless_superseded(pin!(answers)).await;
        given_up.client_id = None;
        let (value, replicas) = match answers {
            Ok(answers) => {
                let mut answers = answers.into_iter();
                (Ok(answers.next().unwrap_or(Value::Nil)), answers.next().unwrap_or(Value::Nil))
            }
            Err(error) => (Err(error), Value::Nil),
        };
        let value = beside.read(value)?;
        let replicas = beside.read(Ok(replicas)).map_err(|failure| failure.error);
        if beside.is_alive() {
            lock(&self.beside.idle).push(beside);
        }
        Ok((value, replicas.map(|count| number(&count).unwrap_or(0) as u32)))
    }

    /// One more connection to the same server.
    async fn open_beside(&self) -> Result<Link, BackendError> {
        let (sender, opened) = oneshot::channel();
        let (endpoint, access) = (self.endpoint().clone(), self.beside.access.clone());
        let io = self.io().clone();
        // Connections live on the runtime of the Io.
        self.io().spawn(async move {
            let ignore = Arc::new(|_: PushInfo| {});
            let _ = sender.send(Link::open(endpoint, &access, io, ignore, None).await);
        });
        opened.await.unwrap_or_else(|_| {
            let message = "the store is closed";
            Err(BackendError::new(BackendErrorKind::Unreachable, Effect::NotApplied, message))
        })
    }

    /// Ends the connections whose commands were given up, so that none of these runs after the
    /// commands that follow.
    pub(crate) async fn end_abandoned(&self) {
        let abandoned = std::mem::take(&mut *lock(&self.beside.abandoned));
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
            lock(&self.of.beside.abandoned).push(id);
        }
    }
}
