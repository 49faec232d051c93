//! Sleeping between faults, and threads beside the workers. No lock depends on it.

#![expect(clippy::disallowed_methods, reason = "the run waits and asks in plain threads")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// A thread beside the workers. Dropping the value asks it to end, and waits for that.
pub(crate) struct Beside {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Beside {
    /// Starts it. The work asks its argument whether it is to go on.
    pub(crate) fn start(work: impl FnOnce(&dyn Fn() -> bool) + Send + 'static) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let told = over.clone();
        let thread = std::thread::spawn(move || work(&|| !told.load(Ordering::SeqCst)));
        Self { over, thread: Some(thread) }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub(crate) fn pause(length: Duration) {
    std::thread::sleep(length);
}
