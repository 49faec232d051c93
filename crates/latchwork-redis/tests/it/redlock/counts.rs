//! What locks cost at each node, counted between client and servers, with the guard on.

use latchwork_services::Counts;
use latchwork_store::*;

use crate::common::*;
use crate::redlock::world::*;

const TTL: Duration = Duration::from_secs(30);
const QUERY: &str = "max_ttl=30s";

/// Commands and round trips at each node since the last time, when no more come.
async fn costs(way: &Way) -> Vec<(u64, u64)> {
    let counts = counts(way).await;
    counts.iter().map(|counts| (counts.total(), counts.round_trips)).collect()
}

async fn counts(way: &Way) -> Vec<Counts> {
    let total = || way.proxies.iter().map(|proxy| proxy.counts().total()).sum::<u64>();
    let mut last = u64::MAX;
    // Whatever is answered after the decision, and what follows from that.
    while last != total() {
        last = total();
        pause(200 * MS).await;
    }
    way.proxies.iter().map(|proxy| proxy.reset_counts()).collect()
}

#[test]
fn each_call_is_one_command_per_node() {
    run(async {
        let five = Five::new(QUERY).await;
        let way = five.way();
        let voter = way.voter().await;
        for n in 0..5 {
            let one = passing("k", TTL);
            voter.granted(&one).await;
            let acquire = costs(&way).await;
            voter.renewed(&one).await;
            let renewal = costs(&way).await;
            voter.released(&one).await;
            let release = costs(&way).await;
            // Connections and scripts are made and sent in the first round.
            if n > 0 {
                assert_eq!(acquire, [(1, 1); 5], "acquire");
                assert_eq!(renewal, [(1, 1); 5], "renewal");
                assert_eq!(release, [(1, 1); 5], "release");
            }
        }
    });
}

/// Claims that are renewed together share a command.
#[test]
fn the_renewal_of_many_is_one_command_at_each_node() {
    run(async {
        let five = Five::new(QUERY).await;
        let way = five.way();
        let voter = way.voter().await;
        let claims: Vec<Claim> = (0..20).map(|n| passing(&format!("k{n}"), TTL)).collect();
        for claim in &claims {
            voter.granted(claim).await;
        }
        voter.0.renew_all(&claims[..1]).await;
        costs(&way).await;
        let renewals = voter.0.renew_all(&claims).await;
        assert!(renewals.iter().all(|one| matches!(one, Ok(Renewal::Held { .. }))));
        assert_eq!(costs(&way).await, [(1, 1); 5]);
    });
}

/// Also at nodes that answer after the decision.
#[test]
fn a_try_at_a_held_key_is_one_command_at_each_node() {
    run(async {
        let five = Five::new(QUERY).await;
        let (way, holder) = (five.way(), five.voter().await);
        let held = passing("k", TTL);
        holder.granted(&held).await;
        let voter = way.voter().await;
        for n in 0..5 {
            voter.blocked(&passing("k", TTL)).await;
            let each = costs(&way).await;
            if n > 0 {
                assert_eq!(each, [(1, 1); 5]);
            }
        }
    });
}

/// A try that waits leaves a mark where it was blocked and hears of the release there. From the
/// release to the grant each node sees two commands of the waiter: the next try, and the taking
/// back of the mark. Where the holder's release comes after that try, at two nodes at most, the try
/// leaves another mark, which is taken back by two more. While it waits, there are none.
#[test]
fn a_waiter_costs_two_commands_per_node() {
    run(async {
        let five = Five::new(QUERY).await;
        let (way, holder) = (five.way(), five.client(TTL).await);
        let client = warm(way.client(TTL).await).await;
        for n in 0..3 {
            let guard = holder.acquire("k").await;
            until("all have it", 5 * SEC, || five.having("k") == ALL).await;
            let looks = client.story.waiting();
            let next = waiter(&client, "k");
            // The first time it subscribes, and looks again when it has.
            let looks = looks + if n == 0 { 2 } else { 1 };
            until("it waits", 5 * SEC, || client.story.waiting() >= looks).await;
            // Whoever was told to look asks one node, and soon after, if that was of no use, all.
            pause(600 * MS).await;
            costs(&way).await;
            pause(300 * MS).await;
            let each = counts(&way).await;
            assert!(each.iter().all(|it| it.commands.is_empty()), "while it waits: {each:?}");
            guard.release().await.unwrap();
            let (guard, _) = next.await.unwrap();
            let each = costs(&way).await;
            assert!(each.iter().all(|(commands, _)| (2..=4).contains(commands)), "{each:?}");
            assert!(each.iter().filter(|(commands, _)| *commands > 2).count() <= 2, "{each:?}");
            guard.release().await.unwrap();
            five.empties(5 * SEC).await;
            // Until nobody expects others at the key any more, and asks one node first.
            pause(300 * MS).await;
        }
    });
}
