//! How far this machine itself was late, so that a loaded one fails no test.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A thread that sleeps for 5 ms again and again, and notes how much longer it took.
pub(crate) struct Witness {
    worst: Arc<AtomicU64>,
    done: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Witness {
    const NAP: Duration = Duration::from_millis(5);

    pub(crate) fn start() -> Self {
        let (worst, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (seen, over) = (worst.clone(), done.clone());
        let thread = std::thread::spawn(move || {
            while !over.load(Ordering::SeqCst) {
                let start = Instant::now();
                std::thread::sleep(Self::NAP);
                let late = start.elapsed().saturating_sub(Self::NAP);
                seen.fetch_max(late.as_nanos() as u64, Ordering::SeqCst);
            }
        });
        Self { worst, done, thread: Some(thread) }
    }

    /// The longest delay that this machine added to a sleep since the start. A wake-up may pass
    /// through three threads, each of which may be as late.
    pub(crate) fn worst(&self) -> Duration {
        3 * Duration::from_nanos(self.worst.load(Ordering::SeqCst))
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.done.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
