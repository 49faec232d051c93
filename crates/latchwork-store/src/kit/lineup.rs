//! Decides which claims of a queue of ordered nodes are admitted.
//!
//! For stores that keep one node for each claim in an order of their own (a sequence number, a
//! create revision) and can watch a node. A claim writes its node, reads the queue, and asks
//! [`admission`]: either it holds the key, or it watches the returned nodes and reads the queue
//! again when one of them leaves. A node leaves by release or with its session.
//!
//! The claims that hold the key are the first ones in the queue. Permits of different limits are judged by
//! their own limit, and nobody passes a waiter. A waiter watches as few nodes as possible, so that one
//! departure does not wake the whole queue.

use crate::claim::Mode;

/// One claim in the queue, in the store's order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node<I> {
    /// Its name in the backend: a path, a key.
    pub id: I,
    /// The mode of its claim.
    pub mode: Mode,
}

/// Whether a node holds the key, or which places it waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    /// It holds the key.
    Granted,
    /// It waits until this place in the queue leaves.
    Behind(usize),
    /// It waits until any of these places leaves. Without a place, its limit admits it never.
    BehindAny(Vec<usize>),
}

/// Decides whether the node at the place `me` holds the key.
///
/// All nodes must be of one shape; a node of another one is taken for a claim that shares with
/// nobody. A permit holds the key if each place up to its own is within the limit of that place: so a larger limit
/// passes no waiter with a smaller one. A claim that takes more than its limit waits, also at the first place.
///
/// # Panics
///
/// Panics if there is no place `me` in the queue.
pub fn admission<I>(queue: &[Node<I>], me: usize) -> Admission {
    let ahead = &queue[..me];
    match queue[me].mode {
        // The one right ahead, though it may be a reader among others: each departure then wakes
        // one writer, which moves up.
        Mode::Exclusive | Mode::Write => match me {
            0 => Admission::Granted,
            _ => Admission::Behind(me - 1),
        },
        // The nearest of the writers: while it stays, no departure before it matters.
        Mode::Read => match ahead.iter().rposition(|node| node.mode != Mode::Read) {
            None => Admission::Granted,
            Some(writer) => Admission::Behind(writer),
        },
        Mode::Permits { .. } => match last_over(&queue[..=me]) {
            None => Admission::Granted,
            // The nearest ones ahead of it that take too many with it: while all of them stay, no
            // other departure matters.
            Some(last) => {
                let limit = limit_of(&queue[last]);
                let mut taken = takes(&queue[last]);
                let mut from = last;
                while taken <= limit {
                    from -= 1;
                    taken += takes(&queue[from]);
                }
                Admission::BehindAny((from..=last).filter(|place| *place != me).collect())
            }
        },
    }
}

/// How many permits a place takes. One of another shape takes more than any limit leaves.
fn takes<I>(node: &Node<I>) -> u64 {
    match node.mode {
        Mode::Permits { take, .. } => take.into(),
        _ => u32::MAX.into(),
    }
}

/// The limit that a place has for itself and those ahead.
fn limit_of<I>(node: &Node<I>) -> u64 {
    node.mode.limit().unwrap_or(u32::MAX).into()
}

/// The last place that exceeds its limit together with those ahead.
fn last_over<I>(queue: &[Node<I>]) -> Option<usize> {
    let mut taken = 0;
    let is_over = |node: &Node<I>| {
        taken += takes(node);
        taken > limit_of(node)
    };
    let over: Vec<_> = queue.iter().map(is_over).collect();
    over.into_iter().rposition(|is_over| is_over)
}

