//! Attaches a session to a server: login, credentials, and its pulse.

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use latchwork_store::{BackendError, BackendErrorKind, Io};
use latchwork_wire::tls::{is_tls, speaks_tls};
use latchwork_wire::{dial, dial_any, resolve_any};
use tokio::io::AsyncWriteExt;
use tokio::sync::oneshot;

use super::messages::{Hello, Kind, Refusal, Request, Welcome};
use super::transport::{
    Header, Trouble, Way, Wire, close, greet, is_closed, malformed, read_frame, why_closed,
};
use super::{Ensemble, Reply, Shared, Up, access, locked};
use crate::config::{Endpoint, ZooKeeperConfig};
use crate::names::Names;
use crate::server::ancestors::Ancestors;
use crate::server::errors::{WORDS, no_answer, not_created, not_sent, set_back};

/// A caller that asks only for the limits of sessions tries another server sooner.
const PROBE_LIMIT: Duration = Duration::from_secs(2);
/// There is no other one left: a server that many ask at once needs longer.
const LAST_LIMIT: Duration = Duration::from_secs(6);

/// What connecting needs of the task.
pub(super) struct Attach<'a> {
    pub(super) ensemble: &'a Ensemble,
    pub(super) names: &'a Names,
    pub(super) timeout: &'a mut Duration,
    pub(super) known: &'a mut Option<Welcome>,
    /// The one that is tried first, and then the one that has answered.
    pub(super) server: &'a mut usize,
    pub(super) shared: &'a Shared,
    pub(super) io: &'a Io,
}

impl Attach<'_> {
    /// Connects to a server, and takes up the session there or begins it; `None` if it is over. A refusal does not
    /// end a session that has been up, nor one for which another login was found.
    pub(super) async fn connect(self) -> Result<Option<Way>, Trouble> {
        let (ensemble, io) = (self.ensemble, self.io);
        let login = &ensemble.config.login;
        let (seen, was_up) = (login.current().1, locked(&self.shared.up).is_some());
        let refusal = match self.attempt().await {
            Err(Trouble::Refused(error)) => error,
            answer => return answer,
        };
        let newer = match refusal.kind {
            BackendErrorKind::Denied => login.after_refusal(seen, io).await,
            _ => Ok(None),
        };
        let (refusal, again) = match newer {
            Ok(newer) => (refusal, newer.is_some()),
            Err(problem) => (refusal.unrenewed(&problem), false),
        };
        Err(match again || was_up {
            true => Trouble::NotNow(refusal),
            false => Trouble::Refused(refusal),
        })
    }

    /// Waits until the addresses of a server are known.
    pub(super) async fn resolve(self) -> Result<(), Trouble> {
        look_up(&self.ensemble.config, self.server, self.io).await
    }

    async fn attempt(self) -> Result<Option<Way>, Trouble> {
        let config = &self.ensemble.config;
        let stream = reach(config, self.server, self.io).await?;
        let server = &config.servers[*self.server];
        let (is_new, newest) = (self.known.is_none(), self.ensemble.newest());
        let hello = Hello {
            last_seen: self.shared.seen.load(Ordering::SeqCst),
            timeout_ms: self.timeout.as_millis().try_into().unwrap_or(i32::MAX),
            session: self.known.as_ref().map_or(0, |known| known.session),
            password: self.known.as_ref().map_or(&[0; 16], |known| &*known.password),
        };
        let (mut way, welcome) = greet(stream, server, config, hello, self.io).await?;
        if welcome.session == 0 || welcome.timeout_ms <= 0 {
            if is_new {
                return Err(std::io::Error::other("it gives no session").into());
            }
            let ended = not_sent("the session has ended: no server heard of it for too long");
            let _ = self.shared.over.set(ended.with_next_step("try again"));
            return Ok(None);
        }
        *self.timeout = Duration::from_millis(welcome.timeout_ms as u64);
        let pulse = self.names.pulse(welcome.session);
        let up = Up { id: welcome.session, pulse: (&*pulse).into(), timeout: *self.timeout };
        *self.known = Some(welcome);
        let seen = self.make_pulse(&mut way.wire, &pulse).await?;
        if is_new && seen <= newest {
            // A new session is agreed on after all that any server has told before.
            close(way).await?;
            return Err(Trouble::Refused(set_back(newest, seen)));
        }
        self.ensemble.saw(seen);
        *locked(&self.shared.up) = Some(up);
        Ok(Some(way))
    }

    /// Makes sure that there is the node by which the session proves that it lives; tells the last
    /// transaction of the server then.
    async fn make_pulse(&self, wire: &mut Box<dyn Wire>, pulse: &str) -> Result<i64, Trouble> {
        let access = access(&self.ensemble.config);
        let pulse_node = Request::create(Kind::Ephemeral, pulse, b"", access);
        let (mut reply, mut seen) = self.ask(wire, &pulse_node).await?;
        let mut above = Ancestors::default();
        if reply == Err(Refusal::NO_NODE) {
            above = Ancestors::of(pulse);
            for node in Vec::from_iter(above.requests(access)) {
                above.answer(&self.ask(wire, &node).await?.0);
            }
            (reply, seen) = self.ask(wire, &pulse_node).await?;
        }
        if reply == Err(Refusal::NO_AUTH) {
            // A session that goes on has one, even if it may not make another one there.
            let (written, seen) = self.ask(wire, &Request::set(pulse)).await?;
            if written.is_ok() {
                return Ok(seen);
            }
        }
        let error = match (reply, above.missing()) {
            (Ok(_) | Err(Refusal::NODE_EXISTS), _) => return Ok(seen),
            (Err(Refusal::NO_NODE), Some(missing)) => missing,
            (Err(refusal), _) => not_created(refusal, pulse),
        };
        Err(match error.kind {
            BackendErrorKind::Unreachable => std::io::Error::other(error.message).into(),
            _ => Trouble::Refused(error),
        })
    }

    /// One request, the answer to it, and the last transaction of the server.
    async fn ask(
        &self,
        wire: &mut Box<dyn Wire>,
        request: &Request,
    ) -> Result<(Reply, i64), Trouble> {
        let mut frame = Vec::new();
        request.write(0, &mut frame);
        wire.write_all(&frame).await?;
        wire.flush().await?;
        loop {
            let message = read_frame(wire).await?;
            let (header, body) = Header::read(&message).ok_or_else(malformed)?;
            if header.number == 0 {
                let reply = header.refusal.map_or_else(|| Ok(body.to_vec()), Err);
                return Ok((reply, header.seen));
            }
        }
    }
}

