//! Draws everything: head, table, one lock in detail, keys, and the help.

mod detail;
mod look;
mod table;

use std::time::Duration;

use latchwork_store::Moment;
use latchwork_store::clock::wall_time;
use ratatui_core::layout::{Constraint, Layout, Rect};
use ratatui_core::terminal::Frame;
use ratatui_core::text::{Line, Span};
use ratatui_widgets::block::Block;
use ratatui_widgets::borders::Borders;
use ratatui_widgets::clear::Clear;
use ratatui_widgets::paragraph::{Paragraph, Wrap};
use unicode_width::UnicodeWidthStr;

use self::look::Look;
use super::cells::fit;
use super::keys::HELP;
use super::view::{Mode, View};
use crate::output::{moment_of_day, plain, short};

/// From how many rows on one lock is shown in detail without being asked for.
const ROOMY: u16 = 16;

/// How many columns both side by side need.
const WIDE: u16 = 150;

/// Draws the view as of now.
pub(crate) fn frame(view: &mut View, frame: &mut Frame<'_>, now: Moment) {
    let look = Look { has_colour: view.has_colour };
    let shown = view.now(now);
    // The time of day that goes with what is shown.
    let wall = wall_time().saturating_sub(now.since(shown));
    let now = shown;
    let [head, state, body, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(title(view, look, wall, head.width), head);
    frame.render_widget(status(view, look, now, state.width), state);
    let wants_detail = view.detail.unwrap_or(body.height >= ROOMY);
    view.has_detail = wants_detail && body.height > 4 && view.selected().is_some();
    let (rows, below) = split(body, view.has_detail);
    table::draw(view, frame, rows, look, now);
    if let Some(below) = below {
        detail::draw(view, frame, below, look, (now, wall));
    }
    frame
        .render_widget(Line::styled(fit(&keys(foot.width), foot.width.into()), look.faint()), foot);
    if view.mode == Mode::Help {
        help(frame, look);
    }
}

/// The table, and the detail if there is one: beside it on a wide terminal, else below.
fn split(body: Rect, has_detail: bool) -> (Rect, Option<Rect>) {
    if !has_detail {
        return (body, None);
    }
    if body.width >= WIDE {
        let parts = [Constraint::Percentage(62), Constraint::Percentage(38)];
        let [left, right] = Layout::horizontal(parts).areas(body);
        return (left, Some(right));
    }
    let parts = [Constraint::Percentage(60), Constraint::Percentage(40)];
    let [above, below] = Layout::vertical(parts).areas(body);
    (above, Some(below))
}

/// The store, what is counted, and the time.
fn title(view: &View, look: Look, wall: Duration, width: u16) -> Line<'static> {
    let all = view.locks.all();
    let held = all.iter().filter(|lock| !lock.seen.holders.is_empty()).count();
    let waiting: usize = all.iter().map(|lock| lock.seen.waiters.len()).sum();
    let time = moment_of_day(wall, wall).unwrap_or_default();
    let mut counts = format!("{held} held, {waiting} waiting  {time}");
    if view.locks.count() < all.len() {
        counts = format!("{} of {} shown, {counts}", view.locks.count(), all.len());
    }
    let mut store = plain(&view.store);
    if !view.prefix.is_empty() {
        store = format!("{store}  {}…", plain(&view.prefix));
    }
    let name = "latchwork top  ";
    let room = usize::from(width).saturating_sub(name.width() + counts.width() + 2);
    // The name of the store is the first to go.
    let store = if room < 8 { String::new() } else { fit(&store, room) + "  " };
    Line::from(vec![
        Span::styled(name, look.strong()),
        Span::styled(store, look.accent()),
        Span::raw(counts),
    ])
}

/// How fresh it is, or what is typed.
fn status(view: &View, look: Look, now: Moment, width: u16) -> Line<'static> {
    if let Mode::Filter { .. } = view.mode {
        let typed = format!("filter: {}▏", plain(view.locks.filter()));
        return Line::styled(fit(&typed, width.into()), look.accent());
    }
    let fresh = &view.freshness;
    let mut text = String::new();
    let mut style = look.faint();
    if view.paused_at.is_some() {
        text.push_str("PAUSED; Space goes on  ");
        style = look.warning();
    }
    if !view.locks.filter().is_empty() {
        text = format!("{text}filter: {}  ", plain(view.locks.filter()));
        style = if view.paused_at.is_some() { style } else { look.accent() };
    }
    match (&fresh.error, fresh.read_at) {
        (Some(error), _) => {
            style = look.alarm();
            text.push_str("asking again: ");
            text.push_str(&plain(error));
        }
        (None, None) => text.push_str("reading the locks"),
        (None, Some(read_at)) => {
            let ago = now.since(read_at).as_secs();
            let every = fresh.next_at.map_or(0, |next| next.since(read_at).as_secs());
            if ago > 1 || every > 1 {
                text.push_str(&format!(
                    "read {} ago, again every {}; those on the screen each second",
                    short(now.since(read_at)),
                    short(fresh.next_at.unwrap_or(now).since(read_at))
                ));
            } else {
                text.push_str("read each second");
            }
        }
    }
    Line::styled(fit(&text, width.into()), style)
}

/// The keys in the last line, as many as fit.
fn keys(width: u16) -> String {
    let mut text = String::new();
    for one in
        ["? help", "/ filter", "< > sort", "r reverse", "Enter detail", "Space pause", "q quit"]
    {
        if text.width() + one.width() + 2 > usize::from(width) {
            break;
        }
        text.push_str(one);
        text.push_str("  ");
    }
    text
}

/// All keys, over the rest.
fn help(frame: &mut Frame<'_>, look: Look) {
    let all = frame.area();
    let height = (HELP.len() as u16 + 4).min(all.height);
    let width = 84.min(all.width);
    let area = Rect { x: (all.width - width) / 2, y: (all.height - height) / 2, width, height };
    let mut lines: Vec<_> = HELP
        .iter()
        .map(|(keys, what)| {
            Line::from(vec![Span::styled(fit(keys, 28), look.accent()), Span::raw(what.to_owned())])
        })
        .collect();
    lines.push(Line::raw(""));
    lines.push(Line::styled(
        "The bar drains to the end of the ttl; a renewal fills it.",
        look.faint(),
    ));
    let block = Block::new().borders(Borders::ALL).title(" Keys; any key closes ");
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(lines).block(block).wrap(Wrap { trim: false }), area);
}
