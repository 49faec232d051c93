//! Processes that want one key all the time: from one to 256.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::contest::Contest;
use crate::goals::Goal;
use crate::growth::budget::Budget;
use crate::growth::picture::Chart;
use crate::growth::served::{Served, Which, connections};
use crate::growth::table::{Column, Curve};
use crate::peers::{
    self, ADVISORY, CURATOR, ETCD_CONCURRENCY, Kind, LATCHWORK, REDIS_PY, RSLOCK, ZOOKEEPER_CLIENT,
};
use crate::stats::shortened;

const SIZES: &[usize] = &[1, 4, 16, 64, 256];
/// More of these take all memory, or minutes to start.
const HEAVY: usize = 16;
/// The least that a round lasts, and how long it lasts for each process: longer than all of them take to begin.
const LENGTH: (Duration, Duration) = (Duration::from_secs(4), Duration::from_millis(80));

pub(crate) const CPU: Chart = Chart {
    name: "growth-processes",
    title: "Processes that want one key: processor time of clients and server for each hold, in us",
    size: "processes",
};

const COLUMNS: &[Column] = &[
    Column::plain("holds a second", ""),
    Column::plain("handovers a second", ""),
    Column::each("client CPU a hold", "us"),
    Column::each("server CPU a hold", "us"),
    Column::each("both", "us").drawn(&CPU),
    Column::each("commands a hold", ""),
    Column::each("connections a process", ""),
    Column::all("wait p50", "us"),
    Column::all("wait p99", "us"),
    Column::plain("starved", ""),
    Column::plain("Jain of processes", ""),
];

/// Latchwork, and who is compared with it.
fn kinds(which: Which) -> Vec<Kind> {
    match which {
        Which::Memory | Which::Files => vec![LATCHWORK],
        Which::Redis => vec![LATCHWORK, RSLOCK, REDIS_PY],
        Which::Redlock => vec![LATCHWORK, RSLOCK],
        Which::Etcd => vec![LATCHWORK, ETCD_CONCURRENCY],
        Which::ZooKeeper => vec![LATCHWORK, ZOOKEEPER_CLIENT, CURATOR],
        Which::Postgres => vec![LATCHWORK, ADVISORY],
    }
}

pub(crate) fn run(which: Which) -> Outcome {
    let store = which.start()?;
    let folder = latchwork_services::Folder::new()?;
    let (kinds, missing) = peers::install(kinds(which));
    let mut budget = Budget::begin()?;
    for kind in &kinds {
        let name = format!("{} on {}", kind.name, store.name());
        let mut curve = Curve::begin(name, "processes", COLUMNS);
        if !kind.is_ours() {
            curve = curve.without_goals();
        }
        for size in SIZES.iter().take(shortened(SIZES.len(), SIZES.len() - 2)) {
            if kind.name == CURATOR.name && *size > HEAVY {
                println!(
                    "\nLeft out: more than {HEAVY} processes of {}, each a machine of its own.",
                    kind.name
                );
                break;
            }
            if let Some(seconds) = budget.exceeded_by(*size) {
                curve.leave_out(*size, seconds);
                break;
            }
            let begun = Instant::now();
            if let Err(error) = measure(&*store, kind, *size, folder.path(), &mut curve) {
                curve.not_measured(*size, "all get answers", &*error);
                break;
            }
            budget.took(*size, begun);
        }
        curve.end();
        budget.another();
    }
    for (kind, reason) in missing {
        println!("{} is missing: {reason}\n", kind.name);
    }
    Ok(())
}

fn measure(
    store: &dyn Served,
    kind: &Kind,
    size: usize,
    folder: &std::path::Path,
    curve: &mut Curve,
) -> Outcome {
    store.clear()?;
    let url = store.address();
    let length = LENGTH.0.max(LENGTH.1 * size as u32);
    let contest = Contest { url: &url, folder, processes: size, tasks: 1, length };
    let (spent, open) = (RefCell::new(Vec::new()), Cell::new(f64::NAN));
    let (ports, before) = (store.ports(), connections(&store.ports()));
    // It is called when all are ready, and when all have ended.
    let commands = || {
        if spent.borrow().is_empty() && !ports.is_empty() {
            open.set((connections(&ports) - before) / size as f64);
        }
        spent.borrow_mut().push(store.cpu());
        store.commands(kind)
    };
    let (round, _workers) = contest.run(kind, commands)?;
    let length = shortened(length, length / 2).as_secs_f64();
    let holds = round.pairs * length;
    let server = match spent.borrow()[..] {
        [before, .., after] => (after - before) / holds * 1e6,
        _ => f64::NAN,
    };
    // What a contest tells of a handover, for each hold: a single process has no handovers.
    let client = round.cpu_of_all / holds;
    let both = client + if server.is_finite() { server } else { 0.0 };
    curve.point(
        size as f64,
        &[
            round.pairs,
            round.handovers,
            client,
            server,
            both,
            round.commands_of_all / holds,
            open.get(),
            round.times.quantile(0.5),
            round.times.quantile(0.99),
            round.starved.0 as f64,
            round.fair_processes,
        ],
    );
    // Fewer turns than that and somebody may have none in so short a time.
    if kind.is_ours() && holds >= 4.0 * size as f64 {
        let goal = Goal::at_most(0.0).of("processes that never held it");
        curve.promise(size as f64, "nobody starves", &goal, round.starved.0 as f64);
    }
    Ok(())
}
