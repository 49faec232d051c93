//! The Python package: built, installed into a virtual environment of its own, and tested.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::workspace::{cargo_command, root};

const PACKAGE: &str = "python";
const REQUIREMENTS: &str = "tests/requirements.txt";

/// How a wheel is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Build {
    /// For tests, without optimization.
    Test,
    /// To be measured.
    Bench,
    /// As it is published: as fast, and with a smaller command.
    Wheel,
}

impl Build {
    /// Those of the library.
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Test => &[],
            // What is measured is what is published.
            Self::Bench | Self::Wheel => &["--profile", "wheel", "--compression-level", "9"],
        }
    }

    /// The profile of the command.
    fn profile(self) -> &'static str {
        match self {
            Self::Test => "dev",
            Self::Bench => "release",
            Self::Wheel => "wheel",
        }
    }

    fn folder(self) -> &'static str {
        match self {
            Self::Test => "debug",
            Self::Bench => "release",
            Self::Wheel => "wheel",
        }
    }
}

/// A wheel that is larger than this is not published.
const LARGEST: u64 = 12_000_000;

/// Builds the wheel, with lints, and the environment of the tests. The command may be that of the tests beside these.
pub(crate) fn prepare(args: &[String]) -> Result<(), String> {
    if args != ["--command-is-built"] {
        command(Build::Test)?;
    }
    let tools = environment()?;
    let wheel = package(&tools, Build::Test, true)?;
    install(&tools, &wheel)
}

/// Runs pytest with these arguments on what was installed for this Python.
fn pytest(python: &Path, args: &[&str]) -> Result<(), String> {
    let mut pytest = Command::new(python);
    pytest.args(["-m", "pytest"]).current_dir(root().join(PACKAGE));
    pytest.env("PYTHONDONTWRITEBYTECODE", "1").args(["-p", "no:cacheprovider"]).args(args);
    ran(&mut pytest)
}

/// Tests what `prepare` has installed.
pub(crate) fn test() -> Result<(), String> {
    let start = Instant::now();
    // Most tests wait, and each of the two has servers of its own.
    pytest(&folder().join("venv/bin/python"), &["--numprocesses=2"])?;
    // The last test: the wheel needs nothing but Python.
    bare(&wheel_in(Build::Test)?)?;
    println!("the Python package: tested in {:.0?}", start.elapsed());
    Ok(())
}

/// All of it, for `cargo xtask python`; with `--each`, the core of it on each of these Pythons.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    match args {
        [] => {
            prepare(&[])?;
            test()
        }
        [each, pythons @ ..] if each == "--each" => {
            prepare(&[])?;
            on_each(pythons)
        }
        _ => Err("usage: cargo xtask python [--each [PYTHON...]]".to_owned()),
    }
}

/// The versions that are tried if none is named: those that are installed of them.
const VERSIONS: [&str; 7] = ["3.9", "3.10", "3.11", "3.12", "3.13", "3.14", "3.15"];

/// What the tests of the core need of the requirements.
const CORE_NEEDS: [&str; 14] = [
    "pytest",
    "pytest-xdist",
    "anyio",
    "eventlet",
    "gevent",
    "nest-asyncio",
    "opentelemetry-sdk",
    "prometheus-client",
    "redis",
    "trio",
    "uvloop",
    "valkey",
    "psycopg[binary]",
    "sqlalchemy",
];

/// The tests of the core: not those of recipes and of types, which are about other packages.
const CORE_TESTS: [&str; 15] = [
    "asyncio",
    "clients",
    "fence",
    "greenlets",
    "kinds",
    "loops",
    "mutex",
    "one_line",
    "processes",
    "seen",
    "signals",
    "stores",
    "telemetry",
    "traps",
    "trio",
];

