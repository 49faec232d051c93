//! What lands or is left at a node after the decision.

use latchwork_store::Cause;

use crate::common::*;
use crate::redlock::world::*;

const TTL: Duration = Duration::from_secs(20);

/// Three nodes are in the hands of somebody else; the last two would grant.
async fn taken_on_three(five: &Five) {
    for node in [0, 1, 2] {
        five.ask(node, &["SET", "k", "theirs", "PX", "30000"]);
    }
}

/// One node answers late but within its time limit, the other long after it: both grants come
/// after the decision, and both are given back long before their ttl is over.
#[test]
fn a_grant_that_comes_after_the_decision_is_released() {
    run(async {
        let five = Five::new("max_ttl=20s").await;
        taken_on_three(&five).await;
        let way = five.way();
        let voter = way.voter().await;
        let warm = passing("warm", TTL);
        voter.granted(&warm).await;
        voter.released(&warm).await;
        five.empties_but("k").await;
        way.delay(&[3], NODE_LIMIT / 2);
        way.delay(&[4], 3 * NODE_LIMIT);
        let start = Instant::now();
        let blocked = voter.blocked(&passing("k", TTL)).await;
        stalls::in_time(start, 2 * NODE_LIMIT);
        assert_eq!(blocked.cause, Cause::Foreign);
        assert_eq!(five.having("k"), [0, 1, 2]);
        for node in [3, 4] {
            until("the late grant", 3 * SEC, || five.having("k").contains(&node)).await;
            until("its release", 3 * SEC, || !five.having("k").contains(&node)).await;
        }
        assert!(start.elapsed() < TTL / 2);
    });
}

/// H56: a try fails, and the answers of the nodes that granted it are lost.
#[test]
fn h56_a_failed_try_leaves_nothing_where_its_answers_were_lost() {
    run(async {
        let five = Five::new("max_ttl=20s").await;
        taken_on_three(&five).await;
        let way = five.way();
        let voter = way.voter().await;
        let warm = passing("warm", TTL);
        voter.granted(&warm).await;
        voter.released(&warm).await;
        five.empties_but("k").await;
        [3, 4].iter().for_each(|node| way.proxies[*node].lose_answer_of("EVALSHA", 1));
        voter.blocked(&passing("k", TTL)).await;
        until("the answers are lost", 5 * SEC, || {
            [3, 4].iter().all(|node| way.proxies[*node].counts().lost == 1)
        })
        .await;
        until("released there", 5 * SEC, || five.having("k") == [0, 1, 2]).await;
    });
}

/// H56: the votes of a loser are given back at once, those of the winner stay.
#[test]
fn h56_the_loser_of_a_vote_leaves_nothing() {
    run(async {
        let five = Five::new("max_ttl=20s").await;
        let (way, other) = (five.way(), five.voter().await);
        way.refuse(&[3, 4]);
        let voter = way.voter().await;
        let held = passing("k", TTL);
        voter.granted(&held).await;
        assert_eq!(five.having("k"), [0, 1, 2]);
        for _ in 0..5 {
            other.blocked(&passing("k", TTL)).await;
            until("its two votes are gone", 5 * SEC, || five.having("k") == [0, 1, 2]).await;
        }
        voter.renewed(&held).await;
        voter.released(&held).await;
        five.empties(SEC).await;
    });
}

/// A caller that goes away in the middle of a vote leaves nothing.
#[test]
fn an_acquire_that_is_dropped_leaves_nothing() {
    run(async {
        let five = Five::new("max_ttl=20s").await;
        let way = five.way();
        let client = warm(way.client(TTL).await).await;
        way.delay(&[2, 3, 4], 60 * MS);
        for wait in [0, 1, 5, 20, 40, 70] {
            let mutex = client.mutex("k");
            let _ = tokio::time::timeout(wait * MS, mutex.acquire()).await;
        }
        pause(2 * 60 * MS).await;
        five.empties(10 * SEC).await;
    });
}
