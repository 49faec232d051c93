//! Many that want one key on Redis: Latchwork, a client that spins on `SET NX`, the least that waking
//! another process costs, and other locks with their own ways to wait.

use std::time::Duration;

use latchwork_services::{RedisOptions, RedisServer};

use crate::Outcome;
use crate::contest;
use crate::goals::Goal;
use crate::peers::{self, Kind, Waits};

/// How many rounds, and how long each is.
const ROUNDS: (usize, Duration) = (3, Duration::from_secs(2));

pub(crate) fn run() -> Outcome {
    let server = RedisServer::start(&RedisOptions::new())?;
    let mut kinds =
        vec![peers::LATCHWORK, peers::LATCHWORK_HANDOVER, peers::SPIN, peers::PUSH_AND_POP];
    kinds.extend(peers::on_redis());
    contest::run(&server, kinds, contest::APART, ROUNDS, goal)
}

/// More than a client that spins gets, and two and a half times what the best of the others does.
fn goal(kind: &Kind, tasks: usize) -> Option<Goal> {
    match kind.waits {
        _ if kind.name == peers::SPIN.name => Some(if tasks == 1 { 1.1 } else { 1.4 }),
        Waits::Told => (!kind.is_ours()).then_some(2.5),
        _ => return kind.contended_goal(),
    }
    .map(Goal::at_least)
}

/// Inside one process, where Latchwork hands over by itself unless that is switched off.
pub(crate) fn local() -> Outcome {
    let server = RedisServer::start(&RedisOptions::new())?;
    let mut kinds = vec![peers::LATCHWORK_HANDOVER, peers::LATCHWORK, peers::SPIN];
    kinds.extend(peers::on_redis());
    contest::run(&server, kinds, contest::LOCAL, ROUNDS, |kind, _| kind.contended_goal())
}
