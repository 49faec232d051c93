//! Waiters are woken by messages, not by their own clock.

use latchwork_services::{Data, Direction};

use crate::common::*;
use crate::redlock::world::*;

/// A waiter looks by itself after a third of it, ten seconds.
const TTL: Duration = Duration::from_secs(30);
const QUERY: &str = "max_ttl=30s";

/// Three clients wait for the key until the process ends.
pub(crate) async fn wait(store: &str) {
    let mut all = Vec::new();
    for _ in 0..3 {
        let client = client(store, TTL).await;
        let next = subscribed_waiter(&client, "k").await;
        all.push((client, next));
    }
    say("waiting");
    hear();
}

#[test]
fn a_release_wakes_a_waiter_of_another_client() {
    run(async {
        let five = Five::new(QUERY).await;
        let (holder, client) = (five.client(TTL).await, five.client(TTL).await);
        for _ in 0..3 {
            let guard = holder.acquire("k").await;
            let next = subscribed_waiter(&client, "k").await;
            pause(200 * MS).await;
            let released = Instant::now();
            guard.release().await.unwrap();
            let (guard, at) = within("admitted", SLACK, next).await.unwrap();
            in_time(at - released, SLACK);
            guard.release().await.unwrap();
            five.empties(SEC).await;
        }
    });
}

/// Two nodes die, which were the first to say that the lock is held: the others are enough to be
/// woken.
#[test]
fn a_release_wakes_a_waiter_while_two_nodes_are_dead() {
    run(async {
        let mut five = Five::new(QUERY).await;
        let way = five.way();
        let (holder, client) = (five.client(TTL).await, way.client(TTL).await);
        way.delay(&[0, 2, 4], 30 * MS);
        let guard = holder.acquire("k").await;
        let next = subscribed_waiter(&client, "k").await;
        five.kill(&[1, 3]);
        pause(300 * MS).await;
        guard.release().await.unwrap();
        let (guard, _) = within("admitted", SLACK, next).await.unwrap();
        guard.release().await.unwrap();
        five.empties(SEC).await;
    });
}

/// As before, but nobody tells the waiter that they are gone: it has to be woken by the marks that
/// the others made after the decision.
#[test]
fn a_release_wakes_a_waiter_while_two_nodes_are_silent() {
    run(async {
        let five = Five::new(QUERY).await;
        let way = five.way();
        let (holder, client) = (five.client(TTL).await, way.client(TTL).await);
        way.delay(&[0, 2, 4], 30 * MS);
        let guard = holder.acquire("k").await;
        let next = subscribed_waiter(&client, "k").await;
        pause(300 * MS).await;
        for node in [1, 3] {
            way.proxies[node].freeze(Direction::ToClient);
        }
        guard.release().await.unwrap();
        let (guard, _) = within("admitted", SLACK, next).await.unwrap();
        for proxy in &way.proxies {
            proxy.thaw(Direction::ToClient);
        }
        guard.release().await.unwrap();
        five.empties(SEC).await;
    });
}

/// Two nodes are in quarantine and answer first: they are not taken for a split vote, in which
/// nobody holds the lock and all come again soon.
#[test]
fn a_release_wakes_a_waiter_while_two_nodes_are_in_quarantine() {
    run(async {
        let mut five = Five::new(QUERY).await;
        five.restart(&[1, 3], Data::Empty);
        let way = five.way();
        let (holder, client) = (five.client(TTL).await, way.client(TTL).await);
        way.delay(&[0, 2, 4], 30 * MS);
        let guard = holder.acquire("k").await;
        assert_eq!(five.having("k"), [0, 2, 4]);
        let next = subscribed_waiter(&client, "k").await;
        let looks = client.story.waiting();
        pause(500 * MS).await;
        let more = client.story.waiting() - looks;
        assert!(more <= 2, "{more} looks within half a second");
        guard.release().await.unwrap();
        let (guard, _) = within("admitted", SLACK, next).await.unwrap();
        guard.release().await.unwrap();
        five.empties(2 * SEC).await;
    });
}

/// Marks are no places in line: whoever left one and cannot come is not waited for.
#[test]
fn dead_waiters_stall_nobody() {
    run(async {
        let five = Five::new(QUERY).await;
        let (holder, client) = (five.client(TTL).await, five.client(TTL).await);
        let guard = holder.acquire("k").await;
        let url = five.url();
        let (mut dead, mut stopped) =
            (Process::start("redlock::wait", &url), Process::start("redlock::wait", &url));
        assert_eq!([dead.line(), stopped.line()], ["waiting", "waiting"]);
        let next = subscribed_waiter(&client, "k").await;
        dead.kill();
        stopped.stop();
        let released = Instant::now();
        guard.release().await.unwrap();
        let (_, at) = within("admitted", SLACK, next).await.unwrap();
        in_time(at - released, SLACK);
    });
}
