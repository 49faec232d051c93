//! Opening names below a directory without ever leaving it.
//!
//! A user who may write in a shared directory may put a link there, also in place of a directory in it,
//! and also in the instant between a check and a use. So the kernel resolves each name in one step
//! that follows no link and leaves neither the directory nor its mount (`openat2`). A kernel or a
//! sandbox without that call gets the same by steps: each directory is opened without following a
//! link, and the next name is looked up in what was opened.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::{Errno, retry_on_intr};

/// Nothing opened here is inherited, blocks, follows a link or becomes a controlling terminal.
const ALWAYS: OFlags =
    OFlags::CLOEXEC.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// The same for what is opened only to be looked at.
const LOOK: OFlags = OFlags::CLOEXEC.union(OFlags::NOFOLLOW);

/// An open directory by itself, to find names in.
const PLACE: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

/// How often an answer that depends on what others do just now is asked for again.
const TRIES: u32 = 16;

/// Set once this kernel has shown that it cannot resolve names in one step.
static BY_STEPS: AtomicBool = AtomicBool::new(false);

/// Opens a file below `dir`.
pub(crate) fn open(
    dir: impl AsFd,
    name: &Path,
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    // A file that is opened to be looked at alone takes no other flags.
    let flags = if flags.contains(OFlags::PATH) { flags | LOOK } else { flags | ALWAYS };
    resolve(dir, name, flags, mode)
}

/// Opens a directory below `dir` as a place to find names in.
pub(crate) fn open_place(dir: impl AsFd, name: &Path) -> Result<OwnedFd, Errno> {
    resolve(dir, name, PLACE, Mode::empty())
}

fn resolve(dir: impl AsFd, name: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    if BY_STEPS.load(Ordering::Relaxed) {
        return by_steps(dir, name, flags, mode);
    }
    match at_once(&dir, name, flags, mode) {
        // A sandbox may answer that it does not permit what it does not know. If the call itself is
        // refused, it is refused for the directory, too.
        Err(errno @ (Errno::NOSYS | Errno::PERM | Errno::INVAL))
            if at_once(&dir, Path::new("."), PLACE, Mode::empty()).is_err() =>
        {
            let opened = by_steps(dir, name, flags, mode);
            if opened.is_ok() || errno == Errno::NOSYS {
                BY_STEPS.store(true, Ordering::Relaxed);
            }
            opened
        }
        opened => opened,
    }
}

fn at_once(dir: impl AsFd, name: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let mut tries = 0;
    loop {
        tries += 1;
        match retry_on_intr(|| rustix::fs::openat2(&dir, name, flags, mode, within)) {
            // Something was renamed meanwhile.
            Err(Errno::AGAIN) if tries < TRIES => {}
            opened => return opened,
        }
    }
}

fn by_steps(dir: impl AsFd, name: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    let mut names = name.iter();
    let Some(last) = names.next_back() else { return Err(Errno::NOENT) };
    let mut place: Option<OwnedFd> = None;
    for step in names {
        let at = place.as_ref().map_or(dir.as_fd(), AsFd::as_fd);
        let next = retry_on_intr(|| rustix::fs::openat(at, step, PLACE, Mode::empty()))?;
        place = Some(next);
    }
    let at = place.as_ref().map_or(dir.as_fd(), AsFd::as_fd);
    retry_on_intr(|| rustix::fs::openat(at, last, flags, mode))
}

#[cfg(test)]
mod tests {
    use std::fs::{create_dir_all, write};
    use std::os::unix::fs::symlink;

    use super::*;

    type Way = fn(&OwnedFd, &Path, OFlags, Mode) -> Result<OwnedFd, Errno>;
    const WAYS: [Way; 2] =
        [|d, n, f, m| at_once(d, n, f | ALWAYS, m), |d, n, f, m| by_steps(d, n, f | ALWAYS, m)];

    /// H90: no name leads out of the directory, with and without the call that resolves it at once.
    #[test]
    fn h90_no_name_leads_outside() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        create_dir_all(at("in/a/b")).unwrap();
        create_dir_all(at("out")).unwrap();
        write(at("out/file"), "").unwrap();
        write(at("in/a/b/file"), "").unwrap();
        symlink(at("out"), at("in/absolute")).unwrap();
        symlink("../out", at("in/relative")).unwrap();
        symlink("a", at("in/inner")).unwrap();
        symlink("file", at("in/a/b/link")).unwrap();
        let dir = std::fs::File::open(at("in")).unwrap().into();
        for (number, open) in WAYS.iter().enumerate() {
            let open = |name: &str, flags| open(&dir, Path::new(name), flags, Mode::empty());
            open("a/b/file", OFlags::RDWR).unwrap();
            for name in ["absolute/file", "relative/file", "inner/b/file", "a/b/link"] {
                let errno = open(name, OFlags::RDWR).unwrap_err();
                let refused = matches!(errno, Errno::LOOP | Errno::NOTDIR);
                assert!(refused, "{name}, way {number}: {errno}");
            }
            let mode = Mode::RUSR | Mode::WUSR;
            for name in ["absolute/new", "relative/new"] {
                let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
                WAYS[number](&dir, Path::new(name), flags, mode).unwrap_err();
            }
            assert_eq!(open("a/none", OFlags::RDWR).unwrap_err(), Errno::NOENT);
        }
        assert_eq!(std::fs::read_dir(at("out")).unwrap().count(), 1);
    }

    #[test]
    fn a_pipe_instead_of_a_file_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, Mode::RWXU).unwrap();
        let dir = std::fs::File::open(home.path()).unwrap().into();
        for open in WAYS {
            open(&dir, Path::new("pipe"), OFlags::RDONLY, Mode::empty()).unwrap();
        }
    }
}
