use proptest::prelude::*;

use super::*;
use crate::kit::lineup::{self, Admission, Node};

/// A place in the queue of the model.
#[derive(Debug, Clone)]
struct Place {
    order: i64,
    mode: Mode,
    /// Its claim was told that it holds the key.
    granted: bool,
    /// It held the key at some time, whether its claim was told or not.
    held: bool,
}

fn take(mode: Mode) -> u32 {
    match mode {
        Mode::Permits { take, .. } => take,
        _ => 0,
    }
}

/// A store with one queue and the change beside it. The text is what it keeps.
#[derive(Debug, Default)]
struct Store {
    revision: i64,
    queue: Vec<Place>,
    kept: Option<(String, i64)>,
    /// The largest limit that anybody has asked for.
    largest: u32,
}

impl Store {
    fn limit(&self) -> Option<Limit> {
        self.kept.as_ref().map(|(text, at)| Limit::parse(text.as_bytes(), *at).unwrap())
    }

    fn nodes(&self, judged: impl Fn(&Limit, i64, Mode) -> Mode) -> Vec<Node<()>> {
        let limit = self.limit();
        let mode = |place: &Place| match &limit {
            Some(limit) => judged(limit, place.order, place.mode),
            None => place.mode,
        };
        self.queue.iter().map(|place| Node { id: (), mode: mode(place) }).collect()
    }

    fn holding(&self) -> Vec<bool> {
        lineup::holding(&self.nodes(Limit::of_holder))
    }

    fn enter(&mut self, take: u32, of: u32) {
        self.revision += 1;
        self.largest = self.largest.max(of);
        let mode = Mode::Permits { take, of };
        self.queue.push(Place { order: self.revision, mode, granted: false, held: false });
    }

    fn leave(&mut self, at: usize) {
        self.revision += 1;
        self.queue.remove(at);
    }

    /// The claim at a place repeats its try.
    fn look(&mut self, at: usize) -> bool {
        let judged = if self.queue[at].granted { Limit::of_holder } else { Limit::of_waiter };
        let is_granted = lineup::admission(&self.nodes(judged), at) == Admission::Granted;
        assert!(is_granted || !self.queue[at].granted, "a holder is blocked: {self:?}");
        self.queue[at].granted |= is_granted;
        is_granted
    }

    fn begin(&mut self, of: u32) -> Change {
        let old = self.limit();
        let before = self.holding();
        self.largest = self.largest.max(of);
        self.revision += 1;
        let begun = Limit::begin(old.as_ref(), of, Limit::HERE);
        self.kept = Some((begun.to_text(), self.revision));
        let is_known = old.is_none_or(|old| old.is_settled());
        let place = |(place, holds): (&Place, bool)| (place.order, place.mode, holds);
        let places = self.queue.iter().zip(before).map(place).collect();
        Change { of, places, at: self.revision, is_known }
    }

    fn settle(&mut self, change: &Change) -> bool {
        if !change.is_known || self.kept.as_ref().is_none_or(|(_, at)| *at != change.at) {
            return false;
        }
        self.revision += 1;
        let settled = Limit::settle(None, change.of, change.places.iter().copied()).unwrap();
        self.kept = Some((settled.to_text(), self.revision));
        true
    }

    /// What must be so at all times.
    fn check(&mut self) {
        let holding = self.holding();
        for (place, holds) in self.queue.iter_mut().zip(&holding) {
            assert!(*holds || !place.granted, "a holder is judged to wait");
        }
        let granted = self.queue.iter().filter(|place| place.granted);
        let held: u32 = granted.map(|place| take(place.mode)).sum();
        assert!(held <= self.largest, "{held} are held, and {} were asked for", self.largest);
        if self.limit().is_none_or(|limit| limit.is_settled()) {
            let itself = lineup::holding(&self.nodes(Limit::of_waiter));
            assert_eq!(holding, itself, "after the second step all judge alike");
            for (place, holds) in self.queue.iter_mut().zip(&holding) {
                assert!(*holds || !place.held, "a hold has ended");
                place.held |= holds;
            }
        }
    }
}

/// A change that has made its first step.
#[derive(Debug)]
struct Change {
    of: u32,
    places: Vec<(i64, Mode, bool)>,
    at: i64,
    is_known: bool,
}

