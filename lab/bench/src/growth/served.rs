//! The stores of the curves, and what their servers spend and keep.

use std::fs;
use std::path::Path;

use latchwork::BlockOn as _;
use latchwork_services::{
    EtcdOptions, EtcdServer, Folder, RedisOptions, RedisServer, ZooKeeperOptions, ZooKeeperServer,
    etcdctl,
};

use crate::peers::Kind;
use crate::postgres::{self, OnDisk};
use crate::postgres_waiters::processor_time;
use crate::redlock_servers::{Five, SERVERS};
use crate::store::{Count, Files, Store};
use crate::zookeeper;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

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

impl Which {
    /// Starts its server with its data in this folder of a disk, and synced to it as its own settings say.
    pub(crate) fn start_in(self, folder: &Path) -> Result<Box<dyn Served>> {
        Ok(match self {
            Self::Etcd => Box::new(EtcdServer::start(&EtcdOptions::new().data_in(folder))?),
            Self::ZooKeeper => {
                Box::new(zookeeper::start_with(ZooKeeperOptions::new().data_in(folder))?)
            }
            // PostgreSQL's is on a disk; Redis has none.
            _ => self.start()?,
        })
    }

    /// Starts its servers.
    pub(crate) fn start(self) -> Result<Box<dyn Served>> {
        Ok(match self {
            Self::Memory => Box::new(Memory),
            Self::Files => Box::new(Files(Folder::new()?)),
            Self::Redis => Box::new(RedisServer::start(&RedisOptions::new())?),
            Self::Redlock => Box::new(Five::start()?),
            Self::Etcd => {
                // As much as its manual allows: a million keys used once pass the default of 2 GB.
                let options = EtcdOptions::new().arg("--quota-backend-bytes=8589934592");
                Box::new(EtcdServer::start(&options)?)
            }
            Self::ZooKeeper => Box::new(zookeeper::start()?),
            Self::Postgres => Box::new(postgres::start_for(CONNECTIONS)?),
        })
    }
}

/// For 256 processes with a few connections each.
const CONNECTIONS: usize = 1_500;

/// What is left at a store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Left {
    /// Keys, nodes, rows or files.
    pub(crate) entries: f64,
    pub(crate) bytes: f64,
}

/// A store whose servers' expenses are known. Of several servers, all of them together.
pub(crate) trait Served: Store {
    /// The processor time of its servers so far, in seconds; of none, no number.
    fn cpu(&self) -> f64;

    /// The memory that the server uses for data, in bytes, if it says so.
    fn memory(&self) -> Count {
        Ok(f64::NAN)
    }

    /// How often its servers have synced their data to a disk, if they do and say so.
    fn syncs(&self) -> Count {
        Ok(f64::NAN)
    }

    /// What is left, once it has cleared away what it can clear away.
    fn left(&self) -> Result<Left>;
}

/// The processor time of the threads that a process has now, in seconds: to the nanosecond, not to the
/// tick of `/proc/PID/stat`.
pub(crate) fn of_threads(pid: u32) -> f64 {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return f64::NAN };
    let spent = |task: fs::DirEntry| -> Option<f64> {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse().ok()
    };
    tasks.flatten().filter_map(spent).sum::<f64>() / 1e9
}

/// How many connections are open to servers at these ports.
pub(crate) fn connections(ports: &[u16]) -> f64 {
    let lists = ["tcp", "tcp6"].map(|list| fs::read_to_string(format!("/proc/net/{list}")));
    let lines = lists.iter().flatten().flat_map(|text| text.lines().skip(1));
    lines.filter(|line| local_port(line).is_some_and(|port| ports.contains(&port))).count() as f64
}

/// The port on this side of an open connection, from its line in `/proc/net/tcp`.
fn local_port(line: &str) -> Option<u16> {
    const ESTABLISHED: &str = "01";
    let words: Vec<&str> = line.split_whitespace().collect();
    let (_, port) = words.get(1)?.rsplit_once(':')?;
    (words.get(3)? == &ESTABLISHED).then(|| u16::from_str_radix(port, 16).ok())?
}

/// This process's own store.
struct Memory;

impl Store for Memory {
    fn name(&self) -> &'static str {
        "one process"
    }

    fn ports(&self) -> Vec<u16> {
        Vec::new()
    }

    fn address_at(&self, _ports: &[u16]) -> String {
        "mem:".into()
    }

    fn commands(&self, _kind: &Kind) -> Count {
        Ok(f64::NAN)
    }
}

impl Served for Memory {
    fn cpu(&self) -> f64 {
        f64::NAN
    }

    fn left(&self) -> Result<Left> {
        Ok(Left { entries: f64::NAN, bytes: f64::NAN })
    }
}

impl Served for Files {
    fn cpu(&self) -> f64 {
        f64::NAN
    }

    fn left(&self) -> Result<Left> {
        let mut left = Left { entries: 0.0, bytes: 0.0 };
        add_files(self.0.path(), &mut left)?;
        Ok(left)
    }
}

