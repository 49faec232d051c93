//! A store's address for the commands inside of a command, in memory that only this user can read.
//!
//! A reader of a process's environment, in a crash report for example, would find a password there. The name of
//! this file reveals nothing, and opening it needs the right to inspect this process.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{MemfdFlags, Mode, fchmod, memfd_create};

/// Where such files are.
const FILES: &str = "/proc/";

/// A file with an address, which is there for as long as this process is.
#[derive(Debug)]
pub(super) struct PassedOn {
    /// Kept open, because the path leads to it.
    _fd: OwnedFd,
    path: PathBuf,
}

impl PassedOn {
    /// `None` where the system has no such files, or no /proc.
    pub(super) fn new(address: &str) -> Option<Self> {
        let fd = memfd_create("latchwork-store", MemfdFlags::CLOEXEC).ok()?;
        let mut file = File::from(fd);
        file.write_all(address.as_bytes()).ok()?;
        let fd = OwnedFd::from(file);
        fchmod(&fd, Mode::RUSR).ok()?;
        let path = format!("{FILES}{}/fd/{}", std::process::id(), fd.as_raw_fd()).into();
        File::open(&path).ok()?;
        Some(Self { _fd: fd, path })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// Whether this may be the file of another process.
pub(super) fn is_passed_on(file: &Path) -> bool {
    file.starts_with(FILES)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn an_address_is_passed_on_to_this_user_alone() {
        let passed = PassedOn::new("redis://:pw@h").unwrap();
        assert!(is_passed_on(passed.path()));
        assert_eq!(std::fs::read_to_string(passed.path()).unwrap(), "redis://:pw@h");
        let mode = passed.path().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o400);
        let path = passed.path().to_owned();
        drop(passed);
        assert!(File::open(path).is_err());
    }
}
