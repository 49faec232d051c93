//! The lock directory, held open: a name in it leads to the same place for as long as it is used.
//!
//! A path may lead elsewhere tomorrow: a link in it is switched, a directory moved. A process that
//! then locked a file here and wrote one there would exclude nobody. So everything goes by this
//! descriptor, and the path serves only to tell whether the others still come here by it.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use latchwork_store::BackendError;
use rustix::fs::{AtFlags, FileType, FlockOperation, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::{Errno, retry_on_intr};

use crate::disk::owner::{self, Owner};
use crate::disk::{approach, beneath};

/// The answer for what was opened and is not what belongs there.
pub(crate) const STRANGE: Errno = Errno::MEDIUMTYPE;

/// A directory that is open.
#[derive(Debug)]
pub(crate) struct Dir {
    path: PathBuf,
    fd: OwnedFd,
}

impl Dir {
    /// Opens what an absolute path leads to now, to look at it.
    pub(crate) fn open(path: PathBuf) -> Result<Arc<Self>, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = retry_on_intr(|| rustix::fs::open(&path, flags, Mode::empty()))?;
        Ok(Arc::new(Self { path, fd }))
    }

    /// Opens what an absolute path leads to now, to work in it or to read it. What is missing is made, if it is to be
    /// made.
    pub(crate) fn approach(path: PathBuf, makes: bool) -> Result<Arc<Self>, BackendError> {
        let fd = approach::open(&path, makes)?;
        Ok(Arc::new(Self { path, fd }))
    }

    /// Gives what root has just made here to the owner of the directory, who could not use it otherwise. If that
    /// cannot be, it stays root's, as in a container whose root may own nothing of others.
    fn give_to_owner(&self, made: impl AsFd) {
        let Ok(directory) = rustix::fs::fstat(&self.fd) else { return };
        if !Owner::this_user().is_root() || Owner::of_stat(&directory).is_root() {
            return;
        }
        let user = Some(Uid::from_raw(directory.st_uid));
        let _ = rustix::fs::fchown(made, user, Some(Gid::from_raw(directory.st_gid)));
    }

    /// Its path as it was when it was opened.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Its descriptor, which serves only to find what is in it.
    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Locks the directory itself against cleaners that ask first, as systemd-tmpfiles does: it leaves alone what is
    /// locked, with all below it, however old. `None` if that cannot be; nothing else depends on it.
    pub(crate) fn keep_from_cleaners(&self) -> Option<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, ".", flags, Mode::empty()).ok()?;
        rustix::fs::flock(&fd, FlockOperation::NonBlockingLockShared).ok()?;
        Some(fd)
    }

    /// Whether its path still leads here.
    pub(crate) fn can_be_found(&self) -> Result<bool, Errno> {
        let here = Identity::from(rustix::fs::fstat(&self.fd)?);
        Ok(found(rustix::fs::stat(&self.path))? == Some(here))
    }

    /// A name in it, whether there is such a file or not.
    pub(crate) fn entry(self: &Arc<Self>, name: impl Into<PathBuf>) -> Entry {
        Entry { dir: self.clone(), name: name.into() }
    }
}

/// A name in a directory.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    dir: Arc<Dir>,
    name: PathBuf,
}

/// What tells a file from all others, as long as it is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
}

/// The directory that a name lies in, and the name in there.
struct Parent<'a> {
    dir: &'a Dir,
    opened: Option<OwnedFd>,
    name: &'a OsStr,
}

impl AsFd for Parent<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.opened.as_ref().unwrap_or(&self.dir.fd).as_fd()
    }
}

