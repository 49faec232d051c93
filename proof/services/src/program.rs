//! A program that a test runs as people and scripts do: its lines, its end, its state in /proc.
//!
//! What fails here fails the test.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// An upper bound for what should come at once, on a machine that may be very busy. Far below the
/// default ttl of 30 s, so a lock that passes on by expiry is told from one that is released.
pub const SOON: Duration = Duration::from_secs(15);

/// Lines that a process writes, as they come.
pub struct Lines {
    lines: Receiver<String>,
}

impl Lines {
    fn of(stream: impl Read + Send + 'static) -> Self {
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(stream).split(b'\n') {
                let Ok(line) = line else { break };
                if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    break;
                }
            }
        });
        Self { lines }
    }

    /// The next line; `None` at the end.
    pub fn next(&self) -> Option<String> {
        match self.lines.recv_timeout(2 * SOON) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("no line and no end"),
        }
    }

    /// Skips to the line that holds `text`.
    pub fn until(&self, text: &str) -> String {
        let mut seen = Vec::new();
        while let Some(line) = self.next() {
            if line.contains(text) {
                return line;
            }
            seen.push(line);
        }
        panic!("ended without {text:?}: {seen:?}")
    }

    fn rest(&self) -> String {
        let mut text = String::new();
        while let Some(line) = self.next() {
            text.push_str(&line);
            text.push('\n');
        }
        text
    }
}

/// A program that runs. Killed when dropped.
pub struct Running {
    /// Its process.
    pub child: Child,
    /// What it writes to its standard output.
    pub stdout: Lines,
    /// What it writes to its standard error.
    pub stderr: Lines,
    what: String,
}

impl Running {
    /// Starts a command whose standard output and standard error are pipes.
    pub fn start(command: Command) -> Self {
        let what = format!("the end of {command:?}");
        let mut child = spawn(command);
        let stdout = Lines::of(child.stdout.take().unwrap());
        let stderr = Lines::of(child.stderr.take().unwrap());
        Self { child, stdout, stderr, what }
    }

    /// Its process id.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Waits for its end, and for everything that it and its children wrote.
    pub fn finish(mut self) -> Finished {
        let status = self.wait();
        Finished { status, stdout: self.stdout.rest(), stderr: self.stderr.rest() }
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> ExitStatus {
        eventually(&self.what, || self.child.try_wait().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Not waited for yet, so the number is still its own.
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A program that has ended.
#[derive(Debug)]
pub struct Finished {
    /// How it ended.
    pub status: ExitStatus,
    /// What it wrote to its standard output.
    pub stdout: String,
    /// What it wrote to its standard error.
    pub stderr: String,
}

impl Finished {
    /// Its exit code; it was not ended by a signal.
    #[track_caller]
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| panic!("{self:?}"))
    }
}

/// Asks again and again until there is an answer: less often the longer it takes, because most ask by a command.
#[track_caller]
pub fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        let waited = start.elapsed();
        assert!(waited < 2 * SOON, "waited in vain for {what}");
        thread::sleep((waited / 20).clamp(Duration::from_millis(5), Duration::from_millis(100)));
    }
}

/// Starts a program. One that was just copied is open for writing in a child that another thread has
/// forked meanwhile, until that child has become its own program.
pub(crate) fn spawn(mut command: Command) -> Child {
    let start = Instant::now();
    loop {
        match command.spawn() {
            Err(error)
                if error.kind() == ErrorKind::ExecutableFileBusy && start.elapsed() < SOON =>
            {
                thread::sleep(Duration::from_millis(5));
            }
            child => return child.expect("the program starts"),
        }
    }
}

/// All processes of the machine.
pub fn processes() -> Vec<i32> {
    fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect()
}

/// State, parent, group, session, terminal, foreground group and so on.
pub fn stat(process: i32) -> Option<Vec<String>> {
    let line = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let rest = &line[line.rfind(')')? + 2..];
    Some(rest.split(' ').map(str::to_owned).collect())
}

/// The state letter of a process, `-` if there is none.
pub fn state(process: Pid) -> char {
    stat(process.as_raw_nonzero().get()).and_then(|stat| stat[0].chars().next()).unwrap_or('-')
}
