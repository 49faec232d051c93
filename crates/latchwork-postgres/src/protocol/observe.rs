//! Notifies observers of a key whose holders may have changed, by the connection on which this process listens.
//!
//! The statement that changes a key sends the notification, and only if somebody observes it: an observer holds a shared
//! advisory lock on that connection. Behind a pooler nothing can be heard: then observers look by their timer.

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use latchwork_store::{BackendError, Key, Verb, Watch};
use tokio::sync::Notify;
use tokio_postgres::types::{ToSql, Type};

use crate::lock;
use crate::names::stored;
use crate::protocol::listener::Listener;
use crate::protocol::statements::{observers, seen};
use crate::protocol::store::Store;
use crate::server::connection::Connection;
use crate::server::errors::lost;
use crate::server::reply::{column, strange};

/// One of so many of the locks that all sessions of the server share may be for the keys that this process observes. If
/// there are none left, the server grants no lock of a table either.
const SHARE: i64 = 10;

/// All observers of this process.
#[derive(Default)]
pub(crate) struct Observers {
    eyes: Mutex<Vec<Arc<Eye>>>,
    /// How many are about to subscribe.
    coming: AtomicUsize,
}

/// What one observer is to know.
struct Eye {
    /// The number of its key.
    number: i32,
    news: Notify,
    has_ended: AtomicBool,
}

impl Observers {
    pub(crate) fn are_there(&self) -> bool {
        self.coming.load(Ordering::SeqCst) > 0 || !lock(&self.eyes).is_empty()
    }

    /// Begins to observe a key, unless that would be more keys than `most`.
    fn begin(&self, number: i32, most: i64) -> Option<Arc<Eye>> {
        let mut eyes = lock(&self.eyes);
        let numbers: HashSet<i32> = eyes.iter().map(|eye| eye.number).collect();
        if !numbers.contains(&number) && numbers.len() as i64 >= most {
            return None;
        }
        let eye = eye(number);
        eyes.push(eye.clone());
        Some(eye)
    }

    /// Takes a notification: the number of a key.
    pub(crate) fn notify(&self, number: &str) {
        // Anybody may send another text.
        let Ok(number) = number.parse::<i32>() else { return };
        for eye in lock(&self.eyes).iter().filter(|eye| eye.number == number) {
            eye.news.notify_one();
        }
    }

    /// Nothing is heard any more.
    pub(crate) fn end(&self) {
        for eye in lock(&self.eyes).drain(..) {
            eye.has_ended.store(true, Ordering::SeqCst);
            eye.news.notify_one();
        }
    }
}

/// The subscription of one observer.
struct RowWatch {
    listener: Arc<Listener>,
    connection: Arc<Connection>,
    eye: Arc<Eye>,
    class: i32,
    /// The server may have the lock of this observer.
    is_locked: bool,
}

impl Store {
    /// Subscribes. Each change that commits after the answer has found the observer's lock, for that lock waits for
    /// changes under way.
    pub(crate) async fn observe(&self, key: &Key) -> Result<Option<Box<dyn Watch>>, BackendError> {
        if self.pooled {
            return Ok(None);
        }
        let (class, key) = (self.access.config.class(), stored(key).0);
        let _coming = Coming::to(&self.listener);
        let connection = self.listener.connection().await?;
        connection
            .send(connection.client().batch_execute(&format!("LISTEN {}", seen(class))))
            .await?;
        let text = "SELECT hashtext(encode($1, 'hex')), current_setting('max_locks_per_transaction')::bigint \
             * current_setting('max_connections')::bigint";
        let rows =
            connection.send(connection.client().query_typed(text, &[(&key, Type::BYTEA)])).await?;
        let [row] = &rows[..] else { return Err(strange(0)) };
        let (number, room) = (column::<i32>(row, 0)?, column::<i64>(row, 1)?);
        let Some(eye) = self.listener.observers.begin(number, room / SHARE) else {
            return Ok(None);
        };
        let mut row = RowWatch {
            listener: self.listener.clone(),
            eye,
            connection: connection.clone(),
            class: observers(class),
            is_locked: true,
        };
        let locked = row.ask("SELECT pg_advisory_lock_shared($1, $2)").await;
        row.is_locked = locked.is_ok();
        locked?;
        if !connection.is_open() || row.eye.has_ended.load(Ordering::SeqCst) {
            return Err(lost("closed"));
        }
        Ok(Some(Box::new(row)))
    }
}

/// Keeps the connection for an observer that is about to subscribe.
struct Coming<'a>(&'a Listener);

impl<'a> Coming<'a> {
    fn to(listener: &'a Listener) -> Self {
        listener.observers.coming.fetch_add(1, Ordering::SeqCst);
        Self(listener)
    }
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        self.0.observers.coming.fetch_sub(1, Ordering::SeqCst);
        self.0.is_left();
    }
}

fn eye(number: i32) -> Arc<Eye> {
    Arc::new(Eye { number, news: Notify::new(), has_ended: AtomicBool::new(false) })
}

impl RowWatch {
    async fn ask(&self, text: &str) -> Result<(), BackendError> {
        let types: [(&(dyn ToSql + Sync), Type); 2] =
            [(&self.class, Type::INT4), (&self.eye.number, Type::INT4)];
        self.connection.send(self.connection.client().query_typed(text, &types)).await.map(drop)
    }
}

impl Watch for RowWatch {
    fn changed(&mut self) -> Verb<'_, Result<(), BackendError>> {
        Box::pin(async {
            let news = async {
                if !self.eye.has_ended.load(Ordering::SeqCst) {
                    self.eye.news.notified().await;
                }
            };
            // Messages are read near the caller.
            self.connection.drive().clone().listen(news).await;
            match self.eye.has_ended.load(Ordering::SeqCst) {
                true => Err(lost("closed")),
                false => Ok(()),
            }
        })
    }
}

impl Drop for RowWatch {
    fn drop(&mut self) {
        lock(&self.listener.observers.eyes).retain(|one| !Arc::ptr_eq(one, &self.eye));
        self.listener.is_left();
        if !self.is_locked || self.eye.has_ended.load(Ordering::SeqCst) {
            return;
        }
        let (connection, class, number) = (self.connection.clone(), self.class, self.eye.number);
        let io = connection.drive().io().clone();
        io.spawn(async move {
            let types: [(&(dyn ToSql + Sync), Type); 2] =
                [(&class, Type::INT4), (&number, Type::INT4)];
            let text = "SELECT pg_advisory_unlock_shared($1, $2)";
            // If it fails, the lock ends with the connection; until then it costs notifications that nobody reads.
            let _ = connection.send(connection.client().query_typed(text, &types)).await;
        });
    }
}

impl fmt::Debug for RowWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowWatch").field("number", &self.eye.number).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notification_reaches_the_observers_of_its_key_alone() {
        let observers = Observers::default();
        let (one, other) = (eye(-7), eye(8));
        lock(&observers.eyes).extend([one.clone(), other.clone()]);
        for text in ["-7", "x", "", "99999999999", "-7 8"] {
            observers.notify(text);
        }
        let heard =
            |eye: &Arc<Eye>| futures_util::FutureExt::now_or_never(eye.news.notified()).is_some();
        assert!(heard(&one) && !heard(&one), "unread changes are one hint");
        assert!(!heard(&other));
        observers.end();
        assert!(heard(&other) && other.has_ended.load(Ordering::SeqCst) && !observers.are_there());
    }
}
