//! Several processes that want one lock: started, let go at one moment, heard at the end.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use latchwork::{Error, ErrorKind};
use latchwork_store::clock::boot_time;

use super::Plan;
use super::section::{Holds, Measured};
use super::worker::{Order, ROLE, read};

/// Between the word and the start: enough for each process to have read it.
const HEAD_START: Duration = Duration::from_millis(100);

/// Measures what the processes make of a lock.
pub(super) fn measure(plan: &Plan, name: &str, holds: (u64, u64)) -> Result<Measured, Error> {
    let order = Order {
        store: plan.store.clone(),
        namespace: plan.namespace.clone(),
        name: name.to_owned(),
        length: plan.length,
        holds,
    };
    let holds = play(&order, plan.processes).map_err(|error| {
        Error::new(ErrorKind::Corrupt, format!("a process of the bench: {error}"))
    })?;
    Ok(Measured::of_holds(holds, plan.processes, plan.length))
}

fn play(order: &Order, processes: u32) -> io::Result<Holds> {
    let mut workers: Vec<Worker> =
        (0..processes).map(|_| Worker::start(order)).collect::<io::Result<_>>()?;
    for worker in &mut workers {
        worker.ready()?;
    }
    let start = boot_time().plus(HEAD_START);
    for worker in &mut workers {
        worker.tell(&start.as_nanos().to_string())?;
    }
    let mut holds = Holds::default();
    for (process, worker) in workers.iter_mut().enumerate() {
        worker.tells(process as u32, &mut holds)?;
    }
    Ok(holds)
}

/// A process. Killed when dropped.
struct Worker {
    child: Child,
    says: BufReader<ChildStdout>,
}

impl Worker {
    fn start(order: &Order) -> io::Result<Self> {
        // The running file, also when its name is gone or has another file by now.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("latchwork-bench").arg(ROLE).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().ok_or_else(|| io::Error::other("no output"))?;
        let mut worker = Self { child, says: BufReader::new(stdout) };
        worker.tell(&order.encode())?;
        Ok(worker)
    }

    fn tell(&mut self, line: &str) -> io::Result<()> {
        let stdin = self.child.stdin.as_mut().ok_or_else(|| io::Error::other("no input"))?;
        writeln!(stdin, "{line}")
    }

    fn ready(&mut self) -> io::Result<()> {
        let mut line = String::new();
        self.says.read_line(&mut line)?;
        if line.trim_end() == "ready" { Ok(()) } else { Err(self.trouble()) }
    }

    fn tells(&mut self, process: u32, holds: &mut Holds) -> io::Result<()> {
        let mut text = String::new();
        self.says.read_to_string(&mut text)?;
        if !self.child.wait()?.success() {
            return Err(self.trouble());
        }
        let strange = || io::Error::other("it says what it should not");
        for line in text.lines() {
            match read(process, line).ok_or_else(strange)? {
                Some(section) => holds.sections.push(section),
                None => holds.lost += 1,
            }
        }
        Ok(())
    }

    /// What it said on its way out.
    fn trouble(&mut self) -> io::Error {
        let mut text = String::new();
        if let Some(stderr) = &mut self.child.stderr {
            let _ = stderr.read_to_string(&mut text);
        }
        io::Error::other(text.trim().to_owned())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Most have ended by themselves.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
