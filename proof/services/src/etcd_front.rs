//! What may stand between clients and etcd: etcd's own proxies.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use crate::etcd::is_healthy_at;
use crate::folder::Folder;
use crate::port::{Port, despite_collisions};
use crate::process::{Process, is_a_process, provided};
use crate::wait::{LIMIT, until};
use crate::{Error, Result};

/// A proxy of etcd's, as a process on a port of its own, with its default settings. Dropping it
/// kills the process.
#[derive(Debug)]
pub struct EtcdFront {
    process: Process,
    port: Port,
    // Last: it is removed when the process is gone.
    _folder: Folder,
}

is_a_process!(EtcdFront);

impl EtcdFront {
    /// Starts `etcd grpc-proxy` in front of the client port of a server, and waits until it answers.
    ///
    /// # Errors
    ///
    /// If it does not answer; the text has the end of its log.
    pub fn grpc_proxy(upstream: u16) -> Result<Self> {
        let front = Self::start("grpc-proxy", upstream)?;
        until(LIMIT, "etcd grpc-proxy", || match is_healthy_at(front.port()) {
            Ok(true) => Ok(()),
            other => Err(format!("{other:?}; its log:\n{}", front.log_tail())),
        })?;
        Ok(front)
    }

    /// Starts `etcd gateway`, which passes bytes on, in front of the client port of a server.
    ///
    /// # Errors
    ///
    /// If it takes no connections; the text has the end of its log.
    pub fn gateway(upstream: u16) -> Result<Self> {
        Self::start("gateway", upstream)
    }

    fn start(kind: &str, upstream: u16) -> Result<Self> {
        despite_collisions(|| {
            let (folder, port) = (Folder::new()?, Port::reserve()?);
            let mut command = Command::new(provided("etcd")?);
            command.args([kind, "start"]).current_dir(folder.path());
            command.arg(format!("--endpoints=127.0.0.1:{upstream}"));
            command.arg(format!("--listen-addr=127.0.0.1:{}", port.number()));
            let process = Process::start(&command, &folder.path().join("log"))
                .map_err(|e| Error::while_("etcd (package etcd-server)", e))?;
            let front = Self { process, port, _folder: folder };
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, front.port()));
            until(LIMIT, "a proxy of etcd", || {
                TcpStream::connect_timeout(&address, Duration::from_secs(5))
                    .map_err(|e| format!("{e}; its log:\n{}", front.log_tail()))
            })?;
            Ok(front)
        })
    }

    /// The port for clients.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The address for Latchwork.
    pub fn url(&self) -> String {
        format!("etcd://127.0.0.1:{}", self.port())
    }
}
