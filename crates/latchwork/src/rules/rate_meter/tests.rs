use super::*;
use latchwork_store::validity::valid_until;
use proptest::prelude::*;

const SEC: Duration = Duration::from_secs(1);
const TTL: Duration = Duration::from_secs(30);

/// A store with a clock of its own, asked again and again.
struct Store {
    meter: RateMeter,
    /// Seconds on our clock, and on the store's.
    now: f64,
    time: f64,
    rate: f64,
    travel: f64,
}

impl Store {
    fn new(travel: f64) -> Self {
        let mut store =
            Self { meter: RateMeter::default(), now: 1_000.0, time: 1.8e9, rate: 1.0, travel };
        store.answer();
        store
    }

    fn pass(&mut self, seconds: f64) {
        self.now += seconds;
        self.time += seconds * self.rate;
    }

    /// A request and its answer; the store reads its clock in between.
    fn answer(&mut self) -> Rate {
        let sent = at(self.now);
        self.pass(self.travel / 2.0);
        let store_time = Duration::from_secs_f64(self.time);
        self.pass(self.travel / 2.0);
        self.meter.observe(sent, at(self.now), store_time)
    }

    fn after(&mut self, seconds: f64) -> Rate {
        self.pass(seconds);
        self.answer()
    }

    fn counted(&self) -> f64 {
        self.meter.shrink(TTL).as_secs_f64()
    }
}

fn at(seconds: f64) -> Moment {
    Moment::from_nanos((seconds * 1e9) as u64)
}

fn stepped(rate: Rate) -> f64 {
    match rate {
        Rate::Stepped { by } => by as f64 / 1e9,
        other => panic!("{other:?} is no step"),
    }
}

fn unsteady(rate: Rate) -> f64 {
    match rate {
        Rate::Unsteady { ratio } => ratio,
        other => panic!("{other:?} is no rate"),
    }
}

#[test]
fn a_step_counts_as_a_rate_only_until_the_next_interval() {
    for by in [2.0, 15.0] {
        let mut store = Store::new(0.001);
        assert_eq!(store.after(10.0), Rate::Steady);
        store.time += by;
        assert!((stepped(store.after(10.0)) - by).abs() < 0.01);
        let as_a_rate = 30.0 / (1.0 + by / 10.0);
        assert!((store.counted() - as_a_rate).abs() < 0.1, "{}", store.counted());
        assert_eq!(store.after(0.0), Rate::Steady, "at once, the step is not seen again");
        assert!(store.counted() < 30.0, "too early to tell");
        assert_eq!(store.after(5.0), Rate::Steady);
        assert_eq!(store.counted(), 30.0, "not shrunk for ever");
        for _ in 0..100 {
            assert_eq!(store.after(10.0), Rate::Steady);
        }
    }
}

#[test]
fn a_clock_step_back_lengthens_no_validity() {
    let mut store = Store::new(0.001);
    store.after(10.0);
    store.time -= 3_600.0;
    assert!((stepped(store.after(10.0)) + 3_600.0).abs() < 0.01);
    assert_eq!(store.counted(), 30.0);
    for _ in 0..10 {
        assert_eq!(store.after(10.0), Rate::Steady);
        assert_eq!(store.counted(), 30.0);
    }
}

#[test]
fn a_step_over_hours_does_not_shrink_the_ttl_to_nothing() {
    let mut store = Store::new(0.2);
    store.after(10.0);
    store.time += 36_000.0;
    assert!((stepped(store.after(10.0)) - 36_000.0).abs() < 1.0);
    assert_eq!(store.counted(), 30.0);
    store.after(10.0);
    store.time += 0.5;
    assert!(stepped(store.after(0.0)) > 0.1, "also right after another answer");
    assert!(store.counted() >= 10.0, "{}", store.counted());
}

#[test]
fn two_intervals_that_agree_are_a_rate_for_as_long_as_it_lasts() {
    let mut store = Store::new(0.001);
    store.after(10.0);
    store.rate = 1.2;
    assert!((stepped(store.after(10.0)) - 2.0).abs() < 0.01);
    assert!(store.counted() < 25.01, "from the first odd interval on: {}", store.counted());
    assert!((unsteady(store.after(8.0)) - 1.2).abs() < 0.001);
    for _ in 0..20 {
        assert_eq!(store.after(8.0), Rate::Steady);
        assert!((store.counted() - 25.0).abs() < 0.01);
    }
    store.rate = 1.0;
    assert_eq!(store.after(8.0), Rate::Steady);
    assert!((store.counted() - 25.0).abs() < 0.01, "one interval is too few to believe it");
    assert!((unsteady(store.after(8.0)) - 1.0).abs() < 0.001);
    assert_eq!(store.counted(), 30.0);
}

