//! Where the workspace is, and its Cargo.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Cargo, as this program was started by it.
pub(crate) fn cargo_command() -> Command {
    let mut command = Command::new(program());
    forget_package(&mut command);
    command
}

/// Removes what Cargo has told this program of its own package. A build script that looks at it (ring's does) would run
/// again whenever Cargo is called by hand in between, and all that depends on it would be compiled again.
pub(crate) fn forget_package(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|begin| text.starts_with(begin)) {
            command.env_remove(&name);
        }
    }
}

pub(crate) fn program() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".into())
}

/// The file of this program, which Cargo may have replaced since it was started: the system then names the old one.
pub(crate) fn own() -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|e| format!("where is this program? {e}"))?;
    Ok(of_today(own))
}

fn of_today(program: PathBuf) -> PathBuf {
    let name = program.to_str().and_then(|name| name.strip_suffix(" (deleted)"));
    name.map_or(program.clone(), PathBuf::from)
}

/// The folder of the workspace.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_was_replaced_is_found_by_its_name() {
        for name in ["/t/xtask", "/t/xtask (deleted)"] {
            assert_eq!(of_today(name.into()), Path::new("/t/xtask"));
        }
        assert!(own().unwrap().exists());
    }

    #[test]
    fn cargo_hears_nothing_of_this_package() {
        let command = cargo_command();
        let removed: Vec<_> = command.get_envs().filter(|(_, value)| value.is_none()).collect();
        for name in ["CARGO_PKG_NAME", "CARGO_MANIFEST_DIR"] {
            assert!(std::env::var_os(name).is_some(), "cargo test has told it");
            assert!(removed.iter().any(|(removed, _)| *removed == name), "{name}: {removed:?}");
        }
    }
}
