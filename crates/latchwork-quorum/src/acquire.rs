//! Trying and waiting: one round of votes, and the confirmation of its token.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Shared;
use super::flight::Flight;
use super::round::{Round, Standing, State, limited, node_limit};
use super::tally::{Count, Verdict};
use latchwork_store::random_between;
use latchwork_store::*;
use latchwork_store::{BackendError, BackendErrorKind, Effect, Moment};
use latchwork_wire::yield_now;

/// A round under way. Dropped anywhere, it is ended at all nodes that may know of it.
struct Vote<'a> {
    shared: &'a Arc<Shared>,
    id: ClaimId,
    round: Arc<Round>,
    sent_at: Moment,
    flight: Flight<Result<Attempt, BackendError>>,
    grants: Vec<(usize, Grant)>,
    blocks: Vec<(usize, Blocked)>,
    failures: Vec<(usize, BackendError)>,
    trips: Vec<Duration>,
    kept: bool,
}

impl Shared {
    pub(super) async fn try_acquire(
        self: &Arc<Self>,
        claim: &Claim,
    ) -> Result<Attempt, BackendError> {
        check_kind(claim)?;
        if let Some(held) = self.held_already(claim).await? {
            return Ok(Attempt::Granted(held));
        }
        let before = match self.look_up(claim.id) {
            Some((round, State::Blocked(standing))) => Some((round, standing)),
            _ => None,
        };
        let contested = claim.waits && self.node_order.is_contested(&claim.key, self.io.now());
        if contested && before.is_none() {
            // A client that has just released is nearer than a waiter that has to be woken.
            self.io.sleep(self.node_order.courtesy()).await;
        }
        let expects_others = match &before {
            Some((_, standing)) => standing.split || standing.woken.load(Ordering::SeqCst),
            None => contested,
        };
        let now = self.io.now();
        let first = (claim.waits && expects_others).then(|| self.node_order.first(&claim.key, now));
        let floor = claim.floor.max(self.propose());
        let round = match (&before, first) {
            (Some((old, standing)), Some(first)) if standing.is_at(first) => {
                old.again(claim, floor)
            }
            _ => Round::of(claim, floor, before.is_some()),
        };
        let splits = self.replace(claim.id, &round);
        let ask = |n: usize| (n, self.ask_try(n, &round));
        let nodes = 0..self.size.nodes;
        // Who contends does not wait for the requests of others: it would come too late too often.
        let gathers = before.is_none() && !contested;
        let flight = if gathers {
            Flight::to_all(self.tries.ask(round.claim.clone()))
        } else {
            Flight::new(nodes.clone().filter(|n| first.is_none_or(|f| f == *n)).map(ask))
        };
        let mut vote = Vote::new(self, claim.id, round.clone(), flight, now);
        if gathers {
            self.tries.flush().await;
        }
        if let Some(first) = first {
            if let Some(blocked) = vote.ask_first(first).await {
                return Ok(Attempt::Blocked(blocked));
            }
            vote.flight.join(nodes.filter(|n| *n != first).map(ask));
        }
        match vote.count().await {
            Verdict::Yes => {
                let alone = before.iter().filter(|(_, standing)| standing.alone && first.is_none());
                for (node, _) in alone.flat_map(|(_, standing)| standing.seen().marks) {
                    self.node_order.doubt(node, now); // it went on saying no while the key was free
                }
                self.grant(vote, splits).await
            }
            Verdict::No => {
                let split = vote.is_split();
                Ok(Attempt::Blocked(vote.block(splits, split)))
            }
            Verdict::Failed => Err(self.too_few(&vote.failures, vote.effect())),
        }
    }

    /// The grant of a claim that has one: the same id again is the same grant as long as it is there (B2).
    async fn held_already(self: &Arc<Self>, claim: &Claim) -> Result<Option<Grant>, BackendError> {
        let Some((_, State::Held(_))) = self.look_up(claim.id) else { return Ok(None) };
        Ok(match self.renew_all(std::slice::from_ref(claim)).await.remove(0)? {
            Renewal::Held { ttl, token, .. } => Some(Grant::new(token, ttl)),
            Renewal::Lost => None,
        })
    }

