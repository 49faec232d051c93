//! Holds of one process: from a thousand to two hundred thousand.

use std::time::{Duration, Instant};

use crate::Outcome;
use crate::goals::Goal;
use crate::growth::budget::Budget;
use crate::growth::child::start;
use crate::growth::limited::Limited;
use crate::growth::picture::Chart;
use crate::growth::served::{Which, open};
use crate::growth::table::{Column, Curve};
use crate::growth::waiters::expect;
use crate::held_by_one::resident;
use crate::peers::LATCHWORK;
use crate::stats::shortened;

const SIZES: &[usize] = &[1_000, 10_000, 100_000, 200_000];
/// Each is renewed once in a third of it, which is also how long is watched.
const TTL: Duration = Duration::from_secs(30);

pub(crate) const CPU: Chart = Chart {
    name: "growth-holds",
    title: "Holds of one process, ttl 30 s: processor time of client and server a second, in ms",
    size: "holds",
};

const COLUMNS: &[Column] = &[
    Column::all("until all are held", "s"),
    Column::each("client memory a hold", "kB"),
    Column::each("server memory a hold", "kB"),
    Column::all("client CPU a second", "ms"),
    Column::all("server CPU a second", "ms"),
    Column::all("both", "ms").drawn(&CPU),
    Column::all("commands a second", ""),
];

pub(crate) fn run(which: Which) -> Outcome {
    let store = which.start()?;
    let url = open(&*store)?;
    let mut budget = Budget::begin()?;
    let ttl = shortened(TTL, TTL / 5);
    let mut worker = start("holds", &url, ttl)?;
    let pid = worker.child.id();
    let _limited = Limited::kill_after(pid, 2 * budget.left());
    let memory = || resident(pid).ok_or("how much memory?");
    worker.tell("take 1")?;
    expect(&worker.line()?, "taken")?;
    let (small, before) = (memory()?, store.memory()?);
    println!(
        "A ttl of {} s; watched for a third of it, in which each hold is renewed once.\n",
        ttl.as_secs()
    );
    let mut curve = Curve::begin(format!("Holds on {}", store.name()), "holds", COLUMNS);
    let mut filling = 0.0;
    for size in &SIZES[..shortened(SIZES.len(), SIZES.len() - 2)] {
        if let Some(seconds) = budget.exceeded_by(*size) {
            curve.leave_out(*size, seconds);
            break;
        }
        let begun = Instant::now();
        worker.tell(&format!("take {size}"))?;
        expect(&worker.line()?, "taken")?;
        filling += begun.elapsed().as_secs_f64();
        let count = (size - 1) as f64;
        let (client, server) =
            ((memory()? - small) / count, (store.memory()? - before) / count / 1e3);
        let mut cpu = || -> Result<f64, Box<dyn std::error::Error>> {
            worker.tell("cpu")?;
            Ok(worker.line()?.parse()?)
        };
        let (start, own, theirs) = (Instant::now(), cpu()?, store.cpu());
        let sent = store.commands(&LATCHWORK)?;
        std::thread::sleep(ttl / 3);
        let (own, theirs) = (cpu()? - own, store.cpu() - theirs);
        let (sent, seconds) = (store.commands(&LATCHWORK)? - sent, start.elapsed().as_secs_f64());
        worker.tell("held")?;
        let held: f64 = worker.line()?.parse()?;
        budget.took_beside(*size, begun, ttl / 3);
        let both = own + if theirs.is_finite() { theirs } else { 0.0 };
        curve.point(
            *size as f64,
            &[
                filling,
                client,
                server,
                own / seconds * 1e3,
                theirs / seconds * 1e3,
                both / seconds * 1e3,
                sent / seconds,
            ],
        );
        let goal = Goal::at_most(0.0).of("holds lost");
        curve.promise(*size as f64, "none is lost", &goal, *size as f64 - held);
    }
    curve.end();
    Ok(())
}