impl Entry {
    /// The name as a path, for people and for callers that check where the path leads.
    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path.join(&self.name)
    }

    /// The path of the directory.
    pub(crate) fn root(&self) -> &Path {
        &self.dir.path
    }

    /// Another name beside this one.
    pub(crate) fn sibling(&self, name: &str) -> Self {
        Self { dir: self.dir.clone(), name: self.name.with_file_name(name) }
    }

    /// A name below this one.
    pub(crate) fn child(&self, name: impl AsRef<Path>) -> Self {
        Self { dir: self.dir.clone(), name: self.name.join(name) }
    }

    fn parent(&self) -> Result<Parent<'_>, Errno> {
        let name = self.name.file_name().ok_or(Errno::INVAL)?;
        let opened = match self.name.parent() {
            Some(parent) if parent != Path::new("") => {
                Some(beneath::open_place(&self.dir.fd, parent)?)
            }
            _ => None,
        };
        Ok(Parent { dir: &self.dir, opened, name })
    }

    fn open(&self, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
        beneath::open(&self.dir.fd, &self.name, flags, mode)
    }

    /// Opens a directory as a place to find names in.
    pub(crate) fn open_place(&self) -> Result<OwnedFd, Errno> {
        beneath::open_place(&self.dir.fd, &self.name)
    }

    fn open_kind(&self, kind: FileType, access: OFlags) -> Result<(OwnedFd, Stat), Errno> {
        let file = self.open(access, Mode::empty())?;
        let stat = rustix::fs::fstat(&file)?;
        // Another kind, or a second name elsewhere: somebody put it here to have it written to.
        if owner::is_plain(&stat, kind) { Ok((file, stat)) } else { Err(STRANGE) }
    }

    /// Opens a file; `STRANGE` if it is none, or has a second name.
    pub(crate) fn open_file(&self, access: OFlags) -> Result<(OwnedFd, Stat), Errno> {
        self.open_kind(FileType::RegularFile, access)
    }

    /// Opens a named pipe; `STRANGE` if it is none, or has a second name.
    pub(crate) fn open_pipe(&self, access: OFlags) -> Result<OwnedFd, Errno> {
        self.open_kind(FileType::Fifo, access).map(|(pipe, _)| pipe)
    }

    /// Looks at whatever has the name, also at a link.
    pub(crate) fn look(&self) -> Result<Stat, Errno> {
        rustix::fs::fstat(self.open(OFlags::PATH, Mode::empty())?)
    }

    /// Makes a new file with exactly this mode, and opens it.
    pub(crate) fn create(&self, mode: Mode) -> Result<OwnedFd, Errno> {
        let file = self.open(OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, mode)?;
        // Again, which the umask does not narrow.
        rustix::fs::fchmod(&file, mode)?;
        self.dir.give_to_owner(&file);
        Ok(file)
    }

    /// Makes a named pipe with exactly this mode, and opens it for reading and writing.
    pub(crate) fn create_pipe(&self, mode: Mode) -> Result<OwnedFd, Errno> {
        let parent = self.parent()?;
        rustix::fs::mknodat(&parent, parent.name, FileType::Fifo, mode, 0)?;
        let (pipe, stat) = match self.open_kind(FileType::Fifo, OFlags::RDWR) {
            // The umask took this user's own rights.
            Err(Errno::ACCESS) => {
                let place = self.open(OFlags::PATH, Mode::empty())?;
                if !owner::is_plain(&rustix::fs::fstat(&place)?, FileType::Fifo) {
                    return Err(STRANGE);
                }
                set_mode_of_place(&place, mode)?;
                self.open_kind(FileType::Fifo, OFlags::RDWR)?
            }
            opened => opened?,
        };
        let pipe = set_mode_of_own(pipe, &stat, mode)?;
        self.dir.give_to_owner(&pipe);
        Ok(pipe)
    }

    /// Makes a directory with exactly this mode.
    pub(crate) fn create_dir(&self, mode: Mode) -> Result<(), Errno> {
        let parent = self.parent()?;
        rustix::fs::mkdirat(&parent, parent.name, mode)?;
        let name = Path::new(parent.name);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        match beneath::open(&parent, name, flags, Mode::empty()) {
            Ok(made) => {
                let stat = rustix::fs::fstat(&made)?;
                let made = set_mode_of_own(made, &stat, mode)?;
                // Another's directory with all its files may have taken the name.
                if is_bare(&made).unwrap_or(false) {
                    self.dir.give_to_owner(&made);
                }
                Ok(())
            }
            // The umask took this user's own rights.
            Err(Errno::ACCESS) => set_mode_of_place(&beneath::open_place(&parent, name)?, mode),
            Err(errno) => Err(errno),
        }
    }

    /// Removes the file.
    pub(crate) fn remove(&self) -> Result<(), Errno> {
        let parent = self.parent()?;
        rustix::fs::unlinkat(&parent, parent.name, AtFlags::empty())
    }

    /// Gives the file another name in the same directory, in place of whatever has it.
    pub(crate) fn rename(&self, to: &Self) -> Result<(), Errno> {
        let parent = self.parent()?;
        let to = to.name.file_name().ok_or(Errno::INVAL)?;
        rustix::fs::renameat(&parent, parent.name, &parent, to)
    }

    /// Waits until the names in the directory of this file are on the disk.
    pub(crate) fn sync_parent(&self) -> Result<(), Errno> {
        let Some(parent) = self.name.parent() else { return Ok(()) };
        let parent = Self { dir: self.dir.clone(), name: parent.to_owned() };
        let dir = parent.open(OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        retry_on_intr(|| rustix::fs::fsync(&dir))
    }

    /// The names in this directory.
    pub(crate) fn list(&self) -> Result<Vec<OsString>, Errno> {
        self.list_where(|_| true)
    }

    /// The names in this directory of what the file system says is of this kind.
    pub(crate) fn list_of(&self, kind: FileType) -> Result<Vec<OsString>, Errno> {
        self.list_where(|found| found == kind)
    }

    fn list_where(&self, wanted: impl Fn(FileType) -> bool) -> Result<Vec<OsString>, Errno> {
        let dir = self.open(OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::new(dir)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." && wanted(entry.file_type()) {
                names.push(OsString::from_vec(name.to_vec()));
            }
        }
        Ok(names)
    }

    /// Which file has this name in the directory; `None` if none has. It tells a file from another
    /// one, and finds nothing to work on.
    pub(crate) fn identity(&self) -> Result<Option<Identity>, Errno> {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        found(rustix::fs::statat(&self.dir.fd, &self.name, flags))
    }

    /// What gives the directory's owner back the right to this name; `None` if another than this user is the owner, or
    /// all on the way to it belongs to this user.
    pub(crate) fn owners_remedy(&self) -> Option<String> {
        let directory = rustix::fs::fstat(&self.dir.fd).ok()?;
        if !Owner::of_stat(&directory).is_this_user() {
            return None;
        }
        let mut at = PathBuf::new();
        let foreign = self.name.iter().find_map(|name| {
            at.push(name);
            let entry = Self { dir: self.dir.clone(), name: at.clone() };
            let owner = Owner::of_stat(&entry.look().ok()?);
            (!owner.is_this_user()).then(|| (entry.path(), owner))
        });
        let (path, owner) = foreign?;
        let chown = owner::chown(&directory, self.root());
        Some(format!("as root, run `{chown}`, because {} belongs to {owner}", path.display()))
    }

    /// What is in the way where this name should lead, for people; `None` if nothing is.
    pub(crate) fn strange(&self, errno: Errno) -> Option<String> {
        let mut at = PathBuf::new();
        let mut names = self.name.iter().peekable();
        while let Some(name) = names.next() {
            at.push(name);
            let entry = Self { dir: self.dir.clone(), name: at.clone() };
            let stat = entry.look().ok()?;
            let kind = FileType::from_raw_mode(stat.st_mode);
            let last = names.peek().is_none();
            let plain = match kind {
                FileType::Directory => !last,
                FileType::RegularFile | FileType::Fifo => last && stat.st_nlink <= 1,
                _ => false,
            };
            // A pipe in place of a file is strange as well; the caller knows what it wanted.
            if !plain || (last && matches!(errno, STRANGE | Errno::NXIO)) {
                let (path, what) = (entry.path(), owner::describe(&stat));
                let owner = Owner::of_stat(&stat);
                return Some(format!("{} is {what} and belongs to {owner}", path.display()));
            }
        }
        None
    }
}

