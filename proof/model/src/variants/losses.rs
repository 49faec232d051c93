//! L: messages that come late or not at all, also those of rounds that are over. Z: everything.

use super::{Variant, variant};
use crate::rules::{Rules, Tokens, World};

const LOST_ANSWERS: World = World { lost_answers: true, rounds: [2, 2], end: 3, ..World::CALM };
const SLOW_ENDS: World = World { slow_ends: true, end: 3, ..World::CALM };
const MUCH: World =
    World { restarts: 1, old_snapshots: true, renewals: 1, lost_answers: true, ..World::CALM };
const CLIENT_CLOCKS: Rules = Rules { tokens: Tokens::ClientClocks, ..Rules::LATCHWORK };

pub(super) fn all() -> Vec<Variant> {
    vec![
        variant("L1", "answers are lost, and each client tries twice").world(LOST_ANSWERS),
        variant("L2", "rounds that are over leave keys and messages").world(SLOW_ENDS),
        variant("L3", "rounds that are over leave keys and messages, a node restarts")
            .world(World { restarts: 1, old_snapshots: true, end: 4, ..SLOW_ENDS }),
        variant("L4", "rounds that are over leave keys and messages, a client tries twice")
            .world(World { rounds: [2, 1], ..SLOW_ENDS }),
        variant("Z1", "a restart, renewals, lost answers").world(MUCH),
        variant("Z2", "a restart, renewals, lost answers, tokens by the clients' clocks alone")
            .world(MUCH)
            .rules(CLIENT_CLOCKS),
        variant("Z3", "a restart, any snapshot, renewals, lost answers, leftovers of old rounds")
            .world(World { snapshots: 1, slow_ends: true, end: 3, ..MUCH }),
    ]
}
