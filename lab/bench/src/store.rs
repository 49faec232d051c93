//! The stores that are measured, and what their servers get, spend and keep.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use latchwork::BlockOn as _;
use latchwork_services::{
    Direction, EtcdOptions, EtcdServer, Folder, PostgresOptions, PostgresServer, Proxy,
    RedisOptions, RedisServer, ZooKeeperOptions, ZooKeeperServer, etcdctl,
};
use tempfile::TempDir;

use crate::peers::{BARE_ZOOKEEPER, Kind, LATCHWORK};
use crate::roles::{Outcome, now};
use crate::stats::median;
use crate::worker::{of_threads, processor_time};

/// Which store is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// The queue and the holds of this process alone.
    Memory,
    Files,
    Redis,
    Redlock,
    Etcd,
    ZooKeeper,
    Postgres,
}

/// For 256 processes with a few connections each.
const CONNECTIONS: usize = 1_500;

impl Which {
    /// Starts its servers.
    pub(crate) fn start(self) -> Outcome<Box<dyn Store>> {
        Ok(match self {
            Self::Memory => Box::new(Memory),
            Self::Files => Box::new(Files(Folder::new()?)),
            Self::Redis => Box::new(redis()?),
            Self::Redlock => Box::new(Five::start()?),
            Self::Etcd => {
                // As much as its manual allows: a million keys used once pass the default of 2 GB.
                let options = EtcdOptions::new().arg("--quota-backend-bytes=8589934592");
                Box::new(EtcdServer::start(&options)?)
            }
            Self::ZooKeeper => Box::new(zookeeper(ZooKeeperOptions::new())?),
            Self::Postgres => Box::new(OnDisk::start()?),
        })
    }

    /// Starts its server with its data in this folder of a disk, and synced to it as its own settings say.
    pub(crate) fn start_in(self, folder: &Path) -> Outcome<Box<dyn Store>> {
        Ok(match self {
            Self::Etcd => Box::new(EtcdServer::start(&EtcdOptions::new().data_in(folder))?),
            Self::ZooKeeper => Box::new(zookeeper(ZooKeeperOptions::new().data_in(folder))?),
            // PostgreSQL's is on a disk; Redis has none.
            _ => self.start()?,
        })
    }
}

/// What is left at a store.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Left {
    /// Keys, nodes, rows or files.
    pub(crate) entries: f64,
    pub(crate) bytes: f64,
}

/// A store, whatever it is. What it cannot tell is no number. Of several servers, all of them together.
pub(crate) trait Store: Sync {
    /// For tables and pictures.
    fn name(&self) -> &'static str;

    /// Where its servers listen.
    fn ports(&self) -> Vec<u16> {
        Vec::new()
    }

    /// The address for Latchwork, and for others to take apart, if the servers are met at these ports.
    fn address_at(&self, ports: &[u16]) -> String;

    /// The address without a detour.
    fn address(&self) -> String {
        self.address_at(&self.ports())
    }

    /// How many commands clients of this kind have sent since the store was started.
    fn commands(&self, _kind: &Kind) -> Outcome<f64> {
        Ok(f64::NAN)
    }

    /// Forgets what others have left, where that is needed.
    fn clear(&self) -> Outcome {
        Ok(())
    }

    /// The processor time of its servers so far, in seconds.
    fn cpu(&self) -> f64 {
        f64::NAN
    }

    /// The memory that the server uses for data, in bytes.
    fn memory(&self) -> Outcome<f64> {
        Ok(f64::NAN)
    }

    /// How often its servers have synced their data to a disk.
    fn syncs(&self) -> Outcome<f64> {
        Ok(f64::NAN)
    }

    /// What is left, once it has cleared away what it can clear away.
    fn left(&self) -> Outcome<Left> {
        Ok(Left { entries: f64::NAN, bytes: f64::NAN })
    }
}

fn hosts(ports: &[u16]) -> String {
    ports.iter().map(|port| format!("127.0.0.1:{port}")).collect::<Vec<_>>().join(",")
}

/// This process's own store.
pub(crate) struct Memory;

impl Store for Memory {
    fn name(&self) -> &'static str {
        "one process"
    }

    fn address_at(&self, _ports: &[u16]) -> String {
        "mem:".into()
    }
}

/// Somebody's store, of which nothing else is known.
pub(crate) struct Elsewhere(pub(crate) String);

impl Store for Elsewhere {
    fn name(&self) -> &'static str {
        "this store"
    }

    fn address_at(&self, _ports: &[u16]) -> String {
        self.0.clone()
    }
}

/// Files, where the folders of servers are too.
pub(crate) struct Files(pub(crate) Folder);

