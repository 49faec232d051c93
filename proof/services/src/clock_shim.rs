//! A wall clock of its own for one server.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::Result;
use crate::folder::Folder;
use crate::process::said;

const SOURCE: &str = include_str!("clock_shim.c");

/// The shared object, compiled once for all servers of this process that have a clock.
#[derive(Debug)]
struct Library(Folder);

impl Library {
    fn get() -> Result<Arc<Self>> {
        static COMPILED: Mutex<Weak<Library>> = Mutex::new(Weak::new());
        let mut compiled = COMPILED.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(library) = compiled.upgrade() {
            return Ok(library);
        }
        let library = Arc::new(Self(Folder::new()?));
        let source = library.0.path().join("clock_shim.c");
        std::fs::write(&source, SOURCE)?;
        let mut command = Command::new("cc");
        command.args(["-std=c11", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-o"]);
        said("cc (package gcc)", command.args([library.path(), source]).arg("-ldl"))?;
        *compiled = Arc::downgrade(&library);
        Ok(library)
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("clock_shim.so")
    }
}

/// The wall clock of one server, to be set while it runs.
///
/// Only the time of day is shifted; the server's monotonic clock stays right, and the clocks of
/// all other processes do. A restart of the server keeps the shift.
#[derive(Debug)]
pub struct ServerClock {
    library: Arc<Library>,
    path: PathBuf,
    page: File,
    /// How often the page has been written, and what stands in it.
    written: Mutex<(u64, Shift)>,
    /// The place of the page, if it is not in a server's folder.
    _folder: Option<Folder>,
}

/// See `struct page` in the C file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shift {
    real: i64,
    shifted: i64,
    rate: i64,
}

impl Shift {
    /// The shifted clock at a moment of the real one.
    fn at(self, now: i64) -> i64 {
        let passed = i128::from(now - self.real) * i128::from(1_000_000 + self.rate) / 1_000_000;
        self.shifted + passed as i64
    }
}

impl ServerClock {
    /// A clock of no server, for the processes of commands ([`Self::give_to`]); right at first.
    ///
    /// # Errors
    ///
    /// If the shared object cannot be compiled, or the page not be written.
    pub fn of_clients() -> Result<Self> {
        let folder = Folder::new()?;
        let clock = Self::new(folder.path())?;
        Ok(Self { _folder: Some(folder), ..clock })
    }

    /// Makes the page in a server's folder; the clock is right at first.
    pub(crate) fn new(folder: &Path) -> Result<Self> {
        let path = folder.join("clock");
        let page = File::create(&path)?;
        let now = wall_clock();
        let clock = Self {
            library: Library::get()?,
            path,
            page,
            written: Mutex::new((0, Shift { real: now, shifted: now, rate: 0 })),
            _folder: None,
        };
        clock.change(|shift, _| shift)?;
        Ok(clock)
    }

    /// Makes the process of a command have this wall clock, too: for a client with a wrong clock.
    pub fn give_to(&self, command: &mut Command) {
        command.env("LD_PRELOAD", self.library.path()).env("LATCHWORK_CLOCK", &self.path);
    }

    /// As [`Self::give_to`], for a program that is written in Go (on x86-64).
    pub(crate) fn give_to_go(&self, command: &mut Command) {
        self.give_to(command);
        command.env("LATCHWORK_CLOCK_OF_GO", "1");
    }

    /// Moves the clock on, at once.
    ///
    /// # Errors
    ///
    /// If the page cannot be written.
    pub fn step_forward(&self, by: Duration) -> Result<()> {
        self.step(by.as_nanos() as i64)
    }

    /// Moves the clock back, at once.
    ///
    /// # Errors
    ///
    /// If the page cannot be written.
    pub fn step_back(&self, by: Duration) -> Result<()> {
        self.step(-(by.as_nanos() as i64))
    }

    fn step(&self, nanos: i64) -> Result<()> {
        self.change(|shift, now| Shift { real: now, shifted: shift.at(now) + nanos, ..shift })
    }

    /// Lets the clock run faster by this many millionths from now on, or slower if negative:
    /// 100,000 is ten percent fast, -1,000,000 stands still. The time is not stepped.
    ///
    /// # Errors
    ///
    /// If the page cannot be written.
    pub fn rate(&self, ppm: i64) -> Result<()> {
        self.change(|shift, now| Shift { real: now, shifted: shift.at(now), rate: ppm })
    }

    /// Sets the clock right again, which is a step if it was not, and its rate.
    ///
    /// # Errors
    ///
    /// If the page cannot be written.
    pub fn reset(&self) -> Result<()> {
        self.change(|_, now| Shift { real: now, shifted: now, rate: 0 })
    }

    /// What the server's clock says now, since 1970.
    pub fn now(&self) -> Duration {
        let (_, shift) = *self.written.lock().unwrap_or_else(|e| e.into_inner());
        Duration::from_nanos(shift.at(wall_clock()).max(0) as u64)
    }

    /// Writes the page, in the order that its readers expect.
    fn change(&self, change: impl FnOnce(Shift, i64) -> Shift) -> Result<()> {
        let mut written = self.written.lock().unwrap_or_else(|e| e.into_inner());
        let (version, shift) = *written;
        let shift = change(shift, wall_clock());
        let write = |at: u64, number: u64| self.page.write_all_at(&number.to_ne_bytes(), at);
        write(0, version + 1)?;
        for (at, number) in [(8, shift.real), (16, shift.shifted), (24, shift.rate)] {
            write(at, number as u64)?;
        }
        write(0, version + 2)?;
        *written = (version + 2, shift);
        Ok(())
    }
}

/// The real clock, in nanoseconds.
fn wall_clock() -> i64 {
    let t = clock_gettime(ClockId::Realtime);
    t.tv_sec * 1_000_000_000 + t.tv_nsec
}
