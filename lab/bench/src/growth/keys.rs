//! Keys that are used once: what is left of a thousand to a million of them.

use std::time::{Duration, Instant};

use crate::Outcome;
use crate::goals::Goal;
use crate::growth::budget::Budget;
use crate::growth::child::start;
use crate::growth::limited::Limited;
use crate::growth::picture::Chart;
use crate::growth::served::{Which, open};
use crate::growth::table::{Column, Curve};
use crate::held_by_one::resident;
use crate::peers::LATCHWORK;
use crate::stats::shortened;
use crate::times::Times;

const SIZES: &[usize] = &[1_000, 10_000, 100_000, 1_000_000];
const TTL: Duration = Duration::from_secs(30);
/// What is done in the background is done by then.
const REST: Duration = Duration::from_secs(2);

pub(crate) const RATE: Chart = Chart {
    name: "growth-keys",
    title: "Keys used once, 64 at a time: processor time of client and server for each, in us",
    size: "keys used before and now",
};

const COLUMNS: &[Column] = &[
    Column::plain("keys a second", ""),
    Column::each("client CPU a key", "us"),
    Column::each("server CPU a key", "us"),
    Column::each("both", "us").drawn(&RATE),
    Column::each("commands a key", ""),
    Column::each("p50", "us"),
    Column::each("p99", "us"),
    Column::all("entries left", ""),
    Column::all("left at the server", "kB"),
    Column::all("left in the client", "kB"),
];

pub(crate) fn run(which: Which) -> Outcome {
    let store = which.start()?;
    let url = open(&*store)?;
    let mut budget = Budget::begin()?;
    let mut worker = start("keys", &url, TTL)?;
    let pid = worker.child.id();
    let _limited = Limited::kill_after(pid, 2 * budget.left());
    let memory = || resident(pid).ok_or("how much memory?");
    // The first few make what is there once.
    worker.tell("use 0 64")?;
    worker.line()?;
    let (empty, small) = (store.left()?, memory()?);
    println!(
        "A row has the costs of the keys that came since the row before, and what all have left.\n"
    );
    let mut curve = Curve::begin(format!("Keys used once on {}", store.name()), "keys", COLUMNS);
    let mut used = 0;
    for size in &SIZES[..shortened(SIZES.len(), SIZES.len() - 2)] {
        if let Some(seconds) = budget.exceeded_by(*size) {
            curve.leave_out(*size, seconds);
            break;
        }
        let begun = Instant::now();
        let (cpu, sent) = (store.cpu(), store.commands(&LATCHWORK)?);
        worker.tell(&format!("use {} {}", 64 + used, 64 + size))?;
        let line = worker.line()?;
        let (server, commands) = (store.cpu() - cpu, store.commands(&LATCHWORK)? - sent);
        let (numbers, times) = Times::after_numbers(&line)?;
        let [seconds, failed, client] = numbers[..] else {
            return Err(format!("what is {line:?}?").into());
        };
        std::thread::sleep(REST);
        let left = store.left()?;
        budget.took_beside(*size, begun, REST);
        let count = (size - used) as f64;
        // Where there is no server, its part is nothing.
        let both = client + if server.is_finite() { server } else { 0.0 };
        curve.point(
            *size as f64,
            &[
                count / seconds,
                client / count * 1e6,
                server / count * 1e6,
                both / count * 1e6,
                commands / count,
                times.quantile(0.5),
                times.quantile(0.99),
                left.entries - empty.entries,
                (left.bytes - empty.bytes) / 1e3,
                memory()? - small,
            ],
        );
        let goal = Goal::at_most(0.0).of("keys failed");
        curve.promise(*size as f64, "every key is had", &goal, failed);
        used = *size;
    }
    curve.end();
    Ok(())
}
