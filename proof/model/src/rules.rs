//! What may happen in a model, and which rules its nodes and clients keep.

use crate::state::{CLIENTS, NODES, TTL, Tick, Token};

/// A model: a world, and the rules that nodes and clients keep in it.
#[derive(Debug, Clone)]
pub struct Quorum {
    /// What may happen.
    pub world: World,
    /// What nodes and clients do about it.
    pub rules: Rules,
}

/// What may happen, and for how long it is watched.
#[derive(Debug, Clone)]
pub struct World {
    /// The last moment.
    pub end: Tick,
    /// How many rounds each client may begin.
    pub rounds: [u8; CLIENTS],
    /// How many renewals each hold may begin.
    pub renewals: u8,
    /// How many restarts there may be, of all nodes together.
    pub restarts: u8,
    /// Whether a node may come back with its last snapshot instead of nothing. There is one from
    /// before the first moment.
    pub old_snapshots: bool,
    /// How many other snapshots may be taken, at any moment.
    pub snapshots: u8,
    /// How far the clock of one node may jump ahead, once.
    pub jump: Tick,
    /// How far the wall clock of each client is ahead. Only tokens come from it.
    pub client_clocks: [Tick; CLIENTS],
    /// The largest token that each node remembers at the beginning.
    pub tokens: [Token; NODES],
    /// Whether an answer may be lost though its request arrived.
    pub lost_answers: bool,
    /// Whether the end of a round is a message like others, that may be late or lost, and whether
    /// requests of a round that is over may still arrive.
    ///
    /// If not, a round that ends is gone from all nodes at once, with all that is under way for it.
    /// For exclusion that is no loss: what is left of a round that is over is nobody's vote, it can
    /// only keep a node from granting the key to others. Whoever is granted the key in a run with
    /// leftovers is granted it in the run without them too, where the refused request is late.
    /// Tokens are another matter, for leftovers raise what a node remembers.
    pub slow_ends: bool,
}

/// What nodes and clients do.
#[derive(Debug, Clone)]
pub struct Rules {
    /// What a node does that may have lost its data.
    pub guard: Guard,
    /// How long it grants nothing then.
    pub quarantine: Tick,
    /// From where it learns the tokens that it has forgotten.
    pub relearn: Relearn,
    /// Where tokens come from.
    pub tokens: Tokens,
    /// Which nodes count when the token is confirmed.
    pub confirm: Confirm,
    /// A renewal also counts at a node that had lost the claim and takes it anew.
    pub renewal_counts_replanted: bool,
    /// A renewal also counts when its answer comes after the validity has ended.
    pub renewal_counts_late: bool,
}

/// What a node looks at to tell whether it may have lost data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guard {
    /// Nothing.
    Off,
    /// Whether there is a marker.
    Marker,
    /// Whether there is a marker, and whether its identity is the node's own.
    MarkerWithIdentity,
}

/// From where a node learns the tokens that it has forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relearn {
    /// From nowhere.
    Never,
    /// From the other nodes, when its quarantine begins.
    FromPeersAtOnce,
    /// From the other nodes, when its quarantine is over.
    FromPeersAtTheEnd,
}

/// Where tokens come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tokens {
    /// Everybody counts on from the largest that it knows.
    Counters,
    /// Clients propose by their clocks; nodes count on from the largest that they know.
    ClientClocks,
    /// Clients and nodes go by their clocks.
    AllClocks,
}

/// Which nodes count when the token is confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Confirm {
    /// None has to: the largest answer of the majority is the token.
    Nowhere,
    /// All that remember it.
    Anywhere,
    /// Those that remember it while the claim is live there.
    WhereLive,
}

impl World {
    /// Nothing goes wrong, and everybody tries once.
    pub const CALM: Self = Self {
        end: 4,
        rounds: [1; CLIENTS],
        renewals: 0,
        restarts: 0,
        old_snapshots: false,
        snapshots: 0,
        jump: 0,
        client_clocks: [0; CLIENTS],
        tokens: [0; NODES],
        lost_answers: false,
        slow_ends: false,
    };
}

impl Rules {
    /// What Latchwork does.
    pub const LATCHWORK: Self = Self {
        guard: Guard::MarkerWithIdentity,
        quarantine: TTL,
        relearn: Relearn::Never,
        tokens: Tokens::AllClocks,
        confirm: Confirm::WhereLive,
        renewal_counts_replanted: false,
        renewal_counts_late: false,
    };
}
