//! The table of locks: as many columns as the terminal has room for.

use latchwork_store::Moment;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;
use ratatui_core::terminal::Frame;
use ratatui_core::text::{Line, Span};
use unicode_width::UnicodeWidthStr;

use super::super::cells::{bar, fit, fit_right};
use super::super::locks::{Column, Lock};
use super::super::view::View;
use super::look::Look;
use crate::output::locks::{holder_cell, kind, token_text};
use crate::output::{plain, short};

/// How wide the bar of the time left is.
const BAR: usize = 10;
/// The time left in numbers.
const LEFT: usize = 8;

/// The widths of the columns; 0 is not shown.
struct Widths {
    name: usize,
    kind: usize,
    holder: usize,
    held: usize,
    token: usize,
    bar: usize,
    waiting: usize,
}

/// Draws the table.
pub(super) fn draw(view: &mut View, frame: &mut Frame<'_>, area: Rect, look: Look, now: Moment) {
    if area.height == 0 {
        return;
    }
    let page = usize::from(area.height) - 1;
    let first = view.first(page);
    let rows: Vec<_> = (first..first + page).map_while(|row| view.locks.get(row)).collect();
    let widths = widths(&rows, usize::from(area.width));
    let mut lines = vec![Line::styled(head(view, &widths, area.width), look.strong())];
    for (at, lock) in rows.iter().enumerate() {
        let line = row(lock, &widths, look, now);
        lines.push(if first + at == view.row() { line.style(look.selected()) } else { line });
    }
    if rows.is_empty() && view.freshness.read_at.is_some() {
        let text = match view.locks.filter() {
            "" => "No lock is held or waited for.",
            _ => "No lock matches the filter.",
        };
        lines.push(Line::styled(text, look.faint()));
    }
    for (line, y) in lines.into_iter().zip(area.y..) {
        frame.render_widget(line, Rect { y, height: 1, ..area });
    }
}

/// Gives each column what it needs, as long as there is room: the least important ones go first.
fn widths(rows: &[&Lock], room: usize) -> Widths {
    let widest = |title: Column, text: &dyn Fn(&Lock) -> usize| {
        rows.iter().map(|lock| text(lock)).max().unwrap_or(0).max(title.title().width() + 2)
    };
    let name = widest(Column::Name, &|lock| plain(lock.seen.key.as_str()).width());
    let holder = widest(Column::Holder, &|lock| holder_cell(&lock.seen).width());
    let kinds = widest(Column::Kind, &|lock| kind(&lock.seen).width());
    let tokens = widest(Column::Token, &|lock| token(lock).width());
    let mut all = Widths { name: 0, kind: 0, holder: 0, held: 0, token: 0, bar: 0, waiting: 0 };
    // Two columns of space behind each.
    let mut left = room.saturating_sub(LEFT + 2);
    let mut take = |width: usize, others: usize| {
        let is_room = width + 2 + others <= left;
        left -= if is_room { width + 2 } else { 0 };
        if is_room { width } else { 0 }
    };
    // What the name and the holder get before a column gets anything.
    let (some, most) = (name.min(12) + 2, name.min(24) + holder.min(20) + 4);
    all.waiting = take(6, some);
    all.held = take(9, most.min(30));
    all.bar = take(BAR, most);
    all.kind = take(kinds, most);
    all.token = take(tokens, most);
    let both = left.saturating_sub(4);
    // Half each, unless one needs less.
    all.name = name.min(both.saturating_sub(holder).max(both / 2));
    all.holder = if both < 12 { 0 } else { both - all.name };
    if all.holder == 0 {
        all.name = left.saturating_sub(2);
    }
    all
}

fn head(view: &View, widths: &Widths, width: u16) -> String {
    let title = |column: Column| match (view.locks.sort() == column, view.locks.is_down()) {
        (true, true) => format!("{} ▼", column.title()),
        (true, false) => format!("{} ▲", column.title()),
        _ => column.title().to_owned(),
    };
    let mut text = String::new();
    let mut add = |column: Column, width: usize, is_right: bool| {
        if width > 0 {
            let title = title(column);
            let title = if is_right { fit_right(&title, width) } else { fit(&title, width) };
            text.push_str(&title);
            text.push_str("  ");
        }
    };
    add(Column::Name, widths.name, false);
    add(Column::Kind, widths.kind, false);
    add(Column::Holder, widths.holder, false);
    add(Column::Held, widths.held, true);
    add(Column::Token, widths.token, true);
    let left = if widths.bar > 0 { widths.bar + 2 + LEFT } else { LEFT };
    add(Column::Left, left, widths.bar == 0);
    add(Column::Waiting, widths.waiting, true);
    fit(&text, width.into())
}

fn row(lock: &Lock, widths: &Widths, look: Look, now: Moment) -> Line<'static> {
    let seen = &lock.seen;
    let mut spans = Vec::new();
    let mut add = |text: String, style: Style| {
        if !text.is_empty() {
            spans.push(Span::styled(text + "  ", style));
        }
    };
    let usual = Style::new();
    let is_held = !seen.holders.is_empty();
    let holder_style = if is_held { usual } else { look.faint() };
    add(fit(&plain(seen.key.as_str()), widths.name), usual);
    add(fit(&kind(seen), widths.kind), usual);
    add(fit(&holder_cell(seen), widths.holder), holder_style);
    let held = lock.held_for(now).map_or_else(|| "-".to_owned(), short);
    add(fit_right(&held, widths.held), usual);
    add(fit_right(&token(lock), widths.token), usual);
    let (left, part) = match lock.remaining(now) {
        Some((left, part)) => (short(left), part),
        None => ("-".to_owned(), 0.0),
    };
    add(bar(part, widths.bar), look.bar(part, !is_held));
    add(fit_right(&left, LEFT), usual);
    let waiting = match seen.waiters.len() {
        0 => "-".to_owned(),
        some => some.to_string(),
    };
    let waiting_style = if seen.waiters.is_empty() { look.faint() } else { look.warning() };
    add(fit_right(&waiting, widths.waiting), waiting_style);
    Line::from(spans)
}

fn token(lock: &Lock) -> String {
    let token = lock.next_to_end().and_then(|party| party.token).unwrap_or(lock.seen.token);
    if token == 0 { "-".to_owned() } else { token_text(token) }
}
