//! A stripe: the lock for changing records, and the counter of their tokens.
//!
//! Keys share 64 stripe files by their hash. A stripe file is made once and never removed or
//! replaced, since a lock belongs to a file and not to its name. Locked through one description
//! for the whole process, it keeps other processes out and needs a mutex beside it for the tasks
//! of its own.
//!
//! The file holds a header in two slots: the counter, the ceiling, the boot id, and how many
//! record files the stripe has. The counter starts at the wall clock in microseconds and is then
//! only incremented, by one for each grant, so it stays below the clock: a lost header starts
//! again above every token ever given. For a clock that was set back between two boots there is
//! the ceiling: it is on the disk before a token reaches it, and a new boot starts there. A higher
//! one is noted here, put on the disk while the stripe is not locked (`reserve.rs`), and in force
//! after that.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use latchwork_store::clock::boot_time;
use latchwork_store::{BackendError, Effect};
use latchwork_wire::CloseOnFork;
use rustix::buffer::spare_capacity;
use rustix::fs::{FlockOperation, OFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::disk::dir::{Entry, Identity};
use crate::disk::failure::{corrupt, failed_at};
use crate::records::boot::Era;
use crate::records::record_file::write_at;

const MAGIC: u32 = u32::from_le_bytes(*b"LWs1");
const SLOT: usize = 64;

/// How far the ceiling on the disk is ahead of the counter: one sync for this many grants.
const RESERVE: u64 = 10_000;

/// No token that a header may state: 2^53 is more than a token may have, and room is left to count.
const LARGEST: u64 = 1 << 53;

/// How many record files a stripe has before its idle ones are removed.
pub(crate) const SPARE_RECORDS: u32 = 32;

/// How often a busy lock is tried before the task sleeps: the process that has it needs microseconds.
const TRIES: u32 = 50;

/// For how long it is tried at most. Where there is more to do than there are processors, a thread
/// that yields may not run again for milliseconds.
const SPIN: Duration = Duration::from_micros(500);

/// One stripe as this process has it open.
#[derive(Debug)]
pub(crate) struct Stripe {
    at: Entry,
    access: OFlags,
    opened: Mutex<Opened>,
    /// A thread of this process had it for longer than moments: nobody spins until it was free once.
    stuck: AtomicBool,
}

#[derive(Debug, Default)]
struct Opened {
    /// A child would keep what is locked here when this process dies.
    file: Option<(CloseOnFork, Identity)>,
    /// Another process had it for longer than that: nobody spins again until it was free once.
    stuck: bool,
    /// The stripe has too many record files, and the next release here removes the idle ones.
    crowded: bool,
}

impl Stripe {
    pub(crate) fn new(at: Entry) -> Self {
        Self { at, access: OFlags::RDWR, opened: Mutex::default(), stuck: AtomicBool::new(false) }
    }

    /// One whose records are only read: a lock needs no right to write.
    pub(crate) fn to_read(at: Entry) -> Self {
        Self { access: OFlags::RDONLY, ..Self::new(at) }
    }

    /// Locks the stripe, unless another process or thread has it for more than moments: it may be
    /// stopped, or wait for a disk, and waiting for it is the caller's to do.
    ///
    /// What is returned must be dropped before anything is awaited.
    pub(crate) fn try_lock(&self) -> Result<Try<'_>, BackendError> {
        let Some(mut opened) = self.try_lock_here() else { return Ok(Try::Busy) };
        if opened.file.is_none() {
            match self.at.open_file(self.access) {
                Ok((file, stat)) => opened.file = Some((CloseOnFork::new(file), stat.into())),
                Err(Errno::NOENT) => return Ok(Try::Removed),
                Err(errno) => return Err(self.failed("open", errno)),
            }
        }
        let Some((file, identity)) = &opened.file else { return Ok(Try::Busy) };
        let identity = *identity;
        let mut tries = if opened.stuck { TRIES } else { 0 };
        let mut spun_until = None;
        let free = loop {
            match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break true,
                Err(Errno::WOULDBLOCK) => {
                    let now = boot_time();
                    if tries >= TRIES || now >= *spun_until.get_or_insert(now.plus(SPIN)) {
                        break false;
                    }
                    tries += 1;
                    std::thread::yield_now();
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.failed("lock", errno)),
            }
        };
        opened.stuck = !free;
        if !free {
            return Ok(Try::Busy);
        }
        let locked = Locked { stripe: self, opened, header: None };
        // A process that comes now locks the file that has the name now.
        if self.at.identity().map_err(|e| self.failed("examine", e))? != Some(identity) {
            return Ok(Try::Removed);
        }
        Ok(Try::Locked(locked))
    }

    /// Keeps the other threads of this process out. The driver's thread comes here, too, and has
    /// more to do than to wait for one of them.
    fn try_lock_here(&self) -> Option<MutexGuard<'_, Opened>> {
        let mut tries = if self.stuck.load(Ordering::Relaxed) { TRIES } else { 0 };
        let mut spun_until = None;
        loop {
            match self.opened.try_lock() {
                Ok(opened) => {
                    self.stuck.store(false, Ordering::Relaxed);
                    return Some(opened);
                }
                // A panic inside leaves nothing half-done: the two slots see to that.
                Err(TryLockError::Poisoned(opened)) => return Some(opened.into_inner()),
                Err(TryLockError::WouldBlock) => {}
            }
            let now = boot_time();
            if tries >= TRIES || now >= *spun_until.get_or_insert(now.plus(SPIN)) {
                self.stuck.store(true, Ordering::Relaxed);
                return None;
            }
            tries += 1;
            std::thread::yield_now();
        }
    }

    pub(crate) fn failed(&self, doing: &str, errno: Errno) -> BackendError {
        failed_at(&format!("{doing} the stripe file"), &self.at, errno, Effect::NotApplied)
    }
}