/// Returns whether each place holds the key, as [`admission`] judges it, in one pass for all.
///
/// All nodes must be of one shape, as for [`admission`].
pub fn holding<I>(queue: &[Node<I>]) -> Vec<bool> {
    let (mut taken, mut only_readers, mut fits) = (0, true, true);
    let holds = |(place, node): (usize, &Node<I>)| {
        taken += takes(node);
        match node.mode {
            Mode::Exclusive | Mode::Write => {
                only_readers = false;
                place == 0
            }
            Mode::Read => only_readers,
            Mode::Permits { .. } => {
                fits &= taken <= limit_of(node);
                fits
            }
        }
    };
    queue.iter().enumerate().map(holds).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMIT: u32 = 4;

    /// Queues of one shape; the ids are numbered from the front.
    fn queues() -> impl Strategy<Value = Vec<Node<usize>>> {
        let number = |modes: Vec<Mode>| {
            modes.into_iter().enumerate().map(|(id, mode)| Node { id, mode }).collect()
        };
        let read_write = prop_oneof![3 => Just(Mode::Read), 2 => Just(Mode::Write)];
        let permits = (1..=LIMIT).prop_map(|take| Mode::Permits { take, of: LIMIT });
        let mixed =
            (1..=LIMIT, 0..3u32).prop_map(|(take, more)| Mode::Permits { take, of: take + more });
        prop_oneof![
            prop::collection::vec(mixed, 1..12),
            prop::collection::vec(Just(Mode::Exclusive), 1..12),
            prop::collection::vec(read_write, 1..12),
            prop::collection::vec(permits, 1..12),
        ]
        .prop_map(number)
    }

    fn granted<I>(queue: &[Node<I>]) -> Vec<usize> {
        (0..queue.len()).filter(|me| admission(queue, *me) == Admission::Granted).collect()
    }

    fn watched(admission: &Admission) -> Vec<usize> {
        match admission {
            Admission::Granted => vec![],
            Admission::Behind(place) => vec![*place],
            Admission::BehindAny(places) => places.clone(),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn admitted_claims_are_compatible_and_first_in_the_queue(queue in queues()) {
            let granted = granted(&queue);
            let holding = holding(&queue);
            let held: Vec<_> = (0..queue.len()).filter(|place| holding[*place]).collect();
            prop_assert_eq!(&granted, &held);
            prop_assert_eq!(&granted, &(0..granted.len()).collect::<Vec<_>>());
            prop_assert!(!granted.is_empty());
            let modes = || granted.iter().map(|place| queue[*place].mode);
            if modes().any(|m| matches!(m, Mode::Exclusive | Mode::Write)) {
                prop_assert_eq!(granted.len(), 1);
            }
            let mut taken = 0;
            for mode in modes() {
                if let Mode::Permits { take, of } = mode {
                    taken += take;
                    prop_assert!(taken <= of, "{queue:?}");
                }
            }
        }

        #[test]
        fn each_admitting_departure_was_watched(queue in queues(), gone in any::<usize>()) {
            let gone = gone % queue.len();
            let mut after = queue.clone();
            after.remove(gone);
            for me in (0..after.len()).filter(|me| admission(&after, *me) == Admission::Granted) {
                let before = if me < gone { me } else { me + 1 };
                let answer = admission(&queue, before);
                prop_assert!(answer == Admission::Granted || watched(&answer).contains(&gone));
            }
        }

        /// Holders leave in any order, waiters may die, and nobody looks but who watches a node
        /// that left: the queue still empties.
        #[test]
        fn every_waiter_is_woken(
            queue in queues(),
            leave in prop::collection::vec((any::<usize>(), prop::bool::weighted(0.2)), 64),
        ) {
            let mut queue = queue;
            let look = |queue: &[Node<usize>], id: usize| -> Vec<usize> {
                let me = queue.iter().position(|n| n.id == id).unwrap();
                watched(&admission(queue, me)).into_iter().map(|place| queue[place].id).collect()
            };
            // What each node watches; nothing means that it believes to hold the key.
            let mut watches: Vec<_> = (0..queue.len()).map(|id| look(&queue, id)).collect();
            for (pick, dies) in leave {
                let leavers: Vec<usize> = queue
                    .iter()
                    .map(|n| n.id)
                    .filter(|id| dies || watches[*id].is_empty())
                    .collect();
                prop_assert!(queue.is_empty() || !leavers.is_empty(), "all wait: {queue:?}");
                if leavers.is_empty() {
                    return Ok(());
                }
                let gone = leavers[pick % leavers.len()];
                queue.retain(|n| n.id != gone);
                for id in queue.iter().map(|n| n.id).collect::<Vec<_>>() {
                    if watches[id].contains(&gone) {
                        watches[id] = look(&queue, id);
                    }
                    prop_assert_eq!(watches[id].is_empty(), look(&queue, id).is_empty());
                }
            }
            prop_assert!(queue.is_empty());
        }

        #[test]
        fn each_departure_wakes_one_mutex_waiter_or_writer(queue in queues()) {
            let mut watchers = vec![0; queue.len()];
            for me in 0..queue.len() {
                let answer = admission(&queue, me);
                if matches!(queue[me].mode, Mode::Exclusive | Mode::Write) {
                    prop_assert_eq!(watched(&answer).len(), usize::from(me > 0));
                    for place in watched(&answer) {
                        watchers[place] += 1;
                    }
                }
            }
            prop_assert!(watchers.iter().all(|count| *count <= 1));
        }
    }

    #[test]
    fn a_reader_waits_behind_the_nearest_writer_alone() {
        use Mode::{Read, Write};
        let modes = [Read, Write, Read, Write, Read, Read];
        let queue: Vec<_> = modes.into_iter().map(|mode| Node { id: (), mode }).collect();
        let answers: Vec<_> = (0..queue.len()).map(|me| admission(&queue, me)).collect();
        let behind = Admission::Behind;
        let expected = [Admission::Granted, behind(0), behind(1), behind(2), behind(3), behind(3)];
        assert_eq!(answers, expected);
    }

    #[test]
    fn a_permit_watches_only_the_claims_that_block_it() {
        let permits = |takes: &[u32]| -> Vec<Node<()>> {
            let mode = |take: &u32| Mode::Permits { take: *take, of: LIMIT };
            takes.iter().map(|take| Node { id: (), mode: mode(take) }).collect()
        };
        let queue = permits(&[1, 1, 1, 1, 1, 1, 1, 2]);
        assert_eq!(admission(&queue, 3), Admission::Granted);
        assert_eq!(admission(&queue, 4), Admission::BehindAny(vec![0, 1, 2, 3]));
        assert_eq!(admission(&queue, 6), Admission::BehindAny(vec![2, 3, 4, 5]));
        assert_eq!(admission(&queue, 7), Admission::BehindAny(vec![4, 5, 6]));
        assert_eq!(admission(&permits(&[3, 1, 4]), 2), Admission::BehindAny(vec![1]));
    }

    /// The larger limit of the second and the third place would admit them without the first waiter.
    #[test]
    fn h506_a_larger_limit_passes_no_waiter() {
        let permits = |modes: &[(u32, u32)]| -> Vec<Node<()>> {
            let mode = |(take, of): &(u32, u32)| Mode::Permits { take: *take, of: *of };
            modes.iter().map(|it| Node { id: (), mode: mode(it) }).collect()
        };
        let queue = permits(&[(1, 5), (1, 1), (3, 5)]);
        assert_eq!(holding(&queue), [true, false, false]);
        assert_eq!(admission(&queue, 2), Admission::BehindAny(vec![0, 1]));
        let beyond = permits(&[(3, 2), (1, 5)]);
        assert_eq!(admission(&beyond, 0), Admission::BehindAny(vec![]));
        assert_eq!(admission(&beyond, 1), Admission::BehindAny(vec![0]));
    }

    #[test]
    fn a_node_of_another_shape_shares_with_nobody() {
        let permit = Node { id: (), mode: Mode::Permits { take: 1, of: 2 } };
        let queue = [Node { id: (), mode: Mode::Exclusive }, permit];
        assert_eq!(admission(&queue, 1), Admission::BehindAny(vec![0]));
    }
}
