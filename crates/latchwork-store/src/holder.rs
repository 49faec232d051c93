//! The description of a claim for people and other clients, and its stored text.

use std::borrow::Cow;
use std::fmt::{self, Write};
use std::sync::Arc;
use std::time::Duration;

/// The description of a claim for people and other clients.
///
/// A store keeps all of it as the text of [`stored`](Holder::stored), and reads it with
/// [`from_stored`](Holder::from_stored).
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The text for people: host, process, purpose.
    pub text: Arc<str>,
    /// The time within which nearly all holds of the key end, if the client has measured it.
    pub usual_hold: Option<Duration>,
    /// The candidate's description in an election, usually an address.
    pub candidate: Option<Arc<str>>,
    /// How long the key stays closed after a hold that ends without a release. The claim's ttl
    /// includes it. A store that learns of the death of a holder before its ttl ends keeps the
    /// claim to its end.
    pub lock_delay: Option<Duration>,
    /// The time at which the claim was released with [`Linger::For`](crate::Linger::For): time
    /// since 1970, in whole milliseconds once it is stored. `None` before that, and for a key that
    /// was closed by a version without this field.
    ///
    /// It is for people, and no store decides by it. The wall clock is that of the host that released: no server has
    /// checked it, a wrong clock gives a wrong time, and a host whose clock is behind can read a time of its future.
    /// A release that is repeated keeps the time of the first.
    pub closed_at: Option<Duration>,
    /// How often the hold was detached to be adopted by another process; it is part of the stored text alone. A store
    /// that can refuses the renewal of a claim that says less than it keeps: it is of a process that had the hold
    /// before.
    pub detached: u32,
    /// What a service that holds locks for others says of the claim, to find it again: its own text, without meaning to
    /// others.
    pub origin: Option<Arc<str>>,
    /// What the holder says to readers of the lock, as JSON.
    pub value: Option<Arc<str>>,
}

/// Separates the fields in the stored text. ASCII has this character for it, and none is in the
/// fields.
const UNIT: char = '\u{1f}';
const USUAL_HOLD: &str = "usual_hold_ms=";
const CANDIDATE: &str = "candidate=";
const LOCK_DELAY: &str = "lock_delay_ms=";
const CLOSED_AT: &str = "closed_at_ms=";
const DETACHED: &str = "detached=";
const ORIGIN: &str = "origin=";
const VALUE: &str = "value=";

impl Holder {
    /// Creates a description that is only this text.
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self {
            text: text.into(),
            usual_hold: None,
            candidate: None,
            lock_delay: None,
            closed_at: None,
            detached: 0,
            origin: None,
            value: None,
        }
    }

    /// Returns the description with this change applied.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Returns the difference between the store's ttl and the ttl that the holder relies on: the
    /// lock delay, and a hundredth of it for a store whose clock runs fast. At most
    /// [`Duration::MAX`].
    pub fn room_for_delay(&self) -> Duration {
        self.lock_delay.map_or(Duration::ZERO, |delay| delay.saturating_add(delay / 100))
    }

    /// Returns the text for people, after the candidate if there is one: `10.0.0.7:8080 (app@web-2,
    /// pid 812)`.
    pub fn shown(&self) -> Arc<str> {
        match &self.candidate {
            Some(candidate) => format!("{candidate} ({})", self.text).into(),
            None => self.text.clone(),
        }
    }

    /// Returns all fields as one text; without other fields it is [`text`](Self::text).
    ///
    /// A unit separator (U+001F) within a text becomes a space. The usual hold and the
    /// lock delay are kept in whole milliseconds, at least one; the time of the release in milliseconds since
    /// 1970.
    pub fn stored(&self) -> Cow<'_, str> {
        let is_plain = self.usual_hold.is_none() && self.candidate.is_none();
        let is_plain = is_plain && self.lock_delay.is_none() && self.closed_at.is_none();
        let is_plain = is_plain && self.detached == 0;
        let is_plain = is_plain && self.origin.is_none() && self.value.is_none();
        if is_plain && !self.text.contains(UNIT) {
            return Cow::Borrowed(&self.text);
        }
        let mut stored = self.text.replace(UNIT, " ");
        if let Some(usual) = self.usual_hold {
            // Writing to a String does not fail.
            let _ = write!(stored, "{UNIT}{USUAL_HOLD}{}", usual.as_millis().max(1));
        }
        if let Some(candidate) = &self.candidate {
            let _ = write!(stored, "{UNIT}{CANDIDATE}{}", candidate.replace(UNIT, " "));
        }
        if let Some(delay) = self.lock_delay {
            let _ = write!(stored, "{UNIT}{LOCK_DELAY}{}", delay.as_millis().max(1));
        }
        if let Some(at) = self.closed_at {
            let _ = write!(stored, "{UNIT}{CLOSED_AT}{}", at.as_millis());
        }
        if self.detached > 0 {
            let _ = write!(stored, "{UNIT}{DETACHED}{}", self.detached);
        }
        for (name, text) in [(ORIGIN, &self.origin), (VALUE, &self.value)] {
            if let Some(text) = text {
                let _ = write!(stored, "{UNIT}{name}{}", text.replace(UNIT, " "));
            }
        }
        Cow::Owned(stored)
    }

    /// Parses a stored text. Unknown fields are skipped.
    pub fn from_stored(stored: &str) -> Self {
        let mut fields = stored.split(UNIT);
        let mut holder = Self::new(fields.next().unwrap_or_default());
        for field in fields {
            if let Some(millis) = field.strip_prefix(USUAL_HOLD) {
                holder.usual_hold = millis.parse().ok().map(Duration::from_millis);
            } else if let Some(candidate) = field.strip_prefix(CANDIDATE) {
                holder.candidate = Some(candidate.into());
            } else if let Some(millis) = field.strip_prefix(LOCK_DELAY) {
                holder.lock_delay = millis.parse().ok().map(Duration::from_millis);
            } else if let Some(millis) = field.strip_prefix(CLOSED_AT) {
                holder.closed_at = millis.parse().ok().map(Duration::from_millis);
            } else if let Some(times) = field.strip_prefix(DETACHED) {
                holder.detached = times.parse().unwrap_or_default();
            } else if let Some(origin) = field.strip_prefix(ORIGIN) {
                holder.origin = Some(origin.into());
            } else if let Some(value) = field.strip_prefix(VALUE) {
                holder.value = Some(value.into());
            }
        }
        holder
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown())
    }
}

