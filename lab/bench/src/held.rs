//! Many guards held by one process.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::child::processor_time;
use crate::goals::{self, Goal};
use crate::held_by_one::{MEMORY, resident};
use crate::stats::{head, row, shortened};

const GUARDS: usize = 10_000;
/// When the memory is looked at for the first time.
const FEW: usize = 1_000;
/// The most memory of a guard in kilobytes, and the most processor time in percent of a core.
const KILOBYTES: f64 = 2.0;
const PERCENT: f64 = 2.0;
const WATCHED: Duration = Duration::from_secs(40);

pub(crate) fn run() -> Outcome {
    let dir = tempfile::tempdir_in(std::env::current_dir()?)?;
    let file = format!("file://{}", dir.path().display());
    let mut titles = vec!["store", "guards", "processor time of the watchdog", goals::TITLE];
    titles.extend(MEMORY);
    titles.push("still held");
    head(&titles);
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
    let memory = || resident(pid).ok_or("how much memory?");
    let mut guards = Vec::with_capacity(GUARDS);
    let start = Instant::now();
    let (mut before, mut few) = (0.0, 0.0);
    for n in 0..GUARDS {
        match n {
            // What comes with the first lock is not of each.
            1 => before = memory()?,
            FEW => few = (memory()? - before) / (FEW - 1) as f64,
            _ => {}
        }
        let mutex = locks.mutex(format!("stock/{n}"));
        let guard = runtime.block_on(mutex.try_acquire())?.ok_or("nobody else is here")?;
        guards.push(guard);
    }
    let each = (memory()? - before) / (GUARDS - 1) as f64;
    // Renewals begin a third of the ttl of 30 s after the first grant: watch more than one round.
    std::thread::sleep(Duration::from_secs(9).saturating_sub(start.elapsed()));
    let (watched, time) = (Instant::now(), processor_time(pid));
    std::thread::sleep(shortened(WATCHED, WATCHED / 4));
    let share = (processor_time(pid) - time) / watched.elapsed().as_secs_f64() * 100.0;
    let held = guards.iter().filter(|guard| guard.ensure_held().is_ok()).count();
    let memory = |count: &str| Goal::below(KILOBYTES).of(format!("memory, {count}")).unit("kB");
    row(&[
        store.split(':').next().unwrap_or_default().into(),
        GUARDS.to_string(),
        format!("{share:.2} % of one core"),
        goals::cell(&[
            Goal::below(PERCENT).of("CPU").unit("%").judge(share),
            memory("1,000").judge(few),
            memory("10,000").judge(each),
        ]),
        format!("{few:.2} kB"),
        format!("{each:.2} kB"),
        held.to_string(),
    ]);
    Ok(())
}