    /// The answer to a vote that was won: a grant, once a majority remembers its token.
    async fn grant(
        self: &Arc<Self>,
        mut vote: Vote<'_>,
        splits: u32,
    ) -> Result<Attempt, BackendError> {
        let (token, ttl) = self.size.grant(&vote.grants).expect("a majority granted");
        if !vote.confirm(token).await {
            return Ok(Attempt::Blocked(vote.block(splits, true)));
        }
        self.learn(token);
        if !vote.keep(token) {
            return Err(BackendError::new(
                BackendErrorKind::Unreachable,
                Effect::Unknown,
                "the claim was released while it was being acquired",
            ));
        }
        Ok(Attempt::Granted(Grant::new(token, ttl)))
    }

    /// Enters a new round for the claim and ends the one before it; answers how many rounds in a
    /// row were split.
    fn replace(self: &Arc<Self>, id: ClaimId, round: &Arc<Round>) -> u32 {
        let old = self.book().enter(id, round, State::Open, self.io.now());
        let Some((old, state)) = old else { return 0 };
        old.end();
        match state {
            State::Blocked(standing) => {
                if old.claim.id == round.claim.id {
                    return standing.splits; // it goes on under this name
                }
                let claim = Arc::new(old.claim.clone());
                for (node, _) in standing.leave().iter().filter(|_| old.claim.waits) {
                    self.spawn_clear(*node, &claim, Linger::None);
                }
                standing.splits
            }
            // An open one is cleared up by its own vote; a lost one may live on at a minority.
            State::Open => 0,
            State::Held(_) => {
                let claim = Arc::new(old.claim.clone());
                (0..self.size.nodes).for_each(|n| self.spawn_clear(n, &claim, Linger::None));
                0
            }
        }
    }

