//! Moments by the five fields of cron, which bound periods.

use std::ops::Range;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};

const NAMES: [(&str, &str); 7] = [
    ("@hourly", "0 * * * *"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@weekly", "0 0 * * 0"),
    ("@monthly", "0 0 1 * *"),
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
];
const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// From one 29th of February to the next: 8 years around 2100.
const LONGEST_GAP: i32 = 8 * 366;

/// Clocks skip no more minutes than these, so a moment that is skipped comes before one that is so much later.
const LONGEST_SKIP: i32 = 180;

/// A schedule. Each field is a set of bits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cron {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Both kinds of days are restricted, and one that matches is enough.
    either_day: bool,
    /// It has a `*` in minute or hour, so it goes on in an hour that clocks repeat.
    is_repeated: bool,
    text: String,
}

impl Cron {
    /// Whether this is meant for cron, right or wrong.
    pub(super) fn is_meant(text: &str) -> bool {
        text.starts_with('@') || text.split_whitespace().count() == 5
    }

    /// Parses it; an error says which field is wrong.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let known = NAMES.iter().find(|(name, _)| *name == text).map(|(_, fields)| *fields);
        let fields: Vec<_> = known.unwrap_or(text).split_whitespace().collect();
        let [minute, hour, day, month, weekday] = fields[..] else {
            return Err(format!("{text:?} is none of {}", NAMES.map(|(name, _)| name).join(", ")));
        };
        let is_any = |field: &str| field.starts_with('*');
        let mut weekdays = set(weekday, "weekday", 0..8, &DAYS, 0)?;
        // Sunday is 0 and 7.
        weekdays |= weekdays >> 7;
        let cron = Self {
            minutes: set(minute, "minute", 0..60, &[], 0)?,
            hours: set(hour, "hour", 0..24, &[], 0)?,
            days: set(day, "day", 1..32, &[], 0)?,
            months: set(month, "month", 1..13, &MONTHS, 1)?,
            weekdays: weekdays & 0x7f,
            either_day: !is_any(day) && !is_any(weekday),
            is_repeated: is_any(minute) || is_any(hour),
            text: fields.join(" "),
        };
        if !cron.either_day
            && (1..=12).all(|month| !cron.has(month) || cron.days & days_of(month) == 0)
        {
            return Err(format!("no month has a day {day} in {text:?}"));
        }
        Ok(cron)
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// The last of its moments up to `now`, and the first one after it.
    pub(super) fn around(
        &self,
        now: Timestamp,
        zone: &TimeZone,
    ) -> Result<Range<Timestamp>, jiff::Error> {
        let today = now.to_zoned(zone.clone()).date();
        let start = self.nearest(today, -1, zone, |moment| moment <= now)?;
        let end = self.nearest(today, 1, zone, |moment| moment > now)?;
        Ok(start..end)
    }

    /// The first moment that counts, from a day on, in this direction.
    fn nearest(
        &self,
        from: Date,
        step: i32,
        zone: &TimeZone,
        counts: impl Fn(Timestamp) -> bool,
    ) -> Result<Timestamp, jiff::Error> {
        for distance in 0..=LONGEST_GAP {
            let date = from.checked_add((step * distance).days())?;
            if !self.is_on(date) {
                continue;
            }
            let mut best: Option<(Timestamp, i32)> = None;
            for place in 0..24 * 60 {
                let minute = if step < 0 { 24 * 60 - 1 - place } else { place };
                if best.is_some_and(|(_, found)| (minute - found).abs() > LONGEST_SKIP) {
                    break;
                }
                if self.minutes >> (minute % 60) & 1 == 0 || self.hours >> (minute / 60) & 1 == 0 {
                    continue;
                }
                // A time that clocks skip is as much later.
                let time = date.at((minute / 60) as i8, (minute % 60) as i8, 0, 0);
                let shown = zone.to_ambiguous_timestamp(time);
                let second = if self.is_repeated { Some(shown.later()?) } else { None };
                for moment in [Some(shown.compatible()?), second].into_iter().flatten() {
                    let is_nearer =
                        |best: Timestamp| if step < 0 { moment > best } else { moment < best };
                    if counts(moment) && best.is_none_or(|(best, _)| is_nearer(best)) {
                        best = Some((moment, minute));
                    }
                }
            }
            if let Some((moment, _)) = best {
                return Ok(moment);
            }
        }
        Err(jiff::Error::from_args(format_args!("it has no moment within 8 years")))
    }

    fn has(&self, month: i8) -> bool {
        self.months >> month & 1 == 1
    }

    fn is_on(&self, date: Date) -> bool {
        let day = self.days >> date.day() & 1 == 1;
        let weekday = self.weekdays >> date.weekday().to_sunday_zero_offset() & 1 == 1;
        self.has(date.month()) && if self.either_day { day || weekday } else { day && weekday }
    }
}

