//! The nodes that the server watches for this client, and the reads that follow a notification.
//!
//! The session's task asks by itself: whoever waits is woken when the answer is there, and not twice.

use std::collections::HashMap;
use std::sync::Mutex;

use super::{Flight, locked};

#[derive(Default)]
pub(super) struct Watches(Mutex<HashMap<String, Watch>>);

#[derive(Default)]
struct Watch {
    /// The server has it, and has told no news since.
    stands: bool,
    /// What those who wait want to know at the news.
    then: Vec<Flight>,
}

impl Watch {
    fn is_wanted(&self) -> bool {
        self.then.iter().any(Flight::is_awaited)
    }
}

impl Watches {
    /// Keeps what is to be asked at the news of a node; tells whether the server watches it already.
    pub(super) fn at_news(&self, path: &str, then: Flight) -> bool {
        let mut watches = locked(&self.0);
        let watch = watches.entry(path.to_owned()).or_default();
        watch.then.retain(Flight::is_awaited);
        watch.then.push(then);
        watch.stands
    }

    /// The server has said that it watches a node.
    pub(super) fn stands(&self, path: &str) {
        locked(&self.0).entry(path.to_owned()).or_default().stands = true;
    }

    pub(super) fn is_standing(&self, path: &str) -> bool {
        locked(&self.0).get(path).is_some_and(|watch| watch.stands)
    }

    /// There is news of a node, and with that its watch has ended.
    pub(super) fn news(&self, path: &str) -> Vec<Flight> {
        locked(&self.0).remove(path).map(|watch| watch.then).unwrap_or_default()
    }

    /// The connection is gone, and the watches with it. Whoever waits is told so.
    pub(super) fn end_all(&self) {
        locked(&self.0).clear();
    }

    /// Forgets nodes of which nobody wants news any more.
    pub(super) fn tidy(&self) {
        locked(&self.0).retain(|_, watch| watch.is_wanted());
    }
}
