//! Checks what a server's settings mean for locks.

use std::collections::HashMap;
use std::net::IpAddr;

use latchwork_store::BackendErrorKind;
use latchwork_store::doctor::{Finding, Tested, untested};

use super::rights::{acl, probe};
use super::server::Server;
use crate::config::{Deployment, RedisConfig};

/// A replica that has been silent for so long (s) is late: it reports to its master once a second.
const LAGGING: u64 = 3;

pub(super) async fn examine(server: &Server, config: &RedisConfig) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(why) = &server.no_info {
        findings.push(
            Finding::warning("info", format!("INFO is refused: {}", why.message))
                .consequence("eviction, persistence, replicas and version are not known; a free lock takes a longer script")
                .remedy(match why.kind {
                    BackendErrorKind::Denied => acl(config, "+info"),
                    _ => "let the server answer INFO: rename-command hides it, or this is no Redis".to_owned(),
                }),
        );
    } else {
        findings.extend(version(&server.info, server.link.facts.version, config));
        findings.push(eviction(server));
        findings.extend(memory(server));
        findings.push(persistence(server, config).await);
        findings.extend(disk(server));
        findings.extend(set_back(&server.info, config, may_select(server, config).await));
        if server.is_master() {
            findings.extend(writes(server, config).await);
            let alone = matches!(config.deployment, Deployment::Single(_));
            findings.push(replicas(&server.info, alone));
        } else {
            findings.push(replication_link(server));
        }
    }
    findings.push(protocol(server));
    findings.push(encryption(config, &server.link.endpoint().host));
    findings
}

/// What a server says of its version. A Valkey says the version of Redis that it is compatible with beside its
/// own; `commands` is the version of Redis whose commands the server has.
fn version(
    info: &HashMap<String, String>,
    commands: Option<(u32, u32)>,
    config: &RedisConfig,
) -> Vec<Finding> {
    let field = |name: &str| info.get(name).map_or("", |value| value.trim());
    let (redis, valkey) = (field("redis_version"), field("valkey_version"));
    let (found, tested) = match (sibling(info), redis, valkey) {
        (Some(name), ..) => {
            (format!("{name}, compatible with Redis {redis}"), Some(untested(&name)))
        }
        (None, "", "") => ("unknown".to_owned(), None),
        (None, redis, "") => (format!("Redis {redis}"), Tested::REDIS.judge(redis)),
        (None, "", valkey) => (format!("Valkey {valkey}"), Tested::VALKEY.judge(valkey)),
        (None, redis, valkey) => (
            format!("Valkey {valkey}, compatible with Redis {redis}"),
            Tested::VALKEY.judge(valkey),
        ),
    };
    let cluster = matches!(config.deployment, Deployment::Cluster(_));
    let finding = match commands {
        Some(version) if version >= (7, 0) => Finding::ok("version", found),
        Some(version) if version >= (6, 0) && cluster => Finding::warning("version", found)
            .consequence("no sharded pub/sub before 7.0: waiters are not notified and poll up to 20 times a second")
            .remedy("use Redis 7.0 or newer, or Valkey"),
        Some(version) if version >= (6, 0) => Finding::info("version", found)
            .consequence("a free lock takes a longer script than from 7.0 on (SET with NX and GET)"),
        Some(version) if version >= (5, 0) => Finding::warning("version", found)
            .consequence("no RESP3 before 6.0: waiters are not notified, and poll up to 20 times a second")
            .remedy("use Redis 7.0 or newer, or Valkey"),
        Some(_) => Finding::critical("version", found)
            .consequence("scripts that read the time and then write are refused before 5.0")
            .remedy("use Redis 7.0 or newer, or Valkey"),
        None => Finding::warning("version", found)
            .consequence("the server's capabilities are unknown")
            .remedy("use Redis 7.0 or newer, or Valkey, or a server that names its redis_version in INFO"),
    };
    std::iter::once(finding).chain(tested).collect()
}

/// The name of a server that is neither Redis nor Valkey, or of the service that it belongs to, where it says so.
fn sibling(info: &HashMap<String, String>) -> Option<String> {
    let field = |name: &str| info.get(name).map(|value| value.trim()).filter(|it| !it.is_empty());
    let says = [
        ("dragonfly", "Dragonfly"),
        ("redict", "Redict"),
        ("kvrocks", "Kvrocks"),
        ("garnet", "Garnet"),
    ];
    for (name, shown) in says {
        if let Some(version) = field(&format!("{name}_version")) {
            return Some(format!("{shown} {version}"));
        }
    }
    if field("executable").is_some_and(|path| path.ends_with("keydb-server")) {
        return Some("KeyDB".to_owned());
    }
    if let Some(service) = field("os").filter(|os| os.starts_with("Amazon ")) {
        return Some(service.to_owned());
    }
    let name = field("server_name").filter(|name| !["redis", "valkey"].contains(name));
    name.map(str::to_owned)
}

