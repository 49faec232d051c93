//! Counting: what the answers of some nodes mean for all of them.

use std::time::Duration;

use latchwork_store::Grant;

/// How many nodes there are, and how many of them decide.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub(super) nodes: usize,
    /// The smallest number of which two always share a node. Counted of all nodes, never of those
    /// that answer.
    pub(super) majority: usize,
}

/// How many nodes said yes, said no, or failed to say.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Count {
    pub(super) yes: usize,
    pub(super) no: usize,
    pub(super) failed: usize,
}

/// What a count amounts to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Yes,
    No,
    /// Too few nodes answered.
    Failed,
}

impl Size {
    pub(super) fn of(nodes: usize) -> Self {
        Self { nodes, majority: nodes / 2 + 1 }
    }

    /// Fewer answers decide no vote.
    pub(super) fn least(self) -> usize {
        self.majority.min(self.nodes - self.majority + 1)
    }

    /// Whether so many nodes are enough to keep all others from a majority.
    pub(super) fn blocks(self, nodes: usize) -> bool {
        nodes > self.nodes - self.majority
    }

    /// A vote: yes by a majority; no where that cannot be any more, though a majority answers.
    pub(super) fn vote(self, count: Count) -> Option<Verdict> {
        if count.yes >= self.majority {
            Some(Verdict::Yes)
        } else if self.blocks(count.failed) {
            Some(Verdict::Failed)
        } else if self.blocks(count.no + count.failed) && count.yes + count.no >= self.majority {
            Some(Verdict::No)
        } else {
            None
        }
    }

    /// A word that must not be guessed: yes by a majority, no only by nodes that said no.
    pub(super) fn word(self, count: Count) -> Option<Verdict> {
        let pending = self.nodes - count.yes - count.no - count.failed;
        if count.yes >= self.majority {
            Some(Verdict::Yes)
        } else if self.blocks(count.no) {
            Some(Verdict::No)
        } else if count.yes + pending < self.majority && !self.blocks(count.no + pending) {
            Some(Verdict::Failed)
        } else {
            None
        }
    }

    /// The largest value that a majority reaches, if so many were given.
    pub(super) fn reached<T: Ord + Copy>(self, values: impl Iterator<Item = T>) -> Option<T> {
        let mut values: Vec<T> = values.collect();
        values.sort_unstable();
        let index = values.len().checked_sub(self.majority)?;
        Some(values[index])
    }

    /// The smallest value that a majority does not exceed, if so many were given.
    pub(super) fn within<T: Ord + Copy>(self, values: impl Iterator<Item = T>) -> Option<T> {
        let mut values: Vec<T> = values.collect();
        values.sort_unstable();
        values.get(self.majority - 1).copied()
    }

    /// The token and the ttl of a claim that a majority granted.
    ///
    /// The token is the largest answer of some majority: it shares a node with the majority that
    /// remembers any earlier token, and that node answered more. It is safe to use once a majority
    /// remembers it or more while the claim is live there.
    pub(super) fn grant(self, grants: &[(usize, Grant)]) -> Option<(u64, Duration)> {
        let token = self.within(grants.iter().map(|(_, grant)| grant.token))?;
        Some((token, self.reached(grants.iter().map(|(_, grant)| grant.ttl))?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All counts of up to seven nodes: a verdict is final whatever the others say later, a
    /// majority is never denied, and when all have answered there is a verdict.
    #[test]
    fn verdicts_are_final_and_always_come() {
        for nodes in 1..=7 {
            let size = Size::of(nodes);
            assert!(2 * size.majority > nodes);
            for judge in [Size::vote, Size::word] {
                for count in counts(nodes) {
                    let answered = count.yes + count.no + count.failed;
                    let verdict = judge(size, count);
                    assert!(verdict.is_some() || answered < nodes, "{nodes} nodes: {count:?}");
                    let later = counts(nodes).filter(|l| {
                        l.yes >= count.yes && l.no >= count.no && l.failed >= count.failed
                    });
                    for later in later {
                        let yes = later.yes >= size.majority;
                        match verdict {
                            Some(Verdict::Yes) => assert!(yes),
                            Some(_) => assert!(!yes, "{nodes} nodes: {count:?} {later:?}"),
                            None => {}
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn the_least_answers_that_decide_are_known() {
        for nodes in 1..=7 {
            let size = Size::of(nodes);
            let decided = counts(nodes)
                .filter(|count| size.vote(*count).is_some() || size.word(*count).is_some());
            let least = decided.map(|count| count.yes + count.no + count.failed).min();
            assert_eq!(least, Some(size.least()), "{nodes} nodes");
        }
    }

    fn counts(nodes: usize) -> impl Iterator<Item = Count> {
        let upto = move || 0..=nodes;
        upto()
            .flat_map(move |yes| upto().map(move |no| (yes, no)))
            .flat_map(move |(yes, no)| upto().map(move |failed| Count { yes, no, failed }))
            .filter(move |c| c.yes + c.no + c.failed <= nodes)
    }

    #[test]
    fn silent_nodes_do_not_make_a_hold_lost() {
        let size = Size::of(3);
        let count = |yes, no, failed| Count { yes, no, failed };
        assert_eq!(size.word(count(1, 0, 2)), Some(Verdict::Failed));
        assert_eq!(size.word(count(0, 1, 2)), Some(Verdict::Failed));
        assert_eq!(size.word(count(0, 2, 0)), Some(Verdict::No));
        assert_eq!(size.word(count(1, 1, 0)), None, "the third decides");
        assert_eq!(size.word(count(1, 1, 1)), Some(Verdict::Failed));
    }

    #[test]
    fn a_slow_minority_is_not_waited_for() {
        let size = Size::of(5);
        let count = |yes, no, failed| Count { yes, no, failed };
        assert_eq!(size.vote(count(3, 0, 0)), Some(Verdict::Yes));
        assert_eq!(size.vote(count(0, 3, 0)), Some(Verdict::No));
        assert_eq!(size.vote(count(0, 0, 3)), Some(Verdict::Failed));
        assert_eq!(size.vote(count(2, 2, 0)), None);
        assert_eq!(size.vote(count(0, 1, 2)), None, "held or unreachable: two more will tell");
        assert_eq!(Size::of(4).vote(count(2, 2, 0)), Some(Verdict::No), "half is no majority");
    }

    #[test]
    fn values_of_a_majority() {
        let size = Size::of(3);
        assert_eq!(size.reached([5, 9, 1].into_iter()), Some(5));
        assert_eq!(size.reached([5, 9].into_iter()), Some(5));
        assert_eq!(size.within([5, 9].into_iter()), Some(9));
        assert_eq!(size.within([5, 9, 1].into_iter()), Some(5));
        assert_eq!(size.within([5].into_iter()), None);
    }
}
