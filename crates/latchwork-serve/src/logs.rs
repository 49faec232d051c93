//! The log: lines for people, or JSON for programs, on standard error.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::Builder;
use std::time::Duration;

use tracing::level_filters::LevelFilter;

/// How much is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// Only what needs attention.
    Quiet,
    /// Starts, stops, losses, reloads, and each act of an administrator.
    Usual,
    /// Each request, too.
    All,
}

/// The most lines that wait if standard error is read slowly.
const WAITING: usize = 4096;

/// How long the end of the service waits for its last lines.
const GOODBYE: Duration = Duration::from_secs(1);

/// Begins to log. Does nothing if the program logs already.
///
/// A log that cannot be written, because a disk is full or the pipe is not read, neither stops nor delays the
/// service: its lines are lost.
pub(crate) fn begin(detail: Detail, json: bool) -> Log {
    let level = match detail {
        Detail::Quiet => LevelFilter::WARN,
        Detail::Usual => LevelFilter::INFO,
        Detail::All => LevelFilter::DEBUG,
    };
    let (sender, lines) = sync_channel(WAITING);
    let log = Log { lines: sender, lost: Arc::default() };
    let (lost, writes) = (log.lost.clone(), log.clone());
    let started =
        Builder::new().name("latchwork-log".into()).spawn(move || write_all(&lines, &lost));
    let builder = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_ansi(false)
        // It would panic where standard error cannot be written.
        .log_internal_errors(false)
        .with_writer(move || writes.clone());
    // Without the thread, no line would be written. `try_init` fails if there is a subscriber, and then that one logs.
    if started.is_ok() {
        let _ = match json {
            true => builder.json().flatten_event(true).try_init(),
            false => builder.try_init(),
        };
    }
    log
}

/// A message to the thread of the log.
enum Line {
    Text(Vec<u8>),
    /// Asks for a reply when all lines before this one are written.
    Written(SyncSender<()>),
}

/// The way to the thread that writes.
#[derive(Clone)]
pub(crate) struct Log {
    lines: SyncSender<Line>,
    lost: Arc<AtomicU64>,
}

impl Log {
    /// Waits until all lines are written, for a second at the most.
    pub(crate) fn flush(&self) {
        let (done, written) = sync_channel(1);
        if self.lines.try_send(Line::Written(done)).is_ok() {
            // An error means that it takes too long.
            let _ = written.recv_timeout(GOODBYE);
        }
    }
}

impl Write for Log {
    /// Called once for each line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.lines.try_send(Line::Text(line.to_vec())).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_all(lines: &Receiver<Line>, lost: &AtomicU64) {
    let mut out = io::stderr();
    while let Ok(line) = lines.recv() {
        // An error cannot be reported anywhere else.
        let _ = match line {
            Line::Text(text) => out.write_all(&text),
            Line::Written(done) => done.try_send(()).map_err(io::Error::other),
        };
        match lost.swap(0, Ordering::Relaxed) {
            0 => {}
            count => drop(writeln!(out, "{{\"lost_lines\":{count}}}")),
        }
    }
}
