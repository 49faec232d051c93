//! Ports that nobody else takes, also while the server on them is down.

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};

use crate::folder::place;
use crate::{Error, Result};

/// Below the range that Linux takes for outgoing connections (from 32768). A port in that range
/// could be taken by any client while its server restarts, and a client that tries to reach a
/// server that is down could even be connected to itself.
const FIRST: u16 = 11_000;
const COUNT: u16 = 10_000;

/// How far a Redis Cluster's bus is above the port for clients.
pub(crate) const BUS: u16 = 10_000;

/// A port of this machine, kept for as long as this lives, also against other processes.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _reservation: File,
}

impl Port {
    /// Finds a free port whose cluster bus port is free, too.
    ///
    /// # Errors
    ///
    /// If no port of the range is free.
    pub fn reserve() -> Result<Self> {
        let uid = rustix::process::getuid().as_raw();
        let dir = place().join(format!("latchwork-ports.{uid}"));
        fs::create_dir_all(&dir)?;
        let start = RandomState::new().build_hasher().finish() % u64::from(COUNT);
        for i in 0..COUNT {
            let number = FIRST + (start as u16 + i) % COUNT;
            let file = OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                .open(dir.join(number.to_string()))?;
            if file.try_lock().is_ok() && is_free(number) && is_free(number + BUS) {
                return Ok(Self { number, _reservation: file });
            }
        }
        Err(Error::new(format!("no free port from {FIRST} on")))
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.number
    }
}

/// Starts something again, on other ports, if somebody who does not reserve ports took one of its
/// own in the meantime.
pub(crate) fn despite_collisions<T>(mut start: impl FnMut() -> Result<T>) -> Result<T> {
    let mut attempts = 5;
    loop {
        match start() {
            Err(e) if attempts > 0 && e.to_string().contains("Address already in use") => {
                attempts -= 1;
            }
            done => return done,
        }
    }
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserved_port_is_reserved_once() -> Result<()> {
        let (one, two) = (Port::reserve()?, Port::reserve()?);
        assert_ne!(one.number(), two.number());
        let files = place().join(format!("latchwork-ports.{}", rustix::process::getuid().as_raw()));
        let file = File::open(files.join(one.number().to_string()))?;
        assert!(file.try_lock().is_err());
        drop(one);
        file.lock()?;
        Ok(())
    }

    #[test]
    fn a_taken_port_is_replaced() -> Result<()> {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let mut ports = vec![0, taken.local_addr()?.port()];
        let bind = || Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, ports.pop().unwrap_or(0)))?);
        assert!(despite_collisions(bind)?.local_addr()?.port() != taken.local_addr()?.port());
        let denied = despite_collisions(|| Err::<(), _>(Error::new("something else")));
        assert!(denied.is_err());
        Ok(())
    }
}
