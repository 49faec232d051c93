//! Many locks on a server that one process holds and renews.

use std::time::Duration;

use crate::Outcome;
use crate::child::{Worker, status_field};
use crate::goals::{self, Goal, Verdict};
use crate::peers::{self, Kind};
use crate::roles::now;
use crate::stats::{head, row, shortened};
use crate::store::Store;

const LOCKS: usize = 1_000;
const TTL: Duration = Duration::from_secs(30);
/// The most processor time, in percent of a core.
const MOST: f64 = 5.0;

/// How many locks are held when the memory is looked at.
const COUNTS: [usize; 2] = [1_000, 10_000];
/// Titles of the columns that [`Measured::memory`] fills.
pub(crate) const MEMORY: [&str; 2] = ["memory a lock, 1,000 held", "memory a lock, 10,000 held"];
/// The most memory of a lock, in kilobytes.
const KILOBYTES: f64 = 2.0;

pub(crate) struct Measured {
    pub(crate) commands: f64,
    pub(crate) cpu: f64,
    pub(crate) held: String,
    /// Resident memory of a lock in kilobytes.
    memory: [f64; 2],
}

impl Measured {
    pub(crate) fn memory(&self) -> [String; 2] {
        self.memory.map(|kilobytes| format!("{kilobytes:.2} kB"))
    }

    /// What Latchwork's locks may take.
    pub(crate) fn memory_verdicts(&self) -> [Verdict; 2] {
        let goal = |count: &str| Goal::below(KILOBYTES).of(format!("memory, {count}")).unit("kB");
        [goal("1,000").judge(self.memory[0]), goal("10,000").judge(self.memory[1])]
    }
}

/// Several kinds, ours first, each on a server of its own.
pub(crate) fn run<S: Store>(
    kinds: Vec<Kind>,
    start: impl Fn() -> Result<S, Box<dyn std::error::Error>>,
) -> Outcome {
    let (kinds, missing) = peers::install(kinds);
    let ttl = shortened(TTL, TTL / 5);
    println!("{LOCKS} locks with a ttl of {} s, each renewed every third of it:\n", ttl.as_secs());
    let mut titles =
        vec!["what", "requests a second", "client CPU", "latchwork's CPU to it", goals::TITLE];
    titles.extend(MEMORY);
    titles.push("still held of 10,000");
    head(&titles);
    let mut ours = f64::NAN;
    for kind in &kinds {
        let seen = held_by_one(kind, &start()?, LOCKS, ttl, ttl)?;
        let mut verdicts = Vec::new();
        if kind.name == "latchwork" {
            ours = seen.cpu;
            // A shorter ttl is renewed more often.
            let most = MOST * TTL.as_secs_f64() / ttl.as_secs_f64();
            verdicts.push(Goal::below(most).of("CPU").unit("%").judge(seen.cpu));
            verdicts.extend(seen.memory_verdicts());
        }
        let mut cells = vec![
            kind.name.into(),
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

/// Lets one process hold many, and watches it while it holds `locks` of them.
pub(crate) fn held_by_one(
    kind: &Kind,
    store: &dyn Store,
    locks: usize,
    ttl: Duration,
    watched: Duration,
) -> Result<Measured, Box<dyn std::error::Error>> {
    let ttl = ttl.as_millis().to_string();
    let mut worker = kind.start("held", &store.address(), &[&ttl])?;
    // What comes with the first lock is not of each.
    let before = memory(&mut worker, 1)?;
    let (mut each, mut commands, mut cpu) = ([0.0; 2], f64::NAN, f64::NAN);
    for (count, each) in COUNTS.iter().zip(&mut each) {
        *each = (memory(&mut worker, *count)? - before) / (*count - 1) as f64;
        if *count == locks {
            let (start, sent, time) = (now(), store.commands(kind)?, cpu_time(&mut worker)?);
            std::thread::sleep(watched);
            let took = (now() - start) as f64 / 1e9;
            commands = (store.commands(kind)? - sent) / took;
            cpu = (cpu_time(&mut worker)? - time) / 1e6 / took * 100.0;
        }
    }
    worker.tell("end")?;
    Ok(Measured { commands, cpu, held: worker.line()?, memory: each })
}

/// Lets the process hold so many; answers its resident memory in kilobytes.
fn memory(worker: &mut Worker, locks: usize) -> Result<f64, Box<dyn std::error::Error>> {
    worker.tell(&format!("take {locks}"))?;
    match worker.line()?.as_str() {
        "taken" => Ok(resident(worker.child.id()).ok_or("how much memory?")?),
        other => Err(format!("a process said {other:?} instead of \"taken\"").into()),
    }
}

/// The resident memory of a process in kilobytes.
pub(crate) fn resident(pid: u32) -> Option<f64> {
    Some(status_field(pid, "VmRSS")? as f64 * 1.024)
}

/// In microseconds.
fn cpu_time(worker: &mut Worker) -> Result<f64, Box<dyn std::error::Error>> {
    worker.tell("cpu")?;
    Ok(worker.line()?.parse()?)
}
