//! Turns a failed system call into an error with a next step.

use std::path::Path;

use latchwork_store::{BackendError, BackendErrorKind, Effect};
use rustix::io::Errno;

use crate::disk::dir::{Entry, STRANGE};
use crate::disk::owner::{self, Owner};

/// The error for a system call that failed, with the path and the next step.
///
/// `doing` completes "cannot ...": "open the record".
pub(crate) fn failed(doing: &str, path: &Path, errno: Errno, effect: Effect) -> BackendError {
    let error = BackendError::new(
        kind(errno),
        effect,
        format!("cannot {doing} {}: {}", path.display(), std::io::Error::from(errno)),
    );
    match next_step(errno) {
        Some(step) => error.with_next_step(step),
        None => error,
    }
}

/// The same for a file of the lock directory: if something else lies in its place, it says what and
/// whose it is, and if another user's part keeps the owner of the directory out, how to change that.
pub(crate) fn failed_at(doing: &str, at: &Entry, errno: Errno, effect: Effect) -> BackendError {
    let in_the_way = match errno {
        Errno::LOOP | Errno::XDEV | Errno::NOTDIR | Errno::ISDIR | Errno::NXIO | STRANGE => {
            at.strange(errno)
        }
        _ => None,
    };
    if let Some(what) = in_the_way {
        return strange(&format!("cannot {doing} {}: {what}", at.path().display()), effect);
    }
    let remedy = match errno {
        Errno::ACCESS | Errno::PERM => at.owners_remedy(),
        _ => None,
    };
    let error = failed(doing, &at.path(), errno, effect);
    match remedy {
        Some(step) => error.with_next_step(step),
        None => error,
    }
}

/// The error for what Latchwork did not put into the lock directory.
pub(crate) fn strange(message: &str, effect: Effect) -> BackendError {
    BackendError::new(BackendErrorKind::Corrupt, effect, message).with_next_step(
        "remove it, and find out which user created it: every user who can write to the lock \
         directory can break its locks",
    )
}

/// The error for a part of the lock directory that belongs to a user who is not to be trusted with
/// it.
pub(crate) fn foreign(at: &Entry, owner: Owner, of_directory: Owner) -> BackendError {
    BackendError::new(
        BackendErrorKind::Denied,
        Effect::NotApplied,
        format!(
            "{} belongs to {owner}, and the lock directory to {of_directory}: its owner could \
             replace it, and then two processes would hold the same lock",
            at.path().display()
        ),
    )
    .with_next_step(format!(
        "make sure that no program uses the directory, remove what belongs to {owner}, and let \
         {of_directory} use it first (`latchwork --store file://{} init`); the sticky bit \
         (chmod +t) keeps other users from replacing its parts",
        at.root().display()
    ))
}

/// The error for a shared directory that its owner has not used yet.
pub(crate) fn not_set_up(at: &Entry, of_directory: Owner) -> BackendError {
    BackendError::new(
        BackendErrorKind::Denied,
        Effect::NotApplied,
        format!(
            "{} is missing, and the lock directory is shared: only its owner, {of_directory}, \
             can create the files that all its users trust",
            at.path().display()
        ),
    )
    .with_next_step(format!(
        "let {of_directory} run `latchwork --store file://{} init` once",
        at.root().display()
    ))
}

/// The error for a directory that is in use for something else. `first` is in it.
pub(crate) fn in_use(first: &Entry, count: usize) -> BackendError {
    let (root, path) = (first.root().display(), first.path());
    let more = if count > 1 { format!(" and {} more", count - 1) } else { String::new() };
    let what = first.look().map(|stat| {
        format!(", {} that belongs to {}", owner::describe(&stat), Owner::of_stat(&stat))
    });
    BackendError::new(
        BackendErrorKind::Unsupported,
        Effect::NotApplied,
        format!(
            "{root} is not a lock directory: it contains {}{}{more}",
            path.display(),
            what.unwrap_or_default()
        ),
    )
    .with_next_step(format!("name an empty or a new directory, for example file://{root}/locks"))
}

