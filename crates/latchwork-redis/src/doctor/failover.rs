//! Checks that a replaced master stops writing soon enough for the guard.
//!
//! The promoted replica leaves the old master. So of `n` replicas at most `n - 1` stay with it, and fewer
//! where the side of a partition that promotes must have more of them: that side has a majority of the
//! Sentinels, which may run beside replicas. A master stops writing in every partition exactly if it needs
//! more replicas than may stay.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use latchwork_store::doctor::Finding;

use super::rights::{CONFIG_GET, acl};
use super::server::Server;
use crate::config::{Endpoint, RedisConfig};
use crate::protocol::guard::Rule;

/// With more machines than this, the worst case is assumed.
const MOST: usize = 64;
/// Redis counts a replica's silence in whole seconds, and checks it once a second.
const ROUNDED: Duration = Duration::from_secs(2);

/// The servers and the Sentinels that a set has, and where they are.
#[derive(Debug, Default)]
pub(super) struct Placement {
    pub(super) servers: Vec<Endpoint>,
    pub(super) sentinels: Vec<Endpoint>,
    /// How many more Sentinels there are, whose addresses are not known.
    pub(super) unnamed: usize,
}

impl Placement {
    /// How many replicas there are beside a server.
    fn replicas(&self) -> usize {
        self.servers.len().saturating_sub(1)
    }

    /// How many replicas may stay with this master, with the rest of them and a majority of the
    /// Sentinels on the other side.
    pub(super) fn may_stay(&self, master: &Endpoint) -> usize {
        let replicas = self.replicas();
        let mut machines: BTreeMap<String, (usize, usize)> = BTreeMap::new();
        for sentinel in &self.sentinels {
            machines.entry(machine(sentinel)).or_default().0 += 1;
        }
        for server in self.servers.iter().filter(|server| *server != master) {
            machines.entry(machine(server)).or_default().1 += 1;
        }
        machines.remove(&machine(master));
        if machines.len().saturating_add(self.unnamed) > MOST {
            return replicas.saturating_sub(1);
        }
        let majority = (self.sentinels.len() + self.unnamed) / 2 + 1;
        // The numbers of Sentinels and of replicas that one side of a partition can have.
        let mut sides = BTreeSet::from([(0, 0)]);
        let unnamed = std::iter::repeat_n(&(1, 0), self.unnamed);
        for (more, others) in machines.values().chain(unnamed) {
            let with: Vec<_> = sides
                .iter()
                .map(|(sentinels, servers)| ((sentinels + more).min(majority), servers + others))
                .collect();
            sides.extend(with);
        }
        let promoting = sides.into_iter().filter(|side| side.0 >= majority && side.1 > 0);
        // If the other side can promote no replica, this master is never replaced, and none stays.
        promoting.map(|(_, gone)| replicas - gone).max().unwrap_or(0)
    }
}

/// The machine of a server, which no partition divides. Loopback addresses may lead to several machines, by tunnels
/// or a container network.
fn machine(at: &Endpoint) -> String {
    match at.host.parse::<IpAddr>() {
        Ok(ip) if !ip.is_loopback() => at.host.clone(),
        _ => at.to_string(),
    }
}

/// The settings of a server behind Sentinels.
struct Settings {
    version: Option<(u32, u32)>,
    least: Option<usize>,
    lag: Option<u64>,
    /// The line that lets the user read them.
    grant: String,
}

pub(super) async fn examine(
    server: &Server,
    config: &RedisConfig,
    placement: &Placement,
) -> Finding {
    let number = async |name| server.setting(name).await.and_then(|text| text.parse().ok());
    let settings = Settings {
        version: server.link.facts.version,
        least: number("min-replicas-to-write").await.and_then(|n: u64| n.try_into().ok()),
        lag: number("min-replicas-max-lag").await,
        grant: acl(config, CONFIG_GET),
    };
    // Replicas that no Sentinel knows may be connected; they are counted as staying.
    let connected = server.number("connected_slaves").unwrap_or(0);
    let connected = usize::try_from(connected).unwrap_or(usize::MAX);
    let unknown = connected.saturating_sub(placement.replicas());
    let stay = placement.may_stay(server.link.endpoint()).saturating_add(unknown);
    let all = placement.replicas().saturating_add(unknown);
    let deposed = Rule::of(config).map(|rule| rule.deposed);
    judge(&settings, stay, all, deposed, config.min_replicas)
}

