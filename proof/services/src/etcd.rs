//! One etcd server, alone or as a member of a cluster.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::folder::Folder;
use crate::port::{Port, despite_collisions};
use crate::process::{Process, await_ready, go, is_a_process, provided, said};
use crate::tls::{self, Certificates};
use crate::wait::LIMIT;
use crate::{Error, Result, ServerClock};

/// How long a probe waits for an answer.
const PROBE_LIMIT: Duration = Duration::from_secs(5);

/// How a server is to be started.
#[derive(Debug, Clone, Default)]
pub struct EtcdOptions {
    args: Vec<String>,
    root_password: Option<String>,
    tls: Tls,
    has_clock: bool,
    place: Option<PathBuf>,
    name: Option<&'static str>,
}

/// Who has to show a certificate to clients and servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Tls {
    #[default]
    Nobody,
    Server,
    Both,
}

impl EtcdOptions {
    /// A server that anybody may use.
    pub fn new() -> Self {
        Self::default()
    }

    /// A server of the version that the system has, which on Debian 12 is 3.4.
    pub fn of_the_system() -> Self {
        Self::of("etcd@system")
    }

    /// A server that `servers.tsv` names, for example `etcd@3.6.16`.
    pub fn of(name: &'static str) -> Self {
        Self { name: Some(name), ..Self::default() }
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

    /// Speaks TLS with clients.
    pub fn tls(mut self) -> Self {
        self.tls = Tls::Server;
        self
    }

    /// Speaks TLS with clients, and asks each for a certificate.
    pub fn client_certificates(mut self) -> Self {
        self.tls = Tls::Both;
        self
    }

    /// With its data in this folder, which must exist, and each write synced to its disk.
    pub fn data_in(mut self, place: impl Into<PathBuf>) -> Self {
        self.place = Some(place.into());
        self
    }

    /// Gives the server a wall clock of its own: [`EtcdServer::clock`].
    pub fn with_clock(mut self) -> Self {
        self.has_clock = true;
        self
    }
}

/// The ports of a server: for clients, for other members, and for what is measured.
#[derive(Debug)]
pub(crate) struct EtcdPorts {
    client: Port,
    peer: Port,
    metrics: Port,
}

impl EtcdPorts {
    pub(crate) fn reserve() -> Result<Self> {
        Ok(Self { client: Port::reserve()?, peer: Port::reserve()?, metrics: Port::reserve()? })
    }

