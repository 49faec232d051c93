//! The client of a request: its owner, its address, and the time of its arrival.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use latchwork_store::Moment;

use super::principal::Principal;

/// The client of a request.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) principal: Arc<Principal>,
    /// The arrival of the request by the boot clock: every promise in the answer counts from it.
    pub(crate) arrival: Moment,
    pub(crate) peer: Peer,
}

/// The other end of a connection.
#[derive(Debug, Clone, Default)]
pub(crate) enum Peer {
    /// A process of this machine that may open the socket.
    Unix,
    /// A host.
    Tcp(SocketAddr),
    /// Not known.
    #[default]
    Unknown,
}

impl Peer {
    pub(crate) fn is_unix(&self) -> bool {
        matches!(self, Self::Unix)
    }

    /// Whether it is a process of this machine, by its address.
    pub(crate) fn is_loopback(&self) -> bool {
        match self {
            Self::Tcp(address) => is_loopback(address.ip()),
            Self::Unix | Self::Unknown => false,
        }
    }

    /// The host, without the port.
    pub(crate) fn host(&self) -> String {
        match self {
            Self::Unix => "a local socket".to_owned(),
            Self::Tcp(address) => address.ip().to_canonical().to_string(),
            Self::Unknown => "an unknown host".to_owned(),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix => f.write_str("unix"),
            Self::Tcp(address) => address.fmt(f),
            Self::Unknown => f.write_str("unknown"),
        }
    }
}

/// Whether an address is this machine's own.
pub(crate) fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}
