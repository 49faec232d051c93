//! What the tests of the command share: a store each, real processes, and their traces in /proc.

#![allow(unreachable_pub, reason = "a module of each test file")]
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::disallowed_methods, reason = "tests")]

pub mod pty;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub use latchwork_services::program::{
    Finished, Running, SOON, eventually, processes, stat, state,
};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// A store of its own, and a place for traces.
pub struct Store {
    dir: tempfile::TempDir,
}

impl Store {
    pub fn new() -> Self {
        usual_signals();
        latchwork_store::testing::stalls::start();
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

    pub fn at_this_store(&self, mut command: Command) -> Command {
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

/// What a run of the holder's script tells of itself.
pub trait Holder {
    /// Reads the holder script's word.
    fn ready(&self) -> Ready;

    /// The guardian of this run.
    fn guardian(&self) -> Pid;
}

impl Holder for Running {
    fn ready(&self) -> Ready {
        let line = self.stdout.next().expect("the command did not start");
        assert!(!line.contains("OVERLAP"), "an earlier command still runs");
        let words: Vec<_> = line.split(' ').collect();
        assert_eq!(words[0], "ready", "{line}");
        Ready { token: words[1].parse().unwrap(), group: pid(words[2].parse().unwrap()) }
    }

    fn guardian(&self) -> Pid {
        let own = self.child.id().to_string();
        pid(eventually("a guardian", || {
            processes().into_iter().find(|&process| {
                stat(process).is_some_and(|stat| stat[1] == own)
                    && fs::read(format!("/proc/{process}/cmdline"))
                        .is_ok_and(|line| line.starts_with(b"latchwork-guardian\0"))
            })
        }))
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Ready {
    pub token: u64,
    pub group: Pid,
}

pub fn pid(number: i32) -> Pid {
    Pid::from_raw(number).unwrap()
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
