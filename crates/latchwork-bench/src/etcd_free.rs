//! Free locks on etcd, against the bare writes of a lock and Go's package.

use latchwork_services::{EtcdOptions, EtcdServer};
use tokio::runtime::Builder;

use crate::Outcome;
use crate::contest::stands;
use crate::etcd_bare::Bare;
use crate::peers;
use crate::redis_free::{ROUNDS, Sample, cpu, latchwork_cycles, other_sample, rate, sample};
use crate::stats::{head, row, shortened};

/// How much of the bare rate Latchwork's should be.
const PART: f64 = 0.9;

pub(crate) fn run() -> Outcome {
    let server = EtcdServer::start(&EtcdOptions::new())?;
    let here = Builder::new_current_thread().enable_all().build()?;
    let there = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let bare = Bare::connect(&server, &there).map_err(|error| error.to_string())?;
    let locks = here.block_on(latchwork::connect(&server.url()))?;
    let (kinds, missing) = peers::install(vec![peers::ETCD_CONCURRENCY]);
    let mut others = Vec::new();
    for kind in &kinds {
        others.push((kind.name, kind.start("free", &server.url(), &[])?));
    }
    for tasks in [1, 64] {
        let mut other_rows: Vec<Vec<Sample>> = kinds.iter().map(|_| Vec::new()).collect();
        let (mut bare_rows, mut ours) = (vec![], vec![]);
        // What happens once is not of a cycle: sessions, and leases that are granted ahead.
        sample(&here, tasks, |n| latchwork_cycles(locks.clone(), n));
        for (_, worker) in &mut others {
            other_sample(worker, tasks)?;
        }
        for _ in 0..shortened(ROUNDS, 3) {
            bare_rows.push(sample(&here, tasks, |n| bare.clone().cycles(n)));
            ours.push(sample(&here, tasks, |n| latchwork_cycles(locks.clone(), n)));
            for ((_, worker), rows) in others.iter_mut().zip(&mut other_rows) {
                rows.push(other_sample(worker, tasks)?);
            }
        }
        println!("{tasks} task(s), each with a key of its own:\n");
        head(&[
            "what",
            "cycles a second",
            "to bare",
            "latchwork to it",
            "goal",
            "client CPU a cycle",
            "to bare",
        ]);
        let own = [
            ("bare, connection on its own thread", &bare_rows),
            ("latchwork, with fencing token", &ours),
        ];
        let others = others.iter().map(|(name, _)| *name).zip(&other_rows);
        for (name, rows) in own.into_iter().chain(others) {
            let part = rate(&ours) / rate(rows);
            let goal = match name {
                _ if name.starts_with("latchwork") => "-".into(),
                _ if name.starts_with("bare") => stands(format!(">= {PART}"), part >= PART),
                _ => stands(">= 1".into(), part >= 1.0),
            };
            row(&[
                name.into(),
                format!("{:.0}", rate(rows)),
                format!("{:.2}", rate(rows) / rate(&bare_rows)),
                format!("{part:.2}"),
                goal,
                format!("{:.2} us", cpu(rows)),
                format!("{:.2}", cpu(rows) / cpu(&bare_rows)),
            ]);
        }
        peers::missing_rows(&missing, 7);
        println!();
    }
    Ok(())
}
