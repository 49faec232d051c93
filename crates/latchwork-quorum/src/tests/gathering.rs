//! Requests that go out together.

use std::sync::Arc;
use std::time::Duration;

use super::cases::{LIMIT, MS, world};
use super::world::{Fault, Kind, Process};
use latchwork_store::testing::claim;
use latchwork_store::*;

/// Until what gathers goes out, though what is under way is not answered.
const GATHER_PATIENCE: Duration = Duration::from_millis(20);

/// A process whose requests for the key `silent` are lost.
fn process(size: usize) -> (Io, Arc<Process>) {
    let (io, nodes) = world(size);
    let process = Process::over(&nodes, &io);
    for link in &process.links {
        link.plan(|_, claim| match claim.key.as_str() {
            "silent" => Fault::LoseRequest,
            _ => Fault::None,
        });
    }
    (io, Arc::new(process))
}

/// Tries a key, and tells when the answer came.
fn tries(
    process: &Arc<Process>,
    io: &Io,
    one: &Claim,
) -> tokio::task::JoinHandle<(Result<Attempt, BackendError>, Moment)> {
    let (process, io, one) = (process.clone(), io.clone(), one.clone());
    #[expect(clippy::disallowed_methods, reason = "the caller's own task")]
    tokio::spawn(async move { (process.quorum.try_acquire(&one).await, io.now()) })
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_request_delays_others_by_at_most_20_ms() {
    let (io, process) = process(5);
    let start = io.now();
    let silent = tries(&process, &io, &claim("silent"));
    let (a, b) = (claim("a"), claim("b"));
    io.sleep(MS).await;
    let (first, second) = (tries(&process, &io, &a), tries(&process, &io, &b));
    for answer in [first, second] {
        let (attempt, at) = answer.await.unwrap();
        process.granted(attempt);
        assert!(at.since(start) <= GATHER_PATIENCE + 2 * MS, "{:?}", at.since(start));
    }
    assert_eq!(process.asked(Kind::Try), [3; 5]);
    let (failed, at) = silent.await.unwrap();
    assert!(failed.is_err());
    assert_eq!(at.since(start), LIMIT);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_given_up_while_it_gathers_is_not_sent() {
    let (io, process) = process(3);
    let silent = tries(&process, &io, &claim("silent"));
    io.sleep(MS).await;
    let (gone, stays) = (claim("gone"), claim("stays"));
    let given_up = tries(&process, &io, &gone);
    io.sleep(MS).await;
    given_up.abort();
    assert!(given_up.await.unwrap_err().is_cancelled());
    let (attempt, _) = tries(&process, &io, &stays).await.unwrap();
    process.granted(attempt);
    silent.await.unwrap().0.unwrap_err();
    io.sleep(LIMIT * 2).await;
    assert_eq!(
        process.asked(Kind::Try),
        [2; 3],
        "the one that nobody answered, and the one that stayed"
    );
}

/// A load asks each node for itself.
#[tokio::test(start_paused = true)]
async fn a_slow_node_delays_no_batch() {
    let (io, process) = process(5);
    process.links[2].always(Fault::Delay(50 * MS, 50 * MS));
    let start = io.now();
    for round in 0..3 {
        let claims: Vec<Claim> = (0..8).map(|n| claim(&format!("{round}/{n}"))).collect();
        let answers: Vec<_> = claims.iter().map(|one| tries(&process, &io, one)).collect();
        for answer in answers {
            process.granted(answer.await.unwrap().0);
        }
    }
    assert!(io.now().since(start) < GATHER_PATIENCE, "{:?}", io.now().since(start));
}
