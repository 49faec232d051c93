//! The boot of the machine to which a session or a record belongs.
//!
//! What a claim says counts only within one boot: its session lives no longer, and its times are
//! those of a clock that restarts. The kernel's boot id tells boots apart, but some container
//! managers give each container one of its own, so two ids may mean one boot. A lock cannot be
//! mistaken: a session whose life file is locked lives on this kernel, and so does all that was
//! written since it began. So ids that are equal mean the same boot, and ids that differ mean
//! nothing until the sessions were looked at.

use std::collections::HashSet;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use latchwork_store::kit::record::Now;
use latchwork_store::{BackendError, BackendErrorKind, Effect};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use crate::disk::failure::failed;
use crate::records::layout::Layout;
use crate::records::session::{self, Life};

/// What a reader must know to judge what is of this boot.
#[derive(Clone, Copy)]
pub(crate) struct Era<'a> {
    /// The id of this boot, as this process knows it.
    pub(crate) boot: u128,
    pub(crate) lives: &'a dyn Lives,
    /// The clocks of this process.
    pub(crate) now: Now,
}

/// What is known of sessions.
pub(crate) trait Lives {
    /// Whether a session lives.
    fn life(&self, session: u128) -> Life;

    /// Whether a session lives that was begun under this boot id.
    fn has_boot(&self, boot: u128) -> bool;
}

impl Era<'_> {
    /// Whether `boot` is this boot, under its own id or under that of a container.
    pub(crate) fn is_now(&self, boot: u128) -> bool {
        boot == self.boot || self.lives.has_boot(boot)
    }
}

/// The boot ids that turned out to be of this boot.
#[derive(Debug, Default)]
pub(crate) struct Aliases(Mutex<HashSet<u128>>);

impl Aliases {
    /// Whether a session lives that was begun under this boot id. Once one did, it is so for good:
    /// this process does not outlive the boot either.
    pub(crate) fn has(&self, layout: &Layout, boot: u128) -> bool {
        if self.known().contains(&boot) {
            return true;
        }
        // Not under the lock: this reads files.
        let alive = is_lived_in(layout, boot);
        if alive {
            self.known().insert(boot);
        }
        alive
    }

    fn known(&self) -> MutexGuard<'_, HashSet<u128>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_lived_in(layout: &Layout, boot: u128) -> bool {
    let mut sessions = session::all(layout).into_iter();
    sessions.any(|id| is_of(id, boot) && session::probe(layout, id) == Life::Alive)
}

/// A session id under a boot id: the first half tells the boot, the second one is `random`.
pub(crate) fn session_id(boot: u128, random: u128) -> u128 {
    (u128::from(mark(boot)) << 64) | (random & u128::from(u64::MAX))
}

/// Whether a session was begun under this boot id.
pub(crate) fn is_of(session: u128, boot: u128) -> bool {
    (session >> 64) as u64 == mark(boot)
}

fn mark(boot: u128) -> u64 {
    let digest = Sha256::digest(boot.to_be_bytes());
    let mut mark = [0; 8];
    mark.copy_from_slice(&digest[..8]);
    u64::from_be_bytes(mark)
}

/// What tells this boot of the machine from all others, as far as this process can see.
pub(crate) fn id() -> Result<u128, BackendError> {
    let path = "/proc/sys/kernel/random/boot_id";
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => match Errno::from_io_error(&error) {
            Some(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => {
                return Err(failed("read", Path::new(path), errno, Effect::NotApplied));
            }
            _ => String::new(),
        },
    };
    parse(&text).ok_or_else(|| {
        BackendError::new(
            BackendErrorKind::Unsupported,
            Effect::NotApplied,
            format!("cannot read {path}, which identifies the current boot"),
        )
        .with_next_step("mount /proc in this container")
    })
}

fn parse(text: &str) -> Option<u128> {
    u128::from_str_radix(&text.trim().replace('-', ""), 16).ok()
}

/// The error for a record of another boot id that names a session which cannot be looked at.
pub(crate) fn undecided(record: &str, life: &str) -> BackendError {
    BackendError::new(
        BackendErrorKind::Denied,
        Effect::NotApplied,
        format!(
            "{record} was written under another boot id (before a reboot, or in a container with \
             its own). Latchwork cannot tell which: {life} cannot be opened"
        ),
    )
    .with_next_step(
        "give this user the right to read the session files; if the machine was restarted since \
         then, remove that session file",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_records_its_boot_id() {
        let id = session_id(7, u128::MAX);
        assert!(is_of(id, 7) && !is_of(id, 8));
        assert_ne!(session_id(7, 1), session_id(7, 2));
    }
}
