//! How long a curve may take: a size that would take too long is left out, and the table says so.

use std::time::{Duration, Instant};

use crate::stats::shortened;

/// The variable that changes it, in seconds.
const VARIABLE: &str = "LATCHWORK_GROWTH_SECONDS";
const SECONDS: f64 = 160.0;
const SHORT_SECONDS: f64 = 40.0;
/// No cost here grows more steeply than that; what seems to is noise.
const STEEPEST: f64 = 2.0;

/// The time of one curve.
pub(crate) struct Budget {
    begun: Instant,
    seconds: f64,
    /// Sizes, and the seconds that they took.
    took: Vec<(f64, f64)>,
}

impl Budget {
    /// What the environment allows, beginning now.
    pub(crate) fn begin() -> Result<Self, String> {
        let seconds = match std::env::var(VARIABLE) {
            Err(_) => shortened(SECONDS, SHORT_SECONDS),
            Ok(text) => text.parse().map_err(|_| format!("{VARIABLE}: {text:?} is no number"))?,
        };
        Ok(Self { begun: Instant::now(), seconds, took: Vec::new() })
    }

    /// How long it may still take. At the end, a moment: what is under way is ended.
    pub(crate) fn left(&self) -> Duration {
        let left = self.seconds - self.begun.elapsed().as_secs_f64();
        Duration::from_secs_f64(left.max(1.0))
    }

    /// How long a size will probably take, if that is too long.
    pub(crate) fn exceeded_by(&self, size: usize) -> Option<f64> {
        let seconds = forecast(&self.took, size as f64)?;
        (seconds > self.left().as_secs_f64()).then_some(seconds)
    }

    /// Begins another curve in the same time.
    pub(crate) fn another(&mut self) {
        self.took.clear();
    }

    /// Notes what a size took.
    pub(crate) fn took(&mut self, size: usize, since: Instant) {
        self.took_beside(size, since, Duration::ZERO);
    }

    /// Notes what a size took beside a time that does not grow with it.
    pub(crate) fn took_beside(&mut self, size: usize, since: Instant, fixed: Duration) {
        let grows = since.elapsed().saturating_sub(fixed);
        self.took.push((size as f64, grows.as_secs_f64()));
    }
}

/// As the last two sizes have grown, but at least in proportion; `None` before the first.
fn forecast(took: &[(f64, f64)], size: f64) -> Option<f64> {
    let (last, seconds) = *took.last()?;
    let power = match took {
        [.., (before, less), _] if *less > 0.0 => (seconds / less).ln() / (last / before).ln(),
        _ => 1.0,
    };
    Some(seconds * (size / last).powf(power.clamp(1.0, STEEPEST)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forecast_follows_the_growth_of_the_last_sizes() {
        let close = |took: &[(f64, f64)], wanted: f64| {
            let seen = forecast(took, 10_000.0).unwrap();
            assert!((seen / wanted - 1.0).abs() < 1e-9, "{seen} instead of {wanted}");
        };
        assert_eq!(forecast(&[], 10.0), None);
        close(&[(1_000.0, 2.0)], 20.0);
        close(&[(100.0, 1.0), (1_000.0, 10.0)], 100.0);
        close(&[(100.0, 1.0), (1_000.0, 1.0)], 10.0);
        close(&[(100.0, 1.0), (1_000.0, 100.0)], 10_000.0);
        close(&[(100.0, 0.001), (1_000.0, 10.0)], 1_000.0);
    }
}
