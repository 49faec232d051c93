//! All logs of a run, merged by their stamps, and what they tell of attempts, holds and faults.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use latchwork::FencingToken;
use latchwork_store::{Mode, Moment};

use crate::event::{Answer, Event, How, What};

/// A run, as those who took part have told it.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// Everything that happened, by time.
    pub events: Vec<Event>,
    /// All attempts, by when they began.
    pub attempts: Vec<Attempt>,
    /// All faults, by when they began.
    pub faults: Vec<Fault>,
    pub(crate) stalls: HashMap<Arc<str>, Vec<Span>>,
    /// When the machine had no processor for a thread of a server. None touches another.
    pub(crate) starved: Vec<Span>,
    pub(crate) stops: HashMap<Arc<str>, Vec<Span>>,
}

/// One acquire, and the hold that it led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// Who.
    pub process: Arc<str>,
    /// The task.
    pub task: Option<u32>,
    /// The number that the process gave it.
    pub id: u64,
    /// What was to be locked.
    pub key: Arc<str>,
    /// With whom it may share.
    pub mode: Mode,
    /// Whether it had a place of its own in the store's line.
    pub fair: bool,
    /// Whether it was more than a single try.
    pub waits: bool,
    /// Whether other keys were acquired with this one, all or none: it may wait for those.
    pub several: bool,
    /// The attempt whose hold it replaces: an upgrade or a downgrade.
    pub beside: Option<u64>,
    /// Before the acquire.
    pub tried: Moment,
    /// When it was told that the store had blocked it for the first time.
    pub blocked: Option<Moment>,
    /// When it ended without a hold, and why.
    pub gave_up: Option<(Moment, Arc<str>)>,
    /// What it got.
    pub hold: Option<Hold>,
    /// When its process was killed, or had ended.
    pub gone: Option<Moment>,
}

/// A hold, as its holder saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// After the acquire had returned.
    pub told: Moment,
    /// Its token; 0 if the holder is a client of another kind that has none.
    pub token: u64,
    /// The granted ttl.
    pub ttl: Duration,
    /// What the holder counted on when it was told of the grant.
    pub first_valid_until: Moment,
    /// The furthest that the holder ever counted on.
    pub valid_until: Moment,
    /// What the holder counted on, and when it had noted that down.
    pub counted: Vec<(Moment, Moment)>,
    /// When `ensure_held` was asked and said yes, and what the holder counted on right after.
    pub held: Vec<(Moment, Moment)>,
    /// When the holder was told last that the hold is in doubt.
    pub suspect: Option<Moment>,
    /// When the holder was told of a loss, since when it is lost, and why.
    pub lost: Option<(Moment, Moment, Arc<str>)>,
    /// Before it was given up, and how.
    pub releasing: Option<(Moment, How)>,
    /// What the release answered, and when.
    pub released: Option<(Moment, Answer)>,
}

/// A fault from its beginning to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// `kill`, `stop`, or the name that a [`Nemesis`](crate::faults::Nemesis) gives itself.
    pub name: Arc<str>,
    /// The worker that it struck, if it struck one.
    pub whom: Option<Arc<str>>,
    /// Before it began.
    pub from: Moment,
    /// After it ended; never, if it did not.
    pub to: Moment,
}

/// A stretch of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Its beginning.
    pub from: Moment,
    /// Its end.
    pub to: Moment,
}

impl Span {
    fn overlap(self, other: Span) -> Duration {
        self.to.min(other.to).since(self.from.max(other.from))
    }
}

/// The holds that were ended by force, by key and grant: when that was asked for, and when it was answered.
#[derive(Debug, Default)]
pub struct Evictions<'a>(HashMap<(&'a str, u64), (Moment, Moment)>);

impl Evictions<'_> {
    /// When the claim behind this hold was ended by force: asked for, and answered.
    pub fn of(&self, attempt: &Attempt, hold: &Hold) -> Option<(Moment, Moment)> {
        self.0.get(&attempt.claim(hold)).copied()
    }

    /// Whether the store was asked to end this attempt's hold by then. Its holder learns of it at its next renewal.
    pub fn had_begun(&self, attempt: &Attempt, then: Moment) -> bool {
        let evicted = attempt.hold.as_ref().and_then(|hold| self.of(attempt, hold));
        evicted.is_some_and(|(asked, _)| asked <= then)
    }
}

impl Attempt {
    /// The claim at the store behind its hold.
    pub fn claim(&self, hold: &Hold) -> (&str, u64) {
        (self.key_in_store(), FencingToken::from_raw(hold.token).grant_number())
    }

