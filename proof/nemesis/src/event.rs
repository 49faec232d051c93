//! One line of a history: what happened, to whom, when.

use std::fmt::Write;
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

/// What happened. `attempt` is a number that its process uses once.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are words of the glossary")]
pub enum What {
    /// A worker process begins.
    Started { pid: u32, seed: u64 },
    /// A worker process has nothing more to do.
    Ended,
    /// The process stood still for this long until now, as its witness thread saw.
    Stalled { length: Duration },
    /// A thread of a server was kept waiting for a processor for this long until now.
    Starved { length: Duration },
    /// The line of the process on a key was blocked at the store and waits there.
    Waiting { key: Arc<str> },
    /// Latchwork told the observer of something that a calm run has no reason for.
    Alarm { key: Arc<str>, kind: Arc<str> },

    /// An acquire is about to begin. `waits` is false for a single try; `several` is true if other
    /// keys are acquired with this one, all or none; `beside` is the attempt whose hold it replaces.
    Try {
        attempt: u64,
        key: Arc<str>,
        mode: Mode,
        fair: bool,
        waits: bool,
        several: bool,
        beside: Option<u64>,
    },
    /// The attempt was blocked at the store and has its own place there. Fair attempts only.
    Blocked { attempt: u64 },
    /// The attempt ended without a hold: `timed_out`, `busy`, `cancelled`, or `failed`.
    GaveUp { attempt: u64, why: Arc<str> },
    /// The acquire has returned. Stamped after it returned.
    Granted { attempt: u64, token: u64, ttl: Duration, valid_until: Moment },
    /// `ensure_held` answered yes. Stamped before it was asked; `valid_until` was read after.
    Held { attempt: u64, valid_until: Moment },
    /// `ensure_held` answered that the hold is in doubt.
    Suspect { attempt: u64 },
    /// The holder noticed that its validity has moved on.
    Renewed { attempt: u64, valid_until: Moment },
    /// The holder was told that the hold is lost. `since` is when, by Latchwork's own word.
    Lost { attempt: u64, since: Moment, reason: Arc<str> },
    /// The holder is about to give up the hold. Stamped before anything is sent.
    Releasing { attempt: u64, how: How },
    /// The release has answered.
    Released { attempt: u64, answer: Answer },
    /// The resource has answered a write.
    Wrote { attempt: u64, token: u64, accepted: bool },

    /// The resource judged a write: its own order, its own clock.
    Judged { order: u64, key: Arc<str>, by: Arc<str>, attempt: u64, token: u64, accepted: bool },

    /// A worker is about to be killed.
    Killed { whom: Arc<str> },
    /// A worker is about to be stopped.
    Stopped { whom: Arc<str> },
    /// A stopped worker has been told to go on.
    Continued { whom: Arc<str> },
    /// A fault of the store or the network is about to begin.
    Struck { fault: Arc<str> },
    /// It has been mended.
    Healed { fault: Arc<str> },
    /// A claim with this number was taken away by force: asked for then, answered now.
    Evicted { key: Arc<str>, grant: u64, asked: Moment },
    /// The store was asked then, and said now that it keeps the claim with this number for so long.
    Kept { key: Arc<str>, grant: u64, asked: Moment, remaining: Duration },
    /// The store was looked through after everything had ended and a ttl had passed.
    Inspected { entries: u64 },
    /// That look found something that should be gone.
    Ghost { name: Arc<str>, what: Arc<str> },
}

