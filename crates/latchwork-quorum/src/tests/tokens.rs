//! Tokens over nodes that disagree.

use super::cases::{MS, SEC, holders, world};
use super::world::{Fault, Kind, Process};
use latchwork_store::testing::claim;
use latchwork_store::*;

/// H57: one node is ahead of the others. The next majority shares only a node with it that was
/// behind, so it must have been told.
#[tokio::test(start_paused = true)]
async fn the_token_is_written_back_where_it_is_missing() {
    let (io, nodes) = world(3);
    let ahead = claim("k").with(|it| it.floor = 1_900_000_000_000_000);
    nodes[0].hold(&ahead).await;
    nodes[0].memory().release(&ahead, Linger::None).await.unwrap();
    let (first, second) = (Process::over(&nodes, &io), Process::over(&nodes, &io));
    first.links[2].always(Fault::Refuse);
    second.links[0].always(Fault::Refuse);
    let (one, other) = (claim("k"), claim("k"));
    let earlier = first.granted(first.quorum.try_acquire(&one).await).token;
    assert!(earlier > ahead.floor);
    first.quorum.release(&one, Linger::None).await.unwrap();
    assert!(second.granted(second.quorum.try_acquire(&other).await).token > earlier);
}

/// The write-back counts only where the claim is live: a node that has forgotten it may have
/// granted a later one.
#[tokio::test(start_paused = true)]
async fn a_token_that_no_majority_remembers_is_not_used() {
    let (io, nodes) = world(3);
    let ahead = claim("k").with(|it| it.floor = 1_900_000_000_000_000);
    nodes[0].hold(&ahead).await;
    nodes[0].memory().release(&ahead, Linger::None).await.unwrap();
    let process = Process::over(&nodes, &io);
    process.links[2].always(Fault::Refuse);
    process.links[1].next(Kind::Renew, [Fault::Forget]);
    process.blocked(process.quorum.try_acquire(&claim("k")).await);
    io.sleep(MS).await;
    assert_eq!(holders(&nodes).await, [0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_token_that_a_majority_agrees_on_takes_one_trip() {
    let (io, nodes) = world(3);
    let ahead = claim("k").with(|it| it.floor = 1_900_000_000_000_000);
    nodes[0].hold(&ahead).await;
    nodes[0].memory().release(&ahead, Linger::None).await.unwrap();
    let process = Process::over(&nodes, &io);
    let one = claim("k");
    let grant = process.granted(process.quorum.try_acquire(&one).await);
    assert!(grant.token < ahead.floor, "two of three agree on a smaller one");
    assert!(process.links.iter().all(|link| link.sent.lock().unwrap().len() == 1));
    assert!(matches!(
        process.renew(&one).await,
        Ok(Renewal::Held { token, .. }) if token == grant.token
    ));
}

#[tokio::test(start_paused = true)]
async fn the_same_id_is_the_same_grant_and_a_floor_is_carried() {
    let (io, nodes) = world(3);
    let process = Process::over(&nodes, &io);
    let mut one = claim("k");
    one.floor = 1_900_000_000_000_000;
    let grant = process.granted(process.quorum.try_acquire(&one).await);
    assert!(grant.token >= one.floor);
    io.sleep(9 * SEC).await;
    assert_eq!(process.granted(process.quorum.try_acquire(&one).await), grant);
    io.sleep(9 * SEC).await;
    assert_eq!(holders(&nodes).await, [1, 1, 1]);
    one.floor += 500;
    let Ok(Renewal::Held { token, .. }) = process.renew(&one).await else { panic!() };
    assert_eq!(token, one.floor);
    process.quorum.release(&one, Linger::None).await.unwrap();
    let next = Process::over(&nodes, &io);
    assert!(next.granted(next.quorum.try_acquire(&claim("k")).await).token > one.floor);
}
