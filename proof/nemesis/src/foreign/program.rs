//! How a worker in another language comes to run: built once for each version of its text, into a
//! folder beside the program.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::time::{ClockId, clock_gettime};

use super::Foreign;

/// `libcurator-recipes-java`, whose manifest leads to the rest.
const JARS: &str = "/usr/share/java/curator-recipes.jar";
const PYTHON: &str = "/usr/bin/python3";

/// The language of a worker.
#[derive(Debug, Clone, Copy)]
pub(super) enum Program {
    /// The whole program, and the package that it needs.
    Python { source: &'static str, package: Package },
    /// One program for all clients in Go, which takes the name of the client.
    Go,
    /// A class beside `Worker`.
    Java { class: &'static str },
}

/// Where the package of a worker in Python is installed.
#[derive(Debug, Clone, Copy)]
pub(super) enum Package {
    /// With the system's Python, by this name.
    OfSystem(&'static str),
    /// In the environment of the package's tests.
    Built,
}

impl Package {
    /// The Python that has it, after an import.
    fn python(self, foreign: Foreign, beside: &Path) -> io::Result<PathBuf> {
        let (python, name, from) = match self {
            Self::OfSystem(name) => (PYTHON.into(), name, format!("python3-{name}")),
            Self::Built => {
                let python = beside.join("../python/venv/bin/python");
                (python, "latchwork", "the package: run `cargo xtask python-prepare`".into())
            }
        };
        let import = format!("import {name}");
        ran(Command::new(&python).args(["-c", &import]))
            .map_err(|why| needs(foreign, &from, &why))?;
        Ok(python)
    }
}

/// A client whose processes can be started.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) foreign: Foreign,
    words: Vec<OsString>,
}

impl Ready {
    /// What starts a process; the orders follow as flags.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]);
        command
    }
}

impl Program {
    pub(super) fn ready(self, foreign: Foreign, beside: &Path) -> io::Result<Ready> {
        let folder = beside.join("foreign");
        fs::create_dir_all(&folder)?;
        let tasks = Foreign::TASKS.to_string();
        let mut words: Vec<OsString> = Vec::new();
        match self {
            Self::Python { source, package } => {
                words.push(package.python(foreign, beside)?.into_os_string());
                words.extend(["-u", "-c", source].map(OsString::from));
            }
            Self::Go => {
                let program = folder.join("go-worker");
                go(&program).map_err(|why| {
                    needs(foreign, "golang-go and a module proxy that it can reach", &why)
                })?;
                words.extend([program.into_os_string(), foreign.name.into()]);
            }
            Self::Java { class } => {
                let classes = folder.join("java");
                java(&classes).map_err(|why| {
                    needs(foreign, "default-jdk-headless and libcurator-recipes-java", &why)
                })?;
                let small = ["-Xmx96m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"];
                words.extend(["java"].iter().chain(&small).map(OsString::from));
                words.extend(["-cp".into(), format!("{JARS}:{}", classes.display()).into()]);
                words.push(class.into());
            }
        }
        words.push(tasks.into());
        if matches!(self, Self::Java { .. }) {
            words.push(ahead().to_string().into());
        }
        Ok(Ready { foreign, words })
    }
}

/// How far the boot clock is ahead of the monotonic one, the only one that Java reads: for as long
/// as the machine was suspended.
fn ahead() -> i64 {
    let nanos = |clock| {
        let time = clock_gettime(clock);
        time.tv_sec * 1_000_000_000 + time.tv_nsec
    };
    nanos(ClockId::Boottime) - nanos(ClockId::Monotonic)
}

fn sources(language: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/foreign").join(language)
}

fn needs(foreign: Foreign, what: &str, why: &str) -> io::Error {
    io::Error::other(format!("--foreign {} needs {what}: {why}", foreign.name))
}

fn go(program: &Path) -> Result<(), String> {
    let from = sources("go");
    once(&from, program, |new| {
        let mut go = Command::new("go");
        // As the API server of Kubernetes is built: what both have in common is compiled once.
        go.args(["build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o"])
            .arg(new)
            .arg(".");
        go.env("CGO_ENABLED", "0").env("GOFLAGS", "-mod=readonly").env("GOWORK", "off");
        ran(go.current_dir(&from))
    })
}

fn java(classes: &Path) -> Result<(), String> {
    let from = sources("java");
    once(&from, classes, |new| {
        let mut javac = Command::new("javac");
        ran(javac.args(["-nowarn", "-cp", JARS, "-d"]).arg(new).args(texts(&from)?))
    })
}

/// The files of a folder, in order.
fn texts(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let said = |e: io::Error| format!("{}: {e}", folder.display());
    let entries = fs::read_dir(folder).map_err(said)?;
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    Ok(paths)
}

/// Builds something, unless a file beside it says that it was built from this very text. Runs that
/// begin at the same time build it once.
fn once(
    from: &Path,
    to: &Path,
    build: impl FnOnce(&Path) -> Result<(), String>,
) -> Result<(), String> {
    let said = |e: io::Error| format!("{}: {e}", to.display());
    let mut text = String::new();
    for path in texts(from)? {
        text += &fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    let lock = File::create(to.with_extension("lock")).map_err(said)?;
    lock.lock().map_err(said)?;
    let stamp = to.with_extension("built-from");
    if fs::read_to_string(&stamp).is_ok_and(|built| built == text) {
        return Ok(());
    }
    build(to)?;
    fs::write(&stamp, text).map_err(said)
}

fn ran(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|e| format!("{name} does not start: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{name}: {}\n{}", output.status, said.trim_end()))
}
