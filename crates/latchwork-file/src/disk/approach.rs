//! The path to the lock directory: opened name by name, and created where it is missing.
//!
//! A link on the way is followed if its owner could have had the same without it: root, this user, or
//! the owner of the directory that the link lies in. Any other one is a trap, as somebody sets it in
//! a directory like `/tmp` where everybody may make names. Linux has the same rule for some of these
//! directories (`fs.protected_symlinks`), and it can be switched off.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use latchwork_store::{BackendError, BackendErrorKind, Effect};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::disk::dir::set_mode_of_place;
use crate::disk::failure::failed;
use crate::disk::owner::{self, Owner};

/// How many links are followed, as the kernel does it.
const LINKS: u32 = 40;
/// The file system of `/proc`, whose links only look like paths.
const PROC: u32 = 0x9fa0;

const PLACE: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// Opens the directory at an absolute path. What is missing is made for this user alone, if it is to be made.
pub(crate) fn open(path: &Path, makes: bool) -> Result<OwnedFd, BackendError> {
    let failed = |errno| failed("open the lock directory", path, errno, Effect::NotApplied);
    let mut rest: VecDeque<OsString> = VecDeque::new();
    let mut place = go_to(None, path, &mut rest).map_err(failed)?;
    let mut links = 0;
    while let Some(name) = rest.pop_front() {
        let (next, link) = match step(&place, &name) {
            Err(Errno::NOENT) if makes => {
                match retry_on_intr(|| rustix::fs::mkdirat(&place, &name, Mode::RWXU)) {
                    Ok(()) => {
                        let made = step(&place, &name).map_err(failed)?;
                        keep_own_rights(&made.0).map_err(failed)?;
                        made
                    }
                    // Somebody else has made it in this instant.
                    Err(Errno::EXIST) => step(&place, &name).map_err(failed)?,
                    Err(errno) => {
                        let what = "create the lock directory";
                        return Err(crate::disk::failure::failed(
                            what,
                            path,
                            errno,
                            Effect::NotApplied,
                        ));
                    }
                }
            }
            stepped => stepped.map_err(failed)?,
        };
        if !link {
            place = next;
            continue;
        }
        links += 1;
        if links > LINKS {
            return Err(failed(Errno::LOOP));
        }
        let owner = owner::of(&next).map_err(failed)?;
        if !(owner.is_root()
            || owner.is_this_user()
            || owner == owner::of(&place).map_err(failed)?)
        {
            return Err(trap(path, &name, owner));
        }
        let target = rustix::fs::readlinkat(&next, "", Vec::new()).map_err(failed)?;
        let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
        place = go_to(Some(place), &target, &mut rest).map_err(failed)?;
    }
    Ok(place)
}

/// Gives this user the rights to what was just made, if the umask took them.
fn keep_own_rights(made: &OwnedFd) -> Result<(), Errno> {
    let mode = Mode::from_raw_mode(rustix::fs::fstat(made)?.st_mode);
    if mode.contains(Mode::RWXU) { Ok(()) } else { set_mode_of_place(made, Mode::RWXU) }
}

/// Puts the names of a path before the rest of the way; answers where they begin.
fn go_to(
    place: Option<OwnedFd>,
    path: &Path,
    rest: &mut VecDeque<OsString>,
) -> Result<OwnedFd, Errno> {
    for component in path.components().rev() {
        match component {
            Component::Normal(name) => rest.push_front(name.to_owned()),
            Component::ParentDir => rest.push_front("..".into()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    match place {
        Some(place) if path.is_relative() => Ok(place),
        _ => retry_on_intr(|| rustix::fs::open("/", PLACE | OFlags::DIRECTORY, Mode::empty())),
    }
}

/// Opens a name in a directory: a directory, or a link, and which of the two.
fn step(place: &OwnedFd, name: &OsString) -> Result<(OwnedFd, bool), Errno> {
    let open = |flags| retry_on_intr(|| rustix::fs::openat(place, name, flags, Mode::empty()));
    // With the word that a directory is wanted, so that one is mounted that is mounted on demand.
    match open(PLACE | OFlags::DIRECTORY | OFlags::NOFOLLOW) {
        Err(Errno::NOTDIR | Errno::LOOP) => {}
        opened => return Ok((opened?, false)),
    }
    let found = open(PLACE | OFlags::NOFOLLOW)?;
    let stat = rustix::fs::fstat(&found)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
        return Err(Errno::NOTDIR);
    }
    if rustix::fs::fstatfs(&found).is_ok_and(|fs| fs.f_type as u32 == PROC) {
        return Ok((open(PLACE | OFlags::DIRECTORY)?, false));
    }
    Ok((found, true))
}

fn trap(path: &Path, name: &OsString, owner: Owner) -> BackendError {
    let message = format!(
        "the path of the lock directory {} contains the symbolic link {:?}, which belongs to \
         {owner}: that user decides where files are created",
        path.display(),
        name.display()
    );
    BackendError::new(BackendErrorKind::Denied, Effect::NotApplied, message).with_next_step(
        "name the directory itself, remove the link, or choose a place where other users cannot \
         create files",
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn inode(dir: &OwnedFd) -> u64 {
        rustix::fs::fstat(dir).unwrap().st_ino
    }

    fn inode_at(path: &Path) -> u64 {
        rustix::fs::stat(path).unwrap().st_ino
    }

    #[test]
    fn ones_own_links_are_followed() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        std::fs::create_dir_all(at("a/b")).unwrap();
        symlink("a", at("relative")).unwrap();
        symlink(at("relative"), at("absolute")).unwrap();
        symlink("../a/./b/../b", at("a/up")).unwrap();
        for name in ["a/b", "relative/b", "absolute/b", "a/up", "absolute/../a/b"] {
            assert_eq!(inode(&open(&at(name), true).unwrap()), inode_at(&at("a/b")), "{name}");
        }
        symlink("loop", at("loop")).unwrap();
        assert!(open(&at("loop"), true).unwrap_err().message.contains("loop"));
    }

    #[test]
    fn missing_directories_are_created_behind_links() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        symlink("target", at("link")).unwrap();
        let made = open(&at("link/x/y"), true).unwrap();
        assert_eq!(inode(&made), inode_at(&at("target/x/y")));
        let mode = rustix::fs::stat(at("target/x")).unwrap().st_mode;
        assert_eq!(mode & 0o777, 0o700);
    }

    #[test]
    fn links_of_proc_lead_where_the_kernel_says() {
        let home = tempfile::tempdir().unwrap();
        let path = PathBuf::from(format!("/proc/self/root{}", home.path().display()));
        assert_eq!(inode(&open(&path, true).unwrap()), inode_at(home.path()));
        let file = std::fs::File::open(home.path()).unwrap();
        use std::os::fd::AsRawFd;
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        std::fs::create_dir(home.path().join("gone")).unwrap();
        assert_eq!(inode(&open(&path, true).unwrap()), inode_at(home.path()));
    }
}
