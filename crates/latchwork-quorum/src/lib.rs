//! One lock over several independent stores, held while a majority of them confirms it.
//!
//! How it works, with the reasons beside the code:
//!
//! - All nodes are asked at once, and the answer is given as soon as the others cannot change it
//!   (`tally`). The majority is counted of all nodes, never of those that answer.
//! - Who waited, and comes when the key may be free, asks one node before the others, so that not
//!   everyone gets a part of the votes (`node_order`).
//! - Each vote on a claim is a round under a fresh name (`round`). What a vote leaves behind is
//!   released in the background until its node answers or the ttl is over, also when the caller
//!   went away.
//! - The token is one that a majority remembers while the claim is live there, so any later
//!   majority, which shares a node with it, gives a larger one (`acquire`).
//! - A renewal counts only nodes that say "present and extended". A node that lost the claim gets
//!   it again in the background, and counts from the next renewal on (`hold`).

mod acquire;
mod flight;
mod gather;
mod hold;
mod node_order;
mod round;
mod tally;
#[cfg(test)]
mod tests;
mod view;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use self::gather::{Gatherer, Releases, Tries};
use self::node_order::NodeOrder;
use self::round::{Book, Round, State};
use self::tally::Size;
use latchwork_store::*;
use latchwork_store::{
    BackendError, BackendErrorKind, Capabilities, Effect, Error, ErrorKind, Fencing, Io,
};

/// A [`Backend`] over the majority of several others.
///
/// Use it over stores that share nothing (Redlock: N separate Redis servers). A minority of them
/// may be slow, down or cut off, and costs nothing. It is no use over stores that replicate each
/// other, and it cannot count permits.
///
/// # Guarantees
///
/// Exclusion holds while clocks run at the same rate (1 % is allowed for) and no node forgets a
/// claim that is still valid: a node that lost its data must keep quiet for as long as the longest
/// ttl before it grants again, which is its own duty.
///
/// Every claim is barging: who waits is not queued, and a stream of readers can keep a writer
/// waiting.
///
/// # Fencing
///
/// A later hold has a larger token than an earlier one, without trust in any clock as long as the
/// nodes keep their data. Two readers that hold the key at one time may have the same token.
pub struct Quorum {
    shared: Arc<Shared>,
}

struct Shared {
    nodes: Arc<[Arc<dyn Backend>]>,
    size: Size,
    capabilities: Capabilities,
    io: Io,
    book: Mutex<Book>,
    /// The largest token seen, over all keys: a proposal above it is above that of each key.
    largest: AtomicU64,
    node_order: NodeOrder,
    tries: Arc<Gatherer<Tries>>,
    releases: Arc<Gatherer<Releases>>,
}

impl Quorum {
    /// Makes one backend of `nodes`, which must be independent of each other.
    ///
    /// # Errors
    ///
    /// `Invalid` if there is no node, or no ttl that all nodes can grant.
    pub fn new(nodes: Vec<Arc<dyn Backend>>, io: Io) -> Result<Arc<Quorum>, Error> {
        Self::make(nodes, None, io)
    }

    /// As [`new`](Self::new), under an address of its own instead of the list of the nodes'.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn named(
        store: impl Into<Arc<str>>,
        nodes: Vec<Arc<dyn Backend>>,
        io: Io,
    ) -> Result<Arc<Quorum>, Error> {
        Self::make(nodes, Some(store.into()), io)
    }

    fn make(
        nodes: Vec<Arc<dyn Backend>>,
        store: Option<Arc<str>>,
        io: Io,
    ) -> Result<Arc<Quorum>, Error> {
        let size = Size::of(nodes.len());
        let mut capabilities = combine(&nodes, size)?;
        if let Some(store) = store {
            capabilities.store = store;
        }
        let names: Vec<_> = nodes.iter().map(|node| node.capabilities().store).collect();
        let node_order = NodeOrder::new(names.iter().map(|name| &**name));
        let (book, largest) = (Mutex::new(Book::new()), AtomicU64::new(0));
        let nodes: Arc<[_]> = nodes.into();
        let tries = Gatherer::new(nodes.clone(), size, io.clone());
        let releases = Gatherer::new(nodes.clone(), size, io.clone());
        let shared =
            Shared { nodes, size, capabilities, io, book, largest, node_order, tries, releases };
        Ok(Arc::new(Self { shared: Arc::new(shared) }))
    }
}

