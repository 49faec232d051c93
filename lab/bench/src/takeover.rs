//! After the holder was killed.

use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

use crate::Outcome;
use crate::child::{Worker, now, until_asleep};
use crate::goals::{self, Goal};
use crate::stats::{head, spread};

const ROUNDS: usize = 40;
/// In milliseconds.
const MOST: f64 = 10.0;

pub(crate) fn run() -> Outcome {
    let dir = tempfile::tempdir_in(std::env::current_dir()?)?;
    let (mut flock, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        flock.push(round("flock", dir.path())?);
        ours.push(round("latchwork", dir.path())?);
    }
    head(&["waiter", "median", "90 %", goals::TITLE, "takeovers"]);
    spread("blocked in flock", &mut flock, |_| None);
    spread("latchwork, file", &mut ours, |mid| {
        Some(Goal::at_most(MOST).of("median").unit("ms").judge(mid / 1e3))
    });
    Ok(())
}

/// Microseconds from SIGKILL to the admission of the waiter.
fn round(kind: &str, dir: &Path) -> Result<f64, Box<dyn std::error::Error>> {
    let mut holder = Worker::start("child-hold", kind, dir)?;
    holder.moment()?;
    let mut waiter = Worker::start("child-wait", kind, dir)?;
    waiter.line()?;
    until_asleep(waiter.child.id());
    let pid = Pid::from_child(&holder.child);
    let killed = now();
    kill_process(pid, Signal::KILL)?;
    let admitted = waiter.moment()?;
    waiter.go_on()?;
    waiter.child.wait()?;
    Ok((admitted - killed) as f64 / 1e3)
}
