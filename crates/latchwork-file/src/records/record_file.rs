//! A record on the disk: one file with two slots, written in turn and in place.
//!
//! A change goes into the slot that does not hold the newest record, so a writer that dies at any
//! instant leaves the old record readable, and so does a disk that is full. Renaming a new file
//! into place would do the same and costs many times as much; it is done only when a record
//! outgrows its slots. Everything here happens while the stripe is locked.
//!
//! A slot: magic, checksum, sequence number, boot id, slot capacity, payload length, payload.

use std::os::fd::{AsFd, OwnedFd};

use latchwork_store::kit::record::{Now, Record};
use latchwork_store::{BackendError, Effect, Key};
use latchwork_wire::system::file_size_limit;
use rustix::buffer::spare_capacity;
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::disk::dir::{Entry, Identity};
use crate::disk::failure::{corrupt, failed_at, removed};
use crate::records::boot::{Era, undecided};
use crate::records::closing::Closing;
use crate::records::codec;
use crate::records::layout::ASIDE;
use crate::records::session::Life;

const MAGIC: u32 = u32::from_le_bytes(*b"LWr1");
const HEADER: usize = 40;

/// The capacity of a slot in a new file: two of them are one page.
const SMALLEST: usize = 2048;

/// No slot is larger: far more than the longest key with ten thousand waiters needs.
const LARGEST: usize = 64 << 20;

/// An open record file, or the place of one that is not there.
#[derive(Debug)]
pub(crate) struct RecordFile {
    at: Entry,
    boot: u128,
    file: Option<OwnedFd>,
    capacity: usize,
    newest: Option<usize>,
    sequence: u64,
    /// The payload as it was read, and whether it may be written again as it is.
    payload: Vec<u8>,
    of_this_boot: bool,
    /// The clocks when it was read, and what they make of the closing.
    now: Now,
    closing: Closing,
}

/// What was found in a record file.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) file: RecordFile,
    /// The key that the file says it is for; `None` in an empty one.
    pub(crate) key: Option<Key>,
    pub(crate) record: Record,
}

impl RecordFile {
    fn new(at: Entry, era: Era<'_>) -> Self {
        Self {
            at,
            boot: era.boot,
            file: None,
            capacity: SMALLEST,
            newest: None,
            sequence: 0,
            payload: Vec::new(),
            of_this_boot: true,
            now: era.now,
            closing: Closing::default(),
        }
    }

    /// Opens the record of `key` for a change.
    pub(crate) fn open(
        at: Entry,
        key: &Key,
        era: Era<'_>,
    ) -> Result<(RecordFile, Record), BackendError> {
        Self::reopen(at, None, key, era)
    }

    /// The same by a descriptor of this very file that was kept, if there is one.
    pub(crate) fn reopen(
        at: Entry,
        kept: Option<OwnedFd>,
        key: &Key,
        era: Era<'_>,
    ) -> Result<(RecordFile, Record), BackendError> {
        let opened = kept.map_or_else(|| Self::access(&at, OFlags::RDWR), Ok);
        let found = Self::find(at, era, opened, Some(key))?;
        Ok((found.file, found.record))
    }

    /// Reads the record of `key`.
    pub(crate) fn read_of(at: Entry, key: &Key, era: Era<'_>) -> Result<Record, BackendError> {
        let opened = Self::access(&at, OFlags::RDONLY);
        Ok(Self::find(at, era, opened, Some(key))?.record)
    }

    /// Reads whatever record the file holds.
    pub(crate) fn look(at: Entry, era: Era<'_>) -> Result<Found, BackendError> {
        let opened = Self::access(&at, OFlags::RDONLY);
        Self::find(at, era, opened, None)
    }

    fn access(at: &Entry, access: OFlags) -> Result<OwnedFd, Errno> {
        at.open_file(access).map(|(file, _)| file)
    }