fn eviction(server: &Server) -> Finding {
    let policy = server.field("maxmemory_policy");
    let limit = server.number("maxmemory").unwrap_or(0);
    match policy {
        "noeviction" => Finding::ok("eviction-policy", policy),
        _ if limit == 0 => {
            Finding::ok("eviction-policy", format!("{policy}, without a limit (maxmemory 0)"))
        }
        _ => Finding::critical("eviction-policy", format!("{policy}, maxmemory {limit}"))
            .consequence(
                "the server may evict a held lock, and its holder learns of it only at \
                the next renewal",
            )
            .remedy("set maxmemory-policy noeviction, or use a server that is not a cache"),
    }
}

/// Whether the server takes no write because too few replicas follow it. The one that is tried changes nothing.
async fn writes(server: &Server, config: &RedisConfig) -> Option<Finding> {
    let refused = server.ask(&["DEL", &probe(config)]).await.err()?;
    refused.contains("NOREPLICAS").then(|| {
        Finding::critical("writes", refused)
            .consequence("no lock can be acquired, renewed or released")
            .remedy("connect the replicas, or lower min-replicas-to-write")
    })
}

fn memory(server: &Server) -> Option<Finding> {
    let (limit, used) = (server.number("maxmemory")?, server.number("used_memory")?);
    if limit == 0 {
        return None;
    }
    let found = format!("{} of {} KiB are in use", used >> 10, limit >> 10);
    Some(if used >= limit {
        Finding::critical("memory", found)
            .consequence("no lock can be acquired; held locks can be renewed and released")
            .remedy("free memory or raise maxmemory")
    } else if used > limit / 10 * 9 {
        Finding::warning("memory", found)
            .consequence("soon no lock can be acquired")
            .remedy("free memory or raise maxmemory")
    } else {
        Finding::ok("memory", found)
    })
}

async fn persistence(server: &Server, config: &RedisConfig) -> Finding {
    const CODE: &str = "persistence";
    const STEP: &str = "add guard=true to the address of all clients, or appendfsync always";
    let aof = server.field("aof_enabled") == "1";
    let (found, loss) = match loss_at_restart(server, aof).await {
        (found, None) => return Finding::ok(CODE, found),
        (found, Some(loss)) => (found, loss),
    };
    if config.guard {
        return Finding::info(CODE, found).consequence(format!(
            "{loss}; the guard then grants nothing until all of them have expired; a period that \
             `once` has closed for longer is open again"
        ));
    }
    if config.min_replicas > 0 && !aof {
        // A crash of the process is enough, and replicas hold nothing back.
        return Finding::critical(CODE, found)
            .consequence(format!(
                "{loss}; if the master comes back at once, its replicas lose them too, so \
                 min_replicas does not exclude a second holder"
            ))
            .remedy(STEP);
    }
    Finding::warning(CODE, found)
        .consequence(format!(
            "{loss}: a second client can acquire a held lock, and a task that `once` has closed \
             runs again"
        ))
        .remedy(STEP)
}

/// How the server keeps its data, and which locks a restart loses, if any.
async fn loss_at_restart(server: &Server, aof: bool) -> (String, Option<&'static str>) {
    if aof {
        let Some(fsync) = server.setting("appendfsync").await else {
            return (
                "aof, and this user may not read appendfsync".into(),
                Some(
                    "unless it is always, a restart after a crash of the machine loses the latest locks",
                ),
            );
        };
        let loss = match &*fsync {
            "always" => None,
            "everysec" => Some(
                "a restart after a crash of the machine loses the locks of the last two seconds",
            ),
            _ => Some(
                "a restart after a crash of the machine loses the locks of the last half minute or so",
            ),
        };
        return (format!("aof, appendfsync {fsync}"), loss);
    }
    match server.setting("save").await.as_deref() {
        Some("") => ("none".into(), Some("a restart loses all locks")),
        Some(save) => (
            format!("rdb (save {save})"),
            Some(
                "a restart after a crash loses all locks since the last snapshot, and restores \
                 those of the snapshot",
            ),
        ),
        None => (
            "no aof, and this user may not read save".into(),
            Some("a restart loses all locks, or all since the last snapshot"),
        ),
    }
}

