//! One etcd server, alone or as a member of a cluster.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use crate::folder::Folder;
use crate::port::{Port, despite_collisions};
use crate::process::{Process, log_tail};
use crate::wait::{LIMIT, until};
use crate::{Error, Result};

/// How long a probe waits for an answer.
const PROBE_LIMIT: Duration = Duration::from_secs(5);

/// How a server is to be started.
#[derive(Debug, Clone, Default)]
pub struct EtcdOptions {
    args: Vec<String>,
    root_password: Option<String>,
}

impl EtcdOptions {
    /// A server that anybody may use.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an argument, for example `--max-request-bytes=4096`.
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Makes a user `root` with this password, and asks everybody who they are.
    pub fn root_password(mut self, password: impl Into<String>) -> Self {
        self.root_password = Some(password.into());
        self
    }
}

/// The two ports of a server.
#[derive(Debug)]
pub(crate) struct EtcdPorts {
    client: Port,
    peer: Port,
}

impl EtcdPorts {
    pub(crate) fn reserve() -> Result<Self> {
        Ok(Self { client: Port::reserve()?, peer: Port::reserve()? })
    }

    pub(crate) fn peer_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.peer.number())
    }
}

/// An etcd server, as a process on ports of its own. Dropping it kills the server and removes its
/// folder.
#[derive(Debug)]
pub struct EtcdServer {
    process: Process,
    args: Vec<String>,
    ports: EtcdPorts,
    // Last: it is removed when the process is gone.
    folder: Folder,
}

impl EtcdServer {
    /// Starts a server and waits until it answers.
    ///
    /// # Errors
    ///
    /// If it does not answer; the text has the end of its log.
    pub fn start(options: &EtcdOptions) -> Result<Self> {
        despite_collisions(|| {
            let ports = EtcdPorts::reserve()?;
            let cluster = format!("only={}", ports.peer_url());
            let mut server = Self::launch(options, "only", &cluster, ports)?;
            server.await_ready()?;
            server.make_root(options)?;
            Ok(server)
        })
    }

    /// Starts the process and does not wait, so that several can start side by side.
    pub(crate) fn launch(
        options: &EtcdOptions,
        name: &str,
        cluster: &str,
        ports: EtcdPorts,
    ) -> Result<Self> {
        let folder = Folder::new()?;
        let client = format!("http://127.0.0.1:{}", ports.client.number());
        let mut args: Vec<String> = [
            ("name", name),
            ("data-dir", &folder.path().join("data").to_string_lossy()),
            ("listen-client-urls", &client),
            ("advertise-client-urls", &client),
            ("listen-peer-urls", &ports.peer_url()),
            ("initial-advertise-peer-urls", &ports.peer_url()),
            ("initial-cluster", cluster),
            ("initial-cluster-token", cluster),
            ("logger", "zap"),
            ("log-outputs", "stderr"),
        ]
        .map(|(name, value)| format!("--{name}={value}"))
        .into();
        if can_leave_out_fsync() {
            args.push("--unsafe-no-fsync".into());
        }
        args.extend(options.args.iter().cloned());
        let process = spawn(folder.path(), &args)?;
        Ok(Self { process, args, ports, folder })
    }

    pub(crate) fn await_ready(&mut self) -> Result<()> {
        let what = format!("etcd on port {}", self.port());
        until(LIMIT, &what, || {
            // A server that ended will not answer.
            if let Some(status) = self.process.exit_status() {
                let log = self.log();
                // The words of other servers, by which a lost race for a port is known.
                let log = log.replace("address already in use", "Address already in use");
                return Ok(Err(Error::new(format!("{what} has ended ({status}):\n{log}"))));
            }
            match self.is_healthy() {
                Ok(true) => Ok(Ok(())),
                other => Err(format!("{other:?}; its log:\n{}", self.log())),
            }
        })?
    }

    pub(crate) fn make_root(&self, options: &EtcdOptions) -> Result<()> {
        let Some(password) = &options.root_password else { return Ok(()) };
        etcdctl(self.port(), &["user", "add", &format!("root:{password}")])?;
        etcdctl(self.port(), &["user", "grant-role", "root", "root"])?;
        etcdctl(self.port(), &["auth", "enable"]).map(drop)
    }

    /// The port for clients.
    pub fn port(&self) -> u16 {
        self.ports.client.number()
    }

