//! `latchwork-bench store URL [PROCESSES]`: a store measured from where its locks are used.
//!
//! Free locks, a lock that several processes want all the time, and one that each of them holds for 43 to 61 ms. Two
//! owners at once are an error. Its keys are in a namespace of their own: it refuses to run if somebody has a lock
//! there, and leaves none.

use std::time::{Duration, Instant};

use latchwork::BlockOn as _;

use crate::child::NAMESPACE;
use crate::contest::{self, PROCESSES};
use crate::peers::ELSEWHERE;
use crate::roles::Outcome;
use crate::stats::{head, median, micros, quantile, row, shortened};
use crate::store::{Elsewhere, Store};
use crate::{free, handoffs};

/// How long a hold lasts, in milliseconds. Not one length: it could beat with the pauses of a client that polls.
const HOLDS: (u64, u64) = (43, 61);
/// Longer than the ttl of its locks.
const LEFT: Duration = Duration::from_secs(30);

pub(crate) fn run(args: &[String]) -> Outcome {
    let (url, processes) = match args {
        [url] => (url, PROCESSES),
        [url, processes] => (url, processes.parse()?),
        _ => return Err("store URL [PROCESSES]".into()),
    };
    let locks = latchwork::connect(url).block_on()?.namespace(NAMESPACE);
    if let Some(seen) = locks.list("").block_on()?.into_iter().next() {
        let key = seen.key;
        return Err(format!("{key} at {url} is in use; wait until {NAMESPACE:?} is free").into());
    }
    let store = Elsewhere(url.clone());
    let told = |tasks| format!("{tasks} tasks, each with a key of its own");
    free::run(&store, &[ELSEWHERE], &[1, 64], told, |_, _, _| Vec::new())?;
    let rounds = (1, Duration::from_secs(3));
    contest::run(&store, &[ELSEWHERE], &[(processes, 1)], rounds, "", |_, _| None)?;
    let wanted = shortened(60, 20);
    let mut took = handoffs::between(&ELSEWHERE, &store.address(), processes - 1, HOLDS, wanted)?;
    println!("{processes} processes, each holds {} to {} ms:\n", HOLDS.0, HOLDS.1);
    head("from a release to the next hold | median | 99 % | hand-offs");
    let (middle, high) = (median(&mut took), quantile(&mut took, 0.99));
    row(&["latchwork".into(), micros(middle), micros(high), took.len().to_string()]);
    // The processes were killed: what they held ends with its ttl.
    let start = Instant::now();
    while !locks.list("").block_on()?.is_empty() {
        if start.elapsed() > LEFT {
            return Err("its locks do not end".into());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}
