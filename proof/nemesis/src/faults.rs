//! What is done to workers, and what a caller may do to the store and the network.

use std::io;
use std::str::FromStr;

use crate::luck::Luck;

/// A fault of worker processes, which needs nothing of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientFault {
    /// SIGKILL, and a new process after a moment.
    Kill,
    /// SIGSTOP of one or more, never of all, and SIGCONT after half a ttl to three ttls.
    Stop,
    /// Locks are taken away by force, one after the other.
    Evict,
}

impl FromStr for ClientFault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "kill" => Ok(Self::Kill),
            "stop" => Ok(Self::Stop),
            "evict" => Ok(Self::Evict),
            _ => Err(format!("{text:?} is no fault of a worker; kill, stop and evict are")),
        }
    }
}

/// A fault of the store or the network: given by whoever runs the servers.
///
/// The run calls `strike` at the beginning of a fault window and `heal` at its end, from one
/// thread, and notes both in the history under the name. The store may be unusable in between, but
/// must be usable soon after `heal` has returned.
pub trait Nemesis: Send {
    /// Its name in the history and in lists of allowed exceptions: one word for one kind of fault.
    fn name(&self) -> &str;

    /// Breaks something. What is random in it is drawn from `luck`.
    ///
    /// # Errors
    ///
    /// What kept it from breaking anything; the run fails then.
    fn strike(&mut self, luck: &mut Luck) -> io::Result<()>;

    /// Mends it.
    ///
    /// # Errors
    ///
    /// What kept it from mending; the run fails then.
    fn heal(&mut self) -> io::Result<()>;
}

/// Lists what is left in a store beyond what `inspect` can see: keys, nodes, leases.
pub trait Lister: Send {
    /// What is left now, and should not be. What may stay (markers, counters) is left out.
    ///
    /// # Errors
    ///
    /// What kept it from looking; the run fails then.
    fn leftovers(&mut self) -> io::Result<Vec<String>>;
}
