//! The capabilities of a store, as it reports them.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

/// The capabilities of a backend. Primitives check them, never the backend's name.
///
/// Make one with [`least`](Capabilities::least) or [`full`](Capabilities::full), and set what
/// differs.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// The store's address for messages, without secrets: `file:///var/lib/app/locks`.
    pub store: Arc<str>,
    /// The store supports read and write claims.
    pub shared: bool,
    /// The store can replace a read hold with a write hold and back
    /// ([`Claim::beside`](crate::Claim::beside)).
    pub upgrade: bool,
    /// The store supports permit claims.
    pub permits: bool,
    /// Claims with different limits of permits can share a key
    /// ([`Claim::resize`](crate::Claim::resize)).
    pub mixed_limits: bool,
    /// The limit of permits can be set while the key is in use
    /// ([`Backend::resize`](crate::Backend::resize)).
    pub resize: bool,
    /// Blocked claims keep a place in the queue.
    pub fifo: bool,
    /// A release can keep the key closed.
    pub linger: bool,
    /// `wait` returns because the store notifies it, not because of a timer (B7).
    pub push: bool,
    /// Which failures tokens survive.
    pub fencing: Fencing,
    /// The ttls that the store can grant.
    pub ttl: RangeInclusive<Duration>,
    /// The ttl to use if the caller names none.
    pub default_ttl: Duration,
}

impl Capabilities {
    /// Capabilities of a minimal store at this address, with ttls of 50 ms to a day, 30 s by
    /// default.
    pub fn least(store: impl Into<Arc<str>>) -> Self {
        Self {
            store: store.into(),
            shared: false,
            upgrade: false,
            permits: false,
            mixed_limits: false,
            resize: false,
            fifo: false,
            linger: false,
            push: false,
            fencing: Fencing::None,
            ttl: Duration::from_millis(50)..=Duration::from_secs(24 * 60 * 60),
            default_ttl: Duration::from_secs(30),
        }
    }

    /// Capabilities of a store at this address that can do everything; its ttls are those of
    /// [`least`](Self::least).
    pub fn full(store: impl Into<Arc<str>>) -> Self {
        Self {
            shared: true,
            upgrade: true,
            permits: true,
            fifo: true,
            linger: true,
            push: true,
            fencing: Fencing::Linearizable,
            ..Self::least(store)
        }
    }

    /// Returns the capabilities with this promise about tokens.
    #[must_use]
    pub fn with_fencing(self, fencing: Fencing) -> Self {
        Self { fencing, ..self }
    }

    /// Returns the capabilities with these ttls.
    #[must_use]
    pub fn with_ttl(self, ttl: RangeInclusive<Duration>, default_ttl: Duration) -> Self {
        Self { ttl, default_ttl, ..self }
    }
}

/// The failures across which tokens keep growing (B8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fencing {
    /// Across every failure that the store itself survives.
    Linearizable,
    /// Tokens grow while the store keeps its data or, if it lost it, while its clock did not go
    /// back.
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