/// The result of trying to lock a stripe.
#[derive(Debug)]
pub(crate) enum Try<'a> {
    Locked(Locked<'a>),
    /// Another process or thread has it.
    Busy,
    /// The file is gone or another one, and with it the lock directory as this process knew it.
    Removed,
}

/// A stripe that is locked, in this process and for all others, until this is dropped.
#[derive(Debug)]
pub(crate) struct Locked<'a> {
    stripe: &'a Stripe,
    opened: MutexGuard<'a, Opened>,
    header: Option<Header>,
}

impl Locked<'_> {
    /// The largest token that this stripe is known to have given.
    pub(crate) fn counter(&mut self, era: Era<'_>, wall_micros: u64) -> Result<u64, BackendError> {
        Ok(self.header(era, wall_micros)?.counter)
    }

    /// Whether this token may be given: the ceiling that is on the disk covers it.
    pub(crate) fn covers(
        &mut self,
        token: u64,
        era: Era<'_>,
        wall_micros: u64,
    ) -> Result<bool, BackendError> {
        Ok(token <= self.header(era, wall_micros)?.ceiling)
    }

    /// Notes a token before it is given, and the record file made for it. Answers whether the
    /// ceiling is near.
    pub(crate) fn grant(
        &mut self,
        token: u64,
        new_record: bool,
        era: Era<'_>,
        wall_micros: u64,
    ) -> Result<bool, BackendError> {
        let mut header = self.header(era, wall_micros)?;
        header.counter = header.counter.max(token);
        if new_record {
            header.records = header.records.saturating_add(1);
            self.opened.crowded |= header.records > header.sweep_at;
        }
        let header = self.write(header)?;
        Ok(header.ceiling.saturating_sub(header.counter) < RESERVE / 2)
    }

    /// Notes a higher ceiling, to be put on the disk. Always written again: the system may
    /// count as written what a failed sync has left out.
    pub(crate) fn reserve(
        &mut self,
        token: u64,
        era: Era<'_>,
        wall_micros: u64,
    ) -> Result<Reserved, BackendError> {
        let mut header = self.header(era, wall_micros)?;
        let above = header.counter.max(token).saturating_add(RESERVE);
        header.reserved = header.reserved.max(above).min(LARGEST);
        if header.reserved < token {
            return Err(corrupt("it states that all tokens were given", &self.stripe.at.path()));
        }
        let header = self.write(header)?;
        let file = self.opened.file.as_ref().map(|(file, _)| file.fd().clone());
        let file = file.ok_or_else(|| self.stripe.failed("use", Errno::BADF))?;
        Ok(Reserved { file, ceiling: header.reserved })
    }

    /// Puts a ceiling in force that is on the disk.
    pub(crate) fn raise_ceiling(
        &mut self,
        reserved: &Reserved,
        era: Era<'_>,
        wall_micros: u64,
    ) -> Result<(), BackendError> {
        let mut header = self.header(era, wall_micros)?;
        // The file may have been lost and created again meanwhile.
        let ceiling = reserved.ceiling.min(header.reserved);
        if ceiling <= header.ceiling {
            return Ok(());
        }
        header.ceiling = ceiling;
        self.write(header).map(drop)
    }

    /// Whether the idle records of this stripe should be removed now.
    pub(crate) fn is_crowded(&self) -> bool {
        self.opened.crowded
    }

    /// Notes how many record files were left, and when to check again: at twice as many, so
    /// that a check costs each new file little.
    pub(crate) fn swept(
        &mut self,
        left: u32,
        era: Era<'_>,
        wall_micros: u64,
    ) -> Result<(), BackendError> {
        let mut header = self.header(era, wall_micros)?;
        header.records = left;
        header.sweep_at = left.saturating_mul(2).max(SPARE_RECORDS);
        self.opened.crowded = false;
        self.write(header).map(drop)
    }

    fn header(&mut self, era: Era<'_>, wall_micros: u64) -> Result<Header, BackendError> {
        if let Some(header) = self.header {
            return Ok(header);
        }
        let mut bytes = Vec::with_capacity(2 * SLOT);
        retry_on_intr(|| rustix::io::pread(self.file_ref()?, spare_capacity(&mut bytes), 0))
            .map_err(|errno| self.stripe.failed("read", errno))?;
        let header = Header::newest(&bytes).unwrap_or_default().in_era(era, wall_micros);
        self.header = Some(header);
        Ok(header)
    }

    fn write(&mut self, mut header: Header) -> Result<Header, BackendError> {
        header.sequence += 1;
        let at = header.sequence % 2 * SLOT as u64;
        write_at(self.file()?, &header.to_bytes(), at)
            .map_err(|errno| self.stripe.failed("write", errno))?;
        self.header = Some(header);
        Ok(header)
    }

    fn file(&self) -> Result<&OwnedFd, BackendError> {
        self.file_ref().map_err(|errno| self.stripe.failed("use", errno))
    }

    fn file_ref(&self) -> Result<&OwnedFd, Errno> {
        self.opened.file.as_ref().map(|(file, _)| &**file.fd()).ok_or(Errno::BADF)
    }
}

