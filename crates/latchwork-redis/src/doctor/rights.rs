//! Checks the rights of the user.
//!
//! Every command that Latchwork sends, itself or inside a script, is tried on a name that is made
//! for it, in the namespace of the address, and removed again. The server checks the rights before anything else, so an error of
//! another kind (a replica's, or that of a wrong type) means that the command is allowed.

use latchwork_store::BackendErrorKind;
use latchwork_store::doctor::Finding;
use redis::Value;

use super::server::Server;
use crate::config::{Deployment, RedisConfig};
use crate::server::connection::command;
use crate::server::reply::{pairs, text};

const NAME: &str = "lw:probe";
const CHANNEL: &str = "lw:push:probe";
/// On a Cluster, too.
const ON_CLUSTER: &[&str] = &["CLUSTER SLOTS", "CLUSTER INFO", "ASKING"];
/// With `min_replicas`, too.
const WITH_REPLICAS: &str = "WAIT 0 0";

/// Without these there is no lock. The first creates the key, which expires; no other creates a key of
/// another type that would stay.
const NEEDED: &[&str] = &[
    "SET lw:probe x PX 1000",
    "GET lw:probe",
    "MGET lw:probe",
    "INCRBY lw:probe 1",
    "EXISTS lw:probe",
    "PTTL lw:probe",
    "SETRANGE lw:probe 0 x",
    "LPUSH lw:probe x",
    "RPUSH lw:probe x",
    "LPOP lw:probe",
    "LLEN lw:probe",
    "LINDEX lw:probe 0",
    "LRANGE lw:probe 0 0",
    "LSET lw:probe 0 x",
    "LREM lw:probe 1 x",
    "HSET lw:probe f x",
    "HGET lw:probe f",
    "HDEL lw:probe f",
    "HLEN lw:probe",
    "ZADD lw:probe XX 1 x",
    "ZREM lw:probe x",
    "ZCARD lw:probe",
    "ZSCORE lw:probe x",
    "ZRANGE lw:probe 0 0",
    "ZRANGEBYSCORE lw:probe 0 0",
    "PEXPIRE lw:probe 1000",
    "EVALSHA 0000000000000000000000000000000000000000 1 lw:probe",
    "EVAL return~redis.call('GET',KEYS[1]) 1 lw:probe",
    "TIME",
    "DEL lw:probe",
];
/// Without these `show` and `ls` do not work.
const LOOKING: &[&str] = &["TYPE lw:probe", "GETRANGE lw:probe 0 2", "SCAN 0 MATCH lw:probe"];
/// Without these a request of an old connection may run late.
const ORDERLY: &[&str] = &["CLIENT ID", "CLIENT KILL ID 0"];

/// The server's answer to a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Right {
    Yes,
    /// Not this command.
    NoCommand,
    /// Not on this name or channel.
    NoName,
}

/// What reads the settings of a server.
pub(super) const CONFIG_GET: &str = "+config|get";
/// What reads the state of a Cluster.
pub(super) const CLUSTER: &str = "+cluster|info +cluster|slots +cluster|nodes";

/// The line that gives rights to the user of the address, as it is typed at the server.
pub(super) fn acl(config: &RedisConfig, rights: &str) -> String {
    format!("ACL SETUSER {} {rights}", config.credentials.current().0.user())
}

/// As [`acl`], for commands as [`tried`] names them.
fn allow(config: &RedisConfig, commands: &[String]) -> String {
    acl(config, &format!("+{}", commands.join(" +").to_lowercase()))
}

/// The beginning of the names that are tried: the first namespace of the address, with its separator.
fn namespace(config: &RedisConfig) -> String {
    config.namespaces.first().map_or_else(String::new, |name| format!("{name}:"))
}

/// A name that no lock has, in the namespace of the address.
pub(super) fn probe(config: &RedisConfig) -> String {
    format!("{}{NAME}", namespace(config))
}

pub(super) async fn examine(server: &Server, config: &RedisConfig) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut confined = false;
    let namespace = namespace(config);
    let cluster = matches!(config.deployment, Deployment::Cluster(_));
    let mut commands = if cluster { ON_CLUSTER.to_vec() } else { Vec::new() };
    commands.extend((config.min_replicas > 0).then_some(WITH_REPLICAS));
    commands.extend(NEEDED);
    let needed = tried(server, &namespace, &commands, &mut confined).await;
    findings.push(if needed.is_empty() {
        Finding::ok("rights", "all commands that locks need")
    } else {
        Finding::critical("rights", format!("refused: {}", needed.join(", ")))
            .consequence("no lock can be acquired, or none released")
            .remedy(allow(config, &needed))
    });
    findings.extend(names(server, config, confined).await);
    let looking = tried(server, &namespace, LOOKING, &mut confined).await;
    if !looking.is_empty() {
        findings.push(
            Finding::warning("rights-looking", format!("refused: {}", looking.join(", ")))
                .consequence("show, ls and parts of this report do not work")
                .remedy(allow(config, &looking)),
        );
    }
    let orderly = tried(server, &namespace, ORDERLY, &mut confined).await;
    if !orderly.is_empty() {
        findings.push(
            Finding::info("rights-client", format!("refused: {}", orderly.join(", ")))
                .consequence("a request of a broken connection may still run after its withdrawal: such a key is free only after the ttl")
                .remedy(allow(config, &orderly)),
        );
    }
    findings.push(channels(server, config, confined).await);
    findings
}

