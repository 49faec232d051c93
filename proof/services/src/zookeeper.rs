//! One ZooKeeper server, alone or as a member of an ensemble.

use std::fmt::Write as _;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::folder::Folder;
use crate::port::{Port, despite_collisions};
use crate::process::{Process, await_ready, is_a_process, provided};
use crate::proxy::Proxy;
use crate::tls::{self, Certificates};
use crate::wait::{LIMIT, until};
use crate::{Error, Result};

/// How long a probe waits for an answer.
const PROBE_LIMIT: Duration = Duration::from_secs(5);

/// How long servers wait for others when they have chosen a leader.
const CHOICE: Duration = Duration::from_secs(8);

const MAIN_CLASS: &str = "org.apache.zookeeper.server.quorum.QuorumPeerMain";

/// A start that does not wait for the best code.
const JAVA_FLAGS: &[&str] = &[
    "-Xss512k",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Xshare:auto",
    "-Djava.net.preferIPv4Stack=true",
    "-Dzookeeper.jmx.log4j.disable=true",
    "-Dzookeeper.preAllocSize=256",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
];

/// How the argument begins that has Java keep what it has made of the classes.
const ARCHIVES: &str = "-XX:ArchiveClassesAtExit=";

/// As much as the tests need.
const SMALL_HEAP: &str = "-Xmx96m";
/// What the package's start script gives a server.
const INSTALLED_HEAP: &str = "-Xmx1000m";

/// How a server is to be started.
#[derive(Debug, Clone)]
pub struct ZooKeeperOptions {
    tick: Duration,
    sync_limit: u32,
    longest_session: Duration,
    settings: Vec<String>,
    flags: Vec<String>,
    links: bool,
    tls: bool,
    as_installed: bool,
    place: Option<PathBuf>,
    name: &'static str,
}

impl Default for ZooKeeperOptions {
    fn default() -> Self {
        Self {
            tick: Duration::from_millis(200),
            sync_limit: 25,
            longest_session: Duration::from_secs(300),
            settings: Vec::new(),
            flags: Vec::new(),
            links: false,
            tls: false,
            as_installed: false,
            place: None,
            name: "zookeeper",
        }
    }
}

impl ZooKeeperOptions {
    /// A server that anybody may use, with a tick of 200 ms.
    pub fn new() -> Self {
        Self::default()
    }

    /// A server with the settings that its package installs: a tick of 2 s, sessions of 4 s to 40 s,
    /// at most 60 connections from one host, and every write synced to the disk. Only its port is
    /// its own, it answers every four-letter word, and it has no admin server.
    pub fn as_installed() -> Self {
        Self { tick: Duration::from_secs(2), sync_limit: 5, as_installed: true, ..Self::default() }
    }

    /// A server that `servers.tsv` names, for example `zookeeper@system`.
    pub fn of(name: &'static str) -> Self {
        Self { name, ..Self::default() }
    }

    /// The tick; sessions last at least two of it.
    #[must_use]
    pub fn tick(mut self, tick: Duration) -> Self {
        self.tick = tick;
        self
    }

    /// After how many ticks without an answer the leader lets go of a follower.
    #[must_use]
    pub fn sync_limit(mut self, ticks: u32) -> Self {
        self.sync_limit = ticks;
        self
    }

    /// The longest session that the server grants.
    #[must_use]
    pub fn longest_session(mut self, length: Duration) -> Self {
        self.longest_session = length;
        self
    }

    /// With its data in this folder, which must exist, and each write synced to its disk.
    #[must_use]
    pub fn data_in(mut self, place: impl Into<PathBuf>) -> Self {
        self.place = Some(place.into());
        self
    }

    /// Adds a line of the configuration, for example `maxClientCnxns=3`.
    #[must_use]
    pub fn setting(mut self, line: impl Into<String>) -> Self {
        self.settings.push(line.into());
        self
    }

    /// Adds an argument of the Java machine, for example `-Dzookeeper.ssl...`.
    #[must_use]
    pub fn flag(mut self, flag: impl Into<String>) -> Self {
        self.flags.push(flag.into());
        self
    }

    /// Speaks TLS on one more port, for clients that show a certificate or none.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Puts a proxy between each two servers of an ensemble.
    #[must_use]
    pub fn links(mut self) -> Self {
        self.links = true;
        self
    }
}

