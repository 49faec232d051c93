//! The layout of the lock directory, and its creation.
//!
//! ```text
//! latchwork.format           the version of this layout
//! stripes/00 ... 3f          locked while a record of the stripe is read or changed; never removed
//! records/00 ... 3f/<hash>   a record for each key, named by 40 hex digits of the key's SHA-256
//! sessions/<id>.life         locked by its process for as long as it lives
//! sessions/<id>.wake         where that process is notified to check again
//! ```

mod first_use;

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use latchwork_store::{BackendError, BackendErrorKind, Effect, Key};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use crate::disk::dir::{Dir, Entry};
use crate::disk::failure::{failed, failed_at, foreign, not_set_up, strange};
use crate::disk::owner::{self, Owner};

/// The name under which a larger file is made, in the directory of a stripe's records.
pub(crate) const ASIDE: &str = "growing";

/// How many stripe files there are.
pub(crate) const STRIPES: usize = 64;

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// The directories in it.
const PARTS: [&str; 3] = ["stripes", "records", "sessions"];

/// What marks a lock directory.
const FORMAT_FILE: &str = "latchwork.format";
/// What it says.
const FORMAT: &str = "latchwork-file 1\n";

/// The names in one lock directory, and the modes of what is made in it.
#[derive(Debug)]
pub(crate) struct Layout {
    dir: Arc<Dir>,
    dir_mode: Mode,
    file_mode: Mode,
    owner: Owner,
    /// Others than the owner may make names in it.
    shared: bool,
    /// Nobody can take away what belongs to another user. Where everybody can, it says nothing whose
    /// a part is.
    kept: bool,
}

impl Layout {
    /// Opens a lock directory, creating it if it is missing.
    pub(crate) fn open(dir: &Path) -> Result<Self, BackendError> {
        Self::approach(dir, true)
    }

    /// Opens a lock directory to read it. One that is empty or half made has no locks.
    pub(crate) fn open_to_read(dir: &Path) -> Result<Self, BackendError> {
        let layout = Self::approach(dir, false)?;
        let format = layout.dir.entry(FORMAT_FILE);
        if !layout.is_marked(&format)? {
            layout.refuse_anothers(&format)?;
        }
        Ok(layout)
    }

    fn approach(dir: &Path, makes: bool) -> Result<Self, BackendError> {
        let root = std::path::absolute(dir).map_err(|e| io_failed("resolve", dir, &e))?;
        // A missing directory belongs to this user alone. One that exists says by its own mode
        // who takes part.
        let dir = Dir::approach(root.clone(), makes)?;
        let look = |errno| failed("examine the lock directory", &root, errno, Effect::NotApplied);
        let found = rustix::fs::fstat(dir.fd()).map_err(look)?;
        let mode = found.st_mode;
        // Without the sticky bit: a user who may write here may also replace a record that grew.
        let dir_mode = Mode::from_raw_mode(mode & 0o2777);
        let file_mode = Mode::from_raw_mode(mode & 0o666);
        let owner = Owner::of_stat(&found);
        let shared = mode & 0o022 != 0;
        let kept = !shared || mode & 0o1000 != 0;
        Ok(Self { dir, dir_mode, file_mode, owner, shared, kept })
    }

    /// See [`Dir::keep_from_cleaners`].
    pub(crate) fn keep_from_cleaners(&self) -> Option<OwnedFd> {
        self.dir.keep_from_cleaners()
    }

    /// Creates the format file, directories and stripe files that are missing.
    ///
    /// Also in a directory that was complete: what a temp cleaner took is needed again. A
    /// process that has a removed stripe file open finds that it has lost its name.
    pub(crate) fn fill(&self) -> Result<(), BackendError> {
        let format = self.dir.entry(FORMAT_FILE);
        if !self.is_marked(&format)? {
            self.take_into_use(&format)?;
        }
        for name in PARTS {
            self.make_dir(&self.dir.entry(name))?;
        }
        // The records first: a process that finds a stripe makes records for it.
        self.make_parts("records", FileType::Directory)?;
        self.make_parts("stripes", FileType::RegularFile)
    }

