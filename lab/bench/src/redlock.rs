//! What is measured of five servers alone: one that is stopped, votes that nobody wins, and commands.

use std::time::Duration;

use crate::contest::{contest, middle};
use crate::free::{Runner, Samples};
use crate::goals::Goal;
use crate::peers::{self, LATCHWORK, NODE_REDLOCK, REDLOCK_MUTEX, RSLOCK, VOTES};
use crate::roles::Outcome;
use crate::stats::{head, row, shortened};
use crate::store::{Elsewhere, Five, Store};

const ROUNDS: usize = 5;
const LENGTH: Duration = Duration::from_secs(3);
/// How long a server that goes on has to answer what it was sent meanwhile.
const REST: Duration = Duration::from_millis(500);

/// What one stopped server of five costs.
pub(crate) fn slow() -> Outcome {
    let (kinds, missing) = peers::install(&[LATCHWORK, RSLOCK, NODE_REDLOCK]);
    println!("One task and a free key, five servers; then one of them is stopped (SIGSTOP):\n");
    let columns = head(
        "what | servers | acquire, median | 99 % | longest | 99 % to all healthy | goal | cycles a second",
    );
    let (rounds, length) = (shortened(ROUNDS, 2), shortened(LENGTH, LENGTH / 3));
    for kind in &kinds {
        let five = Five::start()?;
        let store = Elsewhere(five.address());
        let (mut servers, mut runner) = (five.0, Runner::start(kind, &store)?);
        let mut seen = [Samples::default(), Samples::default()];
        for round in 0..rounds {
            let server = round % servers.len();
            for (n, seen) in seen.iter_mut().enumerate() {
                if n == 1 {
                    servers[server].stop()?;
                }
                runner.take(1, length)?;
                seen.merge(runner.taken());
            }
            servers[server].cont()?;
            std::thread::sleep(REST);
        }
        let base = seen[0].acquires.quantile(0.99);
        for (name, seen) in ["5 healthy", "1 stopped"].iter().zip(&seen) {
            let high = seen.acquires.quantile(0.99);
            let goal = match kind.is_ours() && *name == "1 stopped" {
                true => Goal::at_most(1.5).judge(high / base).to_string(),
                false => "-".into(),
            };
            row(&[
                kind.name.into(),
                (*name).into(),
                format!("{:.0} us", seen.acquires.quantile(0.5)),
                format!("{high:.0} us"),
                format!("{:.0} us", seen.acquires.quantile(1.0)),
                format!("{:.2}", high / base),
                goal,
                format!("{:.0}", seen.rate()),
            ]);
        }
    }
    peers::missing_rows(&missing, columns);
    println!(
        "\n{rounds} rounds of {} s each. redis-semaphore's RedlockMutex waits for the answer of every server, so it has no row.",
        length.as_secs()
    );
    Ok(())
}

/// What a free cycle costs each server.
pub(crate) fn commands() -> Outcome {
    let five = Five::start()?;
    let (kinds, missing) = peers::install(&[LATCHWORK, RSLOCK, REDLOCK_MUTEX, NODE_REDLOCK]);
    println!("One task, a free key: commands a cycle at each server, by its own count:\n");
    head("what | 1 | 2 | 3 | 4 | 5 | cycles");
    for kind in &kinds {
        let mut runner = Runner::start(kind, &five)?;
        let counts = || {
            // What a majority did not wait for is still on its way.
            std::thread::sleep(REST);
            five.0.iter().map(|server| kind.commands(server)).collect::<Outcome<Vec<_>>>()
        };
        let before = counts()?;
        let cycles = runner.take(1, LENGTH / 3)?;
        let mut cells = vec![kind.name.to_string()];
        let spent = counts()?.into_iter().zip(before).map(|(after, before)| after - before);
        cells.extend(spent.map(|commands| format!("{:.3}", commands / cycles)));
        cells.push(cycles.to_string());
        row(&cells);
    }
    peers::missing_rows(&missing, 7);
    Ok(())
}

/// Votes that nobody wins.
pub(crate) fn splits() -> Outcome {
    let five = Five::start()?;
    println!(
        "Counted in the clients, by their observers: a vote is a try at the five servers, at one of \
         them first if others are expected; it is split if nobody has a majority.\n"
    );
    head(
        "processes | split votes before a grant: median | goal | 90 % | 99 % | mean | votes that found a holder, a grant | of all votes split | handovers a second | Jain",
    );
    for processes in [2, 8, 32] {
        // How many grants had no split vote before them, one, two...
        let (mut held, mut grants, mut rounds) = (0.0, Vec::new(), Vec::new());
        for _ in 0..shortened(ROUNDS, 1) {
            let (round, mut workers) =
                contest(&five, &VOTES, (processes, 1), LENGTH, || Ok(f64::NAN))?;
            rounds.push(round);
            for worker in &mut workers {
                worker.tell("end")?;
                let line = worker.line()?;
                let numbers = line.split_whitespace().map(str::parse);
                let numbers = numbers.collect::<Result<Vec<f64>, _>>()?;
                held += numbers.first().ok_or("a number")?;
                grants.resize(grants.len().max(numbers.len() - 1), 0.0);
                grants.iter_mut().zip(&numbers[1..]).for_each(|(sum, more)| *sum += more);
            }
        }
        let granted: f64 = grants.iter().sum();
        let split: f64 = grants.iter().enumerate().map(|(n, grants)| n as f64 * grants).sum();
        let quantile = |part: f64| {
            let mut seen = 0.0;
            let is_enough = |grants: &f64| {
                seen += grants;
                seen >= granted * part
            };
            grants.iter().position(is_enough).unwrap_or_default()
        };
        row(&[
            processes.to_string(),
            quantile(0.5).to_string(),
            Goal::at_most(1.0).judge(quantile(0.5) as f64).to_string(),
            quantile(0.9).to_string(),
            quantile(0.99).to_string(),
            format!("{:.2}", split / granted),
            format!("{:.2}", held / granted),
            format!("{:.0} %", 100.0 * split / (granted + split + held)),
            format!("{:.0}", middle(&rounds, |round| round.handovers)),
            format!("{:.3}", middle(&rounds, |round| round.fair_processes)),
        ]);
    }
    Ok(())
}
