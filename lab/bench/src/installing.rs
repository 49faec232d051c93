//! How the other locks come onto this machine: at their first use, with fixed versions, into `target/peers`. A failure
//! is one line.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

type Result<T = ()> = std::result::Result<T, String>;

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
const NODE_PACKAGES: &str = r#"{
  "private": true,
  "dependencies": { "ioredis": "5.9.3", "redlock": "5.0.0-beta.2", "redis-semaphore": "5.8.0" }
}
"#;

/// Packages for Python in a folder of their own.
#[derive(Clone, Copy)]
pub(crate) struct Venv {
    folder: &'static str,
    /// What `python -m venv` is called with.
    options: &'static [&'static str],
    packages: &'static [&'static str],
}
/// Both locks on Redis use the redis-py of the system.
const WITH_SYSTEM: &[&str] = &["--system-site-packages"];
pub(crate) const REDIS_LOCKS: Venv =
    Venv { folder: "venv", options: WITH_SYSTEM, packages: &["python-redis-lock==4.0.1"] };
pub(crate) const PALS: Venv = Venv {
    folder: "venv-pals",
    options: WITH_SYSTEM,
    packages: &["PALs==0.4.0", "SQLAlchemy==2.1.9", "psycopg2-binary==2.9.13"],
};
/// The locks of Python that Latchwork's package is measured beside, in their newest versions.
pub(crate) const PYTHON_LOCKS: Venv = Venv {
    folder: "venv-python",
    options: &[],
    packages: &[
        "redis==8.1.0",
        "hiredis==3.5.0",
        "python-redis-lock==4.0.1",
        "pottery==3.0.1",
        "kazoo==2.11.0",
        "etcd3gw==2.7.0",
        "aetcd==1.0.0",
        "filelock==4.2.12",
        "uvloop==0.23.0",
    ],
};

