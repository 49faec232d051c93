//! The named checks: each looks at one promise, over the whole history, and at nothing else.
//!
//! A check is a pure function from a [`History`] and the [`Bounds`] of the store to a [`Verdict`].
//! A check that had nothing to look at (`checked` is 0) has shown nothing: a run that expects it
//! fails then.
//!
//! Upper bounds are widened by the stalls that the witness threads saw, lower bounds are exact.

mod done_once;
mod exclusion;
mod fair_order;
mod fence_order;
mod forgotten_claim;
mod ghost_free;
mod handed_on;
mod held_is_valid;
mod loss_reason;
mod no_false_alarm;
mod release_counts;
mod store_keeps;
mod takeover_bound;
mod token_order;
mod told_in_time;
mod unfairness_bound;
mod waiting;
mod well_formed;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use latchwork_store::Moment;

use crate::flags::duration;
use crate::history::{History, Span};

/// What a store and a run are judged by.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// The ttl of all locks.
    pub ttl: Duration,
    /// How many processes work.
    pub processes: u32,
    /// For how long a hold may pass on inside a process.
    pub slice: Duration,
    /// How late a holder may be told of a loss.
    pub told: Duration,
    /// How soon a key must pass on after a release. Less than two thirds of the ttl, or an expiry
    /// would look like a release.
    pub wake: Duration,
    /// How soon a waiter must be admitted after the holder's process was killed.
    pub takeover: Duration,
    /// How long a waiter that could come may let others wait before it is passed over.
    pub patience: Duration,
    /// Whether processes that wait stand in a line at the store.
    pub queues: bool,
    /// Whether the store is a majority of several.
    pub votes: bool,
    /// How long after a fault nothing is judged that a fault may delay.
    pub settle: Duration,
    /// How long a service in between needs until it learns of an eviction. Zero without one.
    pub relay: Duration,
    /// Keys on which clients are cut off: what was granted in that moment stays until its ttl.
    pub cut: &'static str,
    /// How long the store may keep the claim of a dead process after its last renewal.
    pub ends: Duration,
    /// In which steps the store says how long it keeps a claim, rounded down. None if it does not say it.
    pub grain: Option<Duration>,
    /// How long the run itself holds back answers of the store.
    pub travel: Duration,
    /// What upper bounds over several processes allow for scheduling beyond the stalls.
    pub slack: Duration,
    /// What may happen under some fault, and is counted then.
    pub allowed: Vec<Allowed>,
    /// What may happen to the processes of another client alone.
    pub foreign: Option<ForeignBounds>,
}

impl Bounds {
    /// The keys of which clients of the service are cut off.
    pub(crate) const CUT: &'static str = "long";

    /// The bounds of a store that frees a dead process's locks when their ttl is over.
    pub fn new(ttl: Duration, processes: u32) -> Self {
        Self {
            ttl,
            processes,
            slice: Duration::from_millis(10),
            told: Duration::from_millis(50),
            wake: ttl / 2,
            takeover: ttl + Duration::from_millis(300),
            patience: Duration::from_secs(2),
            queues: true,
            votes: false,
            settle: ttl,
            relay: Duration::ZERO,
            cut: "-",
            ends: ttl,
            grain: Some(Duration::ZERO),
            travel: Duration::ZERO,
            slack: Duration::from_millis(300),
            allowed: Vec::new(),
            foreign: None,
        }
    }

    /// With a service between the workers and the store: it keeps a hold for as long as its client may rely on it,
    /// and its lease at the store is twice as long.
    pub fn of_service(&mut self) {
        self.takeover = self.ttl + self.ttl / 20 + Duration::from_millis(300);
        self.relay = self.ttl * 2 / 3;
        self.cut = Self::CUT;
    }

