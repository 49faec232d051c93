//! Checks that locks work on the directory's file system.
//!
//! A lock on a network file system may be kept by the server, by the client alone or by nobody,
//! and may vanish when the server restarts; a death on another machine closes no descriptor here.
//! So those are refused by name, and the rest has to show that a second description cannot take
//! a lock that is held.

use std::os::fd::AsFd;
use std::path::Path;

use latchwork_store::{BackendError, BackendErrorKind, Effect};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::disk::dir::Dir;
use crate::disk::failure::failed;

/// File systems that are refused, by the number that `statfs` gives them (`linux/magic.h`).
const REFUSED: &[(u32, &str)] = &[
    (0x6969, "NFS"),
    (0x517B, "SMB"),
    (0xFF53_4D42, "CIFS"),
    (0xFE53_4D42, "SMB2"),
    (0x6573_5546, "FUSE"),
    (0x0102_1997, "9p"),
    (0x5346_414F, "AFS"),
    (0x6B41_4653, "AFS"),
    (0x00C3_6400, "Ceph"),
    (0x0116_1970, "GFS2"),
    (0x7461_636F, "OCFS2"),
    (0x0BD0_0BD0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x7375_7245, "Coda"),
    (0x564C, "NCP"),
    (0x1983_0326, "BeeGFS"),
    (0xAAD7_AAEA, "PanFS"),
    (0x2003_0528, "OrangeFS"),
    (0x786F_4256, "VirtualBox shared folder"),
    (0xBACB_ACBC, "VMware shared folder"),
];

/// Local file systems that are often met.
const LOCAL: &[(u32, &str)] = &[
    (0xEF53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683E, "btrfs"),
    (0x0102_1994, "tmpfs"),
    (0x794C_7630, "overlay"),
    (0x2FC1_2FC1, "zfs"),
    (0xF2F5_2010, "f2fs"),
];

/// The name of the file system of a directory, if it is a well-known local one.
pub(crate) fn kind_name(dir: &Dir) -> Option<&'static str> {
    let kind = rustix::fs::fstatfs(dir.fd()).ok()?.f_type as u32;
    LOCAL.iter().find(|(number, _)| *number == kind).map(|(_, name)| *name)
}

/// Refuses a directory on a file system that is shared between machines or not the kernel's own.
pub(crate) fn check_kind(dir: &Dir) -> Result<(), BackendError> {
    let root = dir.path();
    let found = rustix::fs::fstatfs(dir.fd())
        .map_err(|errno| failed("examine the file system of", root, errno, Effect::NotApplied))?;
    // The field is signed or unsigned, 32 or 64 bits, by architecture; the numbers have 32.
    judge(root, found.f_type as u32)
}

fn judge(root: &Path, kind: u32) -> Result<(), BackendError> {
    match REFUSED.iter().find(|(number, _)| *number == kind) {
        Some((_, name)) => Err(unsupported(root, &format!("lies on {name}"))),
        None => Ok(()),
    }
}

/// Refuses a directory where a held lock keeps nobody out: `second` must be another description
/// of the file that is locked.
pub(crate) fn check_exclusion(root: &Path, second: impl AsFd) -> Result<(), BackendError> {
    match rustix::fs::flock(second, FlockOperation::NonBlockingLockShared) {
        Err(Errno::WOULDBLOCK) => Ok(()),
        Err(errno) => Err(failed("lock a file in", root, errno, Effect::NotApplied)),
        Ok(()) => Err(unsupported(root, "lies on a file system where a lock can be taken twice")),
    }
}

fn unsupported(root: &Path, what: &str) -> BackendError {
    BackendError::new(
        BackendErrorKind::Unsupported,
        Effect::NotApplied,
        format!("the lock directory {} {what}: its locks would not be reliable", root.display()),
    )
    .with_next_step(
        "choose a directory on a local file system such as ext4, xfs, btrfs or tmpfs; for locks \
         between machines use a store such as Redis, etcd or ZooKeeper",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_refused_by_name() {
        let root = Path::new("/net/locks");
        for (kind, name) in [(0x6969, "NFS"), (0xFF53_4D42, "CIFS"), (0x6573_5546, "FUSE")] {
            let error = judge(root, kind).unwrap_err();
            assert_eq!(error.kind, BackendErrorKind::Unsupported);
            assert!(error.message.contains("/net/locks") && error.message.contains(name));
            assert!(error.next_step.is_some());
        }
        for kind in [0xEF53, 0x0102_1994, 0x794C_7630, 0x9123_683E, 0x5846_5342] {
            judge(root, kind).unwrap();
        }
    }

    /// H80: where the second lock succeeds, the directory is refused.
    #[test]
    fn h80_a_file_system_without_exclusion_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let first = std::fs::File::create(&path).unwrap();
        let second = std::fs::File::open(&path).unwrap();
        let error = check_exclusion(dir.path(), &second).unwrap_err();
        assert_eq!(error.kind, BackendErrorKind::Unsupported);
        drop(second);
        rustix::fs::flock(&first, FlockOperation::NonBlockingLockExclusive).unwrap();
        check_exclusion(dir.path(), std::fs::File::open(&path).unwrap()).unwrap();
    }
}
