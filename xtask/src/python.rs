//! The Python package: built, installed into a virtual environment of its own, and tested.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::workspace::{cargo_command, root};

const PACKAGE: &str = "python";
const REQUIREMENTS: &str = "tests/requirements.txt";

/// What is published, each in a wheel of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Package {
    Library,
    Command,
}

const PACKAGES: [Package; 2] = [Package::Library, Package::Command];

impl Package {
    fn folder(self) -> PathBuf {
        root().join(match self {
            Self::Library => PACKAGE,
            Self::Command => "crates/latchwork-cli",
        })
    }

    fn name(self) -> &'static str {
        match self {
            Self::Library => "latchwork-python",
            Self::Command => "latchwork-cli",
        }
    }

    /// A wheel that is larger than this is not published.
    fn largest(self) -> u64 {
        match self {
            Self::Library => 6_000_000,
            Self::Command => 8_000_000,
        }
    }
}

/// How a wheel is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Build {
    /// For tests, without optimization, with lints.
    Test,
    /// As it is published, and as it is measured: as fast, and small.
    Wheel,
}

impl Build {
    fn folder(self) -> &'static str {
        match self {
            Self::Test => "debug",
            Self::Wheel => "wheel",
        }
    }
}

/// The long test, which needs an environment of its own.
const AIRFLOW: &str = "tests/test_frameworks.py::test_tasks_of_airflow_run_alone";

fn with_long(args: &[String]) -> bool {
    args.iter().any(|arg| arg == "--all")
}

/// Builds the wheel, with lints, and the environment of the tests; with `--all`, that of the long one too. The command
/// may be that of the tests beside these.
pub(crate) fn prepare(args: &[String]) -> Result<(), String> {
    if !args.iter().any(|arg| arg == "--command-is-built") {
        let mut command = cargo_command();
        command.args(["build", "--quiet", "--package", "latchwork-cli", "--target-dir"]);
        ran(command.arg(target()))?;
    }
    let tools = environment("venv", REQUIREMENTS)?;
    let wheel = build(&tools, Package::Library, Build::Test)?;
    install(&tools, &wheel)?;
    if !with_long(args) {
        return Ok(());
    }
    install(&environment("airflow", "tests/requirements-airflow.txt")?, &wheel)
}

/// Runs pytest with these arguments on what was installed for this Python.
fn pytest(python: &Path, args: &[&str]) -> Result<(), String> {
    let mut pytest = Command::new(python);
    pytest.args(["-m", "pytest"]).current_dir(root().join(PACKAGE));
    // What is imported is compiled once, and nothing is written beside the tests.
    pytest.env("PYTHONPYCACHEPREFIX", folder().join("bytecode"));
    pytest.args(["-p", "no:cacheprovider"]).args(args);
    ran(&mut pytest)
}

/// Tests what `prepare` has installed with the same arguments.
pub(crate) fn test(args: &[String]) -> Result<(), String> {
    let start = Instant::now();
    let left_out: &[&str] = if with_long(args) { &[] } else { &["--deselect", AIRFLOW] };
    // Most tests wait, and each of the two has servers of its own.
    pytest(&folder().join("venv/bin/python"), &[&["--numprocesses=2"], left_out].concat())?;
    // The last test: the wheel needs nothing but Python.
    bare(&wheel_in(Package::Library, Build::Test)?, None)?;
    println!("the Python package: tested in {:.0?}", start.elapsed());
    Ok(())
}

