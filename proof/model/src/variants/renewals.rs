//! R: which answers a renewal may count.

use super::{Variant, variant};
use crate::properties::NO_REENTRY;
use crate::rules::{Rules, World};

const RENEWED: World = World { renewals: 1, ..World::CALM };
/// A late renewal needs time to come late.
const LONGER: World = World { end: 6, ..RENEWED };
const RESTART: World = World { restarts: 1, old_snapshots: true, ..RENEWED };

const LATE: Rules = Rules { renewal_counts_late: true, ..Rules::LATCHWORK };
const REPLANTED: Rules = Rules { renewal_counts_replanted: true, ..Rules::LATCHWORK };
const LATE_AND_REPLANTED: Rules = Rules { renewal_counts_replanted: true, ..LATE };

pub(super) fn all() -> Vec<Variant> {
    vec![
        variant("R1", "holds are renewed").world(RENEWED),
        variant("R2", "renewals count where they plant the claim again, also when it is too late")
            .world(LONGER)
            .rules(LATE_AND_REPLANTED)
            .violates(NO_REENTRY, include_str!("../../stories/R2.txt")),
        variant("R3", "renewals count when it is too late")
            .world(LONGER)
            .rules(LATE)
            .violates(NO_REENTRY, include_str!("../../stories/R3.txt")),
        variant("R4", "holds are renewed, a node restarts").world(RESTART),
        variant("R5", "holds are renewed twice, a node restarts, claims are planted again")
            .world(World { renewals: 2, end: 5, ..RESTART }),
        variant("R6", "renewals count where they plant the claim again, but in time")
            .world(RESTART)
            .rules(REPLANTED),
    ]
}
