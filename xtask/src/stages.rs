//! What is run, in which order, and how long it took.

use std::process::Command;
use std::time::{Duration, Instant};

/// A test run that takes longer than this has to be made faster, or split.
const LONGEST: Duration = Duration::from_secs(60 * 60);

type Stage = (&'static str, &'static [&'static str], &'static [(&'static str, &'static str)]);

const CHECK: &[Stage] = &[
    ("format", &["fmt", "--all", "--check"], &[]),
    (
        "lints",
        &["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"],
        &[],
    ),
    (
        "docs",
        &["doc", "--workspace", "--no-deps", "--document-private-items"],
        &[("RUSTDOCFLAGS", "-D warnings")],
    ),
];

const TEST: &[Stage] = &[
    ("features", &["check", "--package", "latchwork", "--no-default-features"], &[]),
    ("release build", &["build", "--release", "--package", "latchwork-cli"], &[]),
    ("tests", &["test", "--workspace", "--all-features", "--no-fail-fast"], &[]),
];

const FIX: &[Stage] = &[
    (
        "lints",
        &["clippy", "--workspace", "--all-targets", "--all-features", "--fix", "--allow-dirty"],
        &[],
    ),
    ("format", &["fmt", "--all"], &[]),
];

pub(crate) fn check() -> Result<(), String> {
    crate::mutations::page(false)?;
    run(CHECK).map(drop)
}

pub(crate) fn fix() -> Result<(), String> {
    crate::mutations::page(true)?;
    run(FIX).map(drop)
}

pub(crate) fn test() -> Result<(), String> {
    crate::setup::run()?;
    crate::mutations::page(false)?;
    let took = run(CHECK)? + run(TEST)?;
    if took > LONGEST {
        return Err(format!("everything passed, but took {}: too long", minutes(took)));
    }
    println!("everything passed in {}", minutes(took));
    Ok(())
}

/// Measures with what was built here: the program that measures, and the command that it measures.
pub(crate) fn bench(args: &[String]) -> Result<(), String> {
    let packages = ["--package", "latchwork-bench", "--package", "latchwork-cli"];
    cargo("bench", &[&["build", "--release", "--quiet"], &packages[..]].concat(), &[])?;
    let own = std::env::current_exe().map_err(|e| format!("where is this program? {e}"))?;
    // This is `target/debug/xtask`.
    let target = own.ancestors().nth(2).ok_or("this program is in no target folder")?;
    let program = target.join("release/latchwork-bench");
    let status = Command::new(&program).args(args).status();
    let status = status.map_err(|e| format!("{}: {e}", program.display()))?;
    if status.success() { Ok(()) } else { Err(format!("bench: {status}")) }
}

/// All that is tested with etcd, with another version of it.
pub(crate) fn etcd(args: &[String]) -> Result<(), String> {
    let [path] = args else {
        return Err("which program? cargo xtask etcd /path/to/etcd".into());
    };
    let path = std::fs::canonicalize(path).map_err(|e| format!("{path}: {e}"))?;
    let path = path.to_string_lossy();
    let version = Command::new(&*path).arg("--version").output();
    let version = version.map_err(|e| format!("{path} cannot be run: {e}"))?;
    print!("{}", String::from_utf8_lossy(&version.stdout));
    let env = [("LATCHWORK_ETCD", &*path)];
    for package in [
        &["latchwork-services", "--test", "etcd"][..],
        &["latchwork-etcd"],
        &["latchwork-conformance", "--test", "etcd", "--test", "etcd_cluster"],
        &["latchwork-cli", "--test", "etcd"],
    ] {
        let args = [&["test", "--no-fail-fast", "--package"], package].concat();
        println!("==> cargo {}", args.join(" "));
        cargo(package[0], &args, &env)?;
    }
    Ok(())
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
    let mut child = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()))
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
