//! Keys that were busy a moment ago: a try for one of them asks for a place in the queue at once.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use latchwork_store::{Key, Moment};

use crate::lock;

/// How long a key counts as busy.
const BUSY: Duration = Duration::from_secs(1);
/// So many keys are remembered at most.
const MOST: usize = 4_096;

/// The keys, and when they were found busy.
#[derive(Default)]
pub(crate) struct Busy(Mutex<HashMap<Key, Moment>>);

impl Busy {
    pub(crate) fn note(&self, key: &Key, now: Moment) {
        let mut keys = lock(&self.0);
        if keys.len() >= MOST {
            keys.retain(|_, at| now.since(*at) < BUSY);
        }
        if keys.len() < MOST {
            keys.insert(key.clone(), now);
        }
    }

    pub(crate) fn has(&self, key: &Key, now: Moment) -> bool {
        lock(&self.0).get(key).is_some_and(|at| now.since(*at) < BUSY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_busy_for_a_moment_and_few_are_remembered() {
        let busy = Busy::default();
        let now = Moment::from_nanos(10_000_000_000);
        let key = |n: usize| Key::new(format!("k{n}")).unwrap();
        for n in 0..2 * MOST {
            busy.note(&key(n), now);
        }
        assert!(busy.has(&key(0), now) && !busy.has(&key(0), now.plus(BUSY)));
        assert_eq!(lock(&busy.0).len(), MOST);
        busy.note(&key(2 * MOST), now.plus(BUSY));
        assert!(busy.has(&key(2 * MOST), now.plus(BUSY)) && lock(&busy.0).len() == 1);
    }
}
