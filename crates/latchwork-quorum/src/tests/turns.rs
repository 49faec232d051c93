//! Who asks whom, and how often.

use std::sync::Arc;

use super::cases::{MS, free, world};
use super::world::{Fault, Kind, Link, Process};
use latchwork_store::testing::claim;
use latchwork_store::*;

/// When a key comes free all who wait are told, and only one of them may ask for all votes.
#[tokio::test(start_paused = true)]
async fn a_woken_waiter_asks_one_node_then_the_others() {
    let (io, nodes) = world(5);
    let [holder, first, second] = [(); 3].map(|()| Process::over(&nodes, &io));
    let [held, one, two] = [(); 3].map(|()| claim("k"));
    holder.granted(holder.quorum.try_acquire(&held).await);
    let told = first.blocked(first.quorum.try_acquire(&one).await);
    let blocked = second.blocked(second.quorum.try_acquire(&two).await);
    holder.quorum.release(&held, Linger::None).await.unwrap();
    assert_eq!(first.quorum.wait(&one, &told).await.unwrap(), Wake::Look);
    let asked = second.quorum.shared.turns.first(&two.key, io.now());
    first.links[asked].next(Kind::Try, [Fault::LoseRequest]);
    let start = io.now();
    first.granted(first.quorum.try_acquire(&one).await);
    assert!(io.now().since(start) < 10 * MS, "the others were asked soon");
    second.quorum.wait(&two, &blocked).await.unwrap();
    let tries = || {
        let tries = |link: &Arc<Link>| {
            link.sent.lock().unwrap().iter().filter(|(kind, _)| *kind == Kind::Try).count()
        };
        second.links.iter().map(tries).collect::<Vec<_>>()
    };
    // The node that the first one did not reach is free, so the vote goes on and finds the holder.
    let blocked = second.blocked(second.quorum.try_acquire(&two).await);
    assert_eq!(tries(), [2; 5]);
    first.quorum.release(&one, Linger::None).await.unwrap();
    second.quorum.wait(&two, &blocked).await.unwrap();
    first.granted(first.quorum.try_acquire(&claim("k")).await);
    let blocked = second.blocked(second.quorum.try_acquire(&two).await);
    assert_eq!(tries().iter().sum::<usize>(), 11, "one node has told it all");
    // It does not rely on that node: if nothing is heard, it asks all.
    let start = io.now();
    io.within(blocked.retry_after.unwrap(), second.quorum.wait(&two, &blocked)).await;
    assert!(io.now().since(start) <= 500 * MS, "{:?}", io.now().since(start));
    second.blocked(second.quorum.try_acquire(&two).await);
    assert_eq!(tries().iter().sum::<usize>(), 16);
}

#[tokio::test(start_paused = true)]
async fn a_release_that_found_a_late_try_is_not_sent_again() {
    let (io, nodes) = world(3);
    let process = Process::over(&nodes, &io);
    process.links[2].next(Kind::Try, [Fault::Delay(MS, 50 * MS)]);
    let one = claim("k");
    process.granted(process.quorum.try_acquire(&one).await);
    io.sleep(5 * MS).await;
    process.quorum.release(&one, Linger::None).await.unwrap();
    io.sleep(100 * MS).await;
    assert!(free(&nodes).await);
    let sent = process.links[2].sent.lock().unwrap().clone();
    assert_eq!(sent.iter().filter(|(kind, _)| *kind == Kind::Release).count(), 1);
}
