//! Compares a store's clock with this machine's: its rate, and whether it was set.

use std::time::Duration;

use latchwork_store::Moment;

/// Compares the clock of a store with ours over the life of a hold.
///
/// The allowance of [`drift`](latchwork_store::validity::drift) covers 1 %. A store whose clock runs faster than that
/// ends leases before the holder expects it, so the ttl that the holder counts on shrinks by the
/// ratio. A clock that was set once is another matter: it casts doubt on the hold once, and what is
/// counted on afterwards is the whole ttl again.
///
/// A single interval between two answers cannot tell the two apart, so it counts as both until the
/// next one agrees (a rate) or does not (a step). A clock that runs slow never lengthens anything.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RateMeter {
    /// Since when the known rate was measured.
    anchor: Option<Reading>,
    /// The last answer that was judged.
    last: Option<Reading>,
    known: Ratio,
    /// The interval before `last` was odd, and the next has to say why.
    suspicion: Option<Suspicion>,
}

/// What a [`RateMeter`] makes of an answer. All but the first cast doubt on the hold until the next
/// answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Rate {
    /// As before, or too early to tell.
    Steady,
    /// Off by more than 1 % within one interval, though by less than what makes a step.
    Odd,
    /// More than 100 ms beyond what the travel of the answers and the rate so far explain came
    /// about within one interval.
    Stepped {
        /// By how many nanoseconds; negative if the clock was set back.
        by: i64,
    },
    /// Runs at another rate than it did, by two intervals in a row or by all of the hold; about 1
    /// when it is back to ours.
    Unsteady {
        /// The speed of the store's clock over that of ours.
        ratio: f64,
    },
}

/// An answer: the store read its clock at some moment between the two of ours.
#[derive(Debug, Clone, Copy)]
struct Reading {
    sent: Moment,
    received: Moment,
    store: Duration,
}

/// What lies between two readings, in seconds.
#[derive(Debug, Clone, Copy)]
struct Span {
    least: f64,
    most: f64,
    theirs: f64,
}

/// The speed of the store's clock over that of ours, as far as travel times let it be known.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Ratio {
    least: f64,
    most: f64,
}

#[derive(Debug, Clone, Copy)]
struct Suspicion {
    since: Reading,
    until: Reading,
    ratio: Ratio,
    /// The ratio that counts until the cause is clear: that of the fastest odd interval in a row.
    fastest: f64,
}

/// A difference beyond this that came about within one interval is a step, in seconds.
const STEP: f64 = 0.1;
/// What [`drift`](latchwork_store::validity::drift) allows for.
const ALLOWED: f64 = 0.01;
/// By how much two good clocks may differ: twice the 500 ppm that a time service corrects.
const USUAL: f64 = 0.001;
/// Over a shorter span a rate is not judged, in seconds.
const LEAST_SPAN: f64 = 0.5;
/// A clock that runs three times as fast ends a lease before its first renewal, at a third of the
/// ttl. A single interval that is further ahead is not counted as a rate, or each step over an hour
/// would lose the hold.
const FASTEST: f64 = 3.0;

impl RateMeter {
    /// Takes the store's time from an answer to a request sent at `sent_at` and received at `now`.
    pub(crate) fn observe(&mut self, sent_at: Moment, now: Moment, store_time: Duration) -> Rate {
        let reading = Reading { sent: sent_at, received: now, store: store_time };
        let (Some(anchor), Some(last)) = (self.anchor, self.last) else {
            (self.anchor, self.last) = (Some(reading), Some(reading));
            return Rate::Steady;
        };
        let span = Span::between(last, reading);
        let as_known = span.fits(self.known);
        if span.least < LEAST_SPAN && as_known {
            return Rate::Steady;
        }
        let Some(suspicion) = self.suspicion else {
            if as_known {
                self.last = Some(reading);
                return self.over_the_hold(Span::between(anchor, reading));
            }
            return self.suspect(last, reading, span);
        };
        // An interval that has no explanation must not drown among those before it.
        if !as_known && !span.fits(suspicion.ratio) {
            return self.suspect(last, reading, span);
        }
        let since_then = Span::between(suspicion.until, reading);
        if since_then.least < LEAST_SPAN {
            return Rate::Steady;
        }
        match (since_then.fits(self.known), since_then.fits(suspicion.ratio)) {
            // Too near to each other: wait until one does not fit any more.
            (true, true) => {
                self.last = Some(reading);
                Rate::Steady
            }
            // It was a step.
            (true, false) => {
                (self.anchor, self.last) = (Some(suspicion.until), Some(reading));
                self.suspicion = None;
                Rate::Steady
            }
            // It is a rate.
            (false, true) => {
                (self.anchor, self.last) = (Some(suspicion.since), Some(reading));
                self.suspicion = None;
                self.learn(Span::between(suspicion.since, reading).ratio())
            }
            (false, false) => self.suspect(last, reading, span),
        }
    }