impl Store for Files {
    fn name(&self) -> &'static str {
        "file"
    }

    fn address_at(&self, _ports: &[u16]) -> String {
        format!("file://{}/locks", self.0.path().display())
    }

    fn left(&self) -> Outcome<Left> {
        left_in(self.0.path())
    }
}

fn left_in(folder: &Path) -> Outcome<Left> {
    let mut left = Left::default();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let Ok(metadata) = entry.metadata() else { continue };
        let more = match metadata.is_dir() {
            true => left_in(&entry.path())?,
            false => Left { entries: 1.0, bytes: metadata.len() as f64 },
        };
        left.entries += more.entries;
        left.bytes += more.bytes;
    }
    Ok(left)
}

/// What is the same of all servers.
macro_rules! server {
    ($name:literal, $address:literal) => {
        fn name(&self) -> &'static str {
            $name
        }

        fn ports(&self) -> Vec<u16> {
            vec![self.port()]
        }

        fn address_at(&self, ports: &[u16]) -> String {
            format!($address, hosts(ports))
        }

        fn cpu(&self) -> f64 {
            of_threads(self.pid())
        }
    };
}

pub(crate) fn redis() -> Outcome<RedisServer> {
    Ok(RedisServer::start(&RedisOptions::new())?)
}

impl Store for RedisServer {
    server! { "Redis", "redis://{}" }

    fn commands(&self, kind: &Kind) -> Outcome<f64> {
        kind.commands(self)
    }

    fn clear(&self) -> Outcome {
        self.command(&["FLUSHALL"])?;
        Ok(())
    }

    fn memory(&self) -> Outcome<f64> {
        Ok(self.info("used_memory")?.parse()?)
    }

    /// It has no file that it appends to, as Debian's package makes it.
    fn syncs(&self) -> Outcome<f64> {
        Ok(0.0)
    }

    fn left(&self) -> Outcome<Left> {
        let entries = self.command(&["DBSIZE"])?.ok()?.text().parse()?;
        Ok(Left { entries, bytes: self.memory()? })
    }
}

/// Five servers of Redis that know nothing of each other.
pub(crate) struct Five(pub(crate) Vec<RedisServer>);

impl Five {
    /// Starts them, empty and ready for locks.
    pub(crate) fn start() -> Outcome<Self> {
        let this = Self((0..5).map(|_| redis()).collect::<Outcome<_>>()?);
        this.clear()?;
        Ok(this)
    }

    fn mean(&self, of: impl Fn(&RedisServer) -> Outcome<f64>) -> Outcome<f64> {
        let all = self.0.iter().map(of).collect::<Outcome<Vec<_>>>()?;
        Ok(all.iter().sum::<f64>() / all.len() as f64)
    }
}

impl Store for Five {
    fn name(&self) -> &'static str {
        "Redlock, 5 servers"
    }

    fn ports(&self) -> Vec<u16> {
        self.0.iter().map(RedisServer::port).collect()
    }

    fn address_at(&self, ports: &[u16]) -> String {
        format!("redlock://{}", hosts(ports))
    }

    /// Those of each server.
    fn commands(&self, kind: &Kind) -> Outcome<f64> {
        self.mean(|server| kind.commands(server))
    }

    /// Afterwards they would be in quarantine, so somebody says that no lock is held.
    fn clear(&self) -> Outcome {
        self.0.iter().try_for_each(Store::clear)?;
        Ok(latchwork::init(&self.address()).block_on().map(drop)?)
    }

    fn cpu(&self) -> f64 {
        self.0.iter().map(Store::cpu).sum()
    }

    /// The entries of each server, the bytes of all.
    fn left(&self) -> Outcome<Left> {
        let entries = self.mean(|server| Ok(server.left()?.entries))?;
        Ok(Left { entries, bytes: 5.0 * self.mean(Store::memory)? })
    }
}

impl Store for EtcdServer {
    server! { "etcd", "etcd://{}" }

    /// Messages: streams have many.
    fn commands(&self, _kind: &Kind) -> Outcome<f64> {
        let mut sum = 0.0;
        for service in ["KV", "Lease", "Watch"] {
            let label = format!("grpc_service=\"etcdserverpb.{service}\"");
            sum += self.measure("grpc_server_msg_received_total", &label)?;
        }
        Ok(sum)
    }

    /// What killed processes leave stays until its leases end, which is a minute for some: nobody is to wait for that.
    fn clear(&self) -> Outcome {
        etcdctl(self.port(), &["del", "", "--prefix"])?;
        Ok(())
    }

