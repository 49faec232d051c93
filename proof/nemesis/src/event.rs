//! One line of a history: what happened, to whom, when.

use std::sync::Arc;
use std::time::Duration;

use latchwork_store::{Mode, Moment};

use crate::fields::{Fields, escape};

/// Something that happened in a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// When, on the boot clock, which all processes of the machine share.
    pub at: Moment,
    /// Who says so: `w2.0` is worker 2 in its first life, `resource` and `run` are what they say.
    pub process: Arc<str>,
    /// The task of the process, where it is one's own doing.
    pub task: Option<u32>,
    /// What happened.
    pub what: What,
}

/// How a holder gave up its hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// By a release that it waited for.
    Release,
    /// By dropping the guard.
    Drop,
}

impl How {
    fn word(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Drop => "drop",
        }
    }
}

/// What a release answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The hold was ended.
    Yes,
    /// It had ended before.
    NotHeld,
    /// The store did not answer.
    Failed,
}

impl Answer {
    const ALL: [Self; 3] = [Self::Yes, Self::NotHeld, Self::Failed];

    fn word(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::NotHeld => "not_held",
            Self::Failed => "failed",
        }
    }
}

/// A value in a line.
trait Field: Sized {
    /// `None` leaves it out.
    fn text(&self) -> Option<String>;
    fn read(text: Option<&str>) -> Option<Self>;
}

impl Field for Arc<str> {
    fn text(&self) -> Option<String> {
        Some(self.to_string())
    }

    fn read(text: Option<&str>) -> Option<Self> {
        text.map(Into::into)
    }
}

/// Fields by what makes a value that can be written, and back.
macro_rules! fields {
    ($($kind:ty, $this:ident => $to:expr, $from:expr;)*) => {$(
        impl Field for $kind {
            fn text(&self) -> Option<String> {
                let $this = *self;
                Some($to.to_string())
            }

            fn read(text: Option<&str>) -> Option<Self> {
                let from: fn(&str) -> Option<Self> = $from;
                from(text?)
            }
        }
    )*};
}

fields! {
    u32, it => it, |text| text.parse().ok();
    u64, it => it, |text| text.parse().ok();
    bool, it => it, |text| text.parse().ok();
    Duration, it => it.as_nanos(), |text| text.parse().ok().map(Duration::from_nanos);
    Moment, it => it.as_nanos(), |text| text.parse().ok().map(Moment::from_nanos);
    Mode, it => mode_text(it), parse_mode;
    How, it => it.word(), |text| [How::Release, How::Drop].into_iter().find(|it| it.word() == text);
    Answer, it => it.word(), |text| Answer::ALL.into_iter().find(|it| it.word() == text);
}

impl Field for Option<u64> {
    fn text(&self) -> Option<String> {
        self.map(|it| it.to_string())
    }

    fn read(text: Option<&str>) -> Option<Self> {
        text.map_or(Some(None), |text| text.parse().ok().map(Some))
    }
}

