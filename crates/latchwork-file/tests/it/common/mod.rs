//! What the tests share: claims, a small acquire loop, and processes to be killed.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use latchwork::Driver;
use latchwork_file::FileBackend;
use latchwork_store::*;

pub const SEC: Duration = Duration::from_secs(1);

static DRIVER: LazyLock<Driver> = LazyLock::new(|| Driver::start().unwrap());

/// The place where all backends of a test process run.
pub fn io() -> Io {
    DRIVER.io()
}

pub fn connect(dir: &Path) -> Arc<FileBackend> {
    FileBackend::connect(dir, io()).unwrap()
}

pub fn claim(key: &str) -> Claim {
    Claim::new(
        Key::new(key).unwrap(),
        ClaimId::random(),
        Mode::Exclusive,
        30 * SEC,
        Stamp::new(io().now()),
    )
    .with(|it| it.holder = format!("test {}", std::process::id()).into())
}

pub fn with_mode(key: &str, mode: Mode) -> Claim {
    claim(key).with(|it| it.mode = mode)
}

pub fn granted(attempt: Result<Attempt, BackendError>) -> u64 {
    match attempt {
        Ok(Attempt::Granted(grant)) => grant.token,
        other => panic!("not granted: {other:?}"),
    }
}

pub fn blocked(attempt: Result<Attempt, BackendError>) -> Blocked {
    match attempt {
        Ok(Attempt::Blocked(blocked)) => blocked,
        other => panic!("not blocked: {other:?}"),
    }
}

pub async fn release(backend: &FileBackend, claim: &Claim) -> Released {
    backend.release(claim, Linger::None).await.unwrap()
}

pub async fn renew(backend: &FileBackend, claim: &Claim) -> Renewal {
    backend.renew_all(std::slice::from_ref(claim)).await.pop().unwrap().unwrap()
}

/// Waits until it holds the claim, told by nothing but the backend: no timer. Answers the token
/// and how often it tried.
pub async fn acquire(backend: &FileBackend, claim: &Claim) -> (u64, u32) {
    for tries in 1.. {
        match backend.try_acquire(claim).await.unwrap() {
            Attempt::Granted(grant) => return (grant.token, tries),
            Attempt::Blocked(blocked) => {
                backend.wait(claim, &blocked).await.unwrap();
            }
        }
    }
    unreachable!()
}

/// Fails the test, rather than hanging it, when something does not happen.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match io().within(60 * SEC, future).await {
        Some(output) => output,
        None => panic!("{what} did not happen within a minute"),
    }
}

/// Whether a future is still pending after everything that was under way had time to arrive.
pub async fn still_pending<T>(future: impl Future<Output = T>) -> bool {
    io().within(Duration::from_millis(150), future).await.is_none()
}

/// Another process of this test program. Killed when dropped.
pub struct Process {
    pub child: Child,
    lines: BufReader<ChildStdout>,
}

/// The part that a child process plays, with the lock directory; `None` in the parent.
pub fn role() -> Option<(String, std::path::PathBuf)> {
    let role = std::env::var("LATCHWORK_TEST_ROLE").ok()?;
    Some((role, std::env::var_os("LATCHWORK_TEST_DIR").unwrap().into()))
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

/// The command that runs the test `child` of a module of this program in the role `module::role`.
pub fn command(program: &Path, role: &str, dir: &Path) -> Command {
    let (module, role) = role.rsplit_once("::").expect("a module and a role");
    let test = format!("{module}::child");
    let mut command = Command::new(program);
    command
        .args(["--exact", &*test, "--nocapture", "--test-threads=1"])
        .env("LATCHWORK_TEST_ROLE", role)
        .env("LATCHWORK_TEST_DIR", dir);
    command
}

impl Process {
    pub fn start(role: &str, dir: &Path) -> Self {
        Self::spawn(command(&std::env::current_exe().unwrap(), role, dir))
    }

    pub fn spawn(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let start = Instant::now();
        let mut child = loop {
            match command.spawn() {
                // A program that was just copied is open for writing in a child that another thread
                // has forked meanwhile, until that child has become its own program.
                Err(error)
                    if error.kind() == std::io::ErrorKind::ExecutableFileBusy
                        && start.elapsed() < Duration::from_secs(10) =>
                {
                    std::thread::sleep(Duration::from_millis(10));
                }
                spawned => break spawned.expect("a child starts"),
            }
        };
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

    pub fn tell(&mut self, text: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{text}").unwrap();
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Stops it, and waits until every thread of it stands still.
    pub fn stop(&self) {
        self.signal(rustix::process::Signal::STOP);
        let pid = rustix::process::Pid::from_child(&self.child);
        let options = rustix::process::WaitOptions::UNTRACED;
        let (_, status) = rustix::process::waitpid(Some(pid), options).unwrap().unwrap();
        assert!(status.stopped());
    }

    /// Waits until it ends well.
    pub fn end(mut self) {
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
