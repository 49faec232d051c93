//! The only place that prints: text for people, JSON for programs, names made harmless.

mod report;

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use latchwork::store::{Mode, Party, Shape, Snapshot};
use latchwork::{Error, FencingToken, Leader};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};

use crate::exit;

/// How to print.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    json: bool,
    verbose: bool,
}

impl Output {
    /// As the command line asks.
    pub(crate) fn new(json: bool, verbose: bool) -> Self {
        Self { json, verbose }
    }

    /// Whether somebody wants to know what `run` waits for.
    pub(crate) fn tells_waiting(&self) -> bool {
        self.verbose || io::stderr().is_terminal()
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
        if self.json {
            to_stderr(&line(&json!({"error": {"kind": kind, "message": message}})));
        } else {
            to_stderr(&format!("latchwork: {}", plain(message)));
        }
    }

    /// Something that people want to know; `fields` are for programs.
    pub(crate) fn note(&self, event: &str, message: &str, fields: &[(&str, &str)]) {
        if self.json {
            let mut value = json!({"event": event, "message": message});
            for &(name, text) in fields {
                value[name] = text.into();
            }
            to_stderr(&line(&value));
        } else {
            to_stderr(&format!("latchwork: {}", plain(message)));
        }
    }

    /// Something that people want to know if they asked for it with `-v`.
    pub(crate) fn detail(&self, event: &str, message: &str, fields: &[(&str, &str)]) {
        if self.verbose {
            self.note(event, message, fields);
        }
    }

    /// The job is about to be stopped by its terminal.
    pub(crate) fn stopped(&self, left: Duration, fields: &[(&str, &str)]) {
        let left = coarse(left);
        let message = format!("stopped; the command is killed unless continued within {left}");
        self.note("stopped", &message, fields);
    }

    /// `ls`: all of them.
    pub(crate) fn list(&self, all: &[Snapshot]) -> u8 {
        if self.json {
            return self.print(&line(&Value::from_iter(all.iter().map(snapshot_json))));
        }
        if all.is_empty() {
            to_stderr("latchwork: no lock is held or waited for");
            return 0;
        }
        let head = ["NAME", "HOLDER", "TOKEN", "AGE", "LEFT", "WAITING"].map(str::to_owned);
        self.print(&table(&head, all.iter().map(row)))
    }

    /// `show`: one of them.
    pub(crate) fn show(&self, one: &Snapshot) -> u8 {
        if self.json {
            return self.print(&line(&snapshot_json(one)));
        }
        let mut text = format!("{}: ", plain(one.key.as_str()));
        match (one.holders.is_empty(), one.linger, one.shape) {
            (false, _, Some(shape)) => {
                let _ = write!(text, "held ({shape})");
            }
            (false, _, None) => text.push_str("held"),
            (true, Some(left), _) => {
                let _ = write!(text, "kept closed for {}", coarse(left));
            }
            (true, None, _) => text.push_str("free"),
        }
        for party in &one.holders {
            let _ = write!(text, "\n  holder   {}", party_text(party));
        }
        for party in &one.waiters {
            let _ = write!(text, "\n  waiting  {}", party_text(party));
        }
        if let (false, Some(left)) = (one.holders.is_empty(), one.linger) {
            let _ = write!(text, "\n  closed   to others for {}", coarse(left));
        }
        if one.token != 0 {
            let _ = write!(text, "\n  token    {}", token_text(one.token));
        }
        for note in &one.notes {
            let _ = write!(text, "\n  note     {}", plain(note));
        }
        self.print(&text)
    }

    /// `elect --observe`: who leads, one line for each change.
    pub(crate) fn leader(&self, name: &str, leader: Option<&Leader>) -> u8 {
        if self.json {
            let candidate = leader.map(|leader| &*leader.candidate);
            let term = leader.map(|leader| leader.term.to_string());
            let value = json!({"key": name, "candidate": candidate, "term": term});
            return self.print(&line(&value));
        }
        self.print(&match leader {
            Some(Leader { candidate, term }) => {
                format!("{}: {} leads, term {term}", plain(name), plain(candidate))
            }
            None => format!("{}: nobody leads", plain(name)),
        })
    }

