//! The nodes that the server watches for this client, and the reads that follow a notification.
//!
//! The session's task asks by itself: a waiter is woken when the answer is there, and not twice.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use latchwork_store::Moment;

use super::{Flight, locked};

#[derive(Default)]
pub(super) struct Watches(Mutex<HashMap<String, Watch>>);

struct Watch {
    /// The server has it, and has told no news since.
    stands: bool,
    /// When somebody was last known to want news.
    wanted_at: Moment,
    /// What those who wait want to know at the news.
    then: Vec<Flight>,
}

impl Watch {
    fn new(now: Moment) -> Self {
        Self { stands: false, wanted_at: now, then: Vec::new() }
    }

    fn is_wanted(&self) -> bool {
        self.then.iter().any(Flight::is_awaited)
    }
}

impl Watches {
    /// Keeps what is to be asked at the news of a node; tells whether the server watches it already.
    pub(super) fn at_news(&self, path: &str, then: Flight, now: Moment) -> bool {
        let mut watches = locked(&self.0);
        let watch = watches.entry(path.to_owned()).or_insert_with(|| Watch::new(now));
        watch.wanted_at = now;
        watch.then.retain(Flight::is_awaited);
        watch.then.push(then);
        watch.stands
    }

    /// The server has said that it watches a node.
    pub(super) fn stands(&self, path: &str, now: Moment) {
        let mut watches = locked(&self.0);
        watches.entry(path.to_owned()).or_insert_with(|| Watch::new(now)).stands = true;
    }

    pub(super) fn is_standing(&self, path: &str) -> bool {
        locked(&self.0).get(path).is_some_and(|watch| watch.stands)
    }

    /// There is news of a node, and with that its watch has ended.
    pub(super) fn news(&self, path: &str) -> Vec<Flight> {
        locked(&self.0).remove(path).map(|watch| watch.then).unwrap_or_default()
    }

    /// Ends the watches with their connection, which is closed. The waiters learn of it.
    pub(super) fn end_all(&self) {
        locked(&self.0).clear();
    }

    /// Drops nodes of which nobody has wanted news for so long. A waiter that checks again wants none meanwhile,
    /// and where thousands wait, it waits for its turn.
    pub(super) fn tidy(&self, now: Moment, kept: Duration) {
        locked(&self.0).retain(|_, watch| {
            if watch.is_wanted() {
                watch.wanted_at = now;
            }
            now.since(watch.wanted_at) < kept
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_outlasts_the_look_of_who_wants_it() {
        let watches = Watches::default();
        let at = |seconds: u64| Moment::from_nanos(seconds * 1_000_000_000);
        let kept = Duration::from_secs(30);
        let (flight, wanted) = Flight::new(Vec::new());
        assert!(!watches.at_news("a", flight, at(0)));
        watches.stands("a", at(0));
        watches.tidy(at(100), kept);
        assert!(watches.is_standing("a"), "as long as somebody wants news");
        drop(wanted);
        watches.tidy(at(129), kept);
        assert!(watches.is_standing("a"), "while its waiter looks");
        watches.tidy(at(130), kept);
        assert!(!watches.is_standing("a"), "nobody has come back");
    }
}
