//! What a client wants to hold, checked before anything is asked of the store.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use latchwork::{Lock, LockManager, MultiLock, Period, RwLock};
use sha2::{Digest, Sha256};

use crate::domain::holds::claims::Print;
use crate::domain::holds::validity::{LONGEST_WAIT, lease};
use crate::domain::service::Service;
use crate::http::error::ApiError;
use crate::http::locks::{ModeWord, Permits};

/// The longest text of a holder or a candidate, in bytes.
const LONGEST_TEXT: usize = 1024;

/// The longest wait of one request, whatever the ttl.
const LONGEST_REQUEST: Duration = Duration::from_secs(60 * 60);

/// One lock, and how to lock it.
#[derive(Debug, Clone)]
pub(crate) struct LockWish {
    pub(crate) name: String,
    pub(crate) mode: ModeWord,
    permits: Option<Permits>,
    fair: bool,
}

impl LockWish {
    /// Checks that the permits are there if, and only if, the mode needs them.
    ///
    /// # Errors
    ///
    /// `Invalid`, which names the field.
    pub(crate) fn new(
        name: String,
        mode: ModeWord,
        permits: Option<Permits>,
        fair: bool,
    ) -> Result<Self, ApiError> {
        match (mode, permits) {
            (ModeWord::Permits, None) => Err(ApiError::invalid(
                "permits: the mode permits needs them",
                "write \"permits\": {\"take\": 1, \"of\": 5}",
            )
            .key(name)),
            (ModeWord::Mutex | ModeWord::Read | ModeWord::Write, Some(_)) => {
                Err(ApiError::invalid("permits: only the mode permits has them", "leave them out")
                    .key(name))
            }
            _ => Ok(Self { name, mode, permits, fair }),
        }
    }

    /// The lock of the library.
    fn lock(&self, locks: &LockManager) -> Lock {
        let lock = match (self.mode, self.permits) {
            (ModeWord::Read, _) => RwLock::read(&locks.rwlock(&self.name)),
            (ModeWord::Write, _) => RwLock::write(&locks.rwlock(&self.name)),
            (ModeWord::Permits, Some(Permits { take, of })) => {
                locks.semaphore(&self.name, of).permits(take)
            }
            (ModeWord::Mutex | ModeWord::Permits, _) => locks.mutex(&self.name),
        };
        if self.fair { lock.fair() } else { lock }
    }

    /// The mode as events and views name it.
    pub(crate) fn word(&self) -> &'static str {
        match self.mode {
            ModeWord::Mutex => "exclusive",
            ModeWord::Read => "read",
            ModeWord::Write => "write",
            ModeWord::Permits => "permits",
        }
    }
}

/// The options that all requests share, as the client wrote them.
#[derive(Debug, Default)]
pub(crate) struct Common {
    pub(crate) ttl_ms: Option<u64>,
    pub(crate) wait_ms: Option<u64>,
    pub(crate) holder: Option<String>,
    pub(crate) max_hold_ms: Option<u64>,
}

/// What to hold.
#[derive(Debug, Clone)]
pub(crate) enum What {
    Locks(Vec<LockWish>),
    Leadership { name: String, candidate: Option<String> },
    Task { name: String, every: Period, words: String },
}

impl What {
    fn names(&self) -> Vec<&str> {
        match self {
            Self::Locks(locks) => locks.iter().map(|lock| &*lock.name).collect(),
            Self::Leadership { name, .. } | Self::Task { name, .. } => vec![name],
        }
    }
}

/// What a client wants to hold, and for how long.
#[derive(Debug, Clone)]
pub(crate) struct Wish {
    pub(crate) what: What,
    pub(crate) ttl: Duration,
    pub(crate) wait: Duration,
    pub(crate) holder: Option<String>,
    max_hold: Option<Duration>,
    /// The ttl at the store.
    lease: Duration,
}

impl Wish {
    pub(crate) fn locks(
        locks: Vec<LockWish>,
        common: Common,
        service: &Service,
    ) -> Result<Self, ApiError> {
        Self::new(What::Locks(locks), common, service)
    }