    /// `release --force`: who was evicted, and the token that fences them.
    pub(crate) fn released(
        &self,
        name: &str,
        evicted: &[Party],
        token: Option<FencingToken>,
    ) -> u8 {
        if self.json {
            let evicted = Value::from_iter(evicted.iter().map(party_json));
            let token = token.map(|token| token.to_string());
            return self.print(&line(&json!({"key": name, "evicted": evicted, "token": token})));
        }
        let mut text = format!("{}: ", plain(name));
        match evicted {
            [] => text.push_str("was not held"),
            [one] => {
                let _ = write!(text, "taken away from {}", plain(&one.holder.shown()));
            }
            many => {
                let _ = write!(text, "taken away from {} holders", many.len());
            }
        }
        if let Some(token) = token {
            let _ = write!(text, "; token {token} now fences earlier holders");
        }
        self.print(&text)
    }

    /// `once --reset`: whether it was closed, and for how much longer.
    pub(crate) fn reset(&self, name: &str, was_closed: bool, left: Option<Duration>) -> u8 {
        if self.json {
            let left = left.map(millis);
            return self.print(&line(
                &json!({"key": name, "was_closed": was_closed, "closed_for_ms": left}),
            ));
        }
        let name = plain(name);
        self.print(&match (was_closed, left) {
            (true, Some(left)) => {
                format!("{name}: was closed for another {}, and is open now", coarse(left))
            }
            (true, None) => format!("{name}: was closed, and is open now"),
            (false, _) => format!("{name}: was not closed, nothing to reset"),
        })
    }

    /// Whether somebody may still read standard output.
    pub(crate) fn is_read(&self) -> bool {
        let stdout = io::stdout();
        // No answer is that nothing has happened; errors and hang-ups need not be asked for.
        let mut ends = [PollFd::new(&stdout, PollFlags::empty())];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        !matches!(poll(&mut ends, Some(&at_once)), Ok(1..))
    }

    fn print(&self, text: &str) -> u8 {
        self.raw(format!("{text}\n").as_bytes())
    }

    /// A text for standard output, as it is. Says with which code to exit: whoever does not read it
    /// any more does not want it, but what could not be written is an error.
    pub(crate) fn raw(&self, text: &[u8]) -> u8 {
        let mut stdout = io::stdout().lock();
        match stdout.write_all(text).and_then(|()| stdout.flush()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                self.fail("Output", &format!("cannot write to standard output: {error}"));
                exit::BROKEN
            }
            _ => 0,
        }
    }
}

fn row(one: &Snapshot) -> [String; 6] {
    let first = one.holders.first();
    let holder = match (first, one.holders.len()) {
        (None, _) if one.linger.is_some() => "(kept closed)".to_owned(),
        (None, _) => "(nobody)".to_owned(),
        (Some(party), 1) => plain(&party.holder.shown()),
        (Some(party), all) => format!("{} and {} more", plain(&party.holder.shown()), all - 1),
    };
    let token = first.and_then(|party| party.token).unwrap_or(one.token);
    let left = first.and_then(|party| party.remaining).or(one.linger);
    [
        plain(one.key.as_str()),
        holder,
        if token == 0 { "-".to_owned() } else { token_text(token) },
        or_dash(first.and_then(|party| party.age)),
        or_dash(left),
        one.waiters.len().to_string(),
    ]
}

fn or_dash(length: Option<Duration>) -> String {
    length.map_or_else(|| "-".to_owned(), coarse)
}