    fn find(
        at: Entry,
        era: Era<'_>,
        opened: Result<OwnedFd, Errno>,
        wanted: Option<&Key>,
    ) -> Result<Found, BackendError> {
        let mut this = RecordFile::new(at, era);
        match opened {
            Ok(file) => this.file = Some(file),
            Err(Errno::NOENT) => {
                return Ok(Found { file: this, key: None, record: Record::default() });
            }
            Err(errno) => return Err(this.failed("open the record", errno)),
        }
        let bytes = this.read()?;
        let Some(slot) = this.choose(&bytes)? else {
            return Ok(Found { file: this, key: None, record: Record::default() });
        };
        let Some((text, mut record, anchor)) = codec::decode(slot.payload) else {
            return Err(this.corrupt("the record has an unknown shape"));
        };
        let key = match wanted {
            Some(key) if key.as_str() == text => None,
            Some(_) => return Err(this.corrupt("the record belongs to another key")),
            None => Some(Key::new(text).map_err(|_| this.corrupt("the record has no key"))?),
        };
        this.sequence = slot.sequence;
        this.of_this_boot = slot.boot == era.boot || this.is_lived_in(&record, era)?;
        if !this.of_this_boot {
            // Nobody lives on from another boot, and its lease clock says nothing in this one.
            // The token and the linger stay.
            record.held.clear();
            record.queue.clear();
            record.open_since = std::time::Duration::ZERO;
        }
        this.closing = Closing::read(&mut record, anchor, era);
        this.payload = slot.payload.to_vec();
        Ok(Found { file: this, key, record })
    }

    /// Whether a session lives that the record names: then it was written in this boot, whatever
    /// boot id its writer had.
    fn is_lived_in(&self, record: &Record, era: Era<'_>) -> Result<bool, BackendError> {
        let mut tags: Vec<u128> = record.held.iter().map(|member| member.tag).collect();
        tags.extend(record.queue.iter().map(|waiter| waiter.tag));
        tags.sort_unstable();
        tags.dedup();
        let mut unknown = None;
        for tag in tags {
            match era.lives.life(tag) {
                Life::Alive => return Ok(true),
                Life::Unknown => unknown = Some(tag),
                Life::Dead => {}
            }
        }
        let Some(tag) = unknown else { return Ok(false) };
        let life = self.at.root().join(format!("sessions/{tag:032x}.life"));
        Err(undecided(&self.at.path().display().to_string(), &life.display().to_string()))
    }

    fn read(&self) -> Result<Vec<u8>, BackendError> {
        let Some(file) = &self.file else { return Ok(Vec::new()) };
        let mut bytes = Vec::with_capacity(4 * SMALLEST);
        read_at(file, &mut bytes).map_err(|errno| self.failed("read the record", errno))?;
        if bytes.len() == bytes.capacity() {
            let size = rustix::fs::fstat(file)
                .map_err(|errno| self.failed("read the record", errno))?
                .st_size as usize;
            if size > 2 * LARGEST {
                return Err(self.corrupt("the file is larger than any record"));
            }
            bytes = Vec::with_capacity(size);
            read_at(file, &mut bytes).map_err(|errno| self.failed("read the record", errno))?;
        }
        Ok(bytes)
    }

