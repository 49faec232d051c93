//! Periods of time that follow each other without a gap: days, weeks, months, intervals.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};

use latchwork_store::{Error, ErrorKind};

use self::cron::Cron;

mod cron;

const DAY: u64 = 24 * 60 * 60;
const LONGEST: Duration = Duration::from_secs(100 * 366 * DAY);
/// 1970-01-05, so that weeks begin on Mondays (ISO 8601).
const FIRST_MONDAY: i64 = 4;
const EPOCH: Date = jiff::civil::date(1970, 1, 1);

/// The period of a task that runs once per period.
///
/// Calendar periods (days, weeks from Monday, months, years, and several of them) begin at midnight
/// in a time zone, however long the day is there; plain intervals (seconds, minutes, hours) are
/// counted from 1970 in UTC. The five fields of cron bound periods that begin at their moments. So equal periods on
/// several hosts have the same bounds.
///
/// ```
/// use latchwork::Period;
///
/// let daily = Period::parse("1d", Some("Europe/Berlin")).unwrap();
/// let hourly = Period::parse("1h", None).unwrap();
/// let at_three = Period::parse("0 3 * * *", Some("Europe/Berlin")).unwrap();
/// assert_eq!(daily.to_string(), "1d in Europe/Berlin");
/// assert!(Period::parse("1d", Some("Europe/Atlantis")).is_err());
/// # let _ = (hourly, at_three);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Period {
    number: u32,
    unit: Unit,
    zone: TimeZone,
    /// The moments that bound it, in place of number and unit.
    cron: Option<Cron>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    Seconds,
    Minutes,
    Hours,
    Days,
    Weeks,
    Months,
    Years,
}

impl Unit {
    const ALL: [(Unit, &'static str, &'static [&'static str]); 7] = [
        (Unit::Seconds, "s", &["s", "sec", "second", "seconds"]),
        (Unit::Minutes, "m", &["m", "min", "minute", "minutes"]),
        (Unit::Hours, "h", &["h", "hr", "hour", "hours"]),
        (Unit::Days, "d", &["d", "day", "days"]),
        (Unit::Weeks, "w", &["w", "week", "weeks"]),
        (Unit::Months, "mo", &["mo", "month", "months"]),
        (Unit::Years, "y", &["y", "year", "years"]),
    ];

    fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().find(|(.., words)| words.contains(&text)).map(|(unit, ..)| *unit)
    }

    fn letter(self) -> &'static str {
        Self::ALL.iter().find(|(unit, ..)| *unit == self).map_or("", |(_, letter, _)| letter)
    }

    /// The length of a plain interval.
    fn seconds(self) -> Option<u64> {
        match self {
            Unit::Seconds => Some(1),
            Unit::Minutes => Some(60),
            Unit::Hours => Some(60 * 60),
            Unit::Days | Unit::Weeks | Unit::Months | Unit::Years => None,
        }
    }
}

