//! The only place that prints. Exit codes are those of the command `latchwork`.

use std::io::{self, Write};

use latchwork::{Error, ErrorKind};
use serde_json::{Value, json};

/// A usage error, a bad value, or something this store cannot do.
pub(crate) const USAGE: u8 = 64;
/// Something is broken: the lock above all.
pub(crate) const BROKEN: u8 = 70;

/// How to print.
pub(crate) struct Say {
    pub(crate) json: bool,
}

impl Say {
    /// An error of the library. Says with which code to exit.
    pub(crate) fn error(&self, error: &Error) -> u8 {
        self.fail(&format!("{:?}", error.kind()), &error.to_string());
        match error.kind() {
            ErrorKind::Unsupported | ErrorKind::Invalid => USAGE,
            ErrorKind::Unreachable | ErrorKind::Busy => 69,
            ErrorKind::Lost => 73,
            ErrorKind::TimedOut => 75,
            ErrorKind::Denied => 77,
            ErrorKind::Mismatch => 78,
            _ => BROKEN,
        }
    }

    /// Something went wrong, of a kind that programs may look at.
    pub(crate) fn fail(&self, kind: &str, message: &str) {
        self.note(message, json!({"error": {"kind": kind, "message": message}}));
    }

    /// Something that people want to know, and the same for programs.
    pub(crate) fn note(&self, message: &str, json: Value) {
        let text = if self.json {
            json.to_string()
        } else {
            format!("{}: {message}", env!("CARGO_BIN_NAME"))
        };
        // Nobody listens if it fails.
        let _ = writeln!(io::stderr(), "{text}");
    }

    /// The outcome. Says with which code to exit: a reader who has left does not want it, but what
    /// could not be written is an error.
    pub(crate) fn print(&self, text: &str) -> u8 {
        match writeln!(io::stdout(), "{text}") {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                self.fail("Output", &format!("cannot write to standard output: {error}"));
                BROKEN
            }
            _ => 0,
        }
    }
}