fn add_files(folder: &Path, left: &mut Left) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let Ok(metadata) = entry.metadata() else { continue };
        if metadata.is_dir() {
            add_files(&entry.path(), left)?;
        } else {
            left.entries += 1.0;
            left.bytes += metadata.len() as f64;
        }
    }
    Ok(())
}

fn of_redis(server: &RedisServer) -> Result<Left> {
    let entries = server.command(&["DBSIZE"])?.ok()?.text().parse()?;
    Ok(Left { entries, bytes: server.info("used_memory")?.parse()? })
}

impl Served for RedisServer {
    fn cpu(&self) -> f64 {
        of_threads(self.pid())
    }

    fn memory(&self) -> Count {
        Ok(self.info("used_memory")?.parse()?)
    }

    /// It has no file that it appends to, as Debian's package makes it.
    fn syncs(&self) -> Count {
        Ok(0.0)
    }

    fn left(&self) -> Result<Left> {
        of_redis(self)
    }
}

impl Served for Five {
    fn cpu(&self) -> f64 {
        self.servers.iter().map(|server| of_threads(server.pid())).sum()
    }

    fn left(&self) -> Result<Left> {
        let mut all = Left { entries: 0.0, bytes: 0.0 };
        for server in &self.servers {
            let left = of_redis(server)?;
            all.entries += left.entries / SERVERS as f64;
            all.bytes += left.bytes;
        }
        Ok(all)
    }
}

impl Served for EtcdServer {
    fn cpu(&self) -> f64 {
        of_threads(self.pid())
    }

    /// Of its log, and of its database.
    fn syncs(&self) -> Count {
        let log = self.measure("etcd_disk_wal_fsync_duration_seconds_count", "")?;
        Ok(log + self.measure("etcd_disk_backend_commit_duration_seconds_count", "")?)
    }

    /// After a compaction: before it, the history is there too.
    fn left(&self) -> Result<Left> {
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

impl Served for ZooKeeperServer {
    fn cpu(&self) -> f64 {
        of_threads(self.pid())
    }

    fn syncs(&self) -> Count {
        Ok(self.count("zk_cnt_fsynctime")? as f64)
    }

    fn left(&self) -> Result<Left> {
        let count = |name| self.count(name).map(|count| count as f64);
        Ok(Left { entries: count("zk_znode_count")?, bytes: count("zk_approximate_data_size")? })
    }
}

impl Served for OnDisk {
    fn cpu(&self) -> f64 {
        processor_time(self.server.pid())
    }

    /// Of its log. Its processes report once a second.
    fn syncs(&self) -> Count {
        Ok(self.server.psql("SELECT wal_sync FROM pg_stat_wal")?.parse()?)
    }

    /// After a vacuum: before it, dead rows are there too.
    fn left(&self) -> Result<Left> {
        self.server.psql("VACUUM latchwork")?;
        self.server.psql("VACUUM latchwork_line")?;
        let said = self.server.psql(
            "SELECT (SELECT count(*) FROM latchwork) + (SELECT count(*) FROM latchwork_line), \
             pg_total_relation_size('latchwork') + pg_total_relation_size('latchwork_line')",
        )?;
        let (entries, bytes) = said.split_once('|').ok_or("two numbers")?;
        Ok(Left { entries: entries.parse()?, bytes: bytes.parse()? })
    }
}

/// Connects once, so that what comes with the first connection is not of the keys.
pub(crate) fn open(store: &dyn Store) -> Result<String> {
    let address = store.address();
    if address != "mem:" {
        latchwork::init(&address).block_on()?;
    }
    Ok(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_connections_are_counted_by_their_port() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(connections(&[port]), 0.0);
        let _clients = [0, 1].map(|_| std::net::TcpStream::connect(("127.0.0.1", port)).unwrap());
        let _accepted = [0, 1].map(|_| listener.accept().unwrap());
        assert_eq!(connections(&[port]), 2.0);
        assert_eq!(connections(&[]), 0.0);
    }

    #[test]
    fn the_time_of_a_server_is_finer_than_a_tick() {
        let mut busy =
            std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let seen: Vec<f64> = (0..20)
            .map(|_| {
                std::thread::sleep(std::time::Duration::from_millis(20));
                of_threads(busy.id())
            })
            .collect();
        busy.kill().unwrap();
        busy.wait().unwrap();
        assert!(seen.is_sorted() && seen[19] > seen[0], "{seen:?}");
        let is_tick = |time: &f64| (time * 100.0 - (time * 100.0).round()).abs() < 1e-9;
        assert!(!seen.iter().all(is_tick), "{seen:?}");
        assert!(of_threads(u32::MAX).is_nan());
    }

    #[test]
    fn the_files_left_are_counted_in_all_folders() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("below")).unwrap();
        fs::write(folder.path().join("one"), [0; 10]).unwrap();
        fs::write(folder.path().join("below/two"), [0; 5]).unwrap();
        let mut left = Left { entries: 0.0, bytes: 0.0 };
        add_files(folder.path(), &mut left).unwrap();
        assert_eq!((left.entries, left.bytes), (2.0, 15.0));
    }
}