    /// The newest readable slot; `None` if nothing was ever written.
    fn choose<'b>(&mut self, bytes: &'b [u8]) -> Result<Option<Slot<'b>>, BackendError> {
        let stated = bytes.get(32..36).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes);
        // The first slot says how large it is; if it is damaged, half of the file is as good.
        let sizes = [stated.unwrap_or(0) as usize, bytes.len() / 2, SMALLEST];
        for size in sizes.into_iter().filter(|n| (SMALLEST..=LARGEST).contains(n)) {
            self.capacity = size;
            let first = Slot::read(&bytes[..size.min(bytes.len())], size);
            let second = bytes.get(size..).and_then(|bytes| Slot::read(bytes, size));
            let (newest, slot) = match (first, second) {
                (Some(first), Some(second)) if second.sequence > first.sequence => (1, second),
                (Some(first), _) => (0, first),
                (None, Some(second)) => (1, second),
                (None, None) => continue,
            };
            self.newest = Some(newest);
            return Ok(Some(slot));
        }
        // A file shorter than its slots was left by a writer that died while creating it: a first
        // record is written from its start to its end, so nothing was granted yet.
        let begun = bytes.starts_with(&MAGIC.to_le_bytes()) || bytes.len() < 4;
        let whole = stated.map(|n| n as usize).filter(|n| n.is_power_of_two());
        let cut_short =
            begun && (bytes.len() < HEADER || whole.is_some_and(|n| bytes.len() < 2 * n));
        if cut_short || bytes.iter().all(|b| *b == 0) {
            return Ok(None);
        }
        Err(self.corrupt("neither slot of the record is readable"))
    }

    /// Whether the file was there.
    pub(crate) fn exists(&self) -> bool {
        self.file.is_some()
    }

    /// Writes the record, unless it is as it was.
    pub(crate) fn write(
        &mut self,
        key: &Key,
        record: &Record,
        mode: Mode,
    ) -> Result<(), BackendError> {
        let mut slot = vec![0; HEADER];
        let times = self.closing.write(record, self.boot, self.now);
        codec::encode(&mut slot, key.as_str(), record, times);
        if self.newest.is_some() && self.of_this_boot && slot[HEADER..] == self.payload[..] {
            return Ok(());
        }
        let outgrown = slot.len() > self.capacity;
        if outgrown {
            // Room to grow on, so that a queue that gets longer is not moved for each waiter.
            self.capacity = (slot.len() * 2).next_power_of_two();
            if self.capacity > LARGEST {
                return Err(self.corrupt("the record is too large"));
            }
        }
        let payload = slot.len() - HEADER;
        slot[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        slot[8..16].copy_from_slice(&(self.sequence + 1).to_le_bytes());
        slot[16..32].copy_from_slice(&self.boot.to_le_bytes());
        slot[32..36].copy_from_slice(&(self.capacity as u32).to_le_bytes());
        slot[36..40].copy_from_slice(&(payload as u32).to_le_bytes());
        let sum = crc32fast::hash(&slot[8..]);
        slot[4..8].copy_from_slice(&sum.to_le_bytes());
        match (self.newest, &self.file) {
            (Some(newest), Some(file)) if !outgrown => {
                let other = 1 - newest;
                write_at(file, &slot, (other * self.capacity) as u64)
                    .map_err(|errno| self.failed("write the record", errno))?;
                self.newest = Some(other);
            }
            (Some(_), Some(_)) => self.replace(slot, mode)?,
            _ => self.create(slot, mode)?,
        }
        self.sequence += 1;
        self.of_this_boot = true;
        Ok(())
    }

    /// Writes a first record: the whole file at once, so that later writes need no more room.
    fn create(&mut self, mut slot: Vec<u8>, mode: Mode) -> Result<(), BackendError> {
        slot.resize(2 * self.capacity, 0);
        let new = self.file.is_none();
        let file = match self.file.take() {
            Some(file) => file,
            None => self.at.create(mode).map_err(|errno| match errno {
                // The directories were there when the backend connected.
                Errno::NOENT => removed(self.at.root()),
                errno => self.failed("create the record", errno),
            })?,
        };
        if let Err(errno) = write_at(&file, &slot, 0) {
            let _ = if new { self.at.remove() } else { rustix::fs::ftruncate(&file, 0) };
            return Err(self.failed("create the record", errno));
        }
        self.file = Some(file);
        self.newest = Some(0);
        Ok(())
    }

    /// Moves to a file with larger slots. The stripe is locked, so nobody else has the file open.
    fn replace(&mut self, mut slot: Vec<u8>, mode: Mode) -> Result<(), BackendError> {
        slot.resize(2 * self.capacity, 0);
        let aside = self.at.sibling(ASIDE);
        // Left by one that died here.
        let _ = aside.remove();
        let moved = aside.create(mode).and_then(|file| {
            write_at(&file, &slot, 0)?;
            aside.rename(&self.at)?;
            Ok(file)
        });
        match moved {
            Ok(file) => {
                self.file = Some(file);
                self.newest = Some(0);
                Ok(())
            }
            Err(errno) => {
                let _ = aside.remove();
                Err(self.failed("enlarge the record", errno))
            }
        }
    }

    /// The file, to be put on the disk when the stripe is unlocked; `None` if there is none.
    pub(crate) fn into_unsynced(self) -> Option<Unsynced> {
        Some(Unsynced { at: self.at, file: self.file? })
    }

    /// The open file.
    pub(crate) fn into_descriptor(self) -> Option<OwnedFd> {
        self.file
    }

    fn corrupt(&self, what: &str) -> BackendError {
        corrupt(what, &self.at.path())
    }

    fn failed(&self, doing: &str, errno: Errno) -> BackendError {
        // A write that failed half-way spoilt only the slot that was not the newest. What the
        // disk did with it after an I/O error, nobody knows.
        let effect = if errno == Errno::IO { Effect::Unknown } else { Effect::NotApplied };
        failed_at(doing, &self.at, errno, effect)
    }
}