    /// The bounds of the store with this address.
    pub fn of_store(url: &str, ttl: Duration, processes: u32) -> Self {
        let bounds = Self::new(ttl, processes);
        if url.starts_with("file:") {
            // A dead process is noticed at once, long before its ttl is over.
            return Self { takeover: (ttl / 2).min(Duration::from_secs(1)), ..bounds };
        }
        if url.starts_with("redlock") {
            // Nobody queues where each server might see another first.
            return Self { settle: ttl + quarantine(url), queues: false, votes: true, ..bounds };
        }
        if url.starts_with("redis") {
            // What a guarded server may have forgotten keeps it closed for a quarantine.
            return Self { settle: ttl + quarantine(url), ..bounds };
        }
        if url.starts_with("etcd") {
            // An ended lease is gone within four seconds, and each election begins its ttl again.
            let ends = ttl + Duration::from_secs(4);
            let (settle, takeover) = (ends + ttl, ends + bounds.slack);
            return Self { takeover, settle, ends, grain: Some(Duration::from_secs(1)), ..bounds };
        }
        if url.starts_with("zk") {
            // A session is longer than its claims' ttl, and ends at a tick.
            let ends = ttl * 5 / 3 + Duration::from_secs(1);
            let (settle, takeover) = (ends, ends + bounds.slack);
            // It tells the ttl that was asked for.
            return Self { takeover, settle, ends, grain: None, ..bounds };
        }
        if url.starts_with("postgres") {
            // Nobody announces that a dead holder's ttl is over: a waiter checks every third of its own.
            let takeover = ttl + ttl / 3 + bounds.slack;
            return Self { takeover, settle: ttl + quarantine(url), ..bounds };
        }
        if url.starts_with("k8s") {
            // A process that was started later counts the dead one's ttl from its own first look, and a place of the
            // dead one may come first.
            let settle = ttl * 2;
            let takeover = settle + bounds.patience + bounds.slack;
            return Self { takeover, settle, ..bounds };
        }
        bounds
    }
}

/// For how long a server with the options of this address grants nothing after a loss.
fn quarantine(url: &str) -> Duration {
    let options = url.split_once('?').map_or("", |(_, options)| options).split('&');
    let options: Vec<_> = options.filter_map(|option| option.split_once('=')).collect();
    let length = |name| {
        let option = options.iter().find(|(known, _)| *known == name);
        option.and_then(|(_, text)| duration(text))
    };
    let votes = url.starts_with("redlock");
    if options.contains(&("guard", "false")) || !(votes || options.contains(&("guard", "true"))) {
        return Duration::ZERO;
    }
    let usual = match url.split(':').next() {
        Some("redis+sentinel") => 12,
        Some("redis+cluster") => 17,
        _ => 0,
    };
    let max_ttl = length("max_ttl").unwrap_or(Duration::from_secs(60));
    let deposed = length("deposed").unwrap_or(Duration::from_secs(usual));
    max_ttl + max_ttl / 100 + Duration::from_millis(1) + deposed
}

/// A violation of a check that is expected while a fault lasts, or for some time after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allowed {
    /// The check's name.
    pub check: Arc<str>,
    /// The fault's name.
    pub fault: Arc<str>,
    /// For how long after its end.
    pub after: Duration,
}

/// What may happen to the processes of another client, and to no others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignBounds {
    /// How its processes are called.
    pub name: &'static str,
    /// Where its claim is the older one: it believes in it for too long.
    pub overstays: Vec<Allowed>,
    /// Where its claim is the newer one: it takes what somebody still believes to hold.
    pub enters: Vec<Allowed>,
    /// Where it has left a claim in the queue, whoever waits behind it.
    pub leaves: Vec<Allowed>,
}

impl ForeignBounds {
    /// What is allowed where these processes met, the one with the older claim first.
    fn allowed(&self, who: &[Arc<str>]) -> impl Iterator<Item = &Allowed> {
        let is_ours =
            |process: Option<&Arc<str>>| process.is_some_and(|p| p.starts_with(self.name));
        let overstays = self.overstays.iter().filter(move |_| is_ours(who.first()));
        let enters = self.enters.iter().filter(move |_| who.len() > 1 && is_ours(who.last()));
        overstays.chain(enters).chain(&self.leaves)
    }
}

/// What a check found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verdict {
    /// How many things it looked at.
    pub checked: u64,
    /// What should not be.
    pub violations: Vec<Violation>,
    /// How many violations are expected under the faults of the run, or excused by a stall.
    pub exceptions: u64,
}

/// Something that should not be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// When.
    pub at: Moment,
    /// On which key.
    pub key: Arc<str>,
    /// The processes that it is about, where it says so; the one with the older claim first.
    pub who: Vec<Arc<str>>,
    /// What.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}: {}", self.at.as_nanos(), self.key, self.message)
    }
}

impl Verdict {
    /// Whether it looked at something and found nothing wrong.
    pub fn passed(&self) -> bool {
        self.checked > 0 && self.violations.is_empty()
    }

    fn violation(&mut self, at: Moment, key: &Arc<str>, message: impl Into<String>) {
        self.violation_of(at, key, &[], message);
    }

