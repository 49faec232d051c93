//! Child processes that end with the value that started them, or with this process.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::{self, OpenOptions};
use std::io;
use std::ops::DerefMut;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError, mpsc};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::wait::{LIMIT, until};
use crate::{Error, Result};

/// How much of a log an error message shows.
const TAIL: usize = 3_000;

/// Returns the place of a server: a program, the folder of the programs of PostgreSQL, or the class path of ZooKeeper.
/// A server that is missing is fetched or built first. `name` may have a version, as in `redis@7.0.15`.
///
/// # Errors
///
/// If it is not there and cannot be had; the text says what is missing.
pub fn provided(name: &str) -> Result<String> {
    static KNOWN: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(place) = known().get(name) {
        return Ok(place.clone());
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("provide");
    let output = Command::new("sh").arg(&script).arg(name).stdin(Stdio::null()).output();
    let output = output.map_err(|e| Error::while_("sh", e))?;
    if !output.status.success() {
        return Err(Error::new(String::from_utf8_lossy(&output.stderr).trim_end()));
    }
    let place = String::from_utf8_lossy(&output.stdout).trim_end().to_owned();
    known().insert(name.to_owned(), place.clone());
    Ok(place)
}

/// The first numbers of what a program says of its version, such as `[7, 0, 15]`; none if it says nothing. Asked once.
pub fn version(program: impl AsRef<Path>) -> Vec<u32> {
    static KNOWN: Mutex<BTreeMap<PathBuf, Vec<u32>>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let ask = || {
        let said = Command::new(program.as_ref()).arg("--version").output();
        let said = said.map(|said| String::from_utf8_lossy(&said.stdout).into_owned());
        let said = said.unwrap_or_default();
        let is_number = |c: char| c.is_ascii_digit() || c == '.';
        let words = said.split(|c: char| !is_number(c)).find(|word| word.contains('.'));
        words.into_iter().flat_map(|word| word.split('.')).map_while(|n| n.parse().ok()).collect()
    };
    known.entry(program.as_ref().to_owned()).or_insert_with(ask).clone()
}

/// A program in Go that collects garbage rarely: those of the tests end before they have much.
pub(crate) fn go(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("GOGC", "400");
    command
}

/// A server as a child process, with a file for what it prints.
///
/// Dropping it ends the process (SIGKILL) and waits for it. If this process dies first, the
/// system kills the child.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    ended: Option<ExitStatus>,
}

impl Process {
    /// Starts a command whose output is appended to `log`.
    ///
    /// # Errors
    ///
    /// If the program cannot be started. Output that it prints before it ends is in the log.
    pub fn start(command: &Command, log: &Path) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let out = OpenOptions::new().create(true).append(true).open(log)?;
        let mut command = with_death_signal(command);
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        let child = start_elsewhere(command)
            .map_err(|e| Error::while_(format!("cannot start {name}"), e))?;
        Ok(Self { name, child, log: log.into(), ended: None })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it (SIGKILL) and waits until it is gone.
    pub fn kill(&mut self) {
        if self.ended.is_none() {
            // It may have ended by itself.
            let _ = self.child.kill();
            self.ended = Some(self.child.wait().unwrap_or(ExitStatus::from_raw(0)));
        }
    }

    /// Asks it to end (SIGTERM) and waits.
    ///
    /// # Errors
    ///
    /// If it has not ended after `limit`. It lives on then.
    pub fn terminate(&mut self, limit: Duration) -> Result<ExitStatus> {
        self.end_by(Signal::TERM, limit)
    }

    /// As [`terminate`](Self::terminate), by another signal.
    pub(crate) fn end_by(&mut self, signal: Signal, limit: Duration) -> Result<ExitStatus> {
        self.signal(signal)?;
        let what = format!("{} to end", self.name);
        until(limit, &what, || self.exit_status().ok_or_else(|| self.log()))
    }

    /// Stops it where it is (SIGSTOP), and returns when it stands still. Its port still takes
    /// connections.
    ///
    /// # Errors
    ///
    /// If the process is gone.
    pub fn stop(&mut self) -> Result<()> {
        self.signal(Signal::STOP)?;
        let what = format!("{} to stop", self.name);
        until(Duration::from_secs(10), &what, || self.is_stopped().then_some(()).ok_or("it runs"))
    }

