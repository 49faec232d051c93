//! The clocks of a machine that is paused while its process is stopped: the boot clock stands still,
//! as that of a virtual machine may, and the wall clock is right when it goes on.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use latchwork_store::{Clock, Moment, Sleep};

/// How long the machine of a worker has been paused, in a file: the run writes it, and the worker reads it whenever it
/// looks at its clock. First the sum of all pauses, then when each began and how long it was.
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
        // An empty file: there was none.
        Duration::from_nanos(self.number(0).unwrap_or_default())
    }

    fn number(&self, place: u64) -> Option<u64> {
        let mut number = [0; 8];
        self.0.read_exact_at(&mut number, 8 * place).ok()?;
        Some(u64::from_le_bytes(number))
    }

    /// Each with its beginning by the clock of this machine, the first one first.
    fn each(&self) -> impl Iterator<Item = (Moment, Duration)> {
        (0..).map_while(|pause| {
            let [began, length] = [1, 2].map(|field| self.number(2 * pause + field));
            Some((Moment::from_nanos(began?), Duration::from_nanos(length?)))
        })
    }

    /// What the boot clock of this machine shows at a moment of the worker's clock: a pause delays only what comes after.
    fn real(&self, moment: Moment) -> Moment {
        let later =
            |real: Moment, (began, length)| if real < began { real } else { real.plus(length) };
        self.each().fold(moment, later)
    }

    /// Counts one more, which began then and ends now, while the worker is stopped.
    pub(crate) fn add(&self, began: Moment, now: Moment) -> io::Result<()> {
        let length = now.since(began);
        let of_each = [began.as_nanos(), length.as_nanos() as u64].map(u64::to_le_bytes).concat();
        self.0.write_all_at(&of_each, 8 * (2 * self.each().count() as u64 + 1))?;
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
    fn paused(&self) -> Duration {
        self.pauses.sum()
    }

    /// As [`Pauses::real`].
    pub(crate) fn real(&self, moment: Moment) -> Moment {
        self.pauses.real(moment)
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
        let at = |secs: u64| Moment::from_nanos(secs * 1_000_000_000);
        run.add(at(10), at(12)).unwrap();
        run.add(at(20), at(21)).unwrap();
        assert_eq!(worker.sum(), Duration::from_secs(3));
        // It shows 10 when the first pause begins, and 18 when the second one does.
        for (shown, real) in [(9, 9), (10, 12), (17, 19), (18, 21), (19, 22)] {
            assert_eq!(worker.real(at(shown)), at(real), "{shown}");
        }
    }
}
