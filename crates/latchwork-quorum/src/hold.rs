//! Renewing and releasing: separate paths, so that no failed renewal ever releases.

use std::sync::Arc;

use super::Shared;
use super::flight::Flight;
use super::round::{Round, State, limited, node_limit};
use super::tally::{Count, Verdict};
use latchwork_store::*;
use latchwork_store::{BackendError, Effect};

/// A claim to renew, and what the nodes have said about it.
struct Ballot {
    id: ClaimId,
    /// `None` for a claim that this process does not hold: the nodes are asked for the id as it
    /// is, so that the word is theirs.
    round: Option<Arc<Round>>,
    asked: Claim,
    held: Vec<(usize, Renewal)>,
    lost: Vec<usize>,
    failures: Vec<(usize, BackendError)>,
}

impl Ballot {
    fn take(&mut self, node: usize, answer: Option<Result<Renewal, BackendError>>) {
        match answer {
            // A node that did not take the floor over would not remember the token.
            Some(Ok(Renewal::Held { token, .. })) if token < self.asked.floor => {
                let message = "the node did not store the token";
                self.failures.push((node, super::corrupt(message)));
            }
            Some(Ok(held @ Renewal::Held { .. })) => self.held.push((node, held)),
            Some(Ok(Renewal::Lost)) => self.lost.push(node),
            Some(Err(error)) => self.failures.push((node, error)),
            None => self.failures.push((node, super::corrupt("the node left out an answer"))),
        }
    }

    fn count(&self) -> Count {
        Count { yes: self.held.len(), no: self.lost.len(), failed: self.failures.len() }
    }
}

impl Shared {
    pub(super) async fn renew_all(
        self: &Arc<Self>,
        claims: &[Claim],
    ) -> Vec<Result<Renewal, BackendError>> {
        let Some(shortest) = claims.iter().map(|claim| claim.ttl).min() else {
            return Vec::new();
        };
        let mut ballots: Vec<Ballot> = claims.iter().map(|claim| self.ballot(claim)).collect();
        let asked: Arc<[Claim]> = ballots.iter().map(|ballot| ballot.asked.clone()).collect();
        let mut flight = Flight::new(self.nodes.iter().enumerate().map(|(index, node)| {
            let (node, asked) = (node.clone(), asked.clone());
            let ask = async move { Ok(node.renew_all(&asked).await) };
            (index, limited(self, node_limit(shortest), ask))
        }));
        let undecided = |ballot: &Ballot| self.size.word(ballot.count()).is_none();
        while ballots.iter().any(undecided) {
            let Some(landed) = flight.land().await else { break };
            for (node, answers) in landed {
                let mut answers = match answers {
                    Ok(answers) => answers.into_iter().map(Some).collect(),
                    Err(error) => vec![Some(Err(error)); ballots.len()],
                };
                answers.resize_with(ballots.len(), || None);
                for (ballot, answer) in ballots.iter_mut().zip(answers) {
                    ballot.take(node, answer);
                }
            }
        }
        // Slow nodes go on, or they would end the claim though it was renewed.
        for (_, ask) in flight.take_pending() {
            self.io.spawn(async move { drop(ask.await) });
        }
        ballots.into_iter().map(|ballot| self.declare(ballot)).collect()
    }

    fn ballot(&self, claim: &Claim) -> Ballot {
        let (round, asked) = match self.look_up(claim.id) {
            Some((round, State::Held(token))) => {
                let floor = token.max(claim.floor);
                let asked = round.claim.clone().with(|it| {
                    it.floor = floor;
                    it.ttl = claim.ttl;
                });
                (Some(round), asked)
            }
            // The floor is the token of its grant, which each node that counts remembers.
            None | Some((_, State::Open)) if claim.floor > 0 => {
                let round = self.book().adopt(claim, self.io.now());
                let asked = round.claim.clone().with(|it| {
                    it.floor = claim.floor;
                    it.ttl = claim.ttl;
                });
                (Some(round), asked)
            }
            _ => (None, claim.clone().with(|it| it.order = Order::Barging)),
        };
        Ballot { id: claim.id, round, asked, held: vec![], lost: vec![], failures: vec![] }
    }

