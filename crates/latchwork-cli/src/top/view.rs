//! What a person sees at the moment: which locks, which one is selected, and how fresh they are.

use std::time::Duration;

use latchwork_store::{Key, Moment, Snapshot};

use super::locks::{Lock, Locks};

/// What the keys do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Each key is a command.
    Browse,
    /// Keys are typed into the filter; on Esc it is this again.
    Filter { before: String },
    /// Any key closes the help.
    Help,
}

/// How fresh the locks are.
#[derive(Debug, Default)]
pub(crate) struct Freshness {
    /// When all locks were read.
    pub(crate) read_at: Option<Moment>,
    /// When they are read again.
    pub(crate) next_at: Option<Moment>,
    /// Why they could not be read.
    pub(crate) error: Option<String>,
}

/// Everything that is drawn.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) store: String,
    pub(crate) prefix: String,
    pub(crate) has_colour: bool,
    pub(crate) locks: Locks,
    pub(crate) mode: Mode,
    pub(crate) freshness: Freshness,
    /// The moment that is shown for as long as the display is paused.
    pub(crate) paused_at: Option<Moment>,
    /// Whether one lock is shown in detail; without a choice, if there is room.
    pub(crate) detail: Option<bool>,
    pub(crate) detail_scroll: u16,
    selected: Option<Key>,
    row: usize,
    first: usize,
    /// How many rows the table had when it was drawn last.
    pub(crate) page: usize,
    /// Whether the detail was drawn last.
    pub(crate) has_detail: bool,
}

impl View {
    pub(crate) fn new(store: String, prefix: String, has_colour: bool) -> Self {
        Self {
            store,
            prefix,
            has_colour,
            locks: Locks::new(),
            mode: Mode::Browse,
            freshness: Freshness::default(),
            paused_at: None,
            detail: None,
            detail_scroll: 0,
            selected: None,
            row: 0,
            first: 0,
            page: 0,
            has_detail: false,
        }
    }

    /// Takes what was read of all locks.
    pub(crate) fn read_all(&mut self, all: Vec<Snapshot>, now: Moment, pause: Duration) {
        self.locks.replace(all, now);
        self.freshness =
            Freshness { read_at: Some(now), next_at: Some(now.plus(pause)), error: None };
        self.follow();
    }

    /// Takes what was read of one lock.
    pub(crate) fn read_one(&mut self, seen: Snapshot, now: Moment) {
        self.locks.update(seen, now);
        self.follow();
    }

    /// The time that is shown.
    pub(crate) fn now(&self, now: Moment) -> Moment {
        self.paused_at.unwrap_or(now)
    }

    /// The row of the selected lock.
    pub(crate) fn row(&self) -> usize {
        self.row
    }

    /// The first row that is drawn, of a table with so many rows.
    pub(crate) fn first(&mut self, page: usize) -> usize {
        self.page = page;
        let last = self.locks.count().saturating_sub(page);
        self.first = self.first.min(self.row).min(last);
        self.first = self.first.max((self.row + 1).saturating_sub(page));
        self.first
    }

    /// The selected lock.
    pub(crate) fn selected(&self) -> Option<&Lock> {
        self.locks.get(self.row)
    }

    /// The locks on the screen.
    pub(crate) fn on_screen(&self) -> Vec<Key> {
        let rows = self.first..self.first + self.page;
        rows.map_while(|row| Some(self.locks.get(row)?.seen.key.clone())).collect()
    }

    /// Selects a row.
    pub(crate) fn select(&mut self, row: usize) {
        let row = row.min(self.locks.count().saturating_sub(1));
        let key = self.locks.get(row).map(|lock| lock.seen.key.clone());
        if key != self.selected {
            self.detail_scroll = 0;
        }
        self.row = row;
        self.selected = key;
    }

    /// Keeps the first row selected after the order has changed, or else the same lock.
    pub(crate) fn follow_from_top(&mut self) {
        if self.row == 0 {
            self.select(0);
        } else {
            self.follow();
        }
    }

    /// Keeps the same lock selected after the rows have changed.
    pub(crate) fn follow(&mut self) {
        let row = self.selected.as_ref().and_then(|key| self.locks.row_of(key.as_str()));
        self.select(row.unwrap_or(self.row));
    }
}
