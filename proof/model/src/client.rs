//! What a client does: `acquire.rs` and `hold.rs` of `latchwork-quorum`, and `hold/lease.rs` of `latchwork`.

use crate::node::token_of;
use crate::rules::{Confirm, Quorum, Tokens};
use crate::state::{CLIENTS, Kind, MAJORITY, Message, Phase, State, TTL, Token, Vote};

impl Quorum {
    /// Asks all nodes for the key.
    pub(crate) fn begin(&self, state: &mut State, client: usize) {
        let floor = self.propose(state, client);
        state.clients[client].phase = Phase::Trying { sent: state.now };
        self.ask(state, client, Kind::Try, floor, |_| true);
    }

    /// A token above all that the client knows of and, by its clock, above all others.
    fn propose(&self, state: &State, client: usize) -> Token {
        let by_clock = match self.rules.tokens {
            Tokens::Counters => 0,
            _ => token_of(state.now + self.world.client_clocks[client]),
        };
        state.clients[client].largest.max(by_clock) + 1
    }

    /// A node has granted the key.
    pub(crate) fn hear_grant(&self, state: &mut State, node: usize, client: usize, token: Token) {
        let Phase::Trying { sent } = state.clients[client].phase else { return };
        state.nodes[node].votes[client] = Vote::Granted(token);
        let mut tokens: Vec<Token> =
            state.nodes.iter().filter_map(|node| node.votes[client].token()).collect();
        if tokens.len() < MAJORITY {
            return;
        }
        // The largest answer of some majority: it shares a node with the majority that remembers
        // any earlier token, and that node answered more.
        tokens.sort_unstable();
        let token = tokens[MAJORITY - 1];
        state.clients[client].phase = Phase::Confirming { sent, token };
        match self.rules.confirm {
            Confirm::Nowhere => return self.hold(state, client),
            Confirm::Anywhere => {
                let unaware = |vote: Vote| vote.token().is_none_or(|known| known < token);
                self.ask(state, client, Kind::Confirm, token, unaware);
            }
            Confirm::WhereLive => {
                let unaware = |vote: Vote| vote.token().is_some_and(|known| known < token);
                self.ask(state, client, Kind::Confirm, token, unaware);
            }
        }
        self.hold_if_confirmed(state, client);
    }

    /// A node has said that it remembers the token.
    pub(crate) fn hear_confirmed(&self, state: &mut State, node: usize, client: usize) {
        let Phase::Confirming { token, .. } = state.clients[client].phase else { return };
        state.nodes[node].votes[client] = Vote::Granted(token);
        self.hold_if_confirmed(state, client);
    }

    fn hold_if_confirmed(&self, state: &mut State, client: usize) {
        let Phase::Confirming { token, .. } = state.clients[client].phase else { return };
        let knows = |vote: Vote| vote.token().is_some_and(|known| known >= token);
        let knowing = state.nodes.iter().filter(|node| knows(node.votes[client])).count();
        if knowing >= MAJORITY {
            self.hold(state, client);
        }
    }

    /// The client holds the key, and counts on it from the moment at which it asked.
    fn hold(&self, state: &mut State, client: usize) {
        let Phase::Confirming { sent, token } = state.clients[client].phase else { return };
        let claim = state.claim(client);
        if let Some((earlier, largest)) = state.judge.latest {
            // Of two holds at one time neither is the later: that is another violation.
            let ended = !state.clients.iter().any(|client| client.is_valid(state.now));
            state.judge.token_fell |= ended && token <= largest;
            state.judge.succession |= earlier.client() != client;
        }
        state.judge.latest = Some((claim, token));
        let holder = &mut state.clients[client];
        holder.largest = holder.largest.max(token);
        holder.phase = Phase::Held { until: sent + TTL, token };
        forget_votes(state, client);
    }

    /// Asks all nodes to start the ttl anew.
    pub(crate) fn begin_renewal(&self, state: &mut State, client: usize) {
        let Phase::Held { until, token } = state.clients[client].phase else { return };
        state.clients[client].renewals += 1;
        state.clients[client].phase = Phase::Renewing { until, token, sent: state.now };
        self.ask(state, client, Kind::Renew, token, |_| true);
    }

