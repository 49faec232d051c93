//! What a cycle and a renewal cost the store, and at which rate of cycles it has no more to give.

use std::time::{Duration, Instant};

use crate::growth::open;
use crate::peers::LATCHWORK;
use crate::roles::Outcome;
use crate::scale::{STORES, on_disk, say_disk};
use crate::stats::{head, number, row, shortened};
use crate::store::{Store, Which};

/// Each asks for 64 locks at a time.
const PROCESSES: [usize; 2] = [1, 4];
const AT_ONCE: usize = 64;
const CYCLES: usize = 12_000;
const HOLDS: usize = 5_000;
/// Each hold is renewed once in a third of it.
const TTL: Duration = Duration::from_secs(6);
const WATCHED: Duration = Duration::from_secs(8);
/// A network disk, or a local one behind a busy controller.
const SYNC: Duration = Duration::from_millis(1);

pub(crate) fn run() -> Outcome {
    say_disk()?;
    println!(
        "Cycles of free locks, each with a key of its own. The last three columns are arithmetic: the rate at which one processor of the server is full, \
         the rate at which a disk is full that takes {} ms for a sync, and which comes first.\n",
        SYNC.as_millis()
    );
    head(
        "store | cycles under way | cycles a second, clients on this machine | server CPU a cycle | syncs a cycle | a processor is full at | the disk is full at | gives way first",
    );
    let mut renewals = Vec::new();
    for which in STORES {
        let (store, _folder) = on_disk(which)?;
        for processes in PROCESSES {
            row(&cycles(which, &*store, processes)?);
        }
        renewals.push(renewed(which)?);
    }
    println!("\n{HOLDS} locks that one process holds, with a ttl of {} s:\n", TTL.as_secs());
    head("store | renewals a second | server CPU a renewal | syncs a second");
    renewals.iter().for_each(|cells| row(cells));
    Ok(())
}

/// Waits until the server has reported all that it has counted: a process of PostgreSQL does that once a second while
/// it works, and 10 s after its last request.
fn reported(which: Which) {
    std::thread::sleep(Duration::from_millis(if which == Which::Postgres { 10_500 } else { 100 }));
}

fn cycles(which: Which, store: &dyn Store, processes: usize) -> Outcome<[String; 8]> {
    let mut workers = LATCHWORK.start_all(&open(store)?, TTL.as_millis(), processes)?;
    let each = shortened(CYCLES, CYCLES / 10) / processes;
    let mut all = |from: usize| -> Outcome {
        for (n, worker) in workers.iter_mut().enumerate() {
            // Each process has keys of its own.
            let from = n * 20 * CYCLES + from;
            worker.tell(&format!("use {from} {}", from + each))?;
        }
        for worker in &mut workers {
            let ([_, failed, _], _) = worker.numbers()?;
            if failed > 0.0 {
                return Err(format!("{}: {failed} cycles failed", store.name()).into());
            }
        }
        Ok(())
    };
    // The first make what is there once, and compile the server's code.
    all(0)?;
    reported(which);
    let (start, before, syncs) = (Instant::now(), store.cpu(), store.syncs()?);
    all(each)?;
    let (took, cpu) = (start.elapsed().as_secs_f64(), store.cpu() - before);
    reported(which);
    let count = (each * processes) as f64;
    let (cpu, syncs) = (cpu / count, (store.syncs()? - syncs) / count);
    let (processor, disk) = (1.0 / cpu, 1.0 / (syncs * SYNC.as_secs_f64()));
    let rate = |rate: f64| match rate.is_finite() {
        true => format!("{rate:.0} a second"),
        false => "-".into(),
    };
    Ok([
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

/// Processor time and syncs in a second.
fn watched(store: &dyn Store) -> Outcome<[f64; 2]> {
    let (start, cpu, syncs) = (Instant::now(), store.cpu(), store.syncs()?);
    std::thread::sleep(shortened(WATCHED, WATCHED / 4));
    let seconds = start.elapsed().as_secs_f64();
    Ok([(store.cpu() - cpu) / seconds, (store.syncs()? - syncs) / seconds])
}

/// What renewals cost, without what the store spends when nobody asks.
fn renewed(which: Which) -> Outcome<[String; 4]> {
    let (store, _folder) = on_disk(which)?;
    let holds = shortened(HOLDS, HOLDS / 10);
    let mut worker = LATCHWORK.start(&open(&*store)?, TTL.as_millis())?;
    let mut seen = [[0.0; 2]; 2];
    for (count, seen) in [1, holds].into_iter().zip(&mut seen) {
        worker.tell(&format!("take {count} 64"))?;
        worker.expect("taken")?;
        // Until what came with the acquires is over.
        std::thread::sleep(TTL / 3);
        reported(which);
        *seen = watched(&*store)?;
    }
    let held = worker.ask("held")?;
    if held < holds as f64 {
        return Err(format!("{}: {held} of {holds} are held", store.name()).into());
    }
    let rate = held / (TTL / 3).as_secs_f64();
    let [idle, busy] = seen;
    let more = |n: usize| (busy[n] - idle[n]).max(0.0);
    Ok([
        store.name().into(),
        format!("{rate:.0}"),
        format!("{:.2} us", more(0) / rate * 1e6),
        number(more(1)),
    ])
}