/// Tests one wheel on several Pythons: all that are found, or those that are named.
fn on_each(named: &[String]) -> Result<(), String> {
    let wheel = wheel_in(Build::Test)?;
    let mut failed = Vec::new();
    let installed: Vec<_> = VERSIONS.iter().map(|version| format!("python{version}")).collect();
    let pythons = if named.is_empty() { &installed } else { named };
    let version = |python: &String| {
        let asked = "import sys, sysconfig; print('%d.%d.%d%s' % (*sys.version_info[:3], \
                     't' if sysconfig.get_config_var('Py_GIL_DISABLED') else ''))";
        let said = Command::new(python).args(["-c", asked]).output().ok()?;
        let text = String::from_utf8(said.stdout).ok()?.trim().to_owned();
        (said.status.success() && !text.is_empty()).then(|| (python.clone(), text))
    };
    let found: Vec<_> = pythons.iter().filter_map(version).collect();
    if found.is_empty() || (!named.is_empty() && found.len() < named.len()) {
        return Err(format!("not all of these run: {}", pythons.join(", ")));
    }
    for (python, version) in &found {
        println!("CPython {version}");
        if let Err(error) = on_one(python, version, &wheel) {
            println!("{error}");
            failed.push(version.as_str());
        }
    }
    let all: Vec<_> = found.iter().map(|(_, version)| version.as_str()).collect();
    if !failed.is_empty() {
        return Err(format!("it failed on {}", failed.join(", ")));
    }
    println!("the Python package: tested on {}", all.join(", "));
    Ok(())
}

fn on_one(python: &str, version: &str, wheel: &Path) -> Result<(), String> {
    let venv = folder().join("each").join(version);
    ran(Command::new(python).args(["-m", "venv", "--clear"]).arg(&venv))?;
    let python = venv.join("bin/python");
    let requirements = fs::read_to_string(root().join(PACKAGE).join(REQUIREMENTS));
    let requirements = requirements.map_err(|error| format!("{REQUIREMENTS}: {error}"))?;
    let needed = requirements.lines().filter(|line| {
        let name = line.split("==").next().unwrap_or_default();
        CORE_NEEDS.contains(&name)
    });
    ran(pip(&python).args(needed))?;
    install(&python, wheel)?;
    let tests = CORE_TESTS.map(|name| format!("tests/test_{name}.py"));
    let tests: Vec<_> = tests.iter().map(String::as_str).collect();
    pytest(&python, &[&["--numprocesses=2"], &tests[..]].concat())
}

/// Builds the wheel that is measured.
pub(crate) fn bench() -> Result<PathBuf, String> {
    build(&environment()?, Build::Bench)
}

/// Builds the wheel as it is published, and tries it in an environment with nothing else.
pub(crate) fn wheel() -> Result<(), String> {
    let wheel = build(&environment()?, Build::Wheel)?;
    let size = fs::metadata(&wheel).map_err(|e| format!("{}: {e}", wheel.display()))?.len();
    println!("{}: {:.1} MB", wheel.display(), size as f64 / 1e6);
    if size > LARGEST {
        return Err(format!("the wheel has {size} bytes: more than {LARGEST}"));
    }
    bare(&wheel)
}

/// Installs the wheel into an environment that has nothing else, and uses it.
fn bare(wheel: &Path) -> Result<(), String> {
    let venv = folder().join("bare");
    ran(Command::new(python()?).args(["-m", "venv", "--clear"]).arg(&venv))?;
    let python = venv.join("bin/python");
    ran(pip(&python).args(["--no-deps", "--no-index"]).arg(wheel))?;
    ran(Command::new(&python).args([
        "-c",
        "import importlib.metadata as it\nsaid = it.metadata('latchwork').get_all('License-File')\n\
         assert 'THIRD-PARTY.txt' in said, said",
    ]))?;
    ran(Command::new(&python).args([
        "-c",
        "import latchwork\nwith latchwork.connect('mem:') as locks, locks.lock('a') as guard: guard.ensure_held()",
    ]))?;
    ran(Command::new(&python).args(["-m", "latchwork", "--version"]))
}

fn build(tools: &Path, build: Build) -> Result<PathBuf, String> {
    command(build)?;
    package(tools, build, false)
}

/// Builds the command.
fn command(build: Build) -> Result<(), String> {
    let mut command = cargo_command();
    command.args(["build", "--quiet", "--package", "latchwork-cli", "--target-dir"]).arg(target());
    ran(command.args(["--profile", build.profile()]))
}

