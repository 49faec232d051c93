//! Threads that note how long the machine let processes stand still.
//!
//! Upper bounds are widened by what the witness of a worker saw of its threads, so that a loaded machine does not look
//! like a late lock; lower bounds need no such help. What it sees of a SIGSTOP is taken out again by the
//! history, which knows from the run when the process was stopped. The witness of the servers explains answers that
//! did not come in time.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use latchwork_services::program::{processes, stat};
use latchwork_store::clock::boot_time;

use crate::event::What;
use crate::log::Log;
use crate::pause::{Beside, pause};

const NAP: Duration = Duration::from_millis(5);
const WORTH_NOTING: Duration = Duration::from_millis(4);

/// After how many naps the other threads are looked at.
const LOOK_EVERY: u32 = 4;

/// Starts the witness of this process.
pub(crate) fn start(log: Arc<Log>) {
    #[expect(clippy::disallowed_methods, reason = "it measures how late threads run")]
    std::thread::spawn(move || {
        let (own, mut waited) = ([PathBuf::from("/proc/self")], HashMap::new());
        for nap in 0_u32.. {
            let before = boot_time();
            std::thread::sleep(NAP);
            let now = boot_time();
            let mut length = now.since(before).saturating_sub(NAP);
            // The kernel runs a thread that has slept sooner than those that work.
            if nap % LOOK_EVERY == 0 {
                length = length.max(longest_wait(&own, &mut waited));
            }
            if length >= WORTH_NOTING {
                log.note_at(now, None, What::Stalled { length });
            }
        }
    });
}

/// How often the threads of the servers are looked at.
const LOOK: Duration = Duration::from_millis(100);
/// A thread that has waited for a processor for so long between two looks stood still. A machine that has a few more
/// threads than processors keeps none waiting for that long.
const STOOD: Duration = Duration::from_millis(50);
/// After how many looks the processes are found again.
const FIND_EVERY: u32 = 10;

/// The witness of the servers: of all processes below this one that run another program than the workers do.
pub(crate) struct OfServers {
    _thread: Beside,
}

impl OfServers {
    pub(crate) fn start(log: Arc<Log>, workers: &Path) -> Self {
        let workers = workers.canonicalize().unwrap_or_default();
        let thread = Beside::start(move |goes_on| {
            let (mut servers, mut waited) = (Vec::new(), HashMap::new());
            for look in (0..).take_while(|_| goes_on()) {
                if look % FIND_EVERY == 0 {
                    servers = below_this(&workers);
                }
                let longest = longest_wait(&servers, &mut waited);
                if longest >= STOOD {
                    log.note(None, What::Starved { length: longest });
                }
                pause(LOOK);
            }
        });
        Self { _thread: thread }
    }
}

/// The folders in /proc of all processes below this one, without those of a program.
fn below_this(without: &Path) -> Vec<PathBuf> {
    let parent = |process| stat(process)?.get(1)?.parse::<i32>().ok();
    let parents: HashMap<i32, i32> =
        processes().into_iter().filter_map(|process| Some((process, parent(process)?))).collect();
    let this = std::process::id().cast_signed();
    let is_below = |process: &i32| {
        let mut above = parents.get(process);
        while let Some(process) = above.filter(|process| **process != this) {
            above = parents.get(process);
        }
        above.is_some()
    };
    let folders = parents.keys().filter(|process| is_below(process));
    let folders = folders.map(|process| PathBuf::from(format!("/proc/{process}")));
    folders
        .filter(|folder| fs::read_link(folder.join("exe")).is_ok_and(|it| it != without))
        .collect()
}

/// How long the thread that had to wait longest for a processor since the last look did so. `waited` keeps what each
/// thread had waited until then.
fn longest_wait(servers: &[PathBuf], waited: &mut HashMap<PathBuf, Duration>) -> Duration {
    let before = std::mem::take(waited);
    let threads = servers.iter().filter_map(|server| fs::read_dir(server.join("task")).ok());
    for thread in threads.flatten().flatten() {
        let text = fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
        let nanos = text.split_whitespace().nth(1).and_then(|word| word.parse().ok());
        waited.extend(nanos.map(|nanos| (thread.path(), Duration::from_nanos(nanos))));
    }
    let since =
        |(thread, now): (&PathBuf, &Duration)| Some(now.saturating_sub(*before.get(thread)?));
    waited.iter().filter_map(since).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread::available_parallelism;

    use super::*;
    use crate::history::History;

    struct Busy(Child);

    impl Drop for Busy {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn crowd() -> Vec<Busy> {
        let busy = || Busy(Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap());
        (0..6 * available_parallelism().unwrap().get()).map(|_| busy()).collect()
    }

    #[test]
    fn workers_are_no_servers() {
        let crowd = crowd();
        let is_among = |found: Vec<PathBuf>| {
            let among =
                |busy: &Busy| found.contains(&PathBuf::from(format!("/proc/{}", busy.0.id())));
            (crowd.iter().all(among), crowd.iter().any(among))
        };
        assert_eq!(is_among(below_this(Path::new("/none"))), (true, true));
        assert_eq!(is_among(below_this(&fs::canonicalize("/bin/sh").unwrap())), (false, false));
    }

    /// What a witness notes while there are more threads than processors.
    fn noted<W>(start: impl FnOnce(Arc<Log>) -> W) -> Vec<What> {
        let folder = tempfile::tempdir().unwrap();
        let log = Log::open(&folder.path().join("run.log"), "run").unwrap();
        let crowd = crowd();
        let witness = start(Arc::new(log));
        pause(LOOK * 20);
        drop((witness, crowd));
        let history = History::read(folder.path()).unwrap();
        history.events.into_iter().map(|event| event.what).collect()
    }

    #[test]
    fn servers_without_a_processor_are_noted() {
        let noted = noted(|log| OfServers::start(log, Path::new("/none")));
        let starved = noted.iter().filter_map(|what| match what {
            What::Starved { length } => Some(*length),
            _ => None,
        });
        let starved: Duration = starved.sum();
        assert!(starved > LOOK * 5, "{starved:?}");
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a thread that works")]
    fn a_thread_without_a_processor_is_noted() {
        let works = Arc::new(AtomicBool::new(true));
        let thread = std::thread::spawn({
            let works = works.clone();
            move || while works.load(Ordering::Relaxed) {}
        });
        let noted = noted(start);
        works.store(false, Ordering::Relaxed);
        thread.join().unwrap();
        let stalled = noted.iter().filter_map(|what| match what {
            What::Stalled { length } => Some(*length),
            _ => None,
        });
        let stalled: Duration = stalled.sum();
        assert!(stalled > LOOK * 5, "{stalled:?}");
    }
}
