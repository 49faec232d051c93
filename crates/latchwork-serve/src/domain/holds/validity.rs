//! How long a client may rely on a hold: arithmetic over two hops, without I/O.
//!
//! A hold that its client keeps has a lease of the client's ttl at the store, and every renewal is one of the store.
//! For a hold that this process keeps the lease is longer, and the process renews it.
//!
//! Three clocks are at work. The client counts from before it sent its request. The service counts
//! from the arrival of that request, which is later. The store counts from the arrival of the
//! service's request, which is later still. So the side that relies on a promise always stops before
//! the side that gave it.

use std::ops::RangeInclusive;
use std::time::Duration;

use latchwork::{Error, ErrorKind};
use latchwork_store::validity::{drift, valid_until};
use latchwork_store::{Holder, Moment};

use super::kept::Keeper;

/// The ratio of the lease at the store to the client's ttl, where this process keeps it. The service renews the lease every
/// third of its length, so what remains of it is never less than 1.3 times the client's ttl while the
/// store answers: a renewal by the client can always give the whole ttl.
const LEASE: u32 = 2;

/// The longest time that a request may wait, in ttls of the client: the clocks of client and service
/// may differ by a hundredth, and over so long a wait that takes no more than a fifth of the ttl.
pub(crate) const LONGEST_WAIT: u32 = 20;

/// The lock delay of every lease. Some stores free the locks of a dead process at once. Here its clients live on, so
/// each lease has to end by its time.
pub(crate) const DELAY: Duration = Duration::from_millis(1);

/// The leases that a store grants with the [`DELAY`].
pub(crate) fn leases(range: &RangeInclusive<Duration>) -> RangeInclusive<Duration> {
    let room = Holder::new("").with(|it| it.lock_delay = Some(DELAY)).room_for_delay();
    let longest = range.end().saturating_sub(room);
    *range.start()..=longest.max(*range.start())
}

/// The shortest ttl of a client.
pub(crate) const SHORTEST_TTL: Duration = Duration::from_millis(100);

/// Until when the service keeps a hold for a client whose request arrived at `arrival`, was granted or
/// renewed at `now`, and asked for `ttl`. The client's clock may run slower by a hundredth.
pub(crate) fn keep_until(arrival: Moment, now: Moment, ttl: Duration) -> Moment {
    let counted = now.since(arrival).saturating_add(ttl);
    arrival.plus(counted).plus(drift(counted))
}

/// For how long the client may rely on a hold that ends at `end`, counted from the arrival of its
/// request, in whole milliseconds.
pub(crate) fn valid_for(arrival: Moment, end: Moment) -> Duration {
    let left = end.since(arrival).saturating_sub(drift(Duration::ZERO));
    Duration::from_millis(
        u64::try_from(left.as_nanos() * 100 / 101 / 1_000_000).unwrap_or(u64::MAX),
    )
}

/// For how long the client may rely on a hold that it keeps itself, and that is valid at the store until `until`:
/// counted from the arrival of its request, in whole milliseconds. What exceeds the validity of one lease is a wait, by
/// the clock of the service; the client's may be slower by a hundredth.
pub(crate) fn promised(arrival: Moment, until: Moment, ttl: Duration) -> Duration {
    let left = until.since(arrival);
    let start = Moment::from_nanos(0);
    let own = left.min(valid_until(start, ttl).since(start));
    let waited = (left - own).as_nanos() * 100 / 101;
    let valid = own + Duration::from_nanos(u64::try_from(waited).unwrap_or(u64::MAX));
    Duration::from_millis(u64::try_from(valid.as_millis()).unwrap_or(u64::MAX))
}

/// The end that a renewal gives at most, for a request that arrived at `arrival`.
pub(crate) fn renewed_until(arrival: Moment, until: Moment, ttl: Duration) -> Moment {
    until.min(valid_until(arrival, ttl))
}

/// The ttl of the lease at a store that grants leases within `range`.
///
/// # Errors
///
/// `Invalid` if the ttl is too short, or so long that the store's longest lease is less than one and
/// a half of it.
pub(crate) fn lease(
    ttl: Duration,
    range: &RangeInclusive<Duration>,
    keeper: Keeper,
) -> Result<Duration, Error> {
    let longest = longest_ttl(range, keeper);
    let shortest = SHORTEST_TTL;
    if ttl < shortest || ttl > longest {
        let message = format!(
            "ttl_ms: {} is outside of what this service gives, {} to {}",
            ttl.as_millis(),
            shortest.as_millis(),
            longest.as_millis()
        );
        return Err(Error::new(ErrorKind::Invalid, message)
            .with_next_step("choose a ttl_ms within the range, or leave it out"));
    }
    Ok(match keeper {
        // A store with longer leases keeps the lock of a client that is gone so much longer.
        Keeper::Client => ttl.max(*range.start()),
        Keeper::Process => (ttl * LEASE).clamp(*range.start(), *range.end()),
    })
}