    /// Makes what is missing of the 64 parts of a directory, and checks that all can be trusted.
    ///
    /// A process that takes one lock and ends spends a good part of its time here. So where nobody else can
    /// make names, the list of them says all; elsewhere it is one system call for a part that is there, where
    /// [`make`](Self::make) has three. By a name in an open directory, and of a link itself, nothing
    /// elsewhere can be found but what is mounted there; that is left to `make`.
    fn make_parts(&self, directory: &str, kind: FileType) -> Result<(), BackendError> {
        let parent = self.dir.entry(directory);
        let failed = |errno| failed_at("examine", &parent, errno, Effect::NotApplied);
        let place = parent.open_place().map_err(failed)?;
        let stat = rustix::fs::fstat(&place).map_err(failed)?;
        let device = stat.st_dev;
        let known = if self.says_all_by_names(&stat) { parts_in(&parent, kind) } else { 0 };
        for stripe in (0..STRIPES).filter(|stripe| known >> stripe & 1 == 0) {
            let name = stripe_name(stripe);
            let part = || parent.child(&name);
            match rustix::fs::statat(&place, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) if stat.st_dev == device => self.judge(part, kind, &stat)?,
                _ if kind == FileType::Directory => self.make_dir(&part())?,
                _ => self.make_file(&part())?,
            }
        }
        Ok(())
    }

    /// Whether only those can have put a name into this directory, whose parts would be trusted. Such a part
    /// is looked at again when it is opened.
    fn says_all_by_names(&self, directory: &Stat) -> bool {
        let owner = Owner::of_stat(directory);
        !self.shared && directory.st_mode & 0o022 == 0 && owner::is_trusted(owner, self.owner)
    }

    fn make_dir(&self, entry: &Entry) -> Result<(), BackendError> {
        self.make(entry, FileType::Directory, |mode| entry.create_dir(mode), self.dir_mode)
    }

    fn make_file(&self, entry: &Entry) -> Result<(), BackendError> {
        let create = |mode| entry.create(mode).map(drop);
        self.make(entry, FileType::RegularFile, create, self.file_mode)
    }

    /// Makes a part of the directory unless it is there, and checks that it can be trusted.
    fn make(
        &self,
        entry: &Entry,
        kind: FileType,
        create: impl Fn(Mode) -> Result<(), Errno>,
        mode: Mode,
    ) -> Result<(), BackendError> {
        let failed = |errno| failed_at("create", entry, errno, Effect::NotApplied);
        let stat = match entry.look() {
            Err(Errno::NOENT) => {
                let user = Owner::this_user();
                if self.shared && self.kept && user != self.owner && !user.is_root() {
                    return Err(not_set_up(entry, self.owner));
                }
                match create(mode) {
                    Ok(()) => return Ok(()),
                    // Somebody else has made it in this instant.
                    Err(Errno::EXIST) => entry.look().map_err(failed)?,
                    Err(errno) => return Err(failed(errno)),
                }
            }
            found => found.map_err(failed)?,
        };
        self.judge(|| entry.clone(), kind, &stat)
    }

    /// Checks what is there in place of a part.
    fn judge(
        &self,
        entry: impl Fn() -> Entry,
        kind: FileType,
        stat: &Stat,
    ) -> Result<(), BackendError> {
        let owner = Owner::of_stat(stat);
        let is_file = kind == FileType::RegularFile;
        if FileType::from_raw_mode(stat.st_mode) != kind || (is_file && stat.st_nlink > 1) {
            let (path, what) = (entry().path(), owner::describe(stat));
            let message = format!("{} is {what} and belongs to {owner}", path.display());
            return Err(strange(&message, Effect::NotApplied));
        }
        if self.kept && !owner::is_trusted(owner, self.owner) {
            return Err(foreign(&entry(), owner, self.owner));
        }
        Ok(())
    }

    /// The parts and records that the owner of the directory cannot use, with whose they are.
    pub(crate) fn parts_of_others(&self) -> Vec<(Entry, Owner)> {
        let mut parts = vec![(self.dir.entry(FORMAT_FILE), 0o4)];
        parts.extend(PARTS.map(|name| (self.dir.entry(name), 0o7)));
        for stripe in 0..STRIPES {
            let records = self.records(stripe);
            let names = records.list().unwrap_or_default();
            parts.extend(names.into_iter().map(|name| (records.child(name), 0o6)));
            parts.extend([(records, 0o7), (self.stripe(stripe), 0o6)]);
        }
        let Ok(directory) = rustix::fs::fstat(self.dir.fd()) else { return Vec::new() };
        let is_usable = |stat: &Stat, bits: u32| {
            let has = |shift: u32| (stat.st_mode >> shift) & bits == bits;
            Owner::of_stat(stat) == self.owner
                || has(0)
                || (stat.st_gid == directory.st_gid && has(3))
        };
        let others = parts.into_iter().filter_map(|(entry, bits)| {
            let stat = entry.look().ok().filter(|stat| !is_usable(stat, bits))?;
            Some((entry, Owner::of_stat(&stat)))
        });
        if self.owner.is_root() { Vec::new() } else { others.collect() }
    }

    /// The lock directory.
    pub(crate) fn dir(&self) -> &Dir {
        &self.dir
    }

    /// The path of the lock directory.
    pub(crate) fn root(&self) -> &Path {
        self.dir.path()
    }

    /// The mode of a file made here.
    pub(crate) fn file_mode(&self) -> Mode {
        self.file_mode
    }

    /// A stripe file.
    pub(crate) fn stripe(&self, stripe: usize) -> Entry {
        self.dir.entry("stripes").child(stripe_name(stripe))
    }

    /// Where the records of a stripe lie.
    pub(crate) fn records(&self, stripe: usize) -> Entry {
        self.dir.entry("records").child(stripe_name(stripe))
    }

    /// The record of a key.
    pub(crate) fn record(&self, place: &Place) -> Entry {
        self.dir.entry(place.name())
    }

    /// Where the sessions lie.
    pub(crate) fn sessions(&self) -> Entry {
        self.dir.entry("sessions")
    }

    /// What a session keeps locked while it lives.
    pub(crate) fn life(&self, session: u128) -> Entry {
        self.dir.entry(format!("sessions/{session:032x}.life"))
    }

    /// Where a session is notified to check again.
    pub(crate) fn wake(&self, session: u128) -> Entry {
        self.dir.entry(format!("sessions/{session:032x}.wake"))
    }
}

