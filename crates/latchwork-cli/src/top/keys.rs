//! What each key does.

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use latchwork_store::Moment;

use super::locks::Column;
use super::view::{Mode, View};

/// What a key asks for beyond the view.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// To end.
    Quit,
    /// To be stopped, as Ctrl-Z does it.
    Stop,
    /// To draw everything again.
    Redraw,
    /// Nothing else.
    None,
}

/// The keys and what they do, for the help.
pub(crate) const HELP: &[(&str, &str)] = &[
    ("↑ ↓, j k, PgUp PgDn, g G", "select a lock"),
    ("/", "filter by name, kind or holder; Enter keeps the filter, Esc removes it"),
    ("1 to 7", "sort by that column; again, the other way round"),
    ("< >", "sort by the column before or behind"),
    ("r", "reverse the order"),
    ("Enter", "show or hide the selected lock's holders and queue"),
    ("[ ]", "scroll its holders and queue"),
    ("Space", "pause, and go on"),
    ("Ctrl-L", "draw everything again"),
    ("Ctrl-Z", "stop; `fg` continues"),
    ("q, Ctrl-C", "quit"),
];

/// Presses a key.
pub(crate) fn press(view: &mut View, key: KeyEvent, now: Moment) -> Wish {
    if key.kind == KeyEventKind::Release {
        return Wish::None;
    }
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return match key.code {
            KeyCode::Char('c') => Wish::Quit,
            KeyCode::Char('z') => Wish::Stop,
            KeyCode::Char('l') => Wish::Redraw,
            _ => Wish::None,
        };
    }
    match &view.mode {
        Mode::Help => view.mode = Mode::Browse,
        Mode::Filter { .. } => edit(view, key.code),
        Mode::Browse => return browse(view, key.code, now),
    }
    Wish::None
}

/// Types into the filter.
fn edit(view: &mut View, key: KeyCode) {
    let mut filter = view.locks.filter().to_owned();
    match key {
        KeyCode::Enter => view.mode = Mode::Browse,
        KeyCode::Esc => {
            if let Mode::Filter { before } = std::mem::replace(&mut view.mode, Mode::Browse) {
                view.locks.set_filter(before);
            }
        }
        KeyCode::Backspace => {
            filter.pop();
            view.locks.set_filter(filter);
        }
        KeyCode::Char(c) => {
            filter.push(c);
            view.locks.set_filter(filter);
        }
        KeyCode::Up => view.select(view.row().saturating_sub(1)),
        KeyCode::Down => view.select(view.row() + 1),
        _ => {}
    }
    view.follow();
}

fn browse(view: &mut View, key: KeyCode, now: Moment) -> Wish {
    let (row, page) = (view.row(), view.page.max(1));
    match key {
        KeyCode::Char('q') => return Wish::Quit,
        KeyCode::Up | KeyCode::Char('k') => view.select(row.saturating_sub(1)),
        KeyCode::Down | KeyCode::Char('j') => view.select(row + 1),
        KeyCode::PageUp => view.select(row.saturating_sub(page)),
        KeyCode::PageDown => view.select(row + page),
        KeyCode::Home | KeyCode::Char('g') => view.select(0),
        KeyCode::End | KeyCode::Char('G') => view.select(usize::MAX),
        KeyCode::Char('/') => view.mode = Mode::Filter { before: view.locks.filter().to_owned() },
        KeyCode::Esc => {
            view.locks.set_filter(String::new());
            view.follow();
        }
        KeyCode::Char(digit @ '1'..='7') => {
            let at = usize::from(digit as u8 - b'1');
            view.locks.sort_by(Column::ALL[at]);
            view.follow_from_top();
        }
        KeyCode::Char('<' | ',') | KeyCode::Left => {
            view.locks.sort_beside(false);
            view.follow_from_top();
        }
        KeyCode::Char('>' | '.') | KeyCode::Right => {
            view.locks.sort_beside(true);
            view.follow_from_top();
        }
        KeyCode::Char('r') => {
            view.locks.reverse();
            view.follow_from_top();
        }
        KeyCode::Enter => {
            view.detail = Some(!view.has_detail);
            view.detail_scroll = 0;
        }
        KeyCode::Char('[') => view.detail_scroll = view.detail_scroll.saturating_sub(1),
        KeyCode::Char(']') => view.detail_scroll = view.detail_scroll.saturating_add(1),
        KeyCode::Char(' ' | 'p') => {
            view.paused_at = match view.paused_at {
                None => Some(now),
                Some(_) => None,
            };
        }
        KeyCode::Char('?' | 'h') | KeyCode::F(1) => view.mode = Mode::Help,
        _ => {}
    }
    Wish::None
}