/// The error for what is damaged on the disk.
pub(crate) fn corrupt(what: &str, path: &Path) -> BackendError {
    BackendError::new(
        BackendErrorKind::Corrupt,
        Effect::NotApplied,
        format!("{}: {what}", path.display()),
    )
    .with_next_step("make sure that no process holds this key, then remove the file")
}

/// The error of a backend whose directory was taken away under it, or that others no longer find
/// where its path leads.
pub(crate) fn removed(root: &Path) -> BackendError {
    BackendError::new(
        BackendErrorKind::Unreachable,
        Effect::NotApplied,
        format!(
            "the lock directory {} was removed, emptied or moved while in use, or its path now \
             resolves to another directory",
            root.display()
        ),
    )
    .with_next_step(
        "exclude it from temp cleaners, name it by a path that stays the same across deploys, \
         and restart every program that used it: at its start a program creates what is missing",
    )
}

/// How to go on when a process has stopped in the middle of a change.
pub(crate) const FIND_THE_STOPPED_STEP: &str = "find it (lslocks, fuser), and resume or end it";

/// The error for a stripe that another process has had for too long.
pub(crate) fn busy(stripe: &Path) -> BackendError {
    BackendError::new(
        BackendErrorKind::Unreachable,
        Effect::NotApplied,
        format!(
            "another process or thread keeps the stripe file {} locked; it may have been stopped \
             (SIGSTOP) in the middle of a change",
            stripe.display()
        ),
    )
    .with_next_step(FIND_THE_STOPPED_STEP)
}

/// The error for a renewal whose floor needs a ceiling that is still on its way to the disk.
pub(crate) fn slow(stripe: &Path) -> BackendError {
    BackendError::new(
        BackendErrorKind::Unreachable,
        Effect::NotApplied,
        format!(
            "the disk is slow to sync the stripe file {}, which must happen before a larger \
             token is given",
            stripe.display()
        ),
    )
    .with_next_step("check why the disk is busy (iostat, dmesg); Latchwork retries the renewal")
}

fn kind(errno: Errno) -> BackendErrorKind {
    match errno {
        Errno::ACCESS | Errno::PERM | Errno::ROFS => BackendErrorKind::Denied,
        Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOLCK => BackendErrorKind::Unsupported,
        _ => BackendErrorKind::Unreachable,
    }
}

fn next_step(errno: Errno) -> Option<&'static str> {
    Some(match errno {
        Errno::ACCESS | Errno::PERM => {
            "give this user the right to read and write the lock directory, and to search the \
             directories above it, or choose another one"
        }
        Errno::ROFS => "mount the file system for writing, or choose another lock directory",
        Errno::NOSPC | Errno::DQUOT => {
            "free space or inodes on the file system of the lock directory (`df`, `df -i`)"
        }
        Errno::FBIG => "raise the limit on the size of files (ulimit -f)",
        Errno::XDEV => "put the whole lock directory on one mount",
        Errno::MFILE | Errno::NFILE => "raise the limit of open files (ulimit -n)",
        Errno::NOENT | Errno::NOTDIR | Errno::EXIST => "check the path of the lock directory",
        Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOLCK => {
            "choose a directory on a local file system with flock and named pipes, such as ext4, \
             xfs, btrfs or tmpfs"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_only_file_system_is_denied_and_a_full_one_unreachable() {
        let path = Path::new("/locks/records/00/x");
        let error = failed("create the record", path, Errno::ROFS, Effect::NotApplied);
        assert_eq!(error.kind, BackendErrorKind::Denied);
        assert!(error.message.contains("/locks/records/00/x"), "{error}");
        assert!(error.next_step.unwrap().contains("mount"));
        let error = failed("write the record", path, Errno::NOSPC, Effect::NotApplied);
        assert_eq!(error.kind, BackendErrorKind::Unreachable);
        assert!(error.next_step.unwrap().contains("free space"));
    }
}
