//! Limits how often a waiter checks when it is woken again and again.

use std::time::Duration;

use latchwork_store::Backoff;

/// Slows down looks that come at once again and again, whatever the store says.
#[derive(Debug)]
pub(crate) struct Pace {
    quick: u32,
    backoff: Backoff,
}

impl Default for Pace {
    fn default() -> Self {
        let (first, cap) = (Duration::from_millis(1), Duration::from_millis(100));
        Self { quick: 0, backoff: Backoff::new(first, cap) }
    }
}

impl Pace {
    const QUICK: Duration = Duration::from_millis(1);
    const FREE: u32 = 8;

    pub(crate) fn after_wake(&mut self, waited: Duration) -> Option<Duration> {
        if waited >= Self::QUICK {
            self.quick = 0;
            self.backoff.reset();
            return None;
        }
        self.quick += 1;
        (self.quick > Self::FREE).then(|| self.backoff.pause())
    }
}
