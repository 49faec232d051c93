//! How a session comes to a server: hello, who we are, and its pulse.

use std::sync::Arc;
use std::time::Duration;

use latchwork_core::{BackendError, BackendErrorKind, Io};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;

use super::messages::{Hello, Kind, Refusal, Request, Welcome};
use super::transport::{Header, Trouble, Wire, greet, malformed, read_frame};
use super::{Reply, Shared, Up, access, locked};
use crate::config::{Endpoint, ZooKeeperConfig};
use crate::errors::{no_answer, not_sent};
use crate::names::{Names, parents};

/// Who asks only for the limits of sessions is content with another server sooner.
const PROBE_LIMIT: Duration = Duration::from_secs(2);

/// What connecting needs of the task.
pub(super) struct Attach<'a> {
    pub(super) config: &'a ZooKeeperConfig,
    pub(super) names: &'a Names,
    pub(super) timeout: &'a mut Duration,
    pub(super) known: &'a mut Option<Welcome>,
    pub(super) last_seen: i64,
    pub(super) server: usize,
    pub(super) shared: &'a Shared,
}

impl Attach<'_> {
    /// Connects to a server, and takes up the session there or begins it; `None` if it is over.
    pub(super) async fn connect(self) -> Result<Option<Box<dyn Wire>>, Trouble> {
        let server = &self.config.servers[self.server];
        let hello = Hello {
            last_seen: self.last_seen,
            timeout_ms: self.timeout.as_millis().try_into().unwrap_or(i32::MAX),
            session: self.known.as_ref().map_or(0, |known| known.session),
            password: self.known.as_ref().map_or(&[0; 16], |known| &*known.password),
        };
        let (mut wire, welcome) = greet(server, self.config, hello).await?;
        if welcome.session == 0 || welcome.timeout_ms <= 0 {
            if self.known.is_none() {
                return Err(std::io::Error::other("it gives no session").into());
            }
            let ended = not_sent("the session has ended: no server heard of it for too long");
            let _ = self.shared.over.set(ended.next_step("try again"));
            return Ok(None);
        }
        *self.timeout = Duration::from_millis(welcome.timeout_ms as u64);
        let pulse = self.names.pulse(welcome.session);
        let up = Up { id: welcome.session, pulse: (&*pulse).into() };
        *self.known = Some(welcome);
        self.make_pulse(&mut wire, &pulse).await?;
        *locked(&self.shared.up) = Some(up);
        Ok(Some(wire))
    }

    /// Makes sure that there is the node by which the session proves that it lives.
    async fn make_pulse(&self, wire: &mut Box<dyn Wire>, pulse: &str) -> Result<(), Trouble> {
        let access = access(self.config);
        let pulse_node = Request::create(Kind::Ephemeral, pulse, b"", access);
        let mut reply = self.ask(wire, &pulse_node).await?;
        if reply == Err(Refusal::NO_NODE) {
            for above in parents(pulse) {
                let node = Request::create(Kind::Container, above, b"", access);
                match self.ask(wire, &node).await? {
                    Ok(_) | Err(Refusal::NODE_EXISTS) => {}
                    Err(refusal) => return Err(self.refused(refusal, above)),
                }
            }
            reply = self.ask(wire, &pulse_node).await?;
        }
        match reply {
            Ok(_) | Err(Refusal::NODE_EXISTS) => Ok(()),
            Err(refusal) => Err(self.refused(refusal, pulse)),
        }
    }

    fn refused(&self, refusal: Refusal, path: &str) -> Trouble {
        let error = crate::errors::refused(refusal, path);
        match error.kind {
            BackendErrorKind::Denied | BackendErrorKind::Unsupported => Trouble::Refused(error),
            _ => std::io::Error::other(error.message).into(),
        }
    }

    /// One request, and the answer to it.
    async fn ask(&self, wire: &mut Box<dyn Wire>, request: &Request) -> Result<Reply, Trouble> {
        let mut frame = Vec::new();
        request.write(0, &mut frame);
        wire.write_all(&frame).await?;
        wire.flush().await?;
        loop {
            let message = read_frame(wire).await?;
            let (header, body) = Header::read(&message).ok_or_else(malformed)?;
            if header.number == 0 {
                return Ok(header.refusal.map_or_else(|| Ok(body.to_vec()), Err));
            }
        }
    }
}

/// Which timeout a server grants to who asks for this one.
pub(crate) async fn probe(
    config: Arc<ZooKeeperConfig>,
    timeout_ms: i32,
    io: &Io,
) -> Result<Duration, BackendError> {
    let (answer, told) = oneshot::channel();
    let limits = io.clone();
    io.spawn(async move {
        let mut failure = not_sent("there is no server in the address");
        for server in &config.servers {
            let asked = limits.within(PROBE_LIMIT, ask_for(server, &config, timeout_ms)).await;
            failure = match asked {
                Some(Ok(timeout)) => return drop(answer.send(Ok(timeout))),
                Some(Err(Trouble::Refused(error))) => error,
                Some(Err(Trouble::Io(error))) => not_sent(format!("{server}: {error}")),
                None => not_sent(format!("{server}: no answer within {PROBE_LIMIT:?}")),
            };
        }
        let _ = answer.send(Err(failure));
    });
    told.await.unwrap_or_else(|_| Err(no_answer("the connections to ZooKeeper were closed")))
}

async fn ask_for(
    server: &Endpoint,
    config: &ZooKeeperConfig,
    timeout_ms: i32,
) -> Result<Duration, Trouble> {
    let hello = Hello { last_seen: 0, timeout_ms, session: 0, password: &[0; 16] };
    let (mut wire, welcome) = greet(server, config, hello).await?;
    let mut close = Vec::new();
    Request::close().write(1, &mut close);
    wire.write_all(&close).await?;
    wire.flush().await?;
    // It closes the connection when the session has ended.
    while wire.read(&mut [0; 64]).await.is_ok_and(|n| n > 0) {}
    match welcome.timeout_ms {
        1.. => Ok(Duration::from_millis(welcome.timeout_ms as u64)),
        _ => Err(std::io::Error::other("it gives no session").into()),
    }
}
