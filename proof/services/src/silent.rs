//! An address that drops the packets of every client.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType, bind, listen, socket};

/// How long the system has to take one more connection into the queue of a listener.
const TAKEN: Duration = Duration::from_millis(100);

/// A listener whose queue is full, so that the system drops what is sent to it; until it is dropped.
#[derive(Debug)]
pub struct Silent {
    _listener: OwnedFd,
    _queue: Vec<TcpStream>,
}

impl Silent {
    /// Makes an address silent, on which nothing may listen.
    ///
    /// # Errors
    ///
    /// Those of the system.
    pub fn at(address: SocketAddr) -> io::Result<Self> {
        let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
        let listener = socket(family, SocketType::STREAM, None)?;
        bind(&listener, &address)?;
        listen(&listener, 0)?;
        let mut queue = Vec::new();
        loop {
            match TcpStream::connect_timeout(&address, TAKEN) {
                Ok(stream) => queue.push(stream),
                Err(error) if error.kind() == io::ErrorKind::TimedOut => break,
                Err(error) => return Err(error),
            }
        }
        Ok(Self { _listener: listener, _queue: queue })
    }
}
