//! Many processes waiting.

use std::time::{Duration, Instant};

use crate::Outcome;
use crate::child::{Worker, processor_time, until_asleep, wakeups};
use crate::stats::{head, median, row, shortened};

const WAITERS: usize = 64;
const RELEASES: usize = 20;
const WATCHED: Duration = Duration::from_secs(20);

pub(crate) fn run() -> Outcome {
    let dir = tempfile::tempdir_in(std::env::current_dir()?)?;
    let mut holder = Worker::start("child-hold", "latchwork", dir.path())?;
    holder.moment()?;
    let mut waiting = Vec::new();
    for _ in 0..WAITERS {
        let mut waiter = Worker::start("child-wait", "latchwork", dir.path())?;
        waiter.line()?;
        until_asleep(waiter.child.id());
        waiting.push(waiter);
    }
    let pids: Vec<u32> = waiting.iter().map(|w| w.child.id()).collect();
    let time = || pids.iter().map(|pid| processor_time(*pid)).sum::<f64>();
    let (start, before) = (Instant::now(), time());
    std::thread::sleep(shortened(WATCHED, WATCHED / 10));
    let share = (time() - before) / start.elapsed().as_secs_f64() * 100.0;
    let mut woken = Vec::new();
    for _ in 0..RELEASES {
        let counts: Vec<u64> = waiting.iter().map(|w| wakeups(w.child.id())).collect();
        holder.go_on()?;
        holder.child.wait()?;
        let mut next = waiting.remove(0);
        next.moment()?;
        // Each looks by itself every ten seconds: a short window keeps those looks out.
        std::thread::sleep(Duration::from_millis(20));
        // The one that was admitted, and those of the others that woke up.
        let others = waiting.iter().zip(&counts[1..]).filter(|(w, n)| wakeups(w.child.id()) > **n);
        woken.push(1.0 + others.count() as f64);
        holder = next;
    }
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