/// The ports of a server.
#[derive(Debug)]
struct Ports {
    client: Port,
    quorum: Port,
    election: Port,
    secure: Port,
}

impl Ports {
    fn reserve() -> Result<Self> {
        Ok(Self {
            client: Port::reserve()?,
            quorum: Port::reserve()?,
            election: Port::reserve()?,
            secure: Port::reserve()?,
        })
    }
}

/// A ZooKeeper server, as a process on ports of its own. Dropping it kills the server and removes
/// its folder.
#[derive(Debug)]
pub struct ZooKeeperServer {
    process: Process,
    ports: Ports,
    flags: Vec<String>,
    name: &'static str,
    certificates: Option<Certificates>,
    // Last: it is removed when the process is gone.
    folder: Folder,
}

is_a_process!(ZooKeeperServer);

impl ZooKeeperServer {
    /// Starts a server and waits until it answers.
    ///
    /// # Errors
    ///
    /// If it does not answer; the text has the end of its log.
    pub fn start(options: &ZooKeeperOptions) -> Result<Self> {
        despite_collisions(|| {
            let mut server = Self::launch(options, Ports::reserve()?, 0, "")?;
            server.await_ready()?;
            Ok(server)
        })
    }

    /// Starts the process and does not wait, so that several can start side by side.
    fn launch(options: &ZooKeeperOptions, ports: Ports, id: usize, ensemble: &str) -> Result<Self> {
        let folder = Folder::new()?;
        let data = options.place.as_deref().unwrap_or(folder.path()).join("data");
        fs::create_dir(&data)?;
        fs::write(data.join("myid"), id.to_string())?;
        let mut config = format!(
            "tickTime={}\ninitLimit={}\nsyncLimit={}\ndataDir={}\nclientPort={}\n\
             clientPortAddress=127.0.0.1\nadmin.enableServer=false\n4lw.commands.whitelist=*\n",
            options.tick.as_millis(),
            // Who was chosen and gets no majority gives up after that, and they choose again.
            (CHOICE.as_millis() / options.tick.as_millis()).max(2),
            options.sync_limit,
            data.display(),
            ports.client.number(),
        );
        if !options.as_installed {
            let longest = options.longest_session.as_millis();
            let synced = if options.place.is_some() { "yes" } else { "no" };
            let _ = writeln!(
                config,
                "maxSessionTimeout={longest}\nmaxClientCnxns=0\nforceSync={synced}"
            );
        }
        let certificates = options.tls.then(|| tls::make(folder.path())).transpose()?;
        if let Some(made) = &certificates {
            let both = [fs::read(&made.server_key)?, fs::read(&made.server_cert)?].concat();
            let identity = folder.path().join("identity.pem");
            fs::write(&identity, both)?;
            let _ = write!(
                config,
                "secureClientPort={}\nsecureClientPortAddress=127.0.0.1\n\
                 serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n\
                 ssl.clientAuth=none\nssl.keyStore.location={}\nssl.keyStore.type=PEM\n\
                 ssl.trustStore.location={}\nssl.trustStore.type=PEM\n",
                ports.secure.number(),
                identity.display(),
                made.ca_cert.display(),
            );
        }
        for line in options.settings.iter().map(String::as_str).chain([ensemble]) {
            let _ = writeln!(config, "{line}");
        }
        fs::write(folder.path().join("zoo.cfg"), config)?;
        let heap = if options.as_installed { INSTALLED_HEAP } else { SMALL_HEAP };
        let flags = [&[heap.to_owned()], &*options.flags].concat();
        let (name, process) = (options.name, spawn(options.name, folder.path(), &flags)?);
        Ok(Self { process, ports, flags, name, certificates, folder })
    }

    fn await_ready(&mut self) -> Result<()> {
        let what = format!("ZooKeeper on port {}", self.port());
        await_ready(self, &what, |it| match it.mode() {
            // The port for TLS is opened after the one that has answered.
            Ok(Some(_)) if it.listens_for_tls() => Ok(()),
            other => Err(format!("{other:?}")),
        })
    }