    pub(super) async fn wait(&self, claim: &Claim, blocked: &Blocked) -> Wake {
        let standing = match self.look_up(claim.id) {
            Some((round, State::Blocked(standing))) if claim.waits => Some((round, standing)),
            _ => None,
        };
        let pause = async {
            match blocked.retry_after {
                Some(pause) => self.io.sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        let Some((round, standing)) = standing.filter(|(_, standing)| !standing.split) else {
            // After a split vote all losers release what they have, and everyone would be woken at
            // once. The random pause lets one of them come first.
            pause.await;
            return Wake::Look;
        };
        let mut flight: Flight<Result<Wake, BackendError>> = Flight::new(std::iter::empty());
        let woken = async {
            let (mut asked, mut woken) = (0, 0);
            loop {
                let news = standing.news.notified();
                tokio::pin!(news);
                // Enlist before looking, or what comes in between would go unnoticed.
                news.as_mut().enable();
                let seen = standing.seen();
                if seen.free + woken >= standing.needs {
                    break;
                }
                let marks = seen.marks.iter().skip(asked).cloned();
                flight.join(marks.map(|(node, mark)| {
                    let (backend, round) = (self.nodes[node].clone(), round.clone());
                    let ask = async move { backend.wait(&round.claim, &mark).await };
                    (node, Box::pin(ask) as _)
                }));
                asked = asked.max(seen.marks.len());
                tokio::select! {
                    biased;
                    landed = flight.land(), if !flight.is_empty() => {
                        let landed = landed.unwrap_or_default();
                        woken += landed.iter().filter(|(_, wake)| wake.is_ok()).count();
                    }
                    () = news => {}
                }
            }
            standing.woken.store(true, Ordering::SeqCst);
        };
        tokio::select! {
            biased;
            () = woken => {}
            () = pause => {}
        }
        Wake::Look
    }
}

/// Refuses a semaphore, and a claim that is to replace a hold.
fn check_kind(claim: &Claim) -> Result<(), BackendError> {
    let (message, next_step) = match (claim.mode, claim.beside) {
        (Mode::Permits { .. }, _) => (
            "no semaphores on Redlock or another quorum: a majority of nodes cannot count permits",
            "use a semaphore on one node, or one mutex for each slot",
        ),
        (_, Some(_)) => (
            "no upgrade or downgrade on Redlock or another quorum: the nodes may each let another \
             reader upgrade",
            "release the hold and acquire the other one",
        ),
        (_, None) => return Ok(()),
    };
    let (kind, effect) = (BackendErrorKind::Unsupported, Effect::NotApplied);
    Err(BackendError::new(kind, effect, message).with_next_step(next_step))
}

impl<'a> Vote<'a> {
    fn new(
        shared: &'a Arc<Shared>,
        id: ClaimId,
        round: Arc<Round>,
        flight: Flight<Result<Attempt, BackendError>>,
        sent_at: Moment,
    ) -> Self {
        Self {
            shared,
            id,
            round,
            sent_at,
            flight,
            grants: Vec::new(),
            blocks: Vec::new(),
            failures: Vec::new(),
            trips: Vec::new(),
            kept: false,
        }
    }
}

impl Vote<'_> {
    /// What a vote without a verdict has done: nothing for certain only if every node says so.
    fn effect(&self) -> Effect {
        let certain = self.grants.is_empty()
            && self.blocks.len() + self.failures.len() == self.shared.size.nodes
            && self.failures.iter().all(|(_, e)| e.effect == Effect::NotApplied);
        if certain { Effect::NotApplied } else { Effect::Unknown }
    }

    /// Takes answers until they decide.
    async fn count(&mut self) -> Verdict {
        let verdict = loop {
            self.land().await;
            let count = Count {
                yes: self.grants.len(),
                no: self.blocks.len(),
                failed: self.failures.len(),
            };
            match self.shared.size.vote(count) {
                // More answers make a better report of what is in the way: those that have come with
                // these are waited for.
                Some(Verdict::No) => {
                    yield_now().await;
                    let landed = self.flight.landed();
                    self.take(landed);
                    self.settle().await;
                    break Verdict::No;
                }
                Some(verdict) => break verdict,
                None => {}
            }
        };
        self.shared.node_order.learn(self.trip());
        verdict
    }

    /// Waits for more answers while those that have come do not tell whether the key is closed or held.
    ///
    /// A key is closed by a majority. The other nodes still have the hold that closed it until they hear of it, and may
    /// answer first: the caller would learn of a run that is over. Each answer has a limit of its own.
    async fn settle(&mut self) {
        while self.is_in_doubt() && !self.flight.is_empty() {
            self.land().await;
        }
    }

    /// Whether some nodes keep the key closed, some do not, and no majority agrees.
    fn is_in_doubt(&self) -> bool {
        let with = |is_asked: fn(Cause) -> bool| {
            self.blocks.iter().filter(|(_, blocked)| is_asked(blocked.cause)).count()
        };
        let closed = with(|cause| cause == Cause::Linger);
        let held = with(|cause| !matches!(cause, Cause::Linger | Cause::Quarantine));
        closed > 0 && held > 0 && closed.max(held) < self.shared.size.majority
    }

    async fn land(&mut self) {
        let landed = self.flight.land().await.unwrap_or_default();
        self.take(landed);
    }

    fn take(&mut self, landed: Vec<(usize, Result<Attempt, BackendError>)>) {
        let trip = self.shared.io.now().since(self.sent_at);
        for (node, answer) in landed {
            self.trips.push(trip);
            match answer {
                Ok(Attempt::Granted(grant)) => self.grants.push((node, grant)),
                Ok(Attempt::Blocked(blocked)) => self.blocks.push((node, blocked)),
                Err(error) => {
                    self.round.fails(node, &error);
                    self.failures.push((node, error));
                }
            }
        }
    }

    /// Waits a little for the node that was asked first. If it knows a holder, nobody else is asked:
    /// it tells when that one goes, and if it does not soon, the next round asks all.
    async fn ask_first(&mut self, first: usize) -> Option<Blocked> {
        let (io, node_order) = (&self.shared.io, &self.shared.node_order);
        let patience = node_order.patience();
        let _ = io.within(patience, self.land()).await;
        let now = io.now();
        match (&self.grants[..], &self.blocks[..]) {
            ([_], _) => None,
            (_, [(_, blocked)]) if blocked.cause == Cause::Held => {
                let limit = node_limit(self.round.claim.ttl);
                let doubt = random_between(limit, limit * 2);
                let told = blocked.retry_after.unwrap_or(doubt);
                let mut answer = blocked.clone();
                answer.retry_after = Some(told.min(doubt));
                (answer.ahead, answer.resume, answer.store_time) = (None, None, None);
                let marks = std::mem::take(&mut self.blocks);
                self.leave(Standing::at_first(marks));
                Some(answer)
            }
            _ => {
                node_order.doubt(first, now);
                None
            }
        }
    }

    /// The median of the trips so far.
    fn trip(&self) -> Duration {
        let mut trips = self.trips.clone();
        trips.sort_unstable();
        trips.get(trips.len() / 2).copied().unwrap_or_default()
    }

    /// Makes sure that a majority remembers the token, counting only nodes where the claim is
    /// live: elsewhere a later claim may have been granted already.
    async fn confirm(&mut self, token: u64) -> bool {
        let knows = |(_, grant): &&(usize, Grant)| grant.token >= token;
        let mut known = self.grants.iter().filter(knows).count();
        let claim = self.round.claim.clone().with(|it| it.floor = token);
        let limit = node_limit(claim.ttl);
        let asks = self.grants.iter().filter(|g| !knows(g)).map(|(node, _)| {
            let (node, claims) = (self.shared.nodes[*node].clone(), [claim.clone()]);
            let ask = async move {
                let answer = node.renew_all(&claims).await.pop();
                answer.unwrap_or_else(|| Err(super::corrupt("the node left out the answer")))
            };
            (0, limited(self.shared, limit, ask))
        });
        let mut flight = Flight::new(asks);
        while known < self.shared.size.majority {
            let Some(landed) = flight.land().await else { return false };
            let held = landed.iter().filter(|(_, answer)| {
                matches!(answer, Ok(Renewal::Held { token: now, .. }) if *now >= token)
            });
            known += held.count();
        }
        true
    }

    /// Keeps the round as the claim's hold; false if the claim was released meanwhile.
    fn keep(mut self, token: u64) -> bool {
        let shared = self.shared;
        let state = State::Held(token);
        if !shared.book().advance(self.id, &self.round, state, shared.io.now()) {
            return false;
        }
        self.go_on(None, false);
        self.kept = true;
        true
    }

    /// Lets the tries that are not answered go on in the background; what has not been sent is not if
    /// the round is given up.
    fn go_on(&mut self, standing: Option<&Arc<Standing>>, given_up: bool) {
        for (node, ask) in self.flight.take_pending() {
            self.shared.straggle(node, &self.round, standing.cloned(), ask);
        }
        if let Some(tray) = self.flight.take_tray() {
            tray.leave(given_up, self.shared.on_late_try(&self.round, standing.cloned()));
            if given_up {
                self.shared.tries.flush_now(); // it would have done so for those that ask with it
            }
        }
    }

    /// Whether nobody else can have a majority, as far as is known. A node in quarantine does not
    /// say who holds the key there.
    fn is_split(&self) -> bool {
        let blocks = self.blocks.iter().map(|(_, blocked)| blocked);
        let holders = blocks.filter(|b| b.cause != Cause::Quarantine).map(rival);
        let most = holders.clone().map(|one| holders.clone().filter(|h| *h == one).count()).max();
        most.unwrap_or(0) + self.quarantined() < self.shared.size.majority
    }

    fn quarantined(&self) -> usize {
        self.blocks.iter().filter(|(_, blocked)| blocked.cause == Cause::Quarantine).count()
    }

    /// Gives back what was granted, and leaves the marks that ask for a wake-up.
    fn block(mut self, splits: u32, split: bool) -> Blocked {
        let splits = if split { splits + 1 } else { 0 };
        let answer = self.answer(split.then_some(splits));
        let marks = std::mem::take(&mut self.blocks);
        let needs = self.shared.size.majority.saturating_sub(self.grants.len());
        self.leave(Standing::new(marks, needs, split, splits));
        answer
    }

    /// Leaves the round as it stands, and ends what of it is of no use any more.
    fn leave(&mut self, standing: Standing) {
        let standing = Arc::new(standing);
        if self.round.claim.waits {
            let now = self.shared.io.now();
            let state = State::Blocked(standing.clone());
            if self.shared.book().advance(self.id, &self.round, state, now) {
                // First: what has landed meanwhile is seen to at once, and no hold comes of it any more.
                self.round.end();
                self.go_on(Some(&standing), false);
            } else {
                self.blocks = standing.leave(); // nobody waits for them any more
            }
            self.kept = true;
        }
        self.clear_up();
    }

    fn answer(&self, splits: Option<u32>) -> Blocked {
        let blocks = || self.blocks.iter().map(|(_, blocked)| blocked);
        let said = |one: &Blocked| (one.cause, rival(one).cloned());
        let agree = |one: &Blocked| blocks().filter(|other| said(other) == said(one)).count();
        let named = |one: &Blocked| blocks().filter(|other| other.holder == one.holder).count();
        // Too few nodes in quarantine are not what is in the way.
        let closed = self.shared.size.blocks(self.quarantined());
        let fits = |one: &Blocked| (one.cause == Cause::Quarantine) == closed;
        // A node that keeps the key closed has heard of the end of a hold that others may still have.
        let is_later = |one: &Blocked| one.cause == Cause::Linger;
        let rank = |one: &&Blocked| (fits(one), agree(one), is_later(one), named(one));
        let most = blocks().max_by_key(rank);
        let retry_after = match splits {
            Some(attempt) => Some(self.pause(attempt)),
            None => {
                let free = self.grants.iter().map(|_| Duration::ZERO);
                let told = self.blocks.iter().filter_map(|(_, blocked)| blocked.retry_after);
                self.shared.size.within(free.chain(told))
            }
        };
        Blocked::by(most.map_or(Cause::Held, |b| b.cause)).with(|it| {
            it.retry_after = retry_after;
            it.holder = most.and_then(|b| b.holder.clone());
        })
    }

    /// A random pause, long enough for one of the losers to finish before another begins.
    fn pause(&self, attempt: u32) -> Duration {
        let longest = self.trip().max(Duration::from_millis(1)).saturating_mul(2 * attempt);
        let longest = longest.min(self.round.claim.ttl / 4);
        random_between(longest / 100, longest)
    }

    /// Ends the round wherever it may be live.
    fn clear_up(&mut self) {
        self.round.end();
        let claim = Arc::new(self.round.claim.clone());
        let granted = self.grants.iter().map(|(node, _)| *node);
        let marked = self.blocks.iter().filter(|_| claim.waits).map(|(node, _)| *node);
        let again = self.round.again;
        let unknown = self.failures.iter().filter(|(_, e)| again || e.effect == Effect::Unknown);
        for node in granted.chain(marked).chain(unknown.map(|(node, _)| *node)) {
            self.shared.spawn_clear(node, &claim, Linger::None);
        }
        self.go_on(None, true);
        self.grants.clear();
        self.blocks.clear();
        self.failures.clear();
    }
}

impl Drop for Vote<'_> {
    fn drop(&mut self) {
        if !self.kept {
            self.clear_up();
            self.shared.book().forget(self.id, &self.round);
        }
    }
}

/// The holder that competes for the votes. Nodes that keep the key closed agree on that, whichever claim closed it.
fn rival(blocked: &Blocked) -> Option<&Holder> {
    blocked.holder.as_ref().filter(|_| blocked.cause != Cause::Linger)
}
