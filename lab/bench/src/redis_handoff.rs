//! From one process to another on Redis, when the lock is held for about 200 ms.

use latchwork_services::{RedisOptions, RedisServer};

use crate::Outcome;
use crate::handoffs;
use crate::peers::{self, Kind};

pub(crate) fn run() -> Outcome {
    let server = RedisServer::start(&RedisOptions::new())?;
    let ours = [peers::LATCHWORK, peers::PUSH_AND_POP, peers::SCRIPT_AND_POP];
    let kinds = ours.into_iter().chain(peers::on_redis());
    handoffs::run(&server, kinds.collect(), Kind::handoff_goal)
}