/// Which parts of this kind lie in a directory, a bit for each. One that the file system does not tell the
/// kind of is left out.
fn parts_in(directory: &Entry, kind: FileType) -> u64 {
    let digit = |byte: u8| DIGITS.iter().position(|&digit| digit == byte);
    let Ok(names) = directory.list_of(kind) else { return 0 };
    names.iter().fold(0, |parts, name| match *name.as_encoded_bytes() {
        [high, low] => match (digit(high), digit(low)) {
            (Some(high), Some(low)) if high < STRIPES / 16 => parts | 1 << (16 * high + low),
            _ => parts,
        },
        _ => parts,
    })
}

/// What a stripe and its records are called.
fn stripe_name(stripe: usize) -> String {
    format!("{stripe:02x}")
}

fn read_text(entry: &Entry) -> Result<String, Errno> {
    use std::io::Read;
    let (file, _) = entry.open_file(OFlags::RDONLY)?;
    let mut text = Vec::new();
    // No version has more to say.
    let read = std::fs::File::from(file).take(100).read_to_end(&mut text);
    read.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::INVAL))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn other_format(entry: &Entry, text: &str) -> BackendError {
    let line: String = text.lines().next().unwrap_or("").chars().take(60).collect();
    let path = entry.path();
    let whose = entry.look().map(|stat| format!(" (of {})", Owner::of_stat(&stat)));
    BackendError::new(
        BackendErrorKind::Unsupported,
        Effect::NotApplied,
        format!(
            "{}{} says {line:?}, and this program supports {:?}",
            path.display(),
            whose.unwrap_or_default(),
            FORMAT.trim()
        ),
    )
    .with_next_step("use the same version of Latchwork in all programs, or another directory")
}

