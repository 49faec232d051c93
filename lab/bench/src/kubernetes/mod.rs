//! Leaders on Kubernetes, beside the electors that controllers use.

mod elector;
mod pair;

use std::thread;
use std::time::Duration;

use latchwork_services::{KubernetesServer, provided};
use rustix::process::Signal;

use crate::goals::{self, Goal, Verdict};
use crate::installing;
use crate::roles::Outcome;
use crate::stats::{
    Best, beside, head, median, micros, missing_row, number, quantile, row, shortened, turns,
};

use pair::{Overlap, Pair};

pub(crate) use elector::run as child;

/// The first argument of a process of Latchwork's elector.
pub(crate) const CHILD: &str = "child-elect";

/// A candidate is settled by then: what it asks for at its start is not what it costs.
const SETTLED: Duration = Duration::from_secs(15);
/// The crates of `peers/kubernetes`.
const CRATES: &str = "kubernetes-peers";
const OURS: &str = "latchwork";
const CLIENT_GO: &str = "client-go";
const KINDS: [&str; 4] = [OURS, CLIENT_GO, "kube-coordinate", "kube-leader-election"];

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
    for kind in KINDS {
        let installed = match kind {
            OURS => Ok(()),
            CLIENT_GO => provided("elector").map(drop).map_err(|error| error.to_string()),
            _ => installing::cargo(CRATES),
        };
        match installed {
            Ok(()) => pairs.push(Pair::start(kind, &server, folder.path())?),
            Err(why) => missing.push((kind, why)),
        }
    }
    let mut seen: Vec<Seen> = pairs.iter().map(|_| Seen::default()).collect();
    // What a start asks for is over.
    thread::sleep(Duration::from_secs(5));
    for (seen, leading) in seen.iter_mut().zip(requests(&server, &pairs, "admin")?) {
        seen.leading = leading;
    }
    at_once(&mut pairs, Pair::with_candidate)?;
    thread::sleep(SETTLED);
    for (seen, waiting) in seen.iter_mut().zip(requests(&server, &pairs, "other")?) {
        seen.waiting = waiting;
    }
    // In turns: each of these is soon over, and is to have the machine for itself.
    for round in 0..shortened(5, 1) {
        for n in turns(round, pairs.len()) {
            seen[n].ended.push(pairs[n].followed(Signal::TERM)?);
        }
    }
    // Side by side: nearly all of it is the duration of a lease.
    for _ in 0..shortened(3, 1) {
        let killed = at_once(&mut pairs, |pair| pair.followed(Signal::KILL))?;
        seen.iter_mut().zip(killed).for_each(|(seen, took)| seen.killed.push(took));
        let stopped = at_once(&mut pairs, Pair::overlap)?;
        seen.iter_mut().zip(stopped).for_each(|(seen, overlap)| seen.stopped.push(overlap));
    }
    let kinds: Vec<&str> = pairs.iter().map(|pair| pair.kind).collect();
    tables(&kinds, &mut seen, &missing);
    Ok(())
}

/// What this user asks for in a minute in each namespace.
fn requests(server: &KubernetesServer, pairs: &[Pair], user: &str) -> Outcome<Vec<f64>> {
    let watched = shortened(Duration::from_secs(60), Duration::from_secs(20));
    let of = |pair: &Pair| Ok(server.lease_requests_by(&pair.namespace, user)? as f64);
    let count = || pairs.iter().map(of).collect::<Outcome<Vec<_>>>();
    let before = count()?;
    thread::sleep(watched);
    let spent = count()?.into_iter().zip(before).map(|(after, before)| after - before);
    Ok(spent.map(|requests| requests * 60.0 / watched.as_secs_f64()).collect())
}

/// The same with all pairs at one time.
fn at_once<T: Send>(
    pairs: &mut [Pair],
    act: impl Fn(&mut Pair) -> Outcome<T> + Sync,
) -> Outcome<Vec<T>> {
    thread::scope(|scope| {
        let acts: Vec<_> = pairs.iter_mut().map(|pair| scope.spawn(|| act(pair))).collect();
        acts.into_iter().map(|it| it.join().map_err(|_| "a panic")?).collect()
    })
}

/// A table with a row for each kind, and with goals in that of Latchwork, which is the first.
fn table(
    titles: &str,
    (kinds, missing): (&[&str], &[(&str, String)]),
    mut cells: impl FnMut(usize) -> Vec<String>,
    goals: &[Verdict],
) {
    let columns = head(titles);
    for (n, kind) in kinds.iter().enumerate() {
        let verdicts = if n == 0 { goals } else { &[] };
        let cells = cells(n).into_iter().chain([goals::cell(verdicts)]);
        row(&[(*kind).to_owned()].into_iter().chain(cells).collect::<Vec<_>>());
    }
    missing.iter().for_each(|(name, why)| missing_row(name, why, columns));
}

fn tables(kinds: &[&str], seen: &mut [Seen], missing: &[(&str, String)]) {
    let who = (kinds, missing);
    println!("A leader, and a candidate beside it; a lease of 15 s, as each has by default:\n");
    let fewest = |of: fn(&Seen) -> f64| seen[1..].iter().map(of).fold(f64::INFINITY, f64::min);
    let goal = |most, what, reached| Goal::at_most(most).of(what).judge(reached);
    let goals = match seen.len() {
        1 => Vec::new(),
        _ => vec![
            goal(fewest(|it| it.leading), "leading", seen[0].leading),
            goal(fewest(|it| it.waiting), "waiting", seen[0].waiting),
        ],
    };
    let titles = "what | requests a minute, leading | requests a minute, waiting | goal";
    let cells = |n: usize| vec![number(seen[n].leading), number(seen[n].waiting)];
    table(titles, who, cells, &goals);

    println!("\nUntil the candidate leads, when the leader's process:\n");
    let shown = |times: &mut Vec<f64>| {
        [median(times), quantile(times, 1.0)].map(|millis| micros(millis * 1e3))
    };
    let middles: Vec<f64> = seen.iter_mut().map(|it| median(&mut it.ended)).collect();
    // How soon a leader that ends in order is followed.
    let goal = Goal::at_most(100.0).of("after SIGTERM").unit("ms").judge(middles[0]);
    let titles = "what | ends by SIGTERM | most | ends by SIGKILL | most | goal";
    let cells = |n: usize| [shown(&mut seen[n].ended), shown(&mut seen[n].killed)].concat();
    table(titles, who, cells, &[goal]);
    let others: Vec<_> = kinds.iter().copied().zip(middles.iter().copied()).skip(1).collect();
    println!("\nAfter SIGTERM: {}", beside(middles[0], &others, &[], Best::Least));

    println!(
        "\nThe leader works once in 2 ms. It is stopped (SIGSTOP) until a second after the candidate leads:\n"
    );
    let titles = "what | times | lines of the stopped one after the next one's first | most | its writes that the fence admits | goal";
    let admitted = |n: usize| {
        let fenced: Vec<bool> = seen[n].stopped.iter().filter_map(|it| it.refused).collect();
        (fenced.iter().filter(|refused| !**refused).count(), fenced.len())
    };
    let goal = Goal::at_most(0.0).of("admitted").judge(admitted(0).0 as f64);
    let cells = |n: usize| {
        let written = || seen[n].stopped.iter().map(|it| it.written);
        vec![
            seen[n].stopped.len().to_string(),
            written().sum::<usize>().to_string(),
            written().max().unwrap_or(0).to_string(),
            match admitted(n) {
                (_, 0) => "has none".into(),
                (admitted, all) => format!("{admitted} of {all}"),
            },
        ]
    };
    table(titles, who, cells, &[goal]);
}