    /// Of its log, and of its database.
    fn syncs(&self) -> Outcome<f64> {
        let log = self.measure("etcd_disk_wal_fsync_duration_seconds_count", "")?;
        Ok(log + self.measure("etcd_disk_backend_commit_duration_seconds_count", "")?)
    }

    /// After a compaction: before it, the history is there too.
    fn left(&self) -> Outcome<Left> {
        // The count is of all keys; etcdctl of 3.4 cannot ask for it alone.
        let words = ["get", "", "--prefix", "--keys-only", "--limit=1", "--write-out=fields"];
        let text = etcdctl(self.port(), &words)?;
        let field = |name: &str| -> Option<f64> {
            let line = text.lines().find(|line| line.trim_start_matches('"').starts_with(name))?;
            line.rsplit(':').next()?.trim().parse().ok()
        };
        let entries = field("Count").ok_or("etcd: how many keys?")?;
        let revision = field("Revision").ok_or("etcd: which revision?")?;
        etcdctl(self.port(), &["compact", "--physical", &revision.to_string()])?;
        let bytes = self.measure("etcd_mvcc_db_total_size_in_use_in_bytes", "")?;
        Ok(Left { entries, bytes })
    }
}

/// As servers are run: with the better compiler and more memory than tests give them, and the usual tick; and not as
/// the first thing that they do: the server's machine compiles what it does often.
fn zookeeper(options: ZooKeeperOptions) -> Outcome<ZooKeeperServer> {
    let options =
        options.tick(Duration::from_secs(2)).flag("-XX:TieredStopAtLevel=4").flag("-Xmx512m");
    let server = ZooKeeperServer::start(&options)?;
    for kind in [BARE_ZOOKEEPER, LATCHWORK] {
        let mut worker = kind.start(&server.url(), 0)?;
        worker.tell(&format!("cycle 16 {}", now() + 2_000_000_000))?;
        worker.line()?;
    }
    Ok(server)
}

impl Store for ZooKeeperServer {
    fn name(&self) -> &'static str {
        "ZooKeeper"
    }

    fn ports(&self) -> Vec<u16> {
        vec![self.port()]
    }

    /// Below a node of its own each time: what processes leave that are killed stays there until their sessions have
    /// ended.
    fn address_at(&self, ports: &[u16]) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        format!("zk://{}/{}", hosts(ports), NEXT.fetch_add(1, Ordering::Relaxed))
    }

    fn commands(&self, _kind: &Kind) -> Outcome<f64> {
        Ok(self.count("zk_packets_received")? as f64)
    }

    fn cpu(&self) -> f64 {
        of_threads(self.pid())
    }

    fn syncs(&self) -> Outcome<f64> {
        Ok(self.count("zk_cnt_fsynctime")? as f64)
    }

    fn left(&self) -> Outcome<Left> {
        let count = |name| self.count(name).map(|count| count as f64);
        Ok(Left { entries: count("zk_znode_count")?, bytes: count("zk_approximate_data_size")? })
    }
}

/// What the other locks need, beside what `init` makes.
const TABLES: &str = "CREATE EXTENSION pg_stat_statements; \
    CREATE TABLE bench (k text PRIMARY KEY, owner bigint, ends timestamptz); \
    CREATE TABLE shedlock (name varchar(64) PRIMARY KEY, lock_until timestamp NOT NULL, \
        locked_at timestamp NOT NULL, locked_by varchar(255) NOT NULL)";

/// A PostgreSQL as Debian's package makes it, whose data is on a disk and synced to it.
pub(crate) struct OnDisk {
    pub(crate) server: PostgresServer,
    // Last: it is removed when the server has ended.
    _folder: TempDir,
}

impl OnDisk {
    pub(crate) fn start() -> Outcome<Self> {
        let folder = tempfile::tempdir_in(std::env::temp_dir())?;
        let options = PostgresOptions::new()
            .setting("fsync=on")
            .setting(format!("max_connections={CONNECTIONS}"))
            .setting("shared_preload_libraries=pg_stat_statements")
            .data_in(folder.path());
        let server = PostgresServer::start_with(&options)?;
        server.psql(TABLES)?;
        latchwork::init(&server.url()).block_on()?;
        Ok(Self { server, _folder: folder })
    }

    /// Several numbers that it answers.
    pub(crate) fn numbers<const N: usize>(&self, statement: &str) -> Outcome<[f64; N]> {
        let said = self.server.psql(statement)?;
        let numbers = said.split('|').map(str::parse).collect::<Result<Vec<f64>, _>>()?;
        Ok(numbers.try_into().map_err(|_| format!("PostgreSQL said {said:?}"))?)
    }
}

