//! Commands that count only when replicas have them (`WAIT`).
//!
//! `WAIT` blocks its connection. On the shared one it would hold up everybody else, so each such
//! command has a connection of its own while it is under way; they are kept for the next ones.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use latchwork_store::{BackendError, BackendErrorKind, Effect};
use redis::{Cmd, PushInfo, Value, cmd};
use tokio::sync::{Semaphore, oneshot};

use crate::answers::number;
use crate::connect::Access;
use crate::errors::{Failure, Reaction};
use crate::link::Link;
use crate::locked::lock;

/// The most commands that wait for replicas of one server at once.
const MOST: usize = 64;

/// How many replicas to ask, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Confirm {
    pub(crate) replicas: u32,
    pub(crate) limit: Duration,
}

/// The answer of a master, and how many replicas have what it did.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) value: Value,
    pub(crate) replicas: Result<u32, BackendError>,
}

impl Answer {
    /// An answer for which no replica was asked.
    pub(crate) fn of_master(value: Value) -> Self {
        Self { value, replicas: Ok(0) }
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
    /// Sends a command, and awaits its answer and that of the replicas.
    pub(crate) async fn send_confirmed(
        &self,
        command: &Cmd,
        asking: bool,
        confirm: Confirm,
    ) -> Result<Answer, Failure> {
        let refused = |error| Failure { error, reaction: Reaction::None };
        let _turn = self.confirming.turns.acquire().await;
        let own = loop {
            let idle = lock(&self.confirming.idle).pop();
            match idle {
                Some(link) if link.is_alive() => break link,
                Some(_) => {}
                None => break self.open_beside().await.map_err(refused)?,
            }
        };
        let mut pipeline = redis::pipe();
        if asking {
            pipeline.cmd("ASKING");
        }
        pipeline.add_command(command.clone());
        let millis = u64::try_from(confirm.limit.as_millis()).unwrap_or(u64::MAX).max(1);
        pipeline.cmd("WAIT").arg(confirm.replicas).arg(millis);
        let mut given_up = GivenUp { of: self, client_id: own.client_id() };
        let answers = own.send_together(&pipeline, usize::from(asking), 2);
        let answers = self.unless_succeeded(answers).await;
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
        Ok(Answer { value, replicas: replicas.map(|count| number(&count).unwrap_or(0) as u32) })
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
            Err(BackendError::new(
                BackendErrorKind::Unreachable,
                Effect::NotApplied,
                "the store is closed",
            ))
        })
    }

    /// Ends the connections whose commands were given up, so that none of them runs after what is
    /// sent now.
    pub(crate) async fn end_abandoned(&self) {
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
