//! The Python package beside other locks of Python, each driven as its documentation says.
//!
//! Where a client and its server run decides about rates: on one processor a request is a switch of
//! threads, on two it wakes a processor that may sleep. So each table says where they ran.

use std::time::Duration;

use latchwork_services::{EtcdOptions, EtcdServer, Folder, RedisOptions, RedisServer};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::free_cycles::{self, Entry, Sample, cpu, rate};
use crate::goals::{self, Goal, Verdict};
use crate::held_by_one::held_by_one;
use crate::installing::{PYTHON_LOCKS, with_script};
use crate::peers::python::{
    AETCD, ASYNCIO_ALONE, ETCD3GW, FILELOCK, KAZOO, LATCHWORK, LATCHWORK_AIO, LATCHWORK_AIO_UVLOOP,
    POTTERY, PYTHON_REDIS_LOCK, REDIS_ASYNCIO, REDIS_ASYNCIO_UVLOOP, REDIS_PY,
};
use crate::peers::{self, Kind};
use crate::stats::{head, median, micros, row, shortened};
use crate::store::{Files, Store};
use crate::{Outcome, contest, free_child, handoffs, zookeeper};

type Failed = Box<dyn std::error::Error>;

/// How many times the cycles of redis-py a thread should have, on one core and on a core each.
const OF_REDIS_PY: [f64; 2] = [2.5, 1.5];
/// How many times those of redis.asyncio 64 tasks should have.
const OF_REDIS_ASYNCIO: f64 = 10.0;
/// What part of Rust's rate.
const OF_RUST: f64 = 0.65;
/// The most processor time that Python adds to an operation, in microseconds.
const BRIDGE: f64 = 5.0;
/// How many times the handovers of python-redis-lock, and what part of its hand-off.
const CONTENDED: f64 = 2.5;
const HANDOFF: f64 = 0.5;
/// How many times the rate of a lock on another store.
const OF_OTHERS: f64 = 1.0;
const TASKS: usize = 64;
const HELD: usize = 10_000;
const ROUNDS_OF_COSTS: usize = 9;
/// Of the contest.
const ROUNDS: (usize, Duration) = (3, Duration::from_secs(2));
const RUST_TASKS: &str = "Rust, 64 tasks";
/// The longest import for threads, in milliseconds.
const IMPORT: f64 = 60.0;
/// The most that 20,000 cycles may add to the memory of a process, in kilobytes.
const GROWTH: f64 = 1_024.0;

pub(crate) fn run() -> Outcome {
    for (core, place) in ["on one core", "on a core each"].into_iter().enumerate() {
        let server = pinned(0, || Ok(RedisServer::start(&RedisOptions::new())?))?;
        pinned(core, || {
            let kinds = vec![LATCHWORK, REDIS_PY, PYTHON_REDIS_LOCK, POTTERY];
            let table = Table::new(&server)
                .of(kinds)?
                .rust("Rust, a thread that blocks", free_child::LATCHWORK_THREADS)?
                .rust("no lock: its two commands by a plain socket", free_child::PLAIN_SOCKET)?
                .goal(REDIS_PY.name, OF_REDIS_PY[core]);
            table.print(&format!("Redis, one thread, client and server {place}"), 1)
        })?;
    }
    let server = RedisServer::start(&RedisOptions::new())?;
    let kinds = vec![
        LATCHWORK_AIO,
        LATCHWORK_AIO_UVLOOP,
        REDIS_ASYNCIO,
        REDIS_ASYNCIO_UVLOOP,
        ASYNCIO_ALONE,
    ];
    let table = Table::new(&server)
        .of(kinds)?
        .rust(RUST_TASKS, free_child::LATCHWORK)?
        .goal(REDIS_ASYNCIO.name, OF_REDIS_ASYNCIO)
        .goal(RUST_TASKS, OF_RUST);
    table.print(&format!("Redis, {TASKS} tasks, on any core"), TASKS)?;
    costs(&server)?;
    let of_python_redis_lock =
        |goal: Goal| move |kind: &Kind| (kind.name == PYTHON_REDIS_LOCK.name).then(|| goal.clone());
    let waiting = || vec![LATCHWORK, PYTHON_REDIS_LOCK, REDIS_PY];
    let goal = of_python_redis_lock(Goal::at_least(CONTENDED));
    contest::run(&server, waiting(), &[(contest::PROCESSES, 1)], ROUNDS, |kind, _| goal(kind))?;
    handoffs::run(&server, waiting(), of_python_redis_lock(Goal::at_most(HANDOFF)))?;
    println!();
    others()?;
    held(&server)
}