#[test]
fn a_step_on_top_of_a_rate_is_still_a_step() {
    let mut store = Store::new(0.001);
    store.rate = 1.1;
    assert!((stepped(store.after(10.0)) - 1.0).abs() < 0.01);
    assert!((unsteady(store.after(10.0)) - 1.1).abs() < 0.001);
    store.time += 3.0;
    assert!((stepped(store.after(10.0)) - 3.0).abs() < 0.01, "beyond what the rate explains");
    assert!(store.counted() < 30.0 / 1.39);
    assert_eq!(store.after(10.0), Rate::Steady);
    assert!((store.counted() - 30.0 / 1.1).abs() < 0.01, "{}", store.counted());
}

#[test]
fn a_rate_too_small_for_a_step_is_found_by_short_intervals() {
    let mut store = Store::new(0.001);
    store.rate = 1.05;
    assert_eq!(store.after(1.0), Rate::Odd, "50 ms are no step");
    assert!((unsteady(store.after(1.0)) - 1.05).abs() < 0.005);
    assert!((store.counted() - 30.0 / 1.05).abs() < 0.1);
}

#[test]
fn a_rate_that_no_interval_shows_is_found_over_the_hold() {
    let mut store = Store::new(0.1);
    store.rate = 1.05;
    let found = (0..20).map(|_| store.after(1.0)).find(|rate| *rate != Rate::Steady);
    assert!((unsteady(found.unwrap()) - 1.05).abs() < 0.05);
    assert!(store.counted() < 30.0 / 1.05);
}

#[test]
fn a_slow_store_clock_lengthens_no_validity() {
    let mut store = Store::new(0.001);
    store.rate = 0.9;
    assert!(stepped(store.after(10.0)) < 0.0);
    assert!((unsteady(store.after(10.0)) - 0.9).abs() < 0.001);
    assert_eq!(store.counted(), 30.0);
}

#[test]
fn a_slow_link_is_not_a_fast_clock() {
    let mut store = Store::new(0.0);
    for travel in [0.5, 0.0, 1.9, 0.3, 0.0] {
        store.travel = travel;
        assert_eq!(store.after(1.0), Rate::Steady);
        assert_eq!(store.counted(), 30.0);
    }
}

#[test]
fn clocks_that_a_time_service_corrects_are_steady_for_days() {
    for rate in [0.9995, 1.0005, 1.005] {
        let mut store = Store::new(0.001);
        store.rate = rate;
        for _ in 0..20_000 {
            assert_eq!(store.after(10.0), Rate::Steady);
            assert_eq!(store.counted(), 30.0);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    /// Whatever the rate, once two answers with more than their travel and the allowance between
    /// them were seen, the holder stops before a store of that rate ends the lease.
    #[test]
    fn the_holder_stops_first_at_any_rate_that_was_measured(
        rate in 0.3f64..2.9,
        interval in 0.6f64..20.0,
        travels in proptest::collection::vec(0.0f64..0.3, 3..30),
    ) {
        let mut store = Store::new(travels[0]);
        store.rate = rate;
        let (mut before, mut measured) = (travels[0], false);
        for travel in &travels[1..] {
            store.travel = *travel;
            store.pass(interval);
            let sent = at(store.now);
            store.answer();
            measured |= (rate - 1.0) * interval > (before + travel) * 1.1 + 0.011 * interval;
            before = *travel;
            let until = valid_until(sent, store.meter.shrink(TTL));
            let ends = sent.plus(TTL.div_f64(rate));
            prop_assert!(!measured || until <= ends, "{until:?} {ends:?}");
            prop_assert!(until <= valid_until(sent, TTL), "never longer");
        }
    }

    /// However often the clock is set, some quiet intervals later the whole ttl is counted on: for
    /// a step that is little more than the travel of the answers, a minute later.
    #[test]
    fn every_shrinking_step_ends(
        steps in proptest::collection::vec(-100.0f64..100.0, 1..20),
        interval in 1.0f64..20.0,
        travel in 0.0f64..0.05,
    ) {
        let mut store = Store::new(travel);
        for by in steps {
            store.time += by;
            let rate = store.after(interval);
            if by.abs() > 0.1 + 2.0 * travel + interval / 900.0 {
                prop_assert!(rate != Rate::Steady, "{by} passed for steady");
            }
            for _ in 0..3 + (60.0 / interval) as usize {
                store.after(interval);
            }
            prop_assert_eq!(store.meter.shrink(TTL), TTL);
        }
    }

    /// While a clock goes this way and that, what is counted on covers the fastest interval.
    #[test]
    fn a_suspect_clock_counts_by_its_fastest_interval(
        rates in proptest::collection::vec(0.5f64..2.5, 1..20),
    ) {
        let mut store = Store::new(0.001);
        for rate in rates {
            store.rate = rate;
            store.after(10.0);
            let until = valid_until(at(0.0), store.meter.shrink(TTL));
            prop_assert!(until <= at(0.0).plus(TTL.div_f64(rate)));
        }
    }
}

#[test]
fn one_answer_sets_no_clock_rate() {
    let mut meter = RateMeter::default();
    assert_eq!(meter.observe(at(0.0), at(0.001), 3_600 * SEC), Rate::Steady);
    assert_eq!(meter.shrink(TTL), TTL);
}
