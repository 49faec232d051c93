//! What the processes do that a measurement starts, and how it talks to them.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use latchwork::{BlockOn, LockManager, connect};
use rustix::fs::{FlockOperation, flock};
use tokio::runtime::{Builder, Runtime};

pub(crate) use crate::roles::now;

/// A process of this program in a role, and what it prints.
pub(crate) struct Worker {
    pub(crate) child: Child,
    pub(crate) lines: Lines<Box<dyn BufRead + Send>>,
}

impl Worker {
    pub(crate) fn start(role: &str, kind: &str, path: &Path) -> std::io::Result<Self> {
        Self::spawn(Command::new(std::env::current_exe()?).args([role, kind]).arg(path))
    }

    /// Starts what the command says.
    pub(crate) fn spawn(command: &mut Command) -> std::io::Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().ok_or(std::io::ErrorKind::BrokenPipe)?;
        let stdout: Box<dyn BufRead + Send> = Box::new(BufReader::new(stdout));
        Ok(Self { child, lines: stdout.lines() })
    }

    pub(crate) fn line(&mut self) -> std::io::Result<String> {
        self.lines.next().unwrap_or_else(|| Err(std::io::ErrorKind::UnexpectedEof.into()))
    }

    /// The moment that the process prints next.
    pub(crate) fn moment(&mut self) -> Result<u64, Box<dyn std::error::Error>> {
        Ok(self.line()?.parse()?)
    }

    pub(crate) fn go_on(&mut self) -> std::io::Result<()> {
        self.tell("")
    }

    /// Gives what it prints to somebody else to read.
    pub(crate) fn take_lines(&mut self) -> Lines<Box<dyn BufRead + Send>> {
        let nothing: Box<dyn BufRead + Send> = Box::new(std::io::empty());
        std::mem::replace(&mut self.lines, nothing.lines())
    }

    pub(crate) fn tell(&mut self, line: &str) -> std::io::Result<()> {
        let stdin = self.child.stdin.as_mut().ok_or(std::io::ErrorKind::BrokenPipe)?;
        stdin.write_all(format!("{line}\n").as_bytes())?;
        stdin.flush()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Either kind of lock, held for as long as the value lives.
enum Held {
    Latchwork(latchwork::Guard),
    OnRuntime(Arc<Runtime>, latchwork::Guard),
    Flock(File),
}

enum Lock {
    Latchwork(LockManager),
    OnRuntime(Arc<Runtime>, latchwork::LockManager),
    Flock(std::path::PathBuf),
}

impl Lock {
    fn open(kind: &str, path: &str) -> Self {
        match kind {
            "flock" => Self::Flock(Path::new(path).join("bare")),
            "task" => {
                let runtime =
                    Builder::new_current_thread().enable_all().build().expect("a runtime");
                let url = format!("file://{path}/locks");
                let locks = runtime.block_on(latchwork::connect(&url)).expect("connects");
                Self::OnRuntime(Arc::new(runtime), locks)
            }
            _ => Self::Latchwork(
                connect(&format!("file://{path}/locks")).block_on().expect("connects"),
            ),
        }
    }

    fn acquire(&self) -> Held {
        match self {
            Self::Latchwork(locks) => Held::Latchwork(
                locks.mutex("bench").acquire().block_on().expect("the store answers"),
            ),
            Self::OnRuntime(runtime, locks) => {
                let guard = runtime.block_on(locks.mutex("bench").acquire());
                Held::OnRuntime(runtime.clone(), guard.expect("the store answers"))
            }
            Self::Flock(path) => {
                let file = OpenOptions::new().create(true).append(true).open(path);
                let file = file.expect("opens");
                flock(&file, FlockOperation::LockExclusive).expect("locks");
                Held::Flock(file)
            }
        }
    }
}

fn release(held: Held) {
    match held {
        Held::Latchwork(guard) => guard.release().block_on().expect("the store answers"),
        Held::OnRuntime(runtime, guard) => {
            runtime.block_on(guard.release()).expect("the store answers");
        }
        Held::Flock(file) => drop(file),
    }
}

/// The entry of a started process.
pub(crate) fn run(role: &str, args: &[String]) -> ExitCode {
    if ["child-lock", "child-free", "child-serve", "child-elect", crate::growth::child::ROLE]
        .contains(&role)
    {
        let done = match role {
            "child-lock" => crate::lock_child::run(args),
            "child-serve" => crate::serve::child(args),
            "child-elect" => crate::kubernetes::child(args),
            crate::growth::child::ROLE => crate::growth::child::run(args),
            _ => crate::free_child::run(args),
        };
        return match done {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        };
    }
    let [kind, path] = args else { return ExitCode::FAILURE };
    if role == "child-held" {
        return match crate::held::measure(kind) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        };
    }
    let lock = Lock::open(kind, path);
    match role {
        "child-turns" => take_turns(&lock),
        "child-hold" => hold(&lock),
        "child-wait" => wait(&lock),
        _ => return ExitCode::FAILURE,
    }
    ExitCode::SUCCESS
}

/// Holds again and again, long enough for the other to wait, and tells when.
fn take_turns(lock: &Lock) {
    let mut log = Vec::new();
    for _ in 0..crate::handover::TURNS {
        let held = lock.acquire();
        let acquired = now();
        // The holder works; the other one has been asleep for a while when its turn comes.
        while now() - acquired < 1_000_000 {
            std::hint::spin_loop();
        }
        let released = now();
        release(held);
        log.push((acquired, released));
        std::thread::sleep(Duration::from_micros(500));
    }
    for (acquired, released) in log {
        println!("{acquired} {released}");
    }
}

/// Holds until it is told to let go, or killed.
fn hold(lock: &Lock) {
    let held = lock.acquire();
    println!("{}", now());
    let _ = std::io::stdin().read_line(&mut String::new());
    release(held);
}

/// Says that it is about to wait, and when it was admitted.
fn wait(lock: &Lock) {
    println!("waiting");
    let held = lock.acquire();
    println!("{}", now());
    let _ = std::io::stdin().read_line(&mut String::new());
    release(held);
}

/// Reads a field of `/proc/PID/status`.
pub(crate) fn status_field(pid: u32, field: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with(field))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// The voluntary context switches of all threads of a process: how often one of them woke up.
pub(crate) fn wakeups(pid: u32) -> u64 {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return 0 };
    tasks
        .flatten()
        .filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok())
        .filter_map(|status| {
            let line = status.lines().find(|l| l.starts_with("voluntary_ctxt_switches"))?;
            line.split_whitespace().nth(1)?.parse::<u64>().ok()
        })
        .sum()
}

/// User and system time of a process, in seconds.
pub(crate) fn processor_time(pid: u32) -> f64 {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return 0.0 };
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split(' ').collect();
    let ticks = |n: usize| fields.get(n).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(12) + ticks(13)) / 100.0
}

/// Waits until a process sleeps: it has done all that it can do for now.
pub(crate) fn until_asleep(pid: u32) {
    let mut quiet = 0;
    let mut last = wakeups(pid);
    while quiet < 5 {
        std::thread::sleep(Duration::from_millis(2));
        let seen = wakeups(pid);
        quiet = if seen == last { quiet + 1 } else { 0 };
        last = seen;
    }
}
