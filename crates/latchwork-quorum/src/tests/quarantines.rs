//! Votes in which some nodes have forgotten everything, and say so.

use std::sync::Arc;
use std::time::Duration;

use super::cases::{SEC, world};
use super::world::{Node, Process};
use latchwork_store::testing::claim;
use latchwork_store::*;

/// Three nodes; the first is held, and this many of the others are in quarantine.
async fn held_beside(quarantined: usize) -> Blocked {
    let (io, _) = world(0);
    let nodes: Vec<Arc<Node>> = (0..3).map(|_| Node::new(&io, 10 * SEC)).collect();
    nodes[0].hold(&claim("k")).await;
    nodes[1..=quarantined].iter().for_each(|node| node.forget());
    let process = Process::over(&nodes, &io);
    process.blocked(process.quorum.try_acquire(&claim("k")).await)
}

/// It would wait for milliseconds in place of the time that the nodes have named.
#[tokio::test(start_paused = true)]
async fn a_holder_and_a_node_in_quarantine_are_no_split_vote() {
    let blocked = held_beside(1).await;
    assert!(blocked.retry_after.unwrap_or(Duration::ZERO) >= SEC, "{blocked:?}");
}

#[tokio::test(start_paused = true)]
async fn a_quarantine_is_the_cause_only_where_it_blocks_by_itself() {
    assert_eq!(held_beside(1).await.cause, Cause::Held);
    assert_eq!(held_beside(2).await.cause, Cause::Quarantine);
}
