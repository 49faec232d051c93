//! From one process to another on Redis, when the lock is held for about 200 ms.

use latchwork_services::{RedisOptions, RedisServer};

use crate::Outcome;
use crate::handoffs;
use crate::peers;

pub(crate) fn run() -> Outcome {
    let server = RedisServer::start(&RedisOptions::new())?;
    let kinds = vec![
        peers::LATCHWORK,
        peers::PYTHON_REDIS_LOCK_KIND,
        peers::REDIS_PY,
        peers::NODE_REDLOCK,
        peers::RSLOCK,
        peers::REDISSON,
        peers::REDSYNC,
        peers::RUEIDISLOCK,
    ];
    handoffs::run(&server, kinds, |kind| (kind != peers::LATCHWORK.name).then_some(0.5))
}
