//! Notifies an observer of a changed queue, by a watch on the children of its node.
//!
//! The node of a lock is made with its first claim, and the server removes it some time after the
//! last one. While it is not there, its creation is watched. A watch gives one piece of news, so it is
//! set again before the observer receives it.

use std::fmt;
use std::sync::{Arc, Weak};

use latchwork_store::{BackendError, Key, Verb, Watch};

use crate::protocol::shared::Shared;
use crate::server::errors::{no_answer, refused, strange};
use crate::server::session::messages::{Refusal, Request};
use crate::server::session::{Coming, Session};

/// How often a node may come and go while it is being watched.
const ROUNDS: u32 = 8;

/// A watch on the node of a lock.
struct QueueWatch {
    shared: Weak<Shared>,
    lock: String,
    /// Comes with the news; `None` while the watch has to be set.
    news: Option<Coming>,
}

/// The watch is set when this answers. A look that follows is no older, for it begins with a write.
pub(crate) async fn watch(
    shared: &Arc<Shared>,
    key: &Key,
) -> Result<Option<Box<dyn Watch>>, BackendError> {
    let lock = shared.names.lock(key);
    let news = set(&shared.sessions.any(), &lock).await?;
    Ok(Some(Box::new(QueueWatch { shared: Arc::downgrade(shared), lock, news: Some(news) })))
}

/// Sets the watch of a session on the node of a lock, or shares the one that it has.
async fn set(session: &Session, lock: &str) -> Result<Coming, BackendError> {
    for _ in 0..ROUNDS {
        // The news triggers no request: the observer checks on its own.
        let (news, is_watched) = session.at_news(lock, Vec::new());
        if is_watched {
            return Ok(news);
        }
        match session.fly(vec![Request::watch_children(lock)]).await.next()? {
            Ok(_) => return Ok(news),
            Err(Refusal::NO_NODE) => {}
            Err(refusal) => return Err(refused(refusal, lock)),
        }
        match session.fly(vec![Request::watch_creation(lock)]).await.next()? {
            Err(Refusal::NO_NODE) => return Ok(news),
            // It was made meanwhile.
            Ok(_) => {}
            Err(refusal) => return Err(refused(refusal, lock)),
        }
    }
    Err(strange("a watch"))
}

impl Watch for QueueWatch {
    fn changed(&mut self) -> Verb<'_, Result<(), BackendError>> {
        Box::pin(async {
            if let Some(news) = &mut self.news {
                // An error says that the connection closed, and the watch with it.
                let _ = news.await;
                // If this future is dropped from here on, the next one sets the watch and tells.
                self.news = None;
            }
            let Some(shared) = self.shared.upgrade() else {
                return Err(no_answer("the connections to ZooKeeper were closed"));
            };
            self.news = Some(set(&shared.sessions.any(), &self.lock).await?);
            Ok(())
        })
    }
}

impl fmt::Debug for QueueWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueWatch").field("lock", &self.lock).finish_non_exhaustive()
    }
}
