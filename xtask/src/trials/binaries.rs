//! Builds the tests, and finds what was built.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// So often the build tells how far it is.
const PROGRESS: Duration = Duration::from_secs(60);

/// How Cargo's message of a crate that is built begins.
const ARTIFACT: &str = r#"{"reason":"compiler-artifact""#;

/// A program that has tests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Binary {
    pub(crate) package: String,
    /// `lib`, or the name of the test or of the program whose unit tests these are.
    pub(crate) target: String,
    pub(crate) program: PathBuf,
    /// The folder of the package, where its tests run.
    pub(crate) folder: PathBuf,
}

impl Binary {
    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.package, self.target)
    }
}

/// Builds all tests, programs and examples. The compiler is clippy's own, so that what is built is
/// linted on the way and nothing is compiled twice.
pub(crate) fn build() -> Result<Vec<Binary>, String> {
    let mut cargo = crate::workspace::cargo_command();
    lint(&mut cargo)?;
    cargo.args(["test", "--workspace", "--all-features", "--all-targets", "--no-run"]);
    // A line for each crate would hide what matters; how many there are tells that it goes on.
    cargo.args(["--quiet", "--message-format", "json-render-diagnostics"]);
    cargo.stdout(Stdio::piped()).stderr(Stdio::inherit());
    let cannot = |e| format!("build: cannot run cargo: {e}");
    let mut child = cargo.spawn().map_err(cannot)?;
    let messages = BufReader::new(child.stdout.take().ok_or("build: cargo has no output")?);
    let mut binaries = Vec::new();
    let (start, mut told, mut crates) = (Instant::now(), Duration::ZERO, 0);
    for message in messages.lines() {
        let message = message.map_err(cannot)?;
        crates += u32::from(message.starts_with(ARTIFACT));
        binaries.extend(binary_of(&message));
        let since = start.elapsed();
        if since > told + PROGRESS {
            told = since;
            println!("{:>5} s  {crates} crates are built", since.as_secs());
        }
    }
    if !child.wait().map_err(cannot)?.success() {
        return Err("build failed: cargo test --workspace --all-features --no-run".into());
    }
    if binaries.is_empty() {
        return Err("build: cargo has built no test".into());
    }
    Ok(binaries)
}

/// Lets cargo compile the workspace's own crates with clippy, for which a warning is an error.
pub(crate) fn lint(cargo: &mut Command) -> Result<(), String> {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let output = Command::new(rustc).args(["--print", "sysroot"]).output();
    let output = output.map_err(|e| format!("rustc --print sysroot: {e}"))?;
    let sysroot = String::from_utf8_lossy(&output.stdout);
    let driver = Path::new(sysroot.trim()).join("bin").join("clippy-driver");
    if !driver.exists() {
        return Err(format!("{}: not there; rustup component add clippy", driver.display()));
    }
    cargo.env("RUSTC_WORKSPACE_WRAPPER", driver);
    // The words by which cargo clippy itself passes arguments on.
    cargo.env("CLIPPY_ARGS", "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__");
    Ok(())
}

/// The test program that a message of cargo's tells of.
fn binary_of(message: &str) -> Option<Binary> {
    let message: Value = serde_json::from_str(message).ok()?;
    let is_test = message["profile"]["test"].as_bool()?;
    let kinds: Vec<&str> =
        message["target"]["kind"].as_array()?.iter().filter_map(Value::as_str).collect();
    if !is_test || kinds.contains(&"example") {
        return None;
    }
    let program = message["executable"].as_str()?;
    let manifest = Path::new(message["manifest_path"].as_str()?);
    let target = match kinds[..] {
        ["lib"] => "lib",
        _ => message["target"]["name"].as_str()?,
    };
    let folder = manifest.parent()?;
    Some(Binary {
        package: package_of(message["package_id"].as_str()?, folder),
        target: target.into(),
        program: program.into(),
        folder: folder.into(),
    })
}

/// `path+file:///folder#name@version`, or without the name where the folder has it.
fn package_of(id: &str, folder: &Path) -> String {
    let end = id.rsplit_once('#').map_or(id, |(_, end)| end);
    match end.split_once('@') {
        Some((name, _)) => name.into(),
        None => folder.file_name().unwrap_or_default().to_string_lossy().into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_is_found_in_a_message() {
        let message = r#"{"reason":"compiler-artifact","package_id":"path+file:///w/proof/model#latchwork-model@0.1.0","manifest_path":"/w/proof/model/Cargo.toml","target":{"kind":["test"],"name":"it"},"profile":{"test":true},"executable":"/t/it-1"}"#;
        let binary = binary_of(message).unwrap();
        assert_eq!(binary.name(), "latchwork-model it");
        assert_eq!(binary.folder, Path::new("/w/proof/model"));
        assert_eq!(package_of("path+file:///w/xtask#0.1.0", Path::new("/w/xtask")), "xtask");
        assert_eq!(binary_of(&message.replace("\"test\":true", "\"test\":false")), None);
        assert_eq!(binary_of("not json"), None);
    }
}
