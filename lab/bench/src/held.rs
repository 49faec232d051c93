//! Many locks that one process holds and renews.

use std::time::Duration;

use crate::goals::{self, Goal, Verdict};
use crate::peers::{self, Kind};
use crate::roles::{Outcome, now};
use crate::stats::{head, row};
use crate::store::Store;
use crate::worker::resident;

/// How many locks are held when the memory is looked at.
const COUNTS: [usize; 2] = [1_000, 10_000];
/// The most memory of a lock, in kilobytes.
const KILOBYTES: f64 = 2.0;

pub(crate) struct Measured {
    /// A second.
    pub(crate) commands: f64,
    /// In percent of a core.
    pub(crate) cpu: f64,
    pub(crate) held: f64,
    /// Resident memory of a lock in kilobytes.
    memory: [f64; 2],
}

/// What is measured of each kind.
pub(crate) struct Case {
    pub(crate) kind: Kind,
    /// The first cell of its row.
    pub(crate) name: &'static str,
    pub(crate) ttl: Duration,
    /// After which part of the ttl it renews, and how many such parts are watched.
    pub(crate) every: f64,
    pub(crate) rounds: f64,
    /// While so many are held.
    pub(crate) locks: usize,
}

impl Case {
    pub(crate) fn measure(&self, store: &dyn Store) -> Outcome<Measured> {
        let mut worker = self.kind.start(&store.address(), self.ttl.as_millis())?;
        let (mut before, mut memory) = (0.0, [0.0; 2]);
        let (mut commands, mut cpu) = (f64::NAN, f64::NAN);
        for count in [1, COUNTS[0], COUNTS[1]] {
            worker.tell(&format!("take {count}"))?;
            worker.expect("taken")?;
            let resident = resident(worker.pid())?;
            match COUNTS.iter().position(|it| *it == count) {
                // What comes with the first lock is not of each.
                None => before = resident,
                Some(n) => memory[n] = (resident - before) / (count - 1) as f64,
            }
            if count == self.locks {
                let (start, sent) = (now(), store.commands(&self.kind)?);
                let spent = worker.ask("cpu")?;
                std::thread::sleep(self.watched());
                let took = (now() - start) as f64 / 1e9;
                commands = (store.commands(&self.kind)? - sent) / took;
                cpu = (worker.ask("cpu")? - spent) / 1e6 / took * 100.0;
            }
        }
        Ok(Measured { commands, cpu, held: worker.ask("held")?, memory })
    }

    fn watched(&self) -> Duration {
        self.ttl.mul_f64(self.every * self.rounds)
    }
}

/// Several kinds, ours first, each on a store of its own. `goals` says what is asked of it, with the part of its
/// processor time that Latchwork's is.
pub(crate) fn run(
    setting: &str,
    cases: &[Case],
    start: impl Fn(&Case) -> Outcome<Box<dyn Store>>,
    goals: impl Fn(&Case, &Measured, f64) -> Vec<Verdict>,
) -> Outcome {
    if !setting.is_empty() {
        println!("{setting}:\n");
    }
    let columns = head(
        "what | renews a lock every | watched for | requests a second | client CPU | latchwork's CPU to it | goal | memory a lock, 1,000 held | memory a lock, 10,000 held | still held",
    );
    let mut ours = f64::NAN;
    for case in cases {
        if let Err(reason) = case.kind.install() {
            peers::missing_rows(&vec![(case.kind, reason)], columns);
            continue;
        }
        let seen = case.measure(&*start(case)?)?;
        let mut verdicts = Vec::new();
        if case.kind.is_ours() {
            ours = seen.cpu;
        }
        verdicts.extend(goals(case, &seen, ours / seen.cpu));
        let goal = |count: &str| Goal::below(KILOBYTES).of(format!("memory, {count}")).unit("kB");
        if case.kind.is_ours() {
            verdicts.push(goal("1,000").judge(seen.memory[0]));
            verdicts.push(goal("10,000").judge(seen.memory[1]));
        }
        row(&[
            case.name.into(),
            format!("{:.1} s", case.ttl.mul_f64(case.every).as_secs_f64()),
            format!("{:.1} s", case.watched().as_secs_f64()),
            format!("{:.1}", seen.commands),
            format!("{:.3} % of one core", seen.cpu),
            format!("{:.2}", ours / seen.cpu),
            goals::cell(&verdicts),
            format!("{:.2} kB", seen.memory[0]),
            format!("{:.2} kB", seen.memory[1]),
            format!("{:.0} of 10000", seen.held),
        ]);
    }
    Ok(())
}
