//! Which renewals are sent when: the most urgent first, and only so many at a time.
//!
//! A store that is behind does not catch up by being asked for everything at once: then every answer
//! is late, and what was sent first waits for what was sent last. So the leases that are due wait
//! here, in the order in which they end, and calls of the verb are made of the first ones.
//!
//! A call that hears nothing for a while no longer counts, though it goes on: a part of a store that
//! does not answer must not keep the rest from being renewed. For the same reason the leases that are
//! asked for again, after a renewal without an answer, have places of their own.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::hold::watched::{RenewalKind, Watched};
use latchwork_store::Moment;

/// The most claims renewed by one call of the verb.
pub(crate) const BATCH: usize = 512;

/// How many calls that are being answered are under way, of each kind.
const AT_A_TIME: usize = 2;

/// The leases that wait to be renewed.
#[derive(Default)]
pub(crate) struct Backlog([Queue; 2]);

#[derive(Default)]
struct Queue {
    waiting: BTreeMap<(Moment, u64), Arc<Watched>>,
    under_way: usize,
}

impl Backlog {
    /// Has a lease wait for its renewal.
    pub(crate) fn push(&mut self, watched: &Arc<Watched>) {
        let place = (watched.lease.urgency(), watched.entry);
        // Zero says that it does not wait.
        watched.waits_since(place.0.max(Moment::from_nanos(1)));
        let queue = &mut self.0[watched.kind() as usize];
        queue.waiting.insert((watched.waits_at(), place.1), watched.clone());
    }

    /// Takes out a lease that need not be renewed any more.
    pub(crate) fn remove(&mut self, watched: &Watched) {
        let at = watched.waits_at();
        if at > Moment::from_nanos(0) {
            for queue in &mut self.0 {
                queue.waiting.remove(&(at, watched.entry));
            }
        }
    }

    /// The most urgent leases, if a call may be made now.
    pub(crate) fn take(&mut self) -> Option<(RenewalKind, Vec<Arc<Watched>>)> {
        for kind in [RenewalKind::Due, RenewalKind::Again] {
            let queue = &mut self.0[kind as usize];
            if queue.under_way >= AT_A_TIME || queue.waiting.is_empty() {
                continue;
            }
            queue.under_way += 1;
            let rest = queue.waiting.keys().nth(BATCH).copied();
            let rest = rest.map(|first| queue.waiting.split_off(&first)).unwrap_or_default();
            let chunk: Vec<_> = std::mem::replace(&mut queue.waiting, rest).into_values().collect();
            chunk.iter().for_each(|watched| watched.waits_since(Moment::from_nanos(0)));
            return Some((kind, chunk));
        }
        None
    }

    /// Whether a call ended that others wait for.
    pub(crate) fn ended(&mut self, kind: RenewalKind) -> bool {
        let queue = &mut self.0[kind as usize];
        queue.under_way -= 1;
        !queue.waiting.is_empty()
    }
}
