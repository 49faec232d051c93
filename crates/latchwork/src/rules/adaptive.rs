//! A ttl that follows the hold times of a key.
//!
//! A long ttl costs time after a crash: the key stays closed until it is over. A short one costs
//! renewals. The watchdog renews every third of a ttl, so a hold that is shorter than that costs no
//! renewal at all. Hence the rule: the shortest ttl under which nearly all holds of the key end
//! before their first renewal, within bounds.
//!
//! What is learned is an upper quantile and not a mean: if most holds are short and a few are long,
//! a mean describes neither.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use latchwork_store::Key;
use latchwork_store::validity;

/// The bounds of a ttl that follows the hold times of its key.
///
/// Off unless it is set on a manager or a lock. A process uses the longest ttl until it knows the
/// hold times of a key, from ten holds of its own or from a holder that it had to wait for.
///
/// ```
/// use std::time::Duration;
/// use latchwork::AdaptiveTtl;
///
/// let bounds = AdaptiveTtl::between(Duration::from_secs(5), Duration::from_secs(60));
/// assert!(bounds.longest > AdaptiveTtl::default().longest);
/// ```
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AdaptiveTtl {
    /// The shortest ttl. Default: 2 s. It must exceed the pauses of the process and of the
    /// connection to the store.
    pub shortest: Duration,
    /// The longest ttl. Default: 30 s.
    pub longest: Duration,
}

impl Default for AdaptiveTtl {
    fn default() -> Self {
        Self { shortest: Duration::from_secs(2), longest: Duration::from_secs(30) }
    }
}

impl AdaptiveTtl {
    /// Creates the bounds of a ttl.
    pub const fn between(shortest: Duration, longest: Duration) -> Self {
        Self { shortest, longest }
    }

    /// Returns the ttl for a key of which nearly all holds are shorter than `usual`.
    ///
    /// One of a few: the shortest, twice that, four times and so on, and the longest. So a ttl does
    /// not change with each hold, and stores that keep a session for each ttl keep few.
    pub fn ttl_for(self, usual: Option<Duration>) -> Duration {
        let Some(usual) = usual else { return self.longest };
        let mut ttl = self.shortest.max(Duration::from_millis(1));
        while ttl < self.longest && validity::renew_every(ttl) <= usual {
            ttl = ttl.saturating_mul(2).min(self.longest);
        }
        ttl
    }
}

/// Recent hold times of a key: a histogram in which older holds count less.
#[derive(Debug, Clone)]
pub struct HoldTimes {
    /// The weight of holds up to each edge; see [`HoldTimes::edge`].
    weights: [f32; Self::BUCKETS],
    seen: u32,
}

impl HoldTimes {
    /// From 1 ms to more than two days, each a little under a half more than the one before.
    const BUCKETS: usize = 58;
    const GROWTH: f64 = 1.4;
    /// What a hold counts for, one hold later: about the last hundred matter.
    const KEPT: f32 = 0.99;
    /// Fewer holds than that say nothing of an upper quantile.
    const ENOUGH: u32 = 10;
    /// How many of all holds are to be shorter than what is called usual.
    const QUANTILE: f32 = 0.95;

    /// Creates an empty histogram.
    pub const fn new() -> Self {
        Self { weights: [0.0; Self::BUCKETS], seen: 0 }
    }

    /// Records a hold of this length.
    pub fn record(&mut self, held: Duration) {
        for weight in &mut self.weights {
            *weight *= Self::KEPT;
        }
        let millis = held.as_secs_f64() * 1e3;
        let bucket = millis.max(1.0).log(Self::GROWTH).ceil() as usize;
        self.weights[bucket.min(Self::BUCKETS - 1)] += 1.0;
        self.seen = self.seen.saturating_add(1);
    }

    /// Returns the 95th percentile of recent holds, rounded up; `None` until there are enough.
    pub fn usual(&self) -> Option<Duration> {
        if self.seen < Self::ENOUGH {
            return None;
        }
        let enough = self.weights.iter().sum::<f32>() * Self::QUANTILE;
        let mut sum = 0.0;
        let bucket = self.weights.iter().position(|weight| {
            sum += weight;
            sum >= enough
        });
        Some(Self::edge(bucket.unwrap_or(Self::BUCKETS - 1)))
    }

    fn edge(bucket: usize) -> Duration {
        Duration::from_secs_f64(Self::GROWTH.powi(bucket as i32) / 1e3)
    }
}

impl Default for HoldTimes {
    fn default() -> Self {
        Self::new()
    }
}

/// What a process knows of the hold times of its keys.
#[derive(Debug, Default)]
pub(crate) struct Habits {
    by_key: Mutex<HashMap<Key, Habit>>,
}

#[derive(Debug, Default)]
struct Habit {
    own: HoldTimes,
    /// What a holder of another process has said.
    heard: Option<Duration>,
}

