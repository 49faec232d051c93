//! Many locks on a server that one process holds and renews.

use std::time::Duration;

use crate::Outcome;
use crate::child::Worker;
use crate::contest::stands;
use crate::peers::{self, Kind};
use crate::roles::now;
use crate::stats::{head, row, shortened};
use crate::store::Store;

const LOCKS: usize = 1_000;
const TTL: Duration = Duration::from_secs(30);
/// The most processor time, in percent of a core.
const MOST: f64 = 5.0;

pub(crate) struct Measured {
    pub(crate) commands: f64,
    pub(crate) cpu: f64,
    pub(crate) held: String,
}

/// Several kinds, ours first, each on a server of its own.
pub(crate) fn run<S: Store>(
    kinds: Vec<Kind>,
    start: impl Fn() -> Result<S, Box<dyn std::error::Error>>,
) -> Outcome {
    let (kinds, missing) = peers::install(kinds);
    let ttl = shortened(TTL, TTL / 5);
    println!("{LOCKS} locks with a ttl of {} s, each renewed every third of it:\n", ttl.as_secs());
    head(&[
        "what",
        "requests a second",
        "client CPU",
        "latchwork's CPU to it",
        "goal",
        "still held",
    ]);
    let mut ours = f64::NAN;
    for kind in &kinds {
        let seen = held_by_one(kind, &start()?, LOCKS, ttl, ttl)?;
        let verdict = if kind.name == "latchwork" {
            ours = seen.cpu;
            // A shorter ttl is renewed more often.
            let most = MOST * TTL.as_secs_f64() / ttl.as_secs_f64();
            stands(format!("< {most} %"), seen.cpu < most)
        } else {
            "-".into()
        };
        row(&[
            kind.name.into(),
            format!("{:.1}", seen.commands),
            format!("{:.3} % of one core", seen.cpu),
            format!("{:.2}", ours / seen.cpu),
            verdict,
            seen.held,
        ]);
    }
    peers::missing_rows(&missing, 6);
    Ok(())
}

/// Lets one process hold so many.
pub(crate) fn held_by_one(
    kind: &Kind,
    store: &dyn Store,
    locks: usize,
    ttl: Duration,
    watched: Duration,
) -> Result<Measured, Box<dyn std::error::Error>> {
    let args = [locks.to_string(), ttl.as_millis().to_string()];
    let mut worker = kind.start("held", &store.address(), &[&args[0], &args[1]])?;
    let (start, before, time) = (now(), store.commands(kind)?, cpu_time(&mut worker)?);
    std::thread::sleep(watched);
    let took = (now() - start) as f64 / 1e9;
    let commands = (store.commands(kind)? - before) / took;
    let cpu = (cpu_time(&mut worker)? - time) / 1e6 / took * 100.0;
    worker.tell("end")?;
    Ok(Measured { commands, cpu, held: worker.line()? })
}

/// In microseconds.
fn cpu_time(worker: &mut Worker) -> Result<f64, Box<dyn std::error::Error>> {
    worker.tell("cpu")?;
    Ok(worker.line()?.parse()?)
}
