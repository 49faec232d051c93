//! Free locks of several ways, taken in turns while the load goes on.

use std::process::Command;
use std::time::Duration;

use super::probe::Way;
use crate::child::Worker;
use crate::goals::{self, Goal};
use crate::stats::{head, micros, row, shortened};
use crate::times::Times;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const ROUNDS: usize = 15;
const LENGTH: Duration = Duration::from_secs(1);

/// A way that is measured.
pub(super) struct Probe {
    name: &'static str,
    worker: Worker,
    acquires: Times,
    cycles: Times,
}

impl Probe {
    pub(super) fn start(name: &'static str, way: Way, address: &str) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut worker =
            Worker::spawn(command.args(["child-serve", "probe", way.word(), address]))?;
        match worker.line()? {
            line if line == "ready" => {}
            other => return Err(format!("{name}: {other:?} instead of \"ready\"").into()),
        }
        Ok(Self { name, worker, acquires: Times::default(), cycles: Times::default() })
    }

    fn take(&mut self) -> Result<()> {
        self.worker.tell(&LENGTH.as_millis().to_string())?;
        for times in [&mut self.acquires, &mut self.cycles] {
            let (_, seen) = Times::after_numbers(&self.worker.line()?)?;
            times.merge(&seen);
        }
        Ok(())
    }

    /// The microseconds that 99 of 100 acquires do not exceed.
    fn p99(&self) -> f64 {
        self.acquires.quantile(0.99)
    }
}

/// Lets each take and release free locks, in turns.
pub(super) fn in_turns(probes: &mut [Probe]) -> Result<()> {
    for _ in 0..shortened(ROUNDS, 3) {
        for probe in &mut *probes {
            probe.take()?;
        }
    }
    Ok(())
}

/// The table; of a way with a goal the p99 of an acquire is compared with that of the library.
pub(super) fn table(probes: &[Probe], library: f64, goal: impl Fn(&str) -> Option<Goal>) {
    head(&[
        "a free lock",
        "acquire p50",
        "acquire p99",
        "p99 above the library's",
        goals::TITLE,
        "cycle p50",
        "cycle p99",
        "cycles",
    ]);
    for probe in probes {
        let above = probe.p99() - library;
        let verdicts = Vec::from_iter(goal(probe.name).map(|goal| goal.judge(above / 1e3)));
        row(&[
            probe.name.into(),
            micros(probe.acquires.quantile(0.5)),
            micros(probe.p99()),
            if above == 0.0 { "-".into() } else { format!("{:.2} ms", above / 1e3) },
            goals::cell(&verdicts),
            micros(probe.cycles.quantile(0.5)),
            micros(probe.cycles.quantile(0.99)),
            probe.cycles.0.iter().sum::<u64>().to_string(),
        ]);
    }
}

/// The p99 of the first.
pub(super) fn library(probes: &[Probe]) -> f64 {
    probes.first().map_or(f64::NAN, Probe::p99)
}