#[derive(Debug, Clone)]
enum Step {
    Enter(u32, u32),
    Leave(usize),
    Look(usize),
    Begin(u32),
    Settle,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1..4u32, 0..5u32).prop_map(|(take, more)| Step::Enter(take, take + more)),
        3 => any::<usize>().prop_map(Step::Leave),
        4 => any::<usize>().prop_map(Step::Look),
        2 => (1..8u32).prop_map(Step::Begin),
        2 => Just(Step::Settle),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Clients enter, leave and look in any order, and change the limit; a change may end after its first
    /// step, and another one may come between its steps.
    #[test]
    fn a_change_evicts_nobody_and_no_more_is_held_than_was_asked_for(steps in steps()) {
        let mut store = Store::default();
        let mut begun: Option<Change> = None;
        for step in steps {
            let at = |pick: usize| pick % store.queue.len().max(1);
            match step {
                Step::Enter(take, of) => store.enter(take, of),
                Step::Leave(pick) if !store.queue.is_empty() => store.leave(at(pick)),
                Step::Look(pick) if !store.queue.is_empty() => drop(store.look(at(pick))),
                Step::Begin(of) => begun = Some(store.begin(of)),
                Step::Settle => drop(begun.take().map(|change| store.settle(&change))),
                Step::Leave(_) | Step::Look(_) => {}
            }
            store.check();
        }
    }

    /// A place that did not hold the key before a smaller limit is granted by the smaller one alone,
    /// whatever happens between the steps and after.
    #[test]
    fn a_smaller_limit_reaches_every_waiter(
        takes in prop::collection::vec(1..3u32, 1..10),
        limit in 1..6u32,
        moves in prop::collection::vec((any::<usize>(), any::<bool>()), 0..20),
        settles_after in 0..20usize,
    ) {
        let mut store = Store::default();
        takes.iter().for_each(|take| store.enter(*take, 6));
        let held: Vec<_> = store.holding();
        let old: Vec<_> = store.queue.iter().zip(&held).filter(|it| *it.1).map(|it| it.0.order).collect();
        let change = store.begin(limit);
        for (n, (pick, leaves)) in moves.into_iter().enumerate() {
            if n == settles_after {
                store.settle(&change);
            }
            if store.queue.is_empty() {
                break;
            }
            let at = pick % store.queue.len();
            if leaves {
                store.leave(at);
            } else if store.look(at) && !old.contains(&store.queue[at].order) {
                let taken: u32 = store.queue[..=at].iter().map(|place| take(place.mode)).sum();
                prop_assert!(taken <= limit, "{store:?}");
            }
            store.check();
        }
    }

    #[test]
    fn a_change_comes_back(
        of in 1..9u32,
        last in prop::option::of(any::<i64>()),
        before in prop::option::of(any::<u32>()),
        over in prop::collection::btree_set(any::<i64>(), 0..4),
    ) {
        let (over, here) = (over.into_iter().collect(), 77);
        let limit = Limit { of, last: last.unwrap_or(Limit::HERE), before, over };
        let read = Limit::parse(limit.to_text().as_bytes(), here).unwrap();
        let last = if limit.last == Limit::HERE { here } else { limit.last };
        prop_assert_eq!(read, Limit { last, ..limit });
    }
}

#[test]
fn what_others_write_is_no_limit() {
    for text in [
        &b""[..],
        b"lw1",
        b"lw1 3",
        b"lw1 3 - -",
        b"lw2 3 - - ",
        b"\xff",
        b"lw1 x 1 1 ",
        b"lw1 3 1 - 5,4",
    ] {
        assert_eq!(Limit::parse(text, 1), None, "{text:?}");
    }
}

#[test]
fn a_change_means_nothing_to_later_places() {
    let own = Mode::Permits { take: 1, of: 3 };
    let places = || [(4, own, true)].into_iter();
    let limit = Limit::settle(None, 5, places()).unwrap();
    let begun = Limit::begin(Some(&limit), 6, 4);
    assert_eq!(Limit::settle(Some(&begun), 7, places()), None, "it is not known who holds the key");
    assert_eq!(limit.of_place(4, own).limit(), Some(5));
    for judged in [Limit::of_place, Limit::of_waiter, Limit::of_holder] {
        assert_eq!(judged(&limit, 5, own), own);
    }
}
