//! Many guards held by one process.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::child::{processor_time, status_field};
use crate::stats::{head, row};

const GUARDS: usize = 10_000;
const WATCHED: Duration = Duration::from_secs(40);

pub(crate) fn run() -> Outcome {
    let dir = tempfile::tempdir_in(std::env::current_dir()?)?;
    let file = format!("file://{}", dir.path().display());
    head(&["store", "guards", "memory of a guard", "processor time of the watchdog", "still held"]);
    for store in ["mem:", &file] {
        // A process of its own, or the second store would be given the memory of the first.
        let status =
            Command::new(std::env::current_exe()?).args(["child-held", store, ""]).status()?;
        if !status.success() {
            return Err(format!("{store}: {status}").into());
        }
    }
    Ok(())
}

pub(crate) fn measure(store: &str) -> Outcome {
    let pid = std::process::id();
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let locks = runtime.block_on(latchwork::connect(store))?;
    let memory = || status_field(pid, "VmRSS").unwrap_or(0) as f64 * 1024.0;
    let before = memory();
    let mut guards = Vec::with_capacity(GUARDS);
    let start = Instant::now();
    for n in 0..GUARDS {
        let mutex = locks.mutex(format!("stock/{n}"));
        let guard = runtime.block_on(mutex.try_acquire())?.ok_or("nobody else is here")?;
        guards.push(guard);
    }
    let each = (memory() - before) / GUARDS as f64;
    // Renewals begin a third of the ttl of 30 s after the first grant: watch more than one round.
    std::thread::sleep(Duration::from_secs(9).saturating_sub(start.elapsed()));
    let (watched, time) = (Instant::now(), processor_time(pid));
    std::thread::sleep(WATCHED);
    let share = (processor_time(pid) - time) / watched.elapsed().as_secs_f64() * 100.0;
    let held = guards.iter().filter(|guard| guard.ensure_held().is_ok()).count();
    row(&[
        store.split(':').next().unwrap_or_default().into(),
        GUARDS.to_string(),
        format!("{each:.0} B"),
        format!("{share:.2} % of one core"),
        held.to_string(),
    ]);
    Ok(())
}
