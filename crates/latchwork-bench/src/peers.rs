//! The locks that Latchwork is measured against, each in a process of its own, and how
//! they come onto this machine: at their first use, with fixed versions, into `target/peers`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use latchwork_services::RedisServer;

use crate::child::Worker;
use crate::goals::Goal;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const CURATOR_JAR: &str = "/usr/share/java/curator-recipes.jar";
const LOGGER_JAR: &str = "/usr/share/java/slf4j-simple.jar";
/// A process lives for seconds: it starts at once and does not wait for the best code.
const JAVA_FLAGS: &[&str] = &[
    "-Xmx128m",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Xshare:auto",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
];
const PYTHON: &str = "/usr/bin/python3";
const PYTHON_REDIS_LOCK: &str = "python-redis-lock==4.0.1";
const NODE_PACKAGES: &str = r#"{
  "private": true,
  "dependencies": { "ioredis": "5.9.3", "redlock": "5.0.0-beta.2", "redis-semaphore": "5.8.0" }
}
"#;

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
    Venv(&'static str),
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
    /// Whether its connection is moved by another thread than its caller's, as Latchwork's is.
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
/// The same on etcd.
pub(crate) const WATCH_AND_PUT: Kind = Kind {
    name: "watch-and-put, no lock",
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
    program: Program::Venv("python_redis_lock.py"),
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

/// The floor has no lock's name in tables; in a command line it has no blanks.
fn word(name: &str) -> &str {
    name.split(',').next().unwrap_or(name)
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
        self.waits == Waits::Rod
    }

    /// Whether it blocks its thread, so that a process can have one task of it only.
    pub(crate) fn only_one_task(&self) -> bool {
        self.name == PUSH_AND_POP.name
    }

    /// Whether its processes have to be told their numbers.
    pub(crate) fn is_numbered(&self) -> bool {
        self.name == WATCH_AND_PUT.name
    }

    /// How many times its handovers Latchwork's should be: five times those of who polls, twice those
    /// of who is told.
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

    /// What part of its free cycles Latchwork's should be, if its connection is where Latchwork's is.
    pub(crate) fn free_goal(&self) -> Option<Goal> {
        (self.is_peer() && self.own_thread).then(|| Goal::at_least(0.95))
    }

    /// Installs what is not there yet.
    ///
    /// # Errors
    ///
    /// If that fails: what is missing, in one line.
    pub(crate) fn install(&self) -> std::result::Result<(), String> {
        match self.program {
            Program::Own => Ok(()),
            Program::System(_, module) => python_has(module),
            Program::Venv(_) => python_has("redis").and_then(|()| venv()),
            Program::Java(class) => java(class),
            Program::Node(_) => node_packages(),
            Program::Rust => rust_peers(),
            Program::Go => go_peers(),
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
            Program::Venv(script) => with_script(&folder().join("venv/bin/python"), script),
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
        let mut cells = vec![kind.name.to_string(), format!("missing: {reason}")];
        cells.resize(columns, "-".into());
        crate::stats::row(&cells);
    }
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers")
}

fn folder() -> PathBuf {
    target().join("peers")
}

/// This program is in `target/release`.
pub(crate) fn target() -> PathBuf {
    let own = std::env::current_exe().unwrap_or_default();
    own.ancestors().nth(2).unwrap_or(Path::new("target")).into()
}

fn with_script(program: &Path, script: &str) -> Command {
    let mut command = Command::new(program);
    command.arg(sources().join(script)).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

fn python_has(module: &str) -> std::result::Result<(), String> {
    let mut command = Command::new(PYTHON);
    command.args(["-c", &format!("import {module}")]);
    ran(&mut command).map_err(|error| format!("install python3 and python3-{module} ({error})"))
}

/// Where a class finds what it drives.
fn libraries(class: &str) -> String {
    match class {
        "Curator" => format!("{CURATOR_JAR}:{LOGGER_JAR}"),
        _ => format!("{}/*", jars().display()),
    }
}

/// What Maven has fetched.
fn jars() -> PathBuf {
    folder().join("java/jars")
}

fn java(class: &str) -> std::result::Result<(), String> {
    match class {
        "Curator" if Path::new(CURATOR_JAR).exists() => {}
        "Curator" => return Err("install libcurator-recipes-java".into()),
        _ => maven()?,
    }
    let files = ["Roles", class].map(|name| sources().join(format!("java/{name}.java")));
    let texts = files.iter().map(std::fs::read_to_string).collect::<std::io::Result<String>>();
    let text = texts.map_err(|error| error.to_string())?;
    let own = folder().join("java").join(class);
    std::fs::create_dir_all(&own).map_err(|error| error.to_string())?;
    once(&own.join("installed"), &text, || {
        let mut javac = Command::new("javac");
        ran(javac.args(["-cp", &libraries(class), "-d"]).arg(&own).args(&files))
    })
}

/// What `peers/java/pom.xml` names.
fn maven() -> std::result::Result<(), String> {
    let pom = sources().join("java/pom.xml");
    let text = std::fs::read_to_string(&pom).map_err(|error| error.to_string())?;
    std::fs::create_dir_all(jars()).map_err(|error| error.to_string())?;
    once(&jars().join("installed"), &text, || {
        let mut mvn = Command::new("mvn");
        mvn.args(["--batch-mode", "--quiet", "dependency:copy-dependencies", "--file"]).arg(pom);
        let to = format!("-DoutputDirectory={}", jars().display());
        ran(mvn.args(["-DincludeScope=runtime", &to]))
            .map_err(|error| format!("install maven, and let it reach its repository ({error})"))
    })
}

fn venv() -> std::result::Result<(), String> {
    let venv = folder().join("venv");
    once(&venv.join("installed"), PYTHON_REDIS_LOCK, || {
        // Both Python locks use the redis-py of the system.
        ran(Command::new(PYTHON).args(["-m", "venv", "--system-site-packages"]).arg(&venv))?;
        let mut pip = Command::new(venv.join("bin/python"));
        ran(pip.args(["-m", "pip", "install", "--quiet", PYTHON_REDIS_LOCK]))
    })
}

fn node_packages() -> std::result::Result<(), String> {
    ran(Command::new("node").arg("--version"))?;
    let node = folder().join("node");
    once(&node.join("installed"), NODE_PACKAGES, || {
        std::fs::create_dir_all(&node).map_err(|error| error.to_string())?;
        std::fs::write(node.join("package.json"), NODE_PACKAGES)
            .map_err(|error| error.to_string())?;
        let mut npm = Command::new("npm");
        ran(npm.args(["install", "--no-audit", "--no-fund"]).current_dir(&node))
    })
}

/// The command `latchwork`, which `cargo xtask bench` builds beside this program.
pub(crate) fn command() -> std::result::Result<PathBuf, String> {
    let path = std::env::current_exe().map_err(|error| error.to_string())?;
    let path = path.with_file_name("latchwork");
    match path.exists() {
        true => Ok(path),
        false => Err(format!("{} is not there: run `cargo xtask bench`", path.display())),
    }
}

/// Cargo itself knows whether there is anything to do.
fn rust_peers() -> std::result::Result<(), String> {
    let mut cargo = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()));
    cargo
        .args(["build", "--release", "--locked", "--quiet"])
        .current_dir(sources().join("rust"))
        .env("CARGO_TARGET_DIR", folder().join("rust"));
    ran(&mut cargo)
}

/// So does Go.
fn go_peers() -> std::result::Result<(), String> {
    let mut go = Command::new("go");
    go.args(["build", "-o"]).arg(folder().join("go/peers")).arg(".");
    ran(go.current_dir(sources().join("go")))
}

/// Does something unless a file says that this very version of it is done.
fn once(
    stamp: &Path,
    version: &str,
    install: impl FnOnce() -> std::result::Result<(), String>,
) -> std::result::Result<(), String> {
    if std::fs::read_to_string(stamp).is_ok_and(|done| done == version) {
        return Ok(());
    }
    install()?;
    std::fs::write(stamp, version).map_err(|error| error.to_string())
}

pub(crate) fn ran(command: &mut Command) -> std::result::Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{name} does not start: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let last = errors.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    Err(format!("{name}: {}: {}", output.status, last.trim()))
}
