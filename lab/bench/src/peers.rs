//! The locks that are measured, and the bare ways beside them: each is a program in a process of its own that speaks
//! the words of `roles.rs`.

use std::process::Command;

use latchwork_services::RedisServer;

use crate::installing::{self, From, PALS, PYTHON_LOCKS, REDIS_LOCKS};
use crate::roles::Outcome;
use crate::stats::{self, Best, missing_row};
use crate::worker::{CHILD, Worker};

/// What runs it, by the word for it.
#[derive(Clone, Copy)]
enum Program {
    /// This program, see `child.rs`.
    Own(&'static str),
    /// `peers/rust`.
    Rust(&'static str),
    /// `peers/go`.
    Go(&'static str),
    /// A class of `peers/java`.
    Java(&'static str),
    /// `peers/locks.py`, and the packages that it uses.
    Python(&'static str, From),
    /// `peers/locks.js`.
    Node(&'static str),
}
use Program::{Go, Java, Node, Own, Python, Rust};

/// How who waits learns that it may have the lock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
    /// It asks again and again, with pauses.
    Polls,
    /// The store tells it.
    Told,
    /// It is no lock but a measuring rod, and has no goal.
    Rod,
}
use Waits::{Polls, Rod, Told};

/// A kind of lock.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    program: Program,
    pub(crate) waits: Waits,
    /// The commands of `INFO commandstats` whose sum is what its clients send. The server counts what scripts call
    /// among them, so only those count that no script of it calls. (The one script of python-redis-lock calls GET
    /// once, so its GETs are the GETs and the scripts. Redisson sends a DEL after each script that releases, and each
    /// of those publishes once.)
    sends: &'static [&'static str],
}

const fn kind(
    name: &'static str,
    program: Program,
    waits: Waits,
    sends: &'static [&'static str],
) -> Kind {
    Kind { name, program, waits, sends }
}

const SCRIPTS: &[&str] = &["eval", "evalsha"];
const SETS: &[&str] = &["set", "eval", "evalsha"];
const LISTS: &[&str] = &["set", "get", "blpop"];
const NEWEST: From = From::Venv(PYTHON_LOCKS);

macro_rules! kinds {
    ($($constant:ident = $($part:expr),+;)*) => {
        $(pub(crate) const $constant: Kind = kind($($part),+);)*
    };
}

kinds! {
    LATCHWORK = "latchwork", Own("latchwork"), Told, SCRIPTS;
    HANDOVER = "latchwork-handover", Own("latchwork-handover"), Told, SCRIPTS;
    UNGUARDED = "latchwork, guard off", Own("latchwork-unguarded"), Told, SCRIPTS;
    THREADS = "latchwork, a thread that blocks", Own("latchwork-threads"), Told, SCRIPTS;
    // It tells how its votes ended.
    VOTES = "latchwork-votes", Own("latchwork-votes"), Told, SCRIPTS;
    WAITERS = "latchwork-waiters", Own("latchwork-waiters"), Told, SCRIPTS;
    STEADY = "latchwork-steady", Own("latchwork-steady"), Told, SCRIPTS;
    ELSEWHERE = "latchwork", Own("latchwork-store"), Told, SCRIPTS;

    FLOCK = "blocked in flock", Own("flock"), Rod, &[];
    FILE_THREADS = "file, a thread that blocks", Own("latchwork-threads"), Told, &[];
    FILE_TASKS = "file, a task on a runtime", Own("latchwork"), Told, &[];
    FILE = "latchwork, file", Own("latchwork-threads"), Told, &[];

    BARE_REDIS = "bare, on the caller's thread", Own("bare-redis"), Rod, SETS;
    BARE_REDIS_FAR = "bare, on a thread of its own", Own("bare-redis-far"), Rod, SETS;
    // The server counts what the script calls as well, so only scripts are counted.
    TOKEN_REDIS = "bare, with the script that gives a token", Own("token-redis"), Rod, SCRIPTS;
    SPIN = "spin", Own("bare-redis"), Rod, SETS;
    PUSH_AND_POP = "push-and-pop, no lock", Own("push-and-pop"), Rod, &["blpop", "lpush"];
    SCRIPT_AND_POP = "script-and-pop, no lock", Own("script-and-pop"), Rod, &["blpop", "evalsha"];
    PYTHON_REDIS_LOCK = "python-redis-lock", Python("redis_lock", From::Venv(REDIS_LOCKS)), Told, LISTS;
    REDIS_PY = "redis-py", Python("redis", From::System("redis")), Polls, SETS;
    NODE_REDLOCK = "node-redlock", Node("redlock"), Polls, SCRIPTS;
    REDIS_SEMAPHORE = "redis-semaphore", Node("semaphore"), Polls, SETS;
    RSLOCK = "rslock", Rust("rslock"), Polls, SETS;
    ASYNC_REDIS_LOCK = "async-redis-lock", Rust("async-redis-lock"), Polls, SCRIPTS;
    // With the watchdog that renews.
    REDISSON = "Redisson RLock", Java("RedissonLocks"), Told, &["eval", "evalsha", "publish"];
    // It does not renew by itself.
    REDSYNC = "redsync", Go("redsync"), Polls, SETS;
    RUEIDISLOCK = "rueidislock", Go("rueidislock"), Told, SCRIPTS;

    BARE_FIVE = "bare", Own("bare-five-far"), Rod, SETS;
    // That of redis-semaphore for several servers.
    REDLOCK_MUTEX = "RedlockMutex", Node("mutex"), Polls, SETS;

    BARE_ETCD = "bare", Own("bare-etcd-far"), Rod, &[];
    WATCH_AND_PUT = "watch-and-put, no lock", Own("watch-and-put"), Rod, &[];
    // The mutex of etcd's own package for Go.
    ETCD_CONCURRENCY = "etcd-concurrency", Go("etcd-concurrency"), Told, &[];

    BARE_ZOOKEEPER = "bare", Own("bare-zookeeper"), Rod, &[];
    CURATOR = "Curator InterProcessMutex", Java("Curator"), Told, &[];
    KAZOO = "kazoo Lock", Python("kazoo", From::System("kazoo")), Told, &[];
    // The recipe of the crate, which releases in the background.
    ZOOKEEPER_CLIENT = "zookeeper-client", Rust("zookeeper-client"), Told, &[];

    BARE_POSTGRES = "bare, INSERT .. ON CONFLICT and DELETE", Own("bare-postgres"), Rod, &[];
    BARE_POSTGRES_ASYNC = "bare, its DELETE asynchronous", Own("bare-postgres-async"), Rod, &[];
    ADVISORY_FREE = "pg_advisory_lock and unlock, no lease", Own("advisory"), Rod, &[];
    // A session's, which blocks in the server and has no lease.
    ADVISORY = "pg_advisory_lock, no lease", Own("advisory"), Rod, &[];
    COMMIT_AND_NOTIFY = "commit-and-notify, no lock", Own("commit-and-notify"), Rod, &[];
    // An advisory lock by the statements of DistributedLock for .NET.
    DISTRIBUTED_LOCK = "DistributedLock's way", Own("distributed-lock"), Told, &[];
    // It does not wait: its driver asks again every 50 ms.
    SHEDLOCK = "ShedLock JDBC", Java("ShedLock"), Polls, &[];
    // It waits in `pg_advisory_lock`.
    PALS_LOCK = "pals", Python("pals", From::Venv(PALS)), Told, &[];

    // Of Python: the wheel that was built here, and others in their newest versions.
    PY = "latchwork", Python("latchwork", From::Wheel), Told, SCRIPTS;
    PY_AIO = "latchwork.aio", Python("latchwork.aio", From::Wheel), Told, SCRIPTS;
    PY_AIO_UVLOOP = "latchwork.aio, uvloop", Python("latchwork.aio+uvloop", From::Wheel), Told, SCRIPTS;
    PY_REDIS = "redis-py", Python("redis", NEWEST), Polls, SETS;
    PY_REDIS_ASYNCIO = "redis.asyncio", Python("redis.asyncio", NEWEST), Polls, SETS;
    PY_REDIS_UVLOOP = "redis.asyncio, uvloop", Python("redis.asyncio+uvloop", NEWEST), Polls, SETS;
    // The floor of 64 tasks.
    PY_ASYNCIO = "no lock: asyncio alone", Python("asyncio", NEWEST), Rod, &[];
    PY_REDIS_LOCK = "python-redis-lock", Python("redis_lock", NEWEST), Told, LISTS;
    PY_POTTERY = "pottery Redlock", Python("pottery", NEWEST), Polls, SETS;
    PY_KAZOO = "kazoo", Python("kazoo", NEWEST), Told, &[];
    PY_ETCD3GW = "etcd3gw", Python("etcd3gw", NEWEST), Polls, &[];
    PY_AETCD = "aetcd, asyncio", Python("aetcd", NEWEST), Told, &[];
    PY_FILELOCK = "filelock", Python("filelock", NEWEST), Polls, &[];
    RUST_THREAD = "Rust, a thread that blocks", Own("latchwork-threads"), Rod, SCRIPTS;
    RUST_TASKS = "Rust, 64 tasks", Own("latchwork"), Rod, SCRIPTS;
    PLAIN_SOCKET = "no lock: its two commands by a plain socket", Own("plain-socket"), Rod, SCRIPTS;
}

/// What any client sends beside its locks.
const ALWAYS: &[&str] = &["hello", "client|", "subscribe", "unsubscribe", "ping", "script|"];

impl Kind {
    /// Whether it is Latchwork, in whatever setting.
    pub(crate) fn is_ours(&self) -> bool {
        self.name.starts_with(LATCHWORK.name)
    }

    /// Whether it is another lock.
    pub(crate) fn is_peer(&self) -> bool {
        !self.is_ours() && !self.is_rod()
    }

    /// Whether it is a measuring rod, not a lock.
    pub(crate) fn is_rod(&self) -> bool {
        self.waits == Rod
    }

    /// Installs what is not there yet.
    ///
    /// # Errors
    ///
    /// If that fails: what is missing, in one line.
    pub(crate) fn install(&self) -> Result<(), String> {
        match self.program {
            Own(_) => Ok(()),
            Rust(_) => installing::cargo("peers").map(drop),
            Go(_) => installing::go().map(drop),
            Java(class) => installing::java(class),
            Python(_, from) => from.install(),
            Node(_) => installing::node().map(drop),
        }
    }

    /// Starts a process of it and waits until it is ready. Without a ttl it has its own.
    pub(crate) fn start(&self, url: &str, ttl_ms: u128) -> Outcome<Worker> {
        let mut all = self.start_all(url, ttl_ms, 1)?;
        Ok(all.pop().ok_or("a process")?)
    }

    /// Starts so many, all at once.
    pub(crate) fn start_all(&self, url: &str, ttl_ms: u128, count: usize) -> Outcome<Vec<Worker>> {
        let mut workers = Vec::new();
        for number in 0..count {
            let mut command = self.command()?;
            command.args([url, &ttl_ms.to_string(), &number.to_string()]);
            workers.push(Worker::spawn(&mut command)?);
        }
        for worker in &mut workers {
            worker.expect("ready").map_err(|error| format!("{}: {error}", self.name))?;
        }
        Ok(workers)
    }

    fn command(&self) -> Outcome<Command> {
        let with = |mut command: Command, word: &str| {
            command.arg(word);
            command
        };
        Ok(match self.program {
            Own(word) => with(with(Command::new(std::env::current_exe()?), CHILD), word),
            Rust(word) => with(Command::new(installing::cargo_program("peers")), word),
            Go(word) => with(Command::new(installing::go_program()), word),
            Java(class) => installing::java_command(class),
            Python(word, from) => with(from.command("locks.py"), word),
            Node(word) => with(installing::node_command("locks.js"), word),
        })
    }

    /// How many commands its clients have sent since the server was started.
    pub(crate) fn commands(&self, server: &RedisServer) -> Outcome<f64> {
        let info = server.command(&["INFO", "commandstats"])?.ok()?.text();
        let calls = info.lines().filter_map(|line| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            let counts =
                self.sends.contains(&name) || ALWAYS.iter().any(|always| name.starts_with(always));
            rest.split(',').next().filter(|_| counts)?.parse::<f64>().ok()
        });
        Ok(calls.sum())
    }
}

/// What cannot be had, with the reason.
pub(crate) type Missing = Vec<(Kind, String)>;

/// Installs several kinds; what cannot be had goes to the second list.
pub(crate) fn install(kinds: &[Kind]) -> (Vec<Kind>, Missing) {
    let (mut here, mut missing) = (Vec::new(), Vec::new());
    for kind in kinds {
        match kind.install() {
            Ok(()) => here.push(*kind),
            Err(reason) => missing.push((*kind, reason)),
        }
    }
    (here, missing)
}

/// Rows of a table for what could not be had.
pub(crate) fn missing_rows(missing: &Missing, columns: usize) {
    missing.iter().for_each(|(kind, reason)| missing_row(kind.name, reason, columns));
}

/// How often as much Latchwork has as the best of the others and as the measuring rods, in a sentence.
pub(crate) fn beside<'a>(
    ours: f64,
    all: impl Iterator<Item = (&'a Kind, f64)> + Clone,
    best: Best,
) -> String {
    let some = |wanted: fn(&Kind) -> bool| -> Vec<(&str, f64)> {
        all.clone().filter(|(kind, _)| wanted(kind)).map(|(kind, it)| (kind.name, it)).collect()
    };
    stats::beside(ours, &some(Kind::is_peer), &some(Kind::is_rod), best)
}
