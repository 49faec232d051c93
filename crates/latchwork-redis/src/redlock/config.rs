//! The address of several servers.

use latchwork_store::{Error, ErrorKind};
use latchwork_wire::Source;
use latchwork_wire::address::{Parts, usually};

use crate::config::{Brand, Deployment, Endpoint, RedisConfig, parts as parts_of};

const NEXT: &str = "use redlock://h1:6379,h2:6379,h3:6379";
/// Fewer cannot lose one and go on.
const FEWEST: usize = 3;
/// Options of an address that make no sense where no server has a replica or a proxy's limits.
const STRANGE: [(&str, &str); 3] = [
    ("min_replicas", "the nodes of redlock have no replicas"),
    ("deposed", "no node of redlock takes over from another"),
    ("plain", "a node of redlock has to run scripts of several keys"),
];

/// The servers of a Redlock, and how to speak to them.
///
/// `redlock://[user:password@]h1[:port],h2,h3[/database]`, or `rediss+redlock://...` by TLS
/// (`valkey+redlock` and `valkeys+redlock` mean the same), with the options of a [single server](RedisConfig): they hold for each of them. The restart guard is on
/// unless `guard=false` switches it off, and then a server that comes back without its data lets a
/// second holder in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    pub(super) nodes: Vec<RedisConfig>,
    shown: String,
}

impl Config {
    /// Reads an address.
    ///
    /// # Errors
    ///
    /// `Invalid` with the part that cannot be read; the password is never repeated.
    pub fn parse(url: &str) -> Result<Self, Error> {
        let invalid =
            |message: String| Error::new(ErrorKind::Invalid, message).with_next_step(NEXT);
        let read = url.split_once("://").and_then(|(scheme, rest)| match parts_of(scheme) {
            _ if scheme == "redlock" => Some((Brand::Redis, false, rest)),
            Some((word, tls, Some("redlock"))) => Some((word, tls, rest)),
            _ => None,
        });
        let (word, tls, rest) =
            read.ok_or_else(|| invalid("store: not an address of redlock".into()))?;
        let scheme = word.scheme(tls);
        let parts = Parts::read(rest, "database")?;
        let Parts { hosts, path, query, .. } = parts;
        parts.endpoints(6_379).map_err(|error| usually(error, NEXT))?;
        let login = parts.login.map(|login| format!("{login}@")).unwrap_or_default();
        let name = |pair: &str| pair.split_once('=').map_or(pair, |(name, _)| name).to_owned();
        let names: Vec<String> = query.split('&').map(name).collect();
        for (option, why) in STRANGE {
            if names.iter().any(|name| name == option) {
                return Err(invalid(format!("store: {option}: {why}"))
                    .with_next_step(format!("leave {option} out")));
            }
        }
        let guard = if names.iter().any(|name| name == "guard") { "" } else { "&guard=true" };
        let hosts: Vec<&str> = hosts.split(',').collect();
        let nodes = hosts.iter().map(|host| {
            RedisConfig::parse(&format!("{scheme}://{login}{host}/{path}?{query}{guard}"))
        });
        let nodes = nodes.collect::<Result<Vec<_>, _>>()?;
        if nodes.len() < FEWEST {
            return Err(invalid(format!(
                "store: redlock takes at least {FEWEST} servers, and {} is named",
                nodes.len()
            ))
            .with_next_step("name three or five independent servers, or use redis:// for one"));
        }
        let endpoints: Vec<&Endpoint> = nodes.iter().map(endpoint).collect();
        for (index, at) in endpoints.iter().enumerate() {
            if endpoints[..index].contains(at) {
                return Err(invalid(format!("store: {at} is named twice, and has one vote")));
            }
        }
        let list: Vec<String> = endpoints.iter().map(|at| at.to_string()).collect();
        let start = if scheme == "redis" { String::new() } else { format!("{scheme}+") };
        let database = match nodes[0].database {
            0 => String::new(),
            number => format!("/{number}"),
        };
        let shown = format!("{start}redlock://{}{database}", list.join(","));
        Ok(Self { nodes, shown })
    }

