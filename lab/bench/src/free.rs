//! Free locks: cycles of acquire and release on keys that nobody else wants, of several kinds in turns.

use std::time::Duration;

use crate::bars::FREE;
use crate::goals::{self, Verdict};
use crate::peers::{self, Kind};
use crate::roles::{Outcome, now};
use crate::stats::{Best, head, median, micros, range, row, shortened};
use crate::store::Store;
use crate::times::Times;
use crate::worker::Worker;

const ROUNDS: usize = 15;
pub(crate) const LENGTH: Duration = Duration::from_millis(300);

/// A process with locks on a store.
pub(crate) struct Runner<'a> {
    pub(crate) kind: Kind,
    store: &'a dyn Store,
    worker: Worker,
    samples: Samples,
}

/// What it did in each round.
#[derive(Default)]
pub(crate) struct Samples {
    /// Cycles a second; microseconds of processor time, and commands that the store got, a cycle.
    rates: Vec<f64>,
    cpu: Vec<f64>,
    commands: Vec<f64>,
    pub(crate) acquires: Times,
    pub(crate) cycles: Times,
}

impl Samples {
    pub(crate) fn rate(&self) -> f64 {
        median(&mut self.rates.clone())
    }

    pub(crate) fn merge(&mut self, other: Self) {
        self.rates.extend(other.rates);
        self.cpu.extend(other.cpu);
        self.commands.extend(other.commands);
        self.acquires.merge(&other.acquires);
        self.cycles.merge(&other.cycles);
    }

    pub(crate) fn cpu(&self) -> f64 {
        median(&mut self.cpu.clone())
    }

    pub(crate) fn commands(&self) -> f64 {
        median(&mut self.commands.clone())
    }
}

impl<'a> Runner<'a> {
    pub(crate) fn start(kind: &Kind, store: &'a dyn Store) -> Outcome<Self> {
        let worker = kind.start(&store.address(), 0)?;
        Ok(Self { kind: *kind, store, worker, samples: Samples::default() })
    }

    /// Lets it run so many tasks for a while; how many cycles they made.
    pub(crate) fn take(&mut self, tasks: usize, length: Duration) -> Outcome<f64> {
        let before = self.store.commands(&self.kind)?;
        self.worker.tell(&format!("cycle {tasks} {}", now() + length.as_nanos() as u64))?;
        let line = self.worker.line()?;
        let commands = self.store.commands(&self.kind)? - before;
        let (numbers, times) = Times::after_numbers(&line)?;
        let ([_, _, seconds, cpu, pairs @ ..], [acquires, cycles]) = (&numbers[..], &times[..])
        else {
            return Err(format!("{}: a process said {line:?}", self.kind.name).into());
        };
        let done: f64 = pairs.iter().sum();
        let (acquires, cycles) = (acquires.clone(), cycles.clone());
        let [rates, cpu, commands] =
            [done / seconds, cpu / done, commands / done].map(|it| vec![it]);
        self.samples.merge(Samples { rates, cpu, commands, acquires, cycles });
        Ok(done)
    }

    /// What it did since this was asked last.
    pub(crate) fn taken(&mut self) -> Samples {
        std::mem::take(&mut self.samples)
    }
}

/// The samples of all, taken in turns, each so long.
pub(crate) fn in_turns(
    runners: &mut [Runner<'_>],
    tasks: usize,
    length: Duration,
) -> Outcome<Vec<Samples>> {
    // What happens once is not of a cycle: sessions, and leases that are granted ahead.
    for runner in &mut *runners {
        runner.take(tasks, length)?;
        runner.taken();
    }
    for _ in 0..shortened(ROUNDS, 3) {
        for runner in &mut *runners {
            runner.take(tasks, length)?;
        }
    }
    Ok(runners.iter_mut().map(Runner::taken).collect())
}

/// What kinds did beside one another.
pub(crate) struct Table {
    pub(crate) kinds: Vec<Kind>,
    samples: Vec<Samples>,
}

impl Table {
    pub(crate) fn of(&self, name: &str) -> Option<&Samples> {
        let at = self.kinds.iter().position(|kind| kind.name == name)?;
        Some(&self.samples[at])
    }

    fn ours(&self) -> &Samples {
        let at = self.kinds.iter().position(Kind::is_ours);
        &self.samples[at.unwrap_or_default()]
    }

    /// How many times the rate of another row that of Latchwork is.
    pub(crate) fn part(&self, kind: &Kind) -> f64 {
        self.of(kind.name).map_or(f64::NAN, |it| self.ours().rate() / it.rate())
    }

    /// The same of the processor time of a cycle.
    pub(crate) fn cpu_part(&self, kind: &Kind) -> f64 {
        self.of(kind.name).map_or(f64::NAN, |it| self.ours().cpu() / it.cpu())
    }

    /// Remembers the rates for the picture.
    pub(crate) fn note(&self, store: &dyn Store) {
        for (kind, samples) in self.kinds.iter().zip(&self.samples) {
            FREE.note(store.name(), kind.name, samples.rate());
        }
    }
}

/// Measures kinds with each of these numbers of tasks, and prints a table of each.
pub(crate) fn run(
    store: &dyn Store,
    kinds: &[Kind],
    tasks: &[usize],
    setting: impl Fn(usize) -> String,
    goals: impl Fn(&Kind, usize, &Table) -> Vec<Verdict>,
) -> Outcome<Vec<Table>> {
    let (kinds, missing) = peers::install(kinds);
    let mut tables = Vec::new();
    let mut runners: Vec<Runner<'_>> =
        kinds.iter().map(|kind| Runner::start(kind, store)).collect::<Outcome<_>>()?;
    for &tasks in tasks {
        let samples = in_turns(&mut runners, tasks, LENGTH)?;
        let table = Table { kinds: kinds.clone(), samples };
        println!("{}:\n", setting(tasks));
        let columns = head(
            "what | cycles a second | latchwork to it | goal | cycle p50 | cycle p99 | client CPU a cycle | commands a cycle",
        );
        for (kind, samples) in kinds.iter().zip(&table.samples) {
            // Samples of one turn lie beside each other in time.
            let turns = table.ours().rates.iter().zip(&samples.rates);
            row(&[
                kind.name.into(),
                format!("{:.0} ({})", samples.rate(), range(samples.rates.iter().copied(), 0)),
                format!("{:.2} ({})", table.part(kind), range(turns.map(|(a, b)| a / b), 2)),
                goals::cell(&goals(kind, tasks, &table)),
                micros(samples.cycles.quantile(0.5)),
                micros(samples.cycles.quantile(0.99)),
                format!("{:.2} us", samples.cpu()),
                format!("{:.2}", samples.commands()),
            ]);
        }
        peers::missing_rows(&missing, columns);
        let rates = kinds.iter().zip(&table.samples).map(|(kind, it)| (kind, it.rate()));
        println!("\n{}\n", peers::beside(table.ours().rate(), rates, Best::Most));
        tables.push(table);
    }
    Ok(tables)
}
