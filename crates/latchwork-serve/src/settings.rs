//! The settings of a service.

use std::path::PathBuf;
use std::time::Duration;

use latchwork::Source;

use crate::TlsFiles;
use crate::logs::Detail;
use crate::server::addresses::Listen;

/// The settings of a service.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where the address of the store comes from, with its password. It is shown nowhere, and read again at
    /// `SIGHUP`.
    pub store: Source,
    /// The namespace of all names.
    pub namespace: String,
    /// Where to listen. If there is nothing: the sockets of systemd, else `127.0.0.1:7117`.
    pub listen: Vec<Listen>,
    /// The certificate of the service.
    pub tls: Option<TlsFiles>,
    /// The file of tokens.
    pub tokens: Option<PathBuf>,
    /// Demands a token on loopback and on Unix sockets, too.
    pub require_token: bool,
    /// Allows other hosts without TLS.
    pub insecure_plain_http: bool,
    /// Allows other hosts without tokens.
    pub insecure_no_tokens: bool,
    /// More names by which clients may call a service that demands no token.
    pub allow_hosts: Vec<String>,
    /// The most locks of one token.
    pub max_holds: usize,
    /// The most waiting requests of one token.
    pub max_waiters: usize,
    /// The most connections of each address.
    pub max_connections: usize,
    /// How long a stop waits for the holds of clients to end.
    pub drain: Duration,
    /// How much is logged.
    pub detail: Detail,
    /// Whether the log is JSON.
    pub json: bool,
}

impl Settings {
    /// The usual settings of a service of this store.
    pub fn new(store: impl Into<Source>) -> Self {
        Self {
            store: store.into(),
            namespace: String::new(),
            listen: Vec::new(),
            tls: None,
            tokens: None,
            require_token: false,
            insecure_plain_http: false,
            insecure_no_tokens: false,
            allow_hosts: Vec::new(),
            max_holds: 20_000,
            max_waiters: 1_000,
            max_connections: 4_096,
            drain: Duration::from_secs(30),
            detail: Detail::Usual,
            json: false,
        }
    }
}
