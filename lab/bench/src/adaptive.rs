//! What a ttl that follows the hold times saves: a simulation, the same in every run.
//!
//! Renewals are sent every third of a ttl. A crash comes at any moment of the time that the key is held, so it hits
//! long holds more often; the key stays closed for what is left of the ttl.

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

    /// Around 50 ms, or sometimes around 10 s.
    fn seldom(&mut self, part: f64) -> f64 {
        let median = if self.roll() < part { 10.0 } else { 0.05 };
        self.around(median, 1.3)
    }
}

/// Draws the n-th hold time in seconds.
type Draw = fn(&mut Dice, usize) -> f64;

const WORKLOADS: [(&str, Draw); 5] = [
    ("50 ms, give or take", |dice, _| dice.around(0.05, 1.6)),
    ("50 ms, one in fifty 10 s", |dice, _| dice.seldom(0.02)),
    ("50 ms, one in ten 10 s", |dice, _| dice.seldom(0.1)),
    ("2 minutes", |dice, _| dice.around(120.0, 1.3)),
    ("changes every 500 holds: 50 ms, 5 s", |dice, n| {
        dice.around(if n / 500 % 2 == 0 { 0.05 } else { 5.0 }, 1.3)
    }),
];

/// Chooses a ttl for each hold, and hears afterwards how long it was.
enum Policy {
    Fixed,
    /// Eight parts of what was known and two of the last hold, times three so that the first renewal comes after such
    /// a hold.
    Mean(Option<f64>),
    Quantile(Box<HoldTimes>),
}

impl Policy {
    fn ttl(&self) -> Duration {
        match self {
            Self::Fixed | Self::Mean(None) => FIXED,
            Self::Mean(Some(mean)) => {
                Duration::from_secs_f64(mean * 3.0).clamp(AdaptiveTtl::default().shortest, FIXED)
            }
            Self::Quantile(times) => AdaptiveTtl::default().ttl_for(times.usual()),
        }
    }

    fn held(&mut self, seconds: f64) {
        match self {
            Self::Fixed => {}
            Self::Mean(mean) => *mean = Some(mean.map_or(seconds, |old| 0.8 * old + 0.2 * seconds)),
            Self::Quantile(times) => times.record(Duration::from_secs_f64(seconds)),
        }
    }

    /// Renewals of all holds, the mean stall after a crash in seconds, and how often the ttl changed.
    fn play(mut self, holds: &[f64]) -> (u64, f64, u64) {
        let (mut renewals, mut left, mut time, mut changes) = (0, 0.0, 0.0, 0);
        let mut last = None;
        for &held in holds {
            let asked = self.ttl();
            changes += u64::from(last.replace(asked).is_some_and(|last| last != asked));
            let ttl = asked.as_secs_f64();
            let every = ttl / 3.0;
            let whole = (held / every).floor();
            let area = |until: f64| ttl * until - until * until / 2.0;
            renewals += whole as u64;
            left += whole * area(every) + area(held - whole * every);
            time += held;
            self.held(held);
        }
        (renewals, left / time, changes)
    }
}

/// Prints the table.
pub(crate) fn run() -> Outcome {
    head(
        "holds | ttl | renewals of 1,000 holds | key closed after a crash, mean | changes of the ttl",
    );
    let mut dice = Dice(42);
    for (name, draw) in WORKLOADS {
        let holds: Vec<f64> = (0..HOLDS).map(|n| draw(&mut dice, n)).collect();
        for (policy, it) in [
            ("30 s", Policy::Fixed),
            ("mean of 8 old to 2 new", Policy::Mean(None)),
            ("adaptive", Policy::Quantile(Box::new(HoldTimes::new()))),
        ] {
            let (renewals, stall, changes) = it.play(&holds);
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
