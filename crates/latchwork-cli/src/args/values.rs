//! The values of options: durations, permits, exit codes.

use std::time::Duration;

use clap::ValueEnum;
use latchwork::Resize;
use rustix::process::{Pid, Signal};

use crate::keeper::hold_id::HoldId;
use crate::process::deadlines::MIN_TTL;

/// `--on-loss TERM`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLoss {
    /// SIGTERM, which a shell script can trap
    Term,
    /// SIGHUP
    Hup,
    /// SIGINT
    Int,
    /// SIGUSR1
    Usr1,
    /// SIGKILL
    Kill,
    /// No signal
    None,
}

impl OnLoss {
    /// The signal, if there is one.
    pub(crate) fn signal(self) -> Option<Signal> {
        Some(match self {
            Self::Term => Signal::TERM,
            Self::Hup => Signal::HUP,
            Self::Int => Signal::INT,
            Self::Usr1 => Signal::USR1,
            Self::Kill => Signal::KILL,
            Self::None => return None,
        })
    }
}

/// `--resize to-mine`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ResizePolicy {
    /// Exit with 78
    Never,
    /// Go by the own OF, which becomes that of the lock
    ToMine,
    /// Go by the OF that the lock has
    Follow,
}

impl From<ResizePolicy> for Resize {
    fn from(policy: ResizePolicy) -> Self {
        match policy {
            ResizePolicy::Never => Self::Never,
            ResizePolicy::ToMine => Self::ToMine,
            ResizePolicy::Follow => Self::Follow,
        }
    }
}

/// What marks a name that begins with a dash: no argument of a process has this character.
pub(super) const NO_OPTION: char = '\0';

/// Reads a name, without its mark.
pub(super) fn name(text: &str) -> Result<String, String> {
    Ok(text.strip_prefix(NO_OPTION).unwrap_or(text).to_owned())
}

/// Reads the number of a process.
pub(super) fn pid(text: &str) -> Result<Pid, String> {
    let number = text.parse().ok().filter(|&number: &i32| number > 0);
    number.and_then(Pid::from_raw).ok_or_else(|| "write the number of a process, such as $$".into())
}

/// Reads an exit code.
pub(super) fn exit_code(text: &str) -> Result<u8, String> {
    text.parse().map_err(|_| "write a number from 0 to 255".into())
}

/// Reads a token.
pub(crate) fn token(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "write a token as a number, such as LATCHWORK_TOKEN has it".into())
}

/// Reads the id of a hold.
pub(super) fn hold_id(text: &str) -> Result<HoldId, String> {
    HoldId::read(text).ok_or_else(|| "write what `latchwork hold` printed".into())
}

/// `--permits 2/5`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Permits {
    pub(crate) take: u32,
    pub(crate) of: u32,
}

/// Reads `2/5`.
pub(super) fn permits(text: &str) -> Result<Permits, String> {
    let parts =
        text.split_once('/').and_then(|(take, of)| Some((take.parse().ok()?, of.parse().ok()?)));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    match parts {
        None if text.split_once('/').is_some_and(|(take, of)| is_number(take) && is_number(of)) => {
            Err(format!("out of range; at most {} permits", u32::MAX))
        }
        Some((take, of)) if (1..=of).contains(&take) => Ok(Permits { take, of }),
        Some(_) => Err("take at least 1 permit, and at most all of them".into()),
        None => Err("write the permits to take and the permits there are, such as 2/5".into()),
    }
}

/// Reads the number of permits that there are.
pub(super) fn limit(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(of @ 1..) => Ok(of),
        _ => Err(format!("write how many permits there are, from 1 to {}", u32::MAX)),
    }
}

/// What is said of a length of time that has no room in a number.
const TOO_LONG: &str = "too long; write a shorter time, such as 30d";

/// Reads `5s`, `500ms`, `1h30m`, and seconds without a unit: `5`, `0.5`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let is_plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    if is_plain && let Ok(seconds) = text.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).map_err(|_| TOO_LONG.to_owned());
    }
    humantime::parse_duration(text).map_err(|error| match error {
        humantime::DurationError::NumberOverflow => TOO_LONG.to_owned(),
        _ => "not a length of time; write 5 (seconds), 500ms, 5s or 1h30m".to_owned(),
    })
}

/// A duration that leaves a command time to end.
pub(crate) fn ttl(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        short if short < MIN_TTL => Err(format!(
            "a command needs at least {} to be ended in time",
            humantime::format_duration(MIN_TTL)
        )),
        enough => Ok(enough),
    }
}

/// An interval at which something is printed again.
pub(super) fn interval(text: &str) -> Result<Duration, String> {
    const SHORTEST: Duration = Duration::from_millis(100);
    match duration(text)? {
        short if short < SHORTEST => Err("at least 100ms, to spare the store".into()),
        enough => Ok(enough),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, millis) in [
            ("0", 0),
            ("0s", 0),
            ("5", 5_000),
            ("0.25", 250),
            ("500ms", 500),
            ("5s", 5_000),
            ("2m", 120_000),
            ("1h30m", 5_400_000),
            ("1d", 86_400_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "-1s", "-5", "1.5.s", "1.2.3", ".", "1e3", "inf", "soon"] {
            assert!(duration(text).is_err(), "{text:?}");
        }
        assert!(duration(&"9".repeat(40)).is_err());
        assert!(ttl("999ms").is_err());
        assert_eq!(ttl("1s"), Ok(MIN_TTL));
        assert_eq!(ttl("1"), Ok(MIN_TTL));
        assert!(interval("10ms").is_err());
    }

    #[test]
    fn processes_are_numbers_above_zero() {
        assert_eq!(pid("12").map(Pid::as_raw_nonzero).map(i32::from), Ok(12));
        for text in ["", "0", "-1", "$$", "99999999999"] {
            assert!(pid(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn permits_are_at_least_one_and_at_most_all() {
        assert!(permits("2/5").is_ok_and(|permits| permits == Permits { take: 2, of: 5 }));
        for text in ["", "2", "0/5", "6/5", "2/0", "-1/5", "a/b", "2/5/7"] {
            assert!(permits(text).is_err(), "{text:?}");
        }
    }
}
