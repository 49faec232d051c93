//! Options are checked together, and the message names the field.

use std::time::Duration;

use latchwork::{AdaptiveTtl, Handover, Period};
use latchwork_store::*;

use crate::engine::support::*;

#[tokio::test(start_paused = true)]
async fn a_bad_option_names_its_field_and_nothing_is_clamped() {
    let world = World::new();
    let locks = || world.locks.clone().ttl(9 * SEC);
    let cases = [
        ("ttl", locks().ttl(Duration::ZERO).mutex("k")),
        ("ttl", locks().mutex("k").ttl(Duration::from_secs(1 << 40))),
        ("max_ttl", locks().max_ttl(8 * SEC).mutex("k")),
        ("max_ttl", locks().max_ttl(10 * SEC).mutex("k").ttl(11 * SEC)),
        ("max_ttl", world.locks.clone().max_ttl(29 * SEC).mutex("k")),
        ("renew_every", locks().renew_every(5 * SEC).mutex("k")),
        ("renew_every", locks().renew_every(Duration::ZERO).mutex("k")),
        ("op_timeout", locks().op_timeout(5 * SEC).mutex("k")),
        ("ttl", locks().ttl(5 * MS).mutex("k")),
        ("op_timeout", locks().op_timeout(MS / 2).mutex("k")),
        ("max_hold", locks().max_hold(Duration::ZERO).mutex("k")),
        ("handover.slice", locks().handover(Handover::new(5 * SEC, 1)).mutex("k")),
        ("handover.times", locks().handover(Handover::new(MS, 1_001)).mutex("k")),
        ("namespace", locks().namespace("a:b").mutex("k")),
        ("key", locks().mutex("")),
    ];
    for (field, mutex) in cases {
        let error = mutex.acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{field}");
        assert!(error.message().starts_with(&format!("{field}: ")), "{field}: {error}");
        assert!(error.next_step().is_some(), "{field} has a next step");
    }
    assert_eq!(world.store.asked(), (0, 0), "no request was made");
    let longest = locks().max_ttl(9 * SEC).mutex("k");
    assert_eq!(longest.acquire().await.unwrap().ttl(), 9 * SEC, "the longest is allowed");
}

/// Each duration that a user can set, as long as there is.
#[tokio::test(start_paused = true)]
async fn the_longest_duration_is_refused_or_works() {
    let world = World::new();
    let locks = || world.locks.clone();
    let max = Duration::MAX;
    let bounds = AdaptiveTtl::between(SEC, max);
    let refused = [
        ("ttl", locks().ttl(max).mutex("k")),
        ("ttl", locks().ttl(max).lock_delay(max).mutex("k")),
        ("lock_delay", locks().lock_delay(max).mutex("k")),
        ("lock_delay", locks().lock_delay(max / 2).mutex("k")),
        ("adaptive_ttl.longest", locks().adaptive_ttl(bounds).mutex("k")),
        ("adaptive_ttl", locks().adaptive_ttl(AdaptiveTtl::between(max, SEC)).mutex("k")),
        ("renew_every", locks().renew_every(max).mutex("k")),
        ("op_timeout", locks().op_timeout(max).mutex("k")),
        ("handover.slice", locks().handover(Handover::new(max, 1)).mutex("k")),
    ];
    for (field, mutex) in refused {
        let error = mutex.acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{field}");
        assert!(error.message().starts_with(&format!("{field}: ")), "{field}: {error}");
        assert!(!error.message().contains("18446744073709551615"), "{error}");
    }
    let lock = locks().max_hold(max).max_ttl(max).mutex("k");
    let guard = lock.acquire_within(max).await.unwrap();
    world.io.sleep(60 * SEC).await;
    guard.release().await.unwrap();
    let multi = locks().multi(["a", "b"]).acquire_within(max).await.unwrap();
    multi.release().await.unwrap();
    let election = locks().election("e").look_every(max);
    let leader = election.campaign_within(max).await.unwrap();
    leader.resign().await.unwrap();
    let once = locks().once("o", Period::parse("1h", None).unwrap());
    assert!(once.begin_within(max).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_namespace_is_a_prefix_of_the_key() {
    let world = World::new();
    let shop = world.locks.clone().namespace("shop");
    let guard = shop.mutex("stock/42").acquire().await.unwrap();
    assert_eq!(guard.key().as_str(), "shop:stock/42");
    assert!(world.locks.mutex("stock/42").try_acquire().await.unwrap().is_some());
    assert!(world.locks.mutex("shop:stock/42").try_acquire().await.unwrap().is_none());
    let listed = shop.list("stock/").await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(shop.inspect("stock/42").await.unwrap().holders.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_default_holder_text_names_host_and_process() {
    let world = World::new();
    let _a = world.locks.mutex("a").acquire().await.unwrap();
    let _b = world.locks.mutex("b").holder("night shift").acquire().await.unwrap();
    let text = |s: Snapshot| s.holders[0].holder.to_string();
    let default = text(world.locks.inspect("a").await.unwrap());
    assert!(default.contains(&format!("pid {}", std::process::id())), "{default}");
    assert_eq!(text(world.locks.inspect("b").await.unwrap()), "night shift");
}

#[tokio::test(start_paused = true)]
async fn the_shortest_ttls_work_without_further_options() {
    let world = World::new();
    let guard = world.locks.mutex("k").ttl(10 * MS).acquire().await.unwrap();
    world.io.sleep(SEC).await;
    assert_eq!(guard.ensure_held(), Ok(guard.token()));
}

/// Each slip has its own next step.
#[tokio::test(start_paused = true)]
async fn a_slip_is_answered_with_a_next_step() {
    let world = World::new();
    let locks = || world.locks.clone();
    let mutex = async |lock: latchwork::Lock| lock.acquire().await.err().unwrap();
    let long = "x".repeat(100_000);
    let none: [&str; 0] = [];
    for (error, step) in [
        (mutex(locks().namespace("a:b").mutex("k")).await, "use another character, such as"),
        (mutex(locks().mutex(long)).await, "use a shorter name, for example a hash of it"),
        (locks().multi(["a", "a"]).acquire().await.err().unwrap(), "name each lock once"),
        (locks().multi(none).acquire().await.err().unwrap(), "name at least one"),
        (latchwork::Period::parse("often", None).unwrap_err(), "write 30s, 15m, 6h, 1d"),
        (FencingToken::from_raw(1 << 63).to_bigint().unwrap_err(), "give the token of a guard"),
    ] {
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.next_step().unwrap().contains(step), "{error}");
    }
    let held = world.locks.rwlock("k").read().acquire().await.unwrap();
    let error = world.locks.mutex("k").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
    assert!(error.next_step().unwrap().contains("use one kind of lock for each key"));
    held.release().await.unwrap();
}
