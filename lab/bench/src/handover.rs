//! From one process to another.

use std::path::Path;

use crate::Outcome;
use crate::child::Worker;
use crate::goals::{self, Goal};
use crate::stats::{head, median, spread};

/// How often each of the two processes holds the lock in one round.
pub(crate) const TURNS: usize = 100;
const ROUNDS: usize = 4;
/// How many times the median of a blocked flock.
const MOST: f64 = 3.0;

pub(crate) fn run() -> Outcome {
    let dir = tempfile::tempdir_in(std::env::current_dir()?)?;
    let (mut flock, mut ours, mut task) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        flock.extend(round("flock", dir.path())?);
        ours.extend(round("latchwork", dir.path())?);
        task.extend(round("task", dir.path())?);
    }
    head(&["waiter", "median", "90 %", goals::TITLE, "handovers"]);
    let bare = median(&mut flock);
    let goal = |mid: f64| Some(Goal::below(MOST).of("to flock").judge(mid / bare));
    spread("blocked in flock", &mut flock, |_| None);
    spread("file, a thread that blocks", &mut ours, goal);
    spread("file, a task on a runtime", &mut task, goal);
    Ok(())
}

/// Microseconds from a release in one process to the admission in the other.
fn round(kind: &str, dir: &Path) -> Result<Vec<f64>, Box<dyn std::error::Error>> {
    let mut workers =
        [Worker::start("child-turns", kind, dir)?, Worker::start("child-turns", kind, dir)?];
    let mut turns = Vec::new();
    for (who, worker) in workers.iter_mut().enumerate() {
        for _ in 0..TURNS {
            let line = worker.line()?;
            let (acquired, released) = line.split_once(' ').ok_or("a turn has two moments")?;
            turns.push((acquired.parse::<u64>()?, released.parse::<u64>()?, who));
        }
    }
    turns.sort_unstable();
    let overlap = turns.windows(2).any(|w| w[1].0 < w[0].1);
    assert!(!overlap, "two held at once");
    Ok(turns
        .windows(2)
        .filter(|w| w[0].2 != w[1].2)
        // A gap longer than a hold means that nobody was waiting.
        .map(|w| (w[1].0 - w[0].1) as f64 / 1e3)
        .filter(|gap| *gap < 2_000.0)
        .collect())
}
