//! One Redis server.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::clock_shim::ServerClock;
use crate::folder::Folder;
use crate::port::{Port, despite_collisions};
use crate::process::{Process, await_ready, is_a_process, provided, said, version};
use crate::resp::{Probe, Value};
use crate::tls::{self, Certificates};
use crate::wait::LIMIT;
use crate::{Error, Result};

/// The user and password of probes at a server that asks for them.
const PROBE_USER: &str = "latchwork-services";

/// How long a probe waits for an answer.
const PROBE_LIMIT: Duration = Duration::from_secs(10);

/// What a server keeps on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Persistence {
    /// Nothing: a restart begins empty.
    #[default]
    None,
    /// Every write before it is answered (`appendonly yes`, `appendfsync always`).
    EveryWrite,
    /// A snapshot when asked to (`SAVE`, or [`RedisServer::save_snapshot`]), and at a clean end.
    Snapshot,
}

/// What a server finds on disk when it starts again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data {
    /// What it had written.
    Kept,
    /// Nothing.
    Empty,
    /// What was there at the last [`RedisServer::save_snapshot`].
    OldSnapshot,
}

/// How a server is to be started.
#[derive(Debug, Clone, Default)]
pub struct RedisOptions {
    persistence: Persistence,
    lines: Vec<String>,
    password: Option<String>,
    users: Vec<String>,
    tls: bool,
    clock: bool,
    name: Option<&'static str>,
    pub(crate) replica_of: Option<u16>,
    /// A cluster's configuration, written before the server starts.
    pub(crate) nodes_conf: Option<String>,
}

impl RedisOptions {
    /// A server without persistence, password or TLS.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same of Valkey.
    pub fn valkey() -> Self {
        Self::of("valkey")
    }

    /// The same of a server that `servers.tsv` names, for example `redis@system`.
    pub fn of(name: &'static str) -> Self {
        Self { name: Some(name), ..Self::default() }
    }

    /// Sets what it keeps on disk.
    pub fn persistence(mut self, persistence: Persistence) -> Self {
        self.persistence = persistence;
        self
    }

    /// Adds a line of redis.conf, for example `maxmemory 4mb`.
    pub fn config(mut self, line: impl Into<String>) -> Self {
        self.lines.push(line.into());
        self
    }

