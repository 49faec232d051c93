//! A server that dies, forgets, evicts: who is told, when, and what the tokens do.

#![allow(clippy::disallowed_methods, reason = "tests")]

use crate::common::*;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use latchwork::{Guard, HoldState};
use latchwork_services::{Data, Direction, Persistence, Proxy, RedisOptions};
use latchwork_store::*;

const TTL: Duration = Duration::from_secs(3);
/// A holder hears of a loss at its next renewal.
const TOLD: Duration = TTL.checked_div(3).unwrap();

async fn told_within(guard: &Guard, limit: Duration) -> Lost {
    within("the holder is told", limit + SLACK, guard.lost()).await
}

/// The next hold of a key that a guard has lost: soon, and with a larger token.
async fn next_is_newer(world: &World, guard: &Guard) -> Guard {
    let other = Client::warm(&world.server.url(), TTL).await;
    let next = within("the key is taken again", TTL + SLACK, other.acquire("k")).await;
    assert!(next.token() > guard.token(), "{:?} after {:?}", next.token(), guard.token());
    next
}

/// A server that keeps every write is killed under a holder and a waiter: both go on.
#[test]
fn a_killed_server_that_kept_its_data_costs_no_lock() {
    run(async {
        let options = RedisOptions::new().persistence(Persistence::EveryWrite);
        let mut world = World::with(&options);
        let ttl = 6 * SEC;
        let (holder, other) = (
            Client::warm(&world.server.url(), ttl).await,
            Client::warm(&world.server.url(), ttl).await,
        );
        let guard = holder.acquire("k").await;
        let next = subscribed_waiter(&other, "k").await;
        world.server.kill();
        world.server.restart(Data::Kept).unwrap();
        let renewed = holder.story.renewed();
        until("a renewal", ttl, || holder.story.renewed() > renewed).await;
        assert_eq!(guard.state(), HoldState::Held);
        assert!(!next.is_finished());
        guard.release().await.unwrap();
        let (guard, _) = within("the waiter is admitted", ttl / 3 + SLACK, next).await.unwrap();
        assert!(holder.story.lost().is_empty());
        guard.release().await.unwrap();
        world.empties(ttl).await;
    });
}

/// H323: a newer version, and Valkey, read what the last version has written: hold, waiter and tokens.
#[test]
fn h323_an_upgrade_of_the_server_costs_no_lock() {
    for next_version in ["redis", "valkey"] {
        run(async {
            let options = RedisOptions::of("redis@system").persistence(Persistence::EveryWrite);
            let mut world = World::with(&options);
            let ttl = 6 * SEC;
            let (holder, other) = (
                Client::warm(&world.server.url(), ttl).await,
                Client::warm(&world.server.url(), ttl).await,
            );
            let old = world.server.info("redis_version").unwrap();
            let guard = holder.acquire("k").await;
            let next = subscribed_waiter(&other, "k").await;
            world.server.upgrade(next_version).unwrap();
            let new = if next_version == "redis" { "redis_version" } else { "valkey_version" };
            assert_ne!(world.server.info(new).unwrap(), old, "another server");
            let renewed = holder.story.renewed();
            until("a renewal", ttl, || holder.story.renewed() > renewed).await;
            assert_eq!(guard.state(), HoldState::Held);
            assert!(!next.is_finished());
            let token = guard.token();
            guard.release().await.unwrap();
            let (next, _) = within("the waiter is admitted", ttl / 3 + SLACK, next).await.unwrap();
            assert!(next.token() > token);
            assert!(holder.story.lost().is_empty());
            next.release().await.unwrap();
            world.empties(ttl).await;
        });
    }
}

/// H35: a server that comes back empty: the holder is told at its next renewal, the waiter is
/// admitted, and the token rises although its counter is gone.
#[test]
fn h35_a_renewal_finds_that_the_server_lost_its_data() {
    run(async {
        let mut world = World::new();
        let (holder, other) = (
            Client::warm(&world.server.url(), TTL).await,
            Client::warm(&world.server.url(), TTL).await,
        );
        let guard = holder.acquire("k").await;
        let next = subscribed_waiter(&other, "k").await;
        world.server.restart(Data::Empty).unwrap();
        let back = Instant::now();
        let lost = told_within(&guard, TOLD).await;
        assert_eq!(lost.reason, LostReason::Taken);
        in_time(back.elapsed(), TOLD + SLACK);
        let (next, _) = within("the waiter is admitted", TTL, next).await.unwrap();
        assert!(next.token() > guard.token());
    });
}

