//! From one process to another, when the lock is held for about 200 ms.

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::bars::HANDOFF;
use crate::goals::{self, Goal};
use crate::peers::{self, Kind};
use crate::stats::{Best, beside, head, median, quantile, row, shortened, turns};
use crate::store::Store;

const ROUNDS: usize = 3;
pub(crate) const WAITING: usize = 8;
const HANDOFFS: usize = 20;
/// The shortest and the longest a lock is held, in milliseconds.
const HELD: (u64, u64) = (173, 243);
const HANDOFF_LIMIT: Duration = Duration::from_secs(60);

/// Hand-offs of several kinds in turns, ours first. `goal` says what part of a kind's median
/// Latchwork's should be at most.
pub(crate) fn run(
    store: &dyn Store,
    kinds: Vec<Kind>,
    goal: impl Fn(&Kind) -> Option<Goal>,
) -> crate::Outcome {
    let (kinds, missing) = peers::install(kinds);
    let mut samples: Vec<Vec<f64>> = kinds.iter().map(|_| Vec::new()).collect();
    for round in 0..shortened(ROUNDS, 1) {
        for n in turns(round, kinds.len()) {
            store.clear()?;
            samples[n].extend(handoffs(&kinds[n], &store.address())?);
        }
    }
    table(&kinds, &missing, &mut samples, goal);
    for (kind, samples) in kinds.iter().zip(&mut samples) {
        HANDOFF.note(store.name(), kind.name, median(samples));
    }
    Ok(())
}

/// The table of several kinds, ours first, each with its hand-offs in microseconds.
fn table(
    kinds: &[Kind],
    missing: &[(Kind, String)],
    samples: &mut [Vec<f64>],
    goal: impl Fn(&Kind) -> Option<Goal>,
) {
    println!("{WAITING} processes wait, each holds {} to {} ms:\n", HELD.0, HELD.1);
    head(&["what", "median", "90 %", "99 %", "latchwork to it", goals::TITLE, "hand-offs"]);
    let middles: Vec<f64> = samples.iter_mut().map(|samples| median(samples)).collect();
    let ours = middles[0];
    for ((kind, samples), middle) in kinds.iter().zip(samples).zip(&middles) {
        row(&[
            kind.name.into(),
            format!("{middle:.0} us"),
            format!("{:.0} us", quantile(samples, 0.9)),
            format!("{:.0} us", quantile(samples, 0.99)),
            format!("{:.2}", ours / middle),
            goal(kind).map_or("-".into(), |goal| goal.judge(ours / middle).to_string()),
            samples.len().to_string(),
        ]);
    }
    peers::missing_rows(missing, 7);
    let seen = |wanted: fn(&Kind) -> bool| -> Vec<(&str, f64)> {
        let some = kinds.iter().zip(&middles).filter(|(kind, _)| wanted(kind));
        some.map(|(kind, middle)| (kind.name, *middle)).collect()
    };
    println!("\n{}", beside(ours, &seen(Kind::is_peer), &seen(Kind::is_rod), Best::Least));
}

/// From before the release to the admission of the next, in microseconds.
///
/// One holds and eight wait. Who has released comes back only when the next one is admitted, so
/// that what polls cannot hand the lock to itself.
pub(crate) fn handoffs(kind: &Kind, url: &str) -> Result<Vec<f64>, Box<dyn std::error::Error>> {
    let mut workers = Vec::new();
    let (sender, told) = channel();
    for n in 0..=WAITING {
        let number = n.to_string();
        let args: &[&str] = if kind.is_numbered() { &[&number] } else { &[] };
        workers.push(kind.spawn("handoff", url, args)?);
    }
    let mut workers = workers.into_iter().map(|w| kind.ready(w)).collect::<Result<Vec<_>, _>>()?;
    for (n, worker) in workers.iter_mut().enumerate() {
        let (sender, lines) = (sender.clone(), worker.take_lines());
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if sender.send((n, line)).is_err() {
                    return;
                }
            }
        });
    }
    let mut seed = 1;
    for worker in &mut workers {
        worker.tell(&length(&mut seed).to_string())?;
    }
    let mut samples = Vec::new();
    let wanted = shortened(HANDOFFS, 5);
    let mut holder = moment(&told)?.number;
    while samples.len() < wanted {
        // Who is admitted may be heard before the one that has released.
        let (mut released, mut acquired) = (None, None);
        while released.is_none() || acquired.is_none() {
            let heard = moment(&told)?;
            match (heard.acquired, heard.number == holder) {
                (false, true) => released = Some(heard.at),
                (true, false) => acquired = Some(heard),
                _ => return Err(format!("{}: two holders, or out of turn", kind.name).into()),
            }
        }
        let (Some(released), Some(acquired)) = (released, acquired) else { continue };
        samples.push((acquired.at as f64 - released as f64) / 1e3);
        workers[holder].tell(&length(&mut seed).to_string())?;
        holder = acquired.number;
    }
    Ok(samples)
}

struct Moment {
    number: usize,
    acquired: bool,
    at: u64,
}

fn moment(told: &Receiver<(usize, String)>) -> Result<Moment, Box<dyn std::error::Error>> {
    let (number, line) = told.recv_timeout(HANDOFF_LIMIT)?;
    match line.split_once(' ') {
        Some(("acquired", at)) => Ok(Moment { number, acquired: true, at: at.parse()? }),
        Some(("released", at)) => Ok(Moment { number, acquired: false, at: at.parse()? }),
        _ => Err(format!("a process said {line:?}").into()),
    }
}

/// The same lengths for every kind.
fn length(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    HELD.0 + (*seed >> 33) % (HELD.1 - HELD.0 + 1)
}