/// What an import takes, and the memory of a process.
fn costs(server: &RedisServer) -> Outcome {
    LATCHWORK.install()?;
    let url = server.address();
    let modules = [
        "latchwork",
        "latchwork.aio",
        "redis",
        "redis.asyncio",
        "redis_lock",
        "kazoo.client",
        "filelock",
    ];
    let mut seen = vec![Vec::new(); modules.len()];
    for _ in 0..=shortened(ROUNDS_OF_COSTS, 3) {
        for (module, seen) in modules.iter().zip(&mut seen) {
            let mut command = with_script(&PYTHON_LOCKS.python(), "costs.py");
            let said = command.args([module, url.as_str()]).output()?;
            let said = String::from_utf8(said.stdout)?;
            let numbers =
                said.split_whitespace().map(str::parse).collect::<Result<Vec<f64>, _>>()?;
            if numbers.is_empty() {
                return Err(format!("costs.py {module} has failed").into());
            }
            seen.push(numbers);
        }
    }
    println!("What an import takes, and the memory of a process with one lock:\n");
    let titles =
        ["what", "import", goals::TITLE, "memory after it", "after 2,000 cycles", "20,000 later"];
    head(&titles);
    for (module, seen) in modules.iter().zip(&mut seen) {
        // The first one may have read the files from a disk.
        seen.remove(0);
        let of = |nth: usize| seen.iter().filter_map(move |numbers| numbers.get(nth).copied());
        let (low, high) = range(of(0));
        let middle = |nth| median(&mut of(nth).collect::<Vec<_>>());
        let mut verdicts = Vec::new();
        if *module == LATCHWORK.name {
            verdicts.push(Goal::below(IMPORT).of("import").unit("ms").judge(middle(0)));
            let growth = middle(3) - middle(2);
            verdicts.push(Goal::at_most(GROWTH).of("growth").unit("kB").judge(growth));
        }
        let memory = |nth| match of(nth).next() {
            Some(_) => format!("{:.1} MB", middle(nth) / 1e3),
            None => "-".to_owned(),
        };
        row(&[
            (*module).into(),
            format!("{:.1} ms ({low:.1} to {high:.1})", middle(0)),
            goals::cell(&verdicts),
            memory(1),
            memory(2),
            memory(3),
        ]);
    }
    println!();
    Ok(())
}

/// The other stores, one lock at a time.
fn others() -> Outcome {
    let files = Files(Folder::new()?);
    let table = Table::new(&files).of(vec![LATCHWORK, FILELOCK])?.goal(FILELOCK.name, OF_OTHERS);
    table.print("Files, one thread, on any core", 1)?;
    let etcd = EtcdServer::start(&EtcdOptions::new())?;
    let table = Table::new(&etcd).of(vec![LATCHWORK, ETCD3GW, AETCD])?;
    let table = table.goal(ETCD3GW.name, OF_OTHERS).goal(AETCD.name, OF_OTHERS);
    table.print("etcd, one thread, on any core", 1)?;
    let zookeeper = zookeeper::start()?;
    let table = Table::new(&zookeeper).of(vec![LATCHWORK, KAZOO])?.goal(KAZOO.name, OF_OTHERS);
    table.print("ZooKeeper, one thread, on any core", 1)
}

/// Many locks of one process, whose only thread of Python blocks.
fn held(server: &RedisServer) -> Outcome {
    LATCHWORK.install()?;
    server.clear()?;
    let ttl = Duration::from_secs(6);
    let seen = held_by_one(&LATCHWORK, server, HELD, ttl, ttl * 2)?;
    println!("{HELD} locks of one process whose one thread of Python blocks, with a ttl of 6 s:\n");
    head(&["what", "watched for", "client CPU", "commands a second", "still held", goals::TITLE]);
    row(&[
        LATCHWORK.name.into(),
        format!("{} s", ttl.as_secs() * 2),
        format!("{:.2} % of one core", seen.cpu),
        format!("{:.1}", seen.commands),
        seen.held.clone(),
        Goal::at_least(HELD as f64).of("held").judge(seen.held.parse()?).to_string(),
    ]);
    Ok(())
}