    /// A node has said whether it has started the ttl anew.
    pub(crate) fn hear_renewal(&self, state: &mut State, node: usize, client: usize, vote: Vote) {
        let Phase::Renewing { until, token, sent } = state.clients[client].phase else { return };
        state.nodes[node].votes[client] = vote;
        let count = |vote| state.nodes.iter().filter(|n| n.votes[client] == vote).count();
        if count(Vote::Present) < MAJORITY {
            return;
        }
        // After the end of the validity there is nothing left to renew: such a client has given up
        // already (`lapse`), unless the rules are broken.
        state.judge.reentered |=
            state.judge.latest.is_some_and(|(latest, _)| latest != state.claim(client));
        let until = until.max(sent + TTL);
        state.clients[client].phase = Phase::Held { until, token };
        // A node that lost the claim gets it again. It counts from the next renewal on.
        self.ask(state, client, Kind::Plant, token, |vote| vote == Vote::Gone);
        forget_votes(state, client);
    }

    /// Ends what time has ended: holds whose validity is over, and rounds that could only begin a
    /// hold whose validity is over.
    pub(crate) fn lapse(&self, state: &mut State) {
        for client in 0..CLIENTS {
            let end = match state.clients[client].phase {
                Phase::Idle => continue,
                Phase::Trying { sent } | Phase::Confirming { sent, .. } => sent + TTL,
                Phase::Renewing { sent, .. } if self.rules.renewal_counts_late => sent + TTL,
                Phase::Held { until, .. } | Phase::Renewing { until, .. } => until,
            };
            if state.now >= end {
                self.end_round(state, client);
            }
        }
    }

    /// The client releases, gives up, or has lost the key. Either way it tells the nodes.
    pub(crate) fn end_round(&self, state: &mut State, client: usize) {
        let claim = state.claim(client);
        if self.world.slow_ends {
            self.ask(state, client, Kind::Release, 0, |_| true);
        } else {
            for node in 0..state.nodes.len() {
                self.free(state, node, claim);
                state.nodes[node].inbox.retain(|message| message.claim != claim);
            }
        }
        forget_votes(state, client);
        let ended = &mut state.clients[client];
        ended.phase = Phase::Idle;
        ended.round += 1;
        ended.renewals = 0;
        if ended.round == self.world.rounds[client] {
            ended.largest = 0; // nobody will ask for it any more
        }
    }

    /// Sends a request to the nodes whose vote says so.
    fn ask(
        &self,
        state: &mut State,
        client: usize,
        kind: Kind,
        floor: Token,
        whom: impl Fn(Vote) -> bool,
    ) {
        let claim = state.claim(client);
        for node in state.nodes.iter_mut().filter(|node| whom(node.votes[client])) {
            node.send(Message { claim, kind, floor });
        }
    }

    /// Drops messages that can do nothing any more, now or later, whatever else happens. So no
    /// behaviour is lost, and states that differ only in such messages are one.
    pub(crate) fn drop_stale(&self, state: &mut State) {
        for node in 0..state.nodes.len() {
            let mut inbox = std::mem::take(&mut state.nodes[node].inbox);
            let all = inbox.clone();
            inbox.retain(|message| {
                let tries = |m: &Message| matches!(m.kind, Kind::Try | Kind::Plant);
                let comes = all.iter().any(|m| m.claim == message.claim && tries(m));
                tries(message)
                    || comes
                    || state.nodes[node].may_hold(message.claim)
                    || self.may_matter(state, *message)
            });
            state.nodes[node].inbox = inbox;
        }
    }

    /// Whether a message may matter at a node that does not have its claim, neither now nor in a
    /// snapshot, and that no try of the claim is on its way to.
    fn may_matter(&self, state: &State, message: Message) -> bool {
        let client = &state.clients[message.claim.client()];
        let current = state.is_current(message.claim);
        let may_renew = current && client.renewals < self.world.renewals;
        let renewing = current && matches!(client.phase, Phase::Renewing { .. });
        match message.kind {
            Kind::Try | Kind::Plant => true,
            Kind::Release => false,
            // A renewal may find out that the claim must be planted there again.
            Kind::Renew | Kind::Confirm => {
                renewing
                    || may_renew
                    || self.rules.renewal_counts_replanted
                    || self.rules.confirm == Confirm::Anywhere
            }
        }
    }
}

fn forget_votes(state: &mut State, client: usize) {
    for node in &mut state.nodes {
        node.votes[client] = Vote::Silent;
    }
}

impl Vote {
    fn token(self) -> Option<Token> {
        match self {
            Self::Granted(token) => Some(token),
            _ => None,
        }
    }
}
