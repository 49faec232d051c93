//! The locks that Latchwork is measured against, each in a process of its own.

pub(crate) mod python;

use std::path::Path;
use std::process::Command;

use latchwork_services::RedisServer;

use crate::child::Worker;
use crate::goals::Goal;
use crate::installing::{self, PYTHON, Venv, folder, libraries, with_script};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// A process lives for seconds: it starts at once and does not wait for the best code.
const JAVA_FLAGS: &[&str] = &[
    "-Xmx128m",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Xshare:auto",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
];
/// What runs it.
enum Program {
    /// This program.
    Own,
    /// `peers/rust`.
    Rust,
    /// `peers/go`.
    Go,
    /// A class of `peers/java`.
    Java(&'static str),
    /// Python with what the system has: a script, and the module that it needs; or with the packages
    /// of `target/peers/venv`.
    System(&'static str, &'static str),
    Venv(&'static str, Venv),
    /// Python with Latchwork's wheel, and with the packages that it is measured beside.
    Wheel(&'static str),
    Node(&'static str),
}

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

/// A kind of lock.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    program: Program,
    pub(crate) waits: Waits,
    /// Whether its connection is moved by another thread than its caller's.
    pub(crate) own_thread: bool,
    /// The commands of `INFO commandstats` whose sum is what its clients send. The server counts
    /// what scripts call among them, so only those count that no script of it calls. (The one script
    /// of python-redis-lock calls GET once, so its GETs are the GETs and the scripts. Redisson sends
    /// a DEL after each script that releases, and each of those publishes once.)
    sends: &'static [&'static str],
}

const SCRIPTS: &[&str] = &["eval", "evalsha"];
const SET_AND_SCRIPTS: &[&str] = &["set", "eval", "evalsha"];

pub(crate) const SPIN: Kind = Kind {
    name: "spin",
    program: Program::Own,
    waits: Waits::Rod,
    own_thread: false,
    sends: SET_AND_SCRIPTS,
};
/// The least that telling another process can cost on Redis.
pub(crate) const PUSH_AND_POP: Kind = Kind {
    name: "push-and-pop, no lock",
    program: Program::Own,
    waits: Waits::Rod,
    own_thread: false,
    sends: &["blpop", "lpush"],
};
/// The same, told by a script that also does what no lock that counts tokens goes without.
pub(crate) const SCRIPT_AND_POP: Kind = Kind {
    name: "script-and-pop, no lock",
    program: Program::Own,
    waits: Waits::Rod,
    own_thread: false,
    sends: &["blpop", "evalsha"],
};
/// The same on etcd.
pub(crate) const WATCH_AND_PUT: Kind = Kind {
    name: "watch-and-put, no lock",
    program: Program::Own,
    waits: Waits::Rod,
    own_thread: false,
    sends: &[],
};
/// The least that a durable handover can cost on PostgreSQL.
pub(crate) const COMMIT_AND_NOTIFY: Kind = Kind {
    name: "commit-and-notify, no lock",
    program: Program::Own,
    waits: Waits::Rod,
    own_thread: false,
    sends: &[],
};
pub(crate) const LATCHWORK: Kind = Kind {
    name: "latchwork",
    program: Program::Own,
    waits: Waits::Told,
    own_thread: true,
    sends: SCRIPTS,
};
pub(crate) const LATCHWORK_HANDOVER: Kind = Kind {
    name: "latchwork-handover",
    program: Program::Own,
    waits: Waits::Told,
    own_thread: true,
    sends: SCRIPTS,
};
pub(crate) const REDIS_PY: Kind = Kind {
    name: "redis-py",
    program: Program::System("redis_py.py", "redis"),
    waits: Waits::Polls,
    own_thread: false,
    sends: SET_AND_SCRIPTS,
};
pub(crate) const PYTHON_REDIS_LOCK_KIND: Kind = Kind {
    name: "python-redis-lock",
    program: Program::Venv("python_redis_lock.py", installing::REDIS_LOCKS),
    waits: Waits::Told,
    own_thread: false,
    sends: &["set", "get", "blpop"],
};
pub(crate) const NODE_REDLOCK: Kind = Kind {
    name: "node-redlock",
    program: Program::Node("node_redlock.js"),
    waits: Waits::Polls,
    own_thread: false,
    sends: SCRIPTS,
};
pub(crate) const REDIS_SEMAPHORE: Kind = Kind {
    name: "redis-semaphore",
    program: Program::Node("redis_semaphore.js"),
    waits: Waits::Polls,
    own_thread: false,
    sends: SET_AND_SCRIPTS,
};
/// The lock of redis-semaphore for several servers.
pub(crate) const REDLOCK_MUTEX: Kind = Kind {
    name: "RedlockMutex",
    program: Program::Node("redlock_mutex.js"),
    waits: Waits::Polls,
    own_thread: false,
    sends: SET_AND_SCRIPTS,
};
/// Latchwork that tells how its votes ended.
pub(crate) const LATCHWORK_VOTES: Kind = Kind {
    name: "latchwork-votes",
    program: Program::Own,
    waits: Waits::Told,
    own_thread: true,
    sends: SCRIPTS,
};
pub(crate) const RSLOCK: Kind = Kind {
    name: "rslock",
    program: Program::Rust,
    waits: Waits::Polls,
    own_thread: false,
    sends: SET_AND_SCRIPTS,
};
/// The mutex of etcd's own package for Go.
pub(crate) const ETCD_CONCURRENCY: Kind = Kind {
    name: "etcd-concurrency",
    program: Program::Go,
    waits: Waits::Told,
    own_thread: true,
    sends: &[],
};
/// The mutex of Curator, which needs Java's libraries of the system.
pub(crate) const CURATOR: Kind = Kind {
    name: "Curator InterProcessMutex",
    program: Program::Java("Curator"),
    waits: Waits::Told,
    own_thread: true,
    sends: &[],
};
/// `RLock`, with the watchdog that renews.
pub(crate) const REDISSON: Kind = Kind {
    name: "Redisson RLock",
    program: Program::Java("RedissonLocks"),
    waits: Waits::Told,
    own_thread: true,
    sends: &["eval", "evalsha", "publish"],
};
/// It does not renew by itself.
pub(crate) const REDSYNC: Kind = Kind {
    name: "redsync",
    program: Program::Go,
    waits: Waits::Polls,
    own_thread: false,
    sends: SET_AND_SCRIPTS,
};
pub(crate) const RUEIDISLOCK: Kind = Kind {
    name: "rueidislock",
    program: Program::Go,
    waits: Waits::Told,
    own_thread: true,
    sends: SCRIPTS,
};
pub(crate) const KAZOO: Kind = Kind {
    name: "kazoo Lock",
    program: Program::System("kazoo_lock.py", "kazoo"),
    waits: Waits::Told,
    own_thread: true,
    sends: &[],
};
/// The recipe of the crate, which releases in the background.
pub(crate) const ZOOKEEPER_CLIENT: Kind = Kind {
    name: "zookeeper-client",
    program: Program::Rust,
    waits: Waits::Told,
    own_thread: false,
    sends: &[],
};
pub(crate) const ASYNC_REDIS_LOCK: Kind = Kind {
    name: "async-redis-lock",
    program: Program::Rust,
    waits: Waits::Polls,
    own_thread: false,
    sends: SCRIPTS,
};
/// A session's advisory lock, which blocks in the server and has no lease.
pub(crate) const ADVISORY: Kind = Kind {
    name: "pg_advisory_lock, no lease",
    program: Program::Own,
    waits: Waits::Rod,
    own_thread: false,
    sends: &[],
};
/// The same by the statements of DistributedLock for .NET, see [`crate::postgres_bare`].
pub(crate) const DISTRIBUTED_LOCK: Kind = Kind {
    name: "DistributedLock's way",
    program: Program::Own,
    waits: Waits::Told,
    own_thread: false,
    sends: &[],
};
/// Its JDBC provider. It does not wait: its driver asks again every 50 ms.
pub(crate) const SHEDLOCK: Kind = Kind {
    name: "ShedLock JDBC",
    program: Program::Java("ShedLock"),
    waits: Waits::Polls,
    own_thread: false,
    sends: &[],
};
/// It waits in `pg_advisory_lock`.
pub(crate) const PALS: Kind = Kind {
    name: "pals",
    program: Program::Venv("pals_lock.py", installing::PALS),
    waits: Waits::Told,
    own_thread: false,
    sends: &[],
};

/// The floor has no lock's name in tables; in a command line it has no blanks.
fn word(name: &str) -> &str {
    name.split(',').next().unwrap_or(name)
}

/// What any client sends beside its locks.
const ALWAYS: &[&str] = &["hello", "client|", "subscribe", "unsubscribe", "ping", "script|"];

/// Locks on one Redis server, whatever they can do beside that.
pub(crate) fn on_redis() -> [Kind; 8] {
    [
        PYTHON_REDIS_LOCK_KIND,
        REDIS_PY,
        NODE_REDLOCK,
        RSLOCK,
        ASYNC_REDIS_LOCK,
        REDISSON,
        REDSYNC,
        RUEIDISLOCK,
    ]
}

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
        self.waits == Waits::Rod
    }