impl Period {
    /// Parses `30s`, `15m`, `6h` (plain intervals), `1d`, `2w`, `1mo`, `1y` (of the calendar). The
    /// time zone is a name of the IANA database. Default: UTC.
    ///
    /// Also `0 3 * * *`, the five fields of cron, and `@daily` and the like: a period begins at each of their moments. A
    /// time that clocks skip counts as much later. One that they show twice counts once, or each time if minute or hour
    /// has a `*`.
    ///
    /// # Errors
    ///
    /// `Invalid`, and the message names the field: `every` for what is no period, one of zero or of
    /// more than a hundred years, `tz` for an unknown zone and for one beside a plain interval,
    /// where it would mean nothing.
    pub fn parse(every: &str, tz: Option<&str>) -> Result<Self, Error> {
        if Cron::is_meant(every) {
            let cron = Cron::parse(every).map_err(|why| {
                invalid(format!("every: {why}"))
                    .with_next_step("write minute, hour, day, month and weekday: 0 3 * * *")
            })?;
            let zone = tz.map_or(Ok(TimeZone::UTC), zone)?;
            return Ok(Self { number: 1, unit: Unit::Days, zone, cron: Some(cron) });
        }
        let digits = every.len() - every.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, unit) = every.split_at(digits);
        let number = number.parse().ok().filter(|number| (1..=100_000_000).contains(number));
        let (Some(number), Some(unit)) = (number, Unit::parse(unit.trim())) else {
            return Err(invalid(format!("every: {every:?} is not a period")).with_next_step(
                "write 30s, 15m, 6h, 1d, 1w, 1mo, 1y or @daily, or five fields of cron: 0 3 * * *",
            ));
        };
        let period = Self { number, unit, zone: TimeZone::UTC, cron: None };
        if period.length_at_most() > LONGEST {
            return Err(invalid(format!("every: {every:?} is longer than a hundred years")));
        }
        match tz {
            None => Ok(period),
            Some(tz) if unit.seconds().is_some() => {
                let message = format!("tz: {tz:?} means nothing to an interval of {every}");
                Err(invalid(message)
                    .with_next_step("leave it out, or use a period of days and more"))
            }
            Some(tz) => Ok(Self { zone: zone(tz)?, ..period }),
        }
    }

    /// Creates a plain interval: every quarter of an hour, every 90 seconds.
    ///
    /// Intervals are counted from 1970 in UTC. For days and more by the calendar, see [`Period::parse`].
    ///
    /// # Errors
    ///
    /// `Invalid` for zero, for a part of a second, and for more than a hundred years.
    ///
    /// ```
    /// # use latchwork::Period;
    /// # use std::time::Duration;
    /// assert_eq!(Period::every(Duration::from_secs(15 * 60)).unwrap().to_string(), "15m");
    /// ```
    pub fn every(interval: Duration) -> Result<Self, Error> {
        let seconds = interval.as_secs();
        let bad = |why: &str| invalid(format!("every: {interval:?} {why}"));
        if seconds == 0 || interval.subsec_nanos() != 0 {
            return Err(bad("is not a number of whole seconds").with_next_step("use 1 s or more"));
        }
        let of = |unit: Unit| {
            let length = unit.seconds().filter(|length| seconds.is_multiple_of(*length))?;
            let number = u32::try_from(seconds / length).ok()?;
            Some(Self { number, unit, zone: TimeZone::UTC, cron: None })
        };
        [Unit::Hours, Unit::Minutes, Unit::Seconds]
            .into_iter()
            .find_map(of)
            .filter(|it| it.length_at_most() <= LONGEST)
            .ok_or_else(|| bad("is longer than a hundred years"))
    }

    /// Creates the period of calendar days in a time zone.
    ///
    /// # Errors
    ///
    /// `Invalid` for an unknown zone.
    pub fn daily(tz: &str) -> Result<Self, Error> {
        Self::parse("1d", Some(tz))
    }

    /// Returns the period that contains a moment, both in time since 1970.
    ///
    /// # Errors
    ///
    /// `Invalid` for a moment that the calendar does not reach, some thousand years from now.
    pub fn around(&self, wall: Duration) -> Result<Range<Duration>, Error> {
        match self.unit.seconds() {
            Some(unit) => {
                let length = unit * u64::from(self.number);
                let start = wall.as_secs() / length * length;
                let end = start.checked_add(length).ok_or_else(|| {
                    invalid(format!("every: no {self} around this moment: it is too late to count"))
                })?;
                Ok(Duration::from_secs(start)..Duration::from_secs(end))
            }
            None => self
                .calendar(wall)
                .map_err(|error| invalid(format!("every: no {self} around this moment: {error}"))),
        }
    }

    fn calendar(&self, wall: Duration) -> Result<Range<Duration>, jiff::Error> {
        let now = Timestamp::from_duration(wall.try_into().unwrap_or(jiff::SignedDuration::MAX))?;
        if let Some(cron) = &self.cron {
            let found = cron.around(now, &self.zone)?;
            let since = |moment: Timestamp| moment.as_duration().try_into().unwrap_or_default();
            return Ok(since(found.start)..since(found.end));
        }
        let today = now.to_zoned(self.zone.clone()).date();
        let number = i64::from(self.number);
        let days = |date: Date| date.since(EPOCH).map(|span| i64::from(span.get_days()));
        let (first, next) = match self.unit {
            Unit::Years => {
                let start = i64::from(today.year()).div_euclid(number) * number;
                (year(start)?, year(start + number)?)
            }
            Unit::Months => {
                let month = i64::from(today.year()) * 12 + i64::from(today.month()) - 1;
                let start = month.div_euclid(number) * number;
                (month_number(start)?, month_number(start + number)?)
            }
            _ => {
                let (anchor, number) = match self.unit {
                    Unit::Weeks => (FIRST_MONDAY, number * 7),
                    _ => (0, number),
                };
                let start = (days(today)? - anchor).div_euclid(number) * number + anchor;
                (EPOCH.checked_add(start.days())?, EPOCH.checked_add((start + number).days())?)
            }
        };
        Ok(self.midnight(first)?..self.midnight(next)?)
    }

    /// When a day begins in the zone: at midnight, or after the gap where clocks skip it.
    fn midnight(&self, date: Date) -> Result<Duration, jiff::Error> {
        let start = date.to_zoned(self.zone.clone())?.timestamp().as_duration();
        Ok(start.try_into().unwrap_or_default())
    }

    fn length_at_most(&self) -> Duration {
        let unit = match self.unit {
            Unit::Days => DAY,
            Unit::Weeks => 7 * DAY,
            Unit::Months => 31 * DAY,
            Unit::Years => 366 * DAY,
            plain => plain.seconds().unwrap_or_default(),
        };
        Duration::from_secs(unit.saturating_mul(u64::from(self.number)))
    }
}