/// Where a program in Python finds its packages.
#[derive(Clone, Copy)]
pub(crate) enum From {
    /// In the system, which must have this module.
    System(&'static str),
    Venv(Venv),
    /// Latchwork's wheel, beside the newest of the others.
    Wheel,
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

/// The command `latchwork`, which `cargo xtask bench` builds beside this program.
pub(crate) fn latchwork() -> Result<PathBuf> {
    let path = std::env::current_exe().map_err(|error| error.to_string())?;
    let path = path.with_file_name("latchwork");
    let missing = || format!("{} is not there: run `cargo xtask bench`", path.display());
    path.exists().then(|| path.clone()).ok_or_else(missing)
}

impl From {
    /// A script with its packages.
    pub(crate) fn command(self, script: &str) -> Command {
        let python = match self {
            Self::System(_) => PYTHON.into(),
            Self::Venv(venv) => venv.python(),
            Self::Wheel => PYTHON_LOCKS.python(),
        };
        let mut command = Command::new(python);
        command.arg(sources().join(script)).env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }

    pub(crate) fn install(self) -> Result {
        match self {
            Self::Venv(venv) => venv.install(),
            Self::Wheel => wheel(),
            Self::System(module) => {
                ran(Command::new(PYTHON).args(["-c", &format!("import {module}")]))
                    .map_err(|error| format!("install python3 and python3-{module} ({error})"))
            }
        }
    }
}

impl Venv {
    fn python(&self) -> PathBuf {
        folder().join(self.folder).join("bin/python")
    }

    fn pip(&self, options: &[&str]) -> Command {
        let mut pip = Command::new(self.python());
        pip.args(["-m", "pip", "install", "--quiet"]).args(options);
        pip
    }

    fn install(&self) -> Result {
        let venv = folder().join(self.folder);
        once(&venv, &self.packages.join(" "), || {
            let mut python = Command::new(PYTHON);
            ran(python.args(["-m", "venv", "--clear"]).args(self.options).arg(&venv))?;
            ran(&mut self.pip(self.packages))
        })
    }
}

/// Latchwork's wheel, which `cargo xtask bench python` builds beside this program.
fn wheel() -> Result {
    PYTHON_LOCKS.install()?;
    let folder = target().join("python/wheel/latchwork-python");
    let paths = fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let wheel = paths.into_iter().find(|path| path.extension().is_some_and(|it| it == "whl"));
    let changed = wheel.and_then(|wheel| Some((wheel.metadata().ok()?.modified().ok()?, wheel)));
    let (changed, wheel) = changed.ok_or_else(|| {
        format!("no wheel in {}: run `cargo xtask bench python`", folder.display())
    })?;
    let stamp = self::folder().join("wheel");
    once(&stamp, &format!("{} {changed:?}", wheel.display()), || {
        let options = ["--no-deps", "--no-index", "--force-reinstall"];
        ran(PYTHON_LOCKS.pip(&options).arg(&wheel))
    })
}

/// Where a class finds what it drives.
fn libraries(class: &str) -> String {
    match class {
        "Curator" => format!("{CURATOR_JAR}:{LOGGER_JAR}"),
        _ => format!("{}/*", folder().join("java/jars").display()),
    }
}

pub(crate) fn java(class: &str) -> Result {
    match class {
        "Curator" if Path::new(CURATOR_JAR).exists() => {}
        "Curator" => return Err("install libcurator-recipes-java".into()),
        _ => maven()?,
    }
    let files = ["Roles", class].map(|name| sources().join(format!("java/{name}.java")));
    let text = files.iter().map(|file| read(file)).collect::<Result<String>>()?;
    let own = folder().join("java").join(class);
    once(&own, &text, || {
        let mut javac = Command::new("javac");
        ran(javac.args(["-cp", &libraries(class), "-d"]).arg(&own).args(&files))
    })
}

pub(crate) fn java_command(class: &str) -> Command {
    let mut command = Command::new("java");
    let own = folder().join("java").join(class);
    let path = format!("{}:{}", own.display(), libraries(class));
    command.args(JAVA_FLAGS).args(["-cp", &path, class]);
    command
}

/// What `peers/java/pom.xml` names.
fn maven() -> Result {
    let (pom, jars) = (sources().join("java/pom.xml"), folder().join("java/jars"));
    once(&jars, &read(&pom)?, || {
        let mut mvn = Command::new("mvn");
        mvn.args(["--batch-mode", "--quiet", "dependency:copy-dependencies", "--file"]).arg(&pom);
        let to = format!("-DoutputDirectory={}", jars.display());
        ran(mvn.args(["-DincludeScope=runtime", &to]))
            .map_err(|error| format!("install maven, and let it reach its repository ({error})"))
    })
}

pub(crate) fn node() -> Result {
    ran(Command::new("node").arg("--version"))?;
    let node = folder().join("node");
    once(&node, NODE_PACKAGES, || {
        let written = fs::write(node.join("package.json"), NODE_PACKAGES);
        written.map_err(|error| error.to_string())?;
        let mut npm = Command::new("npm");
        ran(npm.args(["install", "--no-audit", "--no-fund"]).current_dir(&node))
    })
}

pub(crate) fn node_command(script: &str) -> Command {
    let mut command = Command::new("node");
    command.arg(sources().join(script)).env("NODE_PATH", folder().join("node/node_modules"));
    command
}

/// A package beside this one, in the same workspace. Cargo itself knows whether there is anything to do.
pub(crate) fn cargo(package: &str) -> Result {
    let mut cargo = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()));
    cargo.args(["build", "--release", "--locked", "--quiet", "--package", package]);
    ran(cargo.current_dir(sources()).env("CARGO_TARGET_DIR", folder()))
}

pub(crate) fn cargo_program(package: &str) -> PathBuf {
    folder().join("release").join(package)
}

/// So does Go.
pub(crate) fn go() -> Result {
    let mut go = Command::new("go");
    go.args(["build", "-o"]).arg(go_program()).arg(".");
    ran(go.current_dir(sources().join("go")))
}

pub(crate) fn go_program() -> PathBuf {
    folder().join("go/peers")
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Fills a folder, unless a file in it says that this is done with this very version.
fn once(folder: &Path, version: &str, install: impl FnOnce() -> Result) -> Result {
    let stamp = folder.join("installed");
    if fs::read_to_string(&stamp).is_ok_and(|done| done == version) {
        return Ok(());
    }
    fs::create_dir_all(folder).map_err(|error| error.to_string())?;
    install()?;
    fs::write(stamp, version).map_err(|error| error.to_string())
}

pub(crate) fn ran(command: &mut Command) -> Result {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{name} does not start: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let last = errors.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    Err(format!("{name}: {}: {}", output.status, last.trim()))
}