/// All of it, for `cargo xtask python`; with `--each`, the core of it on each of these Pythons.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    match args {
        [] => {
            let all = ["--all".to_owned()];
            prepare(&all)?;
            test(&all)
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
const CORE_TESTS: [&str; 16] = [
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
    "words",
];

/// Tests one wheel on several Pythons: all that are found, or those that are named.
fn on_each(named: &[String]) -> Result<(), String> {
    let wheel = wheel_in(Package::Library, Build::Test)?;
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
    build(&environment("venv", REQUIREMENTS)?, Package::Library, Build::Wheel)
}

/// Builds the wheels and the source distribution as they are published, and tries them in environments with nothing else.
pub(crate) fn wheel() -> Result<(), String> {
    let tools = environment("venv", REQUIREMENTS)?;
    let mut wheels = Vec::new();
    for package in PACKAGES {
        let wheel = build(&tools, package, Build::Wheel)?;
        let size = fs::metadata(&wheel).map_err(|e| format!("{}: {e}", wheel.display()))?.len();
        println!("{}: {:.1} MB", wheel.display(), size as f64 / 1e6);
        if size > package.largest() {
            return Err(format!("the wheel has {size} bytes: more than {}", package.largest()));
        }
        wheels.push(wheel);
    }
    bare(&wheels[0], Some(&wheels[1]))?;
    sources(&tools)
}

/// Installs the wheel into an environment that has nothing else, and uses it; then the command's.
fn bare(library: &Path, command: Option<&Path>) -> Result<(), String> {
    let venv = folder().join("bare");
    ran(Command::new(python()?).args(["-m", "venv", "--clear"]).arg(&venv))?;
    let python = venv.join("bin/python");
    let run = |code: &str| ran(Command::new(&python).args(["-c", code]));
    let licences = |package: &str| {
        run(&format!(
            "import importlib.metadata as it\nsaid = it.metadata('{package}').get_all('License-File')\n\
             assert {{'THIRD-PARTY.txt', 'LICENSE-MIT', 'LICENSE-APACHE'}} <= set(said), said"
        ))
    };
    ran(pip(&python).args(["--no-deps", "--no-index"]).arg(library))?;
    licences("latchwork")?;
    run(
        "import latchwork\nwith latchwork.connect('mem:') as locks, locks.lock('a') as guard: guard.ensure_held()",
    )?;
    run(
        "import subprocess, sys\nsaid = subprocess.run([sys.executable, '-m', 'latchwork'], capture_output=True, text=True)\n\
         assert said.returncode == 1 and 'pip install latchwork-cli' in said.stderr, said",
    )?;
    let Some(command) = command else { return Ok(()) };
    ran(pip(&python).args(["--no-deps", "--no-index"]).arg(command))?;
    licences("latchwork-cli")?;
    ran(Command::new(&python).args(["-m", "latchwork", "--version"]))
}

/// Builds the source distribution, and the wheel from it in an empty folder.
fn sources(tools: &Path) -> Result<(), String> {
    let made = emptied(folder().join("sdist"))?;
    let mut maturin = Command::new(tools.with_file_name("maturin"));
    maturin.args(["sdist", "--out"]).arg(&made);
    // It lists the files of the package by cargo.
    maturin.env("CARGO_TARGET_DIR", target()).arg("--manifest-path");
    ran(maturin.arg(Package::Library.folder().join("Cargo.toml")))?;
    let sdist = only_file(&made)?;
    let from = emptied(folder().join("from-sdist"))?;
    let mut pip = Command::new(tools);
    pip.args(["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]);
    pip.env("MATURIN_PEP517_ARGS", "--profile dev").env("CARGO_TARGET_DIR", target());
    pip.env("PATH", path_with(tools)?).current_dir(&from).arg("--wheel-dir").arg(&from);
    ran(pip.arg(sdist))?;
    bare(&only_file(&from)?, None)
}

/// The path of this process, with the tools first.
fn path_with(tools: &Path) -> Result<std::ffi::OsString, String> {
    let own = std::env::var_os("PATH").unwrap_or_default();
    let first = tools.parent().map(Path::to_path_buf);
    let all = first.into_iter().chain(std::env::split_paths(&own));
    std::env::join_paths(all).map_err(|error| format!("PATH: {error}"))
}

/// Builds the wheel of a package.
fn build(tools: &Path, package: Package, build: Build) -> Result<PathBuf, String> {
    notices(package)?;
    let wheels = emptied(folder().join(build.folder()).join(package.name()))?;
    let mut maturin = Command::new(tools.with_file_name("maturin"));
    maturin.args(["build", "--quiet"]);
    match build {
        // The native half is no member of the workspace: its lints are those of its own build.
        Build::Test => crate::trials::lint(&mut maturin)?,
        Build::Wheel => {
            maturin.args(["--profile", "wheel", "--compression-level", "9", "--strip"]);
        }
    }
    maturin.arg("--manifest-path").arg(package.folder().join("Cargo.toml"));
    maturin.arg("--target-dir").arg(target());
    ran(maturin.arg("--out").arg(&wheels).arg("--interpreter").arg(tools))?;
    wheel_in(package, build)
}

/// Writes what is linked into each package, for builds by maturin alone.
pub(crate) fn all_notices() -> Result<(), String> {
    PACKAGES.into_iter().try_for_each(notices)
}

fn notices(package: Package) -> Result<(), String> {
    let folder = package.folder();
    let file = folder.join("THIRD-PARTY.txt");
    crate::notices::write(&file, &folder.join("Cargo.toml"), package.name())
}

fn emptied(folder: PathBuf) -> Result<PathBuf, String> {
    let said = |error: std::io::Error| format!("{}: {error}", folder.display());
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(said)?;
    }
    fs::create_dir_all(&folder).map_err(said)?;
    Ok(folder)
}

/// What was built last.
fn wheel_in(package: Package, build: Build) -> Result<PathBuf, String> {
    only_file(&folder().join(build.folder()).join(package.name()))
}

fn only_file(folder: &Path) -> Result<PathBuf, String> {
    let made = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let made = made.flatten().map(|entry| entry.path()).next();
    made.ok_or(format!("{}: maturin has made nothing", folder.display()))
}

/// An environment with what the tests need; its Python.
fn environment(name: &str, requirements: &str) -> Result<PathBuf, String> {
    let venv = folder().join(name);
    let python = venv.join("bin/python");
    let file = root().join(PACKAGE).join(requirements);
    let text = fs::read_to_string(&file).map_err(|e| format!("{requirements}: {e}"))?;
    let stamp = venv.join("installed");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == text) {
        return Ok(python);
    }
    ran(Command::new(self::python()?).args(["-m", "venv", "--clear"]).arg(&venv))?;
    ran(pip(&python).arg("--requirement").arg(&file))?;
    if text.contains("pyright") {
        // It fetches its program at its first use, which is not to be in a test.
        ran(Command::new(&python).args(["-m", "pyright", "--version"]))?;
    }
    fs::write(&stamp, text).map_err(|e| format!("{}: {e}", stamp.display()))?;
    Ok(python)
}

/// Installs the wheel, and the command of the tests beside it.
fn install(python: &Path, wheel: &Path) -> Result<(), String> {
    ran(pip(python).args(["--no-deps", "--no-index", "--force-reinstall"]).arg(wheel))?;
    let command = python.with_file_name("latchwork");
    ran(Command::new("strip").arg("-o").arg(command).arg(target().join("debug/latchwork")))
}

fn pip(python: &Path) -> Command {
    let mut pip = Command::new(python);
    // Most of what is installed is never imported, so it is not compiled.
    let quietly = ["--quiet", "--disable-pip-version-check", "--no-compile"];
    pip.args(["-m", "pip", "install"]).args(quietly);
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
        let own = fs::read_to_string(Package::Library.folder().join("Cargo.toml")).unwrap();
        let workspace = fs::read_to_string(root().join("Cargo.toml")).unwrap();
        for name in ["version", "edition", "rust-version", "license", "repository"] {
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
