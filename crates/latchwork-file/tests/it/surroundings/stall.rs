//! A process with many holds that stands still for a while: afterwards all of them are due.
//!
//! CI runs fewer holds, which any store has renewed in a moment. The full size, in a release build on a
//! machine with nothing else to do:
//!
//! ```sh
//! LATCHWORK_FULL=200000 cargo test --release -p latchwork-file --test surroundings -- h100 --nocapture
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use latchwork::{Driver, Event, LockManager, Observer};
use latchwork_file::FileBackend;
use rustix::process::Signal;

use crate::common::*;

const TTL: Duration = Duration::from_secs(6);
const STALL: Duration = Duration::from_millis(2_500);

fn count() -> usize {
    let full = std::env::var("LATCHWORK_FULL").ok();
    full.map_or(500, |count| count.parse().expect("a number of holds"))
}

#[derive(Default)]
struct Lost(AtomicUsize);

impl Observer for Lost {
    fn event(&self, event: &Event<'_>) {
        if let Event::Lost { .. } = event {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// Holds many locks in the test below; on its own it has nothing to do.
#[test]
fn child() {
    let Some((_, dir)) = role() else { return };
    let runtime = without_io();
    runtime.block_on(async {
        let driver = Driver::start().unwrap();
        let backend = FileBackend::connect(&dir, driver.io()).unwrap();
        let lost = Arc::<Lost>::default();
        let locks = LockManager::new(backend, driver).ttl(TTL).observer(lost.clone());
        let mut guards = Vec::new();
        for n in 0..count() {
            guards.push(locks.mutex(format!("stock/{n}")).acquire().await.unwrap());
        }
        say("held");
        loop {
            hear();
            let left = guards.iter().filter(|guard| guard.ensure_held().is_ok()).count();
            say(format_args!("{left} left, {} lost", lost.0.load(Ordering::SeqCst)));
        }
    });
}

/// Seconds of processor time that a process has used.
fn used(process: &Process) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.child.id())).unwrap();
    let fields: Vec<_> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    let ticks = |n: usize| fields[n].parse::<f64>().unwrap();
    (ticks(11) + ticks(12)) / 100.0
}

#[test]
fn h100_many_holds_on_files_survive_a_stopped_process() {
    let dir = tempfile::tempdir().unwrap();
    let mut process = start("surroundings::stall::hold", dir.path());
    let start = Instant::now();
    assert_eq!(process.line(), "held");
    let took = start.elapsed();
    let all = format!("{} left, 0 lost", count());
    let before = used(&process);
    std::thread::sleep(2 * TTL);
    process.tell("?");
    assert_eq!(process.line(), all, "before the stall");
    let quiet = (used(&process) - before) / (2 * TTL).as_secs_f64();
    process.stop();
    std::thread::sleep(STALL);
    process.signal(Signal::CONT);
    std::thread::sleep(2 * TTL);
    process.tell("?");
    let said = process.line();
    eprintln!(
        "{} holds in {took:?}, {:.0} % of a processor to renew them; {said}",
        count(),
        100.0 * quiet
    );
    assert_eq!(said, all, "after the stall");
}