/// Runs a function, and the processes that it starts, on the `nth` processor of this process.
fn pinned<T>(nth: usize, run: impl FnOnce() -> Result<T, Failed>) -> Result<T, Failed> {
    let all = sched_getaffinity(None)?;
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&core| all.is_set(core)).collect();
    let mut one = CpuSet::new();
    one.set(*cores.get(nth).ok_or("this measurement needs two processors")?);
    sched_setaffinity(None, &one)?;
    let done = run();
    sched_setaffinity(None, &all)?;
    done
}

/// A table: Latchwork first, then what its rate is compared with.
struct Table<'a> {
    store: &'a dyn Store,
    entries: Vec<Entry<'a>>,
    missing: Vec<(Kind, String)>,
    /// How many times the rate of another row Latchwork's should be.
    goals: Vec<(&'static str, f64)>,
}

impl<'a> Table<'a> {
    fn new(store: &'a dyn Store) -> Self {
        Self { store, entries: Vec::new(), missing: Vec::new(), goals: Vec::new() }
    }

    /// Adds locks, each in a process of its own.
    fn of(mut self, kinds: Vec<Kind>) -> Result<Self, Failed> {
        let (kinds, missing) = peers::install(kinds);
        for kind in kinds {
            self.entries.push(Entry::started(&kind, self.store)?);
        }
        self.missing.extend(missing);
        Ok(self)
    }

    /// Adds Latchwork without Python.
    fn rust(mut self, name: &'static str, what: (&str, bool)) -> Result<Self, Failed> {
        self.entries.push(Entry::apart(name, what, &self.store.address(), &[])?);
        Ok(self)
    }

    fn goal(mut self, name: &'static str, at_least: f64) -> Self {
        self.goals.push((name, at_least));
        self
    }

    /// Takes the samples in turns and prints them.
    fn print(mut self, setting: &str, tasks: usize) -> Outcome {
        let samples = free_cycles::in_turns(&mut self.entries, tasks)?;
        println!("{setting}:\n");
        let titles = [
            "what",
            "cycles a second",
            "latchwork to it",
            goals::TITLE,
            "cycle p50",
            "cycle p99",
            "client CPU a cycle",
        ];
        head(&titles);
        for (entry, rows) in self.entries.iter().zip(&samples) {
            let part = rate(&samples[0]) / rate(rows);
            let goals = self.goals.iter().filter(|(name, _)| *name == entry.name());
            let mut verdicts: Vec<_> =
                goals.map(|(_, least)| Goal::at_least(*least).judge(part)).collect();
            if entry.name() == RUST_TASKS {
                verdicts.push(bridge(&samples[0], rows));
            }
            let times = free_cycles::times(rows);
            let (low, high) = range(rows.iter().map(|sample| sample.rate));
            // Samples of one turn lie beside each other in time.
            let turns = samples[0].iter().zip(rows);
            let (least, most) = range(turns.map(|(ours, theirs)| ours.rate / theirs.rate));
            row(&[
                entry.name().into(),
                format!("{:.0} ({low:.0} to {high:.0})", rate(rows)),
                format!("{part:.2} ({least:.2} to {most:.2})"),
                goals::cell(&verdicts),
                micros(times.quantile(0.5)),
                micros(times.quantile(0.99)),
                format!("{:.2} us", cpu(rows)),
            ]);
        }
        peers::missing_rows(&self.missing, titles.len());
        println!();
        Ok(())
    }
}

/// The lowest and the highest of these.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, 0.0), |(low, high), value| (value.min(low), value.max(high)))
}

/// What Python adds to an operation: the bridge, the event loop's work, and the objects of the API.
fn bridge(ours: &[Sample], rust: &[Sample]) -> Verdict {
    let goal = Goal::at_most(BRIDGE).of("Python's CPU an operation").unit("us");
    goal.judge((cpu(ours) - cpu(rust)) / 2.0)
}