/// The longest ttl of a client. A lease that this process keeps must be at least one and a half of it.
pub(crate) fn longest_ttl(range: &RangeInclusive<Duration>, keeper: Keeper) -> Duration {
    const MOST: Duration = Duration::from_secs(24 * 60 * 60);
    match keeper {
        Keeper::Client => *range.end(),
        Keeper::Process => *range.end() / 3 * 2,
    }
    .min(MOST)
}

/// The ttl of a client that names none.
pub(crate) fn default_ttl(
    default: Duration,
    range: &RangeInclusive<Duration>,
    keeper: Keeper,
) -> Duration {
    let longest = longest_ttl(range, keeper).max(SHORTEST_TTL);
    (default / LEASE).max(*range.start()).clamp(SHORTEST_TTL, longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn a_renewal_gives_the_whole_ttl() {
        for ttl in [100, 1_000, 15_000, 3_600_000] {
            let end = keep_until(at(5), at(5), ttl * MS);
            assert_eq!(valid_for(at(5), end), ttl * MS, "{ttl}");
        }
    }

    #[test]
    fn a_wait_is_counted_from_the_arrival() {
        let end = keep_until(at(0), at(60_000), 10_000 * MS);
        assert_eq!(valid_for(at(0), end), 70_000 * MS);
    }

    /// The client's clock may be slower by a hundredth than the service's.
    #[test]
    fn a_slow_client_stops_before_the_service_lets_go() {
        for (waited, ttl) in [(0, 100), (0, 15_000), (300_000, 15_000), (2_000, 100)] {
            let end = keep_until(at(0), at(waited), ttl * MS);
            let believed = valid_for(at(0), end).mul_f64(1.01);
            assert!(at(0).plus(believed) <= end, "{waited} {ttl}");
        }
    }

    #[test]
    fn no_promise_exceeds_the_lease() {
        for left in 0..5_000 {
            let promised = valid_for(at(1_000), at(1_000 + left));
            assert!(promised + drift(promised) <= (left as u32 * MS).max(2 * MS), "{left}");
        }
    }

    #[test]
    fn a_lease_is_one_and_a_half_ttls_at_least() {
        let range = Duration::from_secs(2)..=Duration::from_secs(20);
        let of = |ttl: u32| lease(ttl * MS, &range, Keeper::Process);
        assert_eq!(of(8_000).unwrap(), 16_000 * MS);
        assert_eq!(of(13_000).unwrap(), 20_000 * MS);
        assert_eq!(of(500).unwrap(), 2_000 * MS);
        for bad in [0, 99, 13_334, 1_000_000] {
            let error = of(bad).unwrap_err();
            assert!(error.message().starts_with("ttl_ms: "), "{error}");
        }
    }

    /// H410: the range that an error names, and the default, leave room for the delay.
    #[test]
    fn h410_the_longest_lease_leaves_room_for_the_delay() {
        let range = Duration::from_secs(4)..=Duration::from_secs(24);
        for keeper in [Keeper::Client, Keeper::Process] {
            let leases = leases(&range);
            for ttl in [longest_ttl(&leases, keeper), default_ttl(30_000 * MS, &leases, keeper)] {
                let lease = lease(ttl, &leases, keeper).unwrap();
                assert!(lease + DELAY <= *range.end(), "{lease:?}");
            }
        }
    }

    #[test]
    fn a_lease_that_the_client_keeps_is_its_ttl() {
        let range = Duration::from_secs(2)..=Duration::from_secs(20);
        for ttl in [2_000, 20_000] {
            assert_eq!(lease(ttl * MS, &range, Keeper::Client).unwrap(), ttl * MS);
        }
        assert_eq!(lease(500 * MS, &range, Keeper::Client).unwrap(), 2_000 * MS);
        for bad in [99, 20_001] {
            assert!(lease(bad * MS, &range, Keeper::Client).is_err(), "{bad}");
        }
    }

    /// The client's clock may be slower by a hundredth than those of the service and the store.
    #[test]
    fn no_promise_of_a_ticket_exceeds_the_lease() {
        for (waited, late, ttl) in [(0, 0, 100), (0, 30, 100), (0, 5, 15_000), (300_000, 0, 15_000)]
        {
            let sent = at(waited + late);
            let until = valid_until(sent, ttl * MS);
            let promise = promised(at(0), until, ttl * MS);
            assert!(at(0).plus(promise.mul_f64(1.01)) <= sent.plus(ttl * MS), "{waited} {ttl}");
            let renewed = promised(at(0), renewed_until(at(0), until, ttl * MS), ttl * MS);
            assert_eq!(renewed, ttl * MS - drift(ttl * MS), "{waited} {late} {ttl}");
        }
    }
}
