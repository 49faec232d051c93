//! flock(1)'s way: a system call that blocks.

use std::fs::{File, OpenOptions};
use std::path::PathBuf;

use rustix::fs::{FlockOperation, flock};

use crate::roles::{Lock, Outcome};

/// Blocks its thread, so there is one task in its process.
pub(crate) struct Flock(PathBuf);

impl Flock {
    /// Beside the folder `file://FOLDER`.
    pub(crate) fn on(url: &str, key: &str) -> Outcome<Self> {
        let folder = format!("{}-flock", url.strip_prefix("file://").ok_or("file://FOLDER")?);
        std::fs::create_dir_all(&folder)?;
        Ok(Self(PathBuf::from(folder).join(key.replace('/', "-"))))
    }
}

impl Lock for Flock {
    type Held = File;

    async fn acquire(&self) -> Outcome<File> {
        let file = OpenOptions::new().create(true).append(true).open(&self.0)?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(file)
    }

    async fn release(&self, held: File) -> Outcome {
        drop(held);
        Ok(())
    }
}