    pub(crate) fn peer_port(&self) -> u16 {
        self.peer.number()
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
    program: PathBuf,
    name: String,
    cluster: String,
    args: Vec<String>,
    ports: EtcdPorts,
    certificates: Option<Certificates>,
    clock: Option<ServerClock>,
    // Last: it is removed when the process is gone.
    folder: Folder,
}

is_a_process!(EtcdServer);

/// What a server has counted until some moment.
pub struct Measures(String);

impl Measures {
    /// The sum of its measures with this name and these labels.
    pub fn sum(&self, name: &str, label: &str) -> f64 {
        let lines = self.0.lines().filter(|line| {
            let rest = line.strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with(['{', ' ']) && rest.contains(label))
        });
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }
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
            let (peer, cluster) = (ports.peer_url(), format!("only={}", ports.peer_url()));
            let mut server = Self::launch(options, "only", &peer, &cluster, ports)?;
            server.await_ready()?;
            server.make_root(options)?;
            Ok(server)
        })
    }

    /// Starts the process and does not wait, so that several can start side by side.
    pub(crate) fn launch(
        options: &EtcdOptions,
        name: &str,
        advertised: &str,
        cluster: &str,
        ports: EtcdPorts,
    ) -> Result<Self> {
        let program = PathBuf::from(provided(options.name.unwrap_or("etcd"))?);
        let folder = Folder::new()?;
        let certificates = match options.tls {
            Tls::Nobody => None,
            Tls::Server | Tls::Both => Some(tls::make(folder.path())?),
        };
        let clock = options.has_clock.then(|| ServerClock::new(folder.path())).transpose()?;
        let scheme = if certificates.is_some() { "https" } else { "http" };
        let client = format!("{scheme}://127.0.0.1:{}", ports.client.number());
        let metrics = format!("http://127.0.0.1:{}", ports.metrics.number());
        let place = options.place.as_deref().unwrap_or(folder.path());
        let mut args: Vec<String> = [
            ("name", name),
            ("data-dir", &place.join("data").to_string_lossy()),
            ("listen-client-urls", &client),
            ("advertise-client-urls", &client),
            ("listen-peer-urls", &ports.peer_url()),
            ("initial-advertise-peer-urls", advertised),
            ("initial-cluster", cluster),
            ("initial-cluster-token", cluster),
            ("listen-metrics-urls", &metrics),
            ("logger", "zap"),
            ("log-outputs", "stderr"),
        ]
        .map(|(name, value)| format!("--{name}={value}"))
        .into();
        if options.place.is_none() && can_leave_out_fsync(&program) {
            args.push("--unsafe-no-fsync".into());
        }
        if let Some(files) = &certificates {
            args.push(format!("--cert-file={}", files.server_cert.display()));
            args.push(format!("--key-file={}", files.server_key.display()));
            if options.tls == Tls::Both {
                args.push("--client-cert-auth".into());
                args.push(format!("--trusted-ca-file={}", files.ca_cert.display()));
            }
        }
        // The least. By default a login takes a processor for a tenth of a second, and beside other tests much longer.
        args.push("--bcrypt-cost=4".into());
        args.extend(options.args.iter().cloned());
        let process = spawn(&program, folder.path(), &args, clock.as_ref())?;
        let (name, cluster) = (name.into(), cluster.into());
        Ok(Self { process, program, name, cluster, args, ports, certificates, clock, folder })
    }

    pub(crate) fn await_ready(&mut self) -> Result<()> {
        let what = format!("etcd on port {}", self.port());
        await_ready(self, &what, |it| match it.is_healthy() {
            Ok(true) => Ok(()),
            other => Err(format!("{other:?}")),
        })
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
        let scheme = if self.certificates.is_some() { "etcds" } else { "etcd" };
        format!("{scheme}://127.0.0.1:{}", self.port())
    }

    /// The certificates, if it speaks TLS.
    pub fn certificates(&self) -> Option<&Certificates> {
        self.certificates.as_ref()
    }

    /// Its wall clock, if it has one of its own.
    pub fn clock(&self) -> Option<&ServerClock> {
        self.clock.as_ref()
    }

    /// The folder with its `log`, and its data in the folder `data`.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Whether it has a leader and can read from a majority.
    ///
    /// # Errors
    ///
    /// If it does not answer.
    pub fn is_healthy(&self) -> Result<bool> {
        is_healthy_at(self.ports.metrics.number())
    }

    /// What the server has counted: the sum of its measures with this name and these labels, for
    /// example `grpc_server_handled_total` and `grpc_method="Txn"`.
    ///
    /// # Errors
    ///
    /// If it does not answer.
    pub fn measure(&self, name: &str, label: &str) -> Result<f64> {
        Ok(self.measures()?.sum(name, label))
    }

    /// All that it has counted until now.
    ///
    /// # Errors
    ///
    /// If it does not answer.
    pub fn measures(&self) -> Result<Measures> {
        get(self.ports.metrics.number(), "/metrics").map(Measures)
    }

    /// Whether it leads its cluster, as it says itself.
    pub fn is_leader(&self) -> bool {
        self.is_running() && self.measure("etcd_server_is_leader", "").is_ok_and(|n| n == 1.0)
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

    /// Ends it cleanly and starts another version on its ports and its data, and waits until that one is healthy.
    ///
    /// # Errors
    ///
    /// If it does not end, or the other one does not become healthy.
    pub fn upgrade(&mut self, name: &str) -> Result<()> {
        self.process.terminate(LIMIT)?;
        self.program = PathBuf::from(provided(name)?);
        self.restart()
    }

    /// As [`Self::restart`], without waiting.
    ///
    /// # Errors
    ///
    /// If the process cannot be started.
    pub fn relaunch(&mut self) -> Result<()> {
        self.kill();
        self.process = spawn(&self.program, self.folder.path(), &self.args, self.clock.as_ref())?;
        Ok(())
    }

    /// As [`Self::relaunch`], without its data, as a member that its cluster has just added.
    pub(crate) fn relaunch_empty(&mut self) -> Result<()> {
        self.kill();
        std::fs::remove_dir_all(self.folder.path().join("data"))?;
        let joins = "--initial-cluster-state=existing";
        if !self.args.iter().any(|arg| arg == joins) {
            // Read only while there is no data.
            self.args.push(joins.into());
        }
        self.relaunch()
    }

    /// Copies what the server has, to be restored later.
    ///
    /// # Errors
    ///
    /// If that fails.
    pub fn save(&self, snapshot: &Path) -> Result<()> {
        etcdctl(self.port(), &["snapshot", "save", &snapshot.to_string_lossy()]).map(drop)
    }

    /// Kills the server and starts it with a copy that was saved; waits until it is healthy.
    ///
    /// # Errors
    ///
    /// If the copy cannot be restored, or the server does not become healthy with it.
    pub fn restart_from(&mut self, snapshot: &Path) -> Result<()> {
        self.kill();
        let data = self.folder.path().join("data");
        std::fs::remove_dir_all(&data)?;
        let restore = [
            ("data-dir", &*data.to_string_lossy()),
            ("name", &*self.name),
            ("initial-cluster", &*self.cluster),
            ("initial-cluster-token", &*self.cluster),
            ("initial-advertise-peer-urls", &*self.ports.peer_url()),
        ]
        .map(|(name, value)| format!("--{name}={value}"));
        let snapshot = snapshot.to_string_lossy();
        let mut args = vec!["snapshot", "restore", &*snapshot];
        args.extend(restore.iter().map(String::as_str));
        // Newer versions have a program of their own for that, which stands beside the server.
        let own = self.program.with_file_name("etcdutl");
        match own.is_file() {
            true => said("etcdutl", Command::new(own).args(&args))?,
            false => etcdctl(self.port(), &args)?,
        };
        self.restart()
    }
}

