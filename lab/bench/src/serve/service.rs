//! `latchwork serve` as a process that is watched, and the process that makes its load.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use latchwork_services::{Folder, Port, Process};
use rustix::process::{Pid, Signal, kill_process};

use super::api::Api;
use crate::installing;
use crate::roles::Outcome;
use crate::stats::shortened;
use crate::times::Times;
use crate::worker::{Worker, processor_time, resident};

/// The first argument of a process of these measurements.
pub(crate) const CHILD: &str = "child-serve";
/// The name of a row.
pub(super) const SERVICE: &str = "the service, by HTTP";
/// How long the processor time of the renewals is watched: two rounds of them.
pub(super) const WATCHED: Duration = Duration::from_secs(10);
/// Until 200 requests wait.
pub(super) const UNTIL_THEY_WAIT: Duration = Duration::from_secs(2);
/// How long a start may take.
const START: Duration = Duration::from_secs(20);
/// A stop without an end would be a finding, too.
const STOP: Duration = Duration::from_secs(60);

pub(super) fn kilobytes(kilobytes: f64) -> String {
    match kilobytes.abs() {
        many if many > 10_000.0 => format!("{:.1} MB", kilobytes / 1e3),
        _ => format!("{kilobytes:.2} kB"),
    }
}

/// A running service.
pub(super) struct Service {
    process: Process,
    port: Port,
    log: PathBuf,
    _folder: Folder,
}

impl Service {
    /// Starts the command that was built beside this program.
    pub(super) fn start(store: &str, more: &[&str]) -> Outcome<Self> {
        let (folder, port) = (Folder::new()?, Port::reserve()?);
        let log = folder.path().join("log");
        let listen = format!("127.0.0.1:{}", port.number());
        let mut command = Command::new(installing::latchwork()?);
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
    pub(super) fn memory(&self) -> Outcome<f64> {
        std::thread::sleep(Duration::from_millis(500));
        resident(self.process.pid())
    }

    /// User and system time, in seconds.
    pub(super) fn processor_time(&self) -> f64 {
        processor_time(self.process.pid(), false)
    }

    pub(super) fn warnings(&self) -> usize {
        self.log().lines().filter(|line| line.contains("WARN") || line.contains("ERROR")).count()
    }

    /// Stops it by a signal; `meanwhile` runs after that. Says how long it took, in seconds.
    pub(super) fn stop(mut self, meanwhile: impl FnOnce() -> Outcome) -> Outcome<f64> {
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

/// What each service of a run has to bear.
#[derive(Clone, Copy)]
pub(super) struct Scene {
    pub(super) connections: usize,
    pub(super) locks: usize,
    pub(super) waiters: usize,
    pub(super) ttl: Duration,
}

impl Scene {
    pub(super) fn new() -> Self {
        let part = shortened(1, 5);
        // What a client of the service gets that names no ttl.
        let ttl = Duration::from_secs(15);
        Self { connections: 1_000 / part, locks: 10_000 / part, waiters: 200 / part, ttl }
    }

    /// For the line above a table.
    pub(super) fn told(&self) -> String {
        format!(
            "{} connections hold {} locks with a ttl of {} s and renew each by HTTP every {} s, and {} requests wait",
            self.connections,
            self.locks,
            self.ttl.as_secs(),
            self.ttl.as_secs() / 3,
            self.waiters
        )
    }
}

/// The process that makes the load.
pub(super) struct Load(Worker);

/// What it has seen since it was asked last.
pub(super) struct Numbers {
    pub(super) renewed: f64,
    pub(super) failed: f64,
    /// Its processor time so far, in microseconds.
    pub(super) cpu: f64,
    pub(super) times: Times,
}

impl Load {
    /// Starts it, with all connections open.
    pub(super) fn start(api: Api, port: u16, scene: &Scene) -> Outcome<Self> {
        let Scene { connections, locks, ttl, .. } = scene;
        let (port, share) = (port.to_string(), (locks / connections).to_string());
        let (connections, ttl) = (connections.to_string(), ttl.as_millis().to_string());
        let args = [CHILD, "load", api.word(), &port, &connections, &share, &ttl];
        let mut this = Self(Worker::own(&args)?);
        this.order("connect")?;
        Ok(this)
    }

    /// Lets it do something to the end, and says how long that took, in seconds.
    pub(super) fn order(&mut self, what: &str) -> Outcome<f64> {
        Ok(self.0.ask(what)? / 1e3)
    }

    pub(super) fn numbers(&mut self) -> Outcome<Numbers> {
        self.0.tell("numbers")?;
        let ([renewed, failed, cpu], times) = self.0.numbers()?;
        Ok(Numbers { renewed, failed, cpu, times })
    }
}
