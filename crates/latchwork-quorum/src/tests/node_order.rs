//! Who asks whom, and how often.

use std::sync::Arc;
use std::time::Duration;

use super::cases::{LIMIT, MS, SEC, free, world};
use super::world::{Fault, Kind, Node, Process};
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
    let asked = second.quorum.shared.node_order.first(&two.key, io.now());
    first.links[asked].next(Kind::Try, [Fault::LoseRequest]);
    let start = io.now();
    first.granted(first.quorum.try_acquire(&one).await);
    assert!(io.now().since(start) < 10 * MS, "the others were asked soon");
    second.quorum.wait(&two, &blocked).await.unwrap();
    let tries = || second.asked(Kind::Try);
    // The node that the first one did not reach is free, so the vote goes on and finds the holder.
    let blocked = second.blocked(second.quorum.try_acquire(&two).await);
    assert_eq!(tries(), [2; 5]);
    first.quorum.release(&one, Linger::None).await.unwrap();
    second.quorum.wait(&two, &blocked).await.unwrap();
    first.granted(first.quorum.try_acquire(&claim("k")).await);
    let blocked = second.blocked(second.quorum.try_acquire(&two).await);
    assert_eq!(tries().iter().sum::<usize>(), 11, "one node has told it all");
    // It does not rely on that node: if nothing is heard, it asks all.
    let pause = blocked.retry_after.unwrap();
    assert!((LIMIT..=2 * LIMIT).contains(&pause), "{pause:?}");
    let start = io.now();
    io.within(pause, second.quorum.wait(&two, &blocked)).await;
    assert!(io.now().since(start) <= 500 * MS, "{:?}", io.now().since(start));
    second.blocked(second.quorum.try_acquire(&two).await);
    assert_eq!(tries().iter().sum::<usize>(), 16);
}

#[tokio::test(start_paused = true)]
async fn the_first_node_may_take_eight_times_the_mean_trip() {
    let (io, nodes) = world(7);
    let [holder, process] = [(); 2].map(|()| Process::over(&nodes, &io));
    for (link, n) in process.links.iter().zip(1..) {
        link.always(Fault::Delay(n * MS, n * MS));
    }
    let [held, one] = [(); 2].map(|()| claim("k"));
    holder.granted(holder.quorum.try_acquire(&held).await);
    process.blocked(process.quorum.try_acquire(&one).await);
    // Four of seven answers decide, and those of a request that was sent with others come together.
    assert_eq!(process.quorum.shared.node_order.patience(), 8 * 8 * MS);
    holder.quorum.release(&held, Linger::None).await.unwrap();
    process.granted(process.quorum.try_acquire(&one).await);
    // Now they come after 2, 4, 6 and 8 ms. The median of these is an eighth of the mean.
    assert_eq!(process.quorum.shared.node_order.patience(), (7 * 8 + 6) * MS);
}

/// Two processes that wait for a key, of which the first was woken. Its tries ask one node first.
struct Woken {
    io: Io,
    nodes: Vec<Arc<Node>>,
    process: Process,
    claim: Claim,
    asked: usize,
}

impl Woken {
    async fn new(quarantine: Duration) -> Self {
        let (io, _) = world(0);
        let nodes: Vec<_> = (0..3).map(|_| Node::new(&io, quarantine)).collect();
        let [holder, process] = [(); 2].map(|()| Process::over(&nodes, &io));
        let [held, claim] = [(); 2].map(|()| claim("k"));
        holder.granted(holder.quorum.try_acquire(&held).await);
        let told = process.blocked(process.quorum.try_acquire(&claim).await);
        holder.quorum.release(&held, Linger::None).await.unwrap();
        assert_eq!(process.quorum.wait(&claim, &told).await.unwrap(), Wake::Look);
        let asked = process.quorum.shared.node_order.first(&claim.key, io.now());
        Self { io, nodes, process, claim, asked }
    }

    fn first(&self) -> usize {
        self.process.quorum.shared.node_order.first(&self.claim.key, self.io.now())
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_grants_is_asked_first_the_next_time() {
    let woken = Woken::new(Duration::ZERO).await;
    woken.process.granted(woken.process.quorum.try_acquire(&woken.claim).await);
    assert_eq!(woken.first(), woken.asked);
}

#[tokio::test(start_paused = true)]
async fn the_first_node_alone_does_not_know_that_all_are_in_quarantine() {
    let woken = Woken::new(10 * SEC).await;
    woken.nodes[woken.asked].forget();
    woken.process.granted(woken.process.quorum.try_acquire(&woken.claim).await);
    assert_ne!(woken.first(), woken.asked, "it was of no use");
}

/// Under another name it would lose its place there to those who came after it.
#[tokio::test(start_paused = true)]
async fn a_waiter_keeps_its_place_at_the_first_node() {
    let woken = Woken::new(Duration::ZERO).await;
    let Woken { process, nodes, io, claim: waiter, asked } = &woken;
    let rival = Process::over(nodes, io);
    for _ in 0..2 {
        let faster = claim("k");
        rival.granted(rival.quorum.try_acquire(&faster).await);
        let told = process.blocked(process.quorum.try_acquire(waiter).await);
        rival.quorum.release(&faster, Linger::None).await.unwrap();
        assert_eq!(process.quorum.wait(waiter, &told).await.unwrap(), Wake::Look);
    }
    process.granted(process.quorum.try_acquire(waiter).await);
    let sent = process.links[*asked].sent.lock().unwrap().clone();
    let tries: Vec<_> = sent.iter().filter(|(kind, _)| *kind == Kind::Try).collect();
    let [_, at_first @ ..] = &tries[..] else { panic!("{tries:?}") };
    assert!(at_first.len() == 3 && at_first.iter().all(|one| one == &at_first[0]), "{tries:?}");
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
    assert_eq!(process.links[2].asked(Kind::Release), 1);
}