    /// What its key is called in the store, and by who ends holds by force. The history adds the beginning of the
    /// period to the key of a task that is done once in each.
    pub fn key_in_store(&self) -> &str {
        self.key.split('@').next().unwrap_or_default()
    }

    /// Whether no other claim may be held beside it.
    pub fn excludes_all(&self) -> bool {
        self.mode.is_alone()
    }

    /// When it ceased to wait: it was granted, gave up, or its process was gone.
    pub fn waited_until(&self) -> Moment {
        let told = self.hold.as_ref().map(|hold| hold.told);
        let gave_up = self.gave_up.as_ref().map(|(at, _)| *at);
        told.or(gave_up).or(self.gone).unwrap_or(Moment::NEVER)
    }

    /// When the holder ceased to believe in the hold. `None` without a hold.
    pub fn believed_until(&self) -> Option<Moment> {
        let hold = self.hold.as_ref()?;
        let lost = hold.lost.as_ref().map_or(Moment::NEVER, |(told, ..)| *told);
        let releasing = hold.releasing.map_or(Moment::NEVER, |(at, _)| at);
        let gone = self.gone.unwrap_or(Moment::NEVER);
        Some(hold.valid_until.min(lost).min(releasing).min(gone))
    }
}

impl History {
    /// Reads all `*.log` of a folder. A last line without its end is what a killed process left.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, or a whole line that is none of ours.
    pub fn read(folder: &Path) -> io::Result<Self> {
        let mut paths: Vec<_> =
            fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
        paths.retain(|path| path.extension().is_some_and(|e| e == "log"));
        paths.sort();
        let mut events = Vec::new();
        for path in paths {
            let text = fs::read(&path)?;
            let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
            let bad = |e: String| {
                io::Error::new(io::ErrorKind::InvalidData, format!("{}: {e}", path.display()))
            };
            let text = std::str::from_utf8(&text[..whole]).map_err(|e| bad(e.to_string()))?;
            for line in text.lines() {
                events.push(Event::parse(line).map_err(bad)?);
            }
        }
        Ok(Self::of(events))
    }

    /// Merges events by their stamps.
    pub fn of(mut events: Vec<Event>) -> Self {
        // Stable: what one process wrote in one nanosecond stays in its order.
        events.sort_by_key(|event| event.at);
        let mut history = Self { events, ..Self::default() };
        history.gather_faults();
        history.gather_stalls();
        history.gather_attempts();
        history
    }

    fn gather_faults(&mut self) {
        let mut open: HashMap<(Arc<str>, Option<Arc<str>>), usize> = HashMap::new();
        for event in &self.events {
            let (name, whom, begins): (Arc<str>, _, _) = match &event.what {
                What::Killed { whom } => ("kill".into(), Some(whom.clone()), true),
                What::Stopped { whom } => ("stop".into(), Some(whom.clone()), true),
                What::Continued { whom } => ("stop".into(), Some(whom.clone()), false),
                What::Struck { fault } => (fault.clone(), None, true),
                What::Healed { fault } => (fault.clone(), None, false),
                _ => continue,
            };
            if !begins {
                if let Some(at) = open.remove(&(name, whom)) {
                    self.faults[at].to = event.at;
                }
                continue;
            }
            let to = if &*name == "kill" { event.at } else { Moment::NEVER };
            open.insert((name.clone(), whom.clone()), self.faults.len());
            self.faults.push(Fault { name, whom, from: event.at, to });
        }
        for fault in &self.faults {
            if let ("stop", Some(whom)) = (&*fault.name, &fault.whom) {
                let span = Span { from: fault.from, to: fault.to };
                self.stops.entry(whom.clone()).or_default().push(span);
            }
        }
    }

    fn gather_stalls(&mut self) {
        for event in &self.events {
            let span = |length| Span { from: event.at.minus(length), to: event.at };
            match event.what {
                What::Stalled { length } => {
                    self.stalls.entry(event.process.clone()).or_default().push(span(length));
                }
                What::Starved { length } => {
                    let mut span = span(length);
                    // Several threads may have waited at the same time.
                    while let Some(last) = self.starved.pop_if(|last| last.to >= span.from) {
                        span.from = span.from.min(last.from);
                    }
                    self.starved.push(span);
                }
                _ => {}
            }
        }
    }

