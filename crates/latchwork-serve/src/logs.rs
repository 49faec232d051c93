//! The log: lines for people, or JSON for programs, on standard error.

use std::io;

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

/// Begins to log. Does nothing if the program logs already.
pub(crate) fn begin(detail: Detail, json: bool) {
    let level = match detail {
        Detail::Quiet => LevelFilter::WARN,
        Detail::Usual => LevelFilter::INFO,
        Detail::All => LevelFilter::DEBUG,
    };
    let builder =
        tracing_subscriber::fmt().with_max_level(level).with_writer(io::stderr).with_ansi(false);
    // Fails if there is a subscriber, and then that one logs.
    let _ = match json {
        true => builder.json().flatten_event(true).try_init(),
        false => builder.try_init(),
    };
}