/// How long a write of one page to a disk takes, in microseconds: no commit that is durable is quicker.
pub(crate) fn sync() -> Outcome<f64> {
    use std::os::unix::fs::FileExt as _;
    let file = tempfile::tempfile_in(std::env::temp_dir())?;
    file.write_all_at(&[0; 1 << 20], 0)?;
    let mut took = Vec::new();
    for _ in 0..200 {
        let start = Instant::now();
        file.write_all_at(&[1; 8_192], 0)?;
        file.sync_data()?;
        took.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(&mut took))
}

impl Store for OnDisk {
    fn name(&self) -> &'static str {
        "PostgreSQL"
    }

    fn ports(&self) -> Vec<u16> {
        vec![self.server.port()]
    }

    fn address_at(&self, ports: &[u16]) -> String {
        format!("postgres://postgres@{}/postgres", hosts(ports))
    }

    /// Statements, those of a transaction counted one by one.
    fn commands(&self, _kind: &Kind) -> Outcome<f64> {
        Ok(self.numbers::<1>("SELECT sum(calls) FROM pg_stat_statements")?[0])
    }

    /// A process that was killed may still be waited for by the server.
    fn clear(&self) -> Outcome {
        self.server.psql(
            "SELECT count(pg_terminate_backend(pid, 1000)) FROM pg_stat_activity \
             WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
        )?;
        self.server.psql(
            "DELETE FROM latchwork WHERE k <> ''; TRUNCATE latchwork_line, bench, shedlock",
        )?;
        Ok(())
    }

    fn cpu(&self) -> f64 {
        processor_time(self.server.pid(), true)
    }

    /// Of its log, which version 18 tells elsewhere. Its processes report once a second.
    fn syncs(&self) -> Outcome<f64> {
        let new = "SELECT sum(fsyncs) FROM pg_stat_io WHERE object = 'wal'";
        let old = |_| self.numbers::<1>("SELECT wal_sync FROM pg_stat_wal");
        Ok(self.numbers::<1>(new).or_else(old)?[0])
    }

    /// After a vacuum: before it, dead rows are there too.
    fn left(&self) -> Outcome<Left> {
        self.server.psql("VACUUM latchwork")?;
        self.server.psql("VACUUM latchwork_line")?;
        let [entries, bytes] = self.numbers(
            "SELECT (SELECT count(*) FROM latchwork) + (SELECT count(*) FROM latchwork_line), \
             pg_total_relation_size('latchwork') + pg_total_relation_size('latchwork_line')",
        )?;
        Ok(Left { entries, bytes })
    }
}

/// A store behind a slow link to each of its servers.
pub(crate) struct SlowLink<'a> {
    store: &'a dyn Store,
    links: Vec<Proxy>,
}

impl<'a> SlowLink<'a> {
    /// Bytes take at least so long on their way to the servers, and as long on their way back.
    pub(crate) fn new(store: &'a dyn Store, delay: Duration) -> Outcome<Self> {
        let mut links = Vec::new();
        for port in store.ports() {
            let link = Proxy::plain(port)?;
            link.delay(Direction::ToServer, delay);
            link.delay(Direction::ToClient, delay);
            links.push(link);
        }
        Ok(Self { store, links })
    }
}

impl Store for SlowLink<'_> {
    fn name(&self) -> &'static str {
        self.store.name()
    }

    fn ports(&self) -> Vec<u16> {
        self.links.iter().map(Proxy::port).collect()
    }

    fn address_at(&self, ports: &[u16]) -> String {
        self.store.address_at(ports)
    }

    fn commands(&self, kind: &Kind) -> Outcome<f64> {
        self.store.commands(kind)
    }

    fn clear(&self) -> Outcome {
        self.store.clear()
    }
}

/// The median of some round trips to Redis over a link with this delay each way, in milliseconds.
pub(crate) fn ping(redis: &RedisServer, delay: Duration) -> Outcome<f64> {
    use std::io::{Read as _, Write as _};
    let link = SlowLink::new(redis, delay)?;
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", link.ports()[0]))?;
    stream.set_nodelay(true)?;
    let mut times = Vec::new();
    for _ in 0..21 {
        let start = now();
        stream.write_all(b"PING\r\n")?;
        stream.read_exact(&mut [0; b"+PONG\r\n".len()])?;
        times.push((now() - start) as f64 / 1e6);
    }
    Ok(median(&mut times))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_left_are_counted_in_all_folders() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("below")).unwrap();
        fs::write(folder.path().join("one"), [0; 10]).unwrap();
        fs::write(folder.path().join("below/two"), [0; 5]).unwrap();
        let left = left_in(folder.path()).unwrap();
        assert_eq!((left.entries, left.bytes), (2.0, 15.0));
    }
}
