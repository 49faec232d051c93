//! What is known of the locks, and which of them are shown in which order.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::time::Duration;

use latchwork_store::{Key, Moment, Party, Snapshot};

use crate::output::locks::kind;

/// A lock as it was read.
#[derive(Debug)]
pub(crate) struct Lock {
    pub(crate) seen: Snapshot,
    read_at: Moment,
    /// The longest time left that was ever seen of the hold that ends next: a full bar.
    full: Duration,
}

impl Lock {
    /// How long ago it was read.
    fn since(&self, now: Moment) -> Duration {
        now.since(self.read_at)
    }

    /// The time left of a hold or a closed period that was `left` when it was read.
    pub(crate) fn left(&self, left: Duration, now: Moment) -> Duration {
        left.saturating_sub(self.since(now))
    }

    /// How old a claim is that was `age` old when it was read.
    pub(crate) fn age(&self, age: Duration, now: Moment) -> Duration {
        age.saturating_add(self.since(now))
    }

    /// The hold that ends first.
    pub(crate) fn next_to_end(&self) -> Option<&Party> {
        let ends = |party: &&Party| party.remaining.unwrap_or(Duration::MAX);
        self.seen.holders.iter().min_by_key(ends)
    }

    /// The time that was left of the hold that ends first, or until a closed lock opens.
    fn left_when_read(&self) -> Option<Duration> {
        match self.next_to_end() {
            Some(party) => party.remaining,
            None => self.seen.linger,
        }
    }

    /// The time left of the hold that ends first, or until a closed lock opens, and its part of the whole.
    pub(crate) fn remaining(&self, now: Moment) -> Option<(Duration, f64)> {
        let left = self.left(self.left_when_read()?, now);
        let part = if self.full.is_zero() { 0.0 } else { left.div_duration_f64(self.full) };
        Some((left, part.min(1.0)))
    }

    /// How long the oldest hold has lasted.
    pub(crate) fn held_for(&self, now: Moment) -> Option<Duration> {
        let age = self.seen.holders.iter().filter_map(|party| party.age).max()?;
        Some(self.age(age, now))
    }
}

/// A column of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Column {
    Name,
    Kind,
    Holder,
    Held,
    Token,
    Left,
    Waiting,
}

impl Column {
    /// As they are shown.
    pub(crate) const ALL: [Self; 7] =
        [Self::Name, Self::Kind, Self::Holder, Self::Held, Self::Token, Self::Left, Self::Waiting];

    /// Its head.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Name => "NAME",
            Self::Kind => "KIND",
            Self::Holder => "HOLDER",
            Self::Held => "HELD",
            Self::Token => "TOKEN",
            Self::Left => "LEFT",
            Self::Waiting => "WAIT",
        }
    }

    /// Whether the largest comes first, unless it is reversed.
    fn descends(self) -> bool {
        matches!(self, Self::Held | Self::Token | Self::Waiting)
    }

    fn compare(self, a: &Lock, b: &Lock) -> Ordering {
        let (one, other) = (&a.seen, &b.seen);
        match self {
            Self::Name => one.key.cmp(&other.key),
            Self::Kind => kind(one).cmp(&kind(other)),
            Self::Holder => holder_text(one).cmp(holder_text(other)),
            // Both are as of the same reading, or of one that is newer by less than a screen shows.
            Self::Held => a.held_for(a.read_at).cmp(&b.held_for(b.read_at)),
            Self::Token => one.token.cmp(&other.token),
            Self::Left => {
                let left = |lock: &Lock| lock.left_when_read().unwrap_or(Duration::MAX);
                left(a).cmp(&left(b))
            }
            Self::Waiting => one.waiters.len().cmp(&other.waiters.len()),
        }
    }
}

fn holder_text(one: &Snapshot) -> &str {
    one.holders.first().map_or("", |party| &party.holder.text)
}

/// All locks that were read, and those that are shown.
#[derive(Debug)]
pub(crate) struct Locks {
    all: Vec<Lock>,
    /// Places in `all`, in the order of the table.
    shown: Vec<usize>,
    filter: String,
    sort: Column,
    is_reversed: bool,
}

impl Locks {
    pub(crate) fn new() -> Self {
        Self {
            all: Vec::new(),
            shown: Vec::new(),
            filter: String::new(),
            sort: Column::Name,
            is_reversed: false,
        }
    }

