//! Random numbers, and the pauses between tries that are drawn from them.

#![expect(clippy::disallowed_methods, reason = "the one module that draws random numbers")]

use std::time::Duration;

/// Draws 128 random bits from the operating system.
///
/// # Panics
///
/// Panics if the operating system has no random numbers to give: a claim without a unique name
/// could free another's lock.
pub fn random_u128() -> u128 {
    #[cfg(any(test, feature = "testing"))]
    if let Some(drawn) = crate::testing::SeededRandom::draw() {
        return drawn;
    }
    let mut bytes = [0u8; 16];
    getrandom::fill(&mut bytes).expect("the operating system gives random numbers");
    u128::from_le_bytes(bytes)
}

/// Draws a duration from `low` to `high`, uniformly.
pub fn random_between(low: Duration, high: Duration) -> Duration {
    let (low, high) = (low.min(high), low.max(high));
    let span = u64::try_from((high - low).as_nanos()).unwrap_or(u64::MAX);
    if span == 0 {
        return low;
    }
    low + Duration::from_nanos(random_u128() as u64 % span)
}

/// Growing pauses: each is drawn between the first one and three times the last, up to a cap
/// ("decorrelated jitter"). So callers that failed together do not return together.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    cap: Duration,
    last: Duration,
}

impl Backoff {
    /// Creates pauses from `first` up to `cap`.
    pub fn new(first: Duration, cap: Duration) -> Self {
        Self { first, cap: cap.max(first), last: first }
    }

    /// Returns the next pause.
    pub fn pause(&mut self) -> Duration {
        let next = random_between(self.first, self.last.saturating_mul(3)).min(self.cap);
        self.last = next;
        next
    }

    /// Restarts with the first pause, after a success.
    pub fn reset(&mut self) {
        self.last = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_stay_between_first_and_cap() {
        let (first, cap) = (Duration::from_millis(2), Duration::from_millis(50));
        let mut backoff = Backoff::new(first, cap);
        let pauses: Vec<_> = (0..200).map(|_| backoff.pause()).collect();
        assert!(pauses.iter().all(|p| *p >= first && *p <= cap));
        assert!(pauses.iter().any(|p| *p > cap / 2), "the pauses grow");
    }

    #[test]
    fn the_longest_pauses_do_not_overflow() {
        let mut backoff = Backoff::new(Duration::MAX / 2, Duration::MAX);
        for _ in 0..10 {
            assert!(backoff.pause() >= Duration::MAX / 2);
        }
    }
}
