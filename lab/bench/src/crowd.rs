//! Many processes waiting.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::child::{Worker, processor_time, until_asleep, wakeups};
use crate::stats::{head, median, row, shortened};

const WAITERS: usize = 64;
const RELEASES: usize = 20;
const WATCHED: Duration = Duration::from_secs(20);

pub(crate) fn run() -> Outcome {
    let dir = tempfile::tempdir_in(std::env::current_dir()?)?;
    let share = share_of_a_core(dir.path())?;
    let mut woken = woken_by_a_release(dir.path())?;
    let most = woken.iter().copied().fold(0.0, f64::max);
    head(&["what", "measured"]);
    row(&[
        format!("processor time of {WAITERS} waiting processes together"),
        format!("{share:.2} % of one core"),
    ]);
    row(&["processes woken by a release, median".into(), format!("{:.0}", median(&mut woken))]);
    row(&["processes woken by a release, most".into(), format!("{most:.0}")]);
    Ok(())
}

type Found<T> = Result<T, Box<dyn std::error::Error>>;

/// A process that holds the lock, and those that wait for it, in their order.
fn crowd(dir: &Path) -> Found<(Worker, Vec<Worker>)> {
    let mut holder = Worker::start("child-hold", "latchwork", dir)?;
    holder.moment()?;
    let mut waiting = Vec::new();
    for _ in 0..WAITERS {
        let mut waiter = Worker::start("child-wait", "latchwork", dir)?;
        waiter.line()?;
        until_asleep(waiter.child.id());
        waiting.push(waiter);
    }
    Ok((holder, waiting))
}

fn share_of_a_core(dir: &Path) -> Found<f64> {
    let (_holder, waiting) = crowd(dir)?;
    let time = || waiting.iter().map(|it| processor_time(it.child.id())).sum::<f64>();
    let (start, before) = (Instant::now(), time());
    std::thread::sleep(shortened(WATCHED, WATCHED / 10));
    Ok((time() - before) / start.elapsed().as_secs_f64() * 100.0)
}

/// In a crowd that is younger than ten seconds: then each looks by itself, and that is no release's doing.
fn woken_by_a_release(dir: &Path) -> Found<Vec<f64>> {
    let (mut holder, mut waiting) = crowd(dir)?;
    let mut woken = Vec::new();
    for _ in 0..RELEASES {
        let counts: Vec<u64> = waiting.iter().map(|w| wakeups(w.child.id())).collect();
        holder.go_on()?;
        holder.child.wait()?;
        let mut next = waiting.remove(0);
        next.moment()?;
        std::thread::sleep(Duration::from_millis(20));
        // The one that was admitted, and those of the others that woke up.
        let others = waiting.iter().zip(&counts[1..]).filter(|(w, n)| wakeups(w.child.id()) > **n);
        woken.push(1.0 + others.count() as f64);
        holder = next;
    }
    Ok(woken)
}
