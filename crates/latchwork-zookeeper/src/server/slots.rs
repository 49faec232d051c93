//! Assigns ttls to sessions, so that a few sessions serve all ttls.
//!
//! A session that is longer than a claim needs harms no claim: it is granted its ttl, and released
//! when it is over. But when the process dies, the claim ends with the session. So the first lengths of
//! ttl have sessions of their own, and only the rest share some that are longer.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use latchwork_store::Moment;

/// So many sessions are as long as the first ttls need.
const EXACT: usize = 3;
/// The others have one of so many lengths, from the shortest that the servers grant to the longest.
const CLASSES: i32 = 3;
/// A session that serves nothing for so long is closed, unless it is the one that was used last.
const IDLE: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct Slots<S> {
    limits: (Duration, Duration),
    open: Vec<Slot<S>>,
}

#[derive(Debug)]
struct Slot<S> {
    session: Arc<S>,
    timeout: Duration,
    used_at: Moment,
    /// It was opened to see how the servers are, and has served no claim yet.
    is_spare: bool,
}

/// Where a claim goes.
#[derive(Debug)]
pub(crate) enum Pick<S> {
    /// To a session that is open.
    Open(Arc<S>),
    /// To a new one of this length, after this one has been closed.
    New(Duration, Option<Arc<S>>),
}

impl<S> Slots<S> {
    /// Sessions may be as short and as long as the servers grant them.
    pub(crate) fn new(limits: (Duration, Duration)) -> Self {
        Self { limits, open: Vec::new() }
    }

    /// Picks the session for a claim that needs one of this length at least, with room for it. If those of its length
    /// have none, there is one more.
    pub(crate) fn pick(
        &mut self,
        needed: Duration,
        now: Moment,
        has_room: impl Fn(&S) -> bool,
    ) -> Pick<S> {
        let needed = needed.clamp(self.limits.0, self.limits.1);
        let fitting = self.fitting(needed);
        if let Some(timeout) = fitting
            && let Some(slot) =
                self.open.iter_mut().find(|slot| slot.timeout == timeout && has_room(&slot.session))
        {
            slot.used_at = now;
            slot.is_spare = false;
            return Pick::Open(slot.session.clone());
        }
        let is_spare = |slot: &Slot<S>| slot.is_spare && Arc::strong_count(&slot.session) == 1;
        let spare = self.open.iter().position(is_spare);
        let spare = spare.map(|place| self.open.swap_remove(place).session);
        let length = if self.lengths() < EXACT { needed } else { self.class_of(needed) };
        Pick::New(fitting.unwrap_or(length), spare)
    }

    /// The length of the shortest one that is long enough, if it is not much too long.
    fn fitting(&self, needed: Duration) -> Option<Duration> {
        let has_exact = self.lengths() < EXACT;
        let most = if has_exact { needed + needed / 10 } else { self.class_of(needed) };
        let fits = |timeout: &Duration| (needed..=most).contains(timeout);
        self.open.iter().map(|slot| slot.timeout).filter(fits).min()
    }

    /// How many lengths there are of sessions that serve claims.
    fn lengths(&self) -> usize {
        let real = self.open.iter().enumerate().filter(|(_, slot)| !slot.is_spare);
        let is_first = |(at, slot): &(usize, &Slot<S>)| {
            !self.open[..*at].iter().any(|other| !other.is_spare && other.timeout == slot.timeout)
        };
        real.filter(is_first).count()
    }

    /// The shortest of the shared lengths that is long enough.
    fn class_of(&self, needed: Duration) -> Duration {
        let (shortest, longest) = self.limits;
        let ratio = longest.as_secs_f64() / shortest.as_secs_f64();
        let class = |n: i32| shortest.mul_f64(ratio.powf(f64::from(n) / f64::from(CLASSES)));
        let classes = (1..CLASSES).map(class);
        let whole_ms = |class: Duration| Duration::from_millis(class.as_millis() as u64);
        classes.map(whole_ms).find(|class| *class >= needed).unwrap_or(longest)
    }

    pub(crate) fn add(&mut self, session: Arc<S>, timeout: Duration, now: Moment, is_spare: bool) {
        self.open.push(Slot { session, timeout, used_at: now, is_spare });
    }

    /// The one that was used last, for what belongs to no claim.
    pub(crate) fn last_used(&self) -> Option<Arc<S>> {
        self.open.iter().max_by_key(|slot| slot.used_at).map(|slot| slot.session.clone())
    }

    /// Forgets sessions that have ended.
    pub(crate) fn retain(&mut self, is_alive: impl Fn(&S) -> bool) {
        self.open.retain(|slot| is_alive(&slot.session));
    }