    /// Lets it go on (SIGCONT).
    ///
    /// # Errors
    ///
    /// If the process is gone.
    pub fn cont(&mut self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// How it ended, if it has.
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten();
        }
        self.ended
    }

    /// The file with all that it printed.
    pub fn log_file(&self) -> &Path {
        &self.log
    }

    /// The end of what it printed.
    pub fn log(&self) -> String {
        let bytes = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(TAIL)..]).into_owned()
    }

    fn signal(&mut self, signal: Signal) -> Result<()> {
        // A process that ended keeps its id only until it is waited for.
        if let Some(status) = self.exit_status() {
            return Err(Error::new(format!("{} has ended ({status}):\n{}", self.name, self.log())));
        }
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).map_err(|e| Error::while_(format!("signal {}", self.name), e))
    }

    /// Whether it is there and not stopped (SIGSTOP).
    pub fn is_running(&self) -> bool {
        self.states().is_some_and(|states| !states.contains(&'Z')) && !self.is_stopped()
    }

    /// Whether all its threads stand still.
    fn is_stopped(&self) -> bool {
        self.states().is_some_and(|states| states.iter().all(|state| "Tt".contains(*state)))
    }

    /// The states of its threads, as proc(5) has them: each follows a name in brackets.
    fn states(&self) -> Option<Vec<char>> {
        if self.ended.is_some() {
            return None;
        }
        let mut states = Vec::new();
        for task in fs::read_dir(format!("/proc/{}/task", self.pid())).ok()?.flatten() {
            let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            states.extend(stat.rsplit(") ").next().and_then(|rest| rest.chars().next()));
        }
        Some(states)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Lets a server be used as the [`Process`] that it has: killed, stopped and so on.
macro_rules! is_a_process {
    ($server:ty) => {
        impl std::ops::Deref for $server {
            type Target = $crate::Process;

            fn deref(&self) -> &Self::Target {
                &self.process
            }
        }

        impl std::ops::DerefMut for $server {
            fn deref_mut(&mut self) -> &mut Self::Target {
                &mut self.process
            }
        }
    };
}

pub(crate) use is_a_process;

/// Waits until a server is ready. One that ended will not be.
pub(crate) fn await_ready<S: DerefMut<Target = Process>, T, E: Display>(
    server: &mut S,
    what: &str,
    ready: impl Fn(&S) -> std::result::Result<T, E>,
) -> Result<()> {
    until(LIMIT, what, || {
        if let Some(status) = server.exit_status() {
            // In one of the spellings of a lost race for a port.
            let log = server.log().replace("address already in use", "Address already in use");
            return Ok(Err(Error::new(format!("{what} has ended ({status}):\n{log}"))));
        }
        ready(server).map(|_| Ok(())).map_err(|e| format!("{e}; its log:\n{}", server.log()))
    })?
}

/// What a program prints, if it succeeds. `name` says what to install.
pub(crate) fn said(name: &str, command: &mut Command) -> Result<String> {
    let Output { status, stdout, stderr } = command.output().map_err(|e| Error::while_(name, e))?;
    let text = String::from_utf8_lossy(&stdout).trim_end().to_owned();
    match status.success() {
        true => Ok(text),
        false => {
            let said = String::from_utf8_lossy(&stderr);
            let args: Vec<_> = command.get_args().collect();
            Err(Error::new(format!("{name} {args:?}: {status}: {text}{said}")))
        }
    }
}

/// The same command behind `setpriv`, which asks the kernel to kill the program when the thread
/// that started it ends, and then becomes the program.
fn with_death_signal(command: &Command) -> Command {
    let mut wrapped = Command::new("setpriv");
    wrapped.args(["--pdeathsig", "KILL"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => wrapped.env(name, value),
            None => wrapped.env_remove(name),
        };
    }
    if let Some(dir) = command.get_current_dir() {
        wrapped.current_dir(dir);
    }
    wrapped
}

type Job = (Command, mpsc::Sender<io::Result<Child>>);

/// Starts a child on a thread that lives as long as this process: the signal of `setpriv` comes
/// when the starting thread ends, and a test's thread ends long before others are done with a
/// server that they share.
fn start_elsewhere(command: Command) -> io::Result<Child> {
    static STARTER: OnceLock<Mutex<mpsc::Sender<Job>>> = OnceLock::new();
    let starter = STARTER.get_or_init(|| {
        let (jobs, todo) = mpsc::channel::<Job>();
        std::thread::spawn(move || {
            for (mut command, answer) in todo {
                // Nobody waits for the answer only if that thread panicked.
                let _ = answer.send(command.spawn());
            }
        });
        Mutex::new(jobs)
    });
    let gone = || io::Error::other("the starting thread is gone");
    let (answer, started) = mpsc::channel();
    let sender = starter.lock().unwrap_or_else(|e| e.into_inner()).clone();
    sender.send((command, answer)).map_err(|_| gone())?;
    started.recv().map_err(|_| gone())?
}