impl Event {
    /// The event as one line, with its line end.
    pub fn to_line(&self) -> String {
        let mut line = format!("{} {} ", self.at.as_nanos(), escape(&self.process));
        match self.task {
            Some(task) => write!(line, "{task}").expect("a text takes all"),
            None => line.push('-'),
        }
        let mut put = |name: &str, fields: &[(&str, String)]| {
            line.push(' ');
            line.push_str(name);
            for (field, value) in fields {
                line.push(' ');
                line.push_str(field);
                line.push('=');
                line.push_str(&escape(value));
            }
        };
        let nanos = |d: &Duration| d.as_nanos().to_string();
        let moment = |m: &Moment| m.as_nanos().to_string();
        match &self.what {
            What::Started { pid, seed } => {
                put("started", &[("pid", pid.to_string()), ("seed", seed.to_string())]);
            }
            What::Ended => put("ended", &[]),
            What::Stalled { length } => put("stalled", &[("length", nanos(length))]),
            What::Starved { length } => put("starved", &[("length", nanos(length))]),
            What::Waiting { key } => put("waiting", &[("key", key.to_string())]),
            What::Alarm { key, kind } => {
                put("alarm", &[("key", key.to_string()), ("kind", kind.to_string())]);
            }
            What::Try { attempt, key, mode, fair, waits, several, beside } => {
                let mut fields = vec![
                    ("attempt", attempt.to_string()),
                    ("key", key.to_string()),
                    ("mode", mode_text(*mode)),
                    ("fair", fair.to_string()),
                    ("waits", waits.to_string()),
                    ("several", several.to_string()),
                ];
                fields.extend(beside.map(|beside| ("beside", beside.to_string())));
                put("try", &fields);
            }
            What::Blocked { attempt } => put("blocked", &[("attempt", attempt.to_string())]),
            What::GaveUp { attempt, why } => {
                put("gave_up", &[("attempt", attempt.to_string()), ("why", why.to_string())]);
            }
            What::Granted { attempt, token, ttl, valid_until } => put(
                "granted",
                &[
                    ("attempt", attempt.to_string()),
                    ("token", token.to_string()),
                    ("ttl", nanos(ttl)),
                    ("valid_until", moment(valid_until)),
                ],
            ),
            What::Held { attempt, valid_until } => put(
                "held",
                &[("attempt", attempt.to_string()), ("valid_until", moment(valid_until))],
            ),
            What::Suspect { attempt } => put("suspect", &[("attempt", attempt.to_string())]),
            What::Renewed { attempt, valid_until } => put(
                "renewed",
                &[("attempt", attempt.to_string()), ("valid_until", moment(valid_until))],
            ),
            What::Lost { attempt, since, reason } => put(
                "lost",
                &[
                    ("attempt", attempt.to_string()),
                    ("since", moment(since)),
                    ("reason", reason.to_string()),
                ],
            ),
            What::Releasing { attempt, how } => {
                let how = match how {
                    How::Release => "release",
                    How::Drop => "drop",
                };
                put("releasing", &[("attempt", attempt.to_string()), ("how", how.into())]);
            }
            What::Released { attempt, answer } => {
                let answer = match answer {
                    Answer::Yes => "yes",
                    Answer::NotHeld => "not_held",
                    Answer::Failed => "failed",
                };
                put("released", &[("attempt", attempt.to_string()), ("answer", answer.into())]);
            }
            What::Wrote { attempt, token, accepted } => put(
                "wrote",
                &[
                    ("attempt", attempt.to_string()),
                    ("token", token.to_string()),
                    ("accepted", accepted.to_string()),
                ],
            ),
            What::Judged { order, key, by, attempt, token, accepted } => put(
                "judged",
                &[
                    ("order", order.to_string()),
                    ("key", key.to_string()),
                    ("by", by.to_string()),
                    ("attempt", attempt.to_string()),
                    ("token", token.to_string()),
                    ("accepted", accepted.to_string()),
                ],
            ),
            What::Killed { whom } => put("killed", &[("whom", whom.to_string())]),
            What::Stopped { whom } => put("stopped", &[("whom", whom.to_string())]),
            What::Continued { whom } => put("continued", &[("whom", whom.to_string())]),
            What::Struck { fault } => put("struck", &[("fault", fault.to_string())]),
            What::Healed { fault } => put("healed", &[("fault", fault.to_string())]),
            What::Evicted { key, grant, asked } => put(
                "evicted",
                &[("key", key.to_string()), ("grant", grant.to_string()), ("asked", moment(asked))],
            ),
            What::Kept { key, grant, asked, remaining } => put(
                "kept",
                &[
                    ("key", key.to_string()),
                    ("grant", grant.to_string()),
                    ("asked", moment(asked)),
                    ("remaining", nanos(remaining)),
                ],
            ),
            What::Inspected { entries } => put("inspected", &[("entries", entries.to_string())]),
            What::Ghost { name, what } => {
                put("ghost", &[("name", name.to_string()), ("what", what.to_string())]);
            }
        }
        line.push('\n');
        line
    }