/// A ceiling that was noted and is not known to be on the disk.
#[derive(Debug, Clone)]
pub(crate) struct Reserved {
    file: Arc<OwnedFd>,
    ceiling: u64,
}

impl Reserved {
    /// Waits until it is on the disk. Blocks for as long as the disk takes.
    pub(crate) fn sync(&self) -> Result<(), Errno> {
        retry_on_intr(|| rustix::fs::fdatasync(&*self.file))
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if let Ok(file) = self.file_ref() {
            let _ = rustix::fs::flock(file, FlockOperation::Unlock);
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Header {
    sequence: u64,
    boot: u128,
    counter: u64,
    /// No token above it is given.
    ceiling: u64,
    /// The next ceiling, written and perhaps not on the disk yet.
    reserved: u64,
    records: u32,
    sweep_at: u32,
}

impl Default for Header {
    fn default() -> Self {
        Self {
            sequence: 0,
            boot: 0,
            counter: 0,
            ceiling: 0,
            reserved: 0,
            records: 0,
            sweep_at: SPARE_RECORDS,
        }
    }
}

impl Header {
    /// The header to go on with in this boot.
    fn in_era(self, era: Era<'_>, wall_micros: u64) -> Self {
        if era.is_now(self.boot) {
            return self;
        }
        let counter = self.ceiling.max(self.reserved).max(self.counter).max(wall_micros);
        // Nothing above the counter is reserved on the disk, so the first grant syncs.
        Self { boot: era.boot, counter, ceiling: counter, reserved: counter, ..self }
    }

    fn newest(bytes: &[u8]) -> Option<Self> {
        bytes.chunks_exact(SLOT).filter_map(Self::from_bytes).max_by_key(|h| h.sequence)
    }

    fn to_bytes(self) -> [u8; SLOT] {
        let mut bytes = [0; SLOT];
        bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.boot.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.counter.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.ceiling.to_le_bytes());
        bytes[48..52].copy_from_slice(&self.records.to_le_bytes());
        bytes[52..56].copy_from_slice(&self.sweep_at.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.reserved.to_le_bytes());
        let sum = crc32fast::hash(&bytes[8..]);
        bytes[4..8].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let half = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        if half(0)? != MAGIC || half(4)? != crc32fast::hash(bytes.get(8..)?) {
            return None;
        }
        let header = Self {
            sequence: word(8)?,
            boot: u128::from_le_bytes(bytes.get(16..32)?.try_into().ok()?),
            counter: word(32)?,
            ceiling: word(40)?,
            records: half(48)?,
            sweep_at: half(52)?,
            reserved: word(56)?,
        };
        let tokens = [header.counter, header.ceiling, header.reserved];
        // Nobody counts so far; it would leave no room for a token.
        let countable = tokens.into_iter().all(|n| n <= LARGEST) && header.sequence < u64::MAX / 2;
        countable.then_some(header)
    }
}

#[cfg(test)]
mod tests;