/// Which timeout a server grants to who asks for this one.
pub(crate) async fn probe(
    ensemble: Arc<Ensemble>,
    timeout_ms: i32,
    io: &Io,
) -> Result<Duration, BackendError> {
    let (answer, told) = oneshot::channel();
    let limits = io.clone();
    io.spawn(async move {
        let mut failure = not_sent("there is no server in the address");
        let (mut is_full, mut is_out) = (false, false);
        let (servers, mut place) = (&ensemble.config.servers, 0);
        for left in (0..servers.len()).rev() {
            let limit = if left == 0 { LAST_LIMIT } else { PROBE_LIMIT };
            let asked = match look_up(&ensemble.config, &mut place, &limits).await {
                Ok(()) => {
                    let asking = ask_for(&mut place, &ensemble.config, timeout_ms, &limits);
                    limits.within(limit, asking).await
                }
                Err(trouble) => Some(Err(trouble)),
            };
            let server = &servers[place];
            place = (place + 1) % servers.len();
            failure = match asked {
                Some(Ok(timeout)) => return drop(answer.send(Ok(timeout))),
                Some(Err(trouble)) => {
                    is_full |= matches!(trouble, Trouble::Full | Trouble::NotTaken);
                    is_out = matches!(trouble, Trouble::NotThere(_));
                    trouble.error(server)
                }
                // A server that takes the request for the beginning of a handshake waits for more.
                None if ensemble.config.tls.is_none() && is_tls(server, &limits).await => {
                    Trouble::Io(std::io::Error::other(speaks_tls(&WORDS))).error(server)
                }
                None => not_sent(format!("{server}: no answer within {limit:?}")),
            };
            if is_out {
                break;
            }
        }
        ensemble.set_full(is_full);
        let _ = answer.send(Err(failure));
    });
    told.await.unwrap_or_else(|_| Err(no_answer("the connections to ZooKeeper were closed")))
}

/// Waits until the addresses of one of the servers are known.
async fn look_up(config: &ZooKeeperConfig, place: &mut usize, io: &Io) -> Result<(), Trouble> {
    let failed = |mut errors: Vec<(usize, std::io::Error)>| match errors.is_empty() {
        true => Trouble::NotThere(std::io::ErrorKind::NotFound.into()),
        false => {
            let (failed, error) = errors.swap_remove(0);
            *place = failed;
            Trouble::NotThere(error)
        }
    };
    resolve_any(&config.servers, io).await.map_err(failed)
}

/// Connects to the first server that answers, from this place on.
async fn reach(config: &ZooKeeperConfig, place: &mut usize, io: &Io) -> Result<TcpStream, Trouble> {
    match dial_any(&config.servers, *place, io).await {
        Ok((answered, stream)) => {
            *place = answered;
            Ok(stream)
        }
        Err(mut errors) => {
            // A server that closes a connection at once may do so before it counts as made.
            let closed = errors.iter().position(|(_, error)| is_closed(error));
            if errors.is_empty() {
                return Err(Trouble::NotThere(std::io::ErrorKind::NotFound.into()));
            }
            let (failed, error) = errors.swap_remove(closed.unwrap_or(0));
            *place = failed;
            Err(match closed {
                Some(_) => why_closed(&config.servers[failed], config, false, io).await,
                None => Trouble::NotThere(error),
            })
        }
    }
}

/// Asks the first server that answers, from this place on, for its timeout.
async fn ask_for(
    place: &mut usize,
    config: &ZooKeeperConfig,
    timeout_ms: i32,
    io: &Io,
) -> Result<Duration, Trouble> {
    let stream = reach(config, place, io).await?;
    session_of(stream, &config.servers[*place], config, timeout_ms, io).await
}

/// Begins a session at this server and ends it; tells the timeout that is granted.
pub(crate) async fn say_hello(
    server: &Endpoint,
    config: &ZooKeeperConfig,
    timeout_ms: i32,
    io: &Io,
) -> Result<Duration, Trouble> {
    let stream = match dial(server, io).await {
        Err(error) if is_closed(&error) => return Err(why_closed(server, config, false, io).await),
        dialled => dialled?,
    };
    session_of(stream, server, config, timeout_ms, io).await
}

async fn session_of(
    stream: TcpStream,
    server: &Endpoint,
    config: &ZooKeeperConfig,
    timeout_ms: i32,
    io: &Io,
) -> Result<Duration, Trouble> {
    let hello = Hello { last_seen: 0, timeout_ms, session: 0, password: &[0; 16] };
    let (way, welcome) = match greet(stream, server, config, hello, io).await {
        // It is not needed any more.
        Err(Trouble::Expired(session)) => return Ok(session),
        greeted => greeted?,
    };
    close(way).await?;
    match welcome.timeout_ms {
        1.. => Ok(Duration::from_millis(welcome.timeout_ms as u64)),
        _ => Err(std::io::Error::other("it gives no session").into()),
    }
}