/// What the server could not write to its disk.
fn disk(server: &Server) -> impl Iterator<Item = Finding> {
    ["rdb_last_bgsave_status", "aof_last_write_status", "aof_last_bgrewrite_status"]
        .into_iter()
        .filter(|field| server.field(field) == "err")
        .map(|field| {
            Finding::critical("disk", format!("{field} is err"))
                .consequence(
                    "the server may refuse all writes: no lock is acquired, renewed or released \
                     (MISCONF)",
                )
                .remedy("check the server's disk and its log")
        })
}

/// Whether the user may change the database inside a script, which the guard does when the data of two have
/// changed places.
async fn may_select(server: &Server, config: &RedisConfig) -> bool {
    let database = config.database.to_string();
    let select = ["EVAL", "return redis.call('SELECT', ARGV[1])", "0", &database];
    server.ask(&select).await.is_ok()
}

/// Whether commands have set data back inside the running process.
fn set_back(
    info: &HashMap<String, String>,
    config: &RedisConfig,
    may_select: bool,
) -> Vec<Finding> {
    let done = |command: &str| {
        let counts = info.get(&format!("cmdstat_{command}")).map_or("", String::as_str);
        let count = |name: &str| {
            let mut parts = counts.split(',').filter_map(|part| part.split_once('='));
            parts.find(|(n, _)| *n == name).and_then(|(_, it)| it.parse::<u64>().ok()).unwrap_or(0)
        };
        count("calls").saturating_sub(count("failed_calls"))
    };
    let (swaps, debugs) = (done("swapdb"), done("debug"));
    let cluster = matches!(config.deployment, Deployment::Cluster(_));
    let mut findings = Vec::new();
    let swapped = format!("SWAPDB has run {swaps} times");
    let stays_hidden = "when two databases have changed places and change back, the guard does not see that \
                        locks were lost in between: a second client can acquire a held lock";
    match (config.guard, swaps) {
        (true, 0) if !cluster && !may_select => findings.push(
            Finding::warning("swapdb", "SELECT is refused inside scripts; SWAPDB has not run")
                .consequence(stays_hidden)
                .remedy(acl(config, "+select")),
        ),
        (_, 0) => {}
        (true, _) if may_select => findings.push(
            Finding::info("swapdb", swapped).consequence(
                "each time, a database that has locks grants none for one quarantine",
            ),
        ),
        (true, _) => findings.push(
            Finding::critical("swapdb", format!("{swapped}, and SELECT is refused inside scripts"))
                .consequence(stays_hidden)
                .remedy(acl(config, "+select")),
        ),
        (false, _) => findings.push(
            Finding::warning("swapdb", swapped)
                .consequence(
                    "each time, a database loses its locks: a second client can acquire a held lock",
                )
                .remedy("add guard=true to the address of all clients, or give the locks a server of their own"),
        ),
    }
    if config.guard && debugs > 0 {
        findings.push(
            Finding::critical("debug", format!("DEBUG has run {debugs} times"))
                .consequence(
                    "DEBUG RELOAD NOSAVE loads an old snapshot into the running process, and the guard \
                     does not see that locks were lost: a second client can acquire a held lock",
                )
                .remedy(
                    "set enable-debug-command no (from Redis 7.0 on), or take DEBUG from all users; \
                     then restart the server, so that the guard waits for lost locks",
                ),
        );
    }
    findings
}

/// The replicas as their master sees them.
fn replicas(info: &HashMap<String, String>, alone: bool) -> Finding {
    let count: u64 = info.get("connected_slaves").and_then(|n| n.parse().ok()).unwrap_or(0);
    let mut late = Vec::new();
    // No more than are described, whatever the count says.
    for line in (0..count).map_while(|n| info.get(&format!("slave{n}"))) {
        let part = |name: &str| {
            let mut parts = line.split(',').filter_map(|part| part.split_once('='));
            parts.find(|(n, _)| *n == name).map_or("", |(_, value)| value).to_owned()
        };
        let lag = part("lag").parse().unwrap_or(0);
        if part("state") != "online" || lag >= LAGGING {
            let (ip, port, state) = (part("ip"), part("port"), part("state"));
            late.push(format!("{ip}:{port} is {state}, heard of {lag} s ago"));
        }
    }
    if !late.is_empty() {
        return Finding::warning("replicas", format!("{count} replicas, {}", late.join(", ")))
            .consequence("a failover to it loses the locks of that time")
            .remedy("check the replica and the network between the two servers");
    }
    match (count, alone) {
        (0, true) => Finding::info("replicas", "none")
            .consequence("no replica takes over while the server is down"),
        (0, false) => Finding::warning("replicas", "none")
            .consequence("no replica can take over if this master fails")
            .remedy("add a replica"),
        _ => Finding::ok("replicas", format!("{count}, none is late")),
    }
}

