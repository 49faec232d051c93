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
use crate::peers::{self, Kind};
use crate::roles::now;
use crate::stats::{head, median, row, shortened};
use crate::store::Store;

pub(crate) const PROCESSES: usize = 8;
const FAIR: f64 = 0.95;

/// What came of a contest; processor time and commands are those of one handover.
pub(crate) struct Round {
    pub(crate) handovers: f64,
    pairs: f64,
    pub(crate) fair_processes: f64,
    fair_tasks: f64,
    /// How often somebody saw another owner while it was one.
    pub(crate) overlaps: f64,
    cpu: f64,
    commands: f64,
}

/// Lets several kinds, ours first, compete in turns, with one and with 8 tasks in each process.
/// `goal` says how many times the handovers of a kind Latchwork's should be, with so many tasks.
pub(crate) fn run(
    store: &dyn Store,
    kinds: Vec<Kind>,
    (repeats, length): (usize, Duration),
    goal: impl Fn(&str, usize) -> Option<f64>,
) -> crate::Outcome {
    let folder = latchwork_services::Folder::new()?;
    let (kinds, missing) = peers::install(kinds);
    for tasks in [1, 8] {
        let mut rounds: Vec<Vec<Round>> = kinds.iter().map(|_| Vec::new()).collect();
        for _ in 0..shortened(repeats, 1) {
            for (kind, rounds) in kinds.iter().zip(&mut rounds) {
                rounds.push(round(store, kind, folder.path(), tasks, length)?);
            }
        }
        println!("{PROCESSES} processes of {tasks} task(s), one key:\n");
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
    tasks: usize,
    length: Duration,
) -> Result<Round, Box<dyn std::error::Error>> {
    store.clear()?;
    let url = store.address();
    let contest = Contest { url: &url, folder, processes: PROCESSES, tasks, length };
    Ok(contest.run(kind, || store.commands(kind))?.0)
}

/// The table of several kinds, ours first. `goal` says how many times the handovers of a kind
/// Latchwork's should be.
pub(crate) fn table(
    kinds: &[Kind],
    missing: &[(Kind, String)],
    rounds: &[Vec<Round>],
    goal: impl Fn(&str) -> Option<f64>,
) {
    head(&[
        "what",
        "handovers a second",
        "latchwork to it",
        "goal",
        "pairs a second",
        "Jain of processes",
        "Jain of tasks",
        "client CPU a handover",
        "commands a handover",
        "two owners at once",
    ]);
    let ours = middle(&rounds[0], |r| r.handovers);
    for (kind, rounds) in kinds.iter().zip(rounds) {
        let handovers = middle(rounds, |r| r.handovers);
        let fair = middle(rounds, |r| r.fair_tasks);
        let verdict = match goal(kind.name) {
            Some(goal) => stands(format!(">= {goal}"), ours / handovers >= goal),
            None if kind.is_ours() => stands(format!("Jain > {FAIR}"), fair > FAIR),
            None => "-".into(),
        };
        row(&[
            kind.name.into(),
            format!("{handovers:.1}"),
            format!("{:.2}", ours / handovers),
            verdict,
            format!("{:.0}", middle(rounds, |r| r.pairs)),
            format!("{:.3}", middle(rounds, |r| r.fair_processes)),
            format!("{fair:.3}"),
            format!("{:.1} us", middle(rounds, |r| r.cpu)),
            format!("{:.2}", middle(rounds, |r| r.commands)),
            format!("{:.0}", rounds.iter().map(|r| r.overlaps).sum::<f64>()),
        ]);
    }
    peers::missing_rows(missing, 10);
    println!();
}

/// Remembers the medians for the picture.
pub(crate) fn note(store: &dyn Store, kinds: &[Kind], rounds: &[Vec<Round>]) {
    for (kind, rounds) in kinds.iter().zip(rounds) {
        CONTENDED.note(store.name(), kind.name, middle(rounds, |round| round.handovers));
    }
}

/// The median of one number of each round.
pub(crate) fn middle(rounds: &[Round], what: fn(&Round) -> f64) -> f64 {
    median(&mut rounds.iter().map(what).collect::<Vec<_>>())
}

/// A goal, and whether it is reached.
pub(crate) fn stands(goal: String, reached: bool) -> String {
    format!("{goal}: {}", if reached { "holds" } else { "MISSED" })
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
            workers.push(kind.start("contend", self.url, &args)?);
        }
        let before = commands()?;
        let length = shortened(self.length, self.length / 2);
        let until = now() + length.as_nanos() as u64;
        for worker in &mut workers {
            worker.tell(&until.to_string())?;
        }
        let (mut handovers, mut overlaps, mut cpu) = (0.0, 0.0, 0.0);
        let (mut by_process, mut by_task) = (Vec::new(), Vec::new());
        for worker in &mut workers {
            let text = worker.line()?;
            let numbers: Vec<f64> =
                text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
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
            overlaps,
            cpu: cpu / handovers,
            commands: commands / handovers,
        };
        Ok((round, workers))
    }
}