    /// Whether it blocks its thread, so that a process can have one task of it only.
    pub(crate) fn only_one_task(&self) -> bool {
        self.name == PUSH_AND_POP.name
    }

    /// Whether its processes have to be told their numbers.
    pub(crate) fn is_numbered(&self) -> bool {
        [WATCH_AND_PUT.name, COMMIT_AND_NOTIFY.name].contains(&self.name)
    }

    /// How many times its handovers Latchwork's should be: five times those of a client that polls, twice
    /// those of one that is notified.
    pub(crate) fn contended_goal(&self) -> Option<Goal> {
        match self.waits {
            _ if self.is_ours() => None,
            Waits::Polls => Some(Goal::at_least(5.0)),
            Waits::Told => Some(Goal::at_least(2.0)),
            Waits::Rod => None,
        }
    }

    /// What part of its median hand-off Latchwork's should be.
    pub(crate) fn handoff_goal(&self) -> Option<Goal> {
        self.is_peer().then(|| Goal::at_most(0.5))
    }

    /// How many times its free cycles Latchwork's should be.
    pub(crate) fn free_goal(&self) -> Option<Goal> {
        self.is_peer().then(|| Goal::at_least(0.95))
    }

    /// Installs what is not there yet.
    ///
    /// # Errors
    ///
    /// If that fails: what is missing, in one line.
    pub(crate) fn install(&self) -> std::result::Result<(), String> {
        match self.program {
            Program::Own => Ok(()),
            Program::System(_, module) => installing::python_has(module),
            Program::Venv(_, packages) => packages.install(),
            Program::Wheel(_) => installing::wheel(),
            Program::Java(class) => installing::java(class),
            Program::Node(_) => installing::node_packages(),
            Program::Rust => installing::rust_peers(),
            Program::Go => installing::go_peers(),
        }
    }