    fn gather_attempts(&mut self) {
        let mut attempts: Vec<Attempt> = Vec::new();
        let mut known: HashMap<(Arc<str>, u64), usize> = HashMap::new();
        let mut gone: HashMap<Arc<str>, Moment> = HashMap::new();
        for event in &self.events {
            let at = event.at;
            let of = |attempt: u64| known.get(&(event.process.clone(), attempt)).copied();
            match &event.what {
                What::Killed { whom } => _ = gone.entry(whom.clone()).or_insert(at),
                What::Ended => _ = gone.entry(event.process.clone()).or_insert(at),
                What::Try { attempt, key, mode, fair, waits, several, beside } => {
                    known.insert((event.process.clone(), *attempt), attempts.len());
                    attempts.push(Attempt {
                        process: event.process.clone(),
                        task: event.task,
                        id: *attempt,
                        key: key.clone(),
                        mode: *mode,
                        fair: *fair,
                        waits: *waits,
                        several: *several,
                        beside: *beside,
                        tried: at,
                        blocked: None,
                        gave_up: None,
                        hold: None,
                        gone: None,
                    });
                }
                What::Blocked { attempt } => {
                    if let Some(i) = of(*attempt) {
                        attempts[i].blocked.get_or_insert(at);
                    }
                }
                What::GaveUp { attempt, why } => {
                    if let Some(i) = of(*attempt) {
                        attempts[i].gave_up = Some((at, why.clone()));
                    }
                }
                What::Granted { attempt, token, ttl, valid_until } => {
                    if let Some(i) = of(*attempt) {
                        attempts[i].hold = Some(Hold {
                            told: at,
                            token: *token,
                            ttl: *ttl,
                            first_valid_until: *valid_until,
                            valid_until: *valid_until,
                            counted: vec![(at, *valid_until)],
                            held: Vec::new(),
                            suspect: None,
                            lost: None,
                            releasing: None,
                            released: None,
                        });
                    }
                }
                What::Held { attempt, .. }
                | What::Renewed { attempt, .. }
                | What::Suspect { attempt }
                | What::Lost { attempt, .. }
                | What::Releasing { attempt, .. }
                | What::Released { attempt, .. } => {
                    let hold = of(*attempt).and_then(|i| attempts[i].hold.as_mut());
                    if let Some(hold) = hold {
                        hold.go_on(at, &event.what);
                    }
                }
                _ => {}
            }
        }
        for attempt in &mut attempts {
            attempt.gone = gone.get(&attempt.process).copied();
        }
        self.attempts = attempts;
    }

    /// The holds that were ended by force.
    pub fn evictions(&self) -> Evictions<'_> {
        let mut evictions = Evictions::default();
        for event in &self.events {
            if let What::Evicted { key, grant, asked } = &event.what {
                evictions.0.entry((key, *grant)).or_insert((*asked, event.at));
            }
        }
        evictions
    }

    /// The last moment of the history.
    pub fn end(&self) -> Moment {
        self.events.last().map_or(Moment::from_nanos(0), |event| event.at)
    }

    /// The attempts on each key, by when they began.
    pub fn by_key(&self) -> BTreeMap<Arc<str>, Vec<&Attempt>> {
        let mut by_key: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for attempt in &self.attempts {
            by_key.entry(attempt.key.clone()).or_default().push(attempt);
        }
        by_key
    }

    /// The holds on each key with their attempts, by when the holders were told.
    pub fn holds_by_key(&self) -> BTreeMap<Arc<str>, Vec<(&Attempt, &Hold)>> {
        let mut by_key: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for attempt in &self.attempts {
            if let Some(hold) = &attempt.hold {
                by_key.entry(attempt.key.clone()).or_default().push((attempt, hold));
            }
        }
        for holds in by_key.values_mut() {
            holds.sort_by_key(|(_, hold)| hold.told);
        }
        by_key
    }

    /// How long a process was stopped within a stretch of time.
    fn stopped(&self, process: &str, span: Span) -> Duration {
        let stops = self.stops.get(process).map_or(&[][..], Vec::as_slice);
        stops.iter().map(|stop| stop.overlap(span)).sum()
    }

    /// How long the machine let a process stand still within a stretch of time, without what a
    /// SIGSTOP of the run did.
    pub fn stalled(&self, process: &str, span: Span) -> Duration {
        let Some(stalls) = self.stalls.get(process) else { return Duration::ZERO };
        // Stalls of one witness follow each other.
        let first = stalls.partition_point(|stall| stall.to < span.from);
        let within = stalls[first..].iter().take_while(|stall| stall.from < span.to);
        let clipped = within.map(|stall| {
            let part = Span { from: stall.from.max(span.from), to: stall.to.min(span.to) };
            part.overlap(part).saturating_sub(self.stopped(process, part))
        });
        clipped.sum()
    }

    /// For how long of a stretch of time the machine had no processor for a thread of a server.
    pub fn starved(&self, span: Span) -> Duration {
        self.starved.iter().map(|starved| starved.overlap(span)).sum()
    }

    /// The stalls of all processes together.
    pub fn all_stalled(&self, span: Span) -> Duration {
        self.stalls.keys().map(|process| self.stalled(process, span)).sum()
    }

    /// How much of a stretch of time a process could use.
    pub fn running(&self, process: &str, span: Span) -> Duration {
        let length = span.to.since(span.from);
        length.saturating_sub(self.stopped(process, span) + self.stalled(process, span))
    }

    /// The faults that touch a stretch of time, or had ended less than `after` before it.
    pub fn faults_near(&self, span: Span, after: Duration) -> impl Iterator<Item = &Fault> {
        self.faults.iter().filter(move |f| f.from <= span.to && f.to.plus(after) >= span.from)
    }

    /// Whether a fault touches a stretch of time, or had ended less than `after` before it.
    pub fn disturbed(&self, span: Span, after: Duration) -> bool {
        self.faults_near(span, after).next().is_some()
    }
}