fn replication_link(server: &Server) -> Finding {
    let (host, port) = (server.field("master_host"), server.field("master_port"));
    let found =
        format!("a replica of {host}:{port}, the link is {}", server.field("master_link_status"));
    if server.field("master_link_status") == "up" {
        return Finding::ok("replication", found);
    }
    Finding::warning("replication", found)
        .consequence("it receives no locks, and would lose them all after a failover to it")
        .remedy("check its connection to the master")
}

fn protocol(server: &Server) -> Finding {
    if server.link.facts.pushes {
        return Finding::ok("protocol", "RESP3: messages come on the same connection");
    }
    Finding::warning(
        "protocol",
        "RESP2: the server, or a proxy in front of it, does not support HELLO 3",
    )
    .consequence("waiters are not notified when a lock is free, and poll up to 20 times a second")
    .remedy("use Redis 6.0 or newer, or Valkey, without a proxy")
}

fn encryption(config: &RedisConfig, host: &str) -> Finding {
    match &config.tls {
        Some(tls) if tls.insecure => Finding::warning("tls", "on, and any certificate is trusted")
            .consequence("anyone between the client and the server can read and change everything")
            .remedy("leave insecure out, and name the authority with ca=/path"),
        Some(_) => Finding::ok("tls", "on"),
        None if is_here(host) => Finding::ok("tls", "off, on this machine"),
        None => Finding::warning("tls", "off")
            .consequence(
                "anyone on the network can read names, holders and the password, and \
                can take locks away",
            )
            .remedy("use the scheme rediss or valkeys, or a private network"),
    }
}