/// Builds the package, with the command that was built.
fn package(tools: &Path, build: Build, with_lints: bool) -> Result<PathBuf, String> {
    // What is there is installed beside Python as it is.
    let scripts = root().join(PACKAGE).join("latchwork.data/scripts");
    let said = |what: &Path, error: std::io::Error| format!("{}: {error}", what.display());
    fs::create_dir_all(&scripts).map_err(|error| said(&scripts, error))?;
    let command = target().join(build.folder()).join("latchwork");
    let copy = scripts.join("latchwork");
    ran(Command::new("strip").arg("-o").arg(&copy).arg(&command))?;
    let linked = [("python/Cargo.toml", "latchwork-python"), ("Cargo.toml", "latchwork-cli")];
    crate::notices::write(&root().join(PACKAGE).join("THIRD-PARTY.txt"), &linked)?;
    let wheels = folder().join(build.folder());
    if wheels.exists() {
        fs::remove_dir_all(&wheels).map_err(|error| said(&wheels, error))?;
    }
    let mut maturin = Command::new(tools.with_file_name("maturin"));
    maturin.args(["build", "--quiet"]).args(build.arguments());
    if with_lints {
        // The native half is no member of the workspace: its lints are those of its own build.
        crate::trials::lint(&mut maturin)?;
    }
    maturin.arg("--manifest-path").arg(manifest()).arg("--target-dir").arg(target());
    ran(maturin.arg("--out").arg(&wheels).arg("--interpreter").arg(tools))?;
    wheel_in(build)
}

/// What was built last.
fn wheel_in(build: Build) -> Result<PathBuf, String> {
    let wheels = folder().join(build.folder());
    let made = fs::read_dir(&wheels).map_err(|error| format!("{}: {error}", wheels.display()))?;
    let made = made.flatten().map(|entry| entry.path()).next();
    made.ok_or(format!("{}: maturin has made no wheel", wheels.display()))
}

/// An environment with what the tests need; its Python.
fn environment() -> Result<PathBuf, String> {
    let venv = folder().join("venv");
    let python = venv.join("bin/python");
    let requirements = root().join(PACKAGE).join(REQUIREMENTS);
    let text = fs::read_to_string(&requirements).map_err(|e| format!("{REQUIREMENTS}: {e}"))?;
    let stamp = venv.join("installed");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == text) {
        return Ok(python);
    }
    ran(Command::new(self::python()?).args(["-m", "venv", "--clear"]).arg(&venv))?;
    ran(pip(&python).arg("--requirement").arg(&requirements))?;
    // It fetches its program at its first use, which is not to be in a test.
    ran(Command::new(&python).args(["-m", "pyright", "--version"]))?;
    fs::write(&stamp, text).map_err(|e| format!("{}: {e}", stamp.display()))?;
    Ok(python)
}

fn install(python: &Path, wheel: &Path) -> Result<(), String> {
    ran(pip(python).args(["--no-deps", "--no-index", "--force-reinstall"]).arg(wheel))
}

fn pip(python: &Path) -> Command {
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    pip
}

/// A Python from 3.9 on that can make environments.
fn python() -> Result<&'static str, String> {
    let new_enough = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 9))";
    let found = ["python3", "/usr/bin/python3"].into_iter().find(|python| {
        let mut try_it = Command::new(python);
        try_it.args(["-c", new_enough]).status().is_ok_and(|status| status.success())
    });
    found.ok_or_else(|| "install python3 (3.9 or later) and python3-venv".to_owned())
}

fn folder() -> PathBuf {
    target().join("python")
}

fn target() -> PathBuf {
    root().join("target")
}

fn manifest() -> PathBuf {
    root().join(PACKAGE).join("Cargo.toml")
}

fn ran(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("cannot run {command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(text: &str, name: &str) -> String {
        let line = text.lines().find(|line| line.starts_with(&format!("{name} = ")));
        line.unwrap_or_else(|| panic!("no {name}")).split('"').nth(1).unwrap_or_default().to_owned()
    }

    #[test]
    fn the_python_package_has_the_version_of_the_crates() {
        let own = fs::read_to_string(manifest()).unwrap();
        let workspace = fs::read_to_string(root().join("Cargo.toml")).unwrap();
        for name in ["version", "edition", "rust-version", "license"] {
            assert_eq!(field(&own, name), field(&workspace, name), "{name}");
        }
    }

    #[test]
    fn no_file_of_the_python_package_is_long() {
        let mut long = Vec::new();
        for folder in ["src", "package", "tests"] {
            let folder = root().join(PACKAGE).join(folder);
            for file in crate::house::files(&folder, &["rs", "py", "pyi"]).unwrap() {
                let lines = fs::read_to_string(&file).unwrap().lines().count();
                if lines > 500 {
                    long.push(format!("{}: {lines} lines", file.display()));
                }
            }
        }
        assert_eq!(long, Vec::<String>::new());
    }
}
