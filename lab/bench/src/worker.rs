//! A process that a measurement starts, how it talks to it, and what the system tells of it.

use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use latchwork_services::program::{processes, stat};
use rustix::process::{Pid, Signal, kill_process};

use crate::roles::Outcome;
use crate::times::Times;

/// The first argument of a process of this program that does what `child.rs` says.
pub(crate) const CHILD: &str = "child";

/// A process, and what it prints. It is killed when dropped.
pub(crate) struct Worker {
    pub(crate) child: Child,
    pub(crate) lines: Lines<Box<dyn BufRead + Send>>,
}

impl Worker {
    pub(crate) fn spawn(command: &mut Command) -> Outcome<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().ok_or("a pipe")?;
        let stdout: Box<dyn BufRead + Send> = Box::new(BufReader::new(stdout));
        Ok(Self { child, lines: stdout.lines() })
    }

    /// A process of this program.
    pub(crate) fn own(args: &[&str]) -> Outcome<Self> {
        Self::spawn(Command::new(std::env::current_exe()?).args(args))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn tell(&mut self, line: &str) -> Outcome {
        let stdin = self.child.stdin.as_mut().ok_or("a pipe")?;
        stdin.write_all(format!("{line}\n").as_bytes())?;
        Ok(stdin.flush()?)
    }

    pub(crate) fn line(&mut self) -> Outcome<String> {
        Ok(self.lines.next().ok_or("a process has ended")??)
    }

    pub(crate) fn expect(&mut self, wanted: &str) -> Outcome {
        match self.line()? {
            line if line == wanted => Ok(()),
            line => Err(format!("a process said {line:?}, not {wanted:?}").into()),
        }
    }

    /// Tells it something, and hears one number.
    pub(crate) fn ask(&mut self, line: &str) -> Outcome<f64> {
        self.tell(line)?;
        Ok(self.line()?.parse()?)
    }

    /// Hears numbers and then times.
    pub(crate) fn numbers<const N: usize>(&mut self) -> Outcome<([f64; N], Times)> {
        let line = self.line()?;
        let (numbers, times) = Times::after_numbers(&line)?;
        let numbers = numbers.try_into().map_err(|_| format!("a process said {line:?}"))?;
        Ok((numbers, times.into_iter().next().unwrap_or_default()))
    }

    /// The moment that it tells behind a word.
    pub(crate) fn moment(&mut self, word: &str) -> Outcome<u64> {
        let line = self.line()?;
        let moment = line.strip_prefix(word).and_then(|rest| rest.trim().parse().ok());
        Ok(moment.ok_or_else(|| format!("a process said {line:?}, not {word:?}"))?)
    }

    /// Gives what it prints to a thread, line by line.
    pub(crate) fn read(&mut self, mut each: impl FnMut(String) -> bool + Send + 'static) {
        let nothing: Box<dyn BufRead + Send> = Box::new(std::io::empty());
        let lines = std::mem::replace(&mut self.lines, nothing.lines());
        std::thread::spawn(move || lines.map_while(Result::ok).all(&mut each));
    }

    /// Lets it wait for the lock, until it sleeps: then it has done all that it can do for now.
    pub(crate) fn wait_for_it(&mut self) -> Outcome {
        let before = wakeups(self.pid());
        self.tell("hold")?;
        let (mut quiet, mut last) = (0, before);
        while quiet < 5 {
            std::thread::sleep(Duration::from_millis(2));
            let seen = wakeups(self.pid());
            quiet = if seen == last && seen > before { quiet + 1 } else { 0 };
            last = seen;
        }
        Ok(())
    }

    /// Kills it after this time, unless what is returned is dropped before.
    pub(crate) fn limited(&self, limit: Duration) -> Sender<()> {
        let (sender, ended) = channel::<()>();
        let pid = self.pid();
        std::thread::spawn(move || {
            if ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                eprintln!("process {pid} takes longer than {limit:.0?}: killed");
                let _ = Pid::from_raw(pid as i32).map(|pid| kill_process(pid, Signal::KILL));
            }
        });
        sender
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A number in a file of the system, behind this word.
fn field(path: String, word: &str) -> Option<f64> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(word))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// The resident memory of a process in kilobytes.
pub(crate) fn resident(pid: u32) -> Outcome<f64> {
    let pages = field(format!("/proc/{pid}/status"), "VmRSS");
    Ok(pages.ok_or("how much memory?")? * 1.024)
}

/// What a file says of each thread of a process.
fn of_each_thread(pid: u32, one: impl Fn(String) -> Option<f64>) -> f64 {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return f64::NAN };
    tasks.flatten().filter_map(|task| one(task.path().display().to_string())).sum()
}

/// The voluntary context switches of all threads of a process: how often one of them woke up.
pub(crate) fn wakeups(pid: u32) -> f64 {
    of_each_thread(pid, |task| field(format!("{task}/status"), "voluntary_ctxt_switches"))
}

/// The processor time of the threads that a process has now, in seconds: to the nanosecond, not to the tick.
pub(crate) fn of_threads(pid: u32) -> f64 {
    let spent = |task| fs::read_to_string(format!("{task}/schedstat")).ok();
    of_each_thread(pid, |task| spent(task)?.split(' ').next()?.parse().ok()) / 1e9
}

/// User and system time of a process, in seconds; with that of the processes that it started.
pub(crate) fn processor_time(pid: u32, with_children: bool) -> f64 {
    let sum = |fields: &[String]| fields.iter().filter_map(|it| it.parse::<f64>().ok()).sum();
    let of = |pid, to: usize| stat(pid).map_or(0.0, |fields| sum(&fields[11..to]));
    if !with_children {
        return of(pid as i32, 13) / 100.0;
    }
    let parent = pid.to_string();
    let children = processes().into_iter().filter(|it| stat(*it).is_some_and(|f| f[1] == parent));
    (of(pid as i32, 15) + children.map(|it| of(it, 13)).sum::<f64>()) / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_server_is_finer_than_a_tick() {
        let busy = Worker::spawn(Command::new("sh").args(["-c", "while :; do :; done"])).unwrap();
        let seen: Vec<f64> = (0..20)
            .map(|_| {
                std::thread::sleep(Duration::from_millis(20));
                of_threads(busy.pid())
            })
            .collect();
        assert!(seen.is_sorted() && seen[19] > seen[0], "{seen:?}");
        let is_tick = |time: &f64| (time * 100.0 - (time * 100.0).round()).abs() < 1e-9;
        assert!(!seen.iter().all(is_tick), "{seen:?}");
        assert!(of_threads(u32::MAX).is_nan() && processor_time(busy.pid(), false) > 0.0);
    }
}
