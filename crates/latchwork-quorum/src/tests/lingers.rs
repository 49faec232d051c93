//! Keys that are kept closed on a majority, and opened there.

use std::sync::Arc;

use super::cases::{LIMIT, SEC, world};
use super::world::{Fault, Node, Process};
use latchwork_store::*;
use latchwork_store::{Effect, Io, testing::claim};

#[tokio::test(start_paused = true)]
async fn a_linger_closes_the_key_on_a_majority() {
    let (io, nodes) = world(3);
    let process = Process::over(&nodes, &io);
    let one = claim("k");
    process.granted(process.quorum.try_acquire(&one).await);
    process.links[2].always(Fault::Refuse);
    let released = process.quorum.release(&one, Linger::For(30 * SEC)).await;
    assert_eq!(released.unwrap(), Released::Yes);
    process.links[2].always(Fault::None);
    let late = claim("k");
    let blocked = process.blocked(process.quorum.try_acquire(&late).await);
    assert_eq!((blocked.cause, blocked.retry_after), (Cause::Linger, Some(30 * SEC)));
    let query = Query::Key(late.key.clone());
    assert_eq!(process.quorum.inspect(&query).await.unwrap()[0].linger, Some(30 * SEC));
    // Lost on a majority, it cannot be kept closed, and the answer says so.
    let other = claim("k").with(|it| it.key = latchwork_store::Key::new("other").unwrap());
    process.granted(process.quorum.try_acquire(&other).await);
    nodes[0].forget();
    nodes[1].forget();
    let released = process.quorum.release(&other, Linger::For(30 * SEC)).await;
    assert_eq!(released.unwrap(), Released::NotHeld);
}

/// A closed key of three nodes, and a process that opens it.
async fn closed(nodes: &[Arc<Node>], io: &Io) -> (Process, Claim) {
    let process = Process::over(nodes, io);
    let one = claim("k");
    process.granted(process.quorum.try_acquire(&one).await);
    let released = process.quorum.release(&one, Linger::For(30 * SEC)).await;
    assert_eq!(released.unwrap(), Released::Yes);
    (process, claim("k"))
}

#[tokio::test(start_paused = true)]
async fn a_closed_key_is_opened_by_a_majority() {
    let (io, nodes) = world(3);
    let (process, reset) = closed(&nodes, &io).await;
    process.links[2].always(Fault::Refuse);
    let opened = process.quorum.release(&reset, Linger::End).await;
    assert_eq!(opened.unwrap(), Released::Yes);
    let next = claim("k");
    process.granted(process.quorum.try_acquire(&next).await);
    let opened = process.quorum.release(&next, Linger::End).await;
    assert_eq!(opened.unwrap(), Released::NotHeld, "it is held");
    assert!(matches!(process.renew(&next).await.unwrap(), Renewal::Held { .. }));
    process.quorum.release(&next, Linger::None).await.unwrap();
    // The node that was away is still closed, and another reset opens it.
    process.links[2].always(Fault::None);
    let opened = process.quorum.release(&reset, Linger::End).await;
    assert_eq!(opened.unwrap(), Released::Yes);
    let opened = process.quorum.release(&reset, Linger::End).await;
    assert_eq!(opened.unwrap(), Released::NotHeld, "all are open");
}

/// Repeated in the background, it could open what a run has closed meanwhile.
#[tokio::test(start_paused = true)]
async fn an_opening_without_a_majority_is_an_error_and_is_not_repeated() {
    let (io, nodes) = world(3);
    let (process, reset) = closed(&nodes, &io).await;
    process.links[1].always(Fault::Refuse);
    process.links[2].always(Fault::Refuse);
    let error = process.quorum.release(&reset, Linger::End).await.unwrap_err();
    assert!(error.message.starts_with("2 of 3 nodes did not answer"), "{error:?}");
    assert_eq!(error.effect, Effect::Unknown);
    process.links[1].always(Fault::None);
    process.links[2].always(Fault::None);
    io.sleep(4 * LIMIT).await;
    let blocked = process.blocked(process.quorum.try_acquire(&claim("k")).await);
    assert_eq!(blocked.cause, Cause::Linger);
}
