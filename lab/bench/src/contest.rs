//! Many processes that want one key.
//!
//! What counts are changes of owner: a client that polls mostly gets back what it has just given up. Every owner reads
//! who was there before it and writes its own name into a file, so a handover is seen by whom it happens to, and two
//! owners at once would be seen too.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use latchwork_services::Folder;

use crate::bars::CONTENDED;
use crate::goals::{self, Goal};
use crate::peers::{self, Kind, PUSH_AND_POP};
use crate::roles::{Outcome, now};
use crate::stats::{Best, head, median, micros, row, shortened, turns};
use crate::store::Store;
use crate::times::Times;
use crate::worker::Worker;

pub(crate) const PROCESSES: usize = 8;
/// Who is in a contest: so many processes, each with so many tasks.
pub(crate) type Crowd = (usize, usize);
/// Between processes.
pub(crate) const APART: &[Crowd] = &[(PROCESSES, 1), (PROCESSES, 8)];
/// Inside one process.
pub(crate) const LOCAL: &[Crowd] = &[(1, 16)];
const FAIR: f64 = 0.95;

/// What came of a contest.
pub(crate) struct Round {
    /// A second.
    pub(crate) handovers: f64,
    pub(crate) pairs: f64,
    pub(crate) fair_processes: f64,
    fair_tasks: f64,
    /// Tasks that never had the key, and all tasks.
    pub(crate) starved: (usize, usize),
    /// How often somebody saw another owner while it was one.
    pub(crate) overlaps: f64,
    /// Processor time and commands of all, and how many handovers they were for.
    pub(crate) cpu: f64,
    pub(crate) commands: f64,
    changes: f64,
    /// How long the tasks waited for it.
    pub(crate) times: Times,
}

/// Lets several kinds, ours first, compete in turns, in crowds of these sizes. `goal` says how many times the
/// handovers of a kind Latchwork's should be, where each process has so many tasks.
pub(crate) fn run(
    store: &dyn Store,
    kinds: &[Kind],
    crowds: &[Crowd],
    (repeats, length): (usize, Duration),
    setting: &str,
    goal: impl Fn(&Kind, usize) -> Option<Goal>,
) -> Outcome {
    let (kinds, missing) = peers::install(kinds);
    for &(processes, tasks) in crowds {
        // That one blocks its thread.
        let is_able = |kind: &&Kind| tasks == 1 || kind.name != PUSH_AND_POP.name;
        let kinds: Vec<Kind> = kinds.iter().filter(is_able).copied().collect();
        let mut rounds: Vec<Vec<Round>> = kinds.iter().map(|_| Vec::new()).collect();
        for number in 0..shortened(repeats, 1) {
            for n in turns(number, kinds.len()) {
                rounds[n].push(round(store, &kinds[n], (processes, tasks), length)?);
            }
        }
        let processes = match processes {
            1 => "one process".into(),
            some => format!("{some} processes"),
        };
        let tasks_each = if tasks == 1 { "one task".into() } else { format!("{tasks} tasks") };
        println!("{processes} of {tasks_each}, one key{setting}:\n");
        table(&kinds, &rounds, |kind| goal(kind, tasks), &missing);
        for (kind, rounds) in kinds.iter().zip(&rounds).filter(|_| tasks == 1) {
            CONTENDED.note(store.name(), kind.name, middle(rounds, |round| round.handovers));
        }
    }
    Ok(())
}

fn table(
    kinds: &[Kind],
    rounds: &[Vec<Round>],
    goal: impl Fn(&Kind) -> Option<Goal>,
    missing: &peers::Missing,
) {
    let columns = head(
        "what | handovers a second | latchwork to it | goal | pairs a second | acquire p50 | acquire p99 | starved | Jain of processes | Jain of tasks | client CPU a handover | commands a handover | two owners at once",
    );
    let commands = |rounds: &[Round]| middle(rounds, |r| r.commands / r.changes);
    let ours = middle(&rounds[0], |r| r.handovers);
    let others = kinds.iter().zip(rounds).filter(|(kind, _)| kind.is_peer());
    let fewest = others.map(|(_, rounds)| commands(rounds)).fold(f64::INFINITY, f64::min);
    for (n, (kind, rounds)) in kinds.iter().zip(rounds).enumerate() {
        let handovers = middle(rounds, |r| r.handovers);
        let (fair, commands) = (middle(rounds, |r| r.fair_tasks), commands(rounds));
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
        let times = Times::merged(rounds.iter().map(|round| &round.times));
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
            format!("{:.1} us", middle(rounds, |r| r.cpu / r.changes)),
            format!("{commands:.2}"),
            format!("{:.0}", rounds.iter().map(|r| r.overlaps).sum::<f64>()),
        ]);
    }
    peers::missing_rows(missing, columns);
    let rates = kinds.iter().zip(rounds).map(|(kind, it)| (kind, middle(it, |r| r.handovers)));
    println!("\n{}\n", peers::beside(ours, rates, Best::Most));
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

/// One round of one kind on a store that has nothing left of the one before.
pub(crate) fn round(
    store: &dyn Store,
    kind: &Kind,
    crowd: Crowd,
    length: Duration,
) -> Outcome<Round> {
    Ok(contest(store, kind, crowd, length, || store.commands(kind))?.0)
}

/// The same, with the processes, which may have more to say. `commands` is called when all are ready, and when all
/// have ended.
pub(crate) fn contest(
    store: &dyn Store,
    kind: &Kind,
    (processes, tasks): Crowd,
    length: Duration,
    commands: impl Fn() -> Outcome<f64>,
) -> Outcome<(Round, Vec<Worker>)> {
    store.clear()?;
    let folder = Folder::new()?;
    let scene = folder.path().join("scene");
    File::create(&scene)?.write_all_at(&[0; 16], 0)?;
    let mut workers = kind.start_all(&store.address(), 0, processes)?;
    let before = commands()?;
    let length = shortened(length, length / 2);
    let until = now() + length.as_nanos() as u64;
    for (number, worker) in workers.iter_mut().enumerate() {
        worker.tell(&format!("cycle {tasks} {until} {} {number}", scene.display()))?;
    }
    let (mut changes, mut overlaps, mut cpu) = (0.0, 0.0, 0.0);
    let (mut by_process, mut by_task) = (Vec::new(), Vec::new());
    let mut times = Times::default();
    for worker in &mut workers {
        let line = worker.line()?;
        let (numbers, waited) = Times::after_numbers(&line)?;
        let ([handovers, both, _, time, pairs @ ..], [waited, _]) = (&numbers[..], &waited[..])
        else {
            return Err(format!("{}: a process said {line:?}", kind.name).into());
        };
        (changes, overlaps, cpu) = (changes + handovers, overlaps + both, cpu + time);
        times.merge(waited);
        by_process.push(pairs.iter().sum());
        by_task.extend_from_slice(pairs);
    }
    // The rows of the others show what they do.
    if overlaps > 0.0 && kind.is_ours() {
        return Err(format!("{}: two owners at once, {overlaps} times", kind.name).into());
    }
    let round = Round {
        handovers: changes / length.as_secs_f64(),
        pairs: by_process.iter().sum::<f64>() / length.as_secs_f64(),
        fair_processes: jain(&by_process),
        fair_tasks: jain(&by_task),
        starved: (by_task.iter().filter(|pairs| **pairs == 0.0).count(), by_task.len()),
        overlaps,
        cpu,
        commands: commands()? - before,
        changes,
        times,
    };
    Ok((round, workers))
}
