//! What must always hold, and what must happen sometimes, for a model in which nothing happens
//! keeps every promise.

use stateright::Property;

use crate::rules::{Confirm, Guard, Quorum, Tokens};
use crate::state::{Kind, Lease, Marker, Node, Phase, State};

/// No two clients would say at one moment that they hold the key.
pub const EXCLUSION: &str = "exclusion";
/// A later hold has a larger token.
pub const TOKEN_ORDER: &str = "token order";
/// A hold does not go on after another has begun.
pub const NO_REENTRY: &str = "no silent re-entry";

type Rule = Property<Quorum>;

fn exclusion(state: &State) -> bool {
    state.clients.iter().filter(|client| client.is_valid(state.now)).count() <= 1
}

fn token_order(state: &State) -> bool {
    !state.judge.token_fell
}

fn no_reentry(state: &State) -> bool {
    !state.judge.reentered
}

/// The property that a state violates.
pub fn violated(state: &State) -> Option<&'static str> {
    if !exclusion(state) {
        Some(EXCLUSION)
    } else if !token_order(state) {
        Some(TOKEN_ORDER)
    } else if !no_reentry(state) {
        Some(NO_REENTRY)
    } else {
        None
    }
}

/// All properties of a model. What can happen sometimes depends on its world.
pub(crate) fn of(quorum: &Quorum) -> Vec<Rule> {
    let (world, rules) = (&quorum.world, &quorum.rules);
    let mut all = vec![
        Rule::always(EXCLUSION, |_, state| exclusion(state)),
        Rule::always(TOKEN_ORDER, |_, state| token_order(state)),
        Rule::always(NO_REENTRY, |_, state| no_reentry(state)),
        Rule::sometimes("a grant", |_, state| state.judge.latest.is_some()),
        Rule::sometimes("two holders, one after the other", |_, state| state.judge.succession),
    ];
    if rules.confirm == Confirm::WhereLive && rules.tokens == Tokens::AllClocks {
        all.push(Rule::sometimes("a token that has to be confirmed", |_, state| {
            state.nodes.iter().flat_map(|node| &node.inbox).any(|m| m.kind == Kind::Confirm)
        }));
    }
    if world.renewals > 0 {
        all.push(Rule::sometimes("a renewal", |_, state| {
            let held = |phase| matches!(phase, Phase::Held { .. });
            state.clients.iter().any(|client| client.renewals > 0 && held(client.phase))
        }));
        all.push(Rule::sometimes("a claim that is planted again", |_, state| {
            state.nodes.iter().flat_map(|node| &node.inbox).any(|m| m.kind == Kind::Plant)
        }));
    }
    if world.restarts > 0 && rules.guard != Guard::Off {
        all.push(Rule::sometimes("a node in quarantine", |_, state| {
            state.nodes.iter().any(|node| matches!(node.marker, Marker::Closed(_)))
        }));
        all.push(Rule::sometimes("a grant after a quarantine", |_, state| {
            let again = |node: &&Node| node.marker == Marker::Served;
            state.nodes.iter().filter(again).any(|node| node.key.is_some())
        }));
    }
    if world.slow_ends {
        all.push(Rule::sometimes("a key that nobody wants any more", |_, state| {
            let ghost = |key: Lease| !state.is_current(key.claim);
            state.nodes.iter().any(|node| node.key.is_some_and(ghost))
        }));
    }
    all
}
