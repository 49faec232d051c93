//! A leader and a candidate of one kind, in processes of their own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use latchwork_services::{ADMIN, KubernetesServer, OTHER_ADMIN, provided};
use rustix::process::{Pid, Signal, kill_process};

use super::{CHILD, CLIENT_GO, CRATES, OURS};
use crate::installing;
use crate::roles::{Outcome, now};
use crate::worker::Worker;

/// Longer than any of them takes for anything.
const ANSWER_LIMIT: Duration = Duration::from_secs(90);
/// Until a candidate has made its first tries and listens.
const SETTLED: Duration = Duration::from_secs(3);
const LEASE: &str = "leader";

struct Elector {
    worker: Worker,
    id: String,
    /// What it prints, and when that was read.
    lines: Receiver<(u64, String)>,
}

impl Elector {
    /// When it says this; what it says before is of no interest.
    fn says(&self, line: &str) -> Outcome<u64> {
        let start = Instant::now();
        loop {
            let left = ANSWER_LIMIT.saturating_sub(start.elapsed());
            let said = self.lines.recv_timeout(left);
            let said = said.map_err(|_| format!("{} does not say {line:?}", self.id))?;
            if said.1 == line {
                return Ok(said.0);
            }
        }
    }

    fn signal(&self, signal: Signal) -> Outcome<()> {
        Ok(kill_process(Pid::from_child(&self.worker.child), signal)?)
    }
}

/// What a stopped leader did when it went on.
pub(super) struct Overlap {
    /// How many lines it wrote after the first one of the next leader.
    pub(super) written: usize,
    /// Whether a write with its token was refused, if it has one.
    pub(super) refused: Option<bool>,
}

pub(super) struct Pair {
    pub(super) kind: &'static str,
    pub(super) namespace: String,
    /// Of two users, so that the requests of a leader and of a candidate are counted apart.
    kubeconfigs: [PathBuf; 2],
    folder: PathBuf,
    started: usize,
    leader: Elector,
    candidate: Option<Elector>,
}

impl Pair {
    /// Starts a leader, without a candidate yet.
    pub(super) fn start(
        kind: &'static str,
        server: &KubernetesServer,
        folder: &Path,
    ) -> Outcome<Self> {
        let namespace = format!("of-{kind}");
        server.make_namespace(&namespace)?;
        let port = server.port();
        let kubeconfigs = [
            server.kubeconfig(&namespace, ADMIN, port)?,
            server.kubeconfig(&format!("{namespace}-other"), OTHER_ADMIN, port)?,
        ];
        let leader = start(kind, &kubeconfigs[0], &namespace, folder, 0)?;
        leader.says("leads")?;
        let folder = folder.to_owned();
        Ok(Self { kind, namespace, kubeconfigs, folder, started: 1, leader, candidate: None })
    }

    /// Starts a candidate, unless there is one, and lets it settle.
    pub(super) fn with_candidate(&mut self) -> Outcome<()> {
        if self.candidate.is_none() {
            let number = self.started;
            let kubeconfig = &self.kubeconfigs[number % 2];
            let next = start(self.kind, kubeconfig, &self.namespace, &self.folder, number)?;
            next.says("started")?;
            self.started += 1;
            self.candidate = Some(next);
            std::thread::sleep(SETTLED);
        }
        Ok(())
    }

    /// Milliseconds from this signal to the leader until the candidate leads.
    pub(super) fn followed(&mut self, end: Signal) -> Outcome<f64> {
        self.with_candidate()?;
        let candidate = self.candidate.take().ok_or("no candidate")?;
        let at = now();
        self.leader.signal(end)?;
        let led = candidate.says("leads")?;
        self.leader = candidate;
        Ok(led.saturating_sub(at) as f64 / 1e6)
    }

    /// Stops the leader until the candidate leads and works, and lets it go on.
    pub(super) fn overlap(&mut self) -> Outcome<Overlap> {
        self.with_candidate()?;
        let candidate = self.candidate.take().ok_or("no candidate")?;
        self.leader.signal(Signal::STOP)?;
        candidate.says("leads")?;
        std::thread::sleep(Duration::from_secs(1));
        self.leader.signal(Signal::CONT)?;
        self.leader.says("stopped")?;
        let refused = match self.kind {
            OURS => Some(self.leader.lines.recv_timeout(ANSWER_LIMIT)?.1 == "refused"),
            _ => None,
        };
        let log = std::fs::read_to_string(log(&self.folder, &self.namespace))?;
        let after = log.lines().skip_while(|id| *id != candidate.id);
        let written = after.filter(|id| *id == self.leader.id).count();
        // The old one ends here: it might come back as a second candidate.
        self.leader = candidate;
        Ok(Overlap { written, refused })
    }
}

fn log(folder: &Path, namespace: &str) -> PathBuf {
    folder.join(format!("{namespace}.log"))
}

fn start(
    kind: &str,
    kubeconfig: &Path,
    namespace: &str,
    folder: &Path,
    number: usize,
) -> Outcome<Elector> {
    let (id, log) = (format!("{kind}-{number}"), log(folder, namespace));
    let (program, first) = match kind {
        OURS => (std::env::current_exe()?, CHILD),
        CLIENT_GO => (provided("elector")?.into(), ""),
        _ => (installing::cargo_program(CRATES), kind),
    };
    let mut command = Command::new(program);
    if kind == CLIENT_GO {
        command.arg("-kubeconfig").arg(kubeconfig).args(["-namespace", namespace]);
        command.args(["-name", LEASE, "-id", &id]).arg("-log").arg(&log);
    } else {
        command.arg(first).arg(kubeconfig).args([namespace, LEASE, &id]).arg(&log);
    }
    // Their loggers write what they find.
    command.stderr(std::process::Stdio::null());
    let mut worker = Worker::spawn(&mut command)?;
    let (sender, lines) = channel();
    worker.read(move |line| sender.send((now(), line)).is_ok());
    Ok(Elector { worker, id, lines })
}
