//! Who waited for a key, from when to when.

use std::time::Duration;

use latchwork_store::Moment;

use crate::history::{Attempt, History, Span};

/// The attempts on one key that wait, ready to be asked who waited within a stretch of time.
pub(super) struct Waits<'a> {
    by_begin: Vec<&'a Attempt>,
    longest: Duration,
    end: Moment,
}

impl<'a> Waits<'a> {
    pub(super) fn new(history: &History, attempts: &[&'a Attempt]) -> Self {
        // One of several locks may be free, and its waiter waits for another.
        let waits = |attempt: &&Attempt| attempt.waits && !attempt.several;
        let mut by_begin: Vec<_> = attempts.iter().copied().filter(waits).collect();
        by_begin.sort_by_key(|attempt| attempt.tried);
        let end = history.end();
        let lengths = by_begin.iter().map(|a| a.waited_until().min(end).since(a.tried));
        Self { longest: lengths.max().unwrap_or_default(), by_begin, end }
    }

    /// The part of each wait that lies within the stretch.
    pub(super) fn within(&self, span: Span) -> impl Iterator<Item = (&'a Attempt, Span)> {
        let last = self.by_begin.partition_point(|attempt| attempt.tried <= span.to);
        let earliest = span.from.minus(self.longest);
        let near = self.by_begin[..last].iter().rev().take_while(move |a| a.tried >= earliest);
        near.filter_map(move |attempt| {
            let to = attempt.waited_until().min(self.end).min(span.to);
            let from = attempt.tried.max(span.from);
            (from <= to).then_some((*attempt, Span { from, to }))
        })
    }
}
