//! Rounds: the claims under which the nodes know a claim, and their clean-up.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::Shared;
use super::flight::Ask;
use super::gather::OnLate;
use latchwork_store::*;
use latchwork_store::{BackendError, Backoff, Effect, Moment};

/// One vote on a claim, under a name of its own at the nodes.
///
/// A release may overtake a try on its way, so a name that was released once can come back to life
/// at a node. Under a fresh name for each round such a ghost is nobody's vote.
#[derive(Debug)]
pub(super) struct Round {
    /// The claim that the nodes see.
    pub(super) claim: Claim,
    /// It has the name of a round that got no further than the node that was asked first, which has
    /// its mark.
    pub(super) again: bool,
    /// A round before it was blocked: others wanted the key, and may still.
    pub(super) waited: bool,
    /// It cannot become a hold any more: a task that finds it alive at a node ends it there.
    over: AtomicBool,
    ends: Mutex<Ends>,
}

/// How a round ends at nodes whose try nobody waited for: a release that found it there has ended it,
/// and nothing more need be sent. One bit for each of the first 64 nodes.
#[derive(Debug, Default)]
struct Ends {
    /// A release was sent to all nodes.
    sent: bool,
    /// Where it did not find the round.
    missed: u64,
    /// Where the try was answered after the release was sent.
    landed: u64,
    /// Where it was tried again, so that a release may have found one try and the other lands later.
    planted: u64,
    /// Where its try certainly had no effect, as the node was down.
    untouched: u64,
}

impl Round {
    pub(super) fn of(claim: &Claim, floor: u64, waited: bool) -> Arc<Self> {
        // Nodes neither queue nor push a grant: they would choose different heads.
        let id = ClaimId::random();
        let claim = claim.clone().with(|it| {
            it.id = id;
            it.order = Order::Barging;
            it.floor = floor;
        });
        Arc::new(Self {
            claim,
            again: false,
            waited,
            over: AtomicBool::new(false),
            ends: Mutex::default(),
        })
    }

    /// A round under the same name. No release of the name has been sent, so none can come late.
    pub(super) fn again(&self, claim: &Claim, floor: u64) -> Arc<Self> {
        let claim = claim.clone().with(|it| {
            it.id = self.claim.id;
            it.order = Order::Barging;
            it.floor = floor;
        });
        Arc::new(Self {
            claim,
            again: true,
            waited: true,
            over: AtomicBool::new(false),
            ends: Mutex::default(),
        })
    }

    /// A round of another process, or of this one before it was detached.
    fn adopted(claim: &Claim) -> Arc<Self> {
        let claim = claim.clone().with(|it| it.order = Order::Barging);
        let (over, ends) = (AtomicBool::new(false), Mutex::default());
        Arc::new(Self { claim, again: false, waited: false, over, ends })
    }