/// What all nodes can do together.
fn combine(nodes: &[Arc<dyn Backend>], size: Size) -> Result<Capabilities, Error> {
    let each: Vec<Capabilities> = nodes.iter().map(|node| node.capabilities()).collect();
    let invalid = |message: String| Error::new(ErrorKind::Invalid, message);
    let shortest = each.iter().map(|c| *c.ttl.start()).max();
    let longest = each.iter().map(|c| *c.ttl.end()).min();
    let (Some(shortest), Some(longest)) = (shortest, longest) else {
        return Err(invalid("nodes: a quorum needs at least one node".into())
            .with_next_step("name three or five independent stores"));
    };
    if shortest > longest {
        return Err(invalid(format!(
            "nodes: no ttl suits all of them (at least {shortest:?}, at most {longest:?})"
        )));
    }
    let names: Vec<&str> = each.iter().map(|c| &*c.store).collect();
    let default = each.iter().map(|c| c.default_ttl).min().unwrap_or(shortest);
    let mut all = Capabilities::least(format!("quorum({})", names.join(", ")))
        .with_ttl(shortest..=longest, default.clamp(shortest, longest));
    all.shared = each.iter().all(|c| c.shared);
    all.linger = each.iter().all(|c| c.linger);
    all.push = each.iter().filter(|c| c.push).count() >= size.majority;
    all.fencing = [Fencing::None, Fencing::WhileDataSurvives]
        .into_iter()
        .find(|weaker| each.iter().any(|c| c.fencing == *weaker))
        .unwrap_or(Fencing::Linearizable);
    Ok(all)
}

impl Shared {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The latest round of a claim; the book is closed again before this returns.
    fn look_up(&self, id: ClaimId) -> Option<(Arc<Round>, State)> {
        self.book().get(id)
    }

    /// A token above all that this process knows of and, by the clock, above all others.
    fn propose(&self) -> u64 {
        let clock = self.io.clock().wall().as_micros() as u64;
        self.largest.load(Ordering::SeqCst).max(clock) + 1
    }

    fn learn(&self, token: u64) {
        self.largest.fetch_max(token, Ordering::SeqCst);
    }

    /// The error when too few nodes said what was asked; it names those that did not.
    fn too_few(&self, failures: &[(usize, BackendError)], effect: Effect) -> BackendError {
        let mut kinds = failures.iter().map(|(_, error)| error.kind);
        let first = kinds.next().unwrap_or(BackendErrorKind::Unreachable);
        let kind = if kinds.all(|k| k == first) { first } else { BackendErrorKind::Unreachable };
        let did = match kind {
            BackendErrorKind::Unreachable => "did not answer",
            _ => "refused",
        };
        let mut failures: Vec<_> = failures.iter().collect();
        failures.sort_unstable_by_key(|(node, _)| *node);
        let each = failures.iter().map(|(node, error)| {
            format!("{} ({})", self.nodes[*node].capabilities().store, error.message)
        });
        let each: Vec<String> = each.collect();
        let (some, all) = (each.len(), self.size.nodes);
        let message = format!("{some} of {all} nodes {did}: {}", each.join(", "));
        let error = BackendError::new(kind, effect, message);
        match failures.iter().find_map(|(_, error)| error.next_step.clone()) {
            Some(step) => error.with_next_step(step),
            None => error,
        }
    }
}

impl Backend for Quorum {
    fn capabilities(&self) -> Capabilities {
        self.shared.capabilities.clone()
    }

    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> Verb<'a, Result<Attempt, BackendError>> {
        Box::pin(self.shared.try_acquire(claim))
    }

    fn wait<'a>(
        &'a self,
        claim: &'a Claim,
        blocked: &'a Blocked,
    ) -> Verb<'a, Result<Wake, BackendError>> {
        Box::pin(async move { Ok(self.shared.wait(claim, blocked).await) })
    }

    fn renew_all<'a>(
        &'a self,
        claims: &'a [Claim],
    ) -> Verb<'a, Vec<Result<Renewal, BackendError>>> {
        Box::pin(self.shared.renew_all(claims))
    }

    fn renews_for_others(&self) -> bool {
        self.shared.nodes.iter().all(|node| node.renews_for_others())
    }

    fn detach(&self, claim: &Claim) -> ClaimId {
        self.shared.book().detach(claim.id)
    }

    /// The nodes may have given a larger token each, so that their answers do not tell the one that a majority confirmed.
    fn adopt(&self, claim: Claim, token: u64) -> Claim {
        claim.with(|it| it.floor = it.floor.max(token))
    }

    fn release<'a>(
        &'a self,
        claim: &'a Claim,
        linger: Linger,
    ) -> Verb<'a, Result<Released, BackendError>> {
        Box::pin(self.shared.release(claim, linger))
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> Verb<'a, Result<Vec<Snapshot>, BackendError>> {
        Box::pin(self.shared.inspect(query))
    }
}

impl fmt::Debug for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quorum").field("nodes", &self.shared.nodes).finish_non_exhaustive()
    }
}

/// How long a node may take to be inspected, and the others longer than the majority.
const INSPECT_LIMIT: Duration = Duration::from_secs(2);
/// And for a list, of which a node sends a part in each of many answers. The caller has a limit of its own.
const LIST_LIMIT: Duration = Duration::from_secs(60);

fn corrupt(message: &str) -> BackendError {
    BackendError::new(BackendErrorKind::Corrupt, Effect::Unknown, message)
}
