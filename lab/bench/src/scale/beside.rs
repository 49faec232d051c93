//! Other work of the same server, alone and beside locks.

use std::time::{Duration, Instant};

use latchwork::Driver;
use tokio::runtime::{Builder, Runtime};

use crate::growth::open;
use crate::peers::LATCHWORK;
use crate::roles::{Outcome, now};
use crate::scale::other_work::Other;
use crate::scale::{STORES, on_disk, say_disk};
use crate::stats::{head, micros, row, shortened, turns};
use crate::store::{Store, Which};
use crate::times::Times;
use crate::worker::Worker;

/// Connections of the other work, and its requests a second, of all connections together.
const CONNECTIONS: u32 = 8;
const REQUESTS: u32 = 400;
const ROUNDS: usize = 3;
const LENGTH: Duration = Duration::from_secs(3);
/// Until locks and other work run evenly.
const SETTLED: Duration = Duration::from_millis(500);
/// A third of it is not longer than what is watched, so each lock is renewed in that time.
const TTL: Duration = Duration::from_secs(9);

/// The locks beside the other work: so many are held and renewed, or so many are acquired and released a second, each
/// with a key of its own.
#[derive(Clone, Copy)]
enum Locks {
    None,
    Held(usize),
    Cycles(u64),
}

const LOCKS: [Locks; 4] =
    [Locks::None, Locks::Held(10_000), Locks::Cycles(100), Locks::Cycles(1_000)];

/// What was seen of one row, in all rounds.
#[derive(Default)]
struct Seen {
    times: Times,
    seconds: f64,
    cpu: f64,
    cycles: f64,
}

pub(crate) fn run() -> Outcome {
    say_disk()?;
    println!(
        "{CONNECTIONS} connections ask {REQUESTS} times a second in all, at even intervals, whether the last request was answered or not: `SET` on Redis, \
         a put on etcd, a node that is made and deleted on ZooKeeper, an `UPDATE` of a row that waits for the disk on PostgreSQL.\n"
    );
    head(
        "store | locks beside it | other work, p50 | other work, p99 | server CPU | cycles of locks a second",
    );
    STORES.into_iter().try_for_each(measure)
}

fn measure(which: Which) -> Outcome {
    let (store, _folder) = on_disk(which)?;
    let (store, url) = (&*store, open(&*store)?);
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let driver = Driver::start()?;
    let mut others = Vec::new();
    for number in 0..CONNECTIONS {
        let other = Other::connect(which, store, number.into(), &driver);
        others.push(runtime.block_on(other)?);
    }
    let rounds = shortened(ROUNDS, 1);
    let mut rows = LOCKS.map(|_| Seen::default());
    for round in 0..rounds {
        for n in turns(round, LOCKS.len()) {
            let mut locks = begin(&url, LOCKS[n])?;
            std::thread::sleep(SETTLED);
            others = watch(store, &runtime, others, &mut rows[n])?;
            if let (Locks::Cycles(_), Some(worker)) = (LOCKS[n], &mut locks) {
                let ([seconds, done, failed], _) = worker.numbers()?;
                if failed > 0.0 {
                    return Err(format!("{failed} cycles failed").into());
                }
                rows[n].cycles += done / seconds / rounds as f64;
            }
            if let Some(worker) = &mut locks {
                worker.tell("end")?;
                worker.child.wait()?;
            }
        }
    }
    for (locks, seen) in LOCKS.iter().zip(rows) {
        let (what, cycles) = match locks {
            Locks::None => ("none".into(), "-".into()),
            Locks::Held(count) => {
                (format!("{count} held, ttl {} s", TTL.as_secs()), "-".to_owned())
            }
            Locks::Cycles(rate) => {
                (format!("{rate} cycles a second"), format!("{:.0}", seen.cycles))
            }
        };
        row(&[
            store.name().into(),
            what,
            micros(seen.times.quantile(0.5)),
            micros(seen.times.quantile(0.99)),
            format!("{:.1} % of one core", 100.0 * seen.cpu / seen.seconds),
            cycles,
        ]);
    }
    Ok(())
}

/// Starts the locks, if there are to be some.
fn begin(url: &str, locks: Locks) -> Outcome<Option<Worker>> {
    let length = SETTLED * 2 + shortened(LENGTH, LENGTH / 3);
    let word = match locks {
        Locks::None => return Ok(None),
        Locks::Held(count) => format!("take {count} 64"),
        Locks::Cycles(rate) => format!("pace {rate} {}", length.as_millis()),
    };
    let mut worker = LATCHWORK.start(url, TTL.as_millis())?;
    worker.tell(&word)?;
    if matches!(locks, Locks::Held(_)) {
        worker.expect("taken")?;
    }
    Ok(Some(worker))
}

/// Does the other work for a while.
fn watch(
    store: &dyn Store,
    runtime: &Runtime,
    others: Vec<Other>,
    seen: &mut Seen,
) -> Outcome<Vec<Other>> {
    let (begun, cpu) = (Instant::now(), store.cpu());
    let back = runtime.block_on(async {
        let until = Instant::now() + shortened(LENGTH, LENGTH / 3);
        let each = (0..).zip(others).map(|(n, it)| tokio::spawn(at_intervals(it, n, until)));
        let mut back = Vec::new();
        for task in each.collect::<Vec<_>>() {
            let (other, times) = task.await??;
            seen.times.merge(&times);
            back.push(other);
        }
        Outcome::Ok(back)
    })?;
    seen.cpu += store.cpu() - cpu;
    seen.seconds += begun.elapsed().as_secs_f64();
    Ok(back)
}

/// Asks at even intervals; a request that comes late since the one before was slow counts from its own moment.
async fn at_intervals(other: Other, number: u32, until: Instant) -> Outcome<(Other, Times)> {
    let between = Duration::from_secs(1) * CONNECTIONS / REQUESTS;
    let mut due = Instant::now() + between * number / CONNECTIONS;
    let mut times = Times::default();
    while due < until {
        // A timer that wakes late is no lateness of the server.
        let late = Instant::now().saturating_duration_since(due);
        if late.is_zero() {
            tokio::time::sleep_until(due.into()).await;
        }
        let begun = now();
        other.ask().await?;
        times.record(now() - begun + late.as_nanos() as u64);
        due += between;
    }
    Ok((other, times))
}
