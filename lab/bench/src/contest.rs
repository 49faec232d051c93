//! Many processes that want one key.
//!
//! What counts are changes of owner: a client that polls mostly gets back what it has just given
//! up. Every owner reads who was there before it and writes its own name into a file, so a
//! handover is seen by whom it happens to, and two owners at once would be seen too.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use crate::bars::CONTENDED;
use crate::child::Worker;
use crate::goals::{self, Goal};
use crate::peers::{self, Kind};
use crate::roles::now;
use crate::stats::{Best, beside, head, median, micros, row, shortened, turns};
use crate::store::Store;
use crate::times::Times;

pub(crate) const PROCESSES: usize = 8;
/// Who is in a contest: so many processes, each with so many tasks.
pub(crate) type Crowd = (usize, usize);
/// Between processes.
pub(crate) const APART: &[Crowd] = &[(PROCESSES, 1), (PROCESSES, 8)];
/// Inside one process.
pub(crate) const LOCAL: &[Crowd] = &[(1, 16)];
const FAIR: f64 = 0.95;

/// What came of a contest; processor time and commands are those of one handover.
pub(crate) struct Round {
    pub(crate) handovers: f64,
    pub(crate) pairs: f64,
    pub(crate) fair_processes: f64,
    fair_tasks: f64,
    /// Tasks that never had the key, and all tasks.
    pub(crate) starved: (usize, usize),
    /// How often somebody saw another owner while it was one.
    pub(crate) overlaps: f64,
    cpu: f64,
    commands: f64,
    /// Those of all, where nobody hands over.
    pub(crate) cpu_of_all: f64,
    pub(crate) commands_of_all: f64,
    /// How long the tasks waited for it.
    pub(crate) times: Times,
}

/// Lets several kinds, ours first, compete in turns, in crowds of these sizes. `goal` says how many
/// times the handovers of a kind Latchwork's should be, where each process has so many tasks.
pub(crate) fn run(
    store: &dyn Store,
    kinds: Vec<Kind>,
    crowds: &[Crowd],
    (repeats, length): (usize, Duration),
    goal: impl Fn(&Kind, usize) -> Option<Goal>,
) -> crate::Outcome {
    let folder = latchwork_services::Folder::new()?;
    let (kinds, missing) = peers::install(kinds);
    for &(processes, tasks) in crowds {
        let able = |kind: &&Kind| tasks == 1 || !kind.only_one_task();
        let kinds: Vec<&Kind> = kinds.iter().filter(able).collect();
        let mut rounds: Vec<Vec<Round>> = kinds.iter().map(|_| Vec::new()).collect();
        for number in 0..shortened(repeats, 1) {
            for n in turns(number, kinds.len()) {
                let crowd = (processes, tasks);
                rounds[n].push(round(store, kinds[n], folder.path(), crowd, length)?);
            }
        }
        let processes =
            if processes == 1 { "one process".into() } else { format!("{processes} processes") };
        let tasks_each = if tasks == 1 { "one task".into() } else { format!("{tasks} tasks") };
        println!("{processes} of {tasks_each}, one key:\n");
        table(&kinds, &missing, &rounds, |kind| goal(kind, tasks));
        if tasks == 1 {
            note(store, &kinds, &rounds);
        }
    }
    Ok(())
}

/// One round of one kind on a store that has nothing left of the one before.
pub(crate) fn round(
    store: &dyn Store,
    kind: &Kind,
    folder: &Path,
    (processes, tasks): Crowd,
    length: Duration,
) -> Result<Round, Box<dyn std::error::Error>> {
    store.clear()?;
    let url = store.address();
    let contest = Contest { url: &url, folder, processes, tasks, length };
    Ok(contest.run(kind, || store.commands(kind))?.0)
}

