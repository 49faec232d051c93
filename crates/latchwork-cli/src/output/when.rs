//! What is said of a task that is done: when it was done, by whom, and when it can run again.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use latchwork_store::doctor::operand;
use latchwork_store::{Holder, Snapshot};

use super::coarse;

/// The next step for a task that is to run before its next period. The name is the whole key.
pub(crate) fn opens_by_reset(name: &str) -> String {
    format!("open it with `latchwork once --reset {}`", operand(name))
}

/// A key that is closed, as far as the store knows.
pub(crate) struct Done {
    /// The holder that closed it.
    pub(crate) by: Option<Arc<str>>,
    /// When, by the wall clock of its host: time since 1970.
    pub(crate) at: Option<Duration>,
    /// How long it stays closed.
    pub(crate) left: Option<Duration>,
}

/// Whether nobody holds a key and it is closed: `once` has done it.
pub(crate) fn is_done(seen: &Snapshot) -> bool {
    seen.holders.is_empty() && seen.linger.is_some()
}

impl Done {
    /// What is known of the end of the holder that closed a key.
    pub(crate) fn of(seen: &Snapshot) -> Self {
        let by = seen.closed_by.as_ref();
        let at = by.and_then(|by| by.closed_at);
        Self { by: by.map(Holder::shown), at, left: seen.linger }
    }

    /// `done 02:00:14 by web-2, next run possible in 14h`, without what is not known.
    ///
    /// The time is of this zone; without one it is of UTC, and says so. `now` tells what today is.
    pub(crate) fn sentence(&self, now: Duration, zone: Option<&TimeZone>) -> String {
        let mut text = format!("done{}", self.closing(now, zone));
        if let Some(left) = self.left {
            // Writing to a String does not fail.
            let _ = write!(text, ", next run possible in {}", coarse(left));
        }
        text
    }

    /// ` 02:00:14 by web-2`, without what is not known.
    pub(super) fn closing(&self, now: Duration, zone: Option<&TimeZone>) -> String {
        let time = self.at.and_then(|at| clock_time(at, now, zone));
        let mut text = time.map(|time| format!(" {time}")).unwrap_or_default();
        if let Some(by) = self.by.as_deref().filter(|by| !by.is_empty()) {
            let _ = write!(text, " by {by}");
        }
        text
    }
}

/// A time since 1970 as the clock shows it in UTC, and its date unless that is today.
#[cfg(feature = "top")]
pub(crate) fn moment_of_day(at: Duration, now: Duration) -> Option<String> {
    clock_time(at, now, None)
}

/// `02:00:14`, and the date before it unless that is today; in UTC with ` UTC` behind it. `None` for a time that
/// no calendar has.
///
/// Times are since 1970.
fn clock_time(at: Duration, now: Duration, zone: Option<&TimeZone>) -> Option<String> {
    let local = |time| Some(timestamp(time)?.to_zoned(zone.cloned().unwrap_or(TimeZone::UTC)));
    let at = local(at)?;
    let is_today = local(now).is_some_and(|now| now.date() == at.date());
    let text = at.strftime(if is_today { "%H:%M:%S" } else { "%Y-%m-%d %H:%M:%S" });
    Some(if zone.is_some() { text.to_string() } else { format!("{text} UTC") })
}

fn timestamp(at: Duration) -> Option<Timestamp> {
    Timestamp::from_duration(at.try_into().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Duration {
        text.parse::<Timestamp>().unwrap().as_duration().try_into().unwrap()
    }

    #[test]
    fn a_time_of_another_day_has_its_date() {
        let berlin = TimeZone::get("Europe/Berlin").unwrap();
        let (done, later) = (at("2026-11-23T23:30:14Z"), at("2026-11-24T08:00:00Z"));
        assert_eq!(clock_time(done, later, Some(&berlin)).unwrap(), "00:30:14");
        assert_eq!(clock_time(done, later, None).unwrap(), "2026-11-23 23:30:14 UTC");
        assert_eq!(clock_time(done, done, None).unwrap(), "23:30:14 UTC");
        // The clock of the other host is ahead of ours.
        assert_eq!(clock_time(later, done, None).unwrap(), "2026-11-24 08:00:00 UTC");
    }

    #[test]
    fn unknown_facts_are_omitted() {
        let now = at("2026-11-24T08:00:00Z");
        let (by, done_at, left) =
            (Some("web-2"), Some(at("2026-11-24T01:00:14Z")), Some(Duration::from_secs(50_400)));
        let says = |by: Option<&str>, at, left| {
            Done { by: by.map(Arc::from), at, left }.sentence(now, None)
        };
        assert_eq!(says(by, done_at, left), "done 01:00:14 UTC by web-2, next run possible in 14h");
        assert_eq!(says(by, None, left), "done by web-2, next run possible in 14h");
        assert_eq!(says(Some(""), done_at, None), "done 01:00:14 UTC");
        assert_eq!(says(None, None, left), "done, next run possible in 14h");
        for wrong in [Duration::MAX, Duration::from_millis(u64::MAX)] {
            assert_eq!(says(by, Some(wrong), None), "done by web-2", "no calendar has {wrong:?}");
        }
    }
}
