//! How a connection is made: address, user, TLS, and what it means when that fails.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use latchwork_store::wire::{Drive, Gone};
use latchwork_store::{BackendError, BackendErrorKind, Effect, Io};
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionAddr, IntoConnectionInfo,
    ProtocolVersion, RedisConnectionInfo, TlsCertificates,
};
use tokio::net::TcpStream;

use crate::config::{Credentials, Endpoint, Tls};
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

/// The settings of a connection, with its certificates read.
pub(crate) fn client(
    endpoint: &Endpoint,
    access: &Access,
    protocol: ProtocolVersion,
) -> Result<Client, BackendError> {
    let bad =
        |message: String| BackendError::new(BackendErrorKind::Invalid, Effect::NotApplied, message);
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
    let Endpoint { host, port } = access.detours.get(endpoint).unwrap_or(endpoint).clone();
    let addr = match &access.tls {
        None => ConnectionAddr::Tcp(host, port),
        Some(tls) => {
            ConnectionAddr::TcpTls { host, port, insecure: tls.insecure, tls_params: None }
        }
    };
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE);
    let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
    let info = addr
        .into_connection_info()
        .map_err(|error| bad(format!("store: {error}")))?
        .set_tcp_settings(tcp)
        .set_redis_settings(settings);
    let Some(tls) = &access.tls else {
        return Client::open(info).map_err(|error| bad(format!("store: {error}")));
    };
    let read = |what: &str, path: &std::path::Path| {
        std::fs::read(path)
            .map_err(|error| bad(format!("store: {what}: cannot read {}: {error}", path.display())))
    };
    let root_cert = tls.ca.as_deref().map(|path| read("ca", path)).transpose()?;
    let client_tls = match (&tls.certificate, &tls.key) {
        (Some(certificate), Some(key)) => Some(ClientTlsConfig {
            client_cert: read("cert", certificate)?,
            client_key: read("key", key)?,
        }),
        (None, None) => None,
        _ => return Err(bad("store: cert and key are needed together".into())),
    };
    // One provider for the process, unless its owner has chosen another before.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::build_with_tls(info, TlsCertificates { client_tls, root_cert })
        .map_err(|error| bad(format!("store: {error}")))
}

/// Makes the connection itself.
pub(crate) async fn connect(
    client: &Client,
    endpoint: &Endpoint,
    access: &Access,
    config: AsyncConnectionConfig,
    io: &Io,
    gone: &Arc<Gone>,
) -> redis::RedisResult<(MultiplexedConnection, Option<Arc<Drive>>)> {
    if access.tls.is_some() {
        let conn = client.get_multiplexed_async_connection_with_config(&config).await?;
        return Ok((conn, None));
    }
    let made = async {
        let Endpoint { host, port } = access.detours.get(endpoint).unwrap_or(endpoint);
        let stream = TcpStream::connect((host.as_str(), *port)).await?;
        stream.set_nodelay(true)?;
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE);
        SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
        let (socket, drive) = Drive::open(stream.into_std()?, io, gone.clone())?;
        let settings = client.get_connection_info().redis_settings();
        let (conn, moving) =
            MultiplexedConnection::new_with_config(settings, socket, config).await?;
        drive.start(moving);
        Ok((conn, Some(drive)))
    };
    let late = || std::io::Error::from(std::io::ErrorKind::TimedOut);
    io.within(CONNECT_LIMIT, made).await.ok_or_else(late)?
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