    /// Reads what [`to_line`](Self::to_line) writes.
    ///
    /// # Errors
    ///
    /// What is wrong with the line.
    pub fn parse(line: &str) -> Result<Self, String> {
        let f = Fields::read(line)?;
        let attempt = || f.number("attempt");
        let what = match f.event {
            "started" => What::Started { pid: f.number("pid")? as u32, seed: f.number("seed")? },
            "ended" => What::Ended,
            "stalled" => What::Stalled { length: Duration::from_nanos(f.number("length")?) },
            "starved" => What::Starved { length: Duration::from_nanos(f.number("length")?) },
            "waiting" => What::Waiting { key: f.text("key")? },
            "alarm" => What::Alarm { key: f.text("key")?, kind: f.text("kind")? },
            "try" => What::Try {
                attempt: attempt()?,
                key: f.text("key")?,
                mode: parse_mode(&f.text("mode")?)?,
                fair: f.truth("fair")?,
                waits: f.truth("waits")?,
                several: f.truth("several")?,
                beside: f.has("beside").then(|| f.number("beside")).transpose()?,
            },
            "blocked" => What::Blocked { attempt: attempt()? },
            "gave_up" => What::GaveUp { attempt: attempt()?, why: f.text("why")? },
            "granted" => What::Granted {
                attempt: attempt()?,
                token: f.number("token")?,
                ttl: Duration::from_nanos(f.number("ttl")?),
                valid_until: f.moment("valid_until")?,
            },
            "held" => What::Held { attempt: attempt()?, valid_until: f.moment("valid_until")? },
            "suspect" => What::Suspect { attempt: attempt()? },
            "renewed" => {
                What::Renewed { attempt: attempt()?, valid_until: f.moment("valid_until")? }
            }
            "lost" => What::Lost {
                attempt: attempt()?,
                since: f.moment("since")?,
                reason: f.text("reason")?,
            },
            "releasing" => What::Releasing {
                attempt: attempt()?,
                how: match &*f.text("how")? {
                    "release" => How::Release,
                    "drop" => How::Drop,
                    other => return Err(format!("how={other}")),
                },
            },
            "released" => What::Released {
                attempt: attempt()?,
                answer: match &*f.text("answer")? {
                    "yes" => Answer::Yes,
                    "not_held" => Answer::NotHeld,
                    "failed" => Answer::Failed,
                    other => return Err(format!("answer={other}")),
                },
            },
            "wrote" => What::Wrote {
                attempt: attempt()?,
                token: f.number("token")?,
                accepted: f.truth("accepted")?,
            },
            "judged" => What::Judged {
                order: f.number("order")?,
                key: f.text("key")?,
                by: f.text("by")?,
                attempt: attempt()?,
                token: f.number("token")?,
                accepted: f.truth("accepted")?,
            },
            "killed" => What::Killed { whom: f.text("whom")? },
            "stopped" => What::Stopped { whom: f.text("whom")? },
            "continued" => What::Continued { whom: f.text("whom")? },
            "struck" => What::Struck { fault: f.text("fault")? },
            "healed" => What::Healed { fault: f.text("fault")? },
            "evicted" => What::Evicted {
                key: f.text("key")?,
                grant: f.number("grant")?,
                asked: f.moment("asked")?,
            },
            "kept" => What::Kept {
                key: f.text("key")?,
                grant: f.number("grant")?,
                asked: f.moment("asked")?,
                remaining: Duration::from_nanos(f.number("remaining")?),
            },
            "inspected" => What::Inspected { entries: f.number("entries")? },
            "ghost" => What::Ghost { name: f.text("name")?, what: f.text("what")? },
            other => return Err(format!("the event {other:?} is unknown")),
        };
        Ok(Self { at: f.at, process: f.process.clone(), task: f.task, what })
    }
}

fn mode_text(mode: Mode) -> String {
    match mode {
        Mode::Permits { take, of } => format!("{}:{take}/{of}", mode.word()),
        _ => mode.word().into(),
    }
}

fn parse_mode(text: &str) -> Result<Mode, String> {
    let permits = || {
        let (take, of) = text.strip_prefix("permits:")?.split_once('/')?;
        Some(Mode::Permits { take: take.parse().ok()?, of: of.parse().ok()? })
    };
    match text {
        "exclusive" => Ok(Mode::Exclusive),
        "read" => Ok(Mode::Read),
        "write" => Ok(Mode::Write),
        _ => permits().ok_or_else(|| format!("the mode {text:?} is unknown")),
    }
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
            What::Ended,
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
