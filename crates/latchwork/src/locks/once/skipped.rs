//! Why a task was not begun.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::length::shown;
use latchwork_store::{Blocked, Cause, Holder, Snapshot};

/// Why there is nothing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum Skipped {
    /// It was done in this period.
    #[non_exhaustive]
    Done {
        /// How long the period stays closed, if the store knows.
        #[cfg_attr(
            feature = "serde",
            serde(rename = "closed_for_ms", default, with = "crate::forms::millis")
        )]
        closed_for: Option<Duration>,
        /// The holder that did it, if the store knows.
        by: Option<Arc<str>>,
        /// When that holder closed the period: time since 1970 by the wall clock of its host, which may differ from
        /// ours (see [`Holder::closed_at`]). `None` if the store does not know.
        #[cfg_attr(
            feature = "serde",
            serde(rename = "at_ms", default, with = "crate::forms::millis")
        )]
        at: Option<Duration>,
    },
    /// Another host or task is running it.
    Running {
        /// The holder that runs it, if the store knows.
        holder: Option<Arc<str>>,
    },
    /// The store lost data and grants no locks until its quarantine ends: try again later.
    Quarantine {
        /// The remaining time of the quarantine, if the store knows.
        #[cfg_attr(
            feature = "serde",
            serde(rename = "left_ms", default, with = "crate::forms::millis")
        )]
        left: Option<Duration>,
    },
}

impl Skipped {
    /// By what the store said; nothing if somebody of this process is at it.
    pub(super) fn because(blocked: Option<Blocked>) -> Self {
        match blocked {
            Some(Blocked { cause: Cause::Linger, retry_after, holder, .. }) => {
                let (by, at) = details(holder);
                Self::Done { closed_for: retry_after, by, at }
            }
            Some(Blocked { cause: Cause::Quarantine, retry_after, .. }) => {
                Self::Quarantine { left: retry_after }
            }
            Some(blocked) => Self::Running { holder: blocked.holder.map(|holder| holder.shown()) },
            None => Self::Running { holder: None },
        }
    }

    /// The same with what a look at the key has found, if that knows more.
    pub(super) fn learn(self, seen: Option<Snapshot>) -> Self {
        match (self, seen) {
            (Self::Done { closed_for, by: None, at: None }, Some(seen)) => {
                let (by, at) = details(seen.closed_by);
                Self::Done { closed_for: closed_for.or(seen.linger), by, at }
            }
            (why, _) => why,
        }
    }
}

/// The name of a holder that closed a key, and when it did.
fn details(holder: Option<Holder>) -> (Option<Arc<str>>, Option<Duration>) {
    let Some(holder) = holder else { return (None, None) };
    (Some(holder.shown()).filter(|text| !text.is_empty()), holder.closed_at)
}

/// A time since 1970 as people write it, in UTC and to the second. `None` for a time that no calendar has.
fn moment(at: Duration) -> Option<jiff::Timestamp> {
    let whole = Duration::from_secs(at.as_secs());
    jiff::Timestamp::from_duration(whole.try_into().ok()?).ok()
}

/// For people; to read it in a program, match on it.
impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done { closed_for, by, at } => {
                match by {
                    Some(by) => write!(f, "done by {by}")?,
                    None => f.write_str("done in this period")?,
                }
                if let Some(at) = at.and_then(moment) {
                    write!(f, " at {at}")?;
                }
                match closed_for {
                    Some(left) => write!(f, ", closed for another {}", shown(*left)),
                    None => Ok(()),
                }
            }
            Self::Running { holder: Some(holder) } => write!(f, "being done by {holder}"),
            Self::Running { holder: None } => f.write_str("being done"),
            Self::Quarantine { left } => {
                f.write_str("the store may have lost locks and is in quarantine")?;
                match left {
                    Some(left) => write!(f, " for another {}", shown(*left)),
                    None => Ok(()),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_read_when_it_was_done_and_until_when() {
        let at = Some(Duration::from_millis(1_795_732_347_524));
        let done = |by: Option<&str>, at, closed_for| {
            Skipped::Done { by: by.map(Arc::from), at, closed_for }.to_string()
        };
        let left = Some(Duration::from_secs(1_653));
        assert_eq!(
            done(Some("web-2"), at, left),
            "done by web-2 at 2026-11-26T22:32:27Z, closed for another 27m 33s"
        );
        assert_eq!(done(None, None, None), "done in this period");
        assert_eq!(done(None, Some(Duration::MAX), None), "done in this period");
        let paused = Skipped::Quarantine { left };
        assert!(paused.to_string().ends_with("in quarantine for another 27m 33s"), "{paused}");
    }
}
