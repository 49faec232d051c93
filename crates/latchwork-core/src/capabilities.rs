//! What a store can do, as it says itself.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use crate::doorbell::Doorbell;

/// What a backend can do. Primitives ask this, never the backend's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// The store's address for messages, without secrets: `file:///var/lib/app/locks`.
    pub store: Arc<str>,
    /// Read and write claims.
    pub shared: bool,
    /// Permit claims.
    pub permits: bool,
    /// Blocked claims keep a place in line.
    pub fifo: bool,
    /// A release can keep the key closed.
    pub linger: bool,
    /// `wait` returns because of the store, not of a timer (B7).
    pub push: bool,
    /// How far tokens can be relied on.
    pub fencing: Fencing,
    /// The ttls that the store can grant.
    pub ttl: RangeInclusive<Duration>,
    /// The ttl to use when the caller names none.
    pub default_ttl: Duration,
    /// What keeps the session alive in the eyes of the store, where that is a descriptor.
    pub lifeline: Option<Lifeline>,
    /// Where a blocked thread can wait for the store's wake-ups by itself.
    pub doorbell: Option<Doorbell>,
}

/// A descriptor that keeps this backend's session alive for as long as any process has it open.
///
/// A wrapper of commands gives it to a guardian process: then the claims of a killed wrapper stay
/// closed until the guardian has ended the command.
///
/// Give it a duplicate (`try_clone`): the descriptor itself may be one that a forked child does not keep
/// (`CloseOnFork`).
#[cfg(unix)]
#[derive(Debug, Clone)]
pub struct Lifeline(pub Arc<std::os::fd::OwnedFd>);

/// A descriptor that keeps this backend's session alive; there is none on this system.
#[cfg(not(unix))]
#[derive(Debug, Clone)]
pub struct Lifeline(std::convert::Infallible);

impl PartialEq for Lifeline {
    fn eq(&self, other: &Self) -> bool {
        #[cfg(unix)]
        return Arc::ptr_eq(&self.0, &other.0);
        #[cfg(not(unix))]
        match (self.0, other.0) {}
    }
}

impl Eq for Lifeline {}

/// Across which failures tokens keep growing (B8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fencing {
    /// Across every failure that the store itself survives.
    Linearizable,
    /// As long as the store keeps its data or, where it lost it, its clock did not go back.
    WhileDataSurvives,
    /// No promise: tokens are unique at best.
    None,
}

impl fmt::Display for Fencing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fencing::Linearizable => "linearizable",
            Fencing::WhileDataSurvives => "while data survives",
            Fencing::None => "none",
        })
    }
}