impl Hold {
    /// Its token, if it has one.
    pub fn number(&self) -> Option<u64> {
        (self.token != 0).then_some(self.token)
    }

    /// Whether it was in doubt when the holder asked last.
    pub fn is_suspect(&self) -> bool {
        let held = self.held.last().map(|(at, _)| *at);
        self.suspect.is_some_and(|at| held.is_none_or(|held| held < at))
    }

    fn go_on(&mut self, at: Moment, what: &What) {
        match what {
            What::Held { valid_until, .. } => {
                self.held.push((at, *valid_until));
                self.valid_until = self.valid_until.max(*valid_until);
            }
            What::Renewed { valid_until, .. } => {
                self.counted.push((at, *valid_until));
                self.valid_until = self.valid_until.max(*valid_until);
            }
            What::Suspect { .. } => self.suspect = Some(at),
            What::Lost { since, reason, .. } => self.lost = Some((at, *since, reason.clone())),
            What::Releasing { how, .. } => self.releasing = Some((at, *how)),
            What::Released { answer, .. } => self.released = Some((at, *answer)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::story::{Story, ms};

    #[test]
    fn logs_are_merged_and_a_torn_last_line_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write(
            "w0.0.log",
            "5 w0.0 0 try attempt=0 key=k mode=exclusive fair=true waits=true several=false\n7 w0.0 0 gran",
        );
        write("w1.0.log", "6 w1.0 - ended\n");
        write("run.log", "");
        write("note.txt", "nothing of ours");
        let history = History::read(folder.path()).unwrap();
        assert_eq!(history.events.len(), 2);
        assert_eq!(history.attempts.len(), 1);
        assert_eq!(history.attempts[0].hold, None);
        write("w2.0.log", "what is this\n");
        assert!(History::read(folder.path()).is_err());
    }

    #[test]
    fn a_stop_is_no_stall() {
        let mut story = Story::new();
        story.at(100).run(What::Stopped { whom: "a".into() });
        story.at(400).run(What::Continued { whom: "a".into() });
        // The witness saw the stop and 20 ms more.
        story.at(420).says("a", What::Stalled { length: Duration::from_millis(325) });
        let history = story.history();
        let whole = Span { from: ms(0), to: ms(1_000) };
        assert_eq!(history.stalled("a", whole), Duration::from_millis(25));
        assert_eq!(history.running("a", whole), Duration::from_millis(675));
        assert_eq!(history.stalled("b", whole), Duration::ZERO);
        let around = Span { from: ms(500), to: ms(600) };
        assert!(history.disturbed(around, Duration::from_millis(150)));
        assert!(!history.disturbed(around, Duration::from_millis(50)));
    }

    #[test]
    fn servers_that_wait_at_the_same_time_wait_once() {
        let mut story = Story::new();
        for (at, length) in [(200, 100), (210, 50), (400, 100), (410, 300)] {
            let length = Duration::from_millis(length);
            story.at(at).run(What::Starved { length });
        }
        let history = story.history();
        let starved = |from, to| history.starved(Span { from: ms(from), to: ms(to) });
        assert_eq!(starved(0, 1_000), Duration::from_millis(310));
        assert_eq!(starved(150, 160), Duration::from_millis(10));
        assert_eq!(starved(410, 500), Duration::ZERO);
        assert_eq!(history.stalled("run", Span { from: ms(0), to: ms(500) }), Duration::ZERO);
    }

    #[test]
    fn validity_ends_at_its_earliest_bound() {
        let mut story = Story::new();
        story.hold("a", "k", 1, 100, 200);
        story.at(150).run(What::Killed { whom: "a".into() });
        let history = story.history();
        assert_eq!(history.attempts[0].believed_until(), Some(ms(150)));
        assert_eq!(history.attempts[0].waited_until(), ms(100));
    }
}