    /// Checks the options against each other and the store.
    ///
    /// # Errors
    ///
    /// `Invalid`, which names the field.
    pub(crate) fn new(what: What, common: Common, service: &Service) -> Result<Self, ApiError> {
        let ttl = common.ttl_ms.map_or(service.default_ttl(), Duration::from_millis);
        let range = &service.locks.capabilities().ttl;
        let lease = lease(ttl, range).map_err(|error| ApiError::of(&error, None))?;
        let wait = Duration::from_millis(common.wait_ms.unwrap_or(0));
        let longest = (ttl * LONGEST_WAIT).min(LONGEST_REQUEST);
        if wait > longest {
            let message = format!(
                "wait_ms: {} is longer than one request may wait with this ttl, {}",
                wait.as_millis(),
                longest.as_millis()
            );
            return Err(ApiError::invalid(message, "wait for less, and ask again"));
        }
        let max_hold = common.max_hold_ms.map(Duration::from_millis);
        if max_hold.is_some_and(|max| max.is_zero()) {
            return Err(ApiError::invalid(
                "max_hold_ms: zero allows no hold at all",
                "leave it out for no limit",
            ));
        }
        what.names().into_iter().try_for_each(check_name)?;
        check_text("holder", common.holder.as_deref())?;
        if let What::Leadership { candidate, .. } = &what {
            check_text("candidate", candidate.as_deref())?;
        }
        Ok(Self { what, ttl, wait, holder: common.holder, max_hold, lease })
    }

    /// The names of its locks.
    pub(crate) fn names(&self) -> Vec<&str> {
        self.what.names()
    }

    /// The mode of a lock of it, for events.
    pub(crate) fn mode_of(&self, name: &str) -> &'static str {
        match &self.what {
            What::Locks(locks) => {
                locks.iter().find(|lock| lock.name == name).map_or("exclusive", LockWish::word)
            }
            What::Leadership { .. } | What::Task { .. } => "exclusive",
        }
    }

    /// The manager of its locks: the lease at the store is longer than the client's ttl.
    pub(crate) fn manager(&self, locks: &LockManager, holder: &Arc<str>) -> LockManager {
        let manager = locks.clone().ttl(self.lease).holder(holder.clone());
        // A store that frees the locks of a dead process at once must not do so here: the clients of the
        // service live on. So each lease has to end by its time.
        let manager = manager.lock_delay(Duration::from_millis(1));
        match self.max_hold {
            Some(longest) => manager.max_hold(longest),
            None => manager,
        }
    }

    /// The one lock of it, or several.
    pub(crate) fn one_or_several(
        wishes: &[LockWish],
        manager: &LockManager,
    ) -> Result<Lock, MultiLock> {
        match wishes {
            [one] => Ok(one.lock(manager)),
            several => Err(MultiLock::of(several.iter().map(|wish| wish.lock(manager)))),
        }
    }

    /// What it is, to notice another wish under the same `Idempotency-Key`.
    pub(crate) fn print(&self) -> Print {
        let mut text = String::new();
        let (ttl, wait, max) = (self.ttl, self.wait, self.max_hold);
        // Written for a comparison only, so the form does not matter.
        let _ = match &self.what {
            What::Locks(locks) => write!(text, "locks {locks:?}"),
            What::Leadership { name, candidate } => write!(text, "leader {name:?} {candidate:?}"),
            What::Task { name, words, .. } => write!(text, "task {name:?} {words:?}"),
        };
        let _ = write!(text, " {ttl:?} {wait:?} {max:?} {:?}", self.holder);
        Sha256::digest(text.as_bytes()).into()
    }
}

/// Browsers and many clients resolve these in a path, also where they are percent-encoded.
fn check_name(name: &str) -> Result<(), ApiError> {
    if matches!(name, "." | "..") {
        let message = format!("name: {name:?} cannot be written in a path");
        return Err(ApiError::invalid(message, "choose another name").key(name));
    }
    Ok(())
}

fn check_text(field: &str, text: Option<&str>) -> Result<(), ApiError> {
    match text {
        Some(text) if text.len() > LONGEST_TEXT => {
            let message = format!(
                "{field}: it has {} bytes, the longest allowed has {LONGEST_TEXT}",
                text.len()
            );
            Err(ApiError::invalid(message, "write a shorter text"))
        }
        _ => Ok(()),
    }
}
