//! How long a holder may rely on its claim: arithmetic without I/O.
//!
//! Every formula counts from a moment *before* the request was sent. The store counts from the
//! arrival, which is later, so the holder always stops believing first. Source: the lease rule of
//! Gray and Cheriton (1989) and the Redlock page of the Redis documentation (validity = ttl -
//! elapsed - drift).

use std::time::Duration;

use crate::clock::Moment;

/// Returns the allowance for two clocks that run at different rates: `ttl/100 + 2 ms`.
pub const fn drift(ttl: Duration) -> Duration {
    let hundredth = Duration::new(ttl.as_secs() / 100, (ttl.as_secs() % 100 * 10_000_000) as u32);
    hundredth.saturating_add(Duration::from_nanos(ttl.subsec_nanos() as u64 / 100 + 2_000_000))
}

/// Returns the end of a claim's validity, from the time its request was sent.
pub fn valid_until(sent_at: Moment, ttl: Duration) -> Moment {
    sent_at.plus(ttl.saturating_sub(drift(ttl)))
}

/// Returns the end of the validity of a *pushed* grant.
///
/// A push answers no request, so it is anchored to the try whose stamp the store echoes: the
/// server's clock says how long after that try the grant was made, our own clock says how long ago
/// that try was sent, and the smaller of the two is safe (a push cannot have been made later than
/// it was read). The server's clock may run fast, so a hundredth of its time is subtracted.
pub fn pushed_valid_until(
    stamp: Moment,
    since_try: Duration,
    now: Moment,
    ttl: Duration,
) -> Moment {
    let surely = since_try.saturating_sub(since_try / 100);
    let made_after = surely.min(now.since(stamp));
    valid_until(stamp.plus(made_after), ttl)
}

/// Returns whether enough of a grant is left to start work with: half of its granted ttl.
pub fn is_worth_taking(valid_until: Moment, now: Moment, ttl: Duration) -> bool {
    valid_until.since(now) >= ttl / 2
}

/// Returns the default pause between renewals: a third of the granted ttl.
pub fn renew_every(ttl: Duration) -> Duration {
    ttl / 3
}

/// Returns the default time limit of one verb: a quarter of the ttl, two seconds at most.
pub fn op_timeout(ttl: Duration) -> Duration {
    (ttl / 4).min(Duration::from_secs(2))
}

/// Returns how long a hold that a step of the wall clock may have ended waits for the store's
/// answer before it counts as lost: a quarter of the ttl, half a second at most.
pub fn settle(ttl: Duration) -> Duration {
    (ttl / 4).min(Duration::from_millis(500))
}

/// How far the wall clock may advance beyond the boot clock before a guard is suspect.
///
/// A paused virtual machine stops both clocks and sets the wall clock right on resume; the lease
/// ran on at the store all the while.
pub const PAUSE_TOLERANCE: Duration = Duration::from_secs(1);

/// Returns wall time minus boot time, in nanoseconds: constant while the machine runs.
pub fn wall_offset(wall: Duration, boot: Moment) -> i64 {
    (wall.as_nanos() as i128 - i128::from(boot.as_nanos())) as i64
}

