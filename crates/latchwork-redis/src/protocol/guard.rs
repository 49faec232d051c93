//! The restart guard: its inputs and its reports.
//!
//! A server that may have lost data grants nothing until every lease that it may have lost has ended.
//! The scripts decide, see `scripts/guard.lua`; `docs/guard.md` says what the guard prevents and what
//! not.

use std::time::Duration;

use latchwork_store::{BackendError, BackendErrorKind, Claim, Effect};
use redis::{Cmd, Value};

use crate::config::{Deployment, RedisConfig};
use crate::protocol::names::Names;
use crate::protocol::scripts::GUARD_LOOK;
use crate::server::errors::strange;
use crate::server::link::Link;
use crate::server::reply::number;
use crate::server::topology::Route;

/// The longest ttl where the address names none.
const MAX_TTL: Duration = Duration::from_secs(60);
/// As long as Redis itself lets a master without replicas write (`min-replicas-max-lag`), and two
/// seconds, because it counts whole seconds and checks once a second.
const BEHIND_SENTINELS: Duration = Duration::from_secs(12);
/// As long as a master without a majority writes on (`cluster-node-timeout`), and two seconds.
const ON_CLUSTER: Duration = Duration::from_secs(17);

/// The rule that all clients of a namespace share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) max_ttl: Duration,
    pub(crate) quarantine: Duration,
    /// How long a replaced master may continue to write.
    pub(crate) deposed: Duration,
    via_proxy: bool,
    database: i64,
}

/// The state in the marker of a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MarkerState {
    /// The namespace was guarded before.
    pub(crate) marked: bool,
    /// The remaining quarantine, or the one that begins with the next try.
    pub(crate) left: Duration,
    /// It has begun.
    pub(crate) begun: bool,
    /// The lengths in the marker: the longest ttl, and the quarantine.
    pub(crate) lengths: Option<(Duration, Duration)>,
}

impl Rule {
    /// The rule of an address; `None` if it asks for no guard.
    pub(crate) fn of(config: &RedisConfig) -> Option<Self> {
        if !config.guard {
            return None;
        }
        let usual = match config.deployment {
            Deployment::Single(_) => Duration::ZERO,
            Deployment::Sentinel { .. } => BEHIND_SENTINELS,
            Deployment::Cluster(_) => ON_CLUSTER,
        };
        let max_ttl = config.max_ttl.unwrap_or(MAX_TTL);
        let drift = max_ttl / 100 + Duration::from_millis(1);
        let deposed = config.deposed.unwrap_or(usual);
        Some(Self {
            max_ttl,
            quarantine: max_ttl + drift + deposed,
            deposed,
            via_proxy: config.via_proxy,
            database: config.database,
        })
    }

    /// The longest ttl and the quarantine, as a marker has them.
    pub(crate) fn lengths(&self) -> (Duration, Duration) {
        let whole = |length| Duration::from_millis(whole_millis(length));
        (whole(self.max_ttl), whole(self.quarantine))
    }

    /// Appends the arguments of the guard's piece of a script.
    pub(crate) fn fill(&self, command: &mut Cmd, link: &Link) {
        let run = if self.via_proxy { "" } else { &*link.facts.run_id };
        command
            .arg(run)
            .arg(self.database)
            .arg(whole_millis(self.max_ttl))
            .arg(whole_millis(self.quarantine));
    }

    /// Refuses a ttl that the quarantine would not outlast.
    pub(crate) fn check(&self, claim: &Claim) -> Result<(), BackendError> {
        if claim.ttl <= self.max_ttl {
            return Ok(());
        }
        let message = format!(
            "ttl: {:?} is longer than the max_ttl of the guard, {:?}",
            claim.ttl, self.max_ttl
        );
        Err(BackendError::new(BackendErrorKind::Invalid, Effect::NotApplied, message)
            .with_next_step(
                "choose a shorter ttl, or a longer max_ttl for all clients of the namespace",
            ))
    }

    /// Reads the marker of a key's namespace.
    pub(crate) async fn read_marker(
        &self,
        route: &mut Route,
        names: &Names,
    ) -> Result<MarkerState, BackendError> {
        let run = route.run(&GUARD_LOOK, |command, link| {
            command.arg(1).arg(names.guard());
            self.fill(command, link);
        });
        let answer = run.await?;
        MarkerState::read(&answer).ok_or_else(|| strange(&answer))
    }
}

impl MarkerState {
    pub(crate) fn read(answer: &Value) -> Option<Self> {
        let Value::Array(parts) = answer else { return None };
        let [marked, left, begun, max_ttl, quarantine] = &parts[..] else { return None };
        let length = |part| number(part).map(Duration::from_millis);
        Some(Self {
            marked: number(marked)? == 1,
            left: length(left)?,
            begun: number(begun)? == 1,
            lengths: length(max_ttl).zip(length(quarantine)),
        })
    }
}

fn whole_millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use latchwork_services::hostile::survives;

    use super::*;
    use crate::server::values::value_of;

    fn rule(url: &str) -> Rule {
        Rule::of(&RedisConfig::parse(url).unwrap()).unwrap()
    }

    #[test]
    fn the_quarantine_outlasts_the_longest_ttl_and_a_deposed_master() {
        let single = rule("redis://h?guard=true");
        assert_eq!(single.max_ttl, Duration::from_secs(60));
        assert_eq!(single.quarantine, Duration::from_millis(60_601));
        let sentinel = rule("redis+sentinel://h/main?guard=true&max_ttl=10s");
        assert_eq!(sentinel.quarantine, Duration::from_millis(22_101));
        let cluster = rule("redis+cluster://h?guard=true&max_ttl=10s");
        assert_eq!(cluster.quarantine, Duration::from_millis(27_101));
        let own = rule("redis://h?guard=true&max_ttl=2s&deposed=3s&via_proxy=true");
        assert_eq!(own.quarantine, Duration::from_millis(5_021));
        assert_eq!(Rule::of(&RedisConfig::parse("redis://h").unwrap()), None);
    }

    #[test]
    fn hostile_words_of_a_marker_are_read_or_refused() {
        let sample = b"*5\r\n:1\r\n:60601\r\n:1\r\n$5\r\n60000\r\n$5\r\n60601\r\n";
        let read = |bytes: &[u8]| value_of(bytes).and_then(|it| MarkerState::read(&it));
        assert_eq!(read(sample).unwrap().left, Duration::from_millis(60_601));
        survives("the guard's marker", &[sample], |bytes| {
            read(bytes);
        });
    }
}
