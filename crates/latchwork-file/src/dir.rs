//! The lock directory, held open: a name in it leads to the same place for as long as it is used.
//!
//! A path may lead elsewhere tomorrow: a link in it is switched, a directory moved. Whoever then
//! locked a file here and wrote one there would exclude nobody. So everything goes by this
//! descriptor, and the path serves only to tell whether the others still come here by it.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::{Errno, retry_on_intr};

/// A directory that is open.
#[derive(Debug)]
pub(crate) struct Dir {
    path: PathBuf,
    fd: OwnedFd,
}

impl Dir {
    /// Opens what an absolute path leads to now.
    pub(crate) fn open(path: PathBuf) -> Result<Arc<Self>, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = retry_on_intr(|| rustix::fs::open(&path, flags, Mode::empty()))?;
        Ok(Arc::new(Self { path, fd }))
    }

    /// Its path as it was when it was opened.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Its descriptor, which serves only to find what is in it.
    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
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

impl Entry {
    /// The name as a path, for people and for whoever wants to know where the path leads.
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

    /// Opens the file; never through a link, and not to be inherited.
    pub(crate) fn open(&self, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        retry_on_intr(|| rustix::fs::openat(&self.dir.fd, &self.name, flags, mode))
    }

    /// Makes a new file with exactly this mode, and opens it.
    pub(crate) fn create(&self, mode: Mode) -> Result<OwnedFd, Errno> {
        let file = self.open(OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, mode)?;
        // Again, which the umask does not narrow.
        rustix::fs::fchmod(&file, mode)?;
        Ok(file)
    }

    /// Makes a named pipe with exactly this mode, and opens it for reading and writing.
    pub(crate) fn create_pipe(&self, mode: Mode) -> Result<OwnedFd, Errno> {
        rustix::fs::mknodat(&self.dir.fd, &self.name, FileType::Fifo, mode, 0)?;
        let pipe = self.open(OFlags::RDWR | OFlags::NONBLOCK, Mode::empty())?;
        rustix::fs::fchmod(&pipe, mode)?;
        Ok(pipe)
    }

    /// Makes a directory with exactly this mode, unless there is one.
    pub(crate) fn create_dir(&self, mode: Mode) -> Result<(), Errno> {
        match rustix::fs::mkdirat(&self.dir.fd, &self.name, mode) {
            Ok(()) => rustix::fs::chmodat(&self.dir.fd, &self.name, mode, AtFlags::empty()),
            Err(Errno::EXIST) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Removes the file.
    pub(crate) fn remove(&self) -> Result<(), Errno> {
        rustix::fs::unlinkat(&self.dir.fd, &self.name, AtFlags::empty())
    }

    /// Gives the file another name, in place of whatever has it.
    pub(crate) fn rename(&self, to: &Self) -> Result<(), Errno> {
        rustix::fs::renameat(&self.dir.fd, &self.name, &to.dir.fd, &to.name)
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
        let dir = self.open(OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::new(dir)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(OsString::from_vec(name));
            }
        }
        Ok(names)
    }

    /// Which file has this name in the directory; `None` if none has.
    pub(crate) fn identity(&self) -> Result<Option<Identity>, Errno> {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        found(rustix::fs::statat(&self.dir.fd, &self.name, flags))
    }
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
