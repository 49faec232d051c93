//! What a ttl that follows the hold times saves: a simulation, the same in every run.
//!
//! Renewals are sent every third of a ttl. A crash comes at any moment of the time that the key is
//! held, so it hits long holds more often; the key stays closed for what is left of the ttl.

use std::time::Duration;

use latchwork::{AdaptiveTtl, HoldTimes};

use crate::roles::Outcome;
use crate::stats::{head, row};

const HOLDS: usize = 20_000;
const FIXED: Duration = Duration::from_secs(30);

/// Pseudo-random numbers, the same each time (Steele, Lea, Flood 2014, SplitMix).
struct Dice(u64);

impl Dice {
    /// Between 0 and 1.
    fn roll(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Around `median`, two thirds of them within a factor of `spread` (log-normal).
    fn around(&mut self, median: f64, spread: f64) -> f64 {
        let normal = (-2.0 * self.roll().max(1e-12).ln()).sqrt()
            * (std::f64::consts::TAU * self.roll()).cos();
        median * spread.powf(normal)
    }
}

/// Draws the n-th hold time.
type Draw = Box<dyn FnMut(&mut Dice, usize) -> f64>;

/// Hold times in seconds.
fn workloads() -> [(&'static str, Vec<f64>); 5] {
    let mut dice = Dice(42);
    let mut holds = |mut one: Draw| (0..HOLDS).map(|n| one(&mut dice, n)).collect::<Vec<_>>();
    [
        ("50 ms, give or take", holds(Box::new(|dice, _| dice.around(0.05, 1.6)))),
        (
            "50 ms, one in fifty 10 s",
            holds(Box::new(|dice, _| {
                let median = if dice.roll() < 0.02 { 10.0 } else { 0.05 };
                dice.around(median, 1.3)
            })),
        ),
        (
            "50 ms, one in ten 10 s",
            holds(Box::new(|dice, _| {
                let median = if dice.roll() < 0.1 { 10.0 } else { 0.05 };
                dice.around(median, 1.3)
            })),
        ),
        ("2 minutes", holds(Box::new(|dice, _| dice.around(120.0, 1.3)))),
        (
            "changes every 500 holds: 50 ms, 5 s",
            holds(Box::new(|dice, n| dice.around(if n / 500 % 2 == 0 { 0.05 } else { 5.0 }, 1.3))),
        ),
    ]
}

/// Chooses a ttl for each hold, and hears afterwards how long it was.
trait Policy {
    fn ttl(&mut self) -> Duration;
    fn held(&mut self, length: Duration);
}

struct Fixed;

impl Policy for Fixed {
    fn ttl(&mut self) -> Duration {
        FIXED
    }

    fn held(&mut self, _: Duration) {}
}

/// Eight parts of what was known and two of the last hold, times three so that the first renewal
/// comes after such a hold.
struct Mean(Option<f64>);

impl Policy for Mean {
    fn ttl(&mut self) -> Duration {
        let mean = self.0.map(|mean| Duration::from_secs_f64(mean * 3.0));
        mean.map_or(FIXED, |ttl| ttl.clamp(AdaptiveTtl::default().shortest, FIXED))
    }

    fn held(&mut self, length: Duration) {
        let new = length.as_secs_f64();
        self.0 = Some(self.0.map_or(new, |old| 0.8 * old + 0.2 * new));
    }
}

struct Quantile(HoldTimes);

impl Policy for Quantile {
    fn ttl(&mut self) -> Duration {
        AdaptiveTtl::default().ttl_for(self.0.usual())
    }

    fn held(&mut self, length: Duration) {
        self.0.record(length);
    }
}

/// Renewals of all holds, the mean stall after a crash in seconds, and how often the ttl changed.
fn play(policy: &mut dyn Policy, holds: &[f64]) -> (u64, f64, u64) {
    let (mut renewals, mut left, mut time, mut changes) = (0, 0.0, 0.0, 0);
    let mut last = None;
    for &held in holds {
        let asked = policy.ttl();
        changes += u64::from(last.replace(asked).is_some_and(|last| last != asked));
        let ttl = asked.as_secs_f64();
        let every = ttl / 3.0;
        let whole = (held / every).floor();
        let rest = held - whole * every;
        let area = |until: f64| ttl * until - until * until / 2.0;
        renewals += whole as u64;
        left += whole * area(every) + area(rest);
        time += held;
        policy.held(Duration::from_secs_f64(held));
    }
    (renewals, left / time, changes)
}

/// Prints the table.
pub(crate) fn run() -> Outcome {
    head(&[
        "holds",
        "ttl",
        "renewals of 1,000 holds",
        "key closed after a crash, mean",
        "changes of the ttl",
    ]);
    for (name, holds) in workloads() {
        let policies: [(&str, Box<dyn Policy>); 3] = [
            ("30 s", Box::new(Fixed)),
            ("mean of 8 old to 2 new", Box::new(Mean(None))),
            ("adaptive", Box::new(Quantile(HoldTimes::new()))),
        ];
        for (policy, mut play_it) in policies {
            let (renewals, stall, changes) = play(&mut *play_it, &holds);
            row(&[
                name.into(),
                policy.into(),
                format!("{:.1}", renewals as f64 * 1_000.0 / HOLDS as f64),
                format!("{stall:.2} s"),
                changes.to_string(),
            ]);
        }
    }
    Ok(())
}