    fn declare(self: &Arc<Self>, ballot: Ballot) -> Result<Renewal, BackendError> {
        match self.size.word(ballot.count()) {
            Some(Verdict::Yes) => {}
            Some(Verdict::No) => {
                // Nobody releases here what another process may have acquired.
                if let Some(round) = ballot.round.filter(|round| round.claim.id == ballot.id) {
                    self.book().forget(ballot.id, &round);
                }
                return Ok(Renewal::Lost);
            }
            _ => return Err(self.unsure(&ballot)),
        }
        let renewals = ballot.held.iter().filter_map(|(_, renewal)| match renewal {
            Renewal::Held { ttl, token, .. } => Some((*ttl, *token)),
            Renewal::Lost => None,
        });
        let ttl = self.size.reached(renewals.clone().map(|(ttl, _)| ttl)).unwrap_or_default();
        let mut token = ballot.asked.floor;
        match &ballot.round {
            Some(round) => {
                let state = State::Held(token);
                if self.book().advance(ballot.id, round, state, self.io.now()) {
                    self.learn(token);
                    ballot.lost.iter().for_each(|node| self.plant(*node, round, token));
                }
            }
            None => token = token.max(self.size.within(renewals.map(|r| r.1)).unwrap_or(0)),
        }
        Ok(Renewal::held(ttl, token, None))
    }

    fn unsure(&self, ballot: &Ballot) -> BackendError {
        let mut error = self.too_few(&ballot.failures, Effect::Unknown);
        if !ballot.lost.is_empty() {
            error.message += &format!("; {} said that it is lost", ballot.lost.len());
        }
        error
    }

    /// Gives a held claim back to a node that has lost it, so that nodes may restart one after
    /// another under a long hold. It counts from the next renewal on: counted at once, a claim
    /// that had lapsed everywhere could slip back in after another's hold.
    fn plant(self: &Arc<Self>, node: usize, round: &Arc<Round>, token: u64) {
        let claim = round.claim.clone().with(|it| {
            it.floor = token;
            it.waits = false;
        });
        round.plants(node);
        let (backend, limit) = (self.nodes[node].clone(), node_limit(claim.ttl));
        let ask = async move { backend.try_acquire(&claim).await };
        self.straggle(node, round, None, limited(self, limit, ask));
    }

    /// Repeats a release that a node did not answer, in the background: where the claim may be, so that the releases of a
    /// node that is down do not add up.
    fn repeat(
        self: &Arc<Self>,
        node: usize,
        round: Option<&Arc<Round>>,
        claim: &Arc<Claim>,
        linger: Linger,
    ) {
        // An opening is not repeated: later it could open what another run has closed.
        if linger != Linger::End && round.is_none_or(|round| round.may_be_at(node)) {
            self.spawn_clear(node, claim, linger);
        }
    }

