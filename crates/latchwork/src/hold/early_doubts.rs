//! Doubts that a store has raised about claims before the watchdog cares for them.
//!
//! A claim may end in the moment in which it is granted. Then the word that something is wrong with it
//! can overtake its grant, which another thread makes a lease. So it is kept for a while.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use latchwork_store::{ClaimId, Moment};

/// How many words are kept. Most are of claims of other managers, or of some that nobody waits for.
const MOST: usize = 256;
const KEPT_FOR: Duration = Duration::from_secs(2);

/// The claims that were doubted too early, the oldest first, each until a moment.
#[derive(Debug, Default)]
pub(crate) struct EarlyDoubts(VecDeque<(ClaimId, Moment)>);

impl EarlyDoubts {
    /// Keeps what was said of these.
    pub(crate) fn keep(&mut self, doubted: HashSet<ClaimId>, now: Moment) {
        self.0.retain(|(_, until)| *until > now);
        let until = now.plus(KEPT_FOR);
        self.0.extend(doubted.into_iter().take(MOST).map(|id| (id, until)));
        let excess = self.0.len().saturating_sub(MOST);
        self.0.drain(..excess);
    }

    /// Whether something was said of a claim that comes into care.
    pub(crate) fn take(&mut self, id: ClaimId) -> bool {
        let at = self.0.iter().position(|(early, _)| *early == id);
        at.and_then(|at| self.0.remove(at)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(n: u128) -> ClaimId {
        ClaimId::from_u128(n)
    }

    #[test]
    fn an_early_doubt_is_reported_once() {
        let mut early = EarlyDoubts::default();
        let now = Moment::from_nanos(1_000);
        early.keep(HashSet::from([claim(1), claim(2)]), now);
        assert!(early.take(claim(1)));
        assert!(!early.take(claim(1)), "it is in care now");
        early.keep(HashSet::from([claim(3)]), now.plus(KEPT_FOR));
        assert!(!early.take(claim(2)), "that was long ago");
        assert!(early.take(claim(3)));
    }

    #[test]
    fn doubts_about_foreign_claims_use_bounded_memory() {
        let mut early = EarlyDoubts::default();
        let now = Moment::from_nanos(1_000);
        for n in 0..20u128 {
            early.keep((0..100).map(|of| claim(100 * n + of)).collect(), now);
            assert!(early.0.len() <= MOST);
        }
        early.keep((0..10_000).map(claim).collect(), now);
        assert_eq!(early.0.len(), MOST);
    }
}
