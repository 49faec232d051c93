//! From one process to another on Redis, when the lock is held for about 200 ms.

use latchwork_services::{RedisOptions, RedisServer};

use crate::Outcome;
use crate::handoffs;
use crate::peers;
use crate::stats::shortened;

const ROUNDS: usize = 3;

pub(crate) fn run() -> Outcome {
    let server = RedisServer::start(&RedisOptions::new())?;
    let (kinds, missing) = peers::install(vec![
        peers::LATCHWORK,
        peers::PYTHON_REDIS_LOCK_KIND,
        peers::REDIS_PY,
        peers::NODE_REDLOCK,
        peers::RSLOCK,
    ]);
    let mut samples: Vec<Vec<f64>> = kinds.iter().map(|_| Vec::new()).collect();
    for _ in 0..shortened(ROUNDS, 1) {
        for (kind, samples) in kinds.iter().zip(&mut samples) {
            server.command(&["FLUSHALL"])?;
            samples.extend(handoffs::handoffs(kind, &server.url())?);
        }
    }
    handoffs::table(&kinds, &missing, &mut samples, |kind| {
        (kind == "python-redis-lock").then_some(0.5)
    });
    Ok(())
}
