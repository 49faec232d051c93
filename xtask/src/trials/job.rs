//! One test binary from its start to its end.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::plan::{Part, Run};

/// A binary that takes longer than this hangs.
const LONGEST: Duration = Duration::from_secs(12 * 60);

/// So many lines are shown of a trial that failed, each so long at most, and of a binary that did not come to its end.
const OF_EACH: usize = 28;
const WIDEST: usize = 400;
const AT_THE_END: usize = 30;

/// What became of it.
pub(crate) struct Ended {
    pub(crate) name: String,
    pub(crate) trials: usize,
    /// The trials that passed.
    pub(crate) names: BTreeSet<String>,
    /// The trials that failed.
    pub(crate) failed: Vec<String>,
    pub(crate) took: Duration,
    /// Processor time of the binary and of what it started and waited for.
    pub(crate) cpu: Duration,
    /// Why it did not pass, with what it said of it.
    pub(crate) failure: Option<String>,
    pub(crate) log: PathBuf,
}

pub(crate) fn run(run: &Run, logs: &Path) -> Ended {
    let name = run.name();
    let log = logs.join(format!("{}.txt", name.replace(' ', "-")));
    let start = Instant::now();
    let (ended, cpu) = within_its_limit(run, &log);
    let said = std::fs::read_to_string(&log).unwrap_or_default();
    let trials = passed(&said);
    let failure = match ended {
        Err(why) => Some(format!("{why}\n{}", failures(&said))),
        Ok(()) if trials.is_none() => Some("it did not say what came of its tests".into()),
        // A crowd that was renamed must not get lost.
        Ok(()) if trials == Some(0) && matches!(run.part, Part::Crowds(..) | Part::Tight(..)) => {
            Some("none of its tests was found: look at the names in plan.rs".into())
        }
        Ok(()) => None,
    };
    let names = super::names::passed(&run.binary.name(), &said);
    let failed = super::names::failed(&said).into_iter().map(str::to_owned).collect();
    let (trials, took) = (trials.unwrap_or(0), start.elapsed());
    Ended { name, trials, names, failed, took, cpu, failure, log }
}

/// How the program ended, and the processor time that it took.
fn within_its_limit(run: &Run, log: &Path) -> (Result<(), String>, Duration) {
    let threads = run.needs().threads.to_string();
    let mut arguments = vec!["--test-threads", &*threads];
    arguments.extend(run.arguments());
    let mut cpu = Duration::ZERO;
    let ended = begin(run, &arguments, log).and_then(|mut child| {
        let start = Instant::now();
        loop {
            // A process that has ended keeps its times until it is waited for.
            cpu = processor_time(child.id()).unwrap_or(cpu);
            if let Some(status) = child.try_wait().map_err(|e| e.to_string())? {
                return if status.success() { Ok(()) } else { Err(status.to_string()) };
            }
            if start.elapsed() > LONGEST {
                let group = format!("-{}", child.id());
                let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
                let _ = child.wait();
                return Err(format!("it did not end within {LONGEST:?}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    (ended, cpu)
}

fn begin(run: &Run, arguments: &[&str], log: &Path) -> Result<Child, String> {
    let out = File::create(log).map_err(|e| format!("{}: {e}", log.display()))?;
    let err = out.try_clone().map_err(|e| e.to_string())?;
    let binary = &run.binary;
    Command::new(&binary.program)
        .args(arguments)
        .current_dir(&binary.folder)
        .env("CARGO_MANIFEST_DIR", &binary.folder)
        .envs(in_memory(&binary.name()).map(|folder| ("TMPDIR", folder)))
        .envs(run.environment())
        // A group of its own: if it hangs, what it has started ends with it.
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(err)
        .spawn()
        .map_err(|e| format!("{}: {e}", binary.program.display()))
}

/// Where the trials of a binary make their folders, unless somebody has chosen: to make and remove them on a disk takes
/// longer than most trials. The store of files keeps its contract on the disk.
fn in_memory(binary: &str) -> Option<&'static Path> {
    let memory = Path::new("/dev/shm");
    let is_free = std::env::var_os("TMPDIR").is_none() && binary != "latchwork-file contract";
    (is_free && memory.is_dir()).then_some(memory)
}

/// Of a process and its children that have ended; from `/proc`, in ticks of 10 ms.
fn processor_time(pid: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name, in brackets, may contain spaces.
    let (_, fields) = stat.rsplit_once(')')?;
    let times = fields.split_whitespace().skip(11).take(4);
    let ticks: u64 = times.map(|ticks| ticks.parse().unwrap_or(0)).sum();
    Some(Duration::from_millis(ticks * 10))
}

/// How many trials passed, by the words of the test harness.
fn passed(said: &str) -> Option<usize> {
    let line = said.lines().rev().find(|line| line.starts_with("test result: "))?;
    let (before, _) = line.split_once(" passed")?;
    before.rsplit(' ').next()?.parse().ok()
}

/// The first lines of what is said of each failure, without the calls that led to it, or the end of all that was said.
fn failures(said: &str) -> String {
    let Some((_, list)) = said.split_once("\nfailures:\n") else {
        let lines: Vec<_> = said.lines().collect();
        return lines.get(lines.len().saturating_sub(AT_THE_END)..).unwrap_or_default().join("\n");
    };
    let (mut text, mut left, mut calls) = (String::new(), 0, false);
    for line in list.lines().take_while(|line| *line != "failures:") {
        if line.starts_with("---- ") {
            left = OF_EACH;
        }
        // Another thread may panic after the first one.
        calls = line == "stack backtrace:"
            || calls && !line.starts_with("---- ") && !line.starts_with("thread '");
        if left > 0 && !calls && !line.trim().is_empty() {
            left -= 1;
            text.extend(line.chars().take(WIDEST));
            text += "\n";
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_harness_is_understood() {
        assert_eq!(passed("test a ... ok\n\ntest result: ok. 12 passed; 0 failed;\n"), Some(12));
        assert_eq!(passed("killed"), None);
        let long =
            format!("x\n\nfailures:\n\n---- a ----\nb\n{}\n\n---- b ----\nc\n", "y\n".repeat(90));
        let shown = failures(&long);
        assert!(shown.starts_with("---- a ----\nb\ny\n") && shown.ends_with("y\n---- b ----\nc\n"));
        assert_eq!(shown.lines().count(), OF_EACH + 2);
        assert_eq!(failures("only this"), "only this");
        let wide =
            format!("\nfailures:\n\n---- a ----\n{}\nstack backtrace:\n 0: c\n", "y".repeat(900));
        assert_eq!(failures(&wide), format!("---- a ----\n{}\n", "y".repeat(WIDEST)));
    }
}