    pub(super) fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
    }

    /// Whether the round may be alive at a node that answered so.
    fn may_be_left_by(&self, answer: &Result<Attempt, BackendError>) -> bool {
        match answer {
            Ok(Attempt::Granted(_)) => true,
            Ok(Attempt::Blocked(_)) => self.claim.waits,
            Err(error) => error.effect == Effect::Unknown,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    fn ends(&self) -> MutexGuard<'_, Ends> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A release is sent to all nodes.
    pub(super) fn release(&self) {
        self.end();
        self.ends().sent = true;
    }

    /// The round is tried at a node once more.
    pub(super) fn plants(&self, node: usize) {
        let (bit, mut ends) = (bit(node), self.ends());
        ends.planted |= bit;
        ends.untouched &= !bit;
    }

    /// A try has failed at a node.
    pub(super) fn fails(&self, node: usize, error: &BackendError) {
        let mut ends = self.ends();
        if error.effect == Effect::NotApplied && !self.again && ends.planted & bit(node) == 0 {
            ends.untouched |= bit(node);
        }
    }

    /// Whether the round may be at a node.
    pub(super) fn may_be_at(&self, node: usize) -> bool {
        self.ends().untouched & bit(node) == 0
    }

    /// A try that nobody waited for was answered; whether the round has to be ended at its node.
    fn lands(&self, node: usize) -> bool {
        if !self.is_over() {
            return false;
        }
        let (bit, mut ends) = (bit(node), self.ends());
        ends.landed |= bit;
        // A release has found it, or is still on its way: then its answer tells.
        let released = ends.sent && bit != 0 && (ends.missed | ends.planted) & bit == 0;
        !released
    }

    /// The release was answered; whether the round has to be ended at this node once more.
    fn released(&self, node: usize, found: bool) -> bool {
        if found {
            return false;
        }
        let (bit, mut ends) = (bit(node), self.ends());
        ends.missed |= bit;
        ends.landed & bit != 0
    }
}

fn bit(node: usize) -> u64 {
    1u64.checked_shl(node as u32).unwrap_or(0)
}

/// The state of the latest round of a claim.
#[derive(Debug, Clone)]
pub(super) enum State {
    /// The nodes are being asked.
    Open,
    /// A majority granted it, with this token.
    Held(u64),
    /// It did not come to a majority.
    Blocked(Arc<Standing>),
}

/// Where a blocked claim stands.
#[derive(Debug)]
pub(super) struct Standing {
    seen: Mutex<NodeAnswers>,
    /// Tells of answers that came after the decision.
    pub(super) news: Notify,
    /// How many of those who keep a mark have to say that the key may be free.
    pub(super) needs: usize,
    /// Whether only the node that was asked first has answered, and the others know nothing.
    pub(super) alone: bool,
    /// Whether so many have said so.
    pub(super) woken: AtomicBool,
    /// Whether nobody else can have had a majority either.
    pub(super) split: bool,
    /// How many rounds in a row ended so.
    pub(super) splits: u32,
}

/// What the nodes have said to a blocked claim.
#[derive(Debug, Clone, Default)]
pub(super) struct NodeAnswers {
    /// The nodes that were in the way, and what they said. They keep a mark that asks for a
    /// wake-up if the claim waits.
    pub(super) marks: Vec<(usize, Blocked)>,
    /// How many nodes have granted it since the decision.
    pub(super) free: usize,
    /// Nobody waits any more; the task that finds a later answer clears it up.
    over: bool,
}

impl Standing {
    pub(super) fn new(
        marks: Vec<(usize, Blocked)>,
        needs: usize,
        split: bool,
        splits: u32,
    ) -> Self {
        let seen = Mutex::new(NodeAnswers { marks, ..NodeAnswers::default() });
        Self {
            seen,
            news: Notify::new(),
            needs,
            alone: false,
            woken: AtomicBool::new(false),
            split,
            splits,
        }
    }

    /// Only the node that was asked first has answered.
    pub(super) fn at_first(marks: Vec<(usize, Blocked)>) -> Self {
        Self { alone: true, ..Self::new(marks, 1, false, 0) }
    }

    /// Whether this node was asked alone, and has the only mark.
    pub(super) fn is_at(&self, node: usize) -> bool {
        self.alone && self.lock().marks.iter().all(|(marked, _)| *marked == node)
    }

    fn lock(&self) -> MutexGuard<'_, NodeAnswers> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn seen(&self) -> NodeAnswers {
        self.lock().clone()
    }

    /// Takes an answer that came after the decision; whether its mark is kept.
    pub(super) fn note(&self, node: usize, answer: &Attempt) -> bool {
        let mut seen = self.lock();
        if seen.over {
            return false;
        }
        let kept = match answer {
            Attempt::Granted(_) => {
                seen.free += 1;
                false
            }
            Attempt::Blocked(blocked) => {
                seen.marks.push((node, blocked.clone()));
                true
            }
        };
        drop(seen);
        self.news.notify_waiters();
        kept
    }

    /// Ends the waiting, and takes the marks that are to be cleared.
    pub(super) fn leave(&self) -> Vec<(usize, Blocked)> {
        let mut seen = self.lock();
        seen.over = true;
        std::mem::take(&mut seen.marks)
    }
}

#[derive(Debug)]
struct Entry {
    round: Arc<Round>,
    state: State,
    until: Moment,
}

/// The latest round of each claim of this process, by the claim's own id.
#[derive(Debug)]
pub(super) struct Book {
    entries: HashMap<ClaimId, Entry>,
    crowded: usize,
}

