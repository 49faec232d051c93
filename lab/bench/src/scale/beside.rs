//! Other work of the same server, alone and beside locks.

use std::time::{Duration, Instant};

use latchwork::Driver;
use tokio::runtime::{Builder, Runtime};

use crate::Outcome;
use crate::child::Worker;
use crate::growth::child::start;
use crate::growth::served::{Served, Which, open};
use crate::growth::waiters::expect;
use crate::roles::now;
use crate::scale::other_work::Other;
use crate::scale::{STORES, Scene, say_disk};
use crate::stats::{head, micros, row, shortened, turns};
use crate::times::Times;

/// Connections of the other work, and its requests a second, of all connections together.
const CONNECTIONS: usize = 8;
const REQUESTS: u64 = 400;
const ROUNDS: usize = 3;
const LENGTH: Duration = Duration::from_secs(3);
/// Until locks and other work run evenly.
const SETTLED: Duration = Duration::from_millis(500);
/// A third of it is not longer than what is watched, so each lock is renewed in that time.
const TTL: Duration = Duration::from_secs(9);

/// The locks beside the other work.
#[derive(Clone, Copy)]
enum Locks {
    None,
    /// So many are held and renewed all the time.
    Held(usize),
    /// So many are acquired and released a second, each with a key of its own.
    Cycles(u64),
}

const LOCKS: [Locks; 4] =
    [Locks::None, Locks::Held(10_000), Locks::Cycles(100), Locks::Cycles(1_000)];

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

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
    head(&[
        "store",
        "locks beside it",
        "other work, p50",
        "other work, p99",
        "server CPU",
        "cycles of locks a second",
    ]);
    for which in STORES {
        measure(which)?;
    }
    Ok(())
}

fn measure(which: Which) -> Outcome {
    let scene = Scene::start(which)?;
    let store = &scene.store;
    let url = open(&**store)?;
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let driver = Driver::start()?;
    let mut others = Vec::new();
    for number in 0..CONNECTIONS {
        others.push(Other::connect(which, &**store, number as i64, &driver, &runtime)?);
    }
    let mut rows: Vec<Seen> = LOCKS.iter().map(|_| Seen::default()).collect();
    for round in 0..shortened(ROUNDS, 1) {
        for n in turns(round, LOCKS.len()) {
            let locks = begin(&**store, &url, LOCKS[n])?;
            others = watch(&**store, &runtime, others, &mut rows[n])?;
            rows[n].cycles += end(locks, LOCKS[n])?;
        }
    }
    for (locks, seen) in LOCKS.iter().zip(rows) {
        let cycles = match locks {
            Locks::Cycles(_) => format!("{:.0}", seen.cycles / shortened(ROUNDS, 1) as f64),
            Locks::None | Locks::Held(_) => "-".into(),
        };
        row(&[
            store.name().into(),
            match locks {
                Locks::None => "none".into(),
                Locks::Held(count) => format!("{count} held, ttl {} s", TTL.as_secs()),
                Locks::Cycles(rate) => format!("{rate} cycles a second"),
            },
            micros(seen.times.quantile(0.5)),
            micros(seen.times.quantile(0.99)),
            format!("{:.1} % of one core", 100.0 * seen.cpu / seen.seconds),
            cycles,
        ]);
    }
    Ok(())
}

/// Starts the locks, if there are to be some.
fn begin(store: &dyn Served, url: &str, locks: Locks) -> Result<Option<Worker>> {
    let length = SETTLED * 2 + shortened(LENGTH, LENGTH / 3);
    let worker = match locks {
        Locks::None => None,
        Locks::Held(count) => {
            let mut worker = start("holds", url, TTL)?;
            worker.tell(&format!("take {count}"))?;
            expect(&worker.line()?, "taken")?;
            Some(worker)
        }
        Locks::Cycles(rate) => {
            let mut worker = start("paced", url, TTL)?;
            worker.tell(&format!("pace {rate} {}", length.as_millis()))?;
            Some(worker)
        }
    };
    std::thread::sleep(SETTLED);
    // Not what came with the start.
    let _ = store.cpu();
    Ok(worker)
}

/// Ends them; how many cycles a second they made.
fn end(worker: Option<Worker>, locks: Locks) -> Result<f64> {
    let Some(mut worker) = worker else { return Ok(0.0) };
    let rate = match locks {
        Locks::Cycles(_) => {
            let line = worker.line()?;
            let (numbers, _) = Times::after_numbers(&line)?;
            let [seconds, done, failed] = numbers[..] else {
                return Err(format!("what is {line:?}?").into());
            };
            if failed > 0.0 {
                return Err(format!("{failed} cycles failed").into());
            }
            done / seconds
        }
        Locks::None | Locks::Held(_) => 0.0,
    };
    worker.tell("end")?;
    worker.child.wait()?;
    Ok(rate)
}

/// Does the other work for a while.
fn watch(
    store: &dyn Served,
    runtime: &Runtime,
    others: Vec<Other>,
    seen: &mut Seen,
) -> Result<Vec<Other>> {
    let length = shortened(LENGTH, LENGTH / 3);
    let (begun, cpu) = (Instant::now(), store.cpu());
    let back = runtime.block_on(async {
        let until = Instant::now() + length;
        let tasks: Vec<_> = others
            .into_iter()
            .enumerate()
            .map(|(n, other)| tokio::spawn(at_intervals(other, n as u32, until)))
            .collect();
        let mut back = Vec::new();
        for task in tasks {
            back.push(task.await.map_err(|error| error.to_string())??);
        }
        Ok::<_, String>(back)
    })?;
    seen.cpu += store.cpu() - cpu;
    seen.seconds += begun.elapsed().as_secs_f64();
    let mut others = Vec::new();
    for (other, times) in back {
        seen.times.merge(&times);
        others.push(other);
    }
    Ok(others)
}

/// Asks at even intervals; a request that comes late since the one before was slow counts from its own moment.
async fn at_intervals(
    mut other: Other,
    number: u32,
    until: Instant,
) -> std::result::Result<(Other, Times), String> {
    let between = Duration::from_secs(CONNECTIONS as u64).div_f64(REQUESTS as f64);
    let mut due = Instant::now() + between * number / CONNECTIONS as u32;
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
