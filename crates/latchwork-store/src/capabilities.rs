//! What a store can do, as it says itself.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

/// What a backend can do. Primitives ask this, never the backend's name.
///
/// Make one with [`least`](Capabilities::least) or [`full`](Capabilities::full), and set what
/// differs.
#[non_exhaustive]
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
}

impl Capabilities {
    /// A store at this address that can do the least, and grants ttls of 50 ms to a day, 30 s by
    /// default.
    pub fn least(store: impl Into<Arc<str>>) -> Self {
        Self {
            store: store.into(),
            shared: false,
            permits: false,
            fifo: false,
            linger: false,
            push: false,
            fencing: Fencing::None,
            ttl: Duration::from_millis(50)..=Duration::from_secs(24 * 60 * 60),
            default_ttl: Duration::from_secs(30),
        }
    }

    /// A store at this address that can do everything; its ttls are those of
    /// [`least`](Self::least).
    pub fn full(store: impl Into<Arc<str>>) -> Self {
        Self {
            shared: true,
            permits: true,
            fifo: true,
            linger: true,
            push: true,
            fencing: Fencing::Linearizable,
            ..Self::least(store)
        }
    }

    /// The same with tokens that can be relied on so far.
    #[must_use]
    pub fn with_fencing(self, fencing: Fencing) -> Self {
        Self { fencing, ..self }
    }

    /// The same with these ttls.
    #[must_use]
    pub fn with_ttl(self, ttl: RangeInclusive<Duration>, default_ttl: Duration) -> Self {
        Self { ttl, default_ttl, ..self }
    }
}

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