/// H50: a server that comes back with an old snapshot has an old counter of tokens: the next token
/// is larger all the same.
#[test]
fn h50_an_old_counter_gives_no_old_token() {
    run(async {
        let mut world = World::new();
        let client = Client::warm(&world.server.url(), TTL).await;
        world.server.save_snapshot().unwrap();
        let mut last = None;
        for _ in 0..5 {
            let guard = client.acquire("k").await;
            assert!(last < Some(guard.token()));
            last = Some(guard.token());
            guard.release().await.unwrap();
        }
        world.server.restart(Data::OldSnapshot).unwrap();
        for client in [&client, &Client::new(&world.server.url(), TTL).await] {
            let guard = client.acquire("k").await;
            assert!(last < Some(guard.token()), "{last:?}, then {:?}", guard.token());
            last = Some(guard.token());
            guard.release().await.unwrap();
        }
    });
}

/// H50: a replica that lacks the last increments is promoted: the next token is larger.
#[test]
fn h50_a_promoted_replica_gives_no_old_token() {
    run(async {
        let mut world = World::new();
        let way = Proxy::plain(world.server.port()).unwrap();
        let replica = World::with(&RedisOptions::new().replica_of(way.port())).server;
        let client = Client::warm(&world.proxy.url(), TTL).await;
        until("the replica follows", 10 * SEC, || {
            ask(&replica, &["GET", "lw:token"]) == world.ask(&["GET", "lw:token"])
                && world.number(&["EXISTS", "lw:token"]) == 1
        })
        .await;
        way.freeze(Direction::ToClient);
        let had = ask(&replica, &["GET", "lw:token"]);
        let mut last = None;
        for _ in 0..5 {
            let guard = client.acquire("k").await;
            last = Some(guard.token());
            guard.release().await.unwrap();
        }
        world.server.kill();
        ask(&replica, &["REPLICAOF", "NO", "ONE"]);
        assert_eq!(ask(&replica, &["GET", "lw:token"]), had, "it lacks the last numbers");
        world.proxy.set_upstream(([127, 0, 0, 1], replica.port()).into());
        let guard = client.acquire("k").await;
        assert!(last < Some(guard.token()), "{last:?}, then {:?}", guard.token());
    });
}

/// H38: FLUSHALL under a holder: told at the next renewal, no longer overlap than until then.
#[test]
fn h38_the_next_renewal_reports_a_flush() {
    run(async {
        let world = World::new();
        let holder = Client::warm(&world.server.url(), TTL).await;
        let other = Client::warm(&world.server.url(), TTL).await;
        let guard = holder.acquire("k").await;
        world.ask(&["FLUSHALL"]);
        let flushed = Instant::now();
        // Whose connection goes on takes free keys by the short script.
        let first = other.acquire("other").await;
        assert!(first.token() > guard.token(), "{:?} after {:?}", first.token(), guard.token());
        let next = next_is_newer(&world, &guard).await;
        let lost = told_within(&guard, TOLD).await;
        assert_eq!(lost.reason, LostReason::Taken);
        in_time(flushed.elapsed(), TOLD + SLACK);
        assert_eq!(next.state(), HoldState::Held);
        drop(guard);
        pause(100 * MS).await;
        assert!(world.is_held("k"), "the lost hold releases nothing");
    });
}

/// H38: a flush takes the line with it: who waits comes again by itself.
#[test]
fn h38_waiters_survive_a_flush() {
    run(async {
        let world = World::new();
        let holder = Client::warm(&world.server.url(), TTL).await;
        let guard = holder.acquire("k").await;
        let mut waiters = FuturesUnordered::new();
        for _ in 0..3 {
            let client = Client::warm(&world.server.url(), TTL).await;
            waiters.push(waiter(&client, "k"));
            until("it waits", 5 * SEC, || client.story.waiting() >= 2).await;
        }
        world.ask(&["FLUSHALL"]);
        // The queue is gone as well: the one that checks first is the first.
        for _ in 0..3 {
            let next = within("admitted", TTL + SLACK, waiters.next()).await;
            let (guard, _) = next.expect("three wait").unwrap();
            guard.release().await.unwrap();
        }
        assert_eq!(told_within(&guard, TOLD).await.reason, LostReason::Taken);
    });
}

