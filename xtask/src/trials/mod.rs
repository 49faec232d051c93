//! Runs every test of the workspace, several test binaries side by side.
//!
//! Most tests wait: for a ttl, a server, a timer. So binaries whose tests wait get many threads and
//! run beside others, and those whose tests compute get few. What each binary needs stands in
//! [`plan`]. Nothing is skipped: every binary that cargo builds is run, and one that runs no trial is
//! a failure.

mod binaries;
mod job;
pub(crate) mod names;
mod plan;

use std::num::NonZero;
use std::path::Path;
use std::sync::Mutex;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use binaries::Binary;
pub(crate) use binaries::lint;
use job::Ended;
pub(crate) use plan::Room;

/// How many of the slowest tests' binaries are named at the end.
const SLOWEST: usize = 12;

/// How often the tasks that want to run are counted.
const COUNTED: Duration = Duration::from_millis(250);

/// Builds all tests, with the lints on; returns what is to be run.
pub(crate) fn build() -> Result<Vec<Binary>, String> {
    binaries::build()
}

/// What the binaries are run in.
pub(crate) fn room(binaries: Vec<Binary>, with_long: bool) -> Room {
    let processors = std::thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN);
    Room::of(processors, plan::runs(binaries, with_long))
}

/// Runs the binaries; their output goes to files in `logs`, and what failed is shown.
pub(crate) fn run(room: &Room, logs: &Path) -> Result<(), String> {
    std::fs::create_dir_all(logs).map_err(|e| format!("{}: {e}", logs.display()))?;
    let start = Instant::now();
    let ended = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        let (running, is_over) = mpsc::channel::<()>();
        scope.spawn(move || {
            while is_over.recv_timeout(COUNTED) == Err(RecvTimeoutError::Timeout) {
                room.count(tasks());
            }
        });
        for running in vec![running; room.side_by_side()] {
            let ended = &ended;
            scope.spawn(move || {
                // Until the last of these threads ends.
                let _running = running;
                while let Some(place) = room.next() {
                    let result = job::run(&place.run, logs);
                    drop(place);
                    tell(&result, start.elapsed());
                    lock(ended).push(result);
                }
            });
        }
    });
    let mut ended = ended.into_inner().unwrap_or_default();
    ended.sort_by_key(|job| std::cmp::Reverse(job.took));
    let trials: usize = ended.iter().map(|job| job.trials).sum();
    let (took, count) = (start.elapsed(), ended.len());
    let cpu = ended.iter().map(|job| job.cpu).sum::<Duration>();
    println!(
        "{trials} trials in {count} runs, in {:.1} min with {:.1} min of CPU; the longest:",
        minutes(took),
        minutes(cpu)
    );
    for job in ended.iter().take(SLOWEST) {
        println!("{:>8.1} s  {} ({} trials)", job.took.as_secs_f64(), job.name, job.trials);
    }
    let names = ended.iter().flat_map(|job| job.names.iter().cloned()).collect();
    names::keep(&names)?;
    let failed: Vec<&Ended> = ended.iter().filter(|job| job.failure.is_some()).collect();
    for job in &failed {
        println!("{} failed; all of its output: {}", job.name, job.log.display());
    }
    if failed.is_empty() {
        return Ok(());
    }
    // The last line of CI names them all.
    let why = |job: &Ended| match &*job.failed {
        [] => job.failure.as_deref().and_then(|why| why.lines().next()).unwrap_or_default().into(),
        names => names.join(", "),
    };
    let names = failed.iter().map(|job| format!("{} ({})", job.name, why(job)));
    Err(format!("tests failed in {}", names.collect::<Vec<_>>().join(", ")))
}

/// How many tasks of this machine run or want to; none where the system does not say it.
fn tasks() -> u32 {
    let said = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let running = said.split([' ', '/']).nth(3).and_then(|number| number.parse().ok());
    running.unwrap_or_default()
}

fn tell(job: &Ended, since: Duration) {
    let state = if job.failure.is_some() { "FAILED" } else { "ok" };
    let (at, took, cpu) = (since.as_secs(), job.took.as_secs_f64(), job.cpu.as_secs_f64());
    let Ended { name, trials, .. } = job;
    println!(
        "{at:>5} s  {state:<6}  {name:<34} {trials:>4} trials in {took:>6.1} s, {cpu:>6.1} s of CPU"
    );
    // A failure is printed at once and in few lines: the output of CI may be cut off.
    if let Some(why) = &job.failure {
        println!("       | {}", why.trim_end().replace('\n', "\n       | "));
        println!("       | room: {}", free_room());
    }
}

/// How much room there is where the tests and their servers write: without it they fail for reasons that seem to be others.
fn free_room() -> String {
    let folders = [crate::workspace::root().to_owned(), std::env::temp_dir(), "/dev/shm".into()];
    let df = std::process::Command::new("df")
        .args(["-h", "--output=avail,target"])
        .args(folders)
        .output();
    df.map_or_else(
        |error| error.to_string(),
        |df| String::from_utf8_lossy(&df.stdout).lines().skip(1).collect::<Vec<_>>().join(", "),
    )
}

fn minutes(took: Duration) -> f64 {
    took.as_secs_f64() / 60.0
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