/// The table of several kinds, ours first. `goal` says how many times the handovers of a kind
/// Latchwork's should be.
pub(crate) fn table(
    kinds: &[&Kind],
    missing: &[(Kind, String)],
    rounds: &[Vec<Round>],
    goal: impl Fn(&Kind) -> Option<Goal>,
) {
    let titles = [
        "what",
        "handovers a second",
        "latchwork to it",
        goals::TITLE,
        "pairs a second",
        "acquire p50",
        "acquire p99",
        "starved",
        "Jain of processes",
        "Jain of tasks",
        "client CPU a handover",
        "commands a handover",
        "two owners at once",
    ];
    head(&titles);
    let ours = middle(&rounds[0], |r| r.handovers);
    let others = kinds.iter().zip(rounds).filter(|(kind, _)| kind.is_peer());
    let fewest = others.map(|(_, rounds)| middle(rounds, |r| r.commands));
    let fewest = fewest.fold(f64::INFINITY, f64::min);
    for (n, (kind, rounds)) in kinds.iter().zip(rounds).enumerate() {
        let handovers = middle(rounds, |r| r.handovers);
        let (fair, commands) = (middle(rounds, |r| r.fair_tasks), middle(rounds, |r| r.commands));
        let mut verdicts = Vec::new();
        if kind.is_ours() {
            verdicts.push(Goal::above(FAIR).of("Jain").judge(fair));
        }
        if n == 0 && fewest.is_finite() {
            // Renewals and the first use of a key are counted in, and their share is another each time.
            let fewest = (fewest * 101.0).round() / 100.0;
            verdicts.push(Goal::at_most(fewest).of("commands a handover").judge(commands));
        }
        // Nobody is compared with a lock that never changed hands.
        let goal = goal(kind).filter(|_| handovers > 0.0);
        verdicts.extend(goal.map(|goal| goal.judge(ours / handovers)));
        let mut times = Times::default();
        rounds.iter().for_each(|round| times.merge(&round.times));
        let starved: usize = rounds.iter().map(|r| r.starved.0).sum();
        let tasks: usize = rounds.iter().map(|r| r.starved.1).sum();
        row(&[
            kind.name.into(),
            format!("{handovers:.1}"),
            format!("{:.2}", ours / handovers),
            goals::cell(&verdicts),
            format!("{:.0}", middle(rounds, |r| r.pairs)),
            micros(times.quantile(0.5)),
            micros(times.quantile(0.99)),
            format!("{starved} of {tasks}"),
            format!("{:.3}", middle(rounds, |r| r.fair_processes)),
            format!("{fair:.3}"),
            format!("{:.1} us", middle(rounds, |r| r.cpu)),
            format!("{commands:.2}"),
            format!("{:.0}", rounds.iter().map(|r| r.overlaps).sum::<f64>()),
        ]);
    }
    peers::missing_rows(missing, titles.len());
    let seen = |wanted: fn(&Kind) -> bool| -> Vec<(&str, f64)> {
        let some = kinds.iter().zip(rounds).filter(|(kind, _)| wanted(kind));
        some.map(|(kind, rounds)| (kind.name, middle(rounds, |r| r.handovers))).collect()
    };
    println!("\n{}\n", beside(ours, &seen(Kind::is_peer), &seen(Kind::is_rod), Best::Most));
}

/// Remembers the medians for the picture.
pub(crate) fn note(store: &dyn Store, kinds: &[&Kind], rounds: &[Vec<Round>]) {
    for (kind, rounds) in kinds.iter().zip(rounds) {
        CONTENDED.note(store.name(), kind.name, middle(rounds, |round| round.handovers));
    }
}

/// The median of one number of each round.
pub(crate) fn middle(rounds: &[Round], what: fn(&Round) -> f64) -> f64 {
    median(&mut rounds.iter().map(what).collect::<Vec<_>>())
}

/// 1 if all have the same, 1/n if one has all.
fn jain(shares: &[f64]) -> f64 {
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    shares.iter().sum::<f64>().powi(2) / (shares.len() as f64 * squares)
}

/// Processes that want one key.
pub(crate) struct Contest<'a> {
    pub(crate) url: &'a str,
    pub(crate) folder: &'a Path,
    pub(crate) processes: usize,
    pub(crate) tasks: usize,
    pub(crate) length: Duration,
}

impl Contest<'_> {
    /// Lets them compete. `commands` tells how many the servers have got so far; the processes may
    /// have more to say.
    pub(crate) fn run(
        &self,
        kind: &Kind,
        commands: impl Fn() -> Result<f64, Box<dyn std::error::Error>>,
    ) -> Result<(Round, Vec<Worker>), Box<dyn std::error::Error>> {
        let scene = self.folder.join("scene");
        File::create(&scene)?.write_all_at(&[0; 16], 0)?;
        let scene = scene.to_str().ok_or("a path of ASCII")?;
        let mut workers = Vec::new();
        for n in 0..self.processes {
            let args = [scene, &self.tasks.to_string(), &n.to_string()];
            workers.push(kind.spawn("contend", self.url, &args)?);
        }
        let mut workers =
            workers.into_iter().map(|worker| kind.ready(worker)).collect::<Result<Vec<_>, _>>()?;
        let before = commands()?;
        let length = shortened(self.length, self.length / 2);
        let until = now() + length.as_nanos() as u64;
        for worker in &mut workers {
            worker.tell(&until.to_string())?;
        }
        let (mut handovers, mut overlaps, mut cpu) = (0.0, 0.0, 0.0);
        let (mut by_process, mut by_task) = (Vec::new(), Vec::new());
        let mut times = Times::default();
        for worker in &mut workers {
            let text = worker.line()?;
            let (numbers, waited) = Times::after_numbers(&text)?;
            times.merge(&waited);
            let [changes, both, time, pairs @ ..] = &numbers[..] else {
                return Err(format!("{}: a process said {text:?}", kind.name).into());
            };
            (handovers, overlaps, cpu) = (handovers + changes, overlaps + both, cpu + time);
            by_process.push(pairs.iter().sum());
            by_task.extend_from_slice(pairs);
        }
        // What others do is told in their rows.
        if overlaps > 0.0 && kind.is_ours() {
            return Err(format!("{}: two owners at once, {overlaps} times", kind.name).into());
        }
        let commands = commands()? - before;
        let round = Round {
            handovers: handovers / length.as_secs_f64(),
            pairs: by_process.iter().sum::<f64>() / length.as_secs_f64(),
            fair_processes: jain(&by_process),
            fair_tasks: jain(&by_task),
            starved: (by_task.iter().filter(|pairs| **pairs == 0.0).count(), by_task.len()),
            overlaps,
            cpu: cpu / handovers,
            commands: commands / handovers,
            cpu_of_all: cpu,
            commands_of_all: commands,
            times,
        };
        Ok((round, workers))
    }
}
