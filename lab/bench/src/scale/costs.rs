//! What a cycle and a renewal cost the store, and at which rate of cycles it has no more to give.

use std::time::{Duration, Instant};

use crate::Outcome;
use crate::child::Worker;
use crate::growth::child::start;
use crate::growth::served::{Served, Which, open};
use crate::growth::waiters::expect;
use crate::scale::{STORES, Scene, say_disk};
use crate::stats::{head, number, row, shortened};
use crate::times::Times;

/// Each asks for 64 locks at a time.
const PROCESSES: [usize; 2] = [1, 4];
const AT_ONCE: usize = 64;
const CYCLES: usize = 12_000;
const HOLDS: usize = 5_000;
/// Each hold is renewed once in a third of it.
const TTL: Duration = Duration::from_secs(6);
const WATCHED: Duration = Duration::from_secs(8);
/// A process of PostgreSQL reports what it has counted once a second while it works, and 10 s after its last request.
const REPORTED: Duration = Duration::from_millis(10_500);
const OTHERS_REPORTED: Duration = Duration::from_millis(100);
/// A network disk, or a local one behind a busy controller.
const SYNC: Duration = Duration::from_millis(1);

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// What the servers have spent so far.
struct Spent {
    at: Instant,
    cpu: f64,
    syncs: f64,
}

impl Spent {
    fn of(store: &dyn Served) -> Result<Self> {
        let (cpu, at) = (store.cpu(), Instant::now());
        Ok(Self { at, cpu, syncs: store.syncs()? })
    }

    /// Seconds, processor time and syncs since then.
    fn since(&self, then: &Self) -> (f64, f64, f64) {
        let seconds = (self.at - then.at).as_secs_f64();
        (seconds, self.cpu - then.cpu, self.syncs - then.syncs)
    }
}

pub(crate) fn run() -> Outcome {
    say_disk()?;
    println!(
        "Cycles of free locks, each with a key of its own. The last three columns are arithmetic: the rate at which one processor of the server is full, \
         the rate at which a disk is full that takes {} ms for a sync, and which comes first.\n",
        SYNC.as_millis()
    );
    head(&[
        "store",
        "cycles under way",
        "cycles a second, clients on this machine",
        "server CPU a cycle",
        "syncs a cycle",
        "a processor is full at",
        "the disk is full at",
        "gives way first",
    ]);
    let mut renewals = Vec::new();
    for which in STORES {
        let scene = Scene::start(which)?;
        let url = open(&*scene.store)?;
        for processes in PROCESSES {
            row(&cycles(which, &*scene.store, &url, processes)?);
        }
        renewals.push(renewed(which)?);
    }
    println!("\n{HOLDS} locks that one process holds, with a ttl of {} s:\n", TTL.as_secs());
    head(&["store", "renewals a second", "server CPU a renewal", "syncs a second"]);
    renewals.iter().for_each(|cells| row(cells));
    Ok(())
}

/// Until the server has reported all that it has counted.
fn reported(which: Which) -> Duration {
    if matches!(which, Which::Postgres) { REPORTED } else { OTHERS_REPORTED }
}

fn cycles(which: Which, store: &dyn Served, url: &str, processes: usize) -> Result<Vec<String>> {
    let mut workers = Vec::new();
    for _ in 0..processes {
        workers.push(start("keys", url, TTL)?);
    }
    let each = shortened(CYCLES, CYCLES / 10) / processes;
    // Each process has keys of its own; the first make what is there once, and compile the server's code.
    let asked = |n: usize, from: usize, to: usize| {
        let begin = n * 20 * CYCLES;
        format!("use {} {}", begin + from, begin + to)
    };
    all(&mut workers, |n| asked(n, 0, each))?;
    std::thread::sleep(reported(which));
    let before = Spent::of(store)?;
    let failed = all(&mut workers, |n| asked(n, each, 2 * each))?;
    let took = before.at.elapsed().as_secs_f64();
    let cpu = store.cpu() - before.cpu;
    std::thread::sleep(reported(which));
    let syncs = store.syncs()? - before.syncs;
    if failed > 0.0 {
        return Err(format!("{}: {failed} cycles failed", store.name()).into());
    }
    let count = (each * processes) as f64;
    let (cpu, syncs) = (cpu / count, syncs / count);
    let (processor, disk) = (1.0 / cpu, 1.0 / (syncs * SYNC.as_secs_f64()));
    let rate = |rate: f64| match rate.is_finite() {
        true => format!("{rate:.0} a second"),
        false => "-".into(),
    };
    Ok(vec![
        store.name().into(),
        (AT_ONCE * processes).to_string(),
        format!("{:.0}", count / took),
        format!("{:.0} us", cpu * 1e6),
        number(syncs),
        rate(processor),
        rate(disk),
        if disk < processor { "the disk" } else { "a processor" }.into(),
    ])
}

/// Tells each of them something and waits for all; how many cycles failed.
fn all(workers: &mut [Worker], word: impl Fn(usize) -> String) -> Result<f64> {
    for (n, worker) in workers.iter_mut().enumerate() {
        worker.tell(&word(n))?;
    }
    let mut failed = 0.0;
    for worker in workers {
        let line = worker.line()?;
        let (numbers, _) = Times::after_numbers(&line)?;
        failed += numbers.get(1).ok_or_else(|| format!("what is {line:?}?"))?;
    }
    Ok(failed)
}

/// What renewals cost, without what the store spends when nobody asks.
fn renewed(which: Which) -> Result<Vec<String>> {
    let scene = Scene::start(which)?;
    let store = &scene.store;
    let url = open(&**store)?;
    let watched = shortened(WATCHED, WATCHED / 4);
    let holds = shortened(HOLDS, HOLDS / 10);
    let mut worker = start("holds", &url, TTL)?;
    worker.tell("take 1")?;
    expect(&worker.line()?, "taken")?;
    std::thread::sleep(reported(which));
    let before = Spent::of(&**store)?;
    std::thread::sleep(watched);
    let (seconds, cpu, syncs) = Spent::of(&**store)?.since(&before);
    let (idle_cpu, idle_syncs) = (cpu / seconds, syncs / seconds);
    worker.tell(&format!("take {holds}"))?;
    expect(&worker.line()?, "taken")?;
    // Until what came with the acquires is over.
    std::thread::sleep(reported(which) + TTL / 3);
    let before = Spent::of(&**store)?;
    std::thread::sleep(watched);
    let (seconds, cpu, syncs) = Spent::of(&**store)?.since(&before);
    worker.tell("held")?;
    let held: f64 = worker.line()?.parse()?;
    if held < holds as f64 {
        return Err(format!("{}: {held} of {holds} are held", store.name()).into());
    }
    let rate = held / (TTL / 3).as_secs_f64();
    Ok(vec![
        store.name().into(),
        format!("{rate:.0}"),
        format!("{:.2} us", (cpu / seconds - idle_cpu).max(0.0) / rate * 1e6),
        number((syncs / seconds - idle_syncs).max(0.0)),
    ])
}