    /// Ends a claim, or opens a key, at all nodes.
    pub(super) async fn release(
        self: &Arc<Self>,
        claim: &Claim,
        linger: Linger,
    ) -> Result<Released, BackendError> {
        // To open a key ends no claim, not even one of this id.
        let known = self.look_up(claim.id).filter(|_| linger != Linger::End);
        let asked = match &known {
            Some((round, state)) => {
                round.release();
                match state {
                    State::Blocked(standing) => drop(standing.leave()),
                    State::Held(_) if round.waited => {
                        self.node_order.contest(&claim.key, self.io.now());
                    }
                    _ => {}
                }
                round.claim.clone().with(|it| {
                    it.ttl = claim.ttl.max(round.claim.ttl);
                    it.holder = claim.holder.clone();
                })
            }
            None => claim.clone(),
        };
        let asked = Arc::new(asked);
        let round = known.as_ref().map(|(round, _)| round.clone());
        let gathers = linger == Linger::None
            && known
                .as_ref()
                .is_some_and(|(round, state)| matches!(state, State::Held(_)) && !round.waited);
        let flight = if gathers {
            Flight::to_all(self.releases.ask((*asked).clone()))
        } else {
            Flight::new((0..self.size.nodes).map(|n| match &round {
                Some(round) => (n, self.ask_end(n, round, &asked, linger)),
                None => (n, self.ask_release(n, &asked, linger)),
            }))
        };
        let mut farewell = Farewell { shared: self, claim: asked.clone(), round, linger, flight };
        if gathers {
            self.releases.flush().await;
        }
        let mut count = Count::default();
        let mut failures = Vec::new();
        let verdict = loop {
            for (node, answer) in farewell.flight.land().await.unwrap_or_default() {
                if let (true, Some(round)) = (gathers, &farewell.round) {
                    self.has_ended(node, round, &asked, linger, &answer);
                }
                match answer {
                    Ok(Released::Yes) => count.yes += 1,
                    Ok(Released::NotHeld) => count.no += 1,
                    Err(error) => {
                        count.failed += 1;
                        failures.push((node, error));
                        self.repeat(node, farewell.round.as_ref(), &asked, linger);
                    }
                }
            }
            let verdict = match linger {
                // A hold has a majority, so it shares a node with any majority that answers.
                Linger::None if count.yes + count.no >= self.size.majority => {
                    Some(if count.yes > 0 { Verdict::Yes } else { Verdict::No })
                }
                Linger::None => self.size.blocks(count.failed).then_some(Verdict::Failed),
                // The key stays closed only where the claim was held, and that must be a majority.
                Linger::For(_) => self.size.word(count),
                // All are heard, or given up: each that stays closed is one that a later majority
                // has to do without.
                Linger::End if count.yes + count.no + count.failed < self.size.nodes => None,
                Linger::End if count.yes + count.no < self.size.majority => Some(Verdict::Failed),
                Linger::End => Some(if count.yes > 0 { Verdict::Yes } else { Verdict::No }),
            };
            if let Some(verdict) = verdict {
                break verdict;
            }
        };
        if let (Some((round, _)), Verdict::Yes | Verdict::No) = (&known, verdict) {
            self.book().forget(claim.id, round);
        }
        match verdict {
            Verdict::Yes => Ok(Released::Yes),
            Verdict::No => Ok(Released::NotHeld),
            Verdict::Failed => Err(self.too_few(&failures, Effect::Unknown)),
        }
    }
}

/// A release under way. Dropped anywhere, the rest of it goes on in the background.
struct Farewell<'a> {
    shared: &'a Arc<Shared>,
    claim: Arc<Claim>,
    round: Option<Arc<Round>>,
    linger: Linger,
    flight: Flight<Result<Released, BackendError>>,
}

impl Drop for Farewell<'_> {
    fn drop(&mut self) {
        for (node, ask) in self.flight.take_pending() {
            let (shared, claim, linger) = (self.shared.clone(), self.claim.clone(), self.linger);
            let round = self.round.clone();
            latchwork_wire::finish(&self.shared.io, async move {
                if ask.await.is_err() {
                    shared.repeat(node, round.as_ref(), &claim, linger);
                }
            });
        }
        let Some(tray) = self.flight.take_tray() else { return };
        let (shared, claim, round, linger) =
            (self.shared.clone(), self.claim.clone(), self.round.take(), self.linger);
        let late = move |node, answer: Result<Released, BackendError>| {
            if let Some(round) = &round {
                shared.has_ended(node, round, &claim, linger, &answer);
            }
            if answer.is_err() {
                shared.repeat(node, round.as_ref(), &claim, linger);
            }
        };
        tray.leave(false, Arc::new(late));
        self.shared.releases.flush_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use latchwork_store::testing::claim;
    use std::time::Duration;

    #[test]
    fn only_a_node_that_remembers_the_token_counts_as_held() {
        let asked = claim("k").with(|it| it.floor = 7);
        let mut ballot = Ballot {
            id: asked.id,
            round: None,
            asked,
            held: vec![],
            lost: vec![],
            failures: vec![],
        };
        let held = |token| Renewal::held(Duration::from_secs(1), token, None);
        ballot.take(0, Some(Ok(held(7))));
        ballot.take(1, Some(Ok(held(6))));
        ballot.take(2, None);
        ballot.take(3, Some(Ok(Renewal::Lost)));
        assert_eq!(ballot.held, [(0, held(7))]);
        assert_eq!(ballot.lost, [3]);
        assert_eq!(ballot.failures.iter().map(|(node, _)| *node).collect::<Vec<_>>(), [1, 2]);
    }
}