    /// Takes out the sessions that have served nothing for long, and returns when to check again.
    pub(crate) fn take_idle(&mut self, now: Moment) -> (Vec<Arc<S>>, Moment) {
        for slot in self.open.iter_mut().filter(|slot| Arc::strong_count(&slot.session) > 1) {
            slot.used_at = now;
        }
        // The one that was used last comes first.
        self.open.sort_by_key(|slot| Reverse(slot.used_at));
        let is_idle = |slot: &mut Slot<S>| now.since(slot.used_at) >= IDLE;
        let after_the_first = self.open.len().min(1)..;
        let idle =
            self.open.extract_if(after_the_first, is_idle).map(|slot| slot.session).collect();
        let next = if self.open.len() > 1 { now.plus(IDLE / 2) } else { Moment::NEVER };
        (idle, next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEC: Duration = Duration::from_secs(1);
    const MS: Duration = Duration::from_millis(1);

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(seconds * 1_000_000_000)
    }

    fn slots() -> Slots<Duration> {
        Slots::new((4 * SEC, 40 * SEC))
    }

    /// The session that serves a claim which needs this length.
    fn serve(slots: &mut Slots<Duration>, needed: Duration, now: Moment) -> Arc<Duration> {
        match slots.pick(needed, now, |_| true) {
            Pick::Open(session) => session,
            Pick::New(timeout, _) => {
                let session = Arc::new(timeout);
                slots.add(session.clone(), timeout, now, false);
                session
            }
        }
    }

    /// H105: whatever the order of the ttls, and however many of them there are.
    #[test]
    fn h105_six_sessions_serve_every_ttl() {
        for order in 0..200u32 {
            let mut slots = slots();
            for n in 0..400u32 {
                let needed = 4 * SEC + (n * 7 * (order + 1) % 401) * 90 * MS;
                let session = serve(&mut slots, needed, at(1));
                assert!(*session >= needed, "{session:?} for {needed:?}");
                // A third of the way from the shortest to the longest, as factors go.
                assert!(*session <= needed.mul_f64(2.16), "{session:?} for {needed:?}");
            }
            assert!(slots.open.len() <= EXACT + CLASSES as usize, "{slots:?}");
        }
    }

    /// H411: a session that is full gets another one of its length, which takes no other length's place.
    #[test]
    fn h411_a_full_session_gets_one_more_of_its_length() {
        let mut slots = slots();
        for n in 1..=5 {
            match slots.pick(10 * SEC, at(1), |_| false) {
                Pick::New(timeout, None) => {
                    assert_eq!(timeout, 10 * SEC);
                    slots.add(Arc::new(timeout), timeout, at(1), false);
                }
                other => panic!("{other:?}"),
            }
            assert_eq!((slots.open.len(), slots.lengths()), (n, 1));
        }
        assert_eq!(*serve(&mut slots, 20 * SEC, at(1)), 20 * SEC);
        assert_eq!(*serve(&mut slots, 30 * SEC, at(1)), 30 * SEC);
        assert_eq!(*serve(&mut slots, 10 * SEC, at(1)), 10 * SEC, "there is room again");
        assert_eq!(slots.open.len(), 7);
    }

    #[test]
    fn the_first_ttls_have_sessions_of_their_own() {
        let mut slots = slots();
        for needed in [20 * SEC, 5 * SEC, 10 * SEC, 10 * SEC, 19 * SEC] {
            let session = serve(&mut slots, needed, at(1));
            assert!(*session <= needed.mul_f64(1.1), "{session:?} for {needed:?}");
        }
        assert_eq!(slots.open.len(), 3);
        assert_eq!(
            *serve(&mut slots, SEC, at(1)),
            5 * SEC,
            "no shorter one than the servers grant"
        );
        assert_eq!(*serve(&mut slots, 90 * SEC, at(1)), 40 * SEC);
    }

    #[test]
    fn the_spare_session_gives_way_to_the_first_that_is_needed() {
        let mut slots = slots();
        slots.add(Arc::new(40 * SEC), 40 * SEC, at(0), true);
        assert_eq!(*slots.last_used().unwrap(), 40 * SEC);
        match slots.pick(10 * SEC, at(1), |_| true) {
            Pick::New(timeout, Some(spare)) => assert_eq!((timeout, *spare), (10 * SEC, 40 * SEC)),
            other => panic!("{other:?}"),
        }
        slots.add(Arc::new(40 * SEC), 40 * SEC, at(0), true);
        assert_eq!(*serve(&mut slots, 39 * SEC, at(1)), 40 * SEC);
        assert_eq!(*serve(&mut slots, 10 * SEC, at(1)), 10 * SEC, "it serves by now");
        assert_eq!(slots.open.len(), 2);
    }

    #[test]
    fn idle_sessions_are_closed_except_one() {
        let mut slots = slots();
        let held = [5 * SEC, 10 * SEC].map(|needed| serve(&mut slots, needed, at(0)));
        drop(serve(&mut slots, 20 * SEC, at(1)));
        let (idle, next) = slots.take_idle(at(20));
        assert!(idle.is_empty() && next == at(35), "{idle:?} {next:?}");
        let (idle, next) = slots.take_idle(at(35));
        assert_eq!((idle.len(), next), (1, at(50)), "two are held");
        drop((idle, held));
        assert!(slots.take_idle(at(50)).0.is_empty());
        let (idle, next) = slots.take_idle(at(65));
        assert_eq!((idle.len(), next), (1, Moment::NEVER));
        assert!(slots.take_idle(at(1_000)).0.is_empty(), "the last one stays");
    }
}