fn party_text(party: &Party) -> String {
    let mut text = plain(&party.holder.shown());
    match party.mode {
        Mode::Exclusive => {}
        Mode::Read => text.push_str(", read"),
        Mode::Write => text.push_str(", write"),
        Mode::Permits { take, of } => {
            let _ = write!(text, ", {take} of {of} permits");
        }
    }
    if let Some(age) = party.age {
        let _ = write!(text, ", came {} ago", coarse(age));
    }
    if let Some(left) = party.remaining {
        let _ = write!(text, ", {} left unless renewed", coarse(left));
    }
    text
}

fn snapshot_json(one: &Snapshot) -> Value {
    json!({
        "key": one.key.as_str(),
        "held": !one.holders.is_empty(),
        "kind": one.shape.map(|shape| match shape {
            Shape::Mutex => "mutex",
            Shape::ReadWrite => "read-write",
            Shape::Semaphore { .. } => "semaphore",
        }),
        "permits": one.shape.and_then(|shape| match shape {
            Shape::Semaphore { of } => Some(of),
            _ => None,
        }),
        "token": (one.token != 0).then(|| token_text(one.token)),
        "holders": Value::from_iter(one.holders.iter().map(party_json)),
        "waiters": Value::from_iter(one.waiters.iter().map(party_json)),
        "linger_ms": one.linger.map(millis),
        "notes": one.notes,
    })
}

fn party_json(party: &Party) -> Value {
    json!({
        "holder": &*party.holder.text,
        "candidate": party.holder.candidate.as_deref(),
        "mode": match party.mode {
            Mode::Exclusive => "exclusive",
            Mode::Read => "read",
            Mode::Write => "write",
            Mode::Permits { .. } => "permits",
        },
        "permits": match party.mode {
            Mode::Permits { take, .. } => Some(take),
            _ => None,
        },
        "token": party.token.map(token_text),
        "age_ms": party.age.map(millis),
        "remaining_ms": party.remaining.map(millis),
    })
}

/// The token that a holder of the store's grant was given.
fn token_text(grant: u64) -> String {
    FencingToken::from_grant(grant).to_string()
}

fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

/// Columns as wide as their widest cell.
fn table<const N: usize>(head: &[String; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let rows: Vec<_> = std::iter::once(head.clone()).chain(rows).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
            let _ = write!(line, "{cell:width$}  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text.truncate(text.trim_end().len());
    text
}

/// A length of time for people: `29s`, `1h 2m`, below a second in milliseconds.
pub(crate) fn coarse(length: Duration) -> String {
    let whole = if length < Duration::from_secs(1) {
        Duration::from_millis(millis(length))
    } else {
        Duration::from_secs(length.as_secs())
    };
    humantime::format_duration(whole).to_string()
}

/// A text that cannot command the terminal: control characters and those that turn the writing
/// direction, break lines or do not show are written as escapes.
pub(crate) fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if commands(c) {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

/// Whether the character is for the terminal and not for the reader.
fn commands(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2066}'..='\u{2069}'
        )
}

/// JSON on one line, which does not command the terminal either. JSON itself escapes the control
/// characters of ASCII only.
fn line(value: &Value) -> String {
    let text = value.to_string();
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if commands(c) {
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
/// Gives up when nobody takes it: a terminal that stands still, or a pipe that nobody empties, must
/// not keep the lock from being watched and released.
fn to_stderr(text: &str) {
    // As much as a pipe that is ready takes without blocking.
    const AT_ONCE: usize = 4096;
    for part in format!("{text}\n").as_bytes().chunks(AT_ONCE) {
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
    use latchwork::store::Key;

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
    fn tokens_are_strings_in_json() {
        let mut one = Snapshot::free(Key::new("x").unwrap());
        one.token = (1 << 53) - 1;
        let value = snapshot_json(&one);
        assert_eq!(value["token"], Value::from((((1_u64 << 53) - 1) << 10).to_string()));
        assert_eq!(value["held"], Value::from(false));
    }

    #[test]
    fn lengths_are_short() {
        assert_eq!(coarse(Duration::from_millis(29_999)), "29s");
        assert_eq!(coarse(Duration::from_micros(1_500)), "1ms");
    }
}
