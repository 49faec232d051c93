//! What a node does with a request: `try.lua`, `renew.lua`, `release.lua` and `guard*.lua` of
//! `latchwork-redis`, without the lines of waiters.

use crate::rules::{Confirm, Guard, Quorum, Relearn, Tokens};
use crate::state::{Claim, Lease, Marker, Snapshot, State, TTL, Tick, Token};

/// How many tokens the clock moves on in a tick: more than are given in one.
pub(crate) const TOKENS_PER_TICK: Token = 4;
/// What wall clocks show at the first moment. A clock that is behind still shows something.
const FIRST_MOMENT: Tick = 4;

/// The token that a wall clock stands for.
pub(crate) fn token_of(clock: Tick) -> Token {
    Token::from(clock + FIRST_MOMENT) * TOKENS_PER_TICK
}

impl Quorum {
    /// Asks a node for the key. The answer is the token that the node has given.
    pub(crate) fn grant(
        &self,
        state: &mut State,
        node: usize,
        claim: Claim,
        floor: Token,
    ) -> Option<Token> {
        let open = self.is_open(state, node);
        let clock = self.clock(state, node);
        let lease = Lease { claim, until: clock + TTL };
        let node = &mut state.nodes[node];
        if node.holds(claim) {
            // The same claim again is the same grant, also in quarantine.
            node.key = Some(lease);
            return Some(node.largest);
        }
        if node.key.is_some() || !open {
            return None;
        }
        let by_clock = match self.rules.tokens {
            Tokens::AllClocks => token_of(clock),
            Tokens::Counters | Tokens::ClientClocks => 0,
        };
        node.key = Some(lease);
        node.largest = (node.largest + 1).max(floor).max(by_clock);
        Some(node.largest)
    }

    /// Starts the ttl anew and makes the node remember a token, where the claim is live. False if
    /// it is not there: a renewal brings nothing back.
    pub(crate) fn renew(&self, state: &mut State, node: usize, claim: Claim, floor: Token) -> bool {
        let clock = self.clock(state, node);
        let node = &mut state.nodes[node];
        let replanted = self.rules.renewal_counts_replanted && node.key.is_none();
        let live = node.holds(claim) || replanted;
        if live {
            node.key = Some(Lease { claim, until: clock + TTL });
        }
        if live || self.rules.confirm == Confirm::Anywhere {
            node.largest = node.largest.max(floor);
        }
        live
    }

    /// Frees the key, if it is this claim's.
    pub(crate) fn free(&self, state: &mut State, node: usize, claim: Claim) {
        let node = &mut state.nodes[node];
        if node.holds(claim) {
            node.key = None;
        }
    }

    /// Drops the keys whose time is over.
    pub(crate) fn expire(&self, state: &mut State) {
        for node in 0..state.nodes.len() {
            let clock = self.clock(state, node);
            let node = &mut state.nodes[node];
            node.key = node.key.filter(|key| clock < key.until);
        }
    }

    /// The node comes back without its data, or with those of its last snapshot.
    ///
    /// The guard looks at its marker in every try. The marker is that of the namespace, so a try
    /// for any other key will do, and the worst that can happen is that there is one at once: then
    /// the quarantine is over soonest.
    pub(crate) fn restart(&self, state: &mut State, node: usize, old_snapshot: bool) {
        const NOTHING: Snapshot = Snapshot { key: None, largest: 0, marked: false };
        state.restarts += 1;
        let at = &mut state.nodes[node];
        let found = if old_snapshot { at.snapshot } else { NOTHING };
        (at.key, at.largest) = (found.key, found.largest);
        at.marker = if found.marked { Marker::EarlierLife } else { Marker::Missing };
        self.expire(state);
        self.is_open(state, node);
    }

    /// Looks at the marker, begins or ends a quarantine, and tells whether grants are free.
    fn is_open(&self, state: &mut State, node: usize) -> bool {
        let clock = self.clock(state, node);
        let marker = match (self.rules.guard, state.nodes[node].marker) {
            (Guard::Off, marker) => marker,
            (Guard::Marker, Marker::EarlierLife) => Marker::Open,
            (_, Marker::Missing | Marker::EarlierLife) => {
                if self.rules.relearn == Relearn::FromPeersAtOnce {
                    self.relearn(state, node);
                }
                Marker::Closed(clock)
            }
            (_, Marker::Closed(born)) if clock >= born + self.rules.quarantine => {
                if self.rules.relearn == Relearn::FromPeersAtTheEnd {
                    self.relearn(state, node);
                }
                Marker::Served
            }
            (_, marker) => marker,
        };
        state.nodes[node].marker = marker;
        !matches!(marker, Marker::Closed(_))
    }

    /// Takes over the largest token that another node remembers at this moment.
    fn relearn(&self, state: &mut State, node: usize) {
        let known = state.nodes.iter().map(|peer| peer.largest).max();
        state.nodes[node].largest = known.unwrap_or_default();
    }

    fn clock(&self, state: &State, node: usize) -> Tick {
        state.now + state.nodes[node].ahead
    }
}
