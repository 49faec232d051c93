//! Counts what the buyers of a scene reported.

use std::collections::BTreeMap;

use crate::words::{Event, Said, Scene};

/// What happened in a scene.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) scene: Scene,
    /// How many units there were.
    pub(crate) stock: u32,
    /// How many the stock says are left at the end.
    pub(crate) left: u32,
    pub(crate) sold: u32,
    /// How many buyers came to the stock while another was there.
    pub(crate) overlaps: u32,
    /// Locks of the articles that had expired when their holder was done.
    pub(crate) expired: u32,
    /// Locks of the articles that somebody else deleted.
    pub(crate) freed: u32,
    /// Leases that ended before their holder was done.
    pub(crate) lost: u32,
    /// Writes that the fence refused.
    pub(crate) refused: Vec<Refusal>,
    /// Whether each hold had a larger token than the one before; `None` where there are no tokens.
    pub(crate) tokens_rise: Option<bool>,
    pub(crate) visits: Vec<Visit>,
    /// When buyers were stopped, and for how long.
    pub(crate) stops: Vec<Visit>,
    pub(crate) opened: u64,
    pub(crate) closed: u64,
}

/// A write that was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) buyer: u32,
    pub(crate) at: u64,
    /// What it would have written.
    pub(crate) left: u32,
    /// What was there: the last that was written before.
    pub(crate) instead_of: u32,
    pub(crate) token: u64,
    pub(crate) newest: u64,
}

/// The time between a buyer's coming to the stock and its leaving, by what it knew; or in which it stood still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Visit {
    pub(crate) buyer: u32,
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) token: Option<u64>,
}

impl Tally {
    /// Counts. What was said may come in any order of time over all, but in order from each buyer.
    pub(crate) fn of(scene: Scene, stock: u32, left: u32, said: &[Said]) -> Self {
        let times = || said.iter().filter(|s| s.event != Event::Ready).map(|s| s.at);
        let opened = times().min().unwrap_or(0);
        let closed = times().max().unwrap_or(0);
        let mut tally = Self { scene, stock, left, opened, closed, ..Self::default() };
        let mut inside = BTreeMap::new();
        let mut stopped = BTreeMap::new();
        for &Said { buyer, at, ref event } in said {
            match *event {
                Event::Entered { token } => drop(inside.insert(buyer, (at, token))),
                Event::Sold { .. } => tally.sold += 1,
                Event::Refused { left, token, newest } => {
                    let instead_of = last_written(said, at).unwrap_or(stock);
                    tally.refused.push(Refusal { buyer, at, left, instead_of, token, newest });
                }
                Event::Left { expired, freed } => {
                    tally.expired += u32::from(expired);
                    tally.freed += u32::from(freed);
                }
                Event::Lost => tally.lost += 1,
                Event::Stopped => drop(stopped.insert(buyer, at)),
                Event::Continued => {
                    let from = stopped.remove(&buyer);
                    let stop = from.map(|from| Visit { buyer, from, to: at, token: None });
                    tally.stops.extend(stop);
                }
                Event::Ready | Event::AtTill | Event::Done | Event::Failed(_) => {}
            }
            if matches!(event, Event::Left { .. } | Event::Lost)
                && let Some((from, token)) = inside.remove(&buyer)
            {
                tally.visits.push(Visit { buyer, from, to: at, token });
            }
        }
        tally.visits.sort_by_key(|visit| (visit.from, visit.to));
        let mut latest = 0;
        for visit in &tally.visits {
            tally.overlaps += u32::from(visit.from < latest);
            latest = latest.max(visit.to);
        }
        let tokens: Vec<u64> = tally.visits.iter().filter_map(|visit| visit.token).collect();
        if !tokens.is_empty() {
            tally.tokens_rise = Some(tokens.is_sorted_by(|a, b| a < b));
        }
        tally
    }

    /// Units sold that were not there.
    pub(crate) fn oversold(&self) -> u32 {
        self.sold.saturating_sub(self.stock)
    }

    /// Whether exactly what there was has been sold, by one holder after the other.
    pub(crate) fn is_exact(&self) -> bool {
        self.sold == self.stock
            && self.left == 0
            && self.overlaps == 0
            && self.tokens_rise != Some(false)
    }

    /// Whether the scene went as it must for the lock to be of any use.
    pub(crate) fn is_as_promised(&self) -> bool {
        match self.scene {
            Scene::NoLock | Scene::Naive => true,
            Scene::Locked => self.is_exact(),
            Scene::Fenced => self.is_exact() && !self.refused.is_empty(),
        }
    }

    /// How many holds had a token.
    pub(crate) fn holds(&self) -> usize {
        self.visits.iter().filter(|visit| visit.token.is_some()).count()
    }

    /// In nanoseconds.
    pub(crate) fn took(&self) -> u64 {
        self.closed - self.opened
    }

