//! The bounds of a store and of a run, by which proof/eye judges.

use std::time::Duration;

use crate::flags::duration;

/// What a store and a run are judged by.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// The ttl of all locks.
    pub ttl: Duration,
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
    /// The rules that do not judge it.
    pub without: Vec<&'static str>,
    /// What may happen to the processes of another client alone.
    pub foreign: Option<ForeignBounds>,
}

impl Bounds {
    /// The keys of which clients of the service are cut off.
    const CUT: &'static str = "long";

    /// The bounds of a store that frees a dead process's locks when their ttl is over.
    pub fn new(ttl: Duration) -> Self {
        Self {
            ttl,
            told: Duration::from_millis(50),
            wake: ttl / 2,
            takeover: ttl + Duration::from_millis(300),
            patience: Duration::from_secs(2),
            queues: true,
            votes: false,
            settle: ttl,
            relay: Duration::ZERO,
            ends: ttl,
            grain: Some(Duration::ZERO),
            travel: Duration::ZERO,
            slack: Duration::from_millis(300),
            allowed: Vec::new(),
            without: Vec::new(),
            foreign: None,
        }
    }

    /// With a service between the workers and the store, which ends no hold of a dead client: the lease at the store does.
    pub fn of_service(&mut self) {
        self.takeover = self.takeover.max(self.ttl + self.slack) + self.ttl / 20;
        self.ends = self.ends * 2 + self.ttl / 4;
        self.relay = self.ttl * 2 / 3;
    }

    /// The bounds of the store with this address.
    pub fn of_store(url: &str, ttl: Duration) -> Self {
        let bounds = Self::new(ttl);
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

    /// What proof/eye has to be told.
    pub fn words(&self) -> Vec<String> {
        let millis = |length: Duration| format!("{}ms", length.as_secs_f64() * 1_000.0);
        let lengths = [
            ("--ttl", self.ttl),
            ("--told", self.told),
            ("--ends", self.ends + self.grain.unwrap_or_default()),
            ("--settle", self.settle),
            ("--takeover", self.takeover),
            ("--wake", self.wake),
            ("--patience", self.patience),
            ("--relay", self.relay),
            ("--travel", self.travel),
            ("--slack", self.slack),
        ];
        let mut words: Vec<String> =
            lengths.into_iter().flat_map(|(flag, length)| [flag.into(), millis(length)]).collect();
        if !self.relay.is_zero() {
            words.extend(["--cut".into(), Self::CUT.into()]);
        }
        let rules = self.without.iter().flat_map(|rule| ["--without", rule]);
        words.extend(rules.map(str::to_owned));
        if !self.queues {
            words.extend(["--without".into(), "unfairness".into()]);
        }
        let mut allow = |rule: &str, fault: &str, after: Duration, who: &str| {
            let after = after.as_secs_f64();
            words.extend(["--allow".into(), format!("{rule}:{fault}:{after}{who}")]);
        };
        // What a fault did to a lease shows when that lease ends.
        allow("calm", "*", self.settle * 2, "");
        // While a voter is away, the one that keeps a claim for the shortest time is asked.
        if self.votes {
            allow("kept", "*", self.settle, "");
        }
        // Elections and a quarantine keep a key closed for longer than the eye knows, and what another client left does.
        if self.settle > self.ttl || self.foreign.is_some() {
            allow("handed-on", "*", self.settle * 2, "");
        }
        let mut allow_all = |allowed: &[Allowed], who: &str| {
            for allowed in allowed {
                allow(allowed.rule, &allowed.fault, allowed.after, who);
            }
        };
        allow_all(&self.allowed, "");
        if let Some(foreign) = &self.foreign {
            allow_all(&foreign.overstays, &format!(":{}", foreign.name));
            allow_all(&foreign.enters, &format!(":+{}", foreign.name));
            allow_all(&foreign.leaves, "");
        }
        words
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

/// A violation that is expected while a fault lasts, or for some time after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allowed {
    /// The name of the rule.
    pub rule: &'static str,
    /// The name of the fault.
    pub fault: String,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bounds_of_redis_know_the_quarantine() {
        let ttl = Duration::from_secs(1);
        let settle = |url: &str| Bounds::of_store(url, ttl).settle;
        assert_eq!(settle("redis://127.0.0.1:1"), ttl);
        let q = Duration::from_millis(1_011);
        assert_eq!(settle("redis://127.0.0.1:1?guard=true&max_ttl=1s"), ttl + q);
        let two = Duration::from_secs(2);
        let url = "redis+sentinel://a,b/main?max_ttl=1s&guard=true";
        assert_eq!(settle(&format!("{url}&deposed=2s")), ttl + q + two);
        assert_eq!(settle(url), ttl + q + Duration::from_secs(12));
        assert_eq!(settle("redlock://a,b,c?max_ttl=1s"), ttl + q);
        assert_eq!(settle("redlock://a,b,c?guard=false"), ttl);
        let bounds = Bounds::of_store("redis+cluster://a,b", ttl);
        assert_eq!(bounds.takeover, Duration::from_millis(1_300));
        assert_eq!(settle("postgres://p@a,b/d?guard=true&max_ttl=1s"), ttl + q);
        assert_eq!(settle("postgres://p@a,b/d"), ttl);
    }
}