fn is_here(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use latchwork_services::hostile::survives;
    use latchwork_store::doctor::Severity;

    use super::*;

    #[test]
    fn only_loopback_addresses_are_on_this_machine() {
        for (host, here) in [
            ("127.0.0.1", true),
            ("127.1.2.3", true),
            ("::1", true),
            ("localhost", true),
            ("10.0.0.1", false),
            ("redis", false),
        ] {
            assert_eq!(is_here(host), here, "{host}");
            let found = encryption(&RedisConfig::parse("redis://h").unwrap(), host);
            let step =
                if here { "" } else { "use the scheme rediss or valkeys, or a private network" };
            assert_eq!(found.remedy, step, "{host}");
        }
    }

    #[test]
    fn h254_a_sibling_of_redis_is_named_as_untested() {
        for (fields, name) in [
            (&[("dragonfly_version", "df-v1.30.0")][..], "Dragonfly df-v1.30.0"),
            (&[("redict_version", "7.3.6")], "Redict 7.3.6"),
            (&[("executable", "/usr/bin/keydb-server")], "KeyDB"),
            (&[("os", "Amazon ElastiCache")], "Amazon ElastiCache"),
            (&[("server_name", "garnet")], "garnet"),
        ] {
            let all = fields.iter().chain(&[("redis_version", "7.4.0")]);
            let info = all.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            let config = RedisConfig::parse("redis://h").unwrap();
            let findings = version(&info, Some((7, 4)), &config);
            assert_eq!(findings[0].found, format!("{name}, compatible with Redis 7.4.0"));
            assert_eq!(
                (findings[1].code, findings[1].severity),
                ("untested-version", Severity::Info)
            );
            assert!(findings[1].found.starts_with(name), "{findings:?}");
        }
        for (name, value) in
            [("os", "Linux 6.1"), ("server_name", "valkey"), ("executable", "/redis-server")]
        {
            assert_eq!(sibling(&[(name.to_owned(), value.to_owned())].into()), None);
        }
    }

    #[test]
    fn a_valkey_is_named_by_its_own_version() {
        let valkey = "redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:";
        let untested = Some(Severity::Info);
        for (info, found, severity, tested) in [
            ("redis_version:4.0.14", "Redis 4.0.14", Severity::Critical, untested),
            ("redis_version:5.0.14", "Redis 5.0.14", Severity::Warning, untested),
            ("redis_version:6.2.5", "Redis 6.2.5", Severity::Info, None),
            ("redis_version:7.2.4", "Redis 7.2.4", Severity::Ok, None),
            ("redis_version:8.4.0", "Redis 8.4.0", Severity::Ok, untested),
            (
                &format!("{valkey}7.2.12"),
                "Valkey 7.2.12, compatible with Redis 7.2.4",
                Severity::Ok,
                untested,
            ),
            (
                &format!("{valkey}8.1.8"),
                "Valkey 8.1.8, compatible with Redis 7.2.4",
                Severity::Ok,
                None,
            ),
            (
                &format!("{valkey}9.0.0"),
                "Valkey 9.0.0, compatible with Redis 7.2.4",
                Severity::Ok,
                untested,
            ),
            ("valkey_version:8.1.8", "Valkey 8.1.8", Severity::Ok, None),
            ("role:master", "unknown", Severity::Warning, None),
        ] {
            let fields: HashMap<_, _> = crate::server::reply::fields(info)
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect();
            let commands = crate::server::facts::Facts::read(info).version;
            let config = RedisConfig::parse("valkey://h").unwrap();
            let findings = version(&fields, commands, &config);
            assert_eq!((&*findings[0].found, findings[0].severity), (found, severity), "{info}");
            let step = match (commands, severity) {
                (_, Severity::Ok | Severity::Info) => "",
                (Some(_), _) => "use Redis 7.0 or newer, or Valkey",
                (None, _) => {
                    "use Redis 7.0 or newer, or Valkey, or a server that names its redis_version in INFO"
                }
            };
            assert_eq!(findings[0].remedy, step, "{info}");
            assert_eq!(findings.get(1).map(|one| one.severity), tested, "{info}: {findings:?}");
            if let Some(one) = findings.get(1) {
                assert!(found.starts_with(one.found.split(" is ").next().unwrap()), "{one:?}");
            }
        }
    }

    #[test]
    fn h229_commands_that_set_data_back_are_found() {
        let judged = |info: &str, url: &str, may_select| {
            let config = RedisConfig::parse(url).unwrap();
            let found =
                set_back(&crate::doctor::server::info(&bulk(info.as_bytes())), &config, may_select);
            found.into_iter().map(|it| (it.code, it.severity)).collect::<Vec<_>>()
        };
        let swapped = "cmdstat_swapdb:calls=2,usec=7,rejected_calls=0,failed_calls=0\r\n";
        let tried = "cmdstat_swapdb:calls=2,usec=7,rejected_calls=0,failed_calls=2\r\n\
                     cmdstat_debug:calls=1,usec=7,usec_per_call=7.00,failed_calls=1\r\n";
        let (guard, none) = ("redis://h?guard=true", "redis://h");
        let one = |code, severity| vec![(code, severity)];
        assert_eq!(judged("", guard, true), []);
        assert_eq!(judged("", guard, false), one("swapdb", Severity::Warning));
        assert_eq!(judged("", "redis+cluster://h?guard=true", false), []);
        assert_eq!(judged(swapped, guard, true), one("swapdb", Severity::Info));
        assert_eq!(judged(swapped, guard, false), one("swapdb", Severity::Critical));
        assert_eq!(judged(swapped, none, true), one("swapdb", Severity::Warning));
        assert_eq!(judged(tried, guard, true), [], "failed calls have changed nothing");
        let debugged = "cmdstat_debug:calls=1,usec=7,usec_per_call=7.00\r\n";
        assert_eq!(judged(debugged, guard, true), one("debug", Severity::Critical));
        assert_eq!(judged(debugged, none, true), []);
    }

    #[test]
    fn hostile_words_about_replicas_are_judged_at_once() {
        let sample = b"role:master\r\nconnected_slaves:2\r\n\
            slave0:ip=10.0.0.2,port=6379,state=online,offset=7,lag=0\r\n\
            slave1:ip=10.0.0.3,port=6379,state=wait_bgsave,offset=0,lag=9\r\n";
        let judged = |bytes: &[u8]| replicas(&crate::doctor::server::info(&bulk(bytes)), false);
        assert!(judged(sample).found.contains("10.0.0.3:6379 is wait_bgsave"));
        assert_eq!(judged(b"connected_slaves:0").remedy, "add a replica");
        // A server that lies about how many there are keeps nobody busy.
        let lie = b"connected_slaves:18446744073709551615\r\nslave0:ip=h,port=1,state=online,lag=0";
        assert!(judged(lie).found.contains("none is late"));
        survives("INFO of a master", &[sample, lie], |bytes| drop(judged(bytes)));
    }

    fn bulk(bytes: &[u8]) -> redis::Value {
        redis::Value::BulkString(bytes.to_vec())
    }
}