    /// Whether it takes connections by TLS, if it is to.
    fn listens_for_tls(&self) -> bool {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.secure_port()));
        self.certificates.is_none() || TcpStream::connect_timeout(&address, PROBE_LIMIT).is_ok()
    }

    /// The port for clients.
    pub fn port(&self) -> u16 {
        self.ports.client.number()
    }

    /// The address for Latchwork.
    pub fn url(&self) -> String {
        format!("zk://127.0.0.1:{}", self.port())
    }

    /// The port for clients that speak TLS.
    pub fn secure_port(&self) -> u16 {
        self.ports.secure.number()
    }

    /// The certificates, if it speaks TLS.
    pub fn certificates(&self) -> Option<&Certificates> {
        self.certificates.as_ref()
    }

    /// The folder with its `log` and its `zoo.cfg`, and its data in the folder `data`.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Its answer to a four-letter word.
    ///
    /// # Errors
    ///
    /// If it does not answer.
    pub fn ask(&self, word: &str) -> Result<String> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port()));
        let mut stream = TcpStream::connect_timeout(&address, PROBE_LIMIT)?;
        stream.set_read_timeout(Some(PROBE_LIMIT))?;
        stream.write_all(word.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    /// Whether it serves as `standalone`, `leader` or `follower`; `None` if it does not serve.
    ///
    /// # Errors
    ///
    /// If it does not answer.
    pub fn mode(&self) -> Result<Option<String>> {
        let answer = self.ask("srvr")?;
        let mode = answer.lines().find_map(|line| line.strip_prefix("Mode: "));
        Ok(mode.map(str::to_owned))
    }

    /// A number that the server counts, by the name that `mntr` gives it.
    ///
    /// # Errors
    ///
    /// If it does not answer, or counts no such thing.
    pub fn count(&self, name: &str) -> Result<u64> {
        let answer = self.ask("mntr")?;
        let words = answer.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let mut named = words.filter(|words| words.first() == Some(&name));
        let value = named.find_map(|words| words.get(1)?.parse::<f64>().ok());
        value.map(|value| value as u64).ok_or_else(|| Error::new(format!("mntr has no {name}")))
    }

    /// Kills the server if it runs, starts it again with its data, and waits until it serves.
    ///
    /// # Errors
    ///
    /// If it does not serve, as a member without a majority cannot.
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
        self.process = spawn(self.name, self.folder.path(), &self.flags)?;
        Ok(())
    }

    /// Ends it cleanly and starts another version on its ports and its data, and waits until that one serves.
    ///
    /// # Errors
    ///
    /// If it does not end, or the other one does not serve.
    pub fn upgrade(&mut self, name: &'static str) -> Result<()> {
        self.process.terminate(LIMIT)?;
        self.name = name;
        self.restart()
    }

    /// As [`Self::relaunch`], without its data: a member gets that of the others.
    ///
    /// # Errors
    ///
    /// As [`Self::relaunch`].
    pub fn relaunch_empty(&mut self) -> Result<()> {
        self.kill();
        fs::remove_dir_all(self.folder.path().join("data").join("version-2"))?;
        self.relaunch()
    }
}

fn spawn(name: &'static str, folder: &Path, flags: &[String]) -> Result<Process> {
    let mut command = Command::new("java");
    let classes = provided(name)?;
    command.args(JAVA_FLAGS).args(flags);
    if !flags.iter().any(|flag| flag.starts_with(ARCHIVES)) {
        command.arg(format!("-XX:SharedArchiveFile={}", archive(name, &classes)?.display()));
    }
    command.args(["-cp", &classes, MAIN_CLASS]);
    command.arg(folder.join("zoo.cfg"));
    Process::start(&command, &folder.join("log"))
        .map_err(|e| Error::while_("java (package default-jre-headless)", e))
}

/// What Java has made of the classes of a server, kept once for all: with it a start takes a third less of a processor.
/// Another Java has its own.
fn archive(name: &'static str, classes: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let java = std::env::split_paths(&path).find_map(|it| fs::metadata(it.join("java")).ok());
    let mut hasher = DefaultHasher::new();
    (classes, java.and_then(|java| java.modified().ok())).hash(&mut hasher);
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/servers");
    let file = |end: &str| place.join(format!("zookeeper-{:x}.{end}", hasher.finish()));
    let whole = file("jsa");
    if !whole.exists() {
        fs::create_dir_all(&place)?;
        let lock = fs::File::create(file("lock"))?;
        lock.lock()?;
        if !whole.exists() {
            let flag = format!("{ARCHIVES}{}", file("new").display());
            let mut server = ZooKeeperServer::start(&ZooKeeperOptions::of(name).flag(flag))?;
            // It writes the file when it ends.
            server.process.terminate(LIMIT)?;
            // A Java without classes of its own makes none, and ignores an empty file.
            fs::rename(file("new"), &whole).or_else(|_| fs::write(&whole, ""))?;
        }
    }
    Ok(whole)
}

