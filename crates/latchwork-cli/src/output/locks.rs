//! Locks as `ls`, `show`, `status`, `release` and `elect --observe` print them.

use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::time::Duration;

use latchwork::{FencingToken, Leader, Resized};
use latchwork_store::clock::wall_time;
use latchwork_store::{Mode, Party, Shape, Snapshot};
use serde_json::json;
use unicode_width::UnicodeWidthStr;

use super::{Done, Output, coarse, is_done, line, millis, opens_by_reset, plain, short, to_stderr};

impl Output {
    /// `ls`: all of them.
    pub(crate) fn list(&self, all: &[Snapshot]) -> u8 {
        if self.json {
            return self.print(&line(&json!(all)));
        }
        if all.is_empty() {
            to_stderr("latchwork: no lock is held or waited for");
            return 0;
        }
        self.print(&rows(all))
    }

    /// `ls --watch`: all of them again, in place of the last list on a terminal.
    pub(crate) fn list_again(&self, all: &[Snapshot], store: &str) -> u8 {
        if self.json {
            return self.list(all);
        }
        let seconds = wall_time().as_secs() % (24 * 60 * 60);
        let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
        let head = format!(
            "{}  {hours:02}:{minutes:02}:{:02} UTC  {} locks\n\n",
            plain(store),
            seconds % 60,
            all.len()
        );
        let clear = if io::stdout().is_terminal() { "\x1b[H\x1b[2J" } else { "" };
        self.raw(format!("{clear}{head}{}\n", rows(all)).as_bytes())
    }

    /// `status`: one word; for a task that is done, programs and `-v` get more.
    pub(crate) fn status(&self, name: &str, word: &str, seen: Option<&Snapshot>) -> u8 {
        if self.quiet {
            return 0;
        }
        let closed = seen.filter(|seen| is_done(seen));
        if self.json {
            let by = closed.and_then(|closed| closed.closed_by.as_ref());
            let left = closed.and_then(|closed| closed.linger).map(millis);
            return self.print(&line(
                &json!({"key": name, "status": word, "linger_ms": left, "closed_by": by}),
            ));
        }
        if let (true, Some(closed)) = (self.verbose, closed) {
            to_stderr(&format!("latchwork: {}: {}", plain(name), done_text(closed)));
        }
        self.print(word)
    }