/// `stay` of `all` replicas may stay with this server when it is replaced; `deposed` is what the
/// guard waits for, if it is on, and `confirming` are the replicas that a lock waits for.
fn judge(
    settings: &Settings,
    stay: usize,
    all: usize,
    deposed: Option<Duration>,
    confirming: u32,
) -> Finding {
    let waits = match confirming {
        0 => "locks do not wait for replicas (WAIT)".into(),
        few => format!("locks wait for {few} replicas (WAIT)"),
    };
    let needed = stay.saturating_add(1);
    if confirming as usize >= needed {
        // The settings do not matter then: a lock that too few replicas confirm does not count.
        let found = format!("{waits}, and at most {stay} of {all} stay with a replaced master");
        return price(found, confirming as usize, all);
    }
    let gap = |found: String| {
        let make = if deposed.is_some() { Finding::critical } else { Finding::warning };
        make("min-replicas", format!("{found}; {waits}"))
            .consequence("an isolated master continues to grant and renew locks beside the new one")
    };
    let (Some(least), Some(lag)) = (settings.least, settings.lag) else {
        let consequence = "unless they are set correctly, an isolated master continues to grant \
            locks beside the new one";
        let found = "this user may not read min-replicas-to-write and min-replicas-max-lag";
        let found = format!("{found}; {waits}");
        let make = if deposed.is_some() { Finding::warning } else { Finding::info };
        return make("min-replicas", found).consequence(consequence).remedy(&*settings.grant);
    };
    if settings.version.is_some_and(|version| version < (7, 0)) {
        return gap(
            "before Redis 7.0, scripts write even if min-replicas-to-write forbids it".into()
        )
        .remedy("use Redis 7.0 or newer, Valkey, or a Cluster");
    }
    if least == 0 || lag == 0 {
        let name = if least == 0 { "min-replicas-to-write" } else { "min-replicas-max-lag" };
        return gap(format!("{name} is 0")).remedy(format!(
            "set min-replicas-to-write {needed} and min-replicas-max-lag 10 on all servers"
        ));
    }
    if least < needed {
        return gap(format!(
            "min-replicas-to-write is {least}, and {stay} of {all} replicas may stay with a master \
             that was replaced"
        ))
        .remedy(format!(
            "set min-replicas-to-write {needed} on all servers; fewer are enough if each server \
             has a Sentinel on its machine and there are no others"
        ));
    }
    let stops = Duration::from_secs(lag).saturating_add(ROUNDED);
    if let Some(deposed) = deposed.filter(|deposed| *deposed < stops) {
        return gap(format!(
            "min-replicas-max-lag is {lag} s, so a replaced master stops after {stops:?}, and \
             deposed is {deposed:?}"
        ))
        .remedy(format!(
            "set a smaller min-replicas-max-lag on all servers, or deposed={}s in the address of \
             all clients",
            stops.as_secs()
        ));
    }
    price(format!("min-replicas-to-write {least}, max-lag {lag} s; {waits}"), least, all)
}

/// The finding for settings without a gap: they may cost availability.
fn price(found: String, needed: usize, all: usize) -> Finding {
    if needed >= all {
        return Finding::info("min-replicas", found).consequence(
            "no lock is granted while a replica is down, or after a failover until the old \
             master is back as a replica",
        );
    }
    Finding::ok("min-replicas", found)
}

