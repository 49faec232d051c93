//! All of a release that can be tried without publishing: `docs/releasing.md` has the rest.

use std::fs;
use std::process::Command;

use crate::package::{self, Package, cargo};

/// What is tried: its name, and how.
type Step<'a> = (&'a str, &'a dyn Fn() -> Result<(), String>);

/// Tries, and lists what is missing.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    if args != ["--dry-run"] {
        let message =
            "nothing is published from here: try with --dry-run, then follow docs/releasing.md";
        return Err(message.into());
    }
    let packages = package::published()?;
    let steps: [Step; 7] = [
        ("the tree is clean", &clean),
        ("all packages have one version", &|| one_version(&packages)),
        ("the changelog has the version", &|| changelog(&packages)),
        ("the repository has an address", &repository),
        ("dependencies, by deny.toml", &dependencies),
        ("documentation as on docs.rs", &|| documentation(&packages)),
        ("packages", &package::run),
    ];
    let mut missing = Vec::new();
    for (name, step) in steps {
        println!("==> {name}");
        if let Err(message) = step() {
            println!("{message}");
            missing.push(name);
        }
    }
    if missing.is_empty() {
        println!("ready: go on with docs/releasing.md");
        return Ok(());
    }
    Err(format!("not ready for a release: {}", missing.join("; ")))
}

fn clean() -> Result<(), String> {
    let output = Command::new("git").args(["status", "--porcelain"]).output();
    let output = output.map_err(|error| format!("cannot run git: {error}"))?;
    match String::from_utf8_lossy(&output.stdout).trim_end() {
        "" if output.status.success() => Ok(()),
        changes => Err(format!("commit or remove:\n{changes}")),
    }
}

fn one_version(packages: &[Package]) -> Result<(), String> {
    let first = &packages[0].version;
    let other = packages.iter().find(|package| package.version != *first);
    other.map_or(Ok(()), |package| {
        Err(format!("{} is {}, {} is {first}", package.name, package.version, packages[0].name))
    })
}

fn changelog(packages: &[Package]) -> Result<(), String> {
    let heading = format!("## [{}] - ", packages[0].version);
    let text = read("CHANGELOG.md")?;
    if text.lines().any(|line| line.starts_with(&heading)) {
        return Ok(());
    }
    Err(format!("CHANGELOG.md has no section {heading}YYYY-MM-DD"))
}

fn repository() -> Result<(), String> {
    if !read("Cargo.toml")?.lines().any(|line| line.starts_with("repository = \"https://")) {
        return Err("fill in `repository` in the workspace's Cargo.toml".into());
    }
    // PyPI shows these beside the README, whose links lead to no file.
    let python = read("python/pyproject.toml")?;
    let urls = ["[project.urls]", "Documentation = ", "Source = ", "Changelog = ", "Issues = "];
    match urls.iter().find(|url| !python.lines().any(|line| line.starts_with(**url))) {
        Some(missing) => Err(format!("python/pyproject.toml has no `{missing}`")),
        None => Ok(()),
    }
}

/// Licences, advisories, and dependencies in two versions.
fn dependencies() -> Result<(), String> {
    let install = |error| format!("{error}; install it: cargo install --locked cargo-deny");
    cargo(&["deny", "--all-features", "check"], &[]).map_err(install)
}

fn documentation(packages: &[Package]) -> Result<(), String> {
    let mut args = vec!["doc", "--no-deps", "--all-features", "--quiet"];
    for package in packages {
        args.extend(["--package", &package.name]);
    }
    cargo(&args, &[("RUSTDOCFLAGS", "-D warnings")])
}

fn read(path: &str) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))
}