impl<T: Into<Arc<str>>> From<T> for Holder {
    fn from(text: T) -> Self {
        Self::new(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_is_read_as_it_was_stored() {
        let plain = Holder::new("app@web-2 (pid 812)");
        assert!(matches!(plain.stored(), Cow::Borrowed("app@web-2 (pid 812)")));
        for usual_hold in [None, Some(Duration::from_millis(1_300))] {
            for candidate in [None, Some(Arc::from("10.0.0.7:8080")), Some("".into())] {
                for lock_delay in [None, Some(Duration::from_secs(15))] {
                    for closed_at in [None, Some(Duration::from_millis(1_790_000_000_123))] {
                        let holder = plain.clone().with(|it| {
                            it.usual_hold = usual_hold;
                            it.candidate.clone_from(&candidate);
                            it.lock_delay = lock_delay;
                            it.closed_at = closed_at;
                            it.detached = u32::from(closed_at.is_none()) * 3;
                            it.origin = closed_at.map(|_| "7.web".into());
                            it.value = lock_delay.map(|_| r#"{"a": 1}"#.into());
                        });
                        assert_eq!(Holder::from_stored(&holder.stored()), holder);
                    }
                }
            }
        }
    }

    #[test]
    fn the_room_for_a_delay_does_not_overflow() {
        for (delay, room) in [
            (None, Duration::ZERO),
            (Some(Duration::from_secs(100)), Duration::from_secs(101)),
            (Some(Duration::MAX), Duration::MAX),
        ] {
            let holder = Holder::new("me").with(|it| it.lock_delay = delay);
            assert_eq!(holder.room_for_delay(), room);
        }
        // What another client has stored.
        let stored = format!("me\u{1f}lock_delay_ms={}", u64::MAX);
        let room = Holder::from_stored(&stored).room_for_delay();
        assert!(room > Duration::from_millis(u64::MAX), "{room:?}");
    }

    #[test]
    fn no_holder_text_is_parsed_as_a_field() {
        let text = "me\u{1f}usual_hold_ms=5\u{1f}candidate=you";
        let read = Holder::from_stored(&Holder::new(text).stored());
        assert_eq!(read, Holder::new("me usual_hold_ms=5 candidate=you"));
        let candidate = Holder::new("me").with(|it| it.candidate = Some(text.into()));
        let read = Holder::from_stored(&candidate.stored());
        assert_eq!((&*read.text, read.usual_hold), ("me", None));
        assert_eq!(read.candidate.as_deref(), Some("me usual_hold_ms=5 candidate=you"));
    }

    #[test]
    fn unreadable_fields_are_skipped() {
        let read = Holder::from_stored("me\u{1f}usual_hold_ms=-1\u{1f}later=thing\u{1f}");
        assert_eq!(read, Holder::new("me"));
        let short = Holder::new("me").with(|it| it.usual_hold = Some(Duration::from_micros(1)));
        let read = Holder::from_stored(&short.stored());
        assert_eq!(read.usual_hold, Some(Duration::from_millis(1)));
    }
}
