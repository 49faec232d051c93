//! Leaders on Kubernetes, beside the electors that controllers use.

mod elector;
mod pair;

use std::thread;
use std::time::Duration;

use latchwork_services::KubernetesServer;
use rustix::process::Signal;

use crate::goals::{self, Goal};
use crate::installing;
use crate::roles::Outcome;
use crate::stats::{
    Best, beside, head, median, micros, missing_row, number, row, shortened, turns,
};

use pair::{Overlap, Pair};

pub(crate) use elector::run as child;

/// The first argument of a process of Latchwork's elector.
pub(crate) const CHILD: &str = "child-elect";

/// A candidate is settled by then: what it asks for at its start is not what it costs.
const SETTLED: Duration = Duration::from_secs(15);
/// How soon a leader that ends in order is followed, in milliseconds.
const FOLLOWED: f64 = 100.0;
const KILLS: usize = 3;
const ENDS: usize = 5;
const STOPS: usize = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Latchwork,
    ClientGo,
    Coordinate,
    LeaderElection,
}

impl Kind {
    const ALL: [Self; 4] =
        [Self::Latchwork, Self::ClientGo, Self::Coordinate, Self::LeaderElection];

    fn name(self) -> &'static str {
        match self {
            Self::Latchwork => "latchwork",
            Self::ClientGo => "client-go",
            Self::Coordinate => "kube-coordinate",
            Self::LeaderElection => "kube-leader-election",
        }
    }

    fn install(self) -> Result<(), String> {
        match self {
            Self::Latchwork => Ok(()),
            Self::ClientGo => {
                latchwork_services::provided("elector").map(drop).map_err(|error| error.to_string())
            }
            Self::Coordinate | Self::LeaderElection => {
                installing::cargo("kubernetes-peers").map(drop)
            }
        }
    }
}

/// What was measured of one kind.
#[derive(Default)]
struct Seen {
    /// Requests a minute.
    leading: f64,
    waiting: f64,
    /// In milliseconds.
    killed: Vec<f64>,
    ended: Vec<f64>,
    stopped: Vec<Overlap>,
}

pub(crate) fn run() -> Outcome {
    let folder = tempfile::tempdir()?;
    let server = KubernetesServer::start_audited()?;
    let (mut pairs, mut missing) = (Vec::new(), Vec::new());
    for kind in Kind::ALL {
        match kind.install() {
            Ok(()) => {
                let pair = Pair::start(kind, &server, folder.path())?;
                pairs.push((kind, pair));
            }
            Err(why) => missing.push((kind.name(), why)),
        }
    }
    let mut seen: Vec<Seen> = pairs.iter().map(|_| Seen::default()).collect();
    requests(&server, &mut pairs, &mut seen)?;
    // In turns: each of these is soon over, and is to have the machine for itself.
    for round in 0..shortened(ENDS, 1) {
        for n in turns(round, pairs.len()) {
            seen[n].ended.push(pairs[n].1.followed(Signal::TERM)?);
        }
    }
    // Side by side: nearly all of it is the duration of a lease.
    for _ in 0..shortened(KILLS, 1) {
        for (seen, took) in
            seen.iter_mut().zip(at_once(&mut pairs, |it| it.followed(Signal::KILL))?)
        {
            seen.killed.push(took);
        }
    }
    for _ in 0..shortened(STOPS, 1) {
        for (seen, overlap) in seen.iter_mut().zip(at_once(&mut pairs, Pair::overlap)?) {
            seen.stopped.push(overlap);
        }
    }
    let kinds: Vec<Kind> = pairs.iter().map(|(kind, _)| *kind).collect();
    tables(&kinds, &mut seen, &missing);
    Ok(())
}

/// What a leader asks for in a minute, and then a candidate beside it.
fn requests(server: &KubernetesServer, pairs: &mut [(Kind, Pair)], seen: &mut [Seen]) -> Outcome {
    let watched = shortened(Duration::from_secs(60), Duration::from_secs(20));
    let minute =
        |pairs: &[(Kind, Pair)], user: &str| -> Result<Vec<f64>, latchwork_services::Error> {
            let of = |(_, pair): &(Kind, Pair)| server.lease_requests_by(pair.namespace(), user);
            let count = || pairs.iter().map(of).collect::<Result<Vec<_>, _>>();
            let before = count()?;
            thread::sleep(watched);
            let spent = count()?.into_iter().zip(before).map(|(after, before)| after - before);
            Ok(spent.map(|requests| requests as f64 * 60.0 / watched.as_secs_f64()).collect())
        };
    // What a start asks for is over.
    thread::sleep(Duration::from_secs(5));
    for (seen, leading) in seen.iter_mut().zip(minute(pairs, "admin")?) {
        seen.leading = leading;
    }
    at_once(pairs, Pair::with_candidate)?;
    thread::sleep(SETTLED);
    for (seen, waiting) in seen.iter_mut().zip(minute(pairs, "other")?) {
        seen.waiting = waiting;
    }
    Ok(())
}

