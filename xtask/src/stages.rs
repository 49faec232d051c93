//! What is run, in which order, and how long it took.

use std::fs::File;
use std::panic::resume_unwind;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::workspace::{cargo_command, own, root};

/// A test run that takes longer than this has to be made faster.
const LONGEST: Duration = Duration::from_secs(60 * 60);

/// How long each part took.
type Table = Vec<(&'static str, Duration)>;

type Stage = (&'static str, &'static [&'static str], &'static [(&'static str, &'static str)]);

const FORMAT: Stage = ("format", &["fmt", "--all", "--check"], &[]);

const LINTS: Stage = (
    "lints",
    &["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"],
    &[],
);

const DOCS: Stage = (
    "docs",
    &["doc", "--workspace", "--no-deps", "--all-features", "--document-private-items"],
    &[("RUSTDOCFLAGS", "-D warnings")],
);

/// The documentation is checked on the way.
const EXAMPLES: &str = "docs and their examples";

/// What no trial runs. It is compiled beside the trials, with what they leave of the processors.
const COMPILED: &[Stage] = &[
    ("features", &["check", "--package", "latchwork", "--no-default-features"], &[]),
    (
        "features testing, redis",
        &[
            "check",
            "--package",
            "latchwork",
            "--no-default-features",
            "--features",
            "testing,redis",
        ],
        &[],
    ),
    (EXAMPLES, &["test", "--workspace", "--all-features", "--doc"], &[]),
    ("packages", &["xtask", "package"], &[]),
];

/// The package, and its tests: most of them wait, and they have servers of their own.
const PYTHON_PACKAGE: Stage =
    ("python package", &["xtask", "python-prepare", "--command-is-built"], &[]);
const PYTHON: Stage = ("python", &["python-test"], &[]);

/// The rules of the house: its rooms, its links and its pages.
const HOUSE: Stage = ("house", &["test", "--quiet", "--package", "xtask"], &[]);

const FIX: &[Stage] = &[
    (
        "lints",
        &["clippy", "--workspace", "--all-targets", "--all-features", "--fix", "--allow-dirty"],
        &[],
    ),
    ("format", &["fmt", "--all"], &[]),
    ("format of python", &["fmt", "--manifest-path", "python/Cargo.toml"], &[]),
];

/// The native half of the Python package is no member of the workspace.
const FORMAT_PYTHON: Stage =
    ("format of python", &["fmt", "--check", "--manifest-path", "python/Cargo.toml"], &[]);

pub(crate) fn check() -> Result<(), String> {
    crate::mutations::check()?;
    crate::recipes::pages(false)?;
    crate::words::check()?;
    run(&[FORMAT, FORMAT_PYTHON, HOUSE, LINTS, DOCS]).map(drop)
}

pub(crate) fn fix() -> Result<(), String> {
    crate::mutations::check()?;
    // The lints and the format may change what the pages show.
    run(FIX)?;
    crate::recipes::pages(true)?;
    // Words are for a writer to mend: they are named here, before CI refuses them.
    crate::words::check()
}

/// Everything that must pass.
pub(crate) fn test(args: &[String]) -> Result<(), String> {
    let with_long = match args {
        [] => false,
        [all] if all == "--all" => true,
        _ => return Err("test takes --all, for the long tests too, or nothing".into()),
    };
    let start = Instant::now();
    let mut table = Vec::new();
    timed(&mut table, "setup", crate::setup::run)?;
    // They are fetched or built while Cargo builds.
    let servers = std::thread::spawn(|| crate::servers::run(&[]));
    timed(&mut table, "mutations, recipes, words", || {
        crate::mutations::check()?;
        crate::recipes::pages(false)?;
        crate::words::check()
    })?;
    timed(&mut table, "format", || {
        cargo(FORMAT.0, FORMAT.1, FORMAT.2)?;
        cargo(FORMAT_PYTHON.0, FORMAT_PYTHON.1, FORMAT_PYTHON.2)
    })?;
    let binaries = timed(&mut table, "build and lints", crate::trials::build)?;
    timed(&mut table, "servers, beside the build", || {
        servers.join().unwrap_or(Err("what fetches the servers has panicked".into()))
    })?;
    let logs = root().join("target").join("trials");
    let room = crate::trials::room(binaries, with_long);
    let tests = std::thread::scope(|scope| {
        let others = scope.spawn(|| {
            let others = beside(with_long, &logs);
            room.is_alone();
            others
        });
        let tests = timed(&mut table, "tests", || crate::trials::run(&room, &logs));
        let (times, compiled) = others.join().unwrap_or_else(|panic| resume_unwind(panic));
        table.extend(times);
        match (tests, compiled) {
            (Err(tests), Err(compiled)) => Err(format!("{compiled}\n{tests}")),
            (tests, compiled) => tests.and(compiled),
        }
    });
    println!();
    for (name, took) in table {
        println!("{name:>25}  {}", minutes(took));
    }
    tests?;
    let took = start.elapsed();
    if took > LONGEST {
        return Err(format!("everything passed, but took {}: too long", minutes(took)));
    }
    println!("everything passed in {}", minutes(took));
    Ok(())
}

/// What runs beside the trials, and how long each part took. The package for Python comes first: the rest is compiled
/// beside its tests.
fn beside(with_long: bool, logs: &Path) -> (Table, Result<(), String>) {
    let long: &[&str] = if with_long { &["--all"] } else { &[] };
    let mut table = Vec::new();
    // It does not give way: on a machine without a pause it would begin when the trials have ended.
    let build = || run_quietly(&PYTHON_PACKAGE, long, cargo_command(), logs);
    let built = timed(&mut table, PYTHON_PACKAGE.0, build);
    if built.is_err() {
        return (table, built);
    }
    let (tests, compiled) = std::thread::scope(|scope| {
        let tests = scope.spawn(|| {
            let mut table = Vec::new();
            // Cargo would wait for what is compiled beside it.
            let run = || run_quietly(&PYTHON, long, Command::new(own()?), logs);
            let done = timed(&mut table, PYTHON.0, run);
            (table, done)
        });
        let compiled = COMPILED.iter().try_for_each(|stage| {
            timed(&mut table, stage.0, || run_quietly(stage, &[], gently(), logs))
        });
        (tests.join().unwrap_or_else(|panic| resume_unwind(panic)), compiled)
    });
    table.extend(tests.0);
    (table, compiled.and(tests.1))
}

/// Runs a stage, and notes how long it took.
fn timed<T>(
    table: &mut Table,
    name: &'static str,
    stage: impl FnOnce() -> Result<T, String>,
) -> Result<T, String> {
    println!("==> {name}");
    let start = Instant::now();
    let done = stage();
    table.push((name, start.elapsed()));
    done
}

/// Cargo, which gives way to all others.
fn gently() -> Command {
    let mut command = Command::new("nice");
    command.args(["-n", "19", &crate::workspace::program()]);
    crate::workspace::forget_package(&mut command);
    command
}

/// Runs a stage beside the trials, with more arguments; what is said of it goes to a file in `logs`, and is shown if it
/// fails.
fn run_quietly(
    (name, args, env): &Stage,
    more: &[&str],
    mut command: Command,
    logs: &Path,
) -> Result<(), String> {
    let failed = |e| format!("{name}: {e}");
    std::fs::create_dir_all(logs).map_err(|e| format!("{}: {e}", logs.display()))?;
    let path = logs.join(format!("{}.txt", name.replace(' ', "-")));
    let log = File::create(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    command.args(*args).args(more).envs(env.iter().copied());
    command.stdout(log.try_clone().map_err(failed)?).stderr(log);
    // The same compiler as for the tests, or the libraries would be built once more.
    crate::trials::lint(&mut command)?;
    if *name == EXAMPLES {
        crate::docs::stand_in(&mut command)?;
    }
    if command.status().map_err(failed)?.success() {
        return Ok(());
    }
    let said = std::fs::read_to_string(&path).unwrap_or_default();
    Err(format!("{name} failed: {}\n{said}", args.join(" ")))
}

/// Measures with what was built here: the program that measures, and the command that it measures.
pub(crate) fn bench(args: &[String]) -> Result<(), String> {
    const BUILD: [&str; 3] = ["build", "--release", "--quiet"];
    let lab = ["--manifest-path", "lab/Cargo.toml", "--target-dir", "target"];
    cargo("bench", &[&BUILD[..], &lab].concat(), &[])?;
    cargo("bench", &[&BUILD[..], &["--package", "latchwork-cli"]].concat(), &[])?;
    if args.iter().any(|name| name == "python" || name == "all") {
        crate::python::bench()?;
    }
    let own = own()?;
    // This is `target/debug/xtask`.
    let target = own.ancestors().nth(2).ok_or("this program is in no target folder")?;
    let program = target.join("release/latchwork-bench");
    let status = Command::new(&program).args(args).status();
    let status = status.map_err(|e| format!("{}: {e}", program.display()))?;
    if status.success() { Ok(()) } else { Err(format!("bench: {status}")) }
}

/// Runs the simulation as fast as it goes.
pub(crate) fn simulate(args: &[String]) -> Result<(), String> {
    let run = ["run", "--release", "--quiet", "--package", "latchwork-simulate", "--"];
    let args: Vec<&str> = run.into_iter().chain(args.iter().map(String::as_str)).collect();
    let status = cargo_command().args(args).status();
    let status = status.map_err(|e| format!("simulate: cannot run cargo: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("simulate: {status}")) }
}

/// Searches for faults with `proof/soak.py`.
pub(crate) fn search(what: &str, args: &[String]) -> Result<(), String> {
    let script = ["proof/soak.py", what];
    let status = std::process::Command::new("python3").args(script).args(args).status();
    let status = status.map_err(|e| format!("{what}: cannot run python3: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("{what}: {status}")) }
}

pub(crate) fn stubs() -> Result<(), String> {
    let etcd = "crates/latchwork-etcd";
    let (proto, out) = (format!("{etcd}/proto/etcd.proto"), format!("{etcd}/src/proto"));
    let manifest = "xtask/etcd-stubs/Cargo.toml";
    let target = "target/etcd-stubs";
    let tool = ["run", "--quiet", "--manifest-path", manifest, "--target-dir", target, "--"];
    cargo("stubs", &[&tool[..], &[&proto, &out]].concat(), &[])
}

fn run(stages: &[Stage]) -> Result<Duration, String> {
    let mut table = Vec::new();
    let start = Instant::now();
    for (name, args, env) in stages {
        println!("==> {name}: cargo {}", args.join(" "));
        let start = Instant::now();
        cargo(name, args, env)?;
        table.push((name, start.elapsed()));
    }
    for (name, took) in table {
        println!("{name:>14}  {}", minutes(took));
    }
    Ok(start.elapsed())
}

fn cargo(name: &str, args: &[&str], env: &[(&str, &str)]) -> Result<(), String> {
    let mut child = cargo_command()
        .args(args)
        .envs(env.iter().copied())
        .spawn()
        .map_err(|e| format!("{name}: cannot run cargo: {e}"))?;
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().map_err(|e| format!("{name}: {e}"))? {
            break status;
        }
        if start.elapsed() > LONGEST {
            // What it last printed says which test hangs.
            let _ = child.kill();
            return Err(format!("{name} did not end within {}", minutes(LONGEST)));
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    if status.success() { Ok(()) } else { Err(format!("{name} failed: cargo {}", args.join(" "))) }
}

fn minutes(took: Duration) -> String {
    format!("{:.1} min", took.as_secs_f64() / 60.0)
}
