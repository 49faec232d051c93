//! Rules of a lease that no test through a guard can see from outside.

use std::sync::Arc;
use std::time::Duration;

use super::{Confirmed, Granted, Lease, Sent};
use crate::rules::options::Rules;
use latchwork_store::testing::{PausedClock, claim};
use latchwork_store::validity::valid_until;
use latchwork_store::{Clock, FencingToken, LostReason, Moment, Renewal};

const TTL: Duration = Duration::from_secs(10);
/// What the clock of the store shows at the grant.
const STORE: Duration = Duration::from_secs(1_800_000_000);

/// A lease of 10 s that was granted now.
fn granted(clock: &PausedClock) -> Lease {
    let sent = Sent::now(clock);
    let granted = Granted {
        token: FencingToken::from_grant(7),
        ttl: TTL,
        valid_until: valid_until(sent.at, TTL),
        sent,
        store_time: Some(STORE),
    };
    Lease::new(claim("k"), granted, Arc::new(Rules::default()), clock)
}

fn held(ttl: Duration, store_time: Duration) -> Renewal {
    Renewal::held(ttl, 7, Some(store_time))
}

async fn pass(length: Duration) {
    tokio::time::advance(length).await;
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_grants_less_is_believed() {
    let clock = PausedClock::start();
    let lease = granted(&clock);
    pass(Duration::from_secs(3)).await;
    let sent = Sent::now(&*clock);
    let short = Duration::from_secs(1);
    let answer = held(short, STORE + Duration::from_secs(3));
    assert!(matches!(lease.confirm(sent, answer, &*clock), Confirmed::Held { .. }));
    assert_eq!(lease.valid_until(), valid_until(sent.at, short));
}

#[tokio::test(start_paused = true)]
async fn a_fast_clock_of_the_store_shortens_what_was_counted_on() {
    let clock = PausedClock::start();
    let lease = granted(&clock);
    pass(Duration::from_secs(3)).await;
    let sent = Sent::now(&*clock);
    let answer = held(TTL, STORE + Duration::from_secs(9));
    assert!(matches!(lease.confirm(sent, answer, &*clock), Confirmed::Doubted(_)));
    // Three times as fast: ten of its seconds are over in 3.4 of ours.
    let left = lease.valid_until().since(clock.now());
    assert!((3.0..3.4).contains(&left.as_secs_f64()), "{left:?}");
    assert_eq!(lease.urgency(), Moment::from_nanos(0), "the clock of the store is in doubt");
}

#[tokio::test(start_paused = true)]
async fn a_doubt_of_the_store_is_urgent_and_a_quiet_hold_is_not() {
    let clock = PausedClock::start();
    let lease = granted(&clock);
    assert_eq!(lease.urgency(), lease.valid_until());
    pass(Duration::from_secs(1)).await;
    lease.doubt(clock.now());
    assert_eq!(lease.urgency(), Moment::from_nanos(0));
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_awaited_from_the_request_until_it_comes_or_fails() {
    let clock = PausedClock::start();
    let lease = granted(&clock);
    assert!(lease.renewing().is_some());
    assert!(lease.renewing().is_none(), "one is under way");
    lease.retry_at(clock.now());
    assert!(lease.renewing().is_some());
    let sent = Sent::now(&*clock);
    lease.confirm(sent, held(TTL, STORE), &*clock);
    assert!(lease.renewing().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_renewal_knows_how_late_it_was_sent() {
    let clock = PausedClock::start();
    let lease = granted(&clock);
    let planned = clock.now().plus(TTL / 3);
    lease.renewing();
    let late = Duration::from_millis(250);
    let least = late - Duration::from_micros(1);
    let found = lease.late(planned.plus(late));
    assert!((least..=late).contains(&found), "{found:?}");
}

#[tokio::test(start_paused = true)]
async fn a_hold_lasts_from_its_start_and_is_what_it_was_if_nobody_takes_it() {
    let clock = PausedClock::start();
    let lease = granted(&clock);
    pass(Duration::from_secs(2)).await;
    assert_eq!(lease.held_for(clock.now()), Duration::from_secs(2));
    let token = lease.token();
    let before = lease.restart_hold(clock.now(), 1);
    assert!(lease.token() > token, "each hold has a token of its own");
    assert_eq!(lease.held_for(clock.now()), Duration::ZERO);
    lease.restore_hold(before);
    assert_eq!(lease.token(), token);
    assert_eq!(lease.held_for(clock.now()), Duration::from_secs(2));
    let lost = lease.end_lost(LostReason::Taken, clock.now()).expect("it was held");
    assert_eq!(lease.was_lost(clock.now()), lost);
    assert_eq!(lease.lost_after(), Some(Duration::from_secs(2)));
}
