//! How a connection is made: address, user, TLS, and what it means when that fails.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use latchwork_store::kit::tls::Tls;
use latchwork_store::wire::Drive;
use latchwork_store::{BackendError, BackendErrorKind, Effect, Io};
use redis::aio::MultiplexedConnection;
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{AsyncConnectionConfig, ProtocolVersion, RedisConnectionInfo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::config::{Credentials, Endpoint};
use crate::errors::failure;

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

/// What a connection says of itself at first.
fn settings(access: &Access, protocol: ProtocolVersion) -> RedisConnectionInfo {
    let mut settings = RedisConnectionInfo::default()
        .set_db(access.database)
        .set_protocol(protocol)
        .set_skip_set_lib_name();
    if let Some(user) = &access.credentials.user {
        settings = settings.set_username(user);
    }
    if let Some(password) = &access.credentials.password {
        settings = settings.set_password(password);
    }
    settings
}

/// Makes the connection itself.
pub(crate) async fn connect(
    endpoint: &Endpoint,
    access: &Access,
    protocol: ProtocolVersion,
    config: AsyncConnectionConfig,
    io: &Io,
) -> Result<(MultiplexedConnection, Arc<Drive>), NotConnected> {
    let Endpoint { host, port } = access.detours.get(endpoint).unwrap_or(endpoint);
    let greeting = access.tls.as_ref().map(|tls| tls.greeting(host)).transpose();
    let greeting = greeting.map_err(NotConnected::Refused)?;
    let made = async {
        let stream = TcpStream::connect((host.as_str(), *port)).await?;
        stream.set_nodelay(true)?;
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE);
        SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
        let (socket, drive) = Drive::open(stream.into_std()?, io)?;
        let settings = settings(access, protocol);
        let conn = match greeting {
            None => introduce(&settings, socket, config, &drive).await?,
            Some(greeting) => {
                introduce(&settings, greeting.greet(socket).await?, config, &drive).await?
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
    settings: &RedisConnectionInfo,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    config: AsyncConnectionConfig,
    drive: &Arc<Drive>,
) -> redis::RedisResult<MultiplexedConnection> {
    let (conn, moving) = MultiplexedConnection::new_with_config(settings, stream, config).await?;
    drive.start(moving);
    Ok(conn)
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