    /// Asks the default user for a password.
    pub fn requirepass(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Adds a user, for example `app on >secret ~app:* &* +@all`.
    pub fn user(mut self, rules: impl Into<String>) -> Self {
        self.users.push(rules.into());
        self
    }

    /// Listens with TLS only, with a certificate of an authority of its own.
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Gives it a wall clock that can be set: see [`RedisServer::clock`].
    pub fn with_clock(mut self) -> Self {
        self.clock = true;
        self
    }

    /// Makes it a replica of the server on this port.
    pub fn replica_of(mut self, port: u16) -> Self {
        self.replica_of = Some(port);
        self
    }

    fn has_users(&self) -> bool {
        self.password.is_some() || !self.users.is_empty()
    }

    /// The program to start. Those of the registries were built without TLS.
    fn program(&self) -> Result<String> {
        let default = if self.tls { "redis@system" } else { "redis" };
        provided(self.name.unwrap_or(default))
    }

    fn conf(
        &self,
        program: &str,
        folder: &Path,
        port: u16,
        certificates: Option<&Certificates>,
    ) -> String {
        let mut conf = vec![
            "bind 127.0.0.1".into(),
            "protected-mode no".into(),
            "daemonize no".into(),
            "always-show-logo no".into(),
            // Replicas get their data at once, and from memory.
            "repl-diskless-sync-delay 0".into(),
            "repl-ping-replica-period 1".into(),
            "rdb-del-sync-files yes".into(),
            format!("dir {}", folder.join("data").display()),
            format!("unixsocket {}", folder.join("socket").display()),
        ];
        // Before, everybody might.
        if version(program) >= vec![7, 0] {
            conf.push("enable-debug-command yes".into());
        }
        match certificates {
            None => conf.push(format!("port {port}")),
            Some(c) => conf.extend([
                "port 0".into(),
                format!("tls-port {port}"),
                format!("tls-cert-file {}", c.server_cert.display()),
                format!("tls-key-file {}", c.server_key.display()),
                format!("tls-ca-cert-file {}", c.ca_cert.display()),
                "tls-auth-clients no".into(),
            ]),
        }
        match self.persistence {
            Persistence::None => conf.extend(["save \"\"".into(), "appendonly no".into()]),
            Persistence::EveryWrite => conf.extend([
                "save \"\"".into(),
                "appendonly yes".into(),
                "appendfsync always".into(),
            ]),
            // So rarely that only a clean end and an order write one.
            Persistence::Snapshot => {
                conf.extend(["save 1000000 1".into(), "appendonly no".into()]);
            }
        }
        if let Some(password) = &self.password {
            conf.push(format!("requirepass {password}"));
        }
        if self.has_users() {
            conf.push(format!("user {PROBE_USER} on >{PROBE_USER} ~* &* +@all"));
        }
        conf.extend(self.users.iter().map(|rules| format!("user {rules}")));
        if let Some(master) = self.replica_of {
            conf.push(format!("replicaof 127.0.0.1 {master}"));
        }
        conf.extend(self.lines.iter().cloned());
        conf.join("\n") + "\n"
    }
}

/// A Redis server, as a process on a port of its own. Dropping it kills the server and removes
/// its folder.
#[derive(Debug)]
pub struct RedisServer {
    process: Process,
    options: RedisOptions,
    certificates: Option<Certificates>,
    clock: Option<ServerClock>,
    pub(crate) port: Port,
    // Last: it is removed when the process is gone.
    folder: Folder,
}

is_a_process!(RedisServer);

impl RedisServer {
    /// Starts a server and waits until it answers.
    ///
    /// # Errors
    ///
    /// If it does not answer; the text has the end of its log.
    pub fn start(options: &RedisOptions) -> Result<Self> {
        despite_collisions(|| {
            let mut server = Self::launch(options, Port::reserve()?)?;
            server.await_ready()?;
            Ok(server)
        })
    }

    /// Starts the process and does not wait, so that several can start side by side.
    pub(crate) fn launch(options: &RedisOptions, port: Port) -> Result<Self> {
        let folder = Folder::new()?;
        let path = folder.path();
        fs::create_dir(path.join("data"))?;
        let certificates = options.tls.then(|| tls::make(path)).transpose()?;
        let program = options.program()?;
        let conf = options.conf(&program, path, port.number(), certificates.as_ref());
        fs::write(path.join("redis.conf"), conf)?;
        if let Some(text) = &options.nodes_conf {
            fs::write(path.join("nodes.conf"), text)?;
        }
        let clock = options.clock.then(|| ServerClock::new(path)).transpose()?;
        let process = spawn(&program, path, clock.as_ref())?;
        Ok(Self { process, options: options.clone(), certificates, clock, port, folder })
    }

    pub(crate) fn await_ready(&mut self) -> Result<()> {
        let what = format!("redis-server on port {}", self.port());
        await_ready(self, &what, |it| match it.command(&["PING"]) {
            Ok(Value::Text(_)) => Ok(()),
            other => Err(format!("{other:?}")),
        })
    }

    /// The port for clients: with TLS if the options say so, plain otherwise.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The address for Latchwork and other clients, without user and password.
    pub fn url(&self) -> String {
        let is_valkey = self.options.name.is_some_and(|name| name.starts_with("valkey"));
        let word = if is_valkey { "valkey" } else { "redis" };
        let scheme = format!("{word}{}", if self.options.tls { "s" } else { "" });
        format!("{scheme}://127.0.0.1:{}", self.port())
    }

    /// The certificates of a server with TLS.
    pub fn certificates(&self) -> Option<&Certificates> {
        self.certificates.as_ref()
    }

    /// Its wall clock, if the options give it one of its own.
    ///
    /// # Errors
    ///
    /// If they do not.
    pub fn clock(&self) -> Result<&ServerClock> {
        self.clock.as_ref().ok_or_else(|| Error::new("a server started without `with_clock`"))
    }