/// Whether a name in the directory of a stripe's records is one that Latchwork gives.
pub(crate) fn is_record(name: &OsStr) -> bool {
    let digit = |b: &u8| b.is_ascii_digit() || (b'a'..=b'f').contains(b);
    name == ASIDE || (name.len() == 40 && name.as_encoded_bytes().iter().all(digit))
}

/// Where a key is kept: its stripe and the name of its record.
///
/// The name is a hash, so every text is a key: no separator, no case folding and no length of the
/// file system can make one key of two. The record holds the key itself to prove it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) stripe: usize,
    hash: [u8; 20],
}

impl Place {
    /// The place of a key.
    pub(crate) fn of(key: &Key) -> Self {
        let digest = Sha256::digest(key.as_str().as_bytes());
        let mut hash = [0; 20];
        hash.copy_from_slice(&digest[..20]);
        Self { stripe: usize::from(hash[0]) % STRIPES, hash }
    }

    /// The name of its record in the directory of the stripe.
    pub(crate) fn file_name(&self) -> String {
        self.name().split_off("records/00/".len())
    }

    /// Where its record lies in the lock directory.
    fn name(&self) -> String {
        let mut name = String::with_capacity(51);
        name.push_str("records/");
        name.push(char::from(DIGITS[self.stripe >> 4]));
        name.push(char::from(DIGITS[self.stripe & 15]));
        name.push('/');
        for byte in self.hash {
            name.push(char::from(DIGITS[usize::from(byte >> 4)]));
            name.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
        name
    }
}

fn io_failed(doing: &str, path: &Path, error: &std::io::Error) -> BackendError {
    let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
    failed(doing, path, errno, Effect::NotApplied)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_its_own_plain_name() {
        let names = ["../x", "/etc/passwd", "a\0b", "a", "A", "ä", "a\u{308}", " a", "a/"];
        let mut seen = Vec::new();
        for name in names.iter().map(|n| (*n).to_owned()).chain(["x".repeat(10_000)]) {
            let place = Place::of(&Key::new(name).unwrap());
            assert!(place.stripe < STRIPES);
            let name = place.name();
            let hash = name.strip_prefix(&format!("records/{:02x}/", place.stripe)).unwrap();
            assert_eq!(hash.len(), 40);
            assert!(hash.bytes().all(|b| b.is_ascii_hexdigit()));
            assert!(!seen.contains(&place));
            seen.push(place);
        }
    }

    #[test]
    fn another_format_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("latchwork.format"), "latchwork-file 7\n").unwrap();
        let error = Layout::open(dir.path()).unwrap().fill().unwrap_err();
        assert_eq!(error.kind, BackendErrorKind::Unsupported);
        assert!(error.message.contains("latchwork-file 7"), "{error}");
    }

    #[test]
    fn files_take_the_mode_of_the_directory() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt};
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o770)).unwrap();
        let layout = Layout::open(dir.path()).unwrap();
        layout.fill().unwrap();
        let mode = |path: &Path| path.metadata().unwrap().mode() & 0o7777;
        assert_eq!(mode(&layout.stripe(63).path()), 0o660);
        assert_eq!(mode(&layout.sessions().path()), 0o770);
        let inner = dir.path().join("a/b");
        Layout::open(&inner).unwrap().fill().unwrap();
        assert_eq!(mode(&inner), 0o700);
    }
}