/// The days that a month has in some year.
fn days_of(month: i8) -> u64 {
    let last = match month {
        2 => 29,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    (1 << (last + 1)) - 2
}

/// The set of a field: lists of numbers, names, ranges and steps.
fn set(
    field: &str,
    name: &str,
    bounds: Range<u32>,
    names: &[&str],
    first: u32,
) -> Result<u64, String> {
    let wrong = || {
        let last = bounds.end - 1;
        format!("{name}: {field:?} has something else than numbers from {} to {last}", bounds.start)
    };
    let number = |text: &str| {
        let named = names.iter().position(|it| it.eq_ignore_ascii_case(text));
        let number = match named {
            Some(place) => Some(place as u32 + first),
            None if text.bytes().all(|it| it.is_ascii_digit()) => text.parse().ok(),
            None => None,
        };
        number.filter(|number| bounds.contains(number)).ok_or_else(wrong)
    };
    let mut set = 0;
    for part in field.split(',') {
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => {
                let step: usize = step.parse().map_err(|_| wrong())?;
                (range, Some(step).filter(|step| *step > 0).ok_or_else(wrong)?)
            }
            None => (part, 1),
        };
        let (from, to) = match range.split_once('-') {
            _ if range == "*" => (bounds.start, bounds.end - 1),
            Some((from, to)) => (number(from)?, number(to)?),
            None if part.contains('/') => (number(range)?, bounds.end - 1),
            None => (number(range)?, number(range)?),
        };
        if from > to {
            return Err(format!("{name}: the range {range:?} runs backwards; write two ranges"));
        }
        for bit in (from..=to).step_by(step) {
            set |= 1 << bit;
        }
    }
    Ok(set)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn around(text: &str, zone: &str, now: &str) -> (String, String) {
        let zone = TimeZone::get(zone).unwrap();
        let found = Cron::parse(text).unwrap().around(now.parse().unwrap(), &zone).unwrap();
        (found.start.to_string(), found.end.to_string())
    }

    fn is_around(text: &str, zone: &str, now: &str, start: &str, end: &str) {
        let found = around(text, zone, now);
        assert_eq!(found, (start.to_owned(), end.to_owned()), "{text} in {zone} at {now}");
    }

    #[test]
    fn moments_are_those_of_the_fields() {
        let now = "2026-11-21T12:34:56Z"; // a Saturday
        for (text, start, end) in [
            ("* * * * *", "2026-11-21T12:34:00Z", "2026-11-21T12:35:00Z"),
            ("*/15 * * * *", "2026-11-21T12:30:00Z", "2026-11-21T12:45:00Z"),
            ("0 3 * * *", "2026-11-21T03:00:00Z", "2026-11-22T03:00:00Z"),
            ("30 22 * * 1-5", "2026-11-20T22:30:00Z", "2026-11-23T22:30:00Z"),
            ("0 0 * * sun", "2026-11-15T00:00:00Z", "2026-11-22T00:00:00Z"),
            ("0 0 * * 7", "2026-11-15T00:00:00Z", "2026-11-22T00:00:00Z"),
            ("0 9,17 * * Mon,Fri", "2026-11-20T17:00:00Z", "2026-11-23T09:00:00Z"),
            ("0 0 1 jan,jul *", "2026-07-01T00:00:00Z", "2027-01-01T00:00:00Z"),
            // One of the two is enough if both are restricted.
            ("0 0 13 * 5", "2026-11-20T00:00:00Z", "2026-11-27T00:00:00Z"),
            ("0 0 29 2 *", "2024-02-29T00:00:00Z", "2028-02-29T00:00:00Z"),
            ("5/20 8-10/2 * * *", "2026-11-21T10:45:00Z", "2026-11-22T08:05:00Z"),
            ("@weekly", "2026-11-15T00:00:00Z", "2026-11-22T00:00:00Z"),
            ("@yearly", "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"),
            ("@annually", "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"),
        ] {
            is_around(text, "UTC", now, start, end);
        }
        is_around(
            "0 0 29 2 *",
            "UTC",
            "2100-03-01T00:00:00Z",
            "2096-02-29T00:00:00Z",
            "2104-02-29T00:00:00Z",
        );
        // A moment begins its own period.
        is_around(
            "0 3 * * *",
            "UTC",
            "2026-11-21T03:00:00Z",
            "2026-11-21T03:00:00Z",
            "2026-11-22T03:00:00Z",
        );
    }

    /// A time that clocks skip comes an hour later, and a fixed one that they show twice counts once.
    #[test]
    fn clocks_that_are_changed_skip_and_repeat_no_moment() {
        let zone = "Europe/Berlin";
        let text = "30 2 * * *";
        is_around(
            text,
            zone,
            "2026-03-29T01:00:00Z",
            "2026-03-28T01:30:00Z",
            "2026-03-29T01:30:00Z",
        );
        is_around(
            text,
            zone,
            "2026-03-29T12:00:00Z",
            "2026-03-29T01:30:00Z",
            "2026-03-30T00:30:00Z",
        );
        is_around(
            text,
            zone,
            "2026-10-25T00:45:00Z",
            "2026-10-25T00:30:00Z",
            "2026-10-26T01:30:00Z",
        );
        is_around(
            text,
            zone,
            "2026-10-25T01:45:00Z",
            "2026-10-25T00:30:00Z",
            "2026-10-26T01:30:00Z",
        );
        // 2:30 comes at 3:30, after 3:00.
        let both = "0,30 2,3 * * *";
        is_around(
            both,
            zone,
            "2026-03-29T01:10:00Z",
            "2026-03-29T01:00:00Z",
            "2026-03-29T01:30:00Z",
        );
    }

    /// Minutes, quarters and hours go on at both changes of the clock, by the time that passes.
    #[test]
    fn h541_fields_with_a_star_pause_for_no_repeated_hour() {
        let zone = TimeZone::get("Europe/Berlin").unwrap();
        let minutes = |text: &str, from: &str, to: &str| {
            let (cron, to) = (Cron::parse(text).unwrap(), to.parse::<Timestamp>().unwrap());
            let mut now: Timestamp = from.parse().unwrap();
            let mut lengths = Vec::new();
            while now < to {
                let found = cron.around(now, &zone).unwrap();
                assert_eq!(found.start, now, "{text}");
                lengths.push((found.end - found.start).get_seconds() / 60);
                now = found.end;
            }
            lengths
        };
        // From 1:00 to 4:00 by the clock.
        let spring = ["2026-03-29T00:00:00Z", "2026-03-29T02:00:00Z"];
        let autumn = ["2026-10-24T23:00:00Z", "2026-10-25T03:00:00Z"];
        for (text, in_spring, in_autumn) in [
            ("* * * * *", vec![1; 120], vec![1; 240]),
            ("*/15 * * * *", vec![15; 8], vec![15; 16]),
            ("@hourly", vec![60; 2], vec![60; 4]),
            ("0 1-3 * * *", vec![60, 22 * 60], vec![60, 120, 22 * 60]),
            (
                "0,30 1-3 * * *",
                vec![30, 30, 30, 21 * 60 + 30],
                vec![30, 30, 30, 90, 30, 21 * 60 + 30],
            ),
        ] {
            assert_eq!(minutes(text, spring[0], spring[1]), in_spring, "{text}");
            assert_eq!(minutes(text, autumn[0], autumn[1]), in_autumn, "{text}");
        }
        // A star in the minutes alone: each pass of the hour that is asked for.
        let second = "2026-10-25T01:15:00Z";
        is_around("*/15 2 * * *", "Europe/Berlin", second, second, "2026-10-25T01:30:00Z");
    }

    #[test]
    fn periods_follow_each_other_without_a_gap() {
        for zone in ["UTC", "Europe/Berlin", "America/Santiago", "Australia/Lord_Howe"] {
            let zone = TimeZone::get(zone).unwrap();
            for text in [
                "* * * * *",
                "*/7 * * * *",
                "*/9 2 * * *",
                "0 3 * * *",
                "15 0,2,23 * * 0",
                "0 0 31 * *",
            ] {
                let cron = Cron::parse(text).unwrap();
                // Before changes in Berlin, on Lord Howe Island, in Santiago and in Berlin.
                for from in ["03-29T00:00", "04-04T14:00", "04-05T02:00", "10-24T23:00"] {
                    let from: Timestamp = format!("2026-{from}:00Z").parse().unwrap();
                    let (mut now, mut rounds) = (from, 0);
                    while rounds < 60 || now < from + 3.hours() {
                        rounds += 1;
                        let found = cron.around(now, &zone).unwrap();
                        assert!(found.contains(&now), "{text}: {found:?} at {now}");
                        let last = cron.around(found.end - 1.nanosecond(), &zone).unwrap();
                        assert_eq!(last, found, "{text} at {now}");
                        let next = cron.around(found.end, &zone).unwrap();
                        assert_eq!(next.start, found.end, "{text} at {now}");
                        now = found.end;
                    }
                }
            }
        }
    }

    #[test]
    fn a_field_that_is_wrong_is_named() {
        for (text, field) in [
            ("60 * * * *", "minute: "),
            ("* 24 * * *", "hour: "),
            ("* * 0 * *", "day: "),
            ("* * * 13 *", "month: "),
            ("* * * * 8", "weekday: "),
            ("* * * * someday", "weekday: "),
            ("5-1 * * * *", "minute: "),
            ("*/0 * * * *", "minute: "),
            ("1,,2 * * * *", "minute: "),
            ("+1 * * * *", "minute: "),
            ("0 0 30 2 *", "no month has a day 30"),
            ("0 0 31 4,6 *", "no month has a day 31"),
            ("@reboot", "\"@reboot\" is none of"),
        ] {
            let error = Cron::parse(text).unwrap_err();
            assert!(error.starts_with(field), "{text}: {error}");
        }
        assert!(Cron::parse("0 0 30 2 1").is_ok(), "Mondays in February");
    }
}
