//! Where a server listens: at a port of a host, or at a socket in the file system.

use std::fmt;

use latchwork_store::Error;
use latchwork_wire::address::{self, Endpoint};

/// The folders in which servers make their socket unless configured otherwise. For these, `.pgpass` says `localhost`.
const USUAL: [&str; 3] = ["/var/run/postgresql", "/run/postgresql", "/tmp"];

/// One server of an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Host {
    Net(Endpoint),
    Socket { folder: String, port: u16 },
}

impl Host {
    /// Reads a host. `text` is an item of the option `host` if `is_option`, and otherwise a part of the address
    /// before its path, with escapes and perhaps a port.
    ///
    /// # Errors
    ///
    /// `Invalid`, without the text.
    pub(crate) fn parse(text: &str, port: u16, is_option: bool) -> Result<Self, Error> {
        if is_option && text.starts_with('/') {
            return Ok(Self::Socket { folder: text.into(), port });
        }
        // An option has no ports, so its IPv6 numbers need no brackets.
        if is_option && text.parse::<std::net::Ipv6Addr>().is_ok() {
            return Ok(Self::Net(Endpoint { host: text.into(), port }));
        }
        let (start, own) = text.rsplit_once(':').unwrap_or((text, ""));
        let folder = address::decode(start, "host")?;
        if is_option || !folder.starts_with('/') {
            return Ok(Self::Net(Endpoint::parse(text, port)?));
        }
        let port = match own {
            "" => port,
            // The words for a port that is none are the same.
            own => Endpoint::parse(&format!("socket:{own}"), port)?.port,
        };
        Ok(Self::Socket { folder, port })
    }

    /// Where connections are made to.
    pub(crate) fn endpoint(&self) -> Endpoint {
        match self {
            Self::Net(at) => at.clone(),
            Self::Socket { folder, port } => {
                Endpoint::socket(format!("{}/.s.PGSQL.{port}", folder.trim_end_matches('/')))
            }
        }
    }

    pub(crate) fn is_socket(&self) -> bool {
        matches!(self, Self::Socket { .. })
    }

    /// Whether what is sent stays on this machine.
    pub(crate) fn is_local(&self) -> bool {
        match self {
            Self::Socket { .. } => true,
            Self::Net(Endpoint { host, .. }) => {
                host == "localhost"
                    || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
            }
        }
    }

    /// What a file with passwords calls it: its names, and its port.
    pub(crate) fn names(&self) -> (Vec<&str>, u16) {
        match self {
            Self::Net(Endpoint { host, port }) => (vec![host], *port),
            Self::Socket { folder, port } => {
                let mut names = vec![&**folder];
                if USUAL.contains(&&**folder) {
                    names.push("localhost");
                }
                (names, *port)
            }
        }
    }

    /// The host and the port for messages.
    pub(crate) fn shown(&self) -> (String, u16) {
        match self {
            Self::Net(at) => (at.host.clone(), at.port),
            Self::Socket { folder, port } => {
                let is_plain = folder.split('/').all(address::is_plain);
                (if is_plain { folder.clone() } else { "/...".into() }, *port)
            }
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Net(at) => at.fmt(f),
            Self::Socket { .. } => {
                let (folder, port) = self.shown();
                write!(f, "{folder}/.s.PGSQL.{port}")
            }
        }
    }
}
