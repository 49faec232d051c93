//! Processes that want one key over five servers, and what their votes come to.

use std::time::Duration;

use crate::Outcome;
use crate::contest::{self, Contest, PROCESSES, Round};
use crate::goals::{self, Goal};
use crate::peers::{self, Kind};
use crate::redlock_servers::Five;
use crate::stats::{head, median, row, shortened, turns};

const ROUNDS: usize = 5;
const LENGTH: Duration = Duration::from_secs(3);
/// The most split votes before a grant, in the median.
const WASTED: f64 = 1.0;

pub(crate) fn run() -> Outcome {
    let five = Five::start()?;
    let folder = latchwork_services::Folder::new()?;
    let (kinds, missing) = peers::install(vec![
        peers::LATCHWORK,
        peers::LATCHWORK_HANDOVER,
        peers::RSLOCK,
        peers::REDLOCK_MUTEX,
        peers::NODE_REDLOCK,
    ]);
    let contest = Contest {
        url: &five.url,
        folder: folder.path(),
        processes: PROCESSES,
        tasks: 1,
        length: LENGTH,
    };
    let mut rounds: Vec<Vec<Round>> = kinds.iter().map(|_| Vec::new()).collect();
    for round in 0..shortened(ROUNDS, 1) {
        for n in turns(round, kinds.len()) {
            five.clear()?;
            rounds[n].push(contest.run(&kinds[n], || five.commands_each(&kinds[n]))?.0);
        }
    }
    println!(
        "{PROCESSES} processes of one task, one key, five servers; commands are those of each:\n"
    );
    let kinds: Vec<&Kind> = kinds.iter().collect();
    contest::table(&kinds, &missing, &rounds, Kind::contended_goal);
    contest::note(&five, &kinds, &rounds);
    Ok(())
}

/// How the votes of a contest ended.
#[derive(Default)]
struct Votes {
    held: f64,
    /// How many grants had no split vote before them, one, two...
    grants: Vec<f64>,
}

impl Votes {
    fn add(&mut self, line: &str) -> Outcome {
        let numbers: Vec<f64> =
            line.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        let [held, grants @ ..] = &numbers[..] else {
            return Err(format!("a process said {line:?}").into());
        };
        self.held += held;
        self.grants.resize(self.grants.len().max(grants.len()), 0.0);
        self.grants.iter_mut().zip(grants).for_each(|(sum, more)| *sum += more);
        Ok(())
    }

    fn granted(&self) -> f64 {
        self.grants.iter().sum()
    }

    fn split(&self) -> f64 {
        self.grants.iter().enumerate().map(|(splits, grants)| splits as f64 * grants).sum()
    }

    /// The number of split votes that `part` of the grants do not exceed.
    fn quantile(&self, part: f64) -> usize {
        let wanted = self.granted() * part;
        let mut seen = 0.0;
        let enough = |grants: &f64| {
            seen += grants;
            seen >= wanted
        };
        self.grants.iter().position(enough).unwrap_or_default()
    }
}

pub(crate) fn splits() -> Outcome {
    let five = Five::start()?;
    let folder = latchwork_services::Folder::new()?;
    println!(
        "Counted in the clients, by their observers: a vote is a try at the five servers, at one of \
         them first if others are expected; it is split if nobody has a majority.\n"
    );
    head(&[
        "processes",
        "split votes before a grant: median",
        goals::TITLE,
        "90 %",
        "99 %",
        "mean",
        "votes that found a holder, a grant",
        "of all votes split",
        "handovers a second",
        "Jain",
    ]);
    for processes in [2, 8, 32] {
        let contest =
            Contest { url: &five.url, folder: folder.path(), processes, tasks: 1, length: LENGTH };
        let mut votes = Votes::default();
        let mut rounds = Vec::new();
        for _ in 0..shortened(ROUNDS, 1) {
            five.clear()?;
            let kind: &Kind = &peers::LATCHWORK_VOTES;
            let (round, mut workers) = contest.run(kind, || five.commands_each(kind))?;
            rounds.push(round);
            for worker in &mut workers {
                votes.add(&worker.line()?)?;
            }
        }
        let (granted, split, mid) = (votes.granted(), votes.split(), votes.quantile(0.5));
        row(&[
            processes.to_string(),
            mid.to_string(),
            Goal::at_most(WASTED).judge(mid as f64).to_string(),
            votes.quantile(0.9).to_string(),
            votes.quantile(0.99).to_string(),
            format!("{:.2}", split / granted),
            format!("{:.2}", votes.held / granted),
            format!("{:.0} %", 100.0 * split / (granted + split + votes.held)),
            format!("{:.0}", median(&mut rounds.iter().map(|r| r.handovers).collect::<Vec<_>>())),
            format!(
                "{:.3}",
                median(&mut rounds.iter().map(|r| r.fair_processes).collect::<Vec<_>>())
            ),
        ]);
    }
    Ok(())
}
