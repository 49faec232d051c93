//! Histories written by hand, for the tests of the checks. Times are milliseconds.

use std::sync::Arc;
use std::time::Duration;

use latchwork_store::{Mode, Moment};

use crate::event::{Answer, Event, How, What};
use crate::history::History;

pub(crate) const TTL: Duration = Duration::from_millis(1_000);

pub(crate) fn ms(ms: u64) -> Moment {
    Moment::from_nanos(ms * 1_000_000)
}

#[derive(Debug, Default)]
pub(crate) struct Story {
    at: u64,
    attempts: u64,
    events: Vec<Event>,
}

impl Story {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// What follows happens then.
    pub(crate) fn at(&mut self, at: u64) -> &mut Self {
        self.at = at;
        self
    }

    pub(crate) fn says(&mut self, process: &str, what: What) -> &mut Self {
        let (at, process): (_, Arc<str>) = (ms(self.at), process.into());
        self.events.push(Event { at, process, task: None, what });
        self
    }

    pub(crate) fn run(&mut self, what: What) -> &mut Self {
        self.says("run", what)
    }

    /// An attempt begins now.
    pub(crate) fn tries(&mut self, process: &str, key: &str, fair: bool) -> u64 {
        self.tries_as(process, key, fair, Mode::Exclusive)
    }

    /// An attempt of this mode begins now.
    pub(crate) fn tries_as(&mut self, process: &str, key: &str, fair: bool, mode: Mode) -> u64 {
        self.attempts += 1;
        let attempt = self.attempts;
        let (key, waits) = (key.into(), true);
        let what = What::Try { attempt, key, mode, fair, waits, several: false, beside: None };
        self.says(process, what);
        attempt
    }

    /// An attempt that acquires other keys with this one begins now.
    pub(crate) fn tries_several(&mut self, process: &str, key: &str) -> u64 {
        self.attempts += 1;
        let (attempt, key, mode) = (self.attempts, key.into(), Mode::Exclusive);
        let what =
            What::Try { attempt, key, mode, fair: false, waits: true, several: true, beside: None };
        self.says(process, what);
        attempt
    }

    /// It is granted now, and counted on for most of a ttl.
    pub(crate) fn granted(&mut self, process: &str, attempt: u64, token: u64) {
        let valid_until = ms(self.at + 985);
        self.says(process, What::Granted { attempt, token, ttl: TTL, valid_until });
    }

    /// It is given up now, and the store says yes a moment later.
    pub(crate) fn released(&mut self, process: &str, attempt: u64) {
        self.says(process, What::Releasing { attempt, how: How::Release });
        self.at += 1;
        self.says(process, What::Released { attempt, answer: Answer::Yes });
    }

    /// A whole hold that began with a try at the moment of the grant.
    pub(crate) fn hold(&mut self, process: &str, key: &str, token: u64, from: u64, to: u64) -> u64 {
        let attempt = self.at(from).tries(process, key, false);
        self.granted(process, attempt, token << 10);
        self.at(to).released(process, attempt);
        attempt
    }

    /// `b` waits from 50 on for a hold of `a` that is given up at 100.
    pub(crate) fn handed_on(admitted: u64) -> Self {
        let mut story = Self::new();
        story.hold("a", "k", 1, 0, 100);
        let b = story.at(50).tries("b", "k", false);
        story.at(admitted).granted("b", b, 2 << 10);
        story
    }

    pub(crate) fn history(&self) -> History {
        History::of(self.events.clone())
    }
}
