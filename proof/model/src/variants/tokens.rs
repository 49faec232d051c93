//! B and E: where tokens come from, without and with restarts. J: a clock that jumps.

use super::{Variant, variant};
use crate::properties::{EXCLUSION, TOKEN_ORDER};
use crate::rules::{Confirm, Relearn, Rules, Tokens, World};
use crate::state::{TTL, Tick};

/// One node remembers a token that the others have not heard of.
const UNEVEN: World = World { tokens: [3, 0, 0], ..World::CALM };
const RESTART: World = World { restarts: 1, ..World::CALM };
const JUMP: World = World { jump: TTL, ..World::CALM };

/// A restart, and the wall clock of client 1 is off.
const fn ahead(ticks: Tick) -> World {
    World { end: 5, client_clocks: [ticks, 0], ..RESTART }
}

/// No clocks: everybody counts.
const COUNTERS: Rules = Rules { tokens: Tokens::Counters, ..Rules::LATCHWORK };
const NO_CONFIRMATION: Rules = Rules { confirm: Confirm::Nowhere, ..COUNTERS };
const CONFIRMED_ANYWHERE: Rules = Rules { confirm: Confirm::Anywhere, ..COUNTERS };
const LEARNED_TOO_EARLY: Rules = Rules { relearn: Relearn::FromPeersAtOnce, ..COUNTERS };
const LEARNED_IN_TIME: Rules = Rules { relearn: Relearn::FromPeersAtTheEnd, ..COUNTERS };
const CLIENT_CLOCKS: Rules = Rules { tokens: Tokens::ClientClocks, ..Rules::LATCHWORK };
const CLIENT_CLOCKS_LONGER: Rules = Rules { quarantine: TTL + 1, ..CLIENT_CLOCKS };

pub(super) fn all() -> Vec<Variant> {
    vec![
        variant("B1", "no clocks: the token is the largest answer, confirmed by nobody")
            .world(UNEVEN)
            .rules(NO_CONFIRMATION)
            .violates(TOKEN_ORDER, include_str!("../../stories/B1.txt"))
            .mended_by(COUNTERS),
        variant("B2", "no clocks: nodes without the claim confirm the token too")
            .world(UNEVEN)
            .rules(CONFIRMED_ANYWHERE)
            .violates(TOKEN_ORDER, include_str!("../../stories/B2.txt"))
            .mended_by(COUNTERS),
        variant("B3", "no clocks: the token is confirmed where the claim is live")
            .world(UNEVEN)
            .rules(COUNTERS),
        variant("E3", "no clocks: a node restarts and does not know the tokens any more")
            .world(RESTART)
            .rules(COUNTERS)
            .violates(TOKEN_ORDER, include_str!("../../stories/E3.txt")),
        variant("E3g", "no clocks: it asks the others when its quarantine begins")
            .world(RESTART)
            .rules(LEARNED_TOO_EARLY)
            .violates(TOKEN_ORDER, include_str!("../../stories/E3g.txt")),
        variant("E3h", "no clocks: it asks the others when its quarantine is over")
            .world(World { end: 5, ..RESTART })
            .rules(LEARNED_IN_TIME),
        variant("E4", "tokens by the clients' clocks alone, a restart")
            .world(ahead(0))
            .rules(CLIENT_CLOCKS),
        variant("E5", "tokens by the clients' clocks alone, a restart, a clock a tick late")
            .world(ahead(-1))
            .rules(CLIENT_CLOCKS)
            .violates(TOKEN_ORDER, include_str!("../../stories/E5.txt")),
        variant(
            "E6",
            "the clients' clocks alone, a clock a tick late, the quarantine a tick longer",
        )
        .world(ahead(-1))
        .rules(CLIENT_CLOCKS_LONGER),
        variant(
            "E7",
            "the clients' clocks alone, a clock 3 ticks late, the quarantine a tick longer",
        )
        .world(ahead(-3))
        .rules(CLIENT_CLOCKS_LONGER)
        .violates(TOKEN_ORDER, include_str!("../../stories/E7.txt")),
        variant("E8", "a restart, a client's clock is ahead by as much as the quarantine is long")
            .world(ahead(TTL))
            .violates(TOKEN_ORDER, include_str!("../../stories/E8.txt"))
            .allowed_for(ahead(0)),
        variant("E9", "a restart, a client's clock is three ticks late").world(ahead(-3)),
        variant("E10", "a restart, a client's clock is ahead by less than the quarantine is long")
            .world(ahead(TTL - 1)),
        variant("J1", "the clock of a node jumps ahead by a ttl")
            .world(JUMP)
            .violates(EXCLUSION, include_str!("../../stories/J1.txt"))
            .allowed_for(World::CALM),
    ]
}
