//! One node or two are lost: nobody waits for them, and nothing stays on them when they come back.

use latchwork_services::{Data, Persistence, RedisOptions};

use crate::common::*;
use crate::redlock::world::*;

/// Longer than any test here takes, so that nothing goes by itself.
const TTL: Duration = Duration::from_secs(20);

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    Killed,
    Stopped,
    CutOff,
    Slow,
}

impl Fault {
    fn strikes(self, five: &mut Five, way: &Way, nodes: &[usize]) {
        match self {
            Fault::Killed => {
                // They come back with all that they have now: the lock that is released meanwhile.
                nodes.iter().for_each(|node| five.servers[*node].save_snapshot().unwrap());
                five.kill(nodes);
            }
            Fault::Stopped => nodes.iter().for_each(|node| five.servers[*node].stop().unwrap()),
            Fault::CutOff => way.cut_off(nodes),
            Fault::Slow => way.delay(nodes, SEC),
        }
    }

    fn passes(self, five: &mut Five, way: &Way, nodes: &[usize]) {
        match self {
            Fault::Killed => five.restart(nodes, Data::OldSnapshot),
            Fault::Stopped => nodes.iter().for_each(|node| five.servers[*node].cont().unwrap()),
            Fault::CutOff => way.thaw(nodes),
            Fault::Slow => way.delay(nodes, Duration::ZERO),
        }
    }
}

/// How long each verb took.
#[derive(Debug, Clone, Copy)]
struct Took([Duration; 3]);

/// Acquires, renews and releases.
async fn cycle(voter: &Voter, key: &str) -> Took {
    let one = passing(key, TTL);
    let start = Instant::now();
    voter.granted(&one).await;
    let acquired = start.elapsed();
    voter.renewed(&one).await;
    let renewed = start.elapsed();
    voter.released(&one).await;
    Took([acquired, renewed - acquired, start.elapsed() - renewed])
}

async fn costs_nothing(fault: Fault) {
    let options = RedisOptions::new().persistence(Persistence::Snapshot);
    let mut five = Five::with(&options, "max_ttl=20s").await;
    for nodes in [&[4][..], &[0, 3]] {
        let way = five.way();
        let voter = way.voter().await;
        cycle(&voter, "warm").await;
        // What all five have is renewed and released by the others.
        let held = passing("held", TTL);
        voter.granted(&held).await;
        until("all five have it", SEC, || five.having("held") == ALL).await;
        fault.strikes(&mut five, &way, nodes);
        voter.renewed(&held).await;
        voter.released(&held).await;
        // A busy machine may delay some of them, and a limit that is waited for delays all.
        let mut least = Took([Duration::MAX; 3]);
        for n in 0..5 {
            let Took(took) = cycle(&voter, &format!("k{n}")).await;
            least = Took(std::array::from_fn(|verb| least.0[verb].min(took[verb])));
        }
        assert!(least.0.iter().all(|took| *took < AT_ONCE), "{fault:?} {nodes:?}: {least:?}");
        fault.passes(&mut five, &way, nodes);
        five.empties(5 * SEC).await;
        // Late requests come no later than this.
        pause(if fault == Fault::Slow { 1_200 * MS } else { 300 * MS }).await;
        assert_eq!(five.left(), []);
        five.init().await;
    }
}

#[test]
fn killed_nodes_delay_nothing_and_keep_no_claim() {
    run(costs_nothing(Fault::Killed));
}

/// H54: a stopped node takes requests and does not answer.
#[test]
fn h54_stopped_nodes_delay_nothing_and_keep_no_claim() {
    run(costs_nothing(Fault::Stopped));
}

#[test]
fn isolated_nodes_delay_nothing_and_keep_no_claim() {
    run(costs_nothing(Fault::CutOff));
}

/// H54: their answers come long after the decision.
#[test]
fn h54_slow_nodes_delay_nothing_and_keep_no_claim() {
    run(costs_nothing(Fault::Slow));
}

/// A manager's lock is renewed in time, and nobody else is let in, while two nodes are stopped.
#[test]
fn a_hold_lives_on_while_two_nodes_are_stopped() {
    run(async {
        let mut five = Five::new("max_ttl=5s").await;
        let ttl = 3 * SEC;
        let (client, other) = (warm(five.client(ttl).await).await, five.client(ttl).await);
        let guard = client.acquire("k").await;
        [1, 2].iter().for_each(|node| five.servers[*node].stop().unwrap());
        let renewed = client.story.renewed();
        until("longer than its ttl", 4 * ttl, || client.story.renewed() >= renewed + 4).await;
        assert!(guard.ensure_held().is_ok());
        assert!(other.mutex("k").try_acquire().await.unwrap().is_none());
        assert_eq!(client.story.lost(), []);
        guard.release().await.unwrap();
        [1, 2].iter().for_each(|node| five.servers[*node].cont().unwrap());
        five.empties(4 * SEC).await;
    });
}
