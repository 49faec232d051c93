//! How the other locks come onto this machine: at their first use, with fixed versions, into
//! `target/peers`. What fails is told in one line.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const CURATOR_JAR: &str = "/usr/share/java/curator-recipes.jar";
const LOGGER_JAR: &str = "/usr/share/java/slf4j-simple.jar";
pub(crate) const PYTHON: &str = "/usr/bin/python3";
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
const NODE_PACKAGES: &str = r#"{
  "private": true,
  "dependencies": { "ioredis": "5.9.3", "redlock": "5.0.0-beta.2", "redis-semaphore": "5.8.0" }
}
"#;

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers")
}

pub(crate) fn folder() -> PathBuf {
    target().join("peers")
}

/// This program is in `target/release`.
pub(crate) fn target() -> PathBuf {
    let own = std::env::current_exe().unwrap_or_default();
    own.ancestors().nth(2).unwrap_or(Path::new("target")).into()
}

pub(crate) fn with_script(program: &Path, script: &str) -> Command {
    let mut command = Command::new(program);
    command.arg(sources().join(script)).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

pub(crate) fn python_has(module: &str) -> Result<(), String> {
    let mut command = Command::new(PYTHON);
    command.args(["-c", &format!("import {module}")]);
    ran(&mut command).map_err(|error| format!("install python3 and python3-{module} ({error})"))
}

/// Where a class finds what it drives.
pub(crate) fn libraries(class: &str) -> String {
    match class {
        "Curator" => format!("{CURATOR_JAR}:{LOGGER_JAR}"),
        _ => format!("{}/*", jars().display()),
    }
}

/// What Maven has fetched.
fn jars() -> PathBuf {
    folder().join("java/jars")
}

pub(crate) fn java(class: &str) -> Result<(), String> {
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
fn maven() -> Result<(), String> {
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

impl Venv {
    pub(crate) fn python(&self) -> PathBuf {
        folder().join(self.folder).join("bin/python")
    }

    pub(crate) fn install(&self) -> Result<(), String> {
        let venv = folder().join(self.folder);
        once(&venv.join("installed"), &self.packages.join(" "), || {
            ran(Command::new(PYTHON)
                .args(["-m", "venv", "--clear"])
                .args(self.options)
                .arg(&venv))?;
            let mut pip = Command::new(self.python());
            ran(pip.args(["-m", "pip", "install", "--quiet"]).args(self.packages))
        })
    }
}

/// Latchwork's wheel, which `cargo xtask bench python` builds beside this program.
pub(crate) fn wheel() -> Result<(), String> {
    PYTHON_LOCKS.install()?;
    let folder = target().join("python/wheel/latchwork-python");
    let missing = |error: &dyn std::fmt::Display| {
        format!("{}: {error}: run `cargo xtask bench python`", folder.display())
    };
    let entries = std::fs::read_dir(&folder).map_err(|error| missing(&error))?;
    let wheel = entries
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .ok_or_else(|| missing(&"no wheel"))?;
    let changed = wheel.metadata().and_then(|about| about.modified());
    let changed = changed.map_err(|error| missing(&error))?;
    let stamp = self::folder().join(PYTHON_LOCKS.folder).join("wheel");
    once(&stamp, &format!("{} {changed:?}", wheel.display()), || {
        let mut pip = Command::new(PYTHON_LOCKS.python());
        let options = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-index"];
        ran(pip.args(options).arg("--force-reinstall").arg(&wheel))
    })
}

pub(crate) fn node_packages() -> Result<(), String> {
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
pub(crate) fn command() -> Result<PathBuf, String> {
    let path = std::env::current_exe().map_err(|error| error.to_string())?;
    let path = path.with_file_name("latchwork");
    match path.exists() {
        true => Ok(path),
        false => Err(format!("{} is not there: run `cargo xtask bench`", path.display())),
    }
}

pub(crate) fn rust_peers() -> Result<(), String> {
    cargo_builds("rust")
}

pub(crate) fn kubernetes_peers() -> Result<(), String> {
    cargo_builds("kubernetes")
}

pub(crate) fn kubernetes_peers_program() -> PathBuf {
    folder().join("kubernetes/release/kubernetes-peers")
}

/// Cargo itself knows whether there is anything to do.
fn cargo_builds(peers: &str) -> Result<(), String> {
    let mut cargo = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()));
    cargo
        .args(["build", "--release", "--locked", "--quiet"])
        .current_dir(sources().join(peers))
        .env("CARGO_TARGET_DIR", folder().join(peers));
    ran(&mut cargo)
}

/// So does Go.
pub(crate) fn go_peers() -> Result<(), String> {
    let mut go = Command::new("go");
    go.args(["build", "-o"]).arg(folder().join("go/peers")).arg(".");
    ran(go.current_dir(sources().join("go")))
}

/// Does something unless a file says that this very version of it is done.
fn once(
    stamp: &Path,
    version: &str,
    install: impl FnOnce() -> Result<(), String>,
) -> Result<(), String> {
    if std::fs::read_to_string(stamp).is_ok_and(|done| done == version) {
        return Ok(());
    }
    install()?;
    std::fs::write(stamp, version).map_err(|error| error.to_string())
}

pub(crate) fn ran(command: &mut Command) -> Result<(), String> {
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