/// How often a record that others move meanwhile is put on the disk.
const SYNCS: u32 = 8;

/// A record that was written and may not be on the disk yet.
#[derive(Debug)]
pub(crate) struct Unsynced {
    at: Entry,
    file: OwnedFd,
}

impl Unsynced {
    /// Waits until the record is on the disk, and its name too. Blocks for as long as the disk takes.
    ///
    /// The stripe is not locked meanwhile. If somebody moves the record to a larger file, which has
    /// what this one had, that one is put on the disk as well.
    pub(crate) fn sync(mut self) -> Result<(), BackendError> {
        for _ in 0..SYNCS {
            retry_on_intr(|| rustix::fs::fdatasync(&self.file))
                .and_then(|()| self.at.sync_parent())
                .map_err(|errno| self.failed(errno))?;
            let synced = rustix::fs::fstat(&self.file).map_err(|errno| self.failed(errno))?;
            match self.at.identity() {
                Ok(Some(now)) if now != Identity::from(synced) => {
                    match self.at.open_file(OFlags::RDONLY) {
                        Ok((file, _)) => self.file = file,
                        Err(Errno::NOENT) => return Ok(()),
                        Err(errno) => return Err(self.failed(errno)),
                    }
                }
                Ok(_) => return Ok(()),
                Err(errno) => return Err(self.failed(errno)),
            }
        }
        Err(self.failed(Errno::AGAIN))
    }

    fn failed(&self, errno: Errno) -> BackendError {
        failed_at("put on the disk the record", &self.at, errno, Effect::Unknown)
    }
}

struct Slot<'a> {
    sequence: u64,
    boot: u128,
    payload: &'a [u8],
}

impl<'a> Slot<'a> {
    fn read(bytes: &'a [u8], capacity: usize) -> Option<Self> {
        let (header, rest) = bytes.split_at_checked(HEADER)?;
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| header[at + i]));
        let length = word(36) as usize;
        if word(0) != MAGIC || word(32) as usize != capacity || length > rest.len() {
            return None;
        }
        if word(4) != crc32fast::hash(&bytes[8..HEADER + length]) {
            return None;
        }
        let sequence = u64::from_le_bytes(header[8..16].try_into().ok()?);
        // Nobody counts so far, and the next one must be larger.
        if sequence > u64::MAX / 2 {
            return None;
        }
        Some(Self {
            sequence,
            boot: u128::from_le_bytes(header[16..32].try_into().ok()?),
            payload: &rest[..length],
        })
    }
}

/// Reads from the start until the buffer is full or the file ends.
fn read_at(file: impl AsFd, bytes: &mut Vec<u8>) -> Result<(), Errno> {
    while bytes.len() < bytes.capacity() {
        let at = bytes.len() as u64;
        match rustix::io::pread(&file, spare_capacity(bytes), at) {
            // A file of the usual size is read at once; less than was asked for is its end.
            Ok(0) => break,
            Ok(_) if bytes.len() == 2 * SMALLEST => break,
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Writes all of it, or fails.
pub(crate) fn write_at(file: impl AsFd, mut bytes: &[u8], mut at: u64) -> Result<(), Errno> {
    // Beyond the limit on the size of files, the kernel would end the whole program (SIGXFSZ).
    let limit = file_size_limit().current;
    if limit.is_some_and(|limit| at + bytes.len() as u64 > limit) {
        return Err(Errno::FBIG);
    }
    while !bytes.is_empty() {
        match rustix::io::pwrite(&file, bytes, at) {
            Ok(0) => return Err(Errno::NOSPC),
            Ok(n) => {
                bytes = &bytes[n..];
                at += n as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests;