/// The same with all pairs at one time.
fn at_once<T: Send>(
    pairs: &mut [(Kind, Pair)],
    act: impl Fn(&mut Pair) -> Outcome<T> + Sync,
) -> Outcome<Vec<T>> {
    let done: Vec<_> = thread::scope(|scope| {
        let acts: Vec<_> = pairs.iter_mut().map(|(_, pair)| scope.spawn(|| act(pair))).collect();
        acts.into_iter().map(|it| it.join()).collect()
    });
    let mut all = Vec::new();
    for one in done {
        all.push(one.map_err(|_| "a panic")??);
    }
    Ok(all)
}

fn tables(kinds: &[Kind], seen: &mut [Seen], missing: &[(&str, String)]) {
    println!("A leader, and a candidate beside it; a lease of 15 s, as each has by default:\n");
    head(&["what", "requests a minute, leading", "requests a minute, waiting", goals::TITLE]);
    let fewest = |of: fn(&Seen) -> f64| seen.iter().skip(1).map(of).fold(f64::INFINITY, f64::min);
    let (leading, waiting) = (fewest(|seen| seen.leading), fewest(|seen| seen.waiting));
    for (n, (kind, seen)) in kinds.iter().zip(&*seen).enumerate() {
        let goals = match n {
            0 if leading.is_finite() => goals::cell(&[
                Goal::at_most(leading).of("leading").judge(seen.leading),
                Goal::at_most(waiting).of("waiting").judge(seen.waiting),
            ]),
            _ => "-".into(),
        };
        row(&[kind.name().into(), number(seen.leading), number(seen.waiting), goals]);
    }
    missing_rows(missing, 4);

    println!("\nUntil the candidate leads, when the leader's process:\n");
    head(&["what", "ends by SIGTERM", "most", "ends by SIGKILL", "most", goals::TITLE]);
    for (n, (kind, seen)) in kinds.iter().zip(seen.iter_mut()).enumerate() {
        let middle = median(&mut seen.ended);
        let goal = Goal::at_most(FOLLOWED).of("after SIGTERM").unit("ms").judge(middle);
        row(&[
            kind.name().into(),
            micros(middle * 1e3),
            micros(seen.ended.last().copied().unwrap_or(f64::NAN) * 1e3),
            micros(median(&mut seen.killed) * 1e3),
            micros(seen.killed.last().copied().unwrap_or(f64::NAN) * 1e3),
            if n == 0 { goal.to_string() } else { "-".into() },
        ]);
    }
    missing_rows(missing, 6);
    let middles: Vec<(&str, f64)> = kinds
        .iter()
        .zip(&mut *seen)
        .map(|(kind, seen)| (kind.name(), median(&mut seen.ended)))
        .collect();
    if let Some((ours, others)) = middles.split_first() {
        println!("\nAfter SIGTERM: {}", beside(ours.1, others, &[], Best::Least));
    }

    println!(
        "\nThe leader works once in 2 ms. It is stopped (SIGSTOP) until a second after the candidate leads:\n"
    );
    head(&[
        "what",
        "times",
        "lines of the stopped one after the next one's first",
        "most",
        "its writes that the fence admits",
        goals::TITLE,
    ]);
    for (n, (kind, seen)) in kinds.iter().zip(&*seen).enumerate() {
        let written = seen.stopped.iter().map(|it| it.written);
        let fenced: Vec<bool> = seen.stopped.iter().filter_map(|it| it.refused).collect();
        let admitted = fenced.iter().filter(|refused| !**refused).count();
        row(&[
            kind.name().into(),
            seen.stopped.len().to_string(),
            written.clone().sum::<usize>().to_string(),
            written.max().unwrap_or(0).to_string(),
            match fenced.len() {
                0 => "has none".into(),
                all => format!("{admitted} of {all}"),
            },
            match n {
                0 => Goal::at_most(0.0).of("admitted").judge(admitted as f64).to_string(),
                _ => "-".into(),
            },
        ]);
    }
    missing_rows(missing, 6);
}

fn missing_rows(missing: &[(&str, String)], columns: usize) {
    for (name, why) in missing {
        missing_row(name, why, columns);
    }
}