/// H9: the key alone is deleted.
#[test]
fn h09_the_next_renewal_reports_a_deleted_key() {
    run(async {
        let world = World::new();
        let holder = Client::warm(&world.server.url(), TTL).await;
        let guard = holder.acquire("k").await;
        world.ask(&["DEL", "k"]);
        assert_eq!(told_within(&guard, TOLD).await.reason, LostReason::Taken);
        assert!(!world.is_held("k"), "a renewal makes nothing anew");
        let _next = next_is_newer(&world, &guard).await;
    });
}

/// H39: the server evicts the lock and the counter: told, and the token rises.
#[test]
fn h39_an_evicted_lock_is_reported_and_the_token_grows() {
    run(async {
        let world = World::with(&RedisOptions::new().config("maxmemory-policy volatile-random"));
        let holder = Client::warm(&world.server.url(), TTL).await;
        let guard = holder.acquire("k").await;
        let memory: u64 = world.server.info("used_memory").unwrap().trim().parse().unwrap();
        world.ask(&["CONFIG", "SET", "maxmemory", &(memory / 2).to_string()]);
        until("the lock is evicted", 5 * SEC, || world.keys().is_empty()).await;
        until("the counter is evicted", 5 * SEC, || world.text(&["DBSIZE"]) == "0").await;
        world.ask(&["CONFIG", "SET", "maxmemory", "0"]);
        assert_eq!(told_within(&guard, TOLD).await.reason, LostReason::Taken);
        let _next = next_is_newer(&world, &guard).await;
    });
}

/// H39: the helpers are evicted, the lock is not: who waits comes again by itself.
#[test]
fn h39_evicted_helpers_lose_no_waiter_and_no_hold() {
    run(async {
        let world = World::new();
        let holder = Client::warm(&world.server.url(), TTL).await;
        let other = Client::warm(&world.server.url(), TTL).await;
        let guard = holder.acquire("k").await;
        let next = subscribed_waiter(&other, "k").await;
        for _ in 0..2 {
            world.ask(&["DEL", "k:lw:line"]);
            until("its place is there again", TTL / 3 + SLACK, || world.in_line("k") == 1).await;
        }
        guard.release().await.unwrap();
        let (guard, _) = within("admitted", TTL / 3 + SLACK, next).await.unwrap();
        guard.release().await.unwrap();
        world.empties(SEC).await;
    });
}

/// H75: a hundred locks are lost at once: each guard is told, at the renewal that they share.
#[test]
fn h75_a_hundred_guards_report_one_loss_together() {
    run(async {
        let world = World::new();
        let holder = Client::warm(&world.server.url(), TTL).await;
        let mut guards = Vec::new();
        for n in 0..100 {
            guards.push(holder.acquire(&format!("k{n}")).await);
        }
        world.ask(&["FLUSHALL"]);
        for guard in &guards {
            assert_eq!(told_within(guard, TOLD).await.reason, LostReason::Taken);
        }
        // A guard knows a moment before the observer is told.
        until("one event for each", 5 * SEC, || holder.story.lost().len() == 100).await;
        let mut told = holder.story.lost();
        told.sort_by_key(|(_, _, at)| *at);
        let spread = told[99].2 - told[0].2;
        assert!(spread < TOLD, "{spread:?}");
    });
}

/// H77: each reader has its own end; a writer waits for the last of the living.
#[test]
fn h77_the_last_reader_does_not_set_the_end_of_the_others() {
    run(async {
        let world = World::new();
        let backend = connect(&world.server.url()).await;
        let (long, short) =
            (with_mode("k", 2 * SEC, Mode::Read), with_mode("k", 300 * MS, Mode::Read));
        let start = Instant::now();
        granted(&backend, &long).await;
        granted(&backend, &short).await;
        let writer = with_mode("k", SEC, Mode::Write).with(|it| it.waits = false);
        pause(600 * MS).await;
        // The short one is over, the long one is not.
        assert_eq!(renew(&backend, &short).await.unwrap(), Renewal::Lost);
        blocked(&backend, &writer).await;
        assert!(start.elapsed() < 2 * SEC, "too slow to tell anything");
        until("the long one is over", 3 * SEC, || !world.is_held("k")).await;
        assert!(start.elapsed() >= 2 * SEC);
        granted(&backend, &writer).await;
    });
}