/// Calls `etcdctl` for the server on a port, and gives what it prints.
///
/// # Errors
///
/// If it cannot be run or fails.
pub fn etcdctl(port: u16, args: &[&str]) -> Result<String> {
    let mut command = Command::new("etcdctl");
    command
        .env("ETCDCTL_API", "3")
        .arg(format!("--endpoints=127.0.0.1:{port}"))
        // A busy machine may take longer than the usual five seconds.
        .args(["--dial-timeout=60s", "--command-timeout=60s"])
        .args(args);
    said("etcdctl (package etcd-client)", &mut command)
}

fn spawn(
    program: &Path,
    folder: &Path,
    args: &[String],
    clock: Option<&ServerClock>,
) -> Result<Process> {
    let mut command = go(program);
    command.args(args);
    if let Some(clock) = clock {
        clock.give_to_go(&mut command);
    }
    Process::start(&command, &folder.join("log"))
        .map_err(|e| Error::while_("etcd (package etcd-server)", e))
}

/// Whether this version can be told not to call fsync; asked once of each.
fn can_leave_out_fsync(program: &Path) -> bool {
    static CAN: Mutex<BTreeMap<PathBuf, bool>> = Mutex::new(BTreeMap::new());
    let mut known = CAN.lock().unwrap_or_else(PoisonError::into_inner);
    *known.entry(program.to_owned()).or_insert_with(|| {
        Command::new(program).arg("--help").output().is_ok_and(|help| {
            let said = [help.stdout, help.stderr].concat();
            String::from_utf8_lossy(&said).contains("--unsafe-no-fsync")
        })
    })
}

/// What the page of a server says of its health.
pub(crate) fn is_healthy_at(port: u16) -> Result<bool> {
    Ok(get(port, "/health")?.contains("\"health\":\"true\""))
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
