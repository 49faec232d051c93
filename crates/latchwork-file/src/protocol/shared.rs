//! What the backend and its tasks share: the directory, the session, the stripes and who lives.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use latchwork_store::kit::record::Now;
use latchwork_store::{BackendError, Backoff, ClaimId, Io};
use tokio::sync::Semaphore;

use crate::disk::failure::removed;
use crate::protocol::pokes::CallerLoop;
use crate::protocol::reserve::Reserve;
use crate::protocol::wakeup::Wakeups;
use crate::records::boot::{Aliases, Era, Lives};
use crate::records::kept::Kept;
use crate::records::layout::{Layout, STRIPES};
use crate::records::session::{self, Life, Session};
use crate::records::stripe::{Locked, Stripe, Try};

/// How many records are worked on before the stripe is given to others.
pub(crate) const BATCH: usize = 64;

/// The pauses between two looks at a stripe that is busy, the first and the longest.
pub(crate) const PAUSES: (Duration, Duration) =
    (Duration::from_micros(200), Duration::from_millis(5));

/// How many lingers are put on the disk at the same time: each takes a thread.
const SYNCS: usize = 8;

/// What the backend shares with its tasks.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) layout: Layout,
    pub(crate) io: Io,
    pub(crate) wakeups: Wakeups,
    pub(crate) caller: CallerLoop,
    boot: u128,
    aliases: Aliases,
    pub(crate) session: Session,
    pub(crate) kept: Kept,
    stripes: Vec<Stripe>,
    pub(crate) reserves: Vec<Reserve>,
    /// The latest claims that were released with a linger: a release that is repeated, because the
    /// disk took too long for the first, is the same one.
    pub(crate) unsynced: Mutex<VecDeque<ClaimId>>,
    pub(crate) syncs: Arc<Semaphore>,
    pub(crate) store: Arc<str>,
    pub(crate) polling: AtomicBool,
    /// A waiter of another user could not be woken for want of rights.
    pub(crate) denied: AtomicBool,
}

impl Shared {
    pub(crate) fn new(layout: Layout, io: Io, boot: u128, session: Session) -> Self {
        let stripe = if session.only_reads() { Stripe::to_read } else { Stripe::new };
        Self {
            store: format!("file://{}", layout.root().display()).into(),
            stripes: (0..STRIPES).map(|i| stripe(layout.stripe(i))).collect(),
            reserves: (0..STRIPES).map(|_| Reserve::default()).collect(),
            unsynced: Mutex::default(),
            syncs: Arc::new(Semaphore::new(SYNCS)),
            aliases: Aliases::default(),
            kept: Kept::default(),
            wakeups: Wakeups::default(),
            caller: CallerLoop::default(),
            polling: AtomicBool::new(false),
            denied: AtomicBool::new(false),
            layout,
            io,
            boot,
            session,
        }
    }

    /// What tells records and counters of this boot from older ones.
    pub(crate) fn era(&self) -> Era<'_> {
        Era { boot: self.boot, lives: self, now: self.now() }
    }

    /// Locks a stripe; `None` if it is gone.
    ///
    /// Another process may be stopped while it has the lock, so this never blocks a thread: it
    /// sleeps until the caller's time limit drops it.
    pub(crate) async fn lock(&self, stripe: usize) -> Result<Option<Locked<'_>>, BackendError> {
        let mut backoff = Backoff::new(PAUSES.0, PAUSES.1);
        loop {
            match self.try_lock(stripe)? {
                Try::Locked(locked) => return Ok(Some(locked)),
                Try::Removed => return Ok(None),
                Try::Busy => {}
            }
            self.io.sleep(backoff.pause()).await;
        }
    }

    /// Locks a stripe unless it is busy.
    pub(crate) fn try_lock(&self, stripe: usize) -> Result<Try<'_>, BackendError> {
        self.stripes[stripe].try_lock()
    }

    /// A stripe.
    pub(crate) fn stripe(&self, stripe: usize) -> &Stripe {
        &self.stripes[stripe]
    }

    /// Where this session is notified to check again.
    pub(crate) fn wake(&self) -> &Arc<OwnedFd> {
        self.session.wake()
    }

    /// Both clocks, read while the stripe is locked, so that they agree with the order of changes.
    pub(crate) fn now(&self) -> Now {
        Now { lease: Duration::from_nanos(self.io.now().as_nanos()), wall: self.io.clock().wall() }
    }

    /// The wall clock, in the unit of tokens.
    pub(crate) fn wall_micros(&self) -> u64 {
        self.io.clock().wall().as_micros() as u64
    }

    pub(crate) fn removed(&self) -> BackendError {
        removed(self.layout.root())
    }

    /// Whether a session lives; the files of a dead one are removed.
    pub(crate) fn alive(&self, tag: u128) -> bool {
        let alive = self.seems_alive(tag);
        if !alive {
            session::remove_if_dead(&self.layout, tag);
        }
        alive
    }

    pub(crate) fn seems_alive(&self, tag: u128) -> bool {
        self.life(tag) != Life::Dead
    }

    /// Says that this process polls for want of descriptors.
    pub(crate) fn note_polling(&self) {
        self.polling.store(true, Ordering::Relaxed);
    }
}

impl Lives for Shared {
    fn life(&self, session: u128) -> Life {
        if session == self.session.id {
            return Life::Alive;
        }
        self.wakeups.known(session).unwrap_or_else(|| session::probe(&self.layout, session))
    }

    fn has_boot(&self, boot: u128) -> bool {
        self.aliases.has(&self.layout, boot)
    }
}