/// Compares the time after which an isolated node of a Cluster stops with the time that the guard waits.
/// `shortest` is the shortest timeout of all nodes, in milliseconds.
///
/// A node that is cut off misses the others after one and a half of its timeouts at most: it sends the
/// first unanswered ping within half of one. Nodes with the shortest timeout need at least one of their
/// timeouts to replace it.
pub(super) fn node_timeout(millis: &str, shortest: u64, config: &RedisConfig) -> Finding {
    const CODE: &str = "cluster-node-timeout";
    let found = format!("{millis} ms");
    let told = Finding::info(CODE, &*found).consequence(
        "an isolated master continues to grant and renew locks for that long and two seconds \
         more",
    );
    let Some(rule) = Rule::of(config) else { return told };
    let Ok(timeout) = millis.parse().map(Duration::from_millis) else { return told };
    let ahead = (timeout / 2).saturating_sub(Duration::from_millis(shortest));
    let stops = timeout.saturating_add(ahead).saturating_add(ROUNDED);
    if stops <= rule.deposed {
        return Finding::ok(CODE, format!("{found}, deposed {:?}", rule.deposed));
    }
    let seconds = stops.as_secs().saturating_add(1);
    Finding::critical(CODE, format!("{found}, and deposed is {:?}", rule.deposed))
        .consequence("an isolated master continues to grant and renew locks beside the new one")
        .remedy(format!(
            "set a smaller cluster-node-timeout, the same on all nodes, or deposed={seconds}s in the \
             address of all clients"
        ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: impl std::fmt::Display, port: u16) -> Endpoint {
        Endpoint { host: host.to_string(), port }
    }

    fn servers(count: usize) -> Vec<Endpoint> {
        (0..=count).map(|n| at(format_args!("10.0.0.{n}"), 6379)).collect()
    }

    fn sentinels(hosts: impl IntoIterator<Item = usize>) -> Vec<Endpoint> {
        hosts.into_iter().map(|n| at(format_args!("10.0.0.{n}"), 26379)).collect()
    }

    /// What may stay with the first server, by trying every partition of the machines.
    fn by_trial(placement: &Placement) -> usize {
        let hosts: BTreeSet<_> =
            placement.servers.iter().chain(&placement.sentinels).map(machine).collect();
        let hosts: Vec<_> = hosts.into_iter().collect();
        let (master, replicas) = placement.servers.split_first().unwrap();
        let mut most = 0;
        for partition in 0..1_u32 << hosts.len() {
            let far = |at: &Endpoint| {
                let host = hosts.iter().position(|host| *host == machine(at)).unwrap();
                partition >> host & 1 == 1
            };
            let votes = placement.sentinels.iter().filter(|at| far(at)).count();
            let gone = replicas.iter().filter(|at| far(at)).count();
            if !far(master) && gone > 0 && votes > placement.sentinels.len() / 2 {
                most = most.max(replicas.len() - gone);
            }
        }
        most
    }

    #[test]
    fn replicas_beside_a_replaced_master_are_counted() {
        for count in 1..=5 {
            for hosts in [
                // Elsewhere; one beside each; beside the first three; two beside the master.
                (20..23).collect::<Vec<_>>(),
                (0..=count).collect(),
                (0..3).collect(),
                vec![0, 0, 1],
                vec![0, 20, 21, 22, 1],
                vec![1, 1, 1, 2, 3],
            ] {
                let placement = Placement {
                    servers: servers(count),
                    sentinels: sentinels(hosts.clone()),
                    unnamed: 0,
                };
                let stay = placement.may_stay(&placement.servers[0]);
                assert_eq!(stay, by_trial(&placement), "{count} replicas, Sentinels at {hosts:?}");
            }
        }
    }

    /// H84: with the Sentinels anywhere, all replicas but the promoted one may stay; a bound of
    /// half of them is too low. With one beside each server half of them is enough.
    #[test]
    fn h84_all_but_one_may_stay_unless_sentinels_stand_beside() {
        for (count, elsewhere, beside) in [(1, 0, 0), (2, 1, 0), (3, 2, 0), (4, 3, 1)] {
            let of = |sentinels| Placement { servers: servers(count), sentinels, unnamed: 0 };
            let placement = of(sentinels(20..23));
            assert_eq!(placement.may_stay(&placement.servers[0]), elsewhere);
            let placement = of(sentinels(0..=count));
            assert_eq!(placement.may_stay(&placement.servers[0]), beside);
            assert!(beside < count.div_ceil(2));
            // Nobody knows where they are.
            let placement = Placement { unnamed: 3, ..of(Vec::new()) };
            assert_eq!(placement.may_stay(&placement.servers[0]), elsewhere);
        }
        // On this machine every address may lead to another one.
        let placement = Placement {
            servers: (1..=3).map(|port| at("127.0.0.1", port)).collect(),
            sentinels: (4..=6).map(|port| at("127.0.0.1", port)).collect(),
            unnamed: 0,
        };
        assert_eq!(placement.may_stay(&placement.servers[0]), 1);
        assert_eq!(Placement::default().may_stay(&at("10.0.0.1", 1)), 0);
    }

    fn settings(version: Option<(u32, u32)>, least: Option<usize>, lag: Option<u64>) -> Settings {
        Settings { version, least, lag, grant: "ACL SETUSER app +config|get".into() }
    }

    fn severity(
        least: usize,
        lag: u64,
        stay: usize,
        deposed: Option<u64>,
        confirming: u32,
    ) -> &'static str {
        let settings = settings(Some((7, 0)), Some(least), Some(lag));
        let deposed = deposed.map(Duration::from_secs);
        judge(&settings, stay, 4, deposed, confirming).severity.word()
    }

    /// H84: each gap that the guard would have is critical, and a bound without one is not.
    #[test]
    fn h84_settings_are_judged_against_each_other() {
        for (least, lag, stay, deposed, word) in [
            (1, 10, 0, Some(12), "ok"),
            (2, 10, 1, Some(12), "ok"),
            (1, 10, 1, Some(12), "critical"),
            (2, 10, 2, Some(12), "critical"),
            (3, 10, 2, Some(12), "ok"),
            (4, 10, 3, Some(12), "info"),
            (0, 10, 0, Some(12), "critical"),
            (1, 0, 0, Some(12), "critical"),
            (1, 11, 0, Some(12), "critical"),
            (1, 30, 0, Some(32), "ok"),
            (1, u64::MAX, 0, Some(12), "critical"),
            (1, 30, 0, None, "ok"),
            (1, 10, 1, None, "warning"),
            (0, 10, 0, None, "warning"),
        ] {
            let found = severity(least, lag, stay, deposed, 0);
            assert_eq!(found, word, "{least} {lag} {stay} {deposed:?}");
        }
        let old = settings(Some((6, 2)), Some(4), Some(10));
        assert_eq!(judge(&old, 0, 4, Some(Duration::from_secs(12)), 0).severity.word(), "critical");
        assert_eq!(judge(&old, 0, 4, Some(Duration::from_secs(12)), 1).severity.word(), "ok");
        // A lock that waits for more replicas than may stay counts on no replaced master.
        for (stay, confirming, word) in [(1, 1, "critical"), (1, 2, "ok"), (3, 4, "info")] {
            assert_eq!(severity(0, 10, stay, Some(12), confirming), word, "{stay} {confirming}");
        }
        let unread = settings(None, None, Some(10));
        assert_eq!(judge(&unread, 0, 4, Some(Duration::ZERO), 0).severity.word(), "warning");
        assert_eq!(judge(&unread, 0, 4, None, 0).severity.word(), "info");
    }

    #[test]
    fn h84_a_node_timeout_beyond_deposed_is_critical() {
        for (millis, shortest, options, word) in [
            ("15000", 15_000, "guard=true", "ok"),
            ("15001", 15_001, "guard=true", "critical"),
            ("20000", 20_000, "guard=true&deposed=22s", "ok"),
            ("20000", 20_000, "", "info"),
            ("18446744073709551615", u64::MAX, "guard=true", "critical"),
            ("soon", u64::MAX, "guard=true", "info"),
            // It stops after 22.5 s, and is replaced after 1 s at least, or after 8 s.
            ("15000", 1_000, "guard=true", "critical"),
            ("15000", 1_000, "guard=true&deposed=23500ms", "ok"),
            ("15000", 8_000, "guard=true", "ok"),
        ] {
            let config = RedisConfig::parse(&format!("redis+cluster://h?{options}")).unwrap();
            let found = node_timeout(millis, shortest, &config);
            assert_eq!(found.severity.word(), word, "{millis} {shortest} {options}");
        }
    }
}
