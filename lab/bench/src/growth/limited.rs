//! A process that is killed if it takes too long: then its reader learns that it has ended.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// While it lives, the limit counts.
pub(crate) struct Limited(#[expect(dead_code, reason = "dropped to end the thread")] Sender<()>);

impl Limited {
    /// Kills a process of ours after this time.
    pub(crate) fn kill_after(pid: u32, limit: Duration) -> Self {
        let (sender, ended) = channel::<()>();
        std::thread::spawn(move || {
            if ended.recv_timeout(limit) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            eprintln!("process {pid} takes longer than {limit:.0?}: killed");
            if let Some(pid) = Pid::from_raw(pid as i32) {
                let _ = kill_process(pid, Signal::KILL);
            }
        });
        Self(sender)
    }
}
