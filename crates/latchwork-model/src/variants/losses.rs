//! L: messages that come late or not at all, also those of rounds that are over. Z: everything.

use super::{Variant, variant};
use crate::rules::World;

const SLOW_ENDS: World = World { slow_ends: true, end: 3, ..World::CALM };
const EVERYTHING: World = World {
    restarts: 1,
    old_snapshots: true,
    snapshots: 1,
    renewals: 1,
    lost_answers: true,
    slow_ends: true,
    end: 3,
    ..World::CALM
};

pub(super) fn all() -> Vec<Variant> {
    vec![
        variant("L1", "answers are lost, and each client tries twice").world(World {
            lost_answers: true,
            rounds: 2,
            end: 3,
            ..World::CALM
        }),
        variant("L2", "rounds that are over leave keys and messages").world(SLOW_ENDS),
        variant("L3", "rounds that are over leave keys and messages, a node restarts")
            .world(World { restarts: 1, old_snapshots: true, end: 4, ..SLOW_ENDS }),
        variant("L4", "rounds that are over leave keys and messages, each client tries twice")
            .world(World { rounds: 2, ..SLOW_ENDS }),
        variant("Z1", "a restart, a snapshot, renewals, lost answers, and what old rounds leave")
            .world(EVERYTHING),
    ]
}