    /// Reads the user and the password again from the source of the address after a server has refused them.
    #[must_use]
    pub fn source(mut self, source: Source) -> Self {
        // All nodes have the same login.
        let first = |url: &str| Ok(Self::parse(url)?.nodes.swap_remove(0));
        self.nodes = self.nodes.into_iter().map(|node| node.sourced(&source, first)).collect();
        self
    }

    /// The address for messages: without credentials.
    pub(super) fn shown(&self) -> &str {
        &self.shown
    }
}

/// Where a node is.
pub(super) fn endpoint(node: &RedisConfig) -> &Endpoint {
    match &node.deployment {
        Deployment::Single(endpoint) => endpoint,
        _ => unreachable!("a node of redlock is one server"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_server_has_the_options_and_the_guard() {
        let config = Config::parse("rediss+redlock://u:p%40@a,b:7,[::1]/2?max_ttl=10s").unwrap();
        assert_eq!(config.shown(), "rediss+redlock://a:6379,b:7,[::1]:6379/2");
        assert_eq!(config.nodes.len(), 3);
        for node in &config.nodes {
            assert!(node.guard && node.tls.is_some());
            assert_eq!(node.max_ttl, Some(Duration::from_secs(10)));
            assert_eq!(node.credentials.current().0.password.as_deref(), Some("p@"));
            assert_eq!(node.database, 2);
        }
        assert_eq!(endpoint(&config.nodes[1]).to_string(), "b:7");
        for url in ["valkey+redlock://a:1,b:1,c:1", "valkeys+redlock://a:1,b:1,c:1/2"] {
            let config = Config::parse(url).unwrap();
            assert_eq!(config.shown(), url);
            assert_eq!(config.nodes[0].tls.is_some(), url.starts_with("valkeys"));
            assert!(config.nodes[0].shown().starts_with("valkey"));
        }
        let bare = Config::parse("redlock://a,b,c?guard=false").unwrap();
        assert!(bare.nodes.iter().all(|node| !node.guard));
    }

    #[test]
    fn an_unreadable_address_names_its_part() {
        for (url, part) in [
            ("redis://a,b,c", "redlock"),
            ("redlocks://a,b,c", "redlock"),
            ("valkey+cluster://a,b,c", "redlock"),
            ("redlock://", "host"),
            ("redlock://a,b", "at least 3"),
            ("redlock://a,b,a:6379", "twice"),
            ("redlock://a,b,c:x", "port"),
            ("redlock://a,b,c/x", "database"),
            ("redlock://a,b,c?color=red", "an option is unknown"),
            ("redlock://a,b,c?min_replicas=1", "min_replicas"),
            ("redlock://a,b,c?plain=true", "plain"),
            ("redlock://a,b,c?guard=false&max_ttl=5s", "guard"),
        ] {
            let error = Config::parse(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            assert!(error.to_string().contains(part), "{url}: {error}");
            assert!(error.next_step().is_some(), "{url}");
        }
        let config = Config::parse("redlock://u:secret@a,b,c").unwrap();
        assert!(!format!("{config:?}").contains("secret"));
    }

    /// H280: a slip is answered with the right form.
    #[test]
    fn h280_a_slip_in_an_address_is_named() {
        for (url, step) in [
            ("redlock://app:pw/x@a,b,c", "%2F"),
            ("redlock://app:pw?x@a,b,c", "%3F"),
            ("redlock://a,b,::1", "[::1]:6379"),
            ("redlock://a/0,b/0,c/0", "once, after the last server"),
        ] {
            let error = Config::parse(url).unwrap_err();
            assert!(error.next_step().unwrap().contains(step), "{url}: {error}");
            assert!(!error.to_string().contains("pw"), "{error}");
        }
    }
}
