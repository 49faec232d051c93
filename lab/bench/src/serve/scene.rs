//! How many connections, locks and waiting requests there are, and the process that makes them.

use std::process::Command;
use std::time::Duration;

use super::api::Api;
use crate::child::Worker;
use crate::stats::shortened;
use crate::times::Times;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// What each service of a run has to bear.
pub(super) struct Scene {
    pub(super) connections: usize,
    pub(super) locks: usize,
    pub(super) waiters: usize,
    pub(super) ttl: Duration,
}

impl Scene {
    pub(super) fn new() -> Self {
        let part = shortened(1, 5);
        Self {
            connections: 1_000 / part,
            locks: 10_000 / part,
            waiters: 200 / part,
            // What a client of the service gets that names none.
            ttl: Duration::from_secs(15),
        }
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
    pub(super) fn start(api: Api, port: u16, scene: &Scene) -> Result<Self> {
        let Scene { connections, locks, ttl, .. } = scene;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["child-serve", "load", api.word(), &port.to_string()]).args([
            connections.to_string(),
            (locks / connections).to_string(),
            ttl.as_millis().to_string(),
        ]);
        let mut this = Self(Worker::spawn(&mut command)?);
        this.order("connect")?;
        Ok(this)
    }

    /// Lets it do something to the end, and says how long that took, in seconds.
    pub(super) fn order(&mut self, what: &str) -> Result<f64> {
        self.0.tell(what)?;
        Ok(self.0.line()?.parse::<f64>()? / 1e3)
    }

    pub(super) fn numbers(&mut self) -> Result<Numbers> {
        self.0.tell("numbers")?;
        let (numbers, times) = Times::after_numbers(&self.0.line()?)?;
        let [renewed, failed, cpu] = numbers[..] else { return Err("three numbers".into()) };
        Ok(Numbers { renewed, failed, cpu, times })
    }
}
