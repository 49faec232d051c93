//! Many processes that want one key on Redis: Latchwork, a client that spins on `SET NX`, and
//! other locks with their own ways to wait.

use std::time::Duration;

use latchwork_services::{RedisOptions, RedisServer};

use crate::Outcome;
use crate::contest::{self, Contest, PROCESSES, Round};
use crate::peers;
use crate::stats::shortened;

const ROUNDS: usize = 3;
const LENGTH: Duration = Duration::from_secs(2);

/// How many times its handovers Latchwork's should be.
fn goal(kind: &str, tasks: usize) -> Option<f64> {
    match kind {
        "spin" => Some(1.3),
        "python-redis-lock" => Some(4.0),
        "redis-py" | "node-redlock" | "rslock" => Some(if tasks == 1 { 100.0 } else { 20.0 }),
        _ => None,
    }
}

pub(crate) fn run() -> Outcome {
    let server = RedisServer::start(&RedisOptions::new())?;
    let folder = latchwork_services::Folder::new()?;
    let (kinds, missing) = peers::install(vec![
        peers::LATCHWORK,
        peers::LATCHWORK_HANDOVER,
        peers::SPIN,
        peers::PYTHON_REDIS_LOCK_KIND,
        peers::REDIS_PY,
        peers::NODE_REDLOCK,
        peers::RSLOCK,
        peers::ASYNC_REDIS_LOCK,
    ]);
    for tasks in [1, 8] {
        let mut rounds: Vec<Vec<Round>> = kinds.iter().map(|_| Vec::new()).collect();
        for _ in 0..shortened(ROUNDS, 1) {
            for (kind, rounds) in kinds.iter().zip(&mut rounds) {
                server.command(&["FLUSHALL"])?;
                let contest = Contest {
                    url: &server.url(),
                    folder: folder.path(),
                    processes: PROCESSES,
                    tasks,
                    length: LENGTH,
                };
                rounds.push(contest.run(kind, || kind.commands(&server))?.0);
            }
        }
        println!("{PROCESSES} processes of {tasks} task(s), one key:\n");
        contest::table(&kinds, &missing, &rounds, |kind| goal(kind, tasks));
    }
    Ok(())
}
