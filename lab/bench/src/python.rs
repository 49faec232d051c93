//! The Python package beside other locks of Python, each driven as its documentation says.
//!
//! Where a client and its server run decides about rates: on one processor a request is a switch of threads, on two it
//! wakes a processor that may sleep. So each table says where they ran.

use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::goals::{self, Goal, Verdict};
use crate::held::Case;
use crate::installing::From;
use crate::peers::*;
use crate::roles::Outcome;
use crate::stats::{head, median, range, row, shortened};
use crate::store::{Store, Which, redis};
use crate::{contest, free, handoffs};

/// How many times the cycles of redis-py a thread should have, on one core and on a core each.
const OF_REDIS_PY: [f64; 2] = [2.5, 1.5];
/// How many times those of redis.asyncio 64 tasks should have, and what part of Rust's.
const OF_REDIS_ASYNCIO: f64 = 10.0;
const OF_RUST: f64 = 0.65;
/// The most processor time that Python adds to an operation, in microseconds.
const BRIDGE: f64 = 5.0;
const TASKS: usize = 64;
const HELD: usize = 10_000;

pub(crate) fn run() -> Outcome {
    for (core, place) in ["on one core", "on a core each"].into_iter().enumerate() {
        let server = pinned(0, redis)?;
        pinned(core, || {
            let kinds = [PY, PY_REDIS, PY_REDIS_LOCK, PY_POTTERY, RUST_THREAD, PLAIN_SOCKET];
            let setting = format!("Redis, one thread, client and server {place}");
            table(&server, &kinds, 1, &setting, &[(PY_REDIS, OF_REDIS_PY[core])])
        })?;
    }
    let server = redis()?;
    let kinds = [PY_AIO, PY_AIO_UVLOOP, PY_REDIS_ASYNCIO, PY_REDIS_UVLOOP, PY_ASYNCIO, RUST_TASKS];
    let least = [(PY_REDIS_ASYNCIO, OF_REDIS_ASYNCIO), (RUST_TASKS, OF_RUST)];
    table(&server, &kinds, TASKS, &format!("Redis, {TASKS} tasks, on any core"), &least)?;
    costs(&server)?;
    let of_redis_lock =
        |goal: Goal| move |kind: &Kind| (kind.name == PY_REDIS_LOCK.name).then(|| goal.clone());
    let waiting = [PY, PY_REDIS_LOCK, PY_REDIS];
    let goal = of_redis_lock(Goal::at_least(2.5));
    let rounds = (3, Duration::from_secs(2));
    contest::run(&server, &waiting, &contest::APART[..1], rounds, "", |kind, _| goal(kind))?;
    handoffs::run(&server, &waiting, of_redis_lock(Goal::at_most(0.5)))?;
    println!();
    let others: [(Which, &[Kind]); 3] = [
        (Which::Files, &[PY, PY_FILELOCK]),
        (Which::Etcd, &[PY, PY_ETCD3GW, PY_AETCD]),
        (Which::ZooKeeper, &[PY, PY_KAZOO]),
    ];
    for (which, kinds) in others {
        let store = which.start()?;
        let name = if which == Which::Files { "Files" } else { store.name() };
        let least: Vec<_> = kinds[1..].iter().map(|kind| (*kind, 1.0)).collect();
        table(&*store, kinds, 1, &format!("{name}, one thread, on any core"), &least)?;
    }
    held(&server)
}

/// A table of free locks; some have a goal.
fn table(
    store: &dyn Store,
    kinds: &[Kind],
    tasks: usize,
    setting: &str,
    least: &[(Kind, f64)],
) -> Outcome {
    let goals = |kind: &Kind, _, table: &free::Table| {
        let goal = least.iter().find(|(it, _)| it.name == kind.name);
        let mut verdicts: Vec<Verdict> = goal
            .map(|(_, least)| Goal::at_least(*least).judge(table.part(kind)))
            .into_iter()
            .collect();
        if let (true, Some(own), Some(rust)) =
            (kind.name == RUST_TASKS.name, table.of(PY_AIO.name), table.of(RUST_TASKS.name))
        {
            // The bridge, the event loop's work, and the objects of the API.
            let goal = Goal::at_most(BRIDGE).of("Python's CPU an operation").unit("us");
            verdicts.push(goal.judge((own.cpu() - rust.cpu()) / 2.0));
        }
        verdicts
    };
    free::run(store, kinds, &[tasks], |_| setting.into(), goals).map(drop)
}

/// What an import takes, and the memory of a process.
fn costs(server: &dyn Store) -> Outcome {
    From::Wheel.install()?;
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
    for _ in 0..=shortened(9, 3) {
        for (module, seen) in modules.iter().zip(&mut seen) {
            let said = From::Wheel.command("costs.py").args([module, url.as_str()]).output()?;
            let said = String::from_utf8(said.stdout)?;
            let numbers = said.split_whitespace().map(str::parse).collect::<Result<Vec<f64>, _>>();
            seen.push(numbers.ok().filter(|it| !it.is_empty()).ok_or("costs.py has failed")?);
        }
    }
    println!("What an import takes, and the memory of a process with one lock:\n");
    head("what | import | goal | memory after it | after 2,000 cycles | 20,000 later");
    for (module, seen) in modules.iter().zip(&mut seen) {
        // The first one may have read the files from a disk.
        seen.remove(0);
        let of = |nth: usize| seen.iter().filter_map(move |numbers| numbers.get(nth).copied());
        let middle = |nth| median(&mut of(nth).collect::<Vec<_>>());
        let mut verdicts = Vec::new();
        if *module == "latchwork" {
            verdicts.push(Goal::below(60.0).of("import").unit("ms").judge(middle(0)));
            let growth = middle(3) - middle(2);
            verdicts.push(Goal::at_most(1_024.0).of("growth").unit("kB").judge(growth));
        }
        let memory = |nth| match of(nth).next() {
            Some(_) => format!("{:.1} MB", middle(nth) / 1e3),
            None => "-".to_owned(),
        };
        row(&[
            (*module).into(),
            format!("{:.1} ms ({})", middle(0), range(of(0), 1)),
            goals::cell(&verdicts),
            memory(1),
            memory(2),
            memory(3),
        ]);
    }
    println!();
    Ok(())
}

/// Many locks of one process, whose only thread of Python blocks.
fn held(server: &dyn Store) -> Outcome {
    From::Wheel.install()?;
    server.clear()?;
    let ttl = Duration::from_secs(6);
    let case = Case { kind: PY, name: PY.name, ttl, every: 1.0, rounds: 2.0, locks: HELD };
    let seen = case.measure(server)?;
    println!("{HELD} locks of one process whose one thread of Python blocks, with a ttl of 6 s:\n");
    head("what | watched for | client CPU | commands a second | still held | goal");
    row(&[
        PY.name.into(),
        format!("{} s", ttl.as_secs() * 2),
        format!("{:.2} % of one core", seen.cpu),
        format!("{:.1}", seen.commands),
        seen.held.to_string(),
        Goal::at_least(HELD as f64).of("held").judge(seen.held).to_string(),
    ]);
    Ok(())
}

/// Runs a function, and the processes that it starts, on the `nth` processor of this process.
fn pinned<T>(nth: usize, run: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    let all = sched_getaffinity(None)?;
    let mut cores = (0..CpuSet::MAX_CPU).filter(|&core| all.is_set(core));
    let mut one = CpuSet::new();
    one.set(cores.nth(nth).ok_or("this measurement needs two processors")?);
    sched_setaffinity(None, &one)?;
    let done = run();
    sched_setaffinity(None, &all)?;
    done
}