impl Habits {
    /// More keys than that are not remembered: which are forgotten is up to chance.
    const MOST: usize = 10_000;

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Habit>> {
        self.by_key.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What nearly all holds of the key do not pass: by our own holds, else by hearsay.
    pub(crate) fn usual(&self, key: &Key) -> Option<Duration> {
        let by_key = self.lock();
        let habit = by_key.get(key)?;
        habit.own.usual().or(habit.heard)
    }

    /// Adds a hold of our own.
    pub(crate) fn record(&self, key: &Key, held: Duration) {
        self.change(key, |habit| habit.own.record(held));
    }

    /// Notes what a holder in the way says of its holds.
    pub(crate) fn hear(&self, key: &Key, usual_hold: Duration) {
        self.change(key, |habit| habit.heard = Some(usual_hold));
    }

    fn change(&self, key: &Key, change: impl FnOnce(&mut Habit)) {
        let mut by_key = self.lock();
        if by_key.len() >= Self::MOST && !by_key.contains_key(key) {
            let other = by_key.keys().next().cloned();
            other.and_then(|other| by_key.remove(&other));
        }
        change(by_key.entry(key.clone()).or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const SEC: Duration = Duration::from_secs(1);

    fn times(holds: impl IntoIterator<Item = Duration>) -> HoldTimes {
        let mut times = HoldTimes::new();
        holds.into_iter().for_each(|held| times.record(held));
        times
    }

    #[test]
    fn a_few_holds_give_no_usual_hold_time() {
        assert_eq!(times([50 * MS; 9]).usual(), None);
        assert_eq!(AdaptiveTtl::default().ttl_for(None), 30 * SEC);
    }

    #[test]
    fn the_longest_bounds_do_not_overflow() {
        let bounds = AdaptiveTtl { shortest: Duration::MAX / 3, longest: Duration::MAX };
        assert_eq!(bounds.ttl_for(Some(Duration::MAX)), Duration::MAX);
    }

    #[test]
    fn the_usual_hold_is_an_upper_one_and_not_the_mean() {
        let one_in_ten_is_long = (0..200).map(|n| if n % 10 == 0 { 4 * SEC } else { 50 * MS });
        let usual = times(one_in_ten_is_long).usual().unwrap();
        assert!((4 * SEC..6 * SEC).contains(&usual), "{usual:?}");
        let one_in_fifty_is_long = (0..200).map(|n| if n % 50 == 0 { 4 * SEC } else { 50 * MS });
        let usual = times(one_in_fifty_is_long).usual().unwrap();
        assert!((50 * MS..70 * MS).contains(&usual), "{usual:?}");
    }

    #[test]
    fn follows_a_key_whose_holds_become_longer_and_shorter() {
        let mut times = times([10 * MS; 200]);
        for _ in 0..6 {
            times.record(20 * SEC);
        }
        assert!(times.usual().unwrap() >= 20 * SEC, "a few long holds are enough");
        for _ in 0..200 {
            times.record(10 * MS);
        }
        assert!(times.usual().unwrap() < 20 * MS);
    }

    #[test]
    fn extreme_durations_have_a_bucket() {
        assert_eq!(times([Duration::ZERO; 20]).usual(), Some(MS));
        let usual = times([Duration::from_secs(10_000_000); 20]).usual().unwrap();
        assert!(usual > Duration::from_secs(2 * 24 * 3600), "{usual:?}");
    }

    #[test]
    fn usual_holds_need_no_renewal_below_the_longest_ttl() {
        let bounds = AdaptiveTtl::default();
        for millis in [0, 1, 600, 700, 1_400, 5_000, 9_000, 20_000, 100_000] {
            let usual = millis * MS;
            let ttl = bounds.ttl_for(Some(usual));
            assert!((bounds.shortest..=bounds.longest).contains(&ttl));
            let quiet = validity::renew_every(ttl) > usual;
            assert!(quiet || ttl == bounds.longest, "{usual:?}: {ttl:?}");
            let half = ttl / 2;
            assert!(ttl == bounds.shortest || validity::renew_every(half) <= usual, "{usual:?}");
        }
    }

    #[test]
    fn a_process_learns_from_other_holders() {
        let (key, habits) = (Key::new("k").unwrap(), Habits::default());
        habits.hear(&key, 1_300 * MS);
        assert_eq!(habits.usual(&key), Some(1_300 * MS));
        for _ in 0..20 {
            habits.record(&key, MS);
        }
        assert!(habits.usual(&key).unwrap() < 2 * MS, "what we know counts more than hearsay");
    }

    #[test]
    fn the_table_has_an_end() {
        let habits = Habits::default();
        for n in 0..Habits::MOST + 50 {
            habits.record(&Key::new(format!("k{n}")).unwrap(), MS);
        }
        assert_eq!(habits.lock().len(), Habits::MOST);
    }
}
