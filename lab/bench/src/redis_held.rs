//! Many locks on Redis that one process holds and renews.

use std::time::Duration;

use latchwork_services::{RedisOptions, RedisServer};

use crate::Outcome;
use crate::goals::{self, Goal};
use crate::held_by_one::{MEMORY, Measured, held_by_one};
use crate::peers::{self, Kind};
use crate::stats::{head, row, shortened};

const LOCKS: usize = 10_000;
const TTL: Duration = Duration::from_secs(30);
const MOST: f64 = 50.0;

pub(crate) fn run() -> Outcome {
    let (kinds, missing) = peers::install(vec![
        peers::LATCHWORK,
        peers::ASYNC_REDIS_LOCK,
        peers::REDIS_SEMAPHORE,
        peers::REDISSON,
        peers::RUEIDISLOCK,
    ]);
    let ttl = shortened(TTL, TTL / 5);
    println!("{LOCKS} locks with a ttl of {} s:\n", ttl.as_secs());
    let mut titles = vec![
        "what",
        "renews a lock every",
        "watched for",
        "commands a second",
        "client CPU",
        "latchwork's CPU to it",
        goals::TITLE,
    ];
    titles.extend(MEMORY);
    titles.push("still held");
    head(&titles);
    let mut ours = f64::NAN;
    for kind in &kinds {
        // What each does by itself; redis-semaphore leaves a fifth of the ttl for a renewal. Whole
        // rounds of renewals, or the counts would depend on when one looks.
        let (every, rounds) = match kind.name {
            "redis-semaphore" => (ttl * 4 / 5, 2),
            "rueidislock" => (ttl / 2, 2),
            _ => (ttl / 3, 3),
        };
        let watched = every * rounds;
        let seen = measure(kind, ttl, watched)?;
        let mut verdicts = Vec::new();
        if kind.name == "latchwork" {
            ours = seen.cpu;
            verdicts.push(Goal::at_most(MOST).of("commands").judge(seen.commands));
            verdicts.extend(seen.memory_verdicts());
        } else {
            verdicts.push(Goal::below(1.0).of("CPU").judge(ours / seen.cpu));
        }
        let mut cells = vec![
            kind.name.into(),
            format!("{:.1} s", every.as_secs_f64()),
            format!("{:.1} s", watched.as_secs_f64()),
            format!("{:.1}", seen.commands),
            format!("{:.3} % of one core", seen.cpu),
            format!("{:.2}", ours / seen.cpu),
            goals::cell(&verdicts),
        ];
        cells.extend(seen.memory());
        cells.push(seen.held);
        row(&cells);
    }
    peers::missing_rows(&missing, titles.len());
    Ok(())
}

fn measure(
    kind: &Kind,
    ttl: Duration,
    watched: Duration,
) -> Result<Measured, Box<dyn std::error::Error>> {
    let server = RedisServer::start(&RedisOptions::new())?;
    held_by_one(kind, &server, LOCKS, ttl, watched)
}