/// What it means that the user has no right to the name that was tried, and which namespaces of the address are out of
/// its reach.
async fn names(server: &Server, config: &RedisConfig, confined: bool) -> Option<Finding> {
    if config.namespaces.is_empty() {
        if !confined {
            return None;
        }
        let found = format!("this user has no right to the key {NAME}");
        return Some(match config.plain {
            // Then a lock has no name but its own.
            true => Finding::info("rights-names", found)
                .consequence("the user has rights to some keys only: locks need names among them"),
            false => Finding::critical("rights-names", found)
                .consequence(
                    "no lock can be acquired: locks of no namespace share keys such as lw:token",
                )
                .remedy(format!(
                    "write namespaces=shop into the address for a user with ~shop:*; or {}",
                    acl(config, "~*")
                )),
        });
    }
    let mut missing = Vec::new();
    for namespace in &config.namespaces {
        let name = format!("{namespace}:{NAME}");
        if right(server, &["EXISTS", &name]).await == Right::NoName {
            missing.push(format!("~{namespace}:*"));
        }
    }
    if missing.is_empty() {
        return None;
    }
    let patterns = missing.join(" ");
    Some(
        Finding::critical("rights-names", format!("this user has no right to the keys {patterns}"))
            .consequence("no lock of this namespace can be acquired")
            .remedy(acl(config, &patterns)),
    )
}

/// Tries commands on names of a namespace; returns those that the user may not call.
async fn tried(
    server: &Server,
    namespace: &str,
    commands: &[&str],
    confined: &mut bool,
) -> Vec<String> {
    let mut refused: Vec<String> = Vec::new();
    for command in commands {
        let own = |word: &str| match word {
            NAME => format!("{namespace}{NAME}"),
            word => word.replace('~', " "),
        };
        let words: Vec<String> = command.split(' ').map(own).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match right(server, &words).await {
            Right::Yes => {}
            Right::NoCommand => refused.push(match words[..] {
                [container @ ("CLIENT" | "CLUSTER"), sub, ..] => format!("{container}|{sub}"),
                _ => words[0].to_owned(),
            }),
            Right::NoName => *confined = true,
        }
    }
    refused
}

async fn right(server: &Server, words: &[&str]) -> Right {
    match server.link.send(&command(words)).await {
        Err(failure) if failure.error.kind == BackendErrorKind::Denied => {
            let said = &failure.error.message;
            let name = ["a key", "the keys", "a channel", "the channels"];
            if name.iter().any(|name| said.contains(name)) {
                Right::NoName
            } else {
                Right::NoCommand
            }
        }
        _ => Right::Yes,
    }
}

async fn channels(server: &Server, config: &RedisConfig, confined: bool) -> Finding {
    let cluster = matches!(config.deployment, Deployment::Cluster(_));
    // Before 7.0 a Cluster sends the messages of every channel to all nodes.
    let sharded = cluster && server.link.facts.version.is_some_and(|version| version >= (7, 0));
    let (publish, subscribe, unsubscribe) = match sharded {
        true => ("SPUBLISH", "SSUBSCRIBE", "SUNSUBSCRIBE"),
        false => ("PUBLISH", "SUBSCRIBE", "UNSUBSCRIBE"),
    };
    let mut refused = Vec::new();
    let mut named = false;
    let namespace = namespace(config);
    let channel = &*format!("{namespace}{CHANNEL}");
    let mut probes = vec![vec![publish, channel, "x"]];
    // Before RESP3 a subscribed connection is good for nothing else.
    if server.link.facts.pushes {
        probes.push(vec![subscribe, channel]);
    }
    for words in probes {
        match right(server, &words).await {
            Right::Yes => {}
            Right::NoCommand => refused.push(words[0]),
            Right::NoName => named = true,
        }
    }
    if server.link.facts.pushes {
        let _ = server.ask(&[unsubscribe, channel]).await;
    }
    if refused.is_empty() && !named {
        return Finding::ok("rights-channels", format!("{publish} and {subscribe}"));
    }
    let unnamed = format!("this user has no right to the channel {channel}");
    if refused.is_empty() && confined && namespace.is_empty() && !has_no_channels(server).await {
        return Finding::info("rights-channels", unnamed).consequence(
            "the user has rights to some channels only: it needs those of its namespace, \
                 such as &shop:* with namespaces=shop in the address",
        );
    }
    // A new user has no channels from Redis 7 on.
    let channels: Vec<String> = match config.namespaces.is_empty() {
        true => vec!["&lw:push:*".to_owned()],
        false => config.namespaces.iter().map(|name| format!("&{name}:*")).collect(),
    };
    let rights = format!("+{publish} +{subscribe}").to_lowercase() + " " + &channels.join(" ");
    let found = match refused.is_empty() {
        true => unnamed,
        false => format!("refused: {}", refused.join(", ")),
    };
    Finding::warning("rights-channels", found)
        .consequence(
            "waiters are not notified when a lock is free: they acquire it late, and not always \
             in order",
        )
        .remedy(acl(config, &rights))
}

/// Whether the user has no channels at all, where it may ask.
async fn has_no_channels(server: &Server) -> bool {
    let Ok(user) = server.ask(&["ACL", "WHOAMI"]).await else { return false };
    let Some(user) = text(&user) else { return false };
    let Ok(rules) = server.ask(&["ACL", "GETUSER", &user]).await else { return false };
    let is_none = |value: &Value| match value {
        Value::Array(list) => list.is_empty(),
        value => text(value).is_some_and(|text| text.is_empty()),
    };
    let mut rules = pairs(&rules).unwrap_or_default().into_iter();
    rules.any(|(name, value)| text(name).as_deref() == Some("channels") && is_none(value))
}
