//! The limit of a semaphore that was changed while it is in use, in a queue of ordered nodes.
//!
//! For the stores of [`lineup`](super::lineup), whose nodes have the limit of their claim and are never rewritten. One
//! [`Limit`] beside the queue has the last change. It applies to the places that were there when it was made;
//! a later place has its own limit. So it means nothing any more when the last of those places has left.
//!
//! A holder is a place whose permits and those ahead were within its limit at some time, as were those of each
//! place ahead, since no place ever comes ahead of another one. A smaller limit must not end its hold. So a change is made in two steps, each
//! of which compares what the store has with what was read:
//!
//! 1. [`Limit::begin`]: from then on a waiter judges itself by the new limit. Holders are judged
//!    generously.
//! 2. [`Limit::settle`], with the queue as it was at the first step: the change names the holders beyond
//!    the new limit, and every place is judged exactly.
//!
//! If the second step never comes, a waiter is granted by the new limit alone, and a view may show it as a
//! holder before. So it is while the places of that time are there, also after later changes.

use crate::claim::Mode;

/// The most holders that a change names. With more, it stays at its first step.
const MOST_OVER: usize = 10_000;

/// The last change of the limit of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// The limit.
    pub of: u32,
    /// The last place that it applies to, in the store's order.
    pub last: i64,
    /// Until the second step: the largest limit that a place was judged by before, besides its own.
    before: Option<u32>,
    /// The holders beyond the limit, in order.
    over: Vec<i64>,
}

/// Stands for a number that is not told.
const NONE: &str = "-";

impl Limit {
    /// In a text: the place is that at which the store has written the change.
    pub const HERE: i64 = i64::MAX;

    /// The first step of a change from `old`, for the places up to `last`.
    #[must_use]
    pub fn begin(old: Option<&Self>, of: u32, last: i64) -> Self {
        let before = old.map_or(0, |old| old.of.max(old.before.unwrap_or(0)));
        let over = old.map_or(Vec::new(), |old| old.over.clone());
        Self { of, last, before: Some(before), over }
    }

    /// The second step: with all places that were there at the first one, in order, and whether each of them
    /// held the key before. `None` if that is not known, since the change before has not made its second
    /// step, or if there are too many to name.
    #[must_use]
    pub fn settle(
        old: Option<&Self>,
        of: u32,
        places: impl Iterator<Item = (i64, Mode, bool)>,
    ) -> Option<Self> {
        if old.is_some_and(|old| !old.is_settled()) {
            return None;
        }
        let mut settled = Self { of, last: i64::MIN, before: None, over: Vec::new() };
        let mut taken = 0;
        for (order, mode, holds) in places {
            settled.last = order;
            taken += match mode {
                Mode::Permits { take, .. } => u64::from(take),
                _ => 0,
            };
            if holds && taken > u64::from(of) {
                settled.over.push(order);
            }
        }
        (settled.over.len() <= MOST_OVER).then_some(settled)
    }

    /// Whether a place was there when the limit was changed.
    pub fn applies_to(&self, order: i64) -> bool {
        order <= self.last
    }

    /// The mode of a place with its limit as part of the limit of the key.
    #[must_use]
    pub fn of_place(&self, order: i64, mode: Mode) -> Mode {
        if self.applies_to(order) { mode.with_limit(self.of) } else { mode }
    }

    /// The mode of a place as its own claim judges it that has not been granted.
    #[must_use]
    pub fn of_waiter(&self, order: i64, mode: Mode) -> Mode {
        match self.over.binary_search(&order) {
            Ok(_) => mode.with_limit(u32::MAX),
            Err(_) => self.of_place(order, mode),
        }
    }

    /// The mode of a place as it is judged to be a holder.
    #[must_use]
    pub fn of_holder(&self, order: i64, mode: Mode) -> Mode {
        let judged = self.of_waiter(order, mode);
        match (self.before, judged.limit(), mode.limit()) {
            (Some(before), Some(of), Some(own)) if self.applies_to(order) => {
                judged.with_limit(of.max(before).max(own))
            }
            _ => judged,
        }
    }

    /// Whether its second step was made.
    pub fn is_settled(&self) -> bool {
        self.before.is_none()
    }

    /// The change as a store keeps it.
    pub fn to_text(&self) -> String {
        let number = |number: Option<i64>| number.map_or(NONE.into(), |it| it.to_string());
        let last = number((self.last != Self::HERE).then_some(self.last));
        let before = number(self.before.map(i64::from));
        let over: Vec<_> = self.over.iter().map(i64::to_string).collect();
        format!("lw1 {} {last} {before} {}", self.of, over.join(","))
    }

    /// Parses what a store keeps, which it has written `here`; `None` if it is of another kind.
    pub fn parse(text: &[u8], here: i64) -> Option<Self> {
        let mut words = std::str::from_utf8(text).ok()?.splitn(5, ' ');
        words.next().filter(|kind| *kind == "lw1")?;
        let of = words.next()?.parse().ok()?;
        let last = match words.next()? {
            NONE => here,
            last => last.parse().ok()?,
        };
        let before = match words.next()? {
            NONE => None,
            before => Some(before.parse().ok()?),
        };
        let orders = words.next()?.split(',').filter(|order| !order.is_empty());
        let over = orders.map(|order| order.parse().ok()).collect::<Option<Vec<i64>>>()?;
        let is_sorted = over.is_sorted();
        is_sorted.then_some(Self { of, last, before, over })
    }
}

#[cfg(test)]
mod tests;