fn zone(name: &str) -> Result<TimeZone, Error> {
    TimeZone::get(name).map_err(|error| {
        invalid(format!("tz: {error}"))
            .with_next_step("use a name of the IANA time zones, such as Europe/Berlin")
    })
}

fn year(year: i64) -> Result<Date, jiff::Error> {
    // What does not fit is out of range, and said to be so.
    Date::new(year.try_into().unwrap_or(i16::MAX), 1, 1)
}

fn month_number(month: i64) -> Result<Date, jiff::Error> {
    let year = month.div_euclid(12).try_into().unwrap_or(i16::MAX);
    Date::new(year, month.rem_euclid(12) as i8 + 1, 1)
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cron {
            Some(cron) => f.write_str(cron.text())?,
            None => write!(f, "{}{}", self.number, self.unit.letter())?,
        }
        match self.zone.iana_name() {
            Some(zone) if self.unit.seconds().is_none() => write!(f, " in {zone}"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(text: &str) -> Duration {
        text.parse::<Timestamp>().unwrap().as_duration().try_into().unwrap()
    }

    fn around(every: &str, tz: Option<&str>, moment: &str) -> (Duration, Duration) {
        let found = Period::parse(every, tz).unwrap().around(at(moment)).unwrap();
        (found.start, found.end)
    }

    #[test]
    fn a_day_has_the_length_of_its_time_zone() {
        let berlin = Some("Europe/Berlin");
        let usual = around("1d", berlin, "2026-11-21T22:59:59Z");
        assert_eq!(usual, (at("2026-11-20T23:00:00Z"), at("2026-11-21T23:00:00Z")));
        let short = around("1d", berlin, "2026-03-29T12:00:00Z");
        assert_eq!(short.1 - short.0, Duration::from_secs(23 * 60 * 60));
        let long = around("1d", berlin, "2026-10-25T12:00:00Z");
        assert_eq!(long.1 - long.0, Duration::from_secs(25 * 60 * 60));
    }

    #[test]
    fn a_day_without_midnight_begins_after_the_gap() {
        // In Chile the clocks went from 24:00 to 1:00.
        let day = around("1d", Some("America/Santiago"), "2026-09-06T12:00:00Z");
        assert_eq!(day.0, at("2026-09-06T04:00:00Z"));
    }

    #[test]
    fn weeks_begin_on_mondays_and_months_on_the_first() {
        let week = around("1w", None, "2026-11-21T21:00:00Z");
        assert_eq!(week, (at("2026-11-16T00:00:00Z"), at("2026-11-23T00:00:00Z")));
        let month = around("1mo", None, "2026-12-31T23:59:59Z");
        assert_eq!(month, (at("2026-12-01T00:00:00Z"), at("2027-01-01T00:00:00Z")));
        let quarter = around("3mo", None, "2026-11-21T21:00:00Z");
        assert_eq!(quarter, (at("2026-10-01T00:00:00Z"), at("2027-01-01T00:00:00Z")));
        let year = around("1y", None, "2026-11-21T21:00:00Z");
        assert_eq!(year, (at("2026-01-01T00:00:00Z"), at("2027-01-01T00:00:00Z")));
    }

    #[test]
    fn the_fields_of_cron_bound_periods() {
        let berlin = Some("Europe/Berlin");
        let found = around("0 3 * * *", berlin, "2026-11-21T12:00:00Z");
        assert_eq!(found, (at("2026-11-21T02:00:00Z"), at("2026-11-22T02:00:00Z")));
        let period = Period::parse("0  3 * * *", berlin).unwrap();
        assert_eq!(period.to_string(), "0 3 * * * in Europe/Berlin");
        assert_eq!(period, Period::parse("0 3 * * *", berlin).unwrap());
    }

    #[test]
    fn names_the_field_that_is_wrong() {
        for (every, tz, field) in [
            ("", None, "every"),
            ("d", None, "every"),
            ("0d", None, "every"),
            ("1.5h", None, "every"),
            ("-1d", None, "every"),
            ("1 fortnight", None, "every"),
            ("99999999y", None, "every"),
            ("1d", Some("Mars/Olympus"), "tz"),
            ("1h", Some("Europe/Berlin"), "tz"),
            ("0 3 * * *", Some("Mars/Olympus"), "tz"),
            ("0 24 * * *", None, "every: hour"),
            ("@reboot", None, "every"),
        ] {
            let error = Period::parse(every, tz).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.message().starts_with(&format!("{field}:")), "{every:?} {tz:?}: {error}");
        }
        let hourly = Period::parse("1h", Some("Europe/Berlin")).unwrap_err();
        assert_eq!(hourly.next_step(), Some("leave it out, or use a period of days and more"));
    }

    #[test]
    fn an_uncountable_moment_is_refused() {
        for every in ["30s", "6h", "1d", "1y", "0 3 * * *"] {
            let error = Period::parse(every, None).unwrap().around(Duration::MAX).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{every}: {error}");
            assert!(error.message().starts_with("every: "), "{every}: {error}");
        }
    }

    #[test]
    fn an_interval_is_the_same_as_its_text() {
        for (seconds, text) in
            [(1, "1s"), (90, "90s"), (900, "15m"), (86_400, "24h"), (90_000, "25h")]
        {
            let period = Period::every(Duration::from_secs(seconds)).unwrap();
            assert_eq!(period, Period::parse(text, None).unwrap());
            assert_eq!(period.to_string(), text);
        }
        for wrong in [
            Duration::ZERO,
            Duration::from_millis(1500),
            Duration::from_secs(200 * 366 * DAY),
            Duration::MAX,
        ] {
            let error = Period::every(wrong).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.message().starts_with("every: "), "{error}");
        }
        let step = Period::every(Duration::from_millis(500)).unwrap_err();
        assert_eq!(step.next_step(), Some("use 1 s or more"));
    }

    proptest! {
        /// Periods follow each other without gap and overlap, and each moment lies in its own.
        #[test]
        fn periods_tile_time(
            wall in 0_u64..4_000_000_000,
            number in 1_u32..40,
            unit in prop::sample::select(vec!["s", "m", "h", "d", "w", "mo", "y"]),
            zone in prop::sample::select(vec!["UTC", "Europe/Berlin", "America/Santiago", "Asia/Kolkata"]),
        ) {
            let plain = ["s", "m", "h"].contains(&unit);
            let period =
                Period::parse(&format!("{number}{unit}"), (!plain).then_some(zone)).unwrap();
            let wall = Duration::from_secs(wall);
            let found = period.around(wall).unwrap();
            prop_assert!(found.contains(&wall), "{found:?}");
            prop_assert_eq!(&period.around(found.start).unwrap(), &found);
            prop_assert_eq!(period.around(found.end).unwrap().start, found.end);
            prop_assert!(found.end - found.start <= period.length_at_most() + Duration::from_secs(2 * 3600));
        }
    }
}
