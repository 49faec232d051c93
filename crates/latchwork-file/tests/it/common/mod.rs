//! What the tests share: claims, a small acquire loop, and processes to be killed.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use latchwork::Driver;
use latchwork_file::FileBackend;
pub use latchwork_services::child::{self, Process, hear, say};
use latchwork_store::*;
use tokio::runtime::{Builder, Runtime};

pub const SEC: Duration = Duration::from_secs(1);

static DRIVER: LazyLock<Driver> = LazyLock::new(|| Driver::start().unwrap());

/// The place where all backends of a test process run.
pub fn io() -> Io {
    DRIVER.io()
}

/// The runtime of a child, without I/O. The backend asks it for that once, which tokio answers by a panic. It
/// is caught; its message would stand in the middle of the lines that tell of the trials.
pub fn without_io() -> Runtime {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |told| {
        let said = told.to_string();
        if !said.contains("IO is disabled") {
            usual(told);
        }
    }));
    Builder::new_current_thread().build().unwrap()
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

/// The part that a child process plays, with the lock directory; `None` in the parent.
pub fn role() -> Option<(String, PathBuf)> {
    child::role().map(|(role, dir)| (role, dir.into()))
}

/// A process of this program in the role `module::role`, with its lock directory.
pub fn start(role: &str, dir: &Path) -> Process {
    Process::start(role, text(dir))
}

/// The command that starts one by this program.
pub fn command(program: &Path, role: &str, dir: &Path) -> Command {
    child::command(program, role, text(dir))
}

fn text(dir: &Path) -> &str {
    dir.to_str().expect("the folders of tests have such names")
}
