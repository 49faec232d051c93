//! Votes that nobody wins.

use std::time::Duration;

use super::cases::{MS, SEC, world};
use super::world::{Fault, Process};
use latchwork_store::testing::claim;
use latchwork_store::*;

/// Each pause may be longer than the one before, by two round trips, but no longer than a quarter of the ttl.
#[tokio::test(start_paused = true)]
async fn pauses_after_split_votes_grow_up_to_a_quarter_of_the_ttl() {
    let (io, nodes) = world(3);
    for (node, name) in nodes.iter().zip(["a", "b"]) {
        let held = claim("k").with(|it| (it.holder, it.ttl) = (name.into(), 3600 * SEC));
        node.hold(&held).await;
    }
    let process = Process::over(&nodes, &io);
    process.links.iter().for_each(|link| link.always(Fault::Delay(5 * MS, 5 * MS)));
    let one = claim("k").with(|it| it.ttl = SEC);
    let mut pauses = Vec::new();
    for splits in 1..=80 {
        let blocked = process.blocked(process.quorum.try_acquire(&one).await);
        let pause = blocked.retry_after.unwrap();
        // A try under the same name comes after a release of what the one before has left.
        let longest = (2 * splits * 20 * MS).min(SEC / 4);
        assert!(pause > Duration::ZERO && pause <= longest, "{pause:?} after {splits} votes");
        pauses.push(pause);
        io.sleep(20 * MS).await;
    }
    // By lot: that all are shorter comes once in 2^60 runs.
    assert!(pauses[20..].iter().any(|pause| *pause > SEC / 8), "{pauses:?}");
}