    /// The parts of the scene in which more than one buyer was at the stock.
    pub(crate) fn crowded(&self) -> Vec<(u64, u64)> {
        let mut edges: Vec<_> =
            self.visits.iter().flat_map(|visit| [(visit.from, 1), (visit.to, -1)]).collect();
        // Who leaves at the moment at which another comes has left.
        edges.sort();
        let (mut here, mut since, mut parts) = (0, None, Vec::new());
        for (at, change) in edges {
            here += change;
            match since {
                None if here > 1 => since = Some(at),
                Some(from) if here <= 1 => {
                    parts.push((from, at));
                    since = None;
                }
                _ => {}
            }
        }
        parts
    }
}

/// What the last write before this moment has left.
fn last_written(said: &[Said], before: u64) -> Option<u32> {
    let writes = said.iter().filter_map(|said| match said.event {
        Event::Sold { left } if said.at <= before => Some((said.at, left)),
        _ => None,
    });
    writes.max_by_key(|(at, _)| *at).map(|(_, left)| left)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(buyer: u32, at: u64, event: Event) -> Said {
        Said { buyer, at, event }
    }

    fn visit(buyer: u32, from: u64, to: u64, token: u64, left: u32) -> [Said; 3] {
        [
            said(buyer, from, Event::Entered { token: Some(token) }),
            said(buyer, to - 1, Event::Sold { left }),
            said(buyer, to, Event::Left { expired: false, freed: false }),
        ]
    }

    #[test]
    fn sequential_visits_are_exact() {
        let all = [visit(1, 10, 20, 1, 1), visit(2, 20, 30, 2, 0)].concat();
        let tally = Tally::of(Scene::Locked, 2, 0, &all);
        assert!(tally.is_exact() && tally.is_as_promised(), "{tally:?}");
        assert_eq!((tally.sold, tally.oversold(), tally.overlaps), (2, 0, 0));
        assert_eq!(tally.tokens_rise, Some(true));
        assert_eq!(tally.took(), 20);
        assert_eq!(tally.crowded(), []);
    }

    #[test]
    fn overlapping_visits_are_not_exact() {
        let all = [visit(1, 10, 30, 1, 1), visit(2, 20, 40, 2, 1), visit(1, 50, 60, 3, 0)].concat();
        let tally = Tally::of(Scene::Locked, 2, 0, &all);
        assert_eq!((tally.sold, tally.oversold(), tally.overlaps), (3, 1, 1));
        assert!(!tally.is_exact() && !tally.is_as_promised());
        assert_eq!(tally.crowded(), [(20, 30)]);
        // The articles' scenes are counted, and promise nothing.
        assert!(Tally::of(Scene::NoLock, 2, 0, &all).is_as_promised());
    }

    #[test]
    fn a_token_that_does_not_rise_is_not_exact() {
        let all = [visit(1, 10, 20, 2, 1), visit(2, 20, 30, 2, 0)].concat();
        let tally = Tally::of(Scene::Locked, 2, 0, &all);
        assert_eq!(tally.tokens_rise, Some(false));
        assert!(!tally.is_exact());
    }

    #[test]
    fn unsold_stock_is_not_exact() {
        let all = visit(1, 10, 20, 1, 1);
        assert!(!Tally::of(Scene::Locked, 2, 1, &all).is_exact());
        assert!(!Tally::of(Scene::Locked, 1, 1, &all).is_exact());
    }

    #[test]
    fn a_refused_write_names_the_value_it_would_undo() {
        let mut all = vec![
            said(1, 10, Event::Entered { token: Some(1) }),
            said(1, 11, Event::AtTill),
            said(1, 12, Event::Stopped),
        ];
        all.extend(visit(2, 30, 40, 2, 1));
        all.extend([
            said(1, 50, Event::Continued),
            said(1, 51, Event::Refused { left: 1, token: 1, newest: 2 }),
            said(1, 20, Event::Lost),
        ]);
        all.extend(visit(1, 60, 70, 3, 0));
        let tally = Tally::of(Scene::Fenced, 2, 0, &all);
        assert!(tally.is_exact() && tally.is_as_promised(), "{tally:?}");
        let [refusal] = tally.refused[..] else { panic!("{tally:?}") };
        assert_eq!((refusal.buyer, refusal.left, refusal.instead_of), (1, 1, 1));
        assert_eq!((refusal.token, refusal.newest), (1, 2));
        assert_eq!(tally.stops, [Visit { buyer: 1, from: 12, to: 50, token: None }]);
        assert_eq!(tally.lost, 1);
        let first = Visit { buyer: 1, from: 10, to: 20, token: Some(1) };
        assert_eq!(tally.visits[0], first);
        // Without a late write the scene has shown nothing.
        all.retain(|said| !matches!(said.event, Event::Refused { .. }));
        assert!(!Tally::of(Scene::Fenced, 2, 0, &all).is_as_promised());
    }

    #[test]
    fn expired_and_freed_locks_are_counted_at_the_exit() {
        let all = [
            said(1, 10, Event::Entered { token: None }),
            said(2, 15, Event::Entered { token: None }),
            said(1, 20, Event::Left { expired: true, freed: true }),
            said(2, 25, Event::Left { expired: false, freed: false }),
        ];
        let tally = Tally::of(Scene::Naive, 2, 2, &all);
        assert_eq!((tally.expired, tally.freed, tally.overlaps), (1, 1, 1));
        assert_eq!(tally.tokens_rise, None);
    }
}