/// H77: of two readers one is renewed and one died: the writer waits for the living one only.
#[test]
fn h77_a_dead_reader_is_not_kept_by_a_living_one() {
    run(async {
        let world = World::new();
        let backend = connect(&world.server.url()).await;
        let ttl = 600 * MS;
        let (living, dead) = (with_mode("k", ttl, Mode::Read), with_mode("k", ttl, Mode::Read));
        granted(&backend, &living).await;
        granted(&backend, &dead).await;
        for _ in 0..4 {
            pause(ttl / 3).await;
            assert!(matches!(renew(&backend, &living).await, Ok(Renewal::Held { .. })));
        }
        assert_eq!(renew(&backend, &dead).await.unwrap(), Renewal::Lost);
        let writer = with_mode("k", SEC, Mode::Write).with(|it| it.waits = false);
        blocked(&backend, &writer).await;
        assert_eq!(release(&backend, &living).await, Released::Yes);
        granted(&backend, &writer).await;
    });
}

/// H49: tokens are above 2^50, and every script gives them exactly and larger than the last.
#[test]
fn h49_tokens_above_2_to_the_50_are_exact_through_every_script() {
    run(async {
        let world = World::new();
        let backend = connect(&world.server.url()).await;
        let mut last = 1_u64 << 50;
        let mut stored = |token: u64, what: &str| {
            assert!(token > last, "{what}: {token} after {last}");
            last = token;
            assert_eq!(world.text(&["GET", "lw:token"]), token.to_string(), "{what}");
        };
        // Numbers that a double printed in the usual way would round.
        world.ask(&["SET", "lw:token", "4503599627370497"]);
        for round in 0..3 {
            let (free, next) = (claim("k", 5 * SEC), claim("k", 5 * SEC));
            let token = granted(&backend, &free).await;
            stored(token, "a free try");
            assert!(world.text(&["GET", "k"]).contains(&format!(":{token}:")));
            let answer = in_line(&backend, &next).await;
            match renew(&backend, &free).await.unwrap() {
                Renewal::Held { token: renewed, .. } => assert_eq!(renewed, token),
                Renewal::Lost => panic!("lost"),
            }
            assert_eq!(granted(&backend, &free).await, token, "the same claim again");
            let seen = backend.inspect(&Query::Key(free.key.clone())).await.unwrap();
            assert_eq!(seen[0].holders[0].token, Some(token), "inspect");
            assert_eq!(release(&backend, &free).await, Released::Yes);
            let pushed = match backend.wait(&next, &answer).await.unwrap() {
                Wake::Admitted { grant, .. } => grant.token,
                Wake::Look => panic!("round {round}: not pushed"),
            };
            // The place in line took a number as well.
            stored(pushed, "a push");
            assert_eq!(granted(&backend, &next).await, pushed, "a try by the whole script");
            assert_eq!(release(&backend, &next).await, Released::Yes);
            let reader = with_mode("r", 5 * SEC, Mode::Read);
            let token = granted(&backend, &reader).await;
            stored(token, "a reader");
            match renew(&backend, &reader).await.unwrap() {
                Renewal::Held { token: renewed, .. } => assert_eq!(renewed, token),
                Renewal::Lost => panic!("lost"),
            }
            assert_eq!(release(&backend, &reader).await, Released::Yes);
        }
    });
}

/// H31, H30 in part: what one key waits for keeps no other key waiting.
#[test]
fn a_long_queue_delays_no_other_key() {
    run(async {
        let world = World::new();
        let client = Client::warm(&world.server.url(), 30 * SEC).await;
        let holder = Client::warm(&world.server.url(), 30 * SEC).await;
        let guard = holder.acquire("k").await;
        let next = subscribed_waiter(&client, "k").await;
        for n in 0..50 {
            let free = client.mutex(&format!("other {n}"));
            let free = within("another key", SLACK, free.acquire()).await.unwrap();
            free.release().await.unwrap();
        }
        guard.release().await.unwrap();
        let (guard, _) = within("admitted", SLACK, next).await.unwrap();
        guard.release().await.unwrap();
    });
}