    /// Starts a process of it in a role and waits until it is ready.
    pub(crate) fn start(&self, role: &str, url: &str, args: &[&str]) -> Result<Worker> {
        self.ready(self.spawn(role, url, args)?)
    }

    /// Waits until a process is ready.
    pub(crate) fn ready(&self, mut worker: Worker) -> Result<Worker> {
        match worker.line() {
            Ok(line) if line == "ready" => Ok(worker),
            other => Err(format!("{}: {other:?} instead of \"ready\"", self.name).into()),
        }
    }

    /// Starts a process of it in a role.
    pub(crate) fn spawn(&self, role: &str, url: &str, args: &[&str]) -> Result<Worker> {
        let mut command = match self.program {
            Program::Own => {
                let mut command = Command::new(std::env::current_exe()?);
                command.args(["child-lock", word(self.name)]);
                command
            }
            Program::Rust => {
                let mut command = Command::new(folder().join("rust/release/peers"));
                command.arg(self.name);
                command
            }
            Program::Go => {
                let mut command = Command::new(folder().join("go/peers"));
                command.arg(self.name);
                command
            }
            Program::Java(class) => {
                let mut command = Command::new("java");
                let own = folder().join("java").join(class);
                let path = format!("{}:{}", own.display(), libraries(class));
                command.args(JAVA_FLAGS).args(["-cp", &path, class]);
                command
            }
            Program::System(script, _) => with_script(Path::new(PYTHON), script),
            Program::Venv(script, packages) => with_script(&packages.python(), script),
            Program::Wheel(script) => with_script(&installing::PYTHON_LOCKS.python(), script),
            Program::Node(script) => {
                let mut command = with_script(Path::new("node"), script);
                command.env("NODE_PATH", folder().join("node/node_modules"));
                command
            }
        };
        Ok(Worker::spawn(command.args([role, url]).args(args))?)
    }

    /// How many commands its clients have sent since the server was started.
    pub(crate) fn commands(&self, server: &RedisServer) -> Result<f64> {
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

/// Installs several kinds; what cannot be had goes to the second list, with the reason.
pub(crate) fn install(kinds: Vec<Kind>) -> (Vec<Kind>, Vec<(Kind, String)>) {
    let (mut here, mut missing) = (Vec::new(), Vec::new());
    for kind in kinds {
        match kind.install() {
            Ok(()) => here.push(kind),
            Err(reason) => missing.push((kind, reason)),
        }
    }
    (here, missing)
}

/// Rows of a table for what could not be had.
pub(crate) fn missing_rows(missing: &[(Kind, String)], columns: usize) {
    for (kind, reason) in missing {
        crate::stats::missing_row(kind.name, reason, columns);
    }
}
