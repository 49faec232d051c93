//! `latchwork-simulate`: runs seeds, and tells the story of one that breaks a rule.

#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a command, which measures its own time"
)]

mod fleet_command;

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use latchwork_simulate::{Plan, Planted, run, search, shrink, story};

const HELP: &str = "\
Usage: latchwork-simulate [--seeds N] [--from SEED] [--threads N] [--planted NAME]
       latchwork-simulate --seed SEED [--planted NAME]
       latchwork-simulate fleet [...]

Runs the engine on a paused clock, one run for each seed, and stops at the first that breaks a rule:
then it leaves out what is not needed and tells the story.

  --seeds N        how many seeds to run (default 1000)
  --from SEED      the first of them (default 0)
  --threads N      how many threads run them (default: as many as the machine has processors)
  --seed SEED      tells the story of one seed, whether it breaks a rule or not
  fleet            what a fleet of clients asks of a store: `fleet --help`
  --planted NAME   plants a bug; `--planted list` lists them
";

struct Asked {
    seeds: u64,
    from: u64,
    threads: usize,
    seed: Option<u64>,
    planted: Option<Planted>,
}

fn parse() -> Result<Option<Asked>, String> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut asked = Asked { seeds: 1_000, from: 0, threads, seed: None, planted: None };
    let mut args = std::env::args().skip(1);
    while let Some(name) = args.next() {
        if name == "--help" || name == "-h" {
            return Ok(None);
        }
        let value = args.next().ok_or(format!("{name}: a value is missing"))?;
        let number = || {
            let text = value.replace(['_', ','], "");
            text.parse::<u64>().map_err(|_| format!("{name}: `{value}` is no number"))
        };
        match name.as_str() {
            "--seeds" => asked.seeds = number()?,
            "--from" => asked.from = number()?,
            "--threads" => asked.threads = number()?.max(1) as usize,
            "--seed" => asked.seed = Some(number()?),
            "--planted" => {
                let found = Planted::ALL.iter().find(|bug| bug.name() == value);
                let names: Vec<_> = Planted::ALL.iter().map(|bug| bug.name()).collect();
                let names = names.join("\n  ");
                asked.planted = Some(
                    *found.ok_or(format!("--planted: none is `{value}`; there are\n  {names}"))?,
                );
            }
            _ => return Err(format!("{name}: unknown; see --help")),
        }
    }
    Ok(Some(asked))
}

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("fleet") {
        return match fleet_command::run(std::env::args().skip(2)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("latchwork-simulate: {error}");
                ExitCode::from(2)
            }
        };
    }
    match parse() {
        Ok(None) => {
            println!("{HELP}");
            ExitCode::SUCCESS
        }
        Ok(Some(asked)) => match asked.seed {
            Some(seed) => {
                println!("{}", story(&Plan::draw(seed), asked.planted));
                ExitCode::SUCCESS
            }
            None => many(&asked),
        },
        Err(error) => {
            eprintln!("latchwork-simulate: {error}");
            ExitCode::from(2)
        }
    }
}

/// Runs all seeds on several threads.
fn many(asked: &Asked) -> ExitCode {
    let (start, next, virtual_time) = (Instant::now(), AtomicU64::new(0), AtomicU64::new(0));
    let (stop, failed) = (AtomicBool::new(false), AtomicU64::new(u64::MAX));
    std::thread::scope(|scope| {
        for _ in 0..asked.threads {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= asked.seeds || stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let seed = asked.from + number;
                    let outcome = run(&Plan::draw(seed), asked.planted);
                    virtual_time.fetch_add(outcome.length.as_secs(), Ordering::Relaxed);
                    if outcome.violation.is_some() {
                        failed.fetch_min(seed, Ordering::Relaxed);
                        stop.store(true, Ordering::Relaxed);
                    }
                    if (number + 1) % 10_000 == 0 {
                        eprintln!("{} seeds in {:.0?}", number + 1, start.elapsed());
                    }
                }
            });
        }
    });
    let hours = virtual_time.into_inner() as f64 / 3600.0;
    let failed = failed.into_inner();
    if failed == u64::MAX {
        println!(
            "{} seeds from {} break no rule: {hours:.0} hours of virtual time in {:.0?}",
            asked.seeds,
            asked.from,
            Duration::from_secs(start.elapsed().as_secs())
        );
        return ExitCode::SUCCESS;
    }
    let Some(found) = search([failed], asked.planted) else {
        eprintln!(
            "seed {failed} broke a rule once, and does not again: a run depends on more than its seed"
        );
        return ExitCode::FAILURE;
    };
    println!(
        "seed {failed} breaks a rule after {} seeds; without what is not needed:\n",
        failed - asked.from + 1
    );
    let small = shrink(found, asked.planted);
    println!("{}", story(&small.plan, asked.planted));
    println!("the plan: {:#?}", small.plan);
    ExitCode::FAILURE
}