    /// The folder with its `redis.conf`, `socket` and `log`, and its data in the folder `data`.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Sends a command through the socket file, past every proxy and TLS, as a user who may do
    /// everything. An error of the server is a [`Value::Error`].
    ///
    /// # Errors
    ///
    /// If there is no answer.
    pub fn command<A: AsRef<[u8]>>(&self, command: &[A]) -> Result<Value> {
        let mut probe = Probe::connect(&self.folder.path().join("socket"), PROBE_LIMIT)?;
        if self.options.has_users() {
            probe.ask(&["AUTH", PROBE_USER, PROBE_USER])?;
        }
        probe.ask(command)
    }

    /// A field of `INFO`, for example `role`.
    ///
    /// # Errors
    ///
    /// If the server does not answer or has no such field.
    pub fn info(&self, field: &str) -> Result<String> {
        let info = self.command(&["INFO", "everything"])?.ok()?.text();
        info.lines()
            .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
            .map(str::to_owned)
            .ok_or_else(|| Error::new(format!("INFO of Redis has no field {field}")))
    }

    /// Asks the server to end (SIGTERM) and waits. It saves what its persistence says.
    ///
    /// # Errors
    ///
    /// If it does not end.
    pub fn shutdown(&mut self) -> Result<()> {
        self.process.terminate(LIMIT).map(drop)
    }

    /// Ends it cleanly and starts another version on its port and its data, and waits until that one answers.
    ///
    /// # Errors
    ///
    /// If it does not end, or the other one does not answer.
    pub fn upgrade(&mut self, name: &'static str) -> Result<()> {
        self.shutdown()?;
        self.options.name = Some(name);
        self.restart(Data::Kept)
    }

    /// Keeps the data of this moment aside for [`Data::OldSnapshot`].
    ///
    /// # Errors
    ///
    /// If the server cannot save it.
    pub fn save_snapshot(&self) -> Result<()> {
        if self.options.persistence != Persistence::EveryWrite {
            self.command(&["SAVE"])?.ok()?;
        }
        let (data, snapshot) = (self.data(), self.snapshot());
        if snapshot.exists() {
            fs::remove_dir_all(&snapshot)?;
        }
        copy_folder(&data, &snapshot)?;
        if self.options.persistence == Persistence::None {
            fs::remove_file(data.join("dump.rdb"))?;
        }
        Ok(())
    }

    /// Kills the server if it runs, and starts it again on the same port and with the same
    /// configuration, as far as it was written to disk (`CONFIG REWRITE`, which Sentinel calls).
    ///
    /// # Errors
    ///
    /// If it does not answer, or there is no snapshot to take.
    pub fn restart(&mut self, data: Data) -> Result<()> {
        self.relaunch(data)?;
        self.await_ready()
    }

    /// As [`Self::restart`], without waiting.
    pub(crate) fn relaunch(&mut self, data: Data) -> Result<()> {
        self.kill();
        if data != Data::Kept {
            fs::remove_dir_all(self.data())?;
            match data {
                Data::OldSnapshot => copy_folder(&self.snapshot(), &self.data())
                    .map_err(|e| Error::while_("take the old snapshot", e))?,
                _ => fs::create_dir(self.data())?,
            }
        }
        // The file of the killed server: a probe must not find it.
        let _ = fs::remove_file(self.folder.path().join("socket"));
        self.process = spawn(&self.options.program()?, self.folder.path(), self.clock.as_ref())?;
        Ok(())
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn snapshot(&self) -> PathBuf {
        self.folder.path().join("snapshot")
    }
}

/// Calls `redis-cli` for the server on a port, and gives what it prints.
///
/// # Errors
///
/// If it cannot be run or fails.
pub fn redis_cli(port: u16, args: &[&str]) -> Result<String> {
    let mut command = Command::new("redis-cli");
    command.args(["-h", "127.0.0.1", "-p", &port.to_string()]).args(args);
    said("redis-cli (package redis-tools)", &mut command)
}

fn spawn(program: &str, folder: &Path, clock: Option<&ServerClock>) -> Result<Process> {
    let mut command = Command::new(program);
    command.arg(folder.join("redis.conf"));
    if let Some(clock) = clock {
        clock.give_to(&mut command);
    }
    Process::start(&command, &folder.join("log"))
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
