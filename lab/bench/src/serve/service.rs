//! `latchwork serve` as a process that is watched.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use latchwork_services::{Folder, Port, Process};
use rustix::process::{Pid, Signal, kill_process};

use crate::child::processor_time;
use crate::held_by_one::resident;
use crate::installing;
use crate::roles::Outcome;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// How long a start may take.
const START: Duration = Duration::from_secs(20);
/// A stop without an end would be a finding, too.
const STOP: Duration = Duration::from_secs(60);

/// A running service.
pub(super) struct Service {
    process: Process,
    port: Port,
    log: PathBuf,
    _folder: Folder,
}

impl Service {
    /// Starts the command that was built beside this program.
    pub(super) fn start(store: &str) -> Result<Self> {
        Self::with(store, &[])
    }

    /// The same with more arguments.
    pub(super) fn with(store: &str, more: &[&str]) -> Result<Self> {
        let (folder, port) = (Folder::new()?, Port::reserve()?);
        let log = folder.path().join("log");
        let listen = format!("127.0.0.1:{}", port.number());
        let mut command = Command::new(installing::command()?);
        command.args(["--store", store, "serve", "--listen", &listen]).args(more);
        let this = Self { process: Process::start(&command, &log)?, port, log, _folder: folder };
        let start = Instant::now();
        while !this.log().contains("ready") {
            if start.elapsed() > START {
                return Err(format!("the service does not start: {}", this.log()).into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(this)
    }

    pub(super) fn port(&self) -> u16 {
        self.port.number()
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The resident memory in kilobytes, when it does not change any more.
    pub(super) fn memory(&self) -> Result<f64> {
        std::thread::sleep(Duration::from_millis(500));
        Ok(resident(self.process.pid()).ok_or("how much memory?")?)
    }

    /// User and system time, in seconds.
    pub(super) fn processor_time(&self) -> f64 {
        processor_time(self.process.pid())
    }

    /// Its last words, if it has warned of anything.
    pub(super) fn warnings(&self) -> usize {
        self.log().lines().filter(|line| line.contains("WARN") || line.contains("ERROR")).count()
    }

    /// Stops it by a signal; `meanwhile` runs after that. Says how long it took, in seconds.
    pub(super) fn stop(mut self, meanwhile: impl FnOnce() -> Outcome) -> Result<f64> {
        let start = Instant::now();
        let pid = Pid::from_raw(i32::try_from(self.process.pid())?).ok_or("a process")?;
        kill_process(pid, Signal::TERM)?;
        meanwhile()?;
        while self.process.exit_status().is_none() {
            if start.elapsed() > STOP {
                return Err("the service does not stop".into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(start.elapsed().as_secs_f64())
    }
}
