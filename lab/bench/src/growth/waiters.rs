//! Waiters on one key: from one to ten thousand.

use std::time::{Duration, Instant};

use crate::Outcome;
use crate::child::Worker;
use crate::goals::Goal;
use crate::growth::budget::Budget;
use crate::growth::child::start;
use crate::growth::limited::Limited;
use crate::growth::picture::Chart;
use crate::growth::served::{Served, Which, open};
use crate::growth::table::{Column, Curve};
use crate::held_by_one::resident;
use crate::peers::LATCHWORK;
use crate::stats::shortened;
use crate::times::Times;

const SIZES: &[usize] = &[1, 10, 100, 1_000, 10_000];
const TTL: Duration = Duration::from_secs(30);
/// Waiters check by themselves each third of the ttl; so long is watched, or not at all if they are few.
const IDLE: Duration = Duration::from_secs(10);
const IDLE_FROM: usize = 1_000;
/// How long each holds the key while the queue moves on, and for how long that is watched: in it each
/// waiter checks by itself once.
const MOVING: Duration = Duration::from_millis(20);
/// So many handovers at least, for costs that one alone would not show.
const HANDOVERS: usize = 1_000;

pub(crate) const CPU: Chart = Chart {
    name: "growth-waiters-cpu",
    title: "Waiters on one key: processor time of the server for each release, in us",
    size: "waiters",
};
pub(crate) const DRAIN: Chart = Chart {
    name: "growth-waiters-drain",
    title: "Waiters on one key: until all have held it, in ms",
    size: "waiters",
};

pub(crate) const QUEUE: Chart = Chart {
    name: "growth-waiters-moving",
    title: "Waiters on one key that is held for 20 ms each time: processor time of the server a second, in ms",
    size: "waiters",
};

const COLUMNS: &[Column] = &[
    Column::all("until all wait", "ms"),
    Column::each("client memory a waiter", "kB"),
    Column::each("server memory a waiter", "kB"),
    Column::all("commands a second, waiting", ""),
    Column::all("server CPU a second, waiting", "ms"),
    Column::all("server CPU a second, queue moving", "ms").drawn(&QUEUE),
    Column::all("time to drain", "ms").drawn(&DRAIN),
    Column::each("server CPU a release", "us").drawn(&CPU),
    Column::each("client CPU a release", "us"),
    Column::each("commands a release", ""),
    Column::each("handover p50", "us"),
    Column::each("handover p99", "us"),
];

pub(crate) fn run(which: Which) -> Outcome {
    let store = which.start()?;
    let url = open(&*store)?;
    let mut budget = Budget::begin()?;
    println!(
        "Each waiter has a place of its own in the store's queue, but all are of one client; in one \
         process without a store and on Redlock, they share the queue of the process.\n"
    );
    let mut curve = Curve::begin(format!("Waiters on {}", store.name()), "waiters", COLUMNS);
    for size in &SIZES[..shortened(SIZES.len(), SIZES.len() - 1)] {
        if let Some(seconds) = budget.exceeded_by(*size) {
            curve.leave_out(*size, seconds);
            break;
        }
        let begun = Instant::now();
        let seen = match measure(&*store, &url, *size, budget.left()) {
            Ok(seen) => seen,
            Err(error) => {
                curve.not_measured(*size, "all can wait", &*error);
                break;
            }
        };
        let watched = if is_watched(*size) { 2 * IDLE } else { Duration::ZERO };
        // Below that, each size has as many handovers as the others.
        if *size >= HANDOVERS {
            budget.took_beside(*size, begun, watched);
        }
        curve.point(*size as f64, &seen.values());
        let goal = Goal::at_most(0.0).of("waiters not served");
        curve.promise(*size as f64, "nobody starves", &goal, seen.starved);
    }
    curve.end();
    Ok(())
}

/// What was measured with so many waiters. Processor times are in seconds, those of all handovers.
#[derive(Default)]
struct Seen {
    join: f64,
    client_memory: f64,
    server_memory: f64,
    idle_commands: f64,
    idle_cpu: f64,
    moving_cpu: f64,
    drains: f64,
    drain: f64,
    server_cpu: f64,
    client_cpu: f64,
    commands: f64,
    times: Times,
    served: f64,
    starved: f64,
}