impl Book {
    const CROWD: usize = 256;

    pub(super) fn new() -> Self {
        Self { entries: HashMap::new(), crowded: Self::CROWD }
    }

    /// Enters a round, and returns the one it replaces.
    pub(super) fn enter(
        &mut self,
        id: ClaimId,
        round: &Arc<Round>,
        state: State,
        now: Moment,
    ) -> Option<(Arc<Round>, State)> {
        if self.entries.len() >= self.crowded {
            // Claims that were neither renewed nor released: by now the nodes have dropped them.
            self.entries.retain(|_, entry| entry.until > now);
            self.crowded = Self::CROWD.max(self.entries.len() * 2);
        }
        let until = keep_until(now, round);
        let entry = Entry { round: round.clone(), state, until };
        self.entries.insert(id, entry).map(|old| (old.round, old.state))
    }

    pub(super) fn get(&self, id: ClaimId) -> Option<(Arc<Round>, State)> {
        self.entries.get(&id).map(|entry| (entry.round.clone(), entry.state.clone()))
    }

    /// Keeps a held claim under the name that the nodes know, by which any process asks for it. Returns that name.
    pub(super) fn detach(&mut self, id: ClaimId) -> ClaimId {
        match self.entries.remove(&id) {
            Some(entry @ Entry { state: State::Held(_), .. }) => {
                let name = entry.round.claim.id;
                self.entries.insert(name, entry);
                name
            }
            Some(entry) => {
                self.entries.insert(id, entry);
                id
            }
            None => id,
        }
    }

    /// The round of a claim that another process may have acquired. It is entered before the nodes are asked: a
    /// release in the meantime ends it.
    pub(super) fn adopt(&mut self, claim: &Claim, now: Moment) -> Arc<Round> {
        if let Some(entry) = self.entries.get(&claim.id) {
            return entry.round.clone();
        }
        let round = Round::adopted(claim);
        self.enter(claim.id, &round, State::Open, now);
        round
    }

    /// Changes the state of this very round; false if another has taken its place, or it is over.
    pub(super) fn advance(
        &mut self,
        id: ClaimId,
        round: &Arc<Round>,
        state: State,
        now: Moment,
    ) -> bool {
        match self.entries.get_mut(&id) {
            Some(entry) if Arc::ptr_eq(&entry.round, round) && !round.is_over() => {
                entry.state = state;
                entry.until = keep_until(now, round);
                true
            }
            _ => false,
        }
    }

    /// Forgets this very round.
    pub(super) fn forget(&mut self, id: ClaimId, round: &Arc<Round>) {
        if self.entries.get(&id).is_some_and(|entry| Arc::ptr_eq(&entry.round, round)) {
            self.entries.remove(&id);
        }
    }

    /// The claims' own ids by the names that the nodes know.
    pub(super) fn names(&self) -> HashMap<ClaimId, ClaimId> {
        self.entries.iter().map(|(id, entry)| (entry.round.claim.id, *id)).collect()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}

/// A node may have heard of the claim a little later than we last did, so it is kept for longer
/// than any node keeps it.
fn keep_until(now: Moment, round: &Round) -> Moment {
    now.plus(round.claim.ttl * 2 + Duration::from_secs(1))
}

/// A question that ends with an error when the time limit of a node is over.
pub(super) fn limited<T: Send + 'static>(
    shared: &Shared,
    limit: Duration,
    ask: impl Future<Output = Result<T, BackendError>> + Send + 'static,
) -> Ask<Result<T, BackendError>> {
    let io = shared.io.clone();
    Box::pin(async move { io.answer(limit, ask).await })
}

impl Shared {
    pub(super) fn ask_try(
        &self,
        node: usize,
        round: &Arc<Round>,
    ) -> Ask<Result<Attempt, BackendError>> {
        let (backend, round) = (self.nodes[node].clone(), round.clone());
        let limit = node_limit(round.claim.ttl);
        limited(self, limit, async move { backend.try_acquire(&round.claim).await })
    }

