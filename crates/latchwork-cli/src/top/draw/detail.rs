//! One lock in detail: its holders, its queue in order, and what the store remarks.

use std::fmt::Write as _;
use std::time::Duration;

use latchwork_store::{Moment, Party};
use ratatui_core::layout::Rect;
use ratatui_core::terminal::Frame;
use ratatui_core::text::{Line, Span};
use ratatui_widgets::block::Block;
use ratatui_widgets::borders::Borders;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::super::locks::Lock;
use super::super::view::View;
use super::look::Look;
use crate::output::locks::{done_text, kind, party_text, token_text};
use crate::output::{is_done, moment_of_day, plain, short};

/// Draws the selected lock; `wall` is the time of day.
pub(super) fn draw(
    view: &mut View,
    frame: &mut Frame<'_>,
    area: Rect,
    look: Look,
    (now, wall): (Moment, Duration),
) {
    let Some(lock) = view.selected() else {
        frame.render_widget(Block::new().borders(Borders::TOP), area);
        return;
    };
    let name = format!(" {} ", plain(lock.seen.key.as_str()));
    let mut lines = lines(lock, look, (now, wall), area.width.into());
    let room = usize::from(area.height.saturating_sub(2));
    let hidden = u16::try_from(lines.len().saturating_sub(room)).unwrap_or(u16::MAX);
    view.detail_scroll = view.detail_scroll.min(hidden);
    let scroll = usize::from(view.detail_scroll);
    let title = match hidden {
        0 => Line::styled(name, look.strong()),
        _ => Line::from(vec![
            Span::styled(name, look.strong()),
            Span::styled(
                format!(
                    " lines {} to {} of {}: [ ] scroll ",
                    scroll + 1,
                    scroll + room,
                    lines.len()
                ),
                look.faint(),
            ),
        ]),
    };
    frame.render_widget(Block::new().borders(Borders::TOP).title(title), area);
    let shown = lines.drain(scroll..).take(room);
    for (line, y) in shown.zip(area.y + 1..) {
        frame.render_widget(line, Rect { y, height: 1, ..area });
    }
}

fn lines(lock: &Lock, look: Look, times: (Moment, Duration), width: usize) -> Vec<Line<'static>> {
    let seen = &lock.seen;
    let mut lines = Vec::new();
    let mut first = vec![Span::raw(kind(seen))];
    if seen.token != 0 {
        first.push(Span::raw(format!("  token {}", token_text(seen.token))));
    }
    lines.push(Line::from(first));
    if is_done(seen) {
        lines.push(Line::raw(done_text(seen)));
    } else if seen.holders.is_empty() {
        lines.push(Line::raw("nobody holds it"));
    }
    if !seen.holders.is_empty() {
        lines.push(Line::styled(format!("Held by {}", seen.holders.len()), look.accent()));
    }
    for holder in &seen.holders {
        lines.extend(wrapped("  ● ", &claim(lock, holder, false, times), width));
    }
    if !seen.waiters.is_empty() {
        let title = format!("Queue of {}, the next one first", seen.waiters.len());
        lines.push(Line::styled(title, look.accent()));
    }
    for (at, waiter) in seen.waiters.iter().enumerate() {
        let place = format!("{:>3} ", at + 1);
        lines.extend(wrapped(&place, &claim(lock, waiter, true, times), width));
    }
    for note in &seen.notes {
        lines.extend(wrapped("  ! ", &plain(note), width));
    }
    lines
}

/// What is known of a holder or a waiter.
fn claim(lock: &Lock, party: &Party, waits: bool, (now, wall): (Moment, Duration)) -> String {
    let mut text = party_text(party);
    // Writing to a String does not fail.
    if let Some(age) = party.age {
        let age = lock.age(age, now);
        let began = moment_of_day(wall.saturating_sub(age), wall);
        let word = if waits { "waiting" } else { "held" };
        let _ = write!(text, ", {word} for {}", short(age));
        if let Some(began) = began {
            let _ = write!(text, " (since {began})");
        }
    }
    if let (false, Some(left)) = (waits, party.remaining) {
        let _ = write!(text, ", expires in {} unless renewed", short(lock.left(left, now)));
    }
    if let (true, Some(token)) = (lock.seen.holders.len() > 1, party.token) {
        let _ = write!(text, ", token {}", token_text(token));
    }
    text
}

/// A text over as many lines as it needs, behind a mark.
fn wrapped(mark: &str, text: &str, width: usize) -> Vec<Line<'static>> {
    let room = width.saturating_sub(mark.width()).max(1);
    let mut lines = vec![String::new()];
    let mut used = 0;
    for c in text.chars() {
        let columns = c.width().unwrap_or(0);
        if used + columns > room {
            lines.push(String::new());
            used = 0;
        }
        used += columns;
        if let Some(line) = lines.last_mut() {
            line.push(c);
        }
    }
    let space = " ".repeat(mark.width());
    let behind = |(at, line): (usize, String)| {
        Line::raw(format!("{}{line}", if at == 0 { mark } else { space.as_str() }))
    };
    lines.into_iter().enumerate().map(behind).collect()
}
