//! Nodes that come back without the lock, or with old data: the guard keeps them from voting until
//! every lease that they may have forgotten is over (H53).

use latchwork::fence::Fence;
use latchwork::{Guard, HoldState};
use latchwork_services::{Data, Persistence, RedisOptions};
use latchwork_store::*;

use crate::common::*;
use crate::redlock::world::*;

const TTL: Duration = Duration::from_secs(4);
const GUARDED: &str = "max_ttl=4s";
const UNGUARDED: &str = "guard=false";

/// A holder with the votes of the first three nodes, cut off from all and so never told anything:
/// it believes in its lock to the end of its validity.
struct CutOff {
    guard: Guard,
    _client: Client,
    _way: Way,
}

impl CutOff {
    async fn hold(five: &Five) -> Self {
        let way = five.way();
        way.refuse(&[3, 4]);
        let client = way.client(TTL).await;
        let guard = client.acquire("k").await;
        assert_eq!(five.having("k"), [0, 1, 2]);
        way.cut_off(&ALL);
        Self { guard, _client: client, _way: way }
    }

    /// Lets somebody else try until it is let in; whether both believed to hold then.
    async fn followed(&self, five: &Five) -> (Guard, bool) {
        let other = five.client(TTL).await;
        assert_eq!(self.guard.state(), HoldState::Held, "the disaster took too long");
        let next = other.acquire("k").await;
        let both = self.guard.state() == HoldState::Held;
        (next, both)
    }
}

/// With the guard the second holder comes after the first.
async fn comes_after(five: &Five, first: &CutOff) {
    let (next, both) = first.followed(five).await;
    assert!(!both, "two holders");
    assert!(next.token() > first.guard.token());
}

/// Without it both believe, and the resource refuses the late one.
async fn comes_too_early(five: &Five, first: &CutOff) {
    let (next, both) = first.followed(five).await;
    assert!(both, "the first is lost, so this shows nothing");
    let fence = Fence::new();
    fence.check_write(next.token()).unwrap();
    let late = fence.check_write(first.guard.token()).unwrap_err();
    assert_eq!(late.newest, next.token());
}

#[test]
fn h53_an_empty_node_does_not_vote_for_a_second_holder() {
    run(async {
        let mut five = Five::new(GUARDED).await;
        let first = CutOff::hold(&five).await;
        five.restart(&[2], Data::Empty);
        comes_after(&five, &first).await;
    });
}

#[test]
fn h53_two_empty_nodes_do_not_vote() {
    run(async {
        let mut five = Five::new(GUARDED).await;
        let first = CutOff::hold(&five).await;
        five.restart(&[1, 2], Data::Empty);
        comes_after(&five, &first).await;
    });
}

#[test]
fn h53_an_empty_and_a_dead_node_make_no_second_holder() {
    run(async {
        let mut five = Five::new(GUARDED).await;
        let first = CutOff::hold(&five).await;
        five.restart(&[2], Data::Empty);
        five.kill(&[0]);
        comes_after(&five, &first).await;
    });
}

/// D6: the marker is in the snapshot, and the lock is not.
#[test]
fn h53_a_node_with_an_old_snapshot_does_not_vote() {
    run(async {
        let options = RedisOptions::new().persistence(Persistence::Snapshot);
        let mut five = Five::with(&options, GUARDED).await;
        [1, 2].iter().for_each(|node| five.servers[*node].save_snapshot().unwrap());
        let first = CutOff::hold(&five).await;
        five.restart(&[1, 2], Data::OldSnapshot);
        assert!(five.ask(2, &["GET", "lw:guard"]).text().contains(':'), "the marker is back");
        assert_eq!(five.having("k"), [0]);
        comes_after(&five, &first).await;
    });
}

#[test]
fn h53_unguarded_empty_node_is_fenced() {
    run(async {
        let mut five = Five::new(UNGUARDED).await;
        let first = CutOff::hold(&five).await;
        five.restart(&[2], Data::Empty);
        comes_too_early(&five, &first).await;
    });
}

#[test]
fn h53_unguarded_old_snapshot_is_fenced() {
    run(async {
        let options = RedisOptions::new().persistence(Persistence::Snapshot);
        let mut five = Five::with(&options, UNGUARDED).await;
        // An old counter of tokens is in it, too.
        let client = warm(five.client(TTL).await).await;
        five.servers[2].save_snapshot().unwrap();
        warm(client).await;
        let first = CutOff::hold(&five).await;
        five.restart(&[2], Data::OldSnapshot);
        comes_too_early(&five, &first).await;
    });
}

/// H58: nodes restart empty, two at a time, until none is left that granted the lock: it is given
/// back to each when its quarantine is over, and is held throughout.
#[test]
fn h58_a_long_hold_outlives_the_loss_of_every_node() {
    run(async {
        let mut five = Five::new("max_ttl=3s").await;
        let ttl = 3 * SEC;
        let client = warm(five.client(ttl).await).await;
        let other = five.client(ttl).await;
        let guard = client.acquire("k").await;
        for nodes in [[0, 1], [2, 3], [4, 0]] {
            five.restart(&nodes, Data::Empty);
            assert_eq!(five.having("k").len(), 3);
            assert!(other.mutex("k").try_acquire().await.unwrap().is_none());
            until("all have it again", 15 * SEC, || {
                assert_eq!(client.story.lost(), []);
                five.having("k") == ALL
            })
            .await;
            // What was given back counts from the next renewal on.
            let renewed = client.story.renewed();
            until("a renewal", 5 * SEC, || client.story.renewed() > renewed).await;
            assert_eq!(guard.state(), HoldState::Held);
        }
        assert_eq!(client.story.lost(), []);
        guard.release().await.unwrap();
        five.empties(SEC).await;
    });
}

/// D9: a holder that has lost a majority is lost, however much a minority still has: nothing is
/// planted for it, so it does not slip back in.
#[test]
fn a_hold_lost_at_a_majority_is_not_written_again() {
    run(async {
        let mut five = Five::new(UNGUARDED).await;
        let voter = five.voter().await;
        let one = passing("k", 20 * SEC);
        voter.granted(&one).await;
        until("all have it", 5 * SEC, || five.having("k") == ALL).await;
        five.restart(&[0, 1, 2], Data::Empty);
        // The first try to reach a node that was restarted may find the old connection, and a busy node answers late.
        let start = Instant::now();
        let lost = async || {
            loop {
                match voter.renew(&one).await {
                    Ok(renewal) => break assert_eq!(renewal, Renewal::Lost),
                    Err(error) => assert!(start.elapsed() < 10 * SEC, "{error}"),
                }
                pause(20 * MS).await;
            }
        };
        lost().await;
        pause(100 * MS).await;
        assert_eq!(five.having("k"), [3, 4]);
        lost().await;
        voter.0.release(&one, Linger::None).await.unwrap();
        five.empties(SEC).await;
    });
}