    fn violation_of(
        &mut self,
        at: Moment,
        key: &Arc<str>,
        who: &[&Arc<str>],
        message: impl Into<String>,
    ) {
        let who = who.iter().map(|process| (*process).clone()).collect();
        self.violations.push(Violation { at, key: key.clone(), who, message: message.into() });
    }

    /// Counts the violations that are allowed instead of keeping them.
    fn excuse(&mut self, check: &str, history: &History, bounds: &Bounds) {
        let before = self.violations.len();
        self.violations.retain(|violation| {
            let at = Span { from: violation.at, to: violation.at };
            let foreign = bounds.foreign.iter().flat_map(|foreign| foreign.allowed(&violation.who));
            let mut allowed = bounds.allowed.iter().chain(foreign);
            !allowed.any(|allowed| {
                &*allowed.check == check
                    && history.faults_near(at, allowed.after).any(|f| f.name == allowed.fault)
            })
        });
        self.exceptions += (before - self.violations.len()) as u64;
    }
}

/// A check by its name.
#[derive(Clone, Copy)]
pub struct Check {
    /// Its name, in lists of allowed exceptions and in reports.
    pub name: &'static str,
    /// The promise, in one line.
    pub promise: &'static str,
    look: fn(&History, &Bounds) -> Verdict,
}

impl Check {
    /// Looks at a history.
    pub fn look(&self, history: &History, bounds: &Bounds) -> Verdict {
        let mut verdict = (self.look)(history, bounds);
        verdict.excuse(self.name, history, bounds);
        verdict
    }

    /// The check of this name.
    pub fn named(name: &str) -> Option<Self> {
        ALL.iter().find(|check| check.name == name).copied()
    }
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

macro_rules! check {
    ($name:ident, $promise:literal) => {
        Check { name: stringify!($name), promise: $promise, look: $name::look }
    };
}

/// All checks.
pub const ALL: &[Check] = &[
    check!(exclusion, "no two holders believe at once in holds that exclude each other"),
    check!(fence_order, "the resource never accepts a smaller token after a larger one"),
    check!(token_order, "a later hold has a larger token, and no token is used twice"),
    check!(forgotten_claim, "while a claim is held nobody else has held its key"),
    check!(well_formed, "attempts, processes and writes have the shape of a history"),
    check!(told_in_time, "a holder is told of a loss when its validity ends, at the latest"),
    check!(held_is_valid, "ensure_held says yes only within the validity, never after a loss"),
    check!(loss_reason, "a hold ends for the reason that its holder is told"),
    check!(store_keeps, "the store keeps a claim for as long as its holder counts on it"),
    check!(release_counts, "a release lets the next one in, not the end of a ttl"),
    check!(handed_on, "a key that nobody holds is granted to a waiter, also while faults go on"),
    check!(done_once, "a task that was done is not begun again in its period"),
    check!(ghost_free, "nothing is left in the store a ttl after everything has ended"),
    check!(takeover_bound, "the key of a killed holder passes on in time"),
    check!(fair_order, "who waited in line before another tried is admitted before it"),
    check!(
        unfairness_bound,
        "handover inside processes keeps another process waiting only so long"
    ),
    check!(no_false_alarm, "without a fault nothing is lost, in doubt or unknown"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bounds_of_redis_know_the_quarantine() {
        let ttl = Duration::from_secs(1);
        let settle = |url: &str| Bounds::of_store(url, ttl, 2).settle;
        assert_eq!(settle("redis://127.0.0.1:1"), ttl);
        let q = Duration::from_millis(1_011);
        assert_eq!(settle("redis://127.0.0.1:1?guard=true&max_ttl=1s"), ttl + q);
        let two = Duration::from_secs(2);
        let url = "redis+sentinel://a,b/main?max_ttl=1s&guard=true";
        assert_eq!(settle(&format!("{url}&deposed=2s")), ttl + q + two);
        assert_eq!(settle(url), ttl + q + Duration::from_secs(12));
        assert_eq!(settle("redlock://a,b,c?max_ttl=1s"), ttl + q);
        assert_eq!(settle("redlock://a,b,c?guard=false"), ttl);
        let bounds = Bounds::of_store("redis+cluster://a,b", ttl, 2);
        assert_eq!(bounds.takeover, Duration::from_millis(1_300));
        assert_eq!(settle("postgres://p@a,b/d?guard=true&max_ttl=1s"), ttl + q);
        assert_eq!(settle("postgres://p@a,b/d"), ttl);
    }
}
