//! Packs every published crate, and compiles each from its package.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use serde_json::Value;

use crate::workspace::{cargo_command, root};

/// A crate that is published.
#[derive(Debug)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    /// From the root of the workspace.
    #[cfg_attr(not(test), expect(dead_code, reason = "tests read its files"))]
    pub(crate) folder: PathBuf,
}

/// Packs all of them, and compiles what was packed, and nothing else, up to the machine code.
///
/// Cargo's own check after packing builds each package for itself, and with it every dependency
/// whose features differ from package to package: six minutes of both processors. Here the packages
/// are one workspace.
pub(crate) fn run() -> Result<(), String> {
    let start = Instant::now();
    let packages = published()?;
    let mut args = vec!["package", "--no-verify", "--allow-dirty", "--quiet"];
    for package in &packages {
        args.extend(["--package", &package.name]);
    }
    cargo(&args, &[])?;
    let target = root().join("target");
    let unpacked = target.join("package").join("unpacked");
    unpack(&packages, &target.join("package"), &unpacked)?;
    let manifest = unpacked.join("Cargo.toml");
    let (manifest, target) = (manifest.to_string_lossy(), target.to_string_lossy());
    let check = ["check", "--quiet", "--workspace", "--all-features", "--manifest-path", &manifest];
    cargo(&[&check[..], &["--target-dir", &target]].concat(), &[])?;
    let names: Vec<_> = packages.iter().map(|package| &*package.name).collect();
    println!("packed and compiled in {:.0?}: {}", start.elapsed(), names.join(", "));
    Ok(())
}

/// Makes a workspace of the packages, in which each is where the others look for it.
fn unpack(packages: &[Package], packed: &Path, into: &Path) -> Result<(), String> {
    let said = |what: &Path, error: std::io::Error| format!("{}: {error}", what.display());
    if into.exists() {
        fs::remove_dir_all(into).map_err(|error| said(into, error))?;
    }
    fs::create_dir_all(into).map_err(|error| said(into, error))?;
    let mut manifest = String::from("[workspace]\nresolver = \"3\"\nmembers = [\"*-[0-9]*\"]\n");
    // As in the workspace itself: what the documentation's stage has made of the dependencies serves.
    manifest += "\n[profile.dev]\ndebug = \"line-tables-only\"\n";
    manifest += "\n[profile.dev.package.\"*\"]\ndebug = false\n";
    manifest += "\n[patch.crates-io]\n";
    for Package { name, version, .. } in packages {
        let archive = packed.join(format!("{name}-{version}.crate"));
        let mut tar = Command::new("tar");
        let status = tar.arg("-xzf").arg(&archive).arg("-C").arg(into).status();
        if !status.is_ok_and(|status| status.success()) {
            return Err(format!("cannot unpack {}", archive.display()));
        }
        manifest += &format!("{name} = {{ path = \"{name}-{version}\" }}\n");
    }
    let file = into.join("Cargo.toml");
    fs::write(&file, manifest).map_err(|error| said(&file, error))?;
    // The versions that everything else was tested with.
    let lock = into.join("Cargo.lock");
    fs::copy(root().join("Cargo.lock"), &lock).map(drop).map_err(|error| said(&lock, error))
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
    let mut command = cargo_command();
    command.args(["metadata", "--format-version", "1", "--all-features"]).args(args);
    let output = command.output().map_err(|error| format!("cannot run cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))
}

/// Runs cargo, and fails as it does.
pub(crate) fn cargo(args: &[&str], env: &[(&str, &str)]) -> Result<(), String> {
    let status = cargo_command().args(args).envs(env.iter().copied()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(format!("failed: cargo {}", args.join(" "))),
        Err(error) => Err(format!("cannot run cargo: {error}")),
    }
}