/// The events by their words, with their fields.
macro_rules! events {
    ($($(#[$doc:meta])* $word:literal $name:ident { $($field:ident: $kind:ty),* $(,)? },)*) => {
        /// What happened. `attempt` is a number that its process uses once.
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[expect(missing_docs, reason = "the fields are words of the glossary")]
        pub enum What {
            $($(#[$doc])* $name { $($field: $kind),* },)*
        }

        impl What {
            fn word(&self) -> &'static str {
                match self {
                    $(Self::$name { .. } => $word,)*
                }
            }

            fn fields(&self) -> Vec<(&'static str, Option<String>)> {
                match self {
                    $(Self::$name { $($field),* } => vec![$((stringify!($field), $field.text())),*],)*
                }
            }

            fn read(fields: &Fields<'_>) -> Result<Self, String> {
                Ok(match fields.event {
                    $($word => Self::$name {
                        $($field: fields.value(stringify!($field), Field::read)?),*
                    },)*
                    other => return Err(format!("the event {other:?} is unknown")),
                })
            }
        }
    };
}

events! {
    /// A worker process begins.
    "started" Started { pid: u32, seed: u64 },
    /// A worker process has nothing more to do.
    "ended" Ended {},
    /// The process stood still for this long until now, as its witness thread saw.
    "stalled" Stalled { length: Duration },
    /// A thread of a server was kept waiting for a processor for this long until now.
    "starved" Starved { length: Duration },
    /// The line of the process on a key was blocked at the store and waits there.
    "waiting" Waiting { key: Arc<str> },
    /// Latchwork told the observer of something that a calm run has no reason for.
    "alarm" Alarm { key: Arc<str>, kind: Arc<str> },

    /// An acquire is about to begin. `waits` is false for a single try; `several` is true if other
    /// keys are acquired with this one, all or none; `beside` is the attempt whose hold it replaces.
    "try" Try {
        attempt: u64,
        key: Arc<str>,
        mode: Mode,
        fair: bool,
        waits: bool,
        several: bool,
        beside: Option<u64>,
    },
    /// The attempt was blocked at the store and has its own place there. Fair attempts only.
    "blocked" Blocked { attempt: u64 },
    /// The attempt ended without a hold: `timed_out`, `busy`, `cancelled`, or `failed`.
    "gave_up" GaveUp { attempt: u64, why: Arc<str> },
    /// The acquire has returned. Stamped after it returned.
    "granted" Granted { attempt: u64, token: u64, ttl: Duration, valid_until: Moment },
    /// `ensure_held` answered yes. Stamped before it was asked; `valid_until` was read after.
    "held" Held { attempt: u64, valid_until: Moment },
    /// `ensure_held` answered that the hold is in doubt.
    "suspect" Suspect { attempt: u64 },
    /// The holder noticed that its validity has moved on.
    "renewed" Renewed { attempt: u64, valid_until: Moment },
    /// The holder was told that the hold is lost. `since` is when, by Latchwork's own word.
    "lost" Lost { attempt: u64, since: Moment, reason: Arc<str> },
    /// The holder is about to give up the hold. Stamped before anything is sent.
    "releasing" Releasing { attempt: u64, how: How },
    /// The release has answered.
    "released" Released { attempt: u64, answer: Answer },
    /// The resource has answered a write.
    "wrote" Wrote { attempt: u64, token: u64, accepted: bool },

    /// The resource judged a write: its own order, its own clock.
    "judged" Judged { order: u64, key: Arc<str>, by: Arc<str>, attempt: u64, token: u64, accepted: bool },

    /// A worker is about to be killed.
    "killed" Killed { whom: Arc<str> },
    /// A worker is about to be stopped.
    "stopped" Stopped { whom: Arc<str> },
    /// A stopped worker has been told to go on.
    "continued" Continued { whom: Arc<str> },
    /// A fault of the store or the network is about to begin.
    "struck" Struck { fault: Arc<str> },
    /// It has been mended.
    "healed" Healed { fault: Arc<str> },
    /// A claim with this number was taken away by force: asked for then, answered now.
    "evicted" Evicted { key: Arc<str>, grant: u64, asked: Moment },
    /// The store was asked then, and said now that it keeps the claim with this number for so long.
    "kept" Kept { key: Arc<str>, grant: u64, asked: Moment, remaining: Duration },
    /// The store was looked through after everything had ended and a ttl had passed.
    "inspected" Inspected { entries: u64 },
    /// That look found something that should be gone.
    "ghost" Ghost { name: Arc<str>, what: Arc<str> },
}

impl Event {
    /// The event as one line, with its line end.
    pub fn to_line(&self) -> String {
        let task = self.task.map_or_else(|| "-".to_owned(), |task| task.to_string());
        let mut line = self.at.as_nanos().to_string();
        line += &format!(" {} {task} {}", escape(&self.process), self.what.word());
        for (name, value) in self.what.fields() {
            if let Some(value) = value {
                line += &format!(" {name}={}", escape(&value));
            }
        }
        line + "\n"
    }

    /// Reads what [`to_line`](Self::to_line) writes.
    ///
    /// # Errors
    ///
    /// What is wrong with the line.
    pub fn parse(line: &str) -> Result<Self, String> {
        let fields = Fields::read(line)?;
        let what = What::read(&fields)?;
        Ok(Self { at: fields.at, process: fields.process, task: fields.task, what })
    }
}

fn mode_text(mode: Mode) -> String {
    match mode {
        Mode::Permits { take, of } => format!("{}:{take}/{of}", mode.word()),
        _ => mode.word().into(),
    }
}

fn parse_mode(text: &str) -> Option<Mode> {
    let plain = [Mode::Exclusive, Mode::Read, Mode::Write].into_iter().find(|it| it.word() == text);
    plain.or_else(|| {
        let (take, of) = text.strip_prefix("permits:")?.split_once('/')?;
        Some(Mode::Permits { take: take.parse().ok()?, of: of.parse().ok()? })
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn event(what: What) -> Event {
        Event { at: Moment::from_nanos(7), process: "w0.0".into(), task: Some(3), what }
    }

    #[test]
    fn every_event_is_read_as_it_was_written() {
        let (key, at): (Arc<str>, _) = ("hot 0%=\n".into(), Moment::from_nanos(u64::MAX - 1));
        let events = [
            What::Started { pid: 4, seed: u64::MAX },
            What::Ended {},
            What::Stalled { length: Duration::from_millis(3) },
            What::Starved { length: Duration::from_millis(4) },
            What::Waiting { key: key.clone() },
            What::Alarm { key: key.clone(), kind: "renew_failed".into() },
            What::Try {
                attempt: 1,
                key: key.clone(),
                mode: Mode::Permits { take: 2, of: 5 },
                fair: true,
                waits: false,
                several: true,
                beside: Some(7),
            },
            What::Blocked { attempt: 1 },
            What::GaveUp { attempt: 1, why: "busy".into() },
            What::Granted {
                attempt: 1,
                token: 1 << 62,
                ttl: Duration::from_secs(1),
                valid_until: at,
            },
            What::Held { attempt: 1, valid_until: at },
            What::Suspect { attempt: 1 },
            What::Renewed { attempt: 1, valid_until: at },
            What::Lost { attempt: 1, since: at, reason: "expired".into() },
            What::Releasing { attempt: 1, how: How::Drop },
            What::Released { attempt: 1, answer: Answer::NotHeld },
            What::Wrote { attempt: 1, token: 9, accepted: false },
            What::Judged {
                order: 8,
                key: key.clone(),
                by: "w1.0".into(),
                attempt: 1,
                token: 9,
                accepted: true,
            },
            What::Killed { whom: "w1.0".into() },
            What::Stopped { whom: "w1.0".into() },
            What::Continued { whom: "w1.0".into() },
            What::Struck { fault: "cut the link".into() },
            What::Healed { fault: "cut the link".into() },
            What::Evicted { key: key.clone(), grant: 3, asked: at },
            What::Kept {
                key: key.clone(),
                grant: 3,
                asked: at,
                remaining: Duration::from_nanos(5),
            },
            What::Inspected { entries: 0 },
            What::Ghost { name: key, what: "holder".into() },
        ];
        for what in events {
            let event = event(what);
            let line = event.to_line();
            assert_eq!(line.matches('\n').count(), 1, "{line:?}");
            assert_eq!(Event::parse(line.trim_end()), Ok(event));
        }
    }

    #[test]
    fn an_incomplete_line_is_refused() {
        for line in ["", "7", "7 w0.0 -", "7 w0.0 - granted attempt=1", "x w0.0 - ended"] {
            assert!(Event::parse(line).is_err(), "{line:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn any_name_survives(name in ".*") {
            let event = event(What::Waiting { key: name.into() });
            let line = event.to_line();
            prop_assert_eq!(line.matches('\n').count(), 1);
            prop_assert_eq!(Event::parse(line.trim_end_matches('\n')), Ok(event));
        }
    }
}
