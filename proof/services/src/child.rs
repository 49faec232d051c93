//! Another process of the test program, to be stopped and killed.
//!
//! A module of the program's tests has a test named `child`, which plays the part that [`role`] tells.
//! What fails here fails the test.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::program::spawn;

/// The part that a child process plays, with the store's address; `None` in the parent.
pub fn role() -> Option<(String, String)> {
    let role = std::env::var("LATCHWORK_TEST_ROLE").ok()?;
    Some((role, std::env::var("LATCHWORK_TEST_STORE").unwrap()))
}

/// Says a line to the parent.
pub fn say(text: impl std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n>{text}").unwrap();
    out.flush().unwrap();
}

/// Waits for a line of the parent, or for its end.
pub fn hear() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

/// The command that runs the test `child` of a module of this program in the role
/// `module::path::role`, for the store at this address.
pub fn command(program: &Path, role: &str, store: &str) -> Command {
    let (module, role) = role.rsplit_once("::").expect("a module and a role");
    let test = format!("{module}::child");
    let mut command = Command::new(program);
    command
        .args(["--exact", &*test, "--nocapture", "--test-threads=1"])
        .env("LATCHWORK_TEST_ROLE", role)
        .env("LATCHWORK_TEST_STORE", store);
    command
}

/// A process that runs the test `child` of a module in a role. Killed when dropped.
pub struct Process {
    /// The process.
    pub child: Child,
    lines: BufReader<ChildStdout>,
}

impl Process {
    /// Starts it for the store at this address, in the role `module::path::role`.
    pub fn start(role: &str, store: &str) -> Self {
        Self::spawn(command(&std::env::current_exe().unwrap(), role, store))
    }

    /// Starts it by this command, or one around it.
    pub fn spawn(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = spawn(command);
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// The next line that the child says.
    pub fn line(&mut self) -> String {
        loop {
            let mut line = String::new();
            let read = self.lines.read_line(&mut line).unwrap();
            assert_ne!(read, 0, "the child ended without a word: {:?}", self.child.wait());
            if let Some(text) = line.strip_prefix('>') {
                return text.trim_end().to_owned();
            }
        }
    }

    /// Says a line to the child.
    pub fn tell(&mut self, text: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{text}").unwrap();
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Stops it (SIGSTOP), and waits until every thread of it stands still.
    pub fn stop(&self) {
        let pid = self.pid();
        self.signal(Signal::STOP);
        let (_, status) = waitpid(Some(pid), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped());
    }

    /// Lets it go on (SIGCONT).
    pub fn cont(&self) {
        self.signal(Signal::CONT);
    }

    /// Kills it (SIGKILL) and waits until it is gone.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until it ends well.
    pub fn end(mut self) {
        assert!(self.child.wait().unwrap().success());
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
