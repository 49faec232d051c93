//! The API server's clock, as its answers tell it: to the second, and never used for a lease.
//!
//! Only a closed key needs it: a closing outlives the processes that saw it begin. The server's time lies in an
//! interval that each answer narrows. Who closes a key writes its later end, who looks takes the earlier one, so that
//! a key opens up to a second late and never early.

use std::time::Duration;

use latchwork_store::Moment;

/// What is known of the server's clock: how far it is ahead of the boot clock, in nanoseconds, at least and at most.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ServerTime(Option<(i128, i128)>);

const SECOND: i128 = 1_000_000_000;

impl ServerTime {
    /// An answer to a request that was sent and received at these moments says this second.
    pub(crate) fn told(&mut self, second: i64, sent: Moment, received: Moment) {
        let second = i128::from(second) * SECOND;
        let low = second - i128::from(received.as_nanos());
        let high = second + SECOND - i128::from(sent.as_nanos());
        self.0 = Some(match self.0 {
            Some((least, most)) if least.max(low) <= most.min(high) => {
                (least.max(low), most.min(high))
            }
            // The first answer, or the clock was set, or another server answered.
            _ => (low, high),
        });
    }

    /// The latest that the server's clock may show now, since 1970.
    pub(crate) fn latest(&self, now: Moment) -> Option<Duration> {
        self.0.map(|(_, most)| since_1970(most + i128::from(now.as_nanos())))
    }

    /// How long it takes at most until the server's clock shows this time.
    pub(crate) fn until(&self, time: Duration, now: Moment) -> Option<Duration> {
        let (least, _) = self.0?;
        Some(time.saturating_sub(since_1970(least + i128::from(now.as_nanos()))))
    }
}

fn since_1970(nanos: i128) -> Duration {
    Duration::from_nanos(u64::try_from(nanos.max(0)).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn a_closing_ends_late_by_a_second_and_never_early() {
        let mut time = ServerTime::default();
        assert_eq!(time.latest(at(0)), None);
        // The server shows 100.7 s at 500 ms of the boot clock.
        time.told(100, at(490), at(510));
        let closed_until = time.latest(at(500)).unwrap() + Duration::from_secs(10);
        assert!(closed_until >= Duration::from_millis(110_700), "{closed_until:?}");
        let left = time.until(closed_until, at(500)).unwrap();
        assert!(left >= Duration::from_secs(10) && left <= Duration::from_secs(12), "{left:?}");
    }

    #[test]
    fn each_answer_narrows_it_and_a_set_clock_is_believed() {
        let mut time = ServerTime::default();
        time.told(100, at(500), at(500));
        time.told(101, at(800), at(800));
        let latest = time.latest(at(800)).unwrap();
        assert_eq!(latest, Duration::from_millis(101_300), "not 102: 500 ms ago it was 100");
        time.told(50, at(900), at(900));
        assert_eq!(time.latest(at(900)).unwrap(), Duration::from_secs(51));
    }
}
