//! The settings of a service.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use latchwork::Source;

use crate::logs::Detail;

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// A host and a port.
    Tcp(String),
    /// A socket in the file system.
    Unix(PathBuf),
}

/// The address to listen on if none is named.
pub const DEFAULT_ADDRESS: &str = "127.0.0.1:7117";

impl FromStr for Listen {
    type Err = String;

    /// Reads `HOST:PORT` or `unix:PATH`.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("unix:") {
            Some("") => Err("the path after unix: is missing".to_owned()),
            Some(path) => Ok(Self::Unix(path.into())),
            None if text
                .rsplit_once(':')
                .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok()) =>
            {
                Ok(Self::Tcp(text.to_owned()))
            }
            None => Err(format!("write HOST:PORT, such as {DEFAULT_ADDRESS}, or unix:PATH")),
        }
    }
}

/// The files of a certificate and its key, in the PEM format.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The certificate, followed by those of its authorities.
    pub certificate: PathBuf,
    /// The key.
    pub key: PathBuf,
}

/// The settings of a service.
///
/// Made by [`Settings::new`], and changed by its methods:
///
/// ```
/// use latchwork_serve::{Listen, Settings};
///
/// let settings = Settings::new("redis://locks")
///     .with_namespace("shop")
///     .with_listen([Listen::Tcp("127.0.0.1:7117".into())]);
/// assert_eq!(settings.namespace, "shop");
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Settings {
    /// Where the address of the store comes from, with its password. It is shown nowhere, and read again at
    /// `SIGHUP`.
    pub store: Source,
    /// The namespace of all names.
    pub namespace: String,
    /// The addresses to listen on. Without any: the sockets of systemd, else [`DEFAULT_ADDRESS`].
    pub listen: Vec<Listen>,
    /// The certificate of the service.
    pub tls: Option<TlsFiles>,
    /// The file of tokens.
    pub tokens: Option<PathBuf>,
    /// The file with the keys by which the ids of holds are sealed. Instances with the same keys renew and release
    /// each other's holds. Without it, the ids end with the process.
    pub seal_key_file: Option<PathBuf>,
    /// Whether clients on loopback and on Unix sockets need a token, too.
    pub require_token: bool,
    /// Whether other hosts may connect without TLS.
    pub insecure_plain_http: bool,
    /// Whether other hosts may connect without tokens.
    pub insecure_no_tokens: bool,
    /// More names by which clients may address a service that demands no token.
    pub allow_hosts: Vec<String>,
    /// The most locks of one token.
    pub max_holds: usize,
    /// The most waiting requests of one token.
    pub max_waiters: usize,
    /// The most connections of each address.
    pub max_connections: usize,
    /// How long a stop waits for the holds of clients to end.
    pub drain: Duration,
    /// The address to which the loss of a hold is sent, `http://` or `https://`. It may have a secret: nothing shows
    /// it.
    pub webhook_lost: Option<String>,
    /// How much is logged.
    pub detail: Detail,
    /// Whether the log is JSON.
    pub json: bool,
}

impl Settings {
    /// Creates the usual settings of a service of this store.
    pub fn new(store: impl Into<Source>) -> Self {
        Self {
            store: store.into(),
            namespace: String::new(),
            listen: Vec::new(),
            tls: None,
            tokens: None,
            seal_key_file: None,
            require_token: false,
            insecure_plain_http: false,
            insecure_no_tokens: false,
            allow_hosts: Vec::new(),
            max_holds: 20_000,
            max_waiters: 1_000,
            max_connections: 4_096,
            drain: Duration::from_secs(30),
            webhook_lost: None,
            detail: Detail::Usual,
            json: false,
        }
    }

    /// Sets [`namespace`](Self::namespace).
    #[must_use]
    pub fn with_namespace(self, namespace: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), ..self }
    }

    /// Sets the addresses to [`listen`](Self::listen) on.
    #[must_use]
    pub fn with_listen(self, listen: impl Into<Vec<Listen>>) -> Self {
        Self { listen: listen.into(), ..self }
    }

    /// Sets the certificate of the service, or removes it.
    #[must_use]
    pub fn with_tls(self, tls: impl Into<Option<TlsFiles>>) -> Self {
        Self { tls: tls.into(), ..self }
    }

    /// Sets the file of tokens, or removes it.
    #[must_use]
    pub fn with_tokens(self, tokens: impl Into<Option<PathBuf>>) -> Self {
        Self { tokens: tokens.into(), ..self }
    }

    /// Sets the file with the keys by which the ids of holds are sealed, or removes it.
    #[must_use]
    pub fn with_seal_key_file(self, file: impl Into<Option<PathBuf>>) -> Self {
        Self { seal_key_file: file.into(), ..self }
    }

    /// Sets whether clients on loopback and on Unix sockets need a token, too.
    #[must_use]
    pub fn with_require_token(self, require_token: bool) -> Self {
        Self { require_token, ..self }
    }

    /// Sets whether other hosts may connect without TLS.
    #[must_use]
    pub fn with_insecure_plain_http(self, insecure_plain_http: bool) -> Self {
        Self { insecure_plain_http, ..self }
    }

    /// Sets whether other hosts may connect without tokens.
    #[must_use]
    pub fn with_insecure_no_tokens(self, insecure_no_tokens: bool) -> Self {
        Self { insecure_no_tokens, ..self }
    }

    /// Sets more names by which clients may address a service that demands no token.
    #[must_use]
    pub fn with_allow_hosts(self, allow_hosts: impl Into<Vec<String>>) -> Self {
        Self { allow_hosts: allow_hosts.into(), ..self }
    }

    /// Sets the most locks of one token.
    #[must_use]
    pub fn with_max_holds(self, max_holds: usize) -> Self {
        Self { max_holds, ..self }
    }

    /// Sets the most waiting requests of one token.
    #[must_use]
    pub fn with_max_waiters(self, max_waiters: usize) -> Self {
        Self { max_waiters, ..self }
    }

    /// Sets the most connections of each address.
    #[must_use]
    pub fn with_max_connections(self, max_connections: usize) -> Self {
        Self { max_connections, ..self }
    }

    /// Sets how long a stop waits for the holds of clients to end.
    #[must_use]
    pub fn with_drain(self, drain: Duration) -> Self {
        Self { drain, ..self }
    }

    /// Sets the address to which the loss of a hold is sent, or removes it.
    #[must_use]
    pub fn with_webhook_lost(self, address: impl Into<Option<String>>) -> Self {
        Self { webhook_lost: address.into(), ..self }
    }

    /// Sets how much is logged.
    #[must_use]
    pub fn with_detail(self, detail: Detail) -> Self {
        Self { detail, ..self }
    }

    /// Sets whether the log is JSON.
    #[must_use]
    pub fn with_json(self, json: bool) -> Self {
        Self { json, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        assert_eq!("[::1]:7117".parse(), Ok(Listen::Tcp("[::1]:7117".into())));
        assert_eq!("unix:/run/l.sock".parse(), Ok(Listen::Unix("/run/l.sock".into())));
        for bad in ["", "7117", ":7117", "host", "host:", "host:99999", "unix:"] {
            assert!(bad.parse::<Listen>().is_err(), "{bad}");
        }
    }
}