/// Whether nothing is in a directory.
fn is_bare(dir: &OwnedFd) -> Result<bool, Errno> {
    for entry in rustix::fs::Dir::read_from(dir)? {
        if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Sets the mode of what was just made here: if it is another one's by now, it was swapped.
fn set_mode_of_own(file: OwnedFd, stat: &Stat, mode: Mode) -> Result<OwnedFd, Errno> {
    if !Owner::of_stat(stat).is_this_user() {
        return Err(STRANGE);
    }
    rustix::fs::fchmod(&file, mode)?;
    Ok(file)
}

/// The same for what was opened only as a place, because its mode lets nobody open it otherwise.
pub(crate) fn set_mode_of_place(place: &OwnedFd, mode: Mode) -> Result<(), Errno> {
    if !Owner::of_stat(&rustix::fs::fstat(place)?).is_this_user() {
        return Err(STRANGE);
    }
    // By the descriptor: a name could lead elsewhere by now.
    rustix::fs::chmod(format!("/proc/self/fd/{}", place.as_raw_fd()), mode)
}

/// Which file a path leads to; `None` if to none.
pub(crate) fn identity_at(path: &Path) -> Result<Option<Identity>, Errno> {
    found(rustix::fs::lstat(path))
}

fn found(stat: Result<Stat, Errno>) -> Result<Option<Identity>, Errno> {
    match stat {
        Ok(stat) => Ok(Some(stat.into())),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(errno) => Err(errno),
    }
}

impl From<Stat> for Identity {
    fn from(stat: Stat) -> Self {
        // The fields are of different types by architecture.
        #[allow(clippy::unnecessary_cast, reason = "not on every architecture")]
        Self { device: stat.st_dev as u64, inode: stat.st_ino as u64 }
    }
}

/// The entry at a path, for tests.
#[cfg(test)]
pub(crate) fn entry_at(path: &Path) -> Entry {
    let parent = path.parent().expect("an absolute path").to_owned();
    Dir::open(parent).expect("a directory").entry(path.file_name().expect("a name"))
}
