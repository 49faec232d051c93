//! A record as `inspect` shows it.

use std::time::Duration;

use super::{Alive, Now, Record};
use crate::claim::Mode;
use crate::key::Key;
use crate::words::{Party, Snapshot};

impl Record {
    /// Returns the record as `inspect` shows it, without ended claims. Changes nothing.
    pub fn snapshot(&self, key: Key, now: Now, alive: Alive<'_>) -> Snapshot {
        let mut live = self.clone();
        live.sweep(now, alive);
        live.queue.retain(|w| alive(w.tag));
        let remaining = |expires: Duration| Some(expires.saturating_sub(now.lease));
        let age = |asked: Option<Duration>| asked.map(|asked| now.lease.saturating_sub(asked));
        let modes = live.held.iter().map(|m| m.mode).chain(live.queue.iter().map(|w| w.mode));
        Snapshot {
            shape: modes.map(Mode::shape).next(),
            holders: live
                .held
                .iter()
                .map(|m| Party {
                    id: Some(m.id),
                    mode: m.mode,
                    holder: m.holder.clone(),
                    token: Some(m.token),
                    remaining: remaining(m.expires),
                    age: age(m.asked),
                    beside: None,
                })
                .collect(),
            waiters: live
                .queue
                .iter()
                .map(|w| Party {
                    id: Some(w.id),
                    mode: w.mode,
                    holder: w.holder.clone(),
                    token: None,
                    remaining: remaining(w.expires),
                    age: age(w.asked),
                    beside: w.beside,
                })
                .collect(),
            token: live.token,
            linger: (live.closed_until > now.wall).then(|| live.closed_until - now.wall),
            closed_by: live.closed_by,
            ..Snapshot::free(key)
        }
    }
}
