//! Many processes that want one key on Redis: Latchwork, a client that spins on `SET NX`, and
//! other locks with their own ways to wait.

use std::time::Duration;

use latchwork_services::{RedisOptions, RedisServer};

use crate::Outcome;
use crate::contest;
use crate::peers;

/// How many rounds, and how long each is.
const ROUNDS: (usize, Duration) = (3, Duration::from_secs(2));

/// How many times its handovers Latchwork's should be.
fn goal(kind: &str, tasks: usize) -> Option<f64> {
    match kind {
        "spin" => Some(1.3),
        "python-redis-lock" => Some(4.0),
        // They are told of releases.
        "Redisson RLock" | "rueidislock" => Some(2.0),
        // It polls.
        "redsync" => Some(5.0),
        "redis-py" | "node-redlock" | "rslock" => Some(if tasks == 1 { 100.0 } else { 20.0 }),
        _ => None,
    }
}

pub(crate) fn run() -> Outcome {
    let server = RedisServer::start(&RedisOptions::new())?;
    let kinds = vec![
        peers::LATCHWORK,
        peers::LATCHWORK_HANDOVER,
        peers::SPIN,
        peers::PYTHON_REDIS_LOCK_KIND,
        peers::REDIS_PY,
        peers::NODE_REDLOCK,
        peers::RSLOCK,
        peers::ASYNC_REDIS_LOCK,
        peers::REDISSON,
        peers::REDSYNC,
        peers::RUEIDISLOCK,
    ];
    contest::run(&server, kinds, ROUNDS, goal)
}
