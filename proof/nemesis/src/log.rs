//! Where a process writes what happens to it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use latchwork_store::Moment;
use latchwork_store::clock::boot_time;

use crate::event::{Event, What};

/// A file that only grows. Each event is one line and one `write`, so a process that is killed
/// leaves whole lines and at most one torn one at the end.
#[derive(Debug)]
pub struct Log {
    file: File,
    process: Arc<str>,
}

impl Log {
    /// Begins, or goes on with, the log of a process.
    ///
    /// # Errors
    ///
    /// What the file system says.
    pub fn open(path: &Path, process: &str) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self { file, process: process.into() })
    }

    /// Who writes here.
    pub fn process(&self) -> &Arc<str> {
        &self.process
    }

    /// Writes down what happens now, and says when that is.
    pub fn note(&self, task: Option<u32>, what: What) -> Moment {
        let now = boot_time();
        self.note_at(now, task, what);
        now
    }

    /// Writes down what happened at a moment.
    ///
    /// # Panics
    ///
    /// Panics if the line cannot be written: a history with holes would judge wrongly.
    pub fn note_at(&self, at: Moment, task: Option<u32>, what: What) {
        let line = Event { at, process: self.process.clone(), task, what }.to_line();
        let written = (&self.file).write(line.as_bytes()).expect("the history can be written");
        assert_eq!(written, line.len(), "the history takes a whole line");
    }
}
