//! Nodes whose wall clock is set.

use latchwork::HoldState;
use latchwork::fence::Fence;
use latchwork_services::RedisOptions;
use latchwork_store::*;

use crate::common::*;
use crate::redlock::world::*;

async fn with_clocks() -> Five {
    Five::with(&RedisOptions::new().with_clock(), "max_ttl=60s").await
}

/// H53: one of the nodes lets go early, and the others do not.
#[test]
fn h53_a_clock_step_on_one_node_makes_no_second_holder() {
    run(async {
        let five = with_clocks().await;
        let ttl = 3 * SEC;
        let (client, other) = (warm(five.client(ttl).await).await, five.client(ttl).await);
        let guard = client.acquire("k").await;
        until("all have it", SEC, || five.having("k") == ALL).await;
        five.servers[0].clock().unwrap().step_forward(3_600 * SEC).unwrap();
        assert_eq!(five.having("k"), [1, 2, 3, 4]);
        assert!(other.mutex("k").try_acquire().await.unwrap().is_none());
        assert!(other.mutex("k").acquire_within(300 * MS).await.is_err());
        // It has the lock again, by its clock as long as the others.
        until("given back", ttl, || five.having("k") == ALL).await;
        assert!(other.mutex("k").try_acquire().await.unwrap().is_none());
        assert_eq!(guard.state(), HoldState::Held);
        guard.release().await.unwrap();
        let next = other.acquire("k").await;
        next.release().await.unwrap();
        five.empties(2 * SEC).await;
    });
}

/// H53: not excluded. A bare majority held the lock, and the clock of the one node that it shares
/// with the next is set forward; the token tells the two apart.
#[test]
fn h53_a_shared_nodes_clock_step_is_fenced() {
    run(async {
        let five = with_clocks().await;
        let ttl = 10 * SEC;
        let (way, other) = (five.way(), five.client(ttl).await);
        way.refuse(&[3, 4]);
        let client = way.client(ttl).await;
        let guard = client.acquire("k").await;
        assert_eq!(five.having("k"), [0, 1, 2]);
        assert!(other.mutex("k").try_acquire().await.unwrap().is_none());
        five.servers[2].clock().unwrap().step_forward(60 * SEC).unwrap();
        let next = within("the second holder", 5 * SEC, other.acquire("k")).await;
        assert_eq!(guard.state(), HoldState::Held);
        let fence = Fence::new();
        fence.check_write(next.token()).unwrap();
        assert!(fence.check_write(guard.token()).is_err());
    });
}

/// The clocks of two nodes are set back under a lock whose holder has died: they keep it for an
/// hour, and the others are a majority.
#[test]
fn clocks_set_back_on_two_nodes_are_outvoted() {
    run(async {
        let five = with_clocks().await;
        let ttl = SEC;
        let (voter, other) = (five.voter().await, warm(five.client(ttl).await).await);
        let dead = passing("k", ttl);
        let token = voter.granted(&dead).await;
        until("all have it", SEC, || five.having("k") == ALL).await;
        for node in [0, 1] {
            five.servers[node].clock().unwrap().step_back(3_600 * SEC).unwrap();
        }
        let start = Instant::now();
        let next = other.acquire("k").await;
        in_time(start.elapsed(), ttl + SLACK);
        assert!(next.token().grant_number() > token);
        next.release().await.unwrap();
        until("released", SEC, || five.having("k") == [0, 1]).await;
        // The same again, for as long as it is so.
        let again = other.acquire("k").await;
        assert!(again.token() > next_after(token));
    });
}

fn next_after(token: u64) -> FencingToken {
    FencingToken::from_grant(token + 1)
}