    /// Takes what was read at `now` for all locks.
    pub(crate) fn replace(&mut self, all: Vec<Snapshot>, now: Moment) {
        let mut old: HashMap<Key, Lock> =
            self.all.drain(..).map(|lock| (lock.seen.key.clone(), lock)).collect();
        let lock = |seen: Snapshot| {
            let before = old.remove(&seen.key);
            read(seen, before.as_ref(), now)
        };
        self.all = all.into_iter().map(lock).collect();
        self.arrange();
    }

    /// Takes what was read at `now` for one lock, which is no longer shown if it is free.
    pub(crate) fn update(&mut self, seen: Snapshot, now: Moment) {
        let Some(at) = self.all.iter().position(|lock| lock.seen.key == seen.key) else { return };
        if seen.is_free() {
            self.all.remove(at);
            self.arrange();
            return;
        }
        self.all[at] = read(seen, Some(&self.all[at]), now);
    }

    /// Filters and sorts.
    pub(crate) fn arrange(&mut self) {
        let wanted = self.filter.to_lowercase();
        let (all, sort) = (&self.all, self.sort);
        let is_wanted = |seen: &Snapshot| {
            wanted.is_empty()
                || [seen.key.as_str(), &kind(seen)]
                    .into_iter()
                    .chain(seen.holders.iter().map(|party| &*party.holder.text))
                    .any(|text| text.to_lowercase().contains(&wanted))
        };
        let mut shown: Vec<_> = (0..all.len()).filter(|&at| is_wanted(&all[at].seen)).collect();
        let is_down = self.is_down();
        shown.sort_by(|&a, &b| {
            let (a, b) = (&all[a], &all[b]);
            let order = sort.compare(a, b);
            let order = if is_down { order.reverse() } else { order };
            order.then_with(|| a.seen.key.cmp(&b.seen.key))
        });
        self.shown = shown;
    }

    /// How many locks are shown.
    pub(crate) fn count(&self) -> usize {
        self.shown.len()
    }

    /// The lock of a row.
    pub(crate) fn get(&self, row: usize) -> Option<&Lock> {
        self.all.get(*self.shown.get(row)?)
    }

    /// The row of a lock.
    pub(crate) fn row_of(&self, key: &str) -> Option<usize> {
        self.shown.iter().position(|&at| self.all[at].seen.key.as_str() == key)
    }

    /// All, shown or not.
    pub(crate) fn all(&self) -> &[Lock] {
        &self.all
    }

    pub(crate) fn filter(&self) -> &str {
        &self.filter
    }

    pub(crate) fn set_filter(&mut self, filter: String) {
        self.filter = filter;
        self.arrange();
    }

    /// The column that sorts.
    pub(crate) fn sort(&self) -> Column {
        self.sort
    }

    /// Sorts by a column; the other way round if it sorts already.
    pub(crate) fn sort_by(&mut self, column: Column) {
        self.is_reversed = self.sort == column && !self.is_reversed;
        self.sort = column;
        self.arrange();
    }

    /// Sorts by the next column, or the one before.
    pub(crate) fn sort_beside(&mut self, is_next: bool) {
        let all = Column::ALL;
        let at = all.iter().position(|&column| column == self.sort).unwrap_or(0);
        let step = if is_next { 1 } else { all.len() - 1 };
        self.sort = all[(at + step) % all.len()];
        self.is_reversed = false;
        self.arrange();
    }

    /// Turns the order round.
    pub(crate) fn reverse(&mut self) {
        self.is_reversed = !self.is_reversed;
        self.arrange();
    }

    /// Whether the column's arrow points down.
    pub(crate) fn is_down(&self) -> bool {
        self.sort.descends() != self.is_reversed
    }
}

/// A lock as it was read now, and the bar of the same hold before.
fn read(seen: Snapshot, before: Option<&Lock>, now: Moment) -> Lock {
    let is_same = |before: &&Lock| match before.next_to_end() {
        Some(old) => old.id.is_some() && seen.holders.iter().any(|party| party.id == old.id),
        None => seen.holders.is_empty(),
    };
    let full = before.filter(is_same).map_or(Duration::ZERO, |before| before.full);
    let mut lock = Lock { seen, read_at: now, full };
    lock.full = full.max(lock.left_when_read().unwrap_or_default());
    lock
}