    /// The address for Latchwork, without user and password.
    pub fn url(&self) -> String {
        format!("etcd://127.0.0.1:{}", self.port())
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The folder with its `log`, and its data in the folder `data`.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The end of its log.
    pub fn log(&self) -> String {
        log_tail(&self.folder.path().join("log"))
    }

    /// Whether it has a leader and can read from a majority.
    ///
    /// # Errors
    ///
    /// If it does not answer.
    pub fn is_healthy(&self) -> Result<bool> {
        let answer = get(self.port(), "/health")?;
        Ok(answer.contains("\"health\":\"true\""))
    }

    /// Whether the process is there and not stopped.
    pub fn is_running(&self) -> bool {
        self.process.is_running()
    }

    /// Kills the server (SIGKILL) and waits until it is gone.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Stops the process where it is (SIGSTOP): its port still takes connections.
    ///
    /// # Errors
    ///
    /// If it is not running.
    pub fn stop(&mut self) -> Result<()> {
        self.process.stop()
    }

    /// Lets a stopped process go on (SIGCONT).
    ///
    /// # Errors
    ///
    /// If it is not running.
    pub fn cont(&mut self) -> Result<()> {
        self.process.cont()
    }

    /// Kills the server if it runs, starts it again with its data, and waits until it is healthy.
    ///
    /// # Errors
    ///
    /// If it does not become healthy, as a member without a majority cannot.
    pub fn restart(&mut self) -> Result<()> {
        self.relaunch()?;
        self.await_ready()
    }

    /// As [`Self::restart`], without waiting.
    ///
    /// # Errors
    ///
    /// If the process cannot be started.
    pub fn relaunch(&mut self) -> Result<()> {
        self.kill();
        self.process = spawn(self.folder.path(), &self.args)?;
        Ok(())
    }
}

/// Calls `etcdctl` for the server on a port, and gives what it prints.
///
/// # Errors
///
/// If it cannot be run or fails.
pub fn etcdctl(port: u16, args: &[&str]) -> Result<String> {
    let output = Command::new("etcdctl")
        .env("ETCDCTL_API", "3")
        .arg(format!("--endpoints=127.0.0.1:{port}"))
        .args(args)
        .output()
        .map_err(|e| Error::while_("etcdctl (package etcd-client)", e))?;
    let text = String::from_utf8_lossy(&output.stdout).trim_end().to_owned();
    match output.status.success() {
        true => Ok(text),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(Error::new(format!("etcdctl {args:?}: {}: {text}{said}", output.status)))
        }
    }
}

fn spawn(folder: &Path, args: &[String]) -> Result<Process> {
    let mut command = Command::new("etcd");
    command.args(args);
    Process::start(&command, &folder.join("log"))
        .map_err(|e| Error::while_("etcd (package etcd-server)", e))
}

/// Whether this version can be told not to call fsync; asked once.
fn can_leave_out_fsync() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| {
        Command::new("etcd").arg("--help").output().is_ok_and(|help| {
            let said = [help.stdout, help.stderr].concat();
            String::from_utf8_lossy(&said).contains("--unsafe-no-fsync")
        })
    })
}

/// Asks for a page of the server, by the least of HTTP.
fn get(port: u16, path: &str) -> Result<String> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, PROBE_LIMIT)?;
    stream.set_read_timeout(Some(PROBE_LIMIT))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Several members of one cluster. Dropping the value kills all of them.
#[derive(Debug)]
pub struct EtcdCluster {
    members: Vec<EtcdServer>,
}

impl EtcdCluster {
    /// Starts so many members, and waits until each is healthy.
    ///
    /// # Errors
    ///
    /// If that does not come true; the text has the end of a log.
    pub fn start(members: usize, options: &EtcdOptions) -> Result<Self> {
        despite_collisions(|| {
            let mut ports = Vec::new();
            for _ in 0..members {
                ports.push(EtcdPorts::reserve()?);
            }
            let list = ports.iter().enumerate().map(|(n, p)| format!("m{n}={}", p.peer_url()));
            let cluster = list.collect::<Vec<_>>().join(",");
            let mut started = Vec::new();
            for (n, ports) in ports.into_iter().enumerate() {
                started.push(EtcdServer::launch(options, &format!("m{n}"), &cluster, ports)?);
            }
            let mut cluster = Self { members: started };
            for member in &mut cluster.members {
                member.await_ready()?;
            }
            cluster.members[0].make_root(options)?;
            Ok(cluster)
        })
    }

    /// All members.
    pub fn members(&self) -> &[EtcdServer] {
        &self.members
    }

    /// A member, to kill, stop or restart it.
    pub fn member_mut(&mut self, member: usize) -> &mut EtcdServer {
        &mut self.members[member]
    }

    /// The address for Latchwork: all members.
    pub fn url(&self) -> String {
        let hosts = self.members.iter().map(|member| format!("127.0.0.1:{}", member.port()));
        format!("etcd://{}", hosts.collect::<Vec<_>>().join(","))
    }

    /// Which member leads, as a member that answers says.
    ///
    /// # Errors
    ///
    /// If nobody leads, or says so, for long.
    pub fn leader(&self) -> Result<usize> {
        until(LIMIT, "a leader of etcd", || {
            let leads = |member: &EtcdServer| {
                member.is_running()
                    && get(member.port(), "/metrics").is_ok_and(|text| {
                        text.lines().any(|line| line == "etcd_server_is_leader 1")
                    })
            };
            self.members.iter().position(leads).ok_or("none says that it leads")
        })
    }
}
