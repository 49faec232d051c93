//! One job from its start to its end, or to an interruption.

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(100);
/// How long a job may take to end by itself.
const PATIENCE: Duration = Duration::from_secs(5);

/// How a job ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// By itself, and whether its exit code says that all is well.
    Exited(bool),
    /// Somebody asked to stop.
    Interrupted,
}

/// Runs a command, whose output goes into a file, until it ends or `stopped` is set.
///
/// It has a process group of its own: Ctrl-C reaches this program only, which then ends the group.
pub(crate) fn run(
    command: &mut Command,
    log: &Path,
    stopped: &AtomicBool,
) -> Result<Ended, String> {
    let file = File::create(log).map_err(|e| format!("{}: {e}", log.display()))?;
    let errors = file.try_clone().map_err(|e| format!("{}: {e}", log.display()))?;
    command.process_group(0).stdin(Stdio::null()).stdout(file).stderr(errors);
    let mut child = command.spawn().map_err(|e| format!("{command:?}: {e}"))?;
    loop {
        if let Some(status) = child.try_wait().map_err(|e| e.to_string())? {
            return Ok(Ended::Exited(status.success()));
        }
        if stopped.load(Ordering::Relaxed) {
            end(&mut child)?;
            return Ok(Ended::Interrupted);
        }
        sleep(PAUSE);
    }
}

/// Ends a job and all that it has started: politely, then by force.
fn end(child: &mut Child) -> Result<(), String> {
    signal("-INT", child)?;
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if child.try_wait().map_err(|e| e.to_string())?.is_some() {
            break;
        }
        sleep(PAUSE);
    }
    // The group may have members that outlived their leader.
    let _ = signal("-KILL", child);
    child.wait().map(drop).map_err(|e| e.to_string())
}

fn signal(name: &str, child: &Child) -> Result<(), String> {
    let group = format!("-{}", child.id());
    let output = Command::new("kill").args([name, "--", &group]).output();
    let output = output.map_err(|e| format!("kill: {e}"))?;
    if output.status.success() { Ok(()) } else { Err(format!("kill {name}: {}", output.status)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_job_that_ends_is_judged_by_its_exit_code() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let never = AtomicBool::new(false);
        let ended = run(&mut shell("echo well; echo so >&2"), &log, &never);
        assert_eq!(ended, Ok(Ended::Exited(true)));
        assert_eq!(std::fs::read_to_string(&log).unwrap(), "well\nso\n");
        assert_eq!(run(&mut shell("exit 1"), &log, &never), Ok(Ended::Exited(false)));
    }

    #[test]
    fn an_interrupted_job_leaves_no_process() {
        let folder = tempfile::tempdir().unwrap();
        let (log, pid) = (folder.path().join("log"), folder.path().join("pid"));
        let stopped = AtomicBool::new(false);
        let script = format!("sleep 600 & echo $! > {}; trap '' INT; wait; wait", pid.display());
        std::thread::scope(|scope| {
            let job = scope.spawn(|| run(&mut shell(&script), &log, &stopped));
            let started = Instant::now();
            while !std::fs::read_to_string(&pid).is_ok_and(|text| text.ends_with('\n')) {
                assert!(started.elapsed() < Duration::from_secs(20), "it never started");
                sleep(Duration::from_millis(10));
            }
            stopped.store(true, Ordering::Relaxed);
            assert_eq!(job.join().unwrap(), Ok(Ended::Interrupted));
        });
        let pid = std::fs::read_to_string(&pid).unwrap();
        let status = || std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
        // It is gone, or a zombie that nobody has waited for yet; what was killed takes a moment to die.
        let is_gone = || status().map_or(true, |text| text.contains(") Z "));
        let killed = Instant::now();
        while !is_gone() {
            assert!(killed.elapsed() < Duration::from_secs(5), "{:?}", status());
            sleep(Duration::from_millis(10));
        }
    }
}
