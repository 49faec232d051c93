//! A folder for each server, in memory where the system has such a place.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;

use rustix::fs::{FsWord, statfs};
use tempfile::TempDir;

use crate::Result;

const PREFIX: &str = "latchwork-services.";
const ALIVE: &str = "alive";
const TMPFS: FsWord = 0x0102_1994;

/// A folder that is gone when this is dropped.
///
/// It holds a locked file, so that a later run can tell the folders that a killed process left
/// behind, and remove them.
#[derive(Debug)]
pub struct Folder {
    dir: TempDir,
    _alive: File,
}

impl Folder {
    /// Makes an empty folder.
    ///
    /// # Errors
    ///
    /// What the file system says.
    pub fn new() -> Result<Self> {
        static SWEEP: Once = Once::new();
        let place = place();
        SWEEP.call_once(|| sweep(&place));
        let dir = tempfile::Builder::new().prefix(PREFIX).tempdir_in(&place)?;
        let alive = File::create(dir.path().join(ALIVE))?;
        alive.lock()?;
        Ok(Self { dir, _alive: alive })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

/// The place for folders: memory if possible, for servers that call fsync for every write.
pub(crate) fn place() -> PathBuf {
    let shm = Path::new("/dev/shm");
    match statfs(shm) {
        Ok(stat) if stat.f_type == TMPFS => shm.into(),
        _ => std::env::temp_dir(),
    }
}

/// Removes what killed processes left.
fn sweep(place: &Path) {
    let Ok(entries) = fs::read_dir(place) else { return };
    for entry in entries.flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        // A young folder may not have its lock yet.
        let age = entry.metadata().and_then(|m| m.modified()).map(|m| m.elapsed());
        let old = matches!(age, Ok(Ok(age)) if age > Duration::from_secs(60));
        if old && File::open(entry.path().join(ALIVE)).is_ok_and(|f| f.try_lock().is_ok()) {
            // Somebody else may sweep as well.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