impl Seen {
    fn values(&self) -> [f64; 12] {
        [
            self.join / self.drains * 1e3,
            self.client_memory,
            self.server_memory,
            self.idle_commands,
            self.idle_cpu * 1e3,
            self.moving_cpu * 1e3,
            self.drain / self.drains * 1e3,
            self.server_cpu / self.served * 1e6,
            self.client_cpu / self.served * 1e6,
            self.commands / self.served,
            self.times.quantile(0.5),
            self.times.quantile(0.99),
        ]
    }
}

fn measure(
    store: &dyn Served,
    url: &str,
    size: usize,
    limit: Duration,
) -> Result<Seen, Box<dyn std::error::Error>> {
    let mut worker = start("waiters", url, TTL)?;
    let pid = worker.child.id();
    let _limited = Limited::kill_after(pid, 2 * limit);
    let memory = || resident(pid).ok_or("how much memory?");
    let client = || crate::growth::served::of_threads(pid);
    let (small, before) = (memory()?, store.memory()?);
    let mut seen = Seen::default();
    (seen.idle_commands, seen.idle_cpu, seen.moving_cpu) = (f64::NAN, f64::NAN, f64::NAN);
    let drains = shortened(HANDOVERS, HANDOVERS / 5).div_ceil(size);
    // Waiters that are watched before they are served are not counted among the others.
    let watched = usize::from(is_watched(size));
    for drain in 0..watched + drains {
        let begun = Instant::now();
        worker.tell(&format!("join {size}"))?;
        expect(&worker.line()?, "joined")?;
        let joined = begun.elapsed().as_secs_f64();
        if drain == 0 {
            seen.client_memory = (memory()? - small) / size as f64;
            seen.server_memory = (store.memory()? - before) / size as f64 / 1e3;
        }
        if drain < watched {
            (seen.idle_commands, seen.idle_cpu) = idle(store)?;
            seen.moving_cpu = moving(store, &mut worker)?;
            worker.tell("drain")?;
            let (numbers, _) = Times::after_numbers(&worker.line()?)?;
            seen.starved += size as f64 - numbers.get(1).ok_or("how many were served?")?;
            continue;
        }
        seen.join += joined;
        let (cpu, own, sent) = (store.cpu(), client(), store.commands(&LATCHWORK)?);
        worker.tell("drain")?;
        let line = worker.line()?;
        seen.server_cpu += store.cpu() - cpu;
        seen.client_cpu += client() - own;
        seen.commands += store.commands(&LATCHWORK)? - sent;
        let (numbers, times) = Times::after_numbers(&line)?;
        let [seconds, served] = numbers[..] else {
            return Err(format!("what is {line:?}?").into());
        };
        seen.drain += seconds;
        seen.drains += 1.0;
        seen.served += served;
        seen.starved += size as f64 - served;
        seen.times.merge(&times);
    }
    Ok(seen)
}

/// Whether so many are watched before they are served: a time that does not grow with their number.
fn is_watched(size: usize) -> bool {
    size >= IDLE_FROM && !crate::stats::is_short()
}

/// Commands and processor time of the server in a second in which nobody is served.
fn idle(store: &dyn Served) -> Result<(f64, f64), Box<dyn std::error::Error>> {
    let (begun, cpu, sent) = (Instant::now(), store.cpu(), store.commands(&LATCHWORK)?);
    std::thread::sleep(IDLE);
    let seconds = begun.elapsed().as_secs_f64();
    Ok(((store.commands(&LATCHWORK)? - sent) / seconds, (store.cpu() - cpu) / seconds))
}

/// Processor time of the server in a second in which the queue moves on slowly.
fn moving(store: &dyn Served, worker: &mut Worker) -> Result<f64, Box<dyn std::error::Error>> {
    worker.tell(&format!("move {}", MOVING.as_millis()))?;
    let (begun, cpu) = (Instant::now(), store.cpu());
    std::thread::sleep(IDLE);
    Ok((store.cpu() - cpu) / begun.elapsed().as_secs_f64())
}

pub(crate) fn expect(line: &str, wanted: &str) -> Result<(), String> {
    if line == wanted { Ok(()) } else { Err(format!("a process said {line:?}, not {wanted:?}")) }
}
