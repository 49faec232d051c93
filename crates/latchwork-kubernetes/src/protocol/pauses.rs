//! Pauses between requests about an object that the server answers in contradiction to itself.
//!
//! It refuses a write as outdated and shows the version that was written to, or its data are older than before,
//! again and again: several servers with data of their own are behind one address, or are being restored.

use std::sync::Mutex;
use std::time::Duration;

use latchwork_store::Moment;

use crate::lock;

/// The pause after the second contradiction: one costs two requests.
const SHORTEST: Duration = Duration::from_secs(2);
const LONGEST: Duration = Duration::from_secs(8);
/// After so long without one, the next is the first again, and costs no pause: a restore is over by then.
const CALM: Duration = Duration::from_secs(30);

#[derive(Default)]
pub(crate) struct Pauses(Mutex<Option<Trouble>>);

#[derive(Clone, Copy)]
struct Trouble {
    /// How many came before.
    before: u32,
    last: Moment,
    until: Moment,
}

impl Pauses {
    /// Notes a contradiction.
    pub(crate) fn note(&self, now: Moment) {
        let mut trouble = lock(&self.0);
        let recent = trouble.filter(|trouble| now.since(trouble.last) < CALM);
        let before = recent.map_or(0, |trouble| trouble.before + 1);
        let pause = match before.checked_sub(1) {
            None => Duration::ZERO,
            Some(more) => (SHORTEST * (1 << more.min(4))).min(LONGEST),
        };
        *trouble = Some(Trouble { before, last: now, until: now.plus(pause) });
    }

    /// How long nothing is to be sent yet.
    pub(crate) fn left(&self, now: Moment) -> Option<Duration> {
        let until = lock(&self.0).as_ref()?.until;
        Some(until.since(now)).filter(|left| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that is let through as soon as it may be, for a minute, with two requests each time.
    #[test]
    fn contradictions_cost_at_most_one_request_a_second() {
        let (pauses, start) = (Pauses::default(), Moment::from_nanos(0));
        let (mut now, mut requests) = (start, 0);
        while now.since(start) < Duration::from_secs(60) {
            requests += 2;
            pauses.note(now);
            now = now.plus(pauses.left(now).unwrap_or_default());
        }
        assert!(requests <= 60, "{requests} in a minute");
        // A restore long after is answered at once.
        pauses.note(now.plus(CALM * 2));
        assert_eq!(pauses.left(now.plus(CALM * 2)), None);
    }
}
