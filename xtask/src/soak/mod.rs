//! `cargo xtask soak`: faults, simulation and conformance in rotation for hours, and the record of it.
//!
//! | file | job |
//! | --- | --- |
//! | `asked.rs` | the command line |
//! | `jobs.rs` | what is run, in which order |
//! | `running.rs` | one job from its start to its end, or to an interruption |
//! | `said.rs` | what a job printed, as numbers |
//! | `state.rs` | all that was done so far, kept in a file |
//! | `record.rs` | `proof/RECORD.md` |

mod asked;
mod jobs;
mod record;
mod running;
mod said;
mod state;

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};

use self::asked::Asked;
use self::jobs::Rotation;
use self::running::Ended;
use self::said::Said;
use self::state::State;
use crate::stages::{cargo_command, root};

/// The entry of the command.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let Some(asked) = Asked::read(args)? else {
        print!("{}", asked::HELP);
        return Ok(());
    };
    let stopped = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, stopped.clone()).map_err(|e| e.to_string())?;
    }
    build(&asked)?;
    let rotation = Rotation::of(root(), &asked)?;
    if asked.list {
        rotation.print();
        return Ok(());
    }
    let folder = root().join("target/soak");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let file = folder.join("state.json");
    let commit = commit()?;
    let mut state = State::open(&file, &commit, &today()?)?;
    if state.jobs > 0 {
        println!(
            "goes on after {} jobs and {:.1} h; next seed {}",
            state.jobs,
            state.hours(),
            state.next_seed
        );
    }
    let (start, length) = (Instant::now(), Duration::from_secs_f64(asked.hours * 3600.0));
    while start.elapsed() < length && !stopped.load(Ordering::Relaxed) {
        let job = rotation.job(state.jobs);
        let begun = Instant::now();
        let log = folder.join(format!("{}.txt", state.jobs));
        let ended = running::run(&mut job.command(&asked, state.next_seed), &log, &stopped)?;
        let text = std::fs::read_to_string(&log).map_err(|e| format!("{}: {e}", log.display()))?;
        let said = Said::read(job, &text);
        let passed = match ended {
            Ended::Interrupted => {
                said.forget();
                println!("interrupted: {} is not counted", job.name());
                break;
            }
            Ended::Exited(passed) => passed && said.is_whole(),
        };
        state.add(job, &asked, &said, passed, begun.elapsed());
        if passed {
            said.forget();
            let _ = std::fs::remove_file(&log);
        } else {
            state.find(job, &said, &log);
        }
        state.save(&file)?;
        record::write(root(), &state, &rotation)?;
        println!(
            "{} of {}  {}: {}",
            clock(start.elapsed()),
            clock(length),
            job.name(),
            said.line(passed)
        );
    }
    record::write(root(), &state, &rotation)?;
    println!("the record is in proof/RECORD.md: {:.2} h, {} jobs", state.hours(), state.jobs);
    match state.found.len() {
        0 => Ok(()),
        some => Err(format!("{some} jobs have found something: proof/RECORD.md names them")),
    }
}

/// Builds what is run over and over, once.
fn build(asked: &Asked) -> Result<(), String> {
    let mut cargo = cargo_command();
    cargo.args(["build", "--quiet", "--package", "latchwork-nemesis"]);
    cargo.args(["--package", "latchwork-simulate"]);
    if !asked.debug {
        cargo.arg("--release");
    }
    let status = cargo.current_dir(root()).status();
    let status = status.map_err(|e| format!("soak: cannot run cargo: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("soak: cargo build: {status}")) }
}

/// What a program prints, in one line.
fn line(program: &str, args: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(args).current_dir(root()).output();
    let output = output.map_err(|e| format!("{program}: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    match output.status.success() {
        true => Ok(text),
        false => Err(format!("{program} {}: {}", args.join(" "), output.status)),
    }
}

/// What of the code is run; with `+` if it was changed since.
fn commit() -> Result<String, String> {
    let id = line("git", &["rev-parse", "--short=10", "HEAD"])?;
    // The record itself is no change of the code.
    let changed = line("git", &["status", "--porcelain", "--", ".", ":!proof/RECORD.md"])?;
    Ok(if changed.is_empty() { id } else { format!("{id}+") })
}

fn today() -> Result<String, String> {
    line("date", &["-u", "+%Y-%m-%d %H:%M"])
}

fn clock(time: Duration) -> String {
    let minutes = time.as_secs() / 60;
    format!("{}:{:02}", minutes / 60, minutes % 60)
}

/// A program that was built for this.
fn program(asked: &Asked, name: &str) -> std::path::PathBuf {
    let profile = if asked.debug { "debug" } else { "release" };
    root().join("target").join(profile).join(name)
}
