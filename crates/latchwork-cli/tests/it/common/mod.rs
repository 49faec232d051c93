//! What the tests of the command share: a store each, real processes, and their traces in /proc.

#![allow(unreachable_pub, reason = "a module of each test file")]
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::disallowed_methods, reason = "tests")]

pub mod pty;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// An upper bound for what should come at once, on a machine that may be very busy. Far below the
/// default ttl of 30 s, so a lock that passes on by expiry is told from one that is released.
pub const SOON: Duration = Duration::from_secs(15);

/// A store of its own, and a place for traces.
pub struct Store {
    dir: tempfile::TempDir,
}

impl Store {
    pub fn new() -> Self {
        usual_signals();
        Self { dir: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("locks")
    }

    pub fn url(&self) -> String {
        format!("file://{}", self.path().display())
    }

    /// A file that commands of this test may use.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `latchwork` with these arguments, without a terminal.
    pub fn latchwork(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_latchwork"));
        command.args(args);
        self.at_this_store(command)
    }

    /// A shell script, without a terminal.
    pub fn script(&self, script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        self.at_this_store(command)
    }

    fn at_this_store(&self, mut command: Command) -> Command {
        command
            .env("LATCHWORK_STORE", self.url())
            .env("TRACE", self.dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs it to its end.
    pub fn output(&self, args: &[&str]) -> Finished {
        Running::start(self.latchwork(args)).finish()
    }

    /// Starts a run of a script that says `OVERLAP` if anybody of an earlier script still runs,
    /// then `ready TOKEN GROUP`, and then does `rest`.
    ///
    /// It holds a flock on a file of its own, which every process that it starts inherits: it ends
    /// with the last of them.
    pub fn holder(&self, options: &[&str], rest: &str) -> Running {
        self.holder_with(options, rest, |_| {})
    }

    pub fn holder_with(
        &self,
        options: &[&str],
        rest: &str,
        change: impl FnOnce(&mut Command),
    ) -> Running {
        let script = format!(
            "exec 9>\"$TRACE/busy\"; flock -n 9 || echo OVERLAP; \
             echo \"ready $LATCHWORK_TOKEN $$\"; {rest}"
        );
        let mut args = vec!["run", "-v"];
        args.extend(options);
        args.extend(["x", "--", "sh", "-c", &script]);
        let mut command = self.latchwork(&args);
        change(&mut command);
        Running::start(command)
    }

    /// Starts a run that waits for the lock, and returns when it does.
    pub fn waiter(&self, rest: &str) -> Running {
        let waiter = self.holder(&[], rest);
        waiter.stderr.until("waiting for");
        waiter
    }
}

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

/// A `latchwork` that runs. Killed when dropped.
pub struct Running {
    pub child: Child,
    pub stdout: Lines,
    pub stderr: Lines,
}

impl Running {
    pub fn start(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let stdout = Lines::of(child.stdout.take().unwrap());
        let stderr = Lines::of(child.stderr.take().unwrap());
        Self { child, stdout, stderr }
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Reads the holder script's word.
    pub fn ready(&self) -> Ready {
        let line = self.stdout.next().expect("the command did not start");
        assert!(!line.contains("OVERLAP"), "an earlier command still runs");
        let words: Vec<_> = line.split(' ').collect();
        assert_eq!(words[0], "ready", "{line}");
        Ready { token: words[1].parse().unwrap(), group: pid(words[2].parse().unwrap()) }
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// The guardian of this run.
    pub fn guardian(&self) -> Pid {
        let own = self.child.id().to_string();
        eventually("a guardian", || {
            processes().into_iter().find(|&process| {
                stat(process).is_some_and(|stat| stat[1] == own)
                    && fs::read(format!("/proc/{process}/cmdline"))
                        .is_ok_and(|line| line.ends_with(b"\0__guardian\0"))
            })
        })
        .pipe(pid)
    }

    /// Waits for its end, and for everything that it and its command wrote.
    pub fn finish(mut self) -> Finished {
        let status = self.wait();
        Finished { status, stdout: self.stdout.rest(), stderr: self.stderr.rest() }
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> ExitStatus {
        eventually("the end of latchwork", || self.child.try_wait().unwrap())
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

#[derive(Debug, Clone, Copy)]
pub struct Ready {
    pub token: u64,
    pub group: Pid,
}

#[derive(Debug)]
pub struct Finished {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Finished {
    #[track_caller]
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| panic!("{self:?}"))
    }
}

trait Pipe: Sized {
    fn pipe<T>(self, f: impl FnOnce(Self) -> T) -> T {
        f(self)
    }
}

impl<T> Pipe for T {}

pub fn pid(number: i32) -> Pid {
    Pid::from_raw(number).unwrap()
}

/// Asks again and again until there is an answer.
#[track_caller]
pub fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(start.elapsed() < 2 * SOON, "waited in vain for {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

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

/// Members of a group that run.
pub fn alive(group: Pid) -> Vec<i32> {
    let number = group.as_raw_nonzero().get().to_string();
    processes()
        .into_iter()
        .filter(|&process| {
            stat(process).is_some_and(|stat| stat[2] == number && !matches!(&*stat[0], "Z" | "X"))
        })
        .collect()
}

pub fn kill(process: Pid) {
    kill_process(process, Signal::KILL).unwrap();
}

pub fn kill_group(group: Pid) {
    kill_process_group(group, Signal::KILL).unwrap();
}

pub fn exists(path: &Path) -> Option<()> {
    path.exists().then_some(())
}

/// Gives this process, and so what it starts, the usual answer to the signals that the tests send:
/// a build server may have started it with some of them ignored.
fn usual_signals() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        for signal in [
            libc::SIGHUP,
            libc::SIGINT,
            libc::SIGQUIT,
            libc::SIGTERM,
            libc::SIGUSR1,
            libc::SIGUSR2,
            libc::SIGTSTP,
            libc::SIGTTIN,
            libc::SIGTTOU,
            libc::SIGCHLD,
            libc::SIGCONT,
        ] {
            // SAFETY: the default action needs no handler, and nobody else sets these here.
            #[expect(unsafe_code, reason = "there is no safe way to set a signal's action")]
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
            }
        }
    });
}
