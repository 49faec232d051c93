//! From one process to another: from the release to the next hold, and after the holder was killed.

use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use latchwork_services::Folder;

use crate::bars::HANDOFF;
use crate::goals::Goal;
use crate::peers::{self, FILE, FILE_TASKS, FILE_THREADS, FLOCK, Kind};
use crate::roles::{Outcome, now};
use crate::stats::{Best, head, median, quantile, row, shortened, spread, turns};
use crate::store::{Files, Store};
use crate::worker::{Worker, processor_time, wakeups};

const ROUNDS: usize = 3;
pub(crate) const WAITING: usize = 8;
const HANDOFFS: usize = 20;
/// The shortest and the longest a lock is held, in milliseconds.
const HELD: (u64, u64) = (173, 243);
const LIMIT: Duration = Duration::from_secs(60);

/// Hand-offs of several kinds in turns, ours first. `goal` says what part of a kind's median Latchwork's should be.
pub(crate) fn run(
    store: &dyn Store,
    kinds: &[Kind],
    goal: impl Fn(&Kind) -> Option<Goal>,
) -> Outcome {
    let (kinds, missing) = peers::install(kinds);
    let mut samples: Vec<Vec<f64>> = kinds.iter().map(|_| Vec::new()).collect();
    for round in 0..shortened(ROUNDS, 1) {
        for n in turns(round, kinds.len()) {
            store.clear()?;
            samples[n].extend(handoffs(&kinds[n], &store.address())?);
        }
    }
    println!("{WAITING} processes wait, each holds {} to {} ms:\n", HELD.0, HELD.1);
    let columns = head("what | median | 90 % | 99 % | latchwork to it | goal | hand-offs");
    let middles: Vec<f64> = samples.iter_mut().map(|samples| median(samples)).collect();
    for ((kind, samples), middle) in kinds.iter().zip(&mut samples).zip(&middles) {
        let part = middles[0] / middle;
        row(&[
            kind.name.into(),
            format!("{middle:.0} us"),
            format!("{:.0} us", quantile(samples, 0.9)),
            format!("{:.0} us", quantile(samples, 0.99)),
            format!("{part:.2}"),
            goal(kind).map_or("-".into(), |goal| goal.judge(part).to_string()),
            samples.len().to_string(),
        ]);
        HANDOFF.note(store.name(), kind.name, *middle);
    }
    peers::missing_rows(&missing, columns);
    let middles = kinds.iter().zip(middles.iter().copied());
    println!(
        "\n{}",
        peers::beside(middles.clone().next().map_or(f64::NAN, |it| it.1), middles, Best::Least)
    );
    Ok(())
}

/// Those of eight that wait, in microseconds.
pub(crate) fn handoffs(kind: &Kind, url: &str) -> Outcome<Vec<f64>> {
    between(kind, url, WAITING, HELD, shortened(HANDOFFS, 5))
}

/// From before the release to the admission of the next, in microseconds.
///
/// One holds and others wait. A process that has released asks again only when the next one is admitted, so that a
/// client that polls cannot hand the lock to itself.
pub(crate) fn between(
    kind: &Kind,
    url: &str,
    waiting: usize,
    held: (u64, u64),
    wanted: usize,
) -> Outcome<Vec<f64>> {
    let mut workers = kind.start_all(url, 0, waiting + 1)?;
    let (sender, told) = channel();
    for (n, worker) in workers.iter_mut().enumerate() {
        let sender = sender.clone();
        worker.read(move |line| sender.send((n, line)).is_ok());
        worker.tell("hold")?;
    }
    // The same lengths for every kind.
    let mut seed = 1_u64;
    let mut samples = Vec::new();
    let (mut holder, ..) = moment(&told)?;
    while samples.len() < wanted {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_millis(held.0 + (seed >> 33) % (held.1 - held.0 + 1)));
        workers[holder].tell("release")?;
        // Who is admitted may be heard before the one that has released.
        let (mut released, mut acquired) = (None, None);
        while released.is_none() || acquired.is_none() {
            match moment(&told)? {
                (who, false, at) if who == holder => released = Some(at),
                (who, true, at) if who != holder && acquired.is_none() => {
                    acquired = Some((who, at));
                }
                _ => return Err(format!("{}: two holders, or out of turn", kind.name).into()),
            }
        }
        let (Some(released), Some((next, acquired))) = (released, acquired) else { continue };
        samples.push((acquired as f64 - released as f64) / 1e3);
        workers[holder].tell("hold")?;
        holder = next;
    }
    Ok(samples)
}

