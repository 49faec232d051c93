//! The lingers that this client has begun, whose nodes it removes at their end. If it ends before
//! that, the next client that uses the key does.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use latchwork_store::{BackendError, Holder, Moment};

use crate::protocol::answers::pulse_in;
use crate::protocol::queue::{Closed, Queue};
use crate::protocol::shared::Shared;
use crate::server::session::messages::Request;

/// The pause before what could not be removed is tried again.
const AGAIN: Duration = Duration::from_secs(5);

/// A node that keeps a key closed.
#[derive(Debug, Clone)]
pub(crate) struct Linger {
    pub(crate) path: String,
    /// By the leader's clock, which alone tells whether it is over.
    pub(crate) until_ms: i64,
    /// When it is worth a look, by our own clock.
    pub(crate) due: Moment,
}

/// The holder that closed a key, by the data of the node that keeps it closed.
pub(crate) fn closed_by(data: &[u8]) -> Holder {
    Holder::from_stored(&String::from_utf8_lossy(data))
}

impl Queue {
    /// Until when the key is closed, in ms on the leader's clock, if it is so now.
    pub(crate) fn closed_until(&self, now_ms: i64) -> Option<i64> {
        self.closed_last(now_ms).map(|closed| closed.until_ms)
    }

    /// The node that keeps the key closed for longest, if it is closed now.
    pub(crate) fn closed_last(&self, now_ms: i64) -> Option<&Closed> {
        let now = self.closed.iter().filter(|closed| closed.until_ms > now_ms);
        now.max_by_key(|closed| closed.until_ms)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Lingers(Mutex<Vec<Linger>>);

impl Lingers {
    pub(crate) fn add(&self, linger: Linger) {
        self.lock().push(linger);
    }

    /// Takes those that are due, and tells when the next one is.
    fn take_due(&self, now: Moment) -> (Vec<Linger>, Moment) {
        let mut all = self.lock();
        let due = all.extract_if(.., |linger| linger.due <= now).collect();
        (due, all.iter().map(|linger| linger.due).min().unwrap_or(Moment::NEVER))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Linger>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Removes what is over; returns when to check again.
    pub(crate) async fn end_lingers(&self) -> Moment {
        let (due, next) = self.lingers.take_due(self.io.now());
        if due.is_empty() {
            return next;
        }
        let leaders_time = self.leaders_time().await;
        let now = self.io.now();
        let mut over = Vec::new();
        let mut next = next;
        for linger in due {
            let left = match leaders_time {
                Ok(now_ms) if linger.until_ms <= now_ms => {
                    over.push(Request::delete(&linger.path));
                    continue;
                }
                Ok(now_ms) => Duration::from_millis((linger.until_ms - now_ms) as u64),
                Err(_) => AGAIN,
            };
            next = next.min(now.plus(left));
            self.lingers.add(Linger { due: now.plus(left), ..linger });
        }
        if !over.is_empty() {
            // What is not heard of it stays until the key is used.
            self.sessions.any().send(over);
        }
        next
    }

    async fn leaders_time(&self) -> Result<i64, BackendError> {
        let session = self.sessions.any();
        let up = session.up().await?;
        pulse_in(&mut session.fly(vec![Request::set(&up.pulse)]).await, &up.pulse)
    }
}
