//! The only place that prints: text for people, JSON for programs, names made harmless.

mod hints;
pub(crate) mod locks;
mod progress;
mod report;
mod when;

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use latchwork::Error;
use latchwork::once::Skipped;
use latchwork_store::doctor::does_not_show;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Map, Value, json};

use crate::exit;

#[cfg(feature = "top")]
pub(crate) use self::when::moment_of_day;
pub(crate) use self::when::{Done, is_done, opens_by_reset};

/// Prints an error of the command line, as JSON if the command line asks for JSON.
pub(crate) fn usage(error: &clap::Error) {
    let words = std::env::args_os().skip(1).take_while(|word| word != "--");
    if words.into_iter().any(|word| word == "--json") {
        Output::new(true, false, false).fail("Usage", &usage_message(&error.to_string()));
    } else {
        // An error cannot be reported here.
        let _ = error.print();
    }
}

/// What is wrong, the tips, and how the command is written, on one line each.
fn usage_message(text: &str) -> String {
    let text = text.strip_prefix("error: ").unwrap_or(text);
    let mut parts = text.split("\n\n").map(str::trim);
    let mut message = parts.next().unwrap_or_default().to_owned();
    for part in parts.filter(|part| ["tip:", "Usage:"].iter().any(|start| part.starts_with(start)))
    {
        message.push_str("; ");
        message.push_str(&part.replace("\n  tip:", "; tip:"));
    }
    if !message.contains("Usage:") {
        message.push_str("; for more information, try --help");
    }
    message
}

/// Prints a command that fails with this code, for a shell that evaluates what `hold` prints: an `eval` of
/// nothing succeeds, and the script would go on without the lock.
pub(crate) fn fail_in_shell(code: u8) {
    // Where nobody reads it, nobody evaluates it.
    let _ = writeln!(io::stdout(), "(exit {code})");
}

/// How to print.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    pub(crate) json: bool,
    pub(crate) verbose: bool,
    pub(crate) quiet: bool,
    /// The options with which a command that a message names finds the store.
    store: &'static str,
}

impl Output {
    /// As the command line asks.
    pub(crate) fn new(json: bool, verbose: bool, quiet: bool) -> Self {
        Self { json, verbose, quiet, store: "" }
    }

    /// With these options for commands that a message names.
    pub(crate) fn with_store(self, options: String) -> Self {
        // Once in a process.
        Self { store: options.leak(), ..self }
    }

    fn hinted<'t>(&self, text: &'t str) -> Cow<'t, str> {
        hints::with_store(text, self.store)
    }

    /// Whether somebody wants to know what `run` waits for.
    pub(crate) fn tells_waiting(&self) -> bool {
        self.verbose || (!self.quiet && io::stderr().is_terminal())
    }

    /// Whether `-v` was given.
    pub(crate) fn is_verbose(&self) -> bool {
        self.verbose
    }

    /// An error of the library.
    pub(crate) fn error(&self, error: &Error) {
        self.fail(&format!("{:?}", error.kind()), &error.to_string());
    }

    /// Something went wrong, of a kind that programs may look at.
    pub(crate) fn fail(&self, kind: &str, message: &str) {
        let message = self.hinted(message);
        if self.json {
            to_stderr(&line(&json!({"error": {"kind": kind, "message": message}})));
        } else {
            to_stderr(&format!("latchwork: {}", plain(&message)));
        }
    }

    /// Something that people want to know; `fields` are for programs.
    pub(crate) fn note(&self, event: &str, message: &str, fields: &[(&str, &str)]) {
        let fields = fields.iter().map(|&(name, text)| (name.to_owned(), text.into()));
        self.tell(event, message, fields.collect());
    }

    fn tell(&self, event: &str, message: &str, fields: Map<String, Value>) {
        if self.quiet {
            return;
        }
        let message = self.hinted(message);
        if self.json {
            let mut value = json!({"event": event, "message": message});
            for (name, field) in fields {
                value[name] = field;
            }
            to_stderr(&line(&value));
        } else {
            to_stderr(&format!("latchwork: {}", plain(&message)));
        }
    }

    /// Something that people want to know if they asked for it with `-v`.
    pub(crate) fn detail(&self, event: &str, message: &str, fields: &[(&str, &str)]) {
        if self.verbose {
            self.note(event, message, fields);
        }
    }

    /// Why there is nothing to do for `once`, for programs and for people that asked for it with `-v`. For programs the
    /// event has the word and the fields of the library's form.
    pub(crate) fn skipped(&self, name: &str, why: &Skipped, message: &str) {
        let form = json!(why);
        let Some((word, fields)) = form.as_object().and_then(|form| form.iter().next()) else {
            return;
        };
        let mut all = Map::from_iter([("key".to_owned(), name.into())]);
        all.extend(fields.as_object().cloned().unwrap_or_default());
        if self.verbose || self.json {
            self.tell(word, &format!("skipped {name:?}: {message}"), all);
        }
    }

    /// How a term under a lock ended, for programs.
    pub(crate) fn ended(&self, message: &str, code: u8, fields: &[(&str, &str)]) {
        if self.json {
            let fields = fields.iter().map(|&(name, text)| (name.to_owned(), text.into()));
            let code = ("exit_code".to_owned(), code.into());
            self.tell("ended", message, fields.chain([code]).collect());
        }
    }

    /// The job is about to be stopped by its terminal.
    pub(crate) fn stopped(&self, left: Duration, fields: &[(&str, &str)]) {
        let left = coarse(left);
        let message = format!("stopped; the command is killed unless continued within {left}");
        self.note("stopped", &message, fields);
    }

    /// Whether somebody may still read standard output.
    pub(crate) fn is_read(&self) -> bool {
        let stdout = io::stdout();
        // No answer is that nothing has happened; errors and hang-ups need not be asked for.
        let mut ends = [PollFd::new(&stdout, PollFlags::empty())];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        !matches!(poll(&mut ends, Some(&at_once)), Ok(1..))
    }

    /// A text for standard output, and a newline. Returns the exit code.
    fn print(&self, text: &str) -> u8 {
        self.raw(format!("{text}\n").as_bytes())
    }

    /// Writes a text to standard output as it is, and returns the exit code. A reader that closed the
    /// pipe does not want the text; any other failure is an error.
    pub(crate) fn raw(&self, text: &[u8]) -> u8 {
        match self.write(text) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => exit::BROKEN,
            _ => 0,
        }
    }

    /// Writes a text to standard output, as it is. Reports an error, unless the reader closed the pipe.
    pub(crate) fn write(&self, text: &[u8]) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        let written = stdout.write_all(text).and_then(|()| stdout.flush());
        written.inspect_err(|error| {
            if error.kind() != io::ErrorKind::BrokenPipe {
                self.fail("Output", &format!("cannot write to standard output: {error}"));
            }
        })
    }
}

fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

/// A length of time for people: `29s`, `1h 2m`, `40d 3h`, below a second in milliseconds. Months and years have no
/// one length.
pub(crate) fn coarse(length: Duration) -> String {
    units(length).join(" ")
}

/// A length of time by its two largest units, such as `2h 5m`.
pub(crate) fn short(length: Duration) -> String {
    let mut units = units(length);
    units.truncate(2);
    units.join(" ")
}

fn units(length: Duration) -> Vec<String> {
    let mut left = length.as_secs();
    let mut units = Vec::new();
    for (seconds, unit) in [(24 * 60 * 60, "d"), (60 * 60, "h"), (60, "m"), (1, "s")] {
        if left >= seconds {
            units.push(format!("{}{unit}", left / seconds));
        }
        left %= seconds;
    }
    if units.is_empty() {
        units.push(match millis(length) {
            0 => "0s".to_owned(),
            some => format!("{some}ms"),
        });
    }
    units
}

/// A text that cannot command the terminal: control characters and those that turn the writing
/// direction, break lines or do not show are written as escapes.
pub(crate) fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if does_not_show(c) {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

/// JSON on one line, which does not command the terminal either. JSON itself escapes the control
/// characters of ASCII only.
fn line(value: &Value) -> String {
    let text = value.to_string();
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if does_not_show(c) {
            // Within a string, and below U+FFFF.
            let _ = write!(out, "\\u{:04x}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    out
}

/// One write for a line, so that it is not mixed with the command's own.
///
/// Gives up when nobody reads it: a paused terminal, or a pipe that nobody empties, must not keep
/// the lock from being watched and released.
fn to_stderr(text: &str) {
    put(&format!("{text}\n"));
}

fn put(text: &str) {
    // As much as a pipe that is ready takes without blocking.
    const AT_ONCE: usize = 4096;
    for part in text.as_bytes().chunks(AT_ONCE) {
        if !is_ready(io::stderr()) || io::stderr().lock().write_all(part).is_err() {
            return;
        }
    }
}

fn is_ready(stream: impl AsFd) -> bool {
    let limit = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    let mut waits = [PollFd::new(&stream, PollFlags::OUT)];
    matches!(poll(&mut waits, Some(&limit)), Ok(1..))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn hostile_names_do_not_reach_the_terminal() {
        assert_eq!(plain("a\x1b[31mb\n\u{202e}c"), "a\\u{1b}[31mb\\n\\u{202e}c");
        for c in "\u{7f}\u{80}\u{9b}\u{9f}\u{61c}\u{200b}\u{200f}\u{2028}\u{2029}\u{202a}\u{2066}\u{2069}".chars() {
            let text = format!("a{c}b");
            assert!(!plain(&text).contains(c), "{c:?}");
            let json = line(&json!({ &text: [&text] }));
            assert!(!json.contains(c), "{json:?}");
            let read: Value = serde_json::from_str(&json).unwrap();
            assert_eq!(read, json!({ &text: [&text] }));
        }
        assert_eq!(plain("Straße 日本"), "Straße 日本");
    }

    #[test]
    fn lengths_are_short() {
        assert_eq!(coarse(Duration::from_millis(29_999)), "29s");
        assert_eq!(coarse(Duration::from_micros(1_500)), "1ms");
        assert_eq!(coarse(Duration::ZERO), "0s");
        assert_eq!(coarse(Duration::from_secs(5_400)), "1h 30m");
        assert_eq!(coarse(Duration::from_secs(90_061)), "1d 1h 1m 1s");
        assert_eq!(short(Duration::from_secs(45 * 86_400 + 14 * 3_600 + 9)), "45d 14h");
        assert_eq!(short(Duration::from_secs(3_725)), "1h 2m");
    }
}