/// Which process, whether it has acquired, and when.
fn moment(told: &Receiver<(usize, String)>) -> Outcome<(usize, bool, u64)> {
    let (number, line) = told.recv_timeout(LIMIT)?;
    match line.split_once(' ') {
        Some(("acquired", at)) => Ok((number, true, at.parse()?)),
        Some(("released", at)) => Ok((number, false, at.parse()?)),
        _ => Err(format!("a process said {line:?}").into()),
    }
}

/// Microseconds from SIGKILL of the holder to the hold of the waiter, which has waited for so long.
pub(crate) fn takeover(kind: &Kind, url: &str, ttl_ms: u128, waited: Duration) -> Outcome<f64> {
    let mut holder = kind.start(url, ttl_ms)?;
    holder.tell("hold")?;
    holder.moment("acquired")?;
    let mut waiter = kind.start(url, ttl_ms)?;
    waiter.wait_for_it()?;
    std::thread::sleep(waited);
    let killed = now();
    holder.child.kill()?;
    Ok((waiter.moment("acquired")? as f64 - killed as f64) / 1e3)
}

/// Files, against a blocked flock: how long a handover takes.
pub(crate) fn handover() -> Outcome {
    let files = Files(Folder::new()?);
    let kinds = [FLOCK, FILE_THREADS, FILE_TASKS];
    let mut samples = kinds.map(|_| Vec::new());
    for _ in 0..shortened(4, 1) {
        for (kind, samples) in kinds.iter().zip(&mut samples) {
            samples.extend(between(kind, &files.address(), 1, (1, 2), 150)?);
        }
    }
    head("waiter | median | 90 % | goal | handovers");
    let bare = median(&mut samples[0]);
    for (kind, samples) in kinds.iter().zip(&mut samples) {
        spread(kind.name, samples, |middle| {
            kind.is_peer().then(|| Goal::below(3.0).of("to flock").judge(middle / bare))
        });
    }
    Ok(())
}

/// The same after SIGKILL of the holder.
pub(crate) fn takeovers() -> Outcome {
    let files = Files(Folder::new()?);
    let kinds = [FLOCK, FILE];
    let mut samples = kinds.map(|_| Vec::new());
    for _ in 0..shortened(40, 10) {
        for (kind, samples) in kinds.iter().zip(&mut samples) {
            samples.push(takeover(kind, &files.address(), 0, Duration::ZERO)?);
        }
    }
    head("waiter | median | 90 % | goal | takeovers");
    for (kind, samples) in kinds.iter().zip(&mut samples) {
        spread(kind.name, samples, |middle| {
            let goal = Goal::at_most(10.0).of("median").unit("ms");
            (!kind.is_rod()).then(|| goal.judge(middle / 1e3))
        });
    }
    Ok(())
}

const CROWD: usize = 64;

/// A process that holds the lock, and those that wait for it, in their order.
fn crowd(url: &str) -> Outcome<(Worker, Vec<Worker>)> {
    let mut holder = FILE.start(url, 0)?;
    holder.tell("hold")?;
    holder.moment("acquired")?;
    let mut waiting = FILE.start_all(url, 0, CROWD)?;
    waiting.iter_mut().try_for_each(Worker::wait_for_it)?;
    Ok((holder, waiting))
}

/// 64 processes that wait: their processor time, and how many a release wakes.
pub(crate) fn crowds() -> Outcome {
    let files = Files(Folder::new()?);
    let url = files.address();
    let (holder, waiting) = crowd(&url)?;
    let time = || waiting.iter().map(|it| processor_time(it.pid(), false)).sum::<f64>();
    let (start, before) = (Instant::now(), time());
    std::thread::sleep(Duration::from_secs(shortened(20, 2)));
    let share = (time() - before) / start.elapsed().as_secs_f64() * 100.0;
    drop((holder, waiting));
    // In a crowd that is younger than ten seconds: then each looks by itself, and that is no release's doing.
    let (mut holder, mut waiting) = crowd(&url)?;
    let mut woken = Vec::new();
    for _ in 0..20 {
        let counts: Vec<f64> = waiting.iter().map(|w| wakeups(w.pid())).collect();
        holder.tell("release")?;
        holder.moment("released")?;
        let mut next = waiting.remove(0);
        next.moment("acquired")?;
        std::thread::sleep(Duration::from_millis(20));
        // The one that was admitted, and those of the others that woke up.
        let others = waiting.iter().zip(&counts[1..]).filter(|(w, n)| wakeups(w.pid()) > **n);
        woken.push(1.0 + others.count() as f64);
        holder = next;
    }
    head("what | measured");
    let line = |what: &str, measured| row(&[what.into(), measured]);
    line("processor time of 64 waiting processes together", format!("{share:.2} % of one core"));
    line("processes woken by a release, median", format!("{:.0}", median(&mut woken)));
    line("processes woken by a release, most", format!("{:.0}", quantile(&mut woken, 1.0)));
    Ok(())
}
