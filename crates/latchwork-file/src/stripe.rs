//! A stripe: the lock under which records are changed, and the counter their tokens come from.
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
//! the ceiling: it is on the disk before a token reaches it, and a new boot starts there.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use latchwork_core::clock::boot_time;
use latchwork_core::{BackendError, CloseOnFork, Effect};
use rustix::buffer::spare_capacity;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::dir::{Entry, Identity};
use crate::failure::failed;
use crate::record_file::write_at;

const MAGIC: u32 = u32::from_le_bytes(*b"LWs1");
const SLOT: usize = 64;

/// How far the ceiling on the disk is ahead of the counter: one sync for this many grants.
const RESERVE: u64 = 10_000;

/// How many record files a stripe has before its idle ones are removed.
pub(crate) const SPARE_RECORDS: u32 = 32;

/// How often a busy lock is tried before the task sleeps: whoever has it needs microseconds.
const TRIES: u32 = 50;

/// For how long it is tried at most. Where there is more to do than there are processors, a thread
/// that yields may not run again for milliseconds.
const SPIN: Duration = Duration::from_micros(500);

/// One stripe as this process has it open.
#[derive(Debug)]
pub(crate) struct Stripe {
    at: Entry,
    opened: Mutex<Opened>,
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
        Self { at, opened: Mutex::default() }
    }

    /// Locks the stripe, unless another process has it for more than moments: it may be stopped,
    /// and waiting for it is the caller's to do.
    ///
    /// What is returned must be dropped before anything is awaited.
    pub(crate) fn try_lock(&self) -> Result<Try<'_>, BackendError> {
        // A panic inside leaves nothing half-done: the two slots see to that.
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if opened.file.is_none() {
            match self.at.open(OFlags::RDWR, Mode::empty()) {
                Ok(file) => {
                    let stat = rustix::fs::fstat(&file).map_err(|e| self.failed("look at", e))?;
                    opened.file = Some((CloseOnFork::new(file), stat.into()));
                }
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
        // Whoever comes now locks the file that has the name now.
        if self.at.identity().map_err(|e| self.failed("look at", e))? != Some(identity) {
            return Ok(Try::Removed);
        }
        Ok(Try::Locked(locked))
    }

    fn failed(&self, doing: &str, errno: Errno) -> BackendError {
        failed(&format!("{doing} the stripe file"), &self.at.path(), errno, Effect::NotApplied)
    }
}