/// Several servers of one ensemble. Dropping the value kills all of them.
#[derive(Debug)]
pub struct ZooKeeperEnsemble {
    members: Vec<ZooKeeperServer>,
    /// The proxy by which a member reaches another one, if there are such.
    links: Vec<Vec<Option<Proxy>>>,
}

impl ZooKeeperEnsemble {
    /// Starts so many servers, and waits until each serves. One is started alone.
    ///
    /// # Errors
    ///
    /// If that does not come true; the text has the end of a log.
    pub fn start(members: usize, options: &ZooKeeperOptions) -> Result<Self> {
        if members == 1 {
            let only = ZooKeeperServer::start(options)?;
            return Ok(Self { members: vec![only], links: vec![vec![None]] });
        }
        despite_collisions(|| {
            let ports: Vec<_> = (0..members).map(|_| Ports::reserve()).collect::<Result<_>>()?;
            let mut links = Vec::new();
            for from in 0..members {
                let link = |to: usize| match options.links && from != to {
                    true => Proxy::plain(ports[to].quorum.number()).map(Some),
                    false => Ok(None),
                };
                links.push((0..members).map(link).collect::<Result<Vec<_>>>()?);
            }
            let mut configs = Vec::new();
            for row in &links {
                let mut config = String::new();
                for (to, (proxy, ports)) in row.iter().zip(&ports).enumerate() {
                    let quorum = proxy.as_ref().map_or(ports.quorum.number(), Proxy::port);
                    let election = ports.election.number();
                    let _ = writeln!(config, "server.{to}=127.0.0.1:{quorum}:{election}");
                }
                configs.push(config);
            }
            let mut started = Vec::new();
            for (id, (ports, config)) in ports.into_iter().zip(&configs).enumerate() {
                started.push(ZooKeeperServer::launch(options, ports, id, config)?);
            }
            let mut ensemble = Self { members: started, links };
            ensemble.await_serving()?;
            Ok(ensemble)
        })
    }

    /// All members.
    pub fn members(&self) -> &[ZooKeeperServer] {
        &self.members
    }

    /// A member, to kill, stop or restart it.
    pub fn member_mut(&mut self, member: usize) -> &mut ZooKeeperServer {
        &mut self.members[member]
    }

    /// Waits until every member serves.
    ///
    /// # Errors
    ///
    /// If one has ended, or does not come to that.
    pub fn await_serving(&mut self) -> Result<()> {
        self.members.iter_mut().try_for_each(ZooKeeperServer::await_ready)
    }

    /// The proxy by which the member `from` reaches `to` when that one leads.
    ///
    /// # Errors
    ///
    /// If the ensemble was not started with [`ZooKeeperOptions::links`].
    pub fn link(&self, from: usize, to: usize) -> Result<&Proxy> {
        self.links[from][to].as_ref().ok_or_else(|| Error::new("the ensemble has no such link"))
    }

    /// The address for Latchwork: all members.
    pub fn url(&self) -> String {
        let hosts = self.members.iter().map(|member| format!("127.0.0.1:{}", member.port()));
        format!("zk://{}", hosts.collect::<Vec<_>>().join(","))
    }

    /// Which member leads, as it says itself.
    ///
    /// # Errors
    ///
    /// If nobody says so for long.
    pub fn leader(&self) -> Result<usize> {
        until(LIMIT, "a leader of ZooKeeper", || {
            let leads = |member: &ZooKeeperServer| {
                let leads = |mode: &str| mode == "leader" || mode == "standalone";
                member.is_running()
                    && member.mode().is_ok_and(|mode| mode.is_some_and(|m| leads(&m)))
            };
            self.members.iter().position(leads).ok_or("none says that it leads")
        })
    }
}
