//! The clocks of a machine that is paused while its process is stopped: the boot clock stands still,
//! as that of a virtual machine may, and the wall clock is right when it goes on.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use latchwork_store::{Clock, Moment, Sleep};

/// How long the machine of a worker has been paused in all, in a file: the run writes it, and the
/// worker reads it whenever it looks at its clock.
#[derive(Debug)]
pub(crate) struct Pauses(File);

impl Pauses {
    /// Where those of the worker with this log are.
    pub(crate) fn path(log: &Path) -> PathBuf {
        log.with_extension("clock")
    }

    /// Opens the file, and makes it if it is not there.
    pub(crate) fn open(log: &Path) -> io::Result<Self> {
        let mut how = OpenOptions::new();
        how.read(true).write(true).create(true).truncate(false);
        how.open(Self::path(log)).map(Self)
    }

    /// The sum of all pauses.
    pub(crate) fn sum(&self) -> Duration {
        let mut nanos = [0; 8];
        // An empty file: there was none.
        match self.0.read_exact_at(&mut nanos, 0) {
            Ok(()) => Duration::from_nanos(u64::from_le_bytes(nanos)),
            Err(_) => Duration::ZERO,
        }
    }

    /// Counts one more, while the worker is stopped.
    pub(crate) fn add(&self, length: Duration) -> io::Result<()> {
        let sum = (self.sum() + length).as_nanos() as u64;
        self.0.write_all_at(&sum.to_le_bytes(), 0)
    }
}

/// The clocks of such a machine, by those of this one.
#[derive(Debug, Clone)]
pub(crate) struct PausedClock {
    real: Arc<dyn Clock>,
    pauses: Arc<Pauses>,
}

impl PausedClock {
    pub(crate) fn new(real: Arc<dyn Clock>, pauses: Pauses) -> Self {
        Self { real, pauses: Arc::new(pauses) }
    }

    /// How far it is behind the boot clock of this machine.
    pub(crate) fn paused(&self) -> Duration {
        self.pauses.sum()
    }
}

impl Clock for PausedClock {
    fn now(&self) -> Moment {
        self.real.now().minus(self.paused())
    }

    fn wall(&self) -> Duration {
        self.real.wall()
    }

    fn sleep_until(&self, at: Moment) -> Sleep {
        let this = self.clone();
        Box::pin(async move {
            // The machine may be paused meanwhile.
            while this.now() < at {
                this.real.sleep_until(at.plus(this.paused())).await;
            }
        })
    }

    fn stepped(&self) -> Sleep {
        // The run rings it when the machine goes on.
        self.real.stepped()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_of_a_machine_add_up() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("w0.0.log");
        let (run, worker) = (Pauses::open(&log).unwrap(), Pauses::open(&log).unwrap());
        assert_eq!(worker.sum(), Duration::ZERO);
        run.add(Duration::from_secs(2)).unwrap();
        run.add(Duration::from_secs(1)).unwrap();
        assert_eq!(worker.sum(), Duration::from_secs(3));
    }
}
