//! Packs every published crate and builds each from its package.
//!
//! Cargo resolves the packages among each other, so this needs no registry that has them.

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use serde_json::Value;

/// A crate that is published.
#[derive(Debug)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    /// From the root of the workspace.
    #[cfg_attr(not(test), expect(dead_code, reason = "tests read its files"))]
    pub(crate) folder: PathBuf,
}

/// Packs and builds.
pub(crate) fn run() -> Result<(), String> {
    let start = Instant::now();
    let packages = published()?;
    // Afterwards nothing is asked of the network.
    cargo(&["fetch", "--quiet"], &[])?;
    // In the folder of the workspace, where the dependencies of the packages are built already. A
    // package has no profile, so the workspace's is named, or everything would be built again.
    let profile = [("CARGO_PROFILE_DEV_DEBUG", "line-tables-only")];
    let mut args = vec!["package", "--offline", "--allow-dirty", "--quiet", "--all-features"];
    args.extend(["--target-dir", "target"]);
    for package in &packages {
        args.extend(["--package", &package.name]);
    }
    cargo(&args, &profile)?;
    let names: Vec<_> = packages.iter().map(|package| &*package.name).collect();
    println!("packed and built in {:.0?}: {}", start.elapsed(), names.join(", "));
    Ok(())
}

/// The crates of the workspace that are published.
pub(crate) fn published() -> Result<Vec<Package>, String> {
    let metadata = metadata(&["--no-deps"])?;
    let root = metadata["workspace_root"].as_str().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = metadata["packages"].as_array().ok_or("cargo metadata names no packages")?;
    let all = all.iter().filter(|package| package["publish"].is_null()).map(|package| {
        let manifest = PathBuf::from(text(&package["manifest_path"]));
        let folder = manifest.parent().and_then(|folder| folder.strip_prefix(root).ok());
        Package {
            name: text(&package["name"]),
            version: text(&package["version"]),
            folder: folder.map(PathBuf::from).unwrap_or_default(),
        }
    });
    Ok(all.collect())
}

/// What cargo knows of the workspace.
pub(crate) fn metadata(args: &[&str]) -> Result<Value, String> {
    let mut command = command();
    command.args(["metadata", "--format-version", "1", "--all-features"]).args(args);
    let output = command.output().map_err(|error| format!("cannot run cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))
}

/// Runs cargo, and fails as it does.
pub(crate) fn cargo(args: &[&str], env: &[(&str, &str)]) -> Result<(), String> {
    let status = command().args(args).envs(env.iter().copied()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(format!("failed: cargo {}", args.join(" "))),
        Err(error) => Err(format!("cannot run cargo: {error}")),
    }
}

fn command() -> Command {
    Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()))
}
