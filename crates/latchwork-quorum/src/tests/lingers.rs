//! Keys that are kept closed on a majority, and opened there.

use std::sync::Arc;
use std::time::Duration;

use super::cases::{LIMIT, MS, SEC, world};
use super::world::{Fault, Node, Process};
use latchwork_store::*;
use latchwork_store::{Effect, Io, testing::claim};

#[tokio::test(start_paused = true)]
async fn a_linger_closes_the_key_on_a_majority() {
    let (io, nodes) = world(3);
    let process = Process::over(&nodes, &io);
    let one = claim("k").with(|it| it.holder = "web-2".into());
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

/// A node that was away when a key was closed, or opened and closed again, does not hide its name.
#[tokio::test(start_paused = true)]
async fn a_majority_names_the_closing_holder_and_time() {
    let (io, nodes) = world(3);
    let process = Process::over(&nodes, &io);
    let by = |text: &str, secs| {
        let closed_at = Some(secs * SEC);
        Holder::new(text).with(|it| it.closed_at = closed_at)
    };
    for (node, text, secs) in [(0, "web-1", 9), (1, "web-2", 7), (2, "web-2", 7)] {
        let one = claim("k").with(|it| it.holder = by(text, secs));
        nodes[node].close(&one).await;
    }
    let query = Query::Key(claim("k").key);
    let seen = process.quorum.inspect(&query).await.unwrap().remove(0);
    assert_eq!(seen.closed_by, Some(by("web-2", 7)));
    let blocked = process.blocked(process.quorum.try_acquire(&claim("k")).await);
    assert_eq!((blocked.cause, blocked.holder), (Cause::Linger, Some(by("web-2", 7))));
    for node in &nodes[1..] {
        node.memory().release(&claim("k"), Linger::End).await.unwrap();
    }
    let seen = process.quorum.inspect(&query).await.unwrap().remove(0);
    assert_eq!((seen.linger, seen.closed_by), (None, None), "one node closes nothing");
}

/// As after an upgrade, or a reset that did not reach all: the votes are not split, and nobody looks again at once.
#[tokio::test(start_paused = true)]
async fn nodes_that_were_closed_by_several_are_closed() {
    let (io, nodes) = world(3);
    let process = Process::over(&nodes, &io);
    for (node, text) in nodes.iter().zip(["", "web-1", "web-2"]) {
        let one = claim("k").with(|it| it.holder = text.into());
        node.close(&one).await;
    }
    let blocked = process.blocked(process.quorum.try_acquire(&claim("k")).await);
    assert_eq!((blocked.cause, blocked.retry_after), (Cause::Linger, Some(30 * SEC)));
}

/// The nodes that have not heard of the end answer first.
#[tokio::test(start_paused = true)]
async fn a_key_that_a_majority_has_closed_is_told_as_closed() {
    for lost in [Fault::Delay(MS, MS), Fault::LoseRequest, Fault::Refuse] {
        let (io, nodes) = world(5);
        let (ours, theirs) = (Process::over(&nodes, &io), Process::over(&nodes, &io));
        let one = claim("k").with(|it| it.holder = "web-2".into());
        ours.granted(ours.quorum.try_acquire(&one).await);
        for link in &ours.links[3..] {
            link.always(Fault::Delay(LIMIT / 2, Duration::ZERO));
        }
        let released = ours.quorum.release(&one, Linger::For(30 * SEC)).await;
        assert_eq!(released.unwrap(), Released::Yes);
        theirs.links[1].always(lost);
        theirs.links[2].always(Fault::Delay(MS, MS));
        let start = io.now();
        let blocked = theirs.blocked(theirs.quorum.try_acquire(&claim("k")).await);
        assert_eq!(blocked.cause, Cause::Linger, "{lost:?}");
        assert!(io.now().since(start) <= LIMIT, "{lost:?}");
    }
}

/// A node that a reset did not reach does not hide a run, and nobody waits for the others.
#[tokio::test(start_paused = true)]
async fn a_run_on_a_majority_is_told_at_once_beside_a_closed_node() {
    let (io, nodes) = world(5);
    let process = Process::over(&nodes, &io);
    let old = claim("k");
    nodes[0].close(&old).await;
    process.granted(process.quorum.try_acquire(&claim("k")).await);
    process.links[4].always(Fault::LoseRequest);
    let start = io.now();
    let blocked = process.blocked(process.quorum.try_acquire(&claim("k")).await);
    assert_eq!((blocked.cause, io.now().since(start)), (Cause::Held, Duration::ZERO));
}

/// What the silent node knows would change nothing.
#[tokio::test(start_paused = true)]
async fn nobody_waits_for_a_node_that_cannot_change_the_answer() {
    let (io, _) = world(0);
    let nodes: Vec<_> = (0..5).map(|_| Node::new(&io, 10 * SEC)).collect();
    let process = Process::over(&nodes, &io);
    nodes[0].forget();
    nodes[1].forget();
    // Two that know nothing, and one that keeps it closed, or that holds it.
    nodes[2].close(&claim("closed")).await;
    nodes[2].hold(&claim("held")).await;
    for link in &process.links[3..] {
        link.always(Fault::LoseRequest);
    }
    for key in ["closed", "held"] {
        let start = io.now();
        process.blocked(process.quorum.try_acquire(&claim(key)).await);
        assert_eq!(io.now(), start, "{key}");
    }
    io.sleep(10 * SEC).await;
    // One that holds it, and a majority that keeps it closed. The holder answers first.
    nodes[0].hold(&claim("both")).await;
    for node in &nodes[1..4] {
        node.close(&claim("both")).await;
    }
    process.links[3].always(Fault::Delay(MS, MS));
    let start = io.now();
    let blocked = process.blocked(process.quorum.try_acquire(&claim("both")).await);
    assert_eq!((blocked.cause, io.now().since(start)), (Cause::Linger, 2 * MS));
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
async fn a_reset_without_a_majority_fails_and_is_not_retried() {
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
