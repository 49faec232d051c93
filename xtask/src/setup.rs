//! Installs what the tests need beyond a Rust toolchain.

use std::path::Path;
use std::process::Command;

/// What the tests run, and the package that has it.
const NEEDED: &[(&str, &str)] = &[("bash", "bash"), ("cc", "gcc")];

pub(crate) fn run() -> Result<(), String> {
    let missing: Vec<&str> = NEEDED
        .iter()
        .filter(|(program, _)| !is_installed(program))
        .map(|(_, package)| *package)
        .collect();
    if missing.is_empty() {
        println!("setup: everything is there");
        return Ok(());
    }
    println!("setup: installing {}", missing.join(", "));
    apt_get(&["update"])?;
    let mut install = vec!["install", "--yes", "--no-install-recommends"];
    install.extend(&missing);
    apt_get(&install)
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| Path::new(&dir).join(program).is_file())
}

fn apt_get(args: &[&str]) -> Result<(), String> {
    let status = Command::new("apt-get")
        .args(args)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .status()
        .map_err(|e| format!("setup: cannot run apt-get: {e}; install bash and gcc by hand"))?;
    if status.success() { Ok(()) } else { Err(format!("setup: apt-get {args:?} failed: {status}")) }
}