/// Returns whether the machine was paused between two offsets: the wall clock advanced and the boot
/// clock did not.
pub fn was_paused(then: i64, now: i64) -> bool {
    now.saturating_sub(then) > PAUSE_TOLERANCE.as_nanos() as i64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SEC: Duration = Duration::from_secs(1);

    fn at(seconds: f64) -> Moment {
        Moment::from_nanos((seconds * 1e9) as u64)
    }

    #[test]
    fn counts_from_before_the_request() {
        assert_eq!(valid_until(at(10.0), 10 * SEC), at(19.898));
        assert_eq!(valid_until(at(10.0), Duration::from_millis(1)), at(10.0), "never negative");
    }

    #[test]
    fn drift_is_counted_for_every_ttl() {
        for (ttl, expected) in [
            (Duration::ZERO, Duration::from_millis(2)),
            (Duration::from_nanos(199), Duration::from_nanos(2_000_001)),
            (Duration::new(199, 999_999_999), Duration::new(2, 1_999_999)),
            (Duration::MAX, Duration::MAX / 100 + Duration::from_millis(2)),
        ] {
            assert_eq!(drift(ttl), expected, "{ttl:?}");
        }
        assert_eq!(valid_until(at(10.0), Duration::MAX), Moment::NEVER);
    }

    #[test]
    fn a_verb_may_take_a_quarter_of_the_ttl() {
        assert_eq!(op_timeout(4 * SEC), SEC);
        assert_eq!(op_timeout(60 * SEC), 2 * SEC, "and no more than that");
    }

    #[test]
    fn doubt_is_settled_within_a_quarter_of_the_ttl() {
        assert_eq!(settle(SEC), SEC / 4);
        assert_eq!(settle(60 * SEC), SEC / 2, "and no more than that");
    }

    #[test]
    fn half_of_a_grant_is_worth_taking() {
        assert!(is_worth_taking(at(15.0), at(10.0), 10 * SEC));
        assert!(!is_worth_taking(at(14.9), at(10.0), 10 * SEC));
        assert!(!is_worth_taking(at(9.0), at(10.0), 10 * SEC), "it is over");
    }

    #[test]
    fn a_late_reader_of_a_push_counts_from_the_echoed_stamp() {
        // Try sent at 0, granted 1 ms later by the server's clock, read at 30 s after a pause.
        let until = pushed_valid_until(at(0.0), Duration::from_millis(1), at(30.0), 10 * SEC);
        // A hundredth of that millisecond is not believed: the server's clock may be fast.
        assert_eq!(until, at(9.89899));
        // A server clock that jumped cannot push the end behind our own reading.
        let until = pushed_valid_until(at(0.0), 3600 * SEC, at(1.0), 10 * SEC);
        assert_eq!(until, at(10.898));
    }

    #[test]
    fn a_paused_machine_shows_in_the_offset() {
        let before = wall_offset(Duration::from_secs(1_000), at(5.0));
        let running = wall_offset(Duration::from_secs(1_060), at(65.0));
        let paused = wall_offset(Duration::from_secs(1_060), at(5.0));
        assert!(!was_paused(before, running));
        assert!(was_paused(before, paused));
        assert!(!was_paused(paused, before), "a wall clock set back is no pause");
        let tolerated = before + PAUSE_TOLERANCE.as_nanos() as i64;
        assert!(!was_paused(before, tolerated));
        assert!(was_paused(before, tolerated + 1));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        /// The store ends the claim no earlier than arrival + ttl by its clock; the holder, whose
        /// clock may be 1 % slower, must have stopped believing by then.
        #[test]
        fn the_holder_stops_first(
            sent in 0u64..1_000_000_000_000,
            travel in 0u64..5_000_000_000,
            ttl_ms in 50u64..600_000,
        ) {
            let ttl = Duration::from_millis(ttl_ms);
            let sent = Moment::from_nanos(sent);
            let until = valid_until(sent, ttl);
            let store_span = ttl.mul_f64(0.99);
            let store_end = sent.plus(Duration::from_nanos(travel)).plus(store_span);
            prop_assert!(until <= store_end);
        }

        /// The server's clock may run 1 % fast, and then its `since_try` is too long by as much. It
        /// counts that from the arrival of the try, and the lease from the push.
        #[test]
        fn h94_the_holder_of_a_push_stops_first(
            stamp in 0u64..1_000_000_000_000,
            travel in 0u64..5_000_000_000,
            waited in 0u64..600_000_000_000,
            read_after in 0u64..20_000_000_000,
            ttl_ms in 50u64..600_000,
            rate_ppm in 990_100u64..=1_010_000,
        ) {
            let ttl = Duration::from_millis(ttl_ms);
            let stamp = Moment::from_nanos(stamp);
            let rate = rate_ppm as f64 / 1e6;
            let since_try = Duration::from_nanos(waited).mul_f64(rate);
            let pushed = stamp.plus(Duration::from_nanos(travel + waited));
            let now = pushed.plus(Duration::from_nanos(read_after));
            let until = pushed_valid_until(stamp, since_try, now, ttl);
            let store_end = pushed.plus(ttl.div_f64(rate));
            prop_assert!(until <= store_end, "{:?} too long", until.since(store_end));
        }

        #[test]
        fn a_push_is_valid_no_longer_than_a_fresh_request(
            stamp in 0u64..1_000_000_000_000,
            since_try in 0u64..100_000_000_000,
            read_after in 0u64..100_000_000_000,
            ttl_ms in 50u64..600_000,
        ) {
            let ttl = Duration::from_millis(ttl_ms);
            let stamp = Moment::from_nanos(stamp);
            let now = stamp.plus(Duration::from_nanos(read_after));
            let until = pushed_valid_until(stamp, Duration::from_nanos(since_try), now, ttl);
            prop_assert!(until <= valid_until(now, ttl));
            prop_assert!(until >= valid_until(stamp, ttl));
        }
    }
}