    pub(super) fn ask_release(
        &self,
        node: usize,
        claim: &Arc<Claim>,
        linger: Linger,
    ) -> Ask<Result<Released, BackendError>> {
        let (backend, claim) = (self.nodes[node].clone(), claim.clone());
        let limit = node_limit(claim.ttl);
        limited(self, limit, async move { backend.release(&claim, linger).await })
    }

    /// As [`Self::ask_release`], for a round whose tries may not all be answered.
    pub(super) fn ask_end(
        self: &Arc<Self>,
        node: usize,
        round: &Arc<Round>,
        claim: &Arc<Claim>,
        linger: Linger,
    ) -> Ask<Result<Released, BackendError>> {
        let ask = self.ask_release(node, claim, linger);
        let (shared, round, claim) = (self.clone(), round.clone(), claim.clone());
        Box::pin(async move {
            let answer = ask.await;
            shared.has_ended(node, &round, &claim, linger, &answer);
            answer
        })
    }

    /// A release of a round was answered.
    pub(super) fn has_ended(
        self: &Arc<Self>,
        node: usize,
        round: &Round,
        claim: &Arc<Claim>,
        linger: Linger,
        answer: &Result<Released, BackendError>,
    ) {
        // The caller repeats a release that failed.
        let again = round.released(node, matches!(answer, Ok(Released::Yes)));
        if again && answer.is_ok() {
            self.spawn_clear(node, claim, linger);
        }
    }

    /// What [`Self::straggle`] does with an answer.
    pub(super) fn on_late_try(
        self: &Arc<Self>,
        round: &Arc<Round>,
        standing: Option<Arc<Standing>>,
    ) -> OnLate<Result<Attempt, BackendError>> {
        let (shared, round) = (self.clone(), round.clone());
        Arc::new(move |node, answer| shared.land_late(node, &round, standing.as_deref(), &answer))
    }

    /// Takes an answer to a try that nobody waits for.
    fn land_late(
        self: &Arc<Self>,
        node: usize,
        round: &Round,
        standing: Option<&Standing>,
        answer: &Result<Attempt, BackendError>,
    ) {
        if let Err(error) = answer {
            round.fails(node, error);
        }
        let noted =
            |standing: &Standing| answer.as_ref().is_ok_and(|answer| standing.note(node, answer));
        if !standing.is_some_and(noted) && round.may_be_left_by(answer) && round.lands(node) {
            self.spawn_clear(node, &Arc::new(round.claim.clone()), Linger::None);
        }
    }

    /// Lets a try go on in the background, and ends the round at its node if it is over by then.
    ///
    /// The mark of a claim that waits is one more that may wake it, by its standing: a wait must not hang
    /// on the few nodes that answered first.
    pub(super) fn straggle(
        self: &Arc<Self>,
        node: usize,
        round: &Arc<Round>,
        standing: Option<Arc<Standing>>,
        ask: Ask<Result<Attempt, BackendError>>,
    ) {
        let (shared, round) = (self.clone(), round.clone());
        latchwork_wire::finish(&self.io, async move {
            let answer = ask.await;
            shared.land_late(node, &round, standing.as_deref(), &answer);
        });
    }

    /// Ends a claim at a node in the background.
    pub(super) fn spawn_clear(self: &Arc<Self>, node: usize, claim: &Arc<Claim>, linger: Linger) {
        let (shared, claim) = (self.clone(), claim.clone());
        self.io.spawn(async move { shared.clear(node, &claim, linger).await });
    }

    /// Releases a claim at a node until it answers, or until it has dropped the claim by itself.
    async fn clear(&self, node: usize, claim: &Arc<Claim>, linger: Linger) {
        let (limit, end) = (node_limit(claim.ttl), self.io.now().plus(claim.ttl));
        let mut backoff = Backoff::new(limit / 4, limit * 4);
        while self.ask_release(node, claim, linger).await.is_err() && self.io.now() < end {
            self.io.sleep(backoff.pause()).await;
        }
    }
}

/// How long one node may take: short against the ttl, so that a stopped node costs little of it, and
/// shorter than the shortest time that the engine gives a try, so that the caller hears which nodes failed.
pub(super) fn node_limit(ttl: Duration) -> Duration {
    (ttl / 10).min(Duration::from_millis(200))
}

#[cfg(test)]
mod tests;
