//! Who waits for news of which node.

use std::collections::HashMap;
use std::sync::Mutex;

use tokio::sync::oneshot;

use super::locked;

/// Ends when there is news, or the connection breaks.
pub(crate) type Listener = oneshot::Receiver<()>;

#[derive(Default)]
pub(super) struct Watches(Mutex<HashMap<String, Vec<oneshot::Sender<()>>>>);

impl Watches {
    pub(super) fn listen(&self, path: &str) -> Listener {
        let (teller, listener) = oneshot::channel();
        let mut watches = locked(&self.0);
        let tellers = watches.entry(path.to_owned()).or_default();
        tellers.retain(is_heard);
        tellers.push(teller);
        listener
    }

    /// Does something that nobody may begin to listen in the midst of.
    pub(super) fn unless_heard<T>(&self, path: &str, act: impl FnOnce(bool) -> T) -> T {
        let watches = locked(&self.0);
        let is_heard = watches.get(path).is_some_and(|tellers| tellers.iter().any(is_heard));
        act(is_heard)
    }

    /// There is news of a node.
    pub(super) fn tell(&self, path: &str) {
        // Dropping the tellers is the news.
        locked(&self.0).remove(path);
    }

    /// The connection is gone, and the watches with it.
    pub(super) fn tell_all(&self) {
        locked(&self.0).clear();
    }

    /// Forgets nodes that nobody listens for any more.
    pub(super) fn tidy(&self) {
        locked(&self.0).retain(|_, tellers| tellers.iter().any(is_heard));
    }
}

fn is_heard(teller: &oneshot::Sender<()>) -> bool {
    !teller.is_closed()
}
