//! Claims that one process has acquired, and another one renews and releases.

use super::cases::{MS, SEC, free, world};
use super::world::{Fault, Kind, Node, Process};
use latchwork_store::testing::claim;
use latchwork_store::*;
use std::sync::Arc;

/// A claim that a process has acquired and left to any other one, as these ask for it; with its token.
async fn left(process: &Process) -> (Claim, u64) {
    let one = claim("k");
    let grant = process.granted(process.quorum.try_acquire(&one).await);
    let id = process.quorum.detach(&one);
    (process.quorum.adopt(one.with(|it| it.id = id), grant.token), grant.token)
}

#[track_caller]
fn holds(answer: Result<Renewal, BackendError>, with: u64) {
    assert!(matches!(answer, Ok(Renewal::Held { token, .. }) if token == with), "{answer:?}");
}

async fn raise_counter(node: &Arc<Node>, token: u64) {
    let high = claim("k").with(|it| it.floor = token);
    node.hold(&high).await;
    node.memory().release(&high, Linger::None).await.unwrap();
}

/// One node has given a larger number. Whichever nodes answer, the token is that of the grant.
#[tokio::test(start_paused = true)]
async fn h431_a_majority_renews_a_hold_of_another_process() {
    for silent in 0..3 {
        let (io, nodes) = world(3);
        let [one, other] = [(); 2].map(|()| Process::over(&nodes, &io));
        raise_counter(&nodes[2], 1 << 52).await;
        let (claim, token) = left(&one).await;
        drop(one);
        other.links[silent].always(Fault::LoseRequest);
        for _ in 0..3 {
            holds(other.renew(&claim).await, token);
        }
        other.links[silent].always(Fault::None);
        let released = other.quorum.release(&claim, Linger::None).await;
        assert_eq!(released.unwrap(), Released::Yes);
        io.sleep(SEC).await;
        assert!(free(&nodes).await);
        assert_eq!(other.renew(&claim).await.unwrap(), Renewal::Lost);
        assert_eq!(other.quorum.shared.book().len(), 0, "nothing is remembered of it");
    }
}

/// Nodes may be restarted one after another under a hold, whichever process renews it.
#[tokio::test(start_paused = true)]
async fn h433_another_process_gives_a_claim_back_to_a_node_that_lost_it() {
    let (io, nodes) = world(3);
    let [one, other] = [(); 2].map(|()| Process::over(&nodes, &io));
    let (claim, token) = left(&one).await;
    for node in &nodes {
        node.forget();
        holds(other.renew(&claim).await, token);
        io.sleep(MS).await;
        assert_eq!(node.snapshot("k").await.holders.len(), 1);
        holds(one.renew(&claim).await, token);
    }
    other.quorum.release(&claim, Linger::None).await.unwrap();
    io.sleep(SEC).await;
    assert!(free(&nodes).await);
}

/// A minority is not enough, and the other nodes' silence is no loss.
#[tokio::test(start_paused = true)]
async fn h431_a_minority_renews_no_hold_of_another_process() {
    let (io, nodes) = world(3);
    let [one, other] = [(); 2].map(|()| Process::over(&nodes, &io));
    let (claim, token) = left(&one).await;
    for silent in [0, 1] {
        other.links[silent].always(Fault::LoseRequest);
    }
    assert!(other.renew(&claim).await.is_err());
    other.links[0].always(Fault::None);
    holds(other.renew(&claim).await, token);
    nodes[..2].iter().for_each(|node| node.forget());
    other.links[1].always(Fault::None);
    assert_eq!(other.renew(&claim).await.unwrap(), Renewal::Lost);
}

/// The answers of a renewal come when the hold is released: nothing is given back to the node that had lost it.
#[tokio::test(start_paused = true)]
async fn h434_a_renewal_that_a_release_overtakes_gives_nothing_back() {
    let (io, nodes) = world(3);
    let [one, other] = [(); 2].map(|()| Process::over(&nodes, &io));
    let (claim, _) = left(&one).await;
    nodes[0].forget();
    for link in &other.links {
        link.next(Kind::Renew, [Fault::Delay(MS, 9 * MS)]);
    }
    let (quorum, renewed) = (other.quorum.clone(), claim.clone());
    io.spawn(async move { drop(quorum.renew_all(&[renewed]).await) });
    io.sleep(5 * MS).await;
    other.quorum.release(&claim, Linger::None).await.unwrap();
    io.sleep(SEC).await;
    assert_eq!(other.asked(Kind::Try), [0, 0, 0]);
    assert!(free(&nodes).await);
}
