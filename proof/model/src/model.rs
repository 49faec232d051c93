//! Which steps there are from a state, and where they lead; the model as the checker sees it.

use stateright::{Model, Property};

use crate::action::Action;
use crate::properties;
use crate::rules::{Confirm, Quorum};
use crate::state::{CLIENTS, Claim, Kind, NODES, Phase, State, Vote};

impl Quorum {
    /// The state in which everything begins.
    pub fn first(&self) -> State {
        State::new(self.world.tokens)
    }

    /// All steps that can be taken.
    pub fn steps(&self, state: &State) -> Vec<Action> {
        let world = &self.world;
        let mut steps = Vec::new();
        if state.now < world.end {
            steps.push(Action::Tick);
        }
        for client in 0..CLIENTS {
            let who = &state.clients[client];
            match who.phase {
                Phase::Idle if who.round < world.rounds[client] => {
                    steps.push(Action::Try { client })
                }
                Phase::Trying { .. } | Phase::Confirming { .. } => {
                    steps.push(Action::GiveUp { client });
                }
                Phase::Renewing { .. } => steps.push(Action::Release { client }),
                Phase::Held { .. } => {
                    steps.push(Action::Release { client });
                    if who.renewals < world.renewals {
                        steps.push(Action::Renew { client });
                    }
                }
                _ => {}
            }
        }
        for (node, at) in state.nodes.iter().enumerate() {
            for message in &at.inbox {
                let (kind, claim) = (message.kind, message.claim);
                steps.push(Action::Deliver { node, kind, claim });
                let heard = kind != Kind::Release && kind != Kind::Plant;
                if world.lost_answers && heard && state.is_current(claim) {
                    steps.push(Action::DeliverUnheard { node, kind, claim });
                }
            }
            if state.restarts < world.restarts {
                steps.push(Action::Restart { node, old_snapshot: false });
                if world.old_snapshots {
                    steps.push(Action::Restart { node, old_snapshot: true });
                }
            }
            if state.snapshots < world.snapshots && at.contents() != at.snapshot {
                steps.push(Action::Save { node });
            }
            if world.jump > 0 && !state.jumped {
                steps.push(Action::Jump { node });
            }
        }
        steps
    }

    /// Where a step leads; `None` if it cannot be taken.
    pub fn step(&self, before: &State, action: Action) -> Option<State> {
        self.steps(before).contains(&action).then(|| self.after(before, action))
    }

    /// Where a step leads that can be taken.
    fn after(&self, before: &State, action: Action) -> State {
        let mut state = before.clone();
        match action {
            Action::Tick => {
                state.now += 1;
                self.lapse(&mut state);
                self.expire(&mut state);
            }
            Action::Try { client } => self.begin(&mut state, client),
            Action::Deliver { node, kind, claim } => {
                self.deliver(&mut state, node, kind, claim, true);
            }
            Action::DeliverUnheard { node, kind, claim } => {
                self.deliver(&mut state, node, kind, claim, false);
            }
            Action::Renew { client } => self.begin_renewal(&mut state, client),
            Action::Release { client } | Action::GiveUp { client } => {
                self.end_round(&mut state, client);
            }
            Action::Restart { node, old_snapshot } => {
                self.restart(&mut state, node, old_snapshot);
            }
            Action::Save { node } => {
                state.snapshots += 1;
                state.nodes[node].snapshot = state.nodes[node].contents();
            }
            Action::Jump { node } => {
                state.jumped = true;
                state.nodes[node].ahead += self.world.jump;
                self.expire(&mut state);
            }
        }
        self.drop_stale(&mut state);
        state
    }

    fn deliver(&self, state: &mut State, node: usize, kind: Kind, claim: Claim, heard: bool) {
        let Some(message) = state.nodes[node].take(claim, kind) else { return };
        let floor = message.floor;
        let client = claim.client();
        let heard = heard && state.is_current(claim);
        match kind {
            Kind::Try => {
                if let Some(token) = self.grant(state, node, claim, floor)
                    && heard
                {
                    self.hear_grant(state, node, client, token);
                }
            }
            Kind::Plant => {
                self.grant(state, node, claim, floor);
            }
            Kind::Confirm => {
                let live = self.renew(state, node, claim, floor);
                if heard && (live || self.rules.confirm == Confirm::Anywhere) {
                    self.hear_confirmed(state, node, client);
                }
            }
            Kind::Renew => {
                let live = self.renew(state, node, claim, floor);
                if heard {
                    let vote = if live { Vote::Present } else { Vote::Gone };
                    self.hear_renewal(state, node, client, vote);
                }
            }
            Kind::Release => self.free(state, node, claim),
        }
    }
}

impl Model for Quorum {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut first = self.first();
        first.sort_nodes();
        vec![first]
    }

    /// After a violation there is nothing more to learn. Of nodes in the same state one stands for
    /// all: they are neighbours, for the states that the checker sees are sorted.
    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if properties::violated(state).is_some() {
            return;
        }
        let twin = |node: usize| node > 0 && state.nodes[node] == state.nodes[node - 1];
        let twins: [bool; NODES] = std::array::from_fn(twin);
        let steps = self.steps(state).into_iter();
        actions.extend(steps.filter(|step| step.node().is_none_or(|node| !twins[node])));
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = self.after(before, action);
        state.sort_nodes();
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::of(self)
    }
}
