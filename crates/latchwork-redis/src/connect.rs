//! How a connection is made: address, user, TLS, and what it means when that fails.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use latchwork_store::kit::tls::Tls;
use latchwork_store::wire::Drive;
use latchwork_store::{BackendError, BackendErrorKind, Effect, Io};
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{Cmd, RedisResult, Value};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::config::{Credentials, Endpoint};
use crate::connection::{Connection, OnPush, ended};
use crate::errors::failure;
use crate::link::command;

/// A connection that is silent for so long is probed by the system.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// How long a connection may take to be made.
pub(crate) const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// Who we are to the server.
#[derive(Debug, Clone)]
pub(crate) struct Access {
    pub(crate) credentials: Credentials,
    pub(crate) database: i64,
    pub(crate) tls: Option<Tls>,
    /// Where servers are reached that are not at the address by which the others call them.
    pub(crate) detours: BTreeMap<Endpoint, Endpoint>,
    pub(crate) probe: Probe,
}

/// What is asked of a new connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Probe {
    /// Nothing: it leads to no store.
    No,
    /// What the store can do.
    Store,
    /// The same, with the subscriptions of a Cluster.
    Cluster,
}

impl Access {
    pub(crate) fn user(&self) -> &str {
        self.credentials.user.as_deref().unwrap_or("default")
    }
}

/// The versions of the protocol. With the newer one the server sends messages on the same connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Resp3,
    Resp2,
}

/// What a connection says of itself at first.
fn greetings(access: &Access, protocol: Protocol) -> Vec<Cmd> {
    let Credentials { user, password } = &access.credentials;
    let mut greetings = Vec::new();
    match (protocol, user, password) {
        (Protocol::Resp3, _, None) => greetings.push(command(&["HELLO", "3"])),
        (Protocol::Resp3, _, Some(password)) => {
            greetings.push(command(&["HELLO", "3", "AUTH", access.user(), password]));
        }
        (Protocol::Resp2, Some(user), Some(password)) => {
            greetings.push(command(&["AUTH", user, password]));
        }
        (Protocol::Resp2, None, Some(password)) => greetings.push(command(&["AUTH", password])),
        (Protocol::Resp2, _, None) => {}
    }
    if access.database != 0 {
        greetings.push(command(&["SELECT", &access.database.to_string()]));
    }
    greetings
}

/// Makes the connection itself.
pub(crate) async fn connect(
    endpoint: &Endpoint,
    access: &Access,
    protocol: Protocol,
    on_push: OnPush,
    io: &Io,
) -> Result<(Connection, Arc<Drive>), NotConnected> {
    let Endpoint { host, port } = access.detours.get(endpoint).unwrap_or(endpoint);
    let greeting = access.tls.as_ref().map(|tls| tls.greeting(host)).transpose();
    let greeting = greeting.map_err(NotConnected::Refused)?;
    let made = async {
        let stream = TcpStream::connect((host.as_str(), *port)).await?;
        stream.set_nodelay(true)?;
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE);
        SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
        let (socket, drive) = Drive::open(stream.into_std()?, io)?;
        let greetings = greetings(access, protocol);
        let conn = match greeting {
            None => introduce(&greetings, socket, on_push, &drive).await?,
            Some(greeting) => {
                introduce(&greetings, greeting.greet(socket).await?, on_push, &drive).await?
            }
        };
        Ok((conn, drive))
    };
    let late = || std::io::Error::from(std::io::ErrorKind::TimedOut);
    let made = io.within(CONNECT_LIMIT, made).await;
    made.unwrap_or_else(|| Err(late().into())).map_err(NotConnected::By)
}

/// Introduces itself to the server, and gives the connection to its drive.
async fn introduce(
    greetings: &[Cmd],
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    on_push: OnPush,
    drive: &Arc<Drive>,
) -> RedisResult<Connection> {
    let (connection, mut moving) = Connection::new(stream, on_push);
    let greetings: Vec<&Cmd> = greetings.iter().collect();
    let answers = tokio::select! {
        biased;
        answers = connection.send_together(&greetings, 0), if !greetings.is_empty() => answers?,
        () = &mut moving, if !greetings.is_empty() => return Err(ended()),
        else => Vec::new(),
    };
    for answer in answers {
        if let Value::ServerError(error) = answer {
            return Err(error.into());
        }
    }
    drive.start(moving.introduced());
    Ok(connection)
}

/// Why there is no connection.
pub(crate) enum NotConnected {
    /// What the address says cannot be used.
    Refused(BackendError),
    By(redis::RedisError),
}

/// Whether the other side does not know `HELLO`.
pub(crate) fn refuses_hello(error: &redis::RedisError) -> bool {
    let text = error.to_string();
    let auth = ["WRONGPASS", "NOAUTH", "NOPERM"].iter().any(|code| text.contains(code));
    !auth
        && (text.contains("HELLO") || text.contains("unknown command") || text.contains("NOPROTO"))
}

/// Why there is no connection, and what to look at.
pub(crate) fn unreachable(
    endpoint: &Endpoint,
    access: &Access,
    error: &redis::RedisError,
) -> BackendError {
    let said = failure(error, endpoint).error;
    let kind = match said.kind {
        BackendErrorKind::Denied => BackendErrorKind::Denied,
        _ if is_denied(error) => BackendErrorKind::Denied,
        _ => BackendErrorKind::Unreachable,
    };
    let (whom, step) = if kind == BackendErrorKind::Denied {
        let whom = format!(" as user {:?}", access.user());
        (whom, "look at the user and the password in the address")
    } else if access.tls.is_some() {
        let step = "look whether the server runs and speaks TLS, and whether its certificate is for \
                    this name and from an authority that is trusted (ca=/path)";
        (String::new(), step)
    } else {
        (String::new(), "look whether the server runs and the address is right")
    };
    let message = format!("cannot connect to {endpoint}{whom}: {error}");
    BackendError::new(kind, Effect::NotApplied, message).next_step(step)
}

fn is_denied(error: &redis::RedisError) -> bool {
    let text = error.to_string();
    matches!(error.kind(), redis::ErrorKind::AuthenticationFailed)
        || ["WRONGPASS", "NOAUTH", "NOPERM"].iter().any(|code| text.contains(code))
}
