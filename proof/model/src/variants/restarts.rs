//! A: what a node may do that has lost its data.

use super::{Variant, variant};
use crate::properties::EXCLUSION;
use crate::rules::{Guard, Rules, World};
use crate::state::TTL;

const EMPTY: World = World { restarts: 1, ..World::CALM };
const OLD_DATA: World = World { restarts: 1, old_snapshots: true, ..World::CALM };
const TWO_ROUNDS: World = World { rounds: [2, 2], end: 3, ..OLD_DATA };
const ANY_SNAPSHOT: World = World { snapshots: 1, ..OLD_DATA };

const NO_GUARD: Rules = Rules { guard: Guard::Off, ..Rules::LATCHWORK };
const NO_IDENTITY: Rules = Rules { guard: Guard::Marker, ..Rules::LATCHWORK };
const SHORT_QUARANTINE: Rules = Rules { quarantine: TTL - 1, ..Rules::LATCHWORK };

pub(super) fn all() -> Vec<Variant> {
    vec![
        variant("A1", "nothing goes wrong"),
        variant("A1b", "nothing goes wrong, and each client tries twice")
            .world(World { restarts: 0, ..TWO_ROUNDS }),
        variant("A2", "a node restarts empty, and there is no guard")
            .world(EMPTY)
            .rules(NO_GUARD)
            .violates(EXCLUSION, include_str!("../../stories/A2.txt")),
        variant("A3", "a node restarts empty; the marker has no identity")
            .world(EMPTY)
            .rules(NO_IDENTITY),
        variant("A4", "a node restarts with an old snapshot; the marker has no identity")
            .world(OLD_DATA)
            .rules(NO_IDENTITY)
            .violates(EXCLUSION, include_str!("../../stories/A4.txt")),
        variant("A5", "a node restarts, empty or with an old snapshot").world(OLD_DATA),
        variant("A6b", "a node restarts; the quarantine is a tick shorter than the longest ttl")
            .world(OLD_DATA)
            .rules(SHORT_QUARANTINE)
            .violates(EXCLUSION, include_str!("../../stories/A6b.txt")),
        variant("A7", "two restarts").world(World { restarts: 2, ..OLD_DATA }),
        variant("A8", "a restart, and each client tries twice").world(TWO_ROUNDS),
        variant("A9", "a restart, each client tries twice, two ticks longer")
            .world(World { end: 5, ..TWO_ROUNDS }),
        variant("S1", "a node restarts with a snapshot of any moment").world(ANY_SNAPSHOT),
        variant("S2", "a node restarts with a snapshot of any moment, holds are renewed")
            .world(World { renewals: 1, ..ANY_SNAPSHOT }),
    ]
}
