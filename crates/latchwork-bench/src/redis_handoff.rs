//! From one process to another on Redis, when the lock is held for about 200 ms.

use latchwork_services::{RedisOptions, RedisServer};

use crate::Outcome;
use crate::handoffs;
use crate::peers::{self, Kind};

pub(crate) fn run() -> Outcome {
    let server = RedisServer::start(&RedisOptions::new())?;
    let kinds = vec![
        peers::LATCHWORK,
        peers::PUSH_AND_POP,
        peers::PYTHON_REDIS_LOCK_KIND,
        peers::REDIS_PY,
        peers::NODE_REDLOCK,
        peers::RSLOCK,
        peers::ASYNC_REDIS_LOCK,
        peers::REDISSON,
        peers::REDSYNC,
        peers::RUEIDISLOCK,
    ];
    handoffs::run(&server, kinds, Kind::handoff_goal)
}
