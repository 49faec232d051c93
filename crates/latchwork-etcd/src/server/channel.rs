//! The connection to one member: HTTP/2, opened when it is first used, and again after it has
//! ended.

mod connection;
mod exchange;
mod mover;
mod stream;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use latchwork_store::{Error, ErrorKind, Io};
use latchwork_wire::tls::Tls;
use latchwork_wire::{Reached, first_to_answer, resolve};
use tokio::sync::oneshot;
use tonic::Status;
use tonic::codegen::http::Uri;

use crate::config::{self, Endpoint};
use crate::server::errors::NotConnected;

pub(crate) use self::connection::Connection;
use self::connection::connect;

/// How long a connection may take to be made, once the name is looked up.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// If the first bytes come later, another address of the name is tried beside the first.
const FIRST_BYTES_LIMIT: Duration = Duration::from_millis(500);

type Made = Result<Connection, Arc<NotConnected>>;
type Attempt = Shared<BoxFuture<'static, Made>>;

/// One member's connection. There is one at a time.
#[derive(Clone)]
pub(crate) struct Channel(Arc<Inner>);

struct Inner {
    target: Arc<Target>,
    io: Io,
    /// The connection, or what has become of the last attempt to make one.
    attempt: Mutex<Option<Attempt>>,
}

/// Where a connection leads.
struct Target {
    endpoint: Endpoint,
    origin: Uri,
    /// With the name that the certificate is for.
    tls: Option<(Tls, String)>,
}

impl Channel {
    /// Does not connect yet.
    ///
    /// # Errors
    ///
    /// `Invalid`, which names what cannot be used.
    pub(crate) fn new(
        endpoint: &Endpoint,
        tls: Option<&config::Tls>,
        io: &Io,
    ) -> Result<Self, Error> {
        let invalid = |message: String| Error::new(ErrorKind::Invalid, message);
        let scheme = if tls.is_some() { "https" } else { "http" };
        let origin = format!("{scheme}://{endpoint}").parse();
        let origin = origin.map_err(|_| invalid(format!("store: {endpoint} is not an address")))?;
        let tls = tls.map(|tls| {
            let name = tls.server_name.clone().unwrap_or_else(|| endpoint.host.clone());
            (tls.files.clone(), name)
        });
        if let Some((tls, name)) = &tls {
            // Said now, not when it is first used.
            tls.greeting(name).map_err(|error| {
                let invalid = invalid(error.message);
                error.next_step.into_iter().fold(invalid, Error::with_next_step)
            })?;
        }
        let target = Arc::new(Target { endpoint: endpoint.clone(), origin, tls });
        Ok(Self(Arc::new(Inner { target, io: io.clone(), attempt: Mutex::default() })))
    }

    /// The connection, once there is one. All who wait for it share one attempt.
    ///
    /// # Errors
    ///
    /// A [`NotConnected`] is the source of the status.
    pub(crate) async fn connection(&self) -> Result<Connection, Status> {
        if let Some(last) = self.last()
            // Not under the lock: it moves the connection.
            && last.refreshed().is_open()
        {
            return Ok(last);
        }
        let (attempt, _last) = {
            let mut attempt = self.lock();
            match attempt.as_ref().filter(|made| !has_failed(made)) {
                Some(made) => (made.clone(), None),
                None => {
                    let new = self.attempt();
                    // The connection that has ended is dropped outside of the lock.
                    let last = attempt.replace(new.clone());
                    (new, last)
                }
            }
        };
        attempt.await.map_err(|why| NotConnected::status(&why))
    }

    /// Whether it is spoken to without TLS.
    pub(crate) fn is_plain(&self) -> bool {
        self.0.target.tls.is_none()
    }

    /// The connection, if there is one.
    pub(crate) fn present(&self) -> Option<Connection> {
        self.last().filter(Connection::is_open)
    }

    /// The connection that was made last. It may have ended.
    fn last(&self) -> Option<Connection> {
        self.lock().as_ref()?.peek()?.as_ref().ok().cloned()
    }

    fn attempt(&self) -> Attempt {
        let (told, made) = oneshot::channel();
        let (target, io) = (self.0.target.clone(), self.0.io.clone());
        self.0.io.spawn(async move {
            let late = || Err(NotConnected(format!("no answer within {CONNECT_LIMIT:?}").into()));
            let reached = Reached::default();
            let made = match resolve(&target.endpoint, &io).await {
                Ok(()) => {
                    let make = || connect(&target, &reached, &io);
                    let (end, patience) = (&target.endpoint, FIRST_BYTES_LIMIT);
                    let made = first_to_answer(end, &reached, patience, &io, make, |_| false);
                    io.within(CONNECT_LIMIT, made).await.unwrap_or_else(late)
                }
                Err(error) => Err(NotConnected(error.into())),
            };
            // Nobody listens if all have gone.
            let _ = told.send(made.map_err(Arc::new));
        });
        let ended = || Err(Arc::new(NotConnected("the client has ended".into())));
        async move { made.await.unwrap_or_else(|_| ended()) }.boxed().shared()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Attempt>> {
        self.0.attempt.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether an attempt has made no connection, or the one that it has made has ended.
fn has_failed(attempt: &Attempt) -> bool {
    attempt.peek().is_some_and(|made| !made.as_ref().is_ok_and(Connection::is_open))
}
