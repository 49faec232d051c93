//! What may stand between clients and etcd: etcd's own proxies.

use std::process::Command;

use crate::etcd::is_healthy_at;
use crate::folder::Folder;
use crate::port::{Port, despite_collisions};
use crate::process::{Process, await_ready, is_a_process, provided};
use crate::wait::is_open;
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
        let mut front = Self::start("grpc-proxy", upstream)?;
        await_ready(&mut front, "etcd grpc-proxy", |it| match is_healthy_at(it.port()) {
            Ok(true) => Ok(()),
            other => Err(format!("{other:?}")),
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
            let mut front = Self { process, port, _folder: folder };
            await_ready(&mut front, "a proxy of etcd", |it| is_open(it.port()))?;
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
