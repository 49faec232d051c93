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
//! | `matrix.rs` | the same jobs on each version of each server, and `docs/servers.md` |

mod asked;
mod jobs;
pub(crate) mod matrix;
mod record;
mod running;
mod said;
mod state;

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};

use self::asked::Asked;
use self::jobs::{Job, Rotation};
use self::running::Ended;
use self::said::Said;
use self::state::State;
use crate::workspace::{cargo_command, root};

/// The file of the state, in the folder of the soak.
const STATE: &str = "state.json";

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
    let file = folder.join(STATE);
    let commit = commit()?;
    let state = State::open(&file, &commit, &today()?)?;
    if state.jobs > 0 {
        println!(
            "goes on after {} jobs and {:.1} h; next seed {}",
            state.jobs,
            state.hours(),
            state.next_seed
        );
    }
    let soak = Soak {
        asked: &asked,
        rotation: &rotation,
        folder: &folder,
        stopped: &stopped,
        start: Instant::now(),
        begun: AtomicU64::new(state.jobs),
        alone: Mutex::new(()),
        state: Mutex::new(state),
    };
    let ended: Vec<Result<(), String>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..asked.at_once).map(|_| scope.spawn(|| soak.work())).collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        ended.map(|it| it.unwrap_or(Err("soak: a thread has panicked".into()))).collect()
    });
    ended.into_iter().collect::<Result<(), String>>()?;
    let state = soak.state.into_inner().unwrap_or_else(PoisonError::into_inner);
    record::write(root(), &state, &rotation)?;
    println!("the record is in proof/RECORD.md: {:.2} h, {} jobs", state.hours(), state.jobs);
    match state.found.len() {
        0 => Ok(()),
        some => Err(format!("{some} jobs have found something: proof/RECORD.md names them")),
    }
}

/// What the threads of a soak share.
struct Soak<'a> {
    asked: &'a Asked,
    rotation: &'a Rotation,
    folder: &'a Path,
    stopped: &'a AtomicBool,
    start: Instant,
    /// How many jobs were begun, those of earlier sessions among them.
    begun: AtomicU64,
    /// Held by a job that is no run of the nemesis: a simulation takes all processors, and seeds are tried in their order.
    alone: Mutex<()>,
    state: Mutex<State>,
}

impl Soak<'_> {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does one job after the other until the time is over.
    fn work(&self) -> Result<(), String> {
        let length = Duration::from_secs_f64(self.asked.hours * 3600.0);
        while self.start.elapsed() < length && !self.stopped.load(Ordering::Relaxed) {
            let number = self.begun.fetch_add(1, Ordering::Relaxed);
            let job = self.rotation.job(number);
            let alone = !matches!(job, Job::Nemesis(..));
            let _alone = alone.then(|| self.alone.lock().unwrap_or_else(PoisonError::into_inner));
            if !self.run(job, number)? {
                break;
            }
        }
        Ok(())
    }

    /// Runs a job and notes what it did; `false` if it was interrupted.
    fn run(&self, job: &Job, number: u64) -> Result<bool, String> {
        let begun = Instant::now();
        let log = self.folder.join(format!("{number}.txt"));
        let seed = self.state().next_seed;
        let ended = running::run(&mut job.command(self.asked, seed), &log, self.stopped)?;
        let text = std::fs::read_to_string(&log).map_err(|e| format!("{}: {e}", log.display()))?;
        let said = Said::read(job, &text);
        let Ended::Exited(exited) = ended else {
            said.forget();
            println!("interrupted: {} is not counted", job.name());
            return Ok(false);
        };
        let passed = exited && said.is_whole();
        let mut state = self.state();
        state.add(job, self.asked, &said, passed, begun.elapsed());
        if passed {
            said.forget();
            let _ = std::fs::remove_file(&log);
        } else {
            state.find(job, &said, &log);
        }
        state.save(&self.folder.join(STATE))?;
        record::write(root(), &state, self.rotation)?;
        println!("{}  {}: {}", clock(self.start.elapsed()), job.name(), said.line(passed));
        Ok(true)
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