    /// The part of a ttl that may be counted on, by the rate seen so far.
    pub(crate) fn shrink(&self, ttl: Duration) -> Duration {
        let suspected = self.suspicion.map_or(1.0, |suspicion| suspicion.fastest);
        let fastest = self.known.most.max(suspected);
        if fastest > 1.0 + ALLOWED { ttl.div_f64(fastest) } else { ttl }
    }

    /// The interval has no explanation: a step or another rate.
    fn suspect(&mut self, last: Reading, reading: Reading, span: Span) -> Rate {
        let by = span.unexplained(self.known).unwrap_or_default();
        let as_usual = span.fits(Ratio::ONE);
        let ratio = if as_usual { Ratio::ONE } else { span.ratio() };
        let counted = if ratio.least > FASTEST { 1.0 } else { ratio.most.min(FASTEST) };
        let fastest = self.suspicion.map_or(counted, |before| before.fastest.max(counted));
        self.suspicion = Some(Suspicion { since: last, until: reading, ratio, fastest });
        self.last = Some(reading);
        if as_usual {
            // It seems to run as it should again. Nothing to doubt, and what is counted on stays
            // short until the next interval agrees.
            return Rate::Steady;
        }
        if by.abs() > STEP { Rate::Stepped { by: (by * 1e9) as i64 } } else { Rate::Odd }
    }

    /// What no interval shows by itself may show in all of them together.
    fn over_the_hold(&mut self, span: Span) -> Rate {
        let ratio = span.ratio();
        if span.fits(Ratio::ONE) {
            return if span.fits(self.known) { Rate::Steady } else { self.learn(Ratio::ONE) };
        }
        if self.known == Ratio::ONE {
            return self.learn(ratio);
        }
        if ratio.width() < self.known.width() {
            self.known = ratio;
        }
        Rate::Steady
    }

    /// Several intervals agree.
    fn learn(&mut self, ratio: Ratio) -> Rate {
        let before = std::mem::replace(&mut self.known, ratio);
        if ratio.least <= 1.0 + USUAL && ratio.most >= 1.0 - USUAL {
            self.known = Ratio::ONE;
        }
        // The allowance covers it, as it did what was known before: nothing to tell.
        if self.known.is_allowed() && before.is_allowed() {
            return Rate::Steady;
        }
        Rate::Unsteady { ratio: self.known.middle() }
    }
}

impl Span {
    fn between(from: Reading, to: Reading) -> Self {
        let theirs = to.store.as_nanos() as i128 - from.store.as_nanos() as i128;
        Self {
            least: to.sent.since(from.received).as_secs_f64(),
            most: to.received.since(from.sent).as_secs_f64(),
            theirs: theirs as f64 / 1e9,
        }
    }

    /// By how many seconds the store's clock went further (or less far) than clocks of this ratio
    /// do, however the answers travelled; `None` within what is tolerated.
    fn unexplained(&self, ratio: Ratio) -> Option<f64> {
        let ours = self.most;
        let step = STEP + ours * USUAL;
        // A short span says nothing of a rate.
        let tolerated = if self.least < LEAST_SPAN { step } else { step.min(ours * ALLOWED) };
        let (least, most) = (self.least * ratio.least, self.most * ratio.most);
        let by = self.theirs - self.theirs.clamp(least, most);
        (by.abs() > tolerated).then_some(by)
    }

    fn fits(&self, ratio: Ratio) -> bool {
        self.unexplained(ratio).is_none()
    }

    fn ratio(&self) -> Ratio {
        // A clock that was set back has no rate.
        let theirs = self.theirs.max(0.0);
        Ratio { least: theirs / self.most.max(1e-9), most: theirs / self.least.max(1e-9) }
    }
}

impl Ratio {
    const ONE: Self = Self { least: 1.0, most: 1.0 };

    fn width(&self) -> f64 {
        self.most - self.least
    }

    fn middle(&self) -> f64 {
        f64::midpoint(self.least, self.most)
    }

    /// Whether the allowance for clocks covers it.
    fn is_allowed(&self) -> bool {
        self.least <= 1.0 + ALLOWED && self.most >= 1.0 - ALLOWED
    }
}

impl Default for Ratio {
    fn default() -> Self {
        Self::ONE
    }
}

#[cfg(test)]
mod tests;