    /// `show`: some of them. JSON for one is an object, for several an array.
    pub(crate) fn show(&self, all: &[Snapshot]) -> u8 {
        if self.json {
            return self.print(&line(&match all {
                [one] => json!(one),
                all => json!(all),
            }));
        }
        let texts: Vec<_> = all.iter().map(snapshot_text).collect();
        self.print(&texts.join("\n"))
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
            Some(Leader { candidate, term, .. }) => {
                format!("{}: {} leads, term {term}", plain(name), plain(candidate))
            }
            None => format!("{}: nobody leads", plain(name)),
        })
    }

    /// `upgrade` and `downgrade`: `lines` for the shell, or the new mode and token of the hold for programs.
    pub(crate) fn changed(&self, key: &str, mode: &str, token: &str, lines: &str) -> u8 {
        if self.json {
            return self.print(&line(&json!({"key": key, "mode": mode, "token": token})));
        }
        self.print(lines)
    }

    /// `release --force`: who was evicted, and the token that fences them. `closed` is the key if nobody holds it and
    /// it is done.
    pub(crate) fn released(
        &self,
        name: &str,
        evicted: &[Party],
        token: Option<FencingToken>,
        closed: Option<&Snapshot>,
    ) -> u8 {
        if self.json {
            let token = token.map(|token| token.to_string());
            let left = closed.and_then(|closed| closed.linger).map(millis);
            return self.print(&line(
                &json!({"key": name, "evicted": evicted, "token": token, "linger_ms": left}),
            ));
        }
        let mut text = format!("{}: ", plain(name));
        match evicted {
            [] => match closed {
                Some(closed) => {
                    let step = opens_by_reset(name);
                    let step = plain(&self.hinted(&step));
                    let _ = write!(text, "not held, but {}; {step}", done_text(closed));
                }
                None => text.push_str("was not held"),
            },
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
        if !evicted.is_empty() {
            text.push_str(
                "; the old holder notices at its next renewal, within a third of its ttl, and may work until then",
            );
        }
        self.print(&text)
    }

    /// `resize`: the limit before and now, and how many permits are held.
    pub(crate) fn resized(&self, name: &str, resized: Resized) -> u8 {
        if self.json {
            let (from, to, held) = match resized {
                Resized::Yes { from, to, held } => (Some(from), Some(to), Some(held)),
                Resized::Unused => (None, None, None),
            };
            return self.print(&line(&json!({"key": name, "from": from, "to": to, "held": held})));
        }
        self.print(&format!("{}: {resized}", plain(name)))
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
}

/// A lock, its holders and its waiters.
fn snapshot_text(one: &Snapshot) -> String {
    let mut text = format!("{}: ", plain(one.key.as_str()));
    match (one.holders.is_empty(), one.linger, one.shape) {
        (false, _, Some(shape)) => {
            let _ = write!(text, "held ({shape})");
        }
        (false, _, None) => text.push_str("held"),
        (true, Some(_), _) => text.push_str(&done_text(one)),
        (true, None, _) => text.push_str("free"),
    }
    for party in &one.holders {
        let _ = write!(text, "\n  holder   {}", party_text(party));
        if let Some(age) = party.age {
            let _ = write!(text, ", held for {}", coarse(age));
        }
        if let Some(left) = party.remaining {
            let _ = write!(text, ", expires in {} unless renewed", coarse(left));
        }
    }
    for party in &one.waiters {
        let _ = write!(text, "\n  waiter   {}", party_text(party));
        if let Some(age) = party.age {
            let _ = write!(text, ", waiting for {}", coarse(age));
        }
    }
    if let (false, Some(left)) = (one.holders.is_empty(), one.linger) {
        let _ = write!(text, "\n  closed   to others for {}", coarse(left));
        let closing = Done::of(one).closing(wall_time(), None);
        if !closing.is_empty() {
            let _ = write!(text, " ({})", plain(closing.trim_start()));
        }
    }
    if one.token != 0 {
        let _ = write!(text, "\n  token    {}", token_text(one.token));
    }
    for note in &one.notes {
        let _ = write!(text, "\n  note     {}", plain(note));
    }
    text
}

/// `done 01:00:14 UTC by web-2, next run possible in 14h`, of a key that is closed.
pub(crate) fn done_text(one: &Snapshot) -> String {
    plain(&Done::of(one).sentence(wall_time(), None))
}

/// The table of `ls`.
fn rows(all: &[Snapshot]) -> String {
    let head = ["NAME", "KIND", "HOLDER", "TOKEN", "AGE", "LEFT", "WAITING"].map(str::to_owned);
    table(&head, all.iter().map(row))
}

fn row(one: &Snapshot) -> [String; 7] {
    let first = one.holders.first();
    let token = first.and_then(|party| party.token).unwrap_or(one.token);
    let left = first.and_then(|party| party.remaining).or(one.linger);
    let closed_at = one.closed_by.as_ref().and_then(|by| by.closed_at);
    let age = match first {
        Some(party) => party.age,
        None => closed_at.map(|at| wall_time().saturating_sub(at)),
    };
    [
        plain(one.key.as_str()),
        kind(one),
        holder_cell(one),
        if token == 0 { "-".to_owned() } else { token_text(token) },
        or_dash(age),
        or_dash(left),
        one.waiters.len().to_string(),
    ]
}

/// The kind of lock, and how much of it is taken.
pub(crate) fn kind(one: &Snapshot) -> String {
    let is_election =
        one.holders.iter().chain(&one.waiters).any(|it| it.holder.candidate.is_some());
    match one.shape {
        _ if one.holders.is_empty() && one.linger.is_some() => "done".into(),
        _ if is_election => "election".into(),
        None => "-".into(),
        Some(Shape::Mutex) => "mutex".into(),
        Some(Shape::ReadWrite) => match &one.holders[..] {
            [] => "read-write".into(),
            [writer] if writer.mode == Mode::Write => "write".into(),
            readers => format!("read ×{}", readers.len()),
        },
        Some(Shape::Semaphore { of }) => {
            let taken = |mode| match mode {
                Mode::Permits { take, .. } => u64::from(take),
                _ => 1,
            };
            let taken: u64 = one.holders.iter().map(|party| taken(party.mode)).sum();
            format!("permits {taken}/{of}")
        }
    }
}

/// The first holder, and how many more there are.
pub(crate) fn holder_cell(one: &Snapshot) -> String {
    match (one.holders.first(), one.holders.len()) {
        (None, _) if one.linger.is_some() => match &one.closed_by {
            Some(by) if !by.shown().is_empty() => format!("(done by {})", plain(&by.shown())),
            _ => "(done)".to_owned(),
        },
        (None, _) => "(nobody)".to_owned(),
        (Some(party), 1) => plain(&party.holder.shown()),
        (Some(party), all) => format!("{} and {} more", plain(&party.holder.shown()), all - 1),
    }
}

fn or_dash(length: Option<Duration>) -> String {
    length.map_or_else(|| "-".to_owned(), short)
}

/// A claim: its holder, and what it takes.
pub(crate) fn party_text(party: &Party) -> String {
    let mut text = plain(&party.holder.shown());
    match party.mode {
        Mode::Exclusive => {}
        Mode::Read => text.push_str(", read"),
        Mode::Write => text.push_str(", write"),
        Mode::Permits { take, of } => {
            let _ = write!(text, ", {take} of {of} permits");
        }
    }
    text
}

/// The token that a holder of the store's grant was given.
pub(crate) fn token_text(grant: u64) -> String {
    FencingToken::from_grant(grant).to_string()
}

/// Columns as wide as their widest cell, as a terminal shows it: some characters take two columns, some none.
fn table<const N: usize>(head: &[String; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let rows: Vec<_> = std::iter::once(head.clone()).chain(rows).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = rows.iter().map(|row| row[column].width()).max().unwrap_or(0);
            let _ = write!(line, "{cell}{:space$}  ", "", space = width - cell.width());
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text.truncate(text.trim_end().len());
    text
}

#[cfg(test)]
mod tests {
    use latchwork_store::Key;

    use super::*;

    #[test]
    fn tokens_are_strings_in_json() {
        let mut one = Snapshot::free(Key::new("x").unwrap());
        one.token = (1 << 53) - 1;
        let value = json!(one);
        assert_eq!(value["token"], json!((((1_u64 << 53) - 1) << 10).to_string()));
        assert_eq!(value["held"], json!(false));
    }

    #[test]
    fn wide_names_do_not_shift_the_columns() {
        let head = ["NAME", "AGE"].map(str::to_owned);
        let rows =
            [["锁", "1s"], ["ab\u{301}", "2s"], ["lock", "3s"]].map(|row| row.map(str::to_owned));
        let text = table(&head, rows.into_iter());
        assert_eq!(text, "NAME  AGE\n锁    1s\nab\u{301}    2s\nlock  3s");
    }
}
