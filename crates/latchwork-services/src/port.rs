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
const BUS: u16 = 10_000;

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

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}
