//! Waiting for something that announces itself to nobody.

use std::fmt::Display;
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use crate::{Error, Result};

/// How long a server may take to do what it does in milliseconds, or a start in seconds, on an idle machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(90);

/// An error unless somebody takes connections on a port. Less work than a client's process.
pub(crate) fn is_open(port: u16) -> Result<()> {
    let connected = TcpStream::connect((Ipv4Addr::LOCALHOST, port));
    connected.map(drop).map_err(|e| Error::while_(format!("port {port}"), e))
}

/// Looks again and again until `look` gives a value; the error tells what it last saw.
pub(crate) fn until<T, E: Display>(
    limit: Duration,
    what: &str,
    mut look: impl FnMut() -> std::result::Result<T, E>,
) -> Result<T> {
    let start = Instant::now();
    let mut nap = Duration::from_millis(1);
    loop {
        let late = start.elapsed() > limit;
        match look() {
            Ok(value) => return Ok(value),
            Err(seen) if late => {
                return Err(Error::new(format!("waited {limit:?} for {what}: {seen}")));
            }
            Err(_) => std::thread::sleep(nap),
        }
        nap = (nap * 2).min(Duration::from_millis(20));
    }
}