/// What came of trying to lock a stripe.
#[derive(Debug)]
pub(crate) enum Try<'a> {
    Locked(Locked<'a>),
    /// Another process has it.
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
    pub(crate) fn counter(&mut self, boot: u128, wall_micros: u64) -> Result<u64, BackendError> {
        Ok(self.header(boot, wall_micros)?.counter)
    }

    /// Notes a token before it is given, and the record file made for it.
    pub(crate) fn grant(
        &mut self,
        token: u64,
        new_record: bool,
        boot: u128,
        wall_micros: u64,
    ) -> Result<(), BackendError> {
        let mut header = self.header(boot, wall_micros)?;
        header.counter = header.counter.max(token);
        if new_record {
            header.records = header.records.saturating_add(1);
            self.opened.crowded |= header.records > header.sweep_at;
        }
        if header.counter > header.ceiling {
            // It counts as the ceiling only once it is known to be on the disk.
            header.reserved = header.counter.saturating_add(RESERVE);
            header = self.write(header)?;
            retry_on_intr(|| rustix::fs::fdatasync(self.file_ref()?))
                .map_err(|errno| self.stripe.failed("put on the disk", errno))?;
            header.ceiling = header.reserved;
        }
        self.write(header).map(drop)
    }

    /// Whether the idle records of this stripe should be removed now.
    pub(crate) fn is_crowded(&self) -> bool {
        self.opened.crowded
    }

    /// Notes how many record files were left, and when to look again: at twice as many, so that
    /// looking costs each new file little.
    pub(crate) fn swept(
        &mut self,
        left: u32,
        boot: u128,
        wall_micros: u64,
    ) -> Result<(), BackendError> {
        let mut header = self.header(boot, wall_micros)?;
        header.records = left;
        header.sweep_at = left.saturating_mul(2).max(SPARE_RECORDS);
        self.opened.crowded = false;
        self.write(header).map(drop)
    }

    fn header(&mut self, boot: u128, wall_micros: u64) -> Result<Header, BackendError> {
        if let Some(header) = self.header {
            return Ok(header);
        }
        let mut bytes = Vec::with_capacity(2 * SLOT);
        retry_on_intr(|| rustix::io::pread(self.file_ref()?, spare_capacity(&mut bytes), 0))
            .map_err(|errno| self.stripe.failed("read", errno))?;
        let header = Header::newest(&bytes).unwrap_or_default().in_boot(boot, wall_micros);
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
    fn in_boot(self, boot: u128, wall_micros: u64) -> Self {
        if self.boot == boot {
            return self;
        }
        let counter = self.ceiling.max(self.reserved).max(wall_micros);
        // Nothing above the counter is reserved on the disk, so the first grant syncs.
        Self { boot, counter, ceiling: counter, reserved: counter, ..self }
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
        Some(Self {
            sequence: word(8)?,
            boot: u128::from_le_bytes(bytes.get(16..32)?.try_into().ok()?),
            counter: word(32)?,
            ceiling: word(40)?,
            records: half(48)?,
            sweep_at: half(52)?,
            reserved: word(56)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::dir::entry_at;

    const WALL: u64 = 1_800_000_000_000_000;

    fn grants(stripe: &Stripe, boot: u128, wall: u64, count: u64) -> Vec<u64> {
        (0..count)
            .map(|_| {
                let Try::Locked(mut locked) = stripe.try_lock().unwrap() else { panic!("busy") };
                let token = locked.counter(boot, wall).unwrap() + 1;
                locked.grant(token, false, boot, wall).unwrap();
                token
            })
            .collect()
    }

    fn stripe() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("00");
        std::fs::write(&path, "").unwrap();
        (dir, path)
    }

    #[test]
    fn the_counter_starts_at_the_clock_and_grows_by_one() {
        let (_dir, path) = stripe();
        assert_eq!(grants(&Stripe::new(entry_at(&path)), 1, WALL, 2), [WALL + 1, WALL + 2]);
        // Another process of the same boot, and a clock that was set back.
        assert_eq!(grants(&Stripe::new(entry_at(&path)), 1, WALL / 2, 2), [WALL + 3, WALL + 4]);
    }

    #[test]
    fn h82_another_boot_starts_above_the_ceiling_or_the_clock() {
        let (_dir, path) = stripe();
        grants(&Stripe::new(entry_at(&path)), 1, WALL, 3);
        let header = Header::newest(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(header.ceiling, WALL + 1 + RESERVE);
        // What the disk kept may be as old as the last sync.
        let back = grants(&Stripe::new(entry_at(&path)), 2, WALL / 2, 1)[0];
        assert!(back > header.ceiling);
        let ahead = grants(&Stripe::new(entry_at(&path)), 3, WALL * 2, 1)[0];
        assert_eq!(ahead, WALL * 2 + 1);
    }

    #[test]
    fn h82_a_lost_header_starts_again_at_the_clock() {
        let (_dir, path) = stripe();
        let given = grants(&Stripe::new(entry_at(&path)), 1, WALL, 50);
        for damage in [Vec::new(), vec![0; 128], vec![b'x'; 128], vec![0; 17]] {
            std::fs::write(&path, damage).unwrap();
            let wall = WALL + 1_000;
            let token = grants(&Stripe::new(entry_at(&path)), 1, wall, 1)[0];
            assert!(token > given[49]);
        }
    }

    #[test]
    fn a_torn_header_falls_back_by_one_grant_at_most() {
        let (_dir, path) = stripe();
        let given = grants(&Stripe::new(entry_at(&path)), 1, WALL, 5);
        let mut bytes = std::fs::read(&path).unwrap();
        let newest = Header::newest(&bytes).unwrap().sequence as usize % 2;
        bytes[newest * SLOT + 33] ^= 0xff;
        assert_eq!(Header::newest(&bytes).unwrap().counter, given[3]);
    }

    #[test]
    fn a_lock_held_elsewhere_is_told_and_not_waited_for() {
        let (_dir, path) = stripe();
        let other = std::fs::File::open(&path).unwrap();
        rustix::fs::flock(&other, FlockOperation::LockExclusive).unwrap();
        let stripe = Stripe::new(entry_at(&path));
        assert!(matches!(stripe.try_lock().unwrap(), Try::Busy));
        drop(other);
        assert!(matches!(stripe.try_lock().unwrap(), Try::Locked(_)));
    }

    #[test]
    fn a_removed_stripe_file_is_noticed() {
        let (_dir, path) = stripe();
        let stripe = Stripe::new(entry_at(&path));
        assert!(matches!(stripe.try_lock().unwrap(), Try::Locked(_)));
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(stripe.try_lock().unwrap(), Try::Removed));
        assert!(matches!(Stripe::new(entry_at(&path)).try_lock().unwrap(), Try::Removed));
    }

    #[test]
    fn a_stripe_file_that_gave_its_name_to_another_is_noticed() {
        let (_dir, path) = stripe();
        let stripe = Stripe::new(entry_at(&path));
        assert!(matches!(stripe.try_lock().unwrap(), Try::Locked(_)));
        std::fs::rename(&path, path.with_file_name("kept")).unwrap();
        std::fs::write(&path, "").unwrap();
        assert!(matches!(stripe.try_lock().unwrap(), Try::Removed));
    }
}
