//! The owners of files, and the files that a lock directory may contain.

use std::fmt;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{FileType, Stat};
use rustix::io::Errno;

/// A user of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner(u32);

impl Owner {
    pub(crate) fn of_stat(stat: &Stat) -> Self {
        Self(stat.st_uid)
    }

    pub(crate) fn is_root(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn is_this_user(self) -> bool {
        self == Self::this_user()
    }

    pub(crate) fn this_user() -> Self {
        Self(rustix::process::geteuid().as_raw())
    }

    fn name(self) -> Option<String> {
        let users = std::fs::read_to_string("/etc/passwd").ok()?;
        users.lines().find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            (fields.nth(1)?.parse() == Ok(self.0)).then(|| name.to_owned())
        })
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} (uid {})", self.0),
            None => write!(f, "uid {}", self.0),
        }
    }
}

/// To whom an open file belongs.
pub(crate) fn of(file: impl AsFd) -> Result<Owner, Errno> {
    Ok(Owner::of_stat(&rustix::fs::fstat(file)?))
}

/// Whether the directories and stripe files of a lock directory may belong to `owner`: the owner of
/// one may take it away and put another in its place.
pub(crate) fn is_trusted(owner: Owner, of_directory: Owner) -> bool {
    owner == of_directory || owner.is_root() || owner.is_this_user()
}

/// The command that gives a lock directory and all in it to the directory's owner.
pub(crate) fn chown(directory: &Stat, path: &Path) -> String {
    format!("chown -R {}:{} {}", directory.st_uid, directory.st_gid, path.display())
}

/// What is opened for use: nothing else has its kind, and no second name elsewhere.
pub(crate) fn is_plain(stat: &Stat, kind: FileType) -> bool {
    FileType::from_raw_mode(stat.st_mode) == kind && stat.st_nlink <= 1
}

/// What a file is, for people.
pub(crate) fn describe(stat: &Stat) -> String {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Symlink => "a symbolic link".to_owned(),
        FileType::Directory => "a directory".to_owned(),
        FileType::Fifo => with_names("a named pipe", stat),
        FileType::RegularFile => with_names("a file", stat),
        FileType::Socket => "a socket".to_owned(),
        _ => "a device".to_owned(),
    }
}

fn with_names(what: &str, stat: &Stat) -> String {
    match stat.st_nlink {
        0 | 1 => what.to_owned(),
        names => format!("{what} with {names} names (hard links)"),
    }
}
