//! The servers' addresses and the options of the connection.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use latchwork_store::{Error, ErrorKind};
use latchwork_wire::address;
pub(crate) use latchwork_wire::address::Endpoint;
use latchwork_wire::address::{Parts, unknown_option};
use latchwork_wire::tls::Tls;
use latchwork_wire::{Source, Sourced};

/// The shape of a Redis deployment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Deployment {
    /// One server.
    Single(Endpoint),
    /// A master that Sentinels watch over.
    Sentinel {
        /// The Sentinels.
        sentinels: Vec<Endpoint>,
        /// The name of the master.
        service: String,
    },
    /// A Cluster; any of its nodes to start from.
    Cluster(Vec<Endpoint>),
}

/// The name of the server in the scheme of an address. Both mean the same; messages use the one in the address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Brand {
    Redis,
    Valkey,
}

/// The parts of a scheme: of `valkeys+cluster` the word, that it is by TLS, and `cluster`.
pub(crate) fn parts(scheme: &str) -> Option<(Brand, bool, Option<&str>)> {
    let (start, kind) = match scheme.split_once('+') {
        Some((start, kind)) => (start, Some(kind)),
        None => (scheme, None),
    };
    let (word, tls) = match start {
        "redis" => (Brand::Redis, false),
        "rediss" => (Brand::Redis, true),
        "valkey" => (Brand::Valkey, false),
        "valkeys" => (Brand::Valkey, true),
        _ => return None,
    };
    Some((word, tls, kind))
}

impl Brand {
    /// The scheme of one server.
    pub(crate) fn scheme(self, tls: bool) -> &'static str {
        match (self, tls) {
            (Self::Redis, false) => "redis",
            (Self::Redis, true) => "rediss",
            (Self::Valkey, false) => "valkey",
            (Self::Valkey, true) => "valkeys",
        }
    }
}

/// A user and a password.
#[derive(Clone, PartialEq, Eq, Default)]
pub(crate) struct Credentials {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
}

impl Credentials {
    pub(crate) fn user(&self) -> &str {
        self.user.as_deref().unwrap_or("default")
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hidden = self.password.as_ref().map(|_| "***");
        f.debug_struct("Credentials").field("user", &self.user).field("password", &hidden).finish()
    }
}

/// How to reach Redis or Valkey and what to ask of it.
///
/// | address | deployment |
/// | --- | --- |
/// | `redis://[user:password@]host[:port][/database]` | one server |
/// | `redis+unix://[user:password@]/path[?db=database]` | one server, through its socket in the file system |
/// | `redis+sentinel://[user:password@]h1[:port],h2,h3/service[/database]` | a master behind Sentinels |
/// | `redis+cluster://[user:password@]h1[:port],h2` | a Cluster |
///
/// With `rediss` instead of `redis` the servers are spoken to by TLS. `valkey` and `valkeys` mean what
/// `redis` and `rediss` mean. Options follow after `?`, separated by `&`; what an address may not hold
/// is written as `%XX`:
///
/// | option | meaning |
/// | --- | --- |
/// | `ca=/path` | the certificate authority to trust instead of the system's (PEM) |
/// | `cert=/path`, `key=/path` | the client's certificate and key (PEM) |
/// | `insecure=true` | trust any certificate: for tests only |
/// | `sentinel_user=`, `sentinel_password=` | credentials for the Sentinels |
/// | `min_replicas=1` | a lock counts only when so many replicas have it (`WAIT`) |
/// | `guard=true` | after a loss of data grant nothing until every forgotten lease has ended |
/// | `plain=true` | use no command or script of several keys, though the store takes them ([plain mode](crate#plain-mode)) |
/// | `max_ttl=60s` | the longest ttl, a constant of the namespace while `guard` is on |
/// | `deposed=17s` | how long a master that was replaced may write on; part of the quarantine. Left out: 0 for one server, 12s behind Sentinels, 17s on a Cluster |
/// | `via_proxy=true` | a proxy stands before the server and may exchange it: the guard asks each time who answers |
/// | `namespaces=shop,web` | namespaces with a token counter, a guard's marker and channels of their own; all other keys share one. The same for all clients |
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisConfig {
    pub(crate) word: Brand,
    pub(crate) deployment: Deployment,
    pub(crate) credentials: Sourced<Credentials>,
    pub(crate) sentinel_credentials: Sourced<Credentials>,
    pub(crate) database: i64,
    pub(crate) tls: Option<Tls>,
    pub(crate) min_replicas: u32,
    pub(crate) guard: bool,
    pub(crate) max_ttl: Option<Duration>,
    pub(crate) deposed: Option<Duration>,
    pub(crate) via_proxy: bool,
    pub(crate) namespaces: Vec<String>,
    pub(crate) plain: bool,
    pub(crate) detours: BTreeMap<Endpoint, Endpoint>,
}

/// The kind in the scheme of a socket.
const SOCKET: &str = "unix";
const NEXT_SOCKET: &str = "use redis://host:6379 or, for a socket in the file system, redis+unix:///path/of/the/socket?db=0; \
    a login stands before the path: redis+unix://user:password@/path";
const NEXT: &str = "use redis://host:6379, redis+unix:///socket, redis+sentinel://h1,h2,h3/service or redis+cluster://h1,h2,h3";

/// All options of an address.
const OPTIONS: &[&str] = &[
    "ca",
    "cert",
    "key",
    "insecure",
    "sentinel_user",
    "sentinel_password",
    "min_replicas",
    "guard",
    "plain",
    "max_ttl",
    "deposed",
    "via_proxy",
    "namespaces",
    "db",
];

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Invalid, message).with_next_step(NEXT)
}

impl RedisConfig {
    /// Reads an address.
    ///
    /// # Errors
    ///
    /// `Invalid` with the part that cannot be read; the password is never repeated.
    pub fn parse(url: &str) -> Result<Self, Error> {
        let read = Self::read(url);
        if !url.starts_with(Brand::Valkey.scheme(false)) {
            return read;
        }
        // The next steps are written for the one word.
        read.map_err(|error| match error.next_step().map(|hint| hint.replace("redis", "valkey")) {
            Some(hint) => error.with_next_step(hint),
            None => error,
        })
    }

    fn read(url: &str) -> Result<Self, Error> {
        let (scheme, rest) = url
            .split_once("://")
            .ok_or_else(|| invalid("store: not an address of Redis or Valkey".into()))?;
        let (word, tls, kind) = match parts(scheme) {
            Some((word, tls, None)) => (word, tls, "single"),
            Some((word, tls, Some(kind @ ("sentinel" | "cluster")))) => (word, tls, kind),
            Some((word, false, Some(kind @ SOCKET))) => (word, false, kind),
            Some((_, true, Some(SOCKET))) => {
                return Err(
                    invalid("store: a socket has no TLS".into()).with_next_step(NEXT_SOCKET)
                );
            }
            _ => return Err(invalid("store: not a scheme of Redis or Valkey".into())),
        };
        let path_is = if kind == "sentinel" { "service" } else { "database" };
        let parts = match kind {
            SOCKET => Parts::split(rest),
            _ => Parts::read(rest, path_is).map_err(hinted)?,
        };
        let Parts { path, query, .. } = parts;
        let default_port = if kind == "sentinel" { 26_379 } else { 6_379 };
        let endpoints = match kind {
            SOCKET => vec![socket(&parts)?],
            "single" if parts.hosts.is_empty() && !path.is_empty() => {
                return Err(invalid("store: a host is missing".into()).with_next_step(NEXT_SOCKET));
            }
            _ => parts.endpoints(default_port).map_err(hinted)?,
        };
        let credentials = credentials(parts.login.unwrap_or_default())?;
        let (deployment, database) = match kind {
            SOCKET => (Deployment::Single(endpoints[0].clone()), ""),
            "single" => {
                let [only] = <[Endpoint; 1]>::try_from(endpoints)
                    .map_err(|_| invalid(format!("store: {scheme}:// takes one host")))?;
                (Deployment::Single(only), path)
            }
            "sentinel" => {
                let (service, database) = path.split_once('/').unwrap_or((path, ""));
                let service = decode(service, "service")?;
                if service.is_empty() {
                    return Err(invalid(
                        "store: the name of the master (service) is missing".into(),
                    ));
                }
                // Sentinels take no other names.
                if !address::is_plain(&service) {
                    return Err(invalid(
                        "store: the name of the master (service) has characters that Sentinels refuse"
                            .into(),
                    ));
                }
                (Deployment::Sentinel { sentinels: endpoints, service }, database)
            }
            _ if !path.is_empty() && path != "0" => {
                return Err(invalid("store: a Cluster has only database 0".into()));
            }
            _ => (Deployment::Cluster(endpoints), ""),
        };
        let database = match database {
            "" => 0,
            number => number.parse().ok().filter(|n| *n >= 0).ok_or_else(|| {
                invalid("store: the database, after the host and a /, is not a number".into())
            })?,
        };
        let mut config = Self {
            word,
            deployment,
            credentials: Sourced::fixed(credentials),
            sentinel_credentials: Sourced::fixed(Credentials::default()),
            database,
            tls: tls.then(Tls::default),
            min_replicas: 0,
            guard: false,
            max_ttl: None,
            deposed: None,
            via_proxy: false,
            namespaces: Vec::new(),
            plain: false,
            detours: BTreeMap::new(),
        };
        let mut of_sentinels = Credentials::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decode(value, name)?;
            match name {
                "sentinel_user" => of_sentinels.user = Some(value),
                "sentinel_password" => of_sentinels.password = Some(value),
                _ => config.set(name, value)?,
            }
        }
        config.sentinel_credentials = Sourced::fixed(of_sentinels);
        let stray = [
            ("max_ttl", config.max_ttl.is_some()),
            ("deposed", config.deposed.is_some()),
            ("via_proxy", config.via_proxy),
        ];
        if let Some((name, _)) = stray.iter().find(|(_, given)| *given && !config.guard) {
            return Err(invalid(format!("store: {name} is an option of the guard"))
                .with_next_step(format!("add guard=true, or leave {name} out")));
        }
        Ok(config)
    }

    /// Counts a grant or a renewal only when so many replicas have confirmed it (`WAIT`), as
    /// `min_replicas=` in the address does. With all replicas a failover loses no lock; 0 asks for
    /// none.
    #[must_use]
    pub fn min_replicas(mut self, replicas: u32) -> Self {
        self.min_replicas = replicas;
        self
    }

    /// Reads the user and the password, also those for the Sentinels, again from the source of the address after a
    /// server has refused them.
    #[must_use]
    pub fn source(self, source: Source) -> Self {
        self.sourced(&source, Self::parse)
    }

    /// As [`Self::source`], for an address that `parse` reads.
    pub(crate) fn sourced(
        mut self,
        source: &Source,
        parse: impl Fn(&str) -> Result<Self, Error> + Copy + Send + Sync + 'static,
    ) -> Self {
        let servers = move |url: &str| Ok(parse(url)?.credentials.current().0);
        let sentinels = move |url: &str| Ok(parse(url)?.sentinel_credentials.current().0);
        self.credentials = self.credentials.read_from(source.clone(), servers);
        self.sentinel_credentials = self.sentinel_credentials.read_from(source.clone(), sentinels);
        self
    }

    /// Reaches a server that Sentinels or a Cluster call `announced` at `via` instead, both as
    /// `host:port`: for servers behind a tunnel or a translation of addresses, whose own addresses
    /// mean nothing to the caller.
    ///
    /// # Errors
    ///
    /// `Invalid` if one of them is no address.
    pub fn detour(mut self, announced: &str, via: &str) -> Result<Self, Error> {
        self.detours.insert(endpoint(announced, 6_379)?, endpoint(via, 6_379)?);
        Ok(self)
    }

    fn set(&mut self, name: &str, value: String) -> Result<(), Error> {
        let bad = |what: &str| Err(invalid(format!("store: {name} is not {what}")));
        let flag = |value: &str| match value {
            "true" | "1" | "on" | "" => Some(true),
            "false" | "0" | "off" => Some(false),
            _ => None,
        };
        if matches!(name, "ca" | "cert" | "key" | "insecure") {
            let Some(tls) = &mut self.tls else {
                return Err(invalid(format!("store: {name} is an option of TLS"))
                    .with_next_step("use the scheme with rediss, or leave the option out"));
            };
            match name {
                "ca" => tls.ca = Some(value.into()),
                "cert" => tls.certificate = Some(value.into()),
                "key" => tls.key = Some(value.into()),
                _ => match flag(&value) {
                    Some(insecure) => tls.insecure = insecure,
                    None => return bad("true or false"),
                },
            }
            return Ok(());
        }
        match name {
            "min_replicas" => match value.parse() {
                Ok(number) => self.min_replicas = number,
                Err(_) => return bad("a number"),
            },
            "guard" => match flag(&value) {
                Some(guard) => self.guard = guard,
                None => return bad("true or false"),
            },
            "plain" => match flag(&value) {
                Some(plain) => self.plain = plain,
                None => return bad("true or false"),
            },
            "max_ttl" => match address::duration(&value) {
                Some(length) => self.max_ttl = Some(length),
                None => return bad("a duration such as 60s or 500ms"),
            },
            "deposed" => match address::duration(&value) {
                Some(length) => self.deposed = Some(length),
                None if matches!(&*value, "0" | "0s") => self.deposed = Some(Duration::ZERO),
                None => return bad("a duration such as 17s or 0s"),
            },
            "via_proxy" => match flag(&value) {
                Some(via_proxy) => self.via_proxy = via_proxy,
                None => return bad("true or false"),
            },
            "namespaces" => {
                self.namespaces = value.split(',').map(str::to_owned).collect();
                if self.namespaces.iter().any(|name| name.is_empty() || name.contains(':')) {
                    return bad("a list of namespaces");
                }
            }
            "db" => match (&self.deployment, value.parse()) {
                (Deployment::Single(at), _) if !at.is_socket() => return Err(no_database()),
                (Deployment::Single(_), Ok(number @ 0..)) => self.database = number,
                (Deployment::Single(_), _) => return bad("the number of a database"),
                _ => return Err(no_database()),
            },
            "user" | "username" | "pass" | "password" => {
                return Err(invalid(format!("store: {name} is not an option")).with_next_step(
                    "write user:password@ before the host, or before the path of a socket",
                ));
            }
            _ => return Err(unknown_option(name, OPTIONS)),
        }
        Ok(())
    }

    /// The address for messages: without credentials.
    pub(crate) fn shown(&self) -> String {
        let scheme = self.word.scheme(self.tls.is_some());
        let list = |endpoints: &[Endpoint]| {
            endpoints.iter().map(Endpoint::to_string).collect::<Vec<_>>().join(",")
        };
        let database =
            if self.database == 0 { String::new() } else { format!("/{}", self.database) };
        match &self.deployment {
            Deployment::Single(endpoint) if endpoint.is_socket() => {
                let db = if self.database == 0 {
                    String::new()
                } else {
                    format!("?db={}", self.database)
                };
                format!("{scheme}+{SOCKET}://{endpoint}{db}")
            }
            Deployment::Single(endpoint) => format!("{scheme}://{endpoint}{database}"),
            Deployment::Sentinel { sentinels, service } => {
                format!("{scheme}+sentinel://{}/{service}{database}", list(sentinels))
            }
            Deployment::Cluster(nodes) => format!("{scheme}+cluster://{}", list(nodes)),
        }
    }
}

fn credentials(login: &str) -> Result<Credentials, Error> {
    let (user, password) = match login.split_once(':') {
        Some((user, password)) => (user, Some(decode(password, "password")?)),
        None => (login, None),
    };
    let user = Some(decode(user, "user")?).filter(|user| !user.is_empty());
    if user.is_some() && password.is_none() {
        return Err(invalid("store: a user without a password".into())
            .with_next_step("write user:password@host, or :password@host for the default user"));
    }
    Ok(Credentials { user, password })
}

/// The socket of an address, by the path in it.
fn socket(parts: &Parts<'_>) -> Result<Endpoint, Error> {
    let wrong = |what: &str| Err(invalid(format!("store: {what}")).with_next_step(NEXT_SOCKET));
    if !parts.hosts.is_empty() {
        return wrong("the path of a socket begins with a /, and has no host before it");
    }
    if parts.path.contains('@') {
        return wrong("there is an @ in the path of a socket, which is written %40");
    }
    let path = decode(parts.path, "path")?;
    match path.is_empty() || path.contains('\0') {
        true => wrong("the path of the socket is missing"),
        false => Ok(Endpoint::socket(format!("/{path}"))),
    }
}

fn no_database() -> Error {
    invalid("store: db is an option of a socket".into())
        .with_next_step("write the database after the host and a /: redis://host/2")
}

fn hinted(error: Error) -> Error {
    address::usually(error, NEXT)
}

fn endpoint(text: &str, default_port: u16) -> Result<Endpoint, Error> {
    Endpoint::parse(text, default_port).map_err(hinted)
}

fn decode(text: &str, what: &str) -> Result<String, Error> {
    address::decode(text, what).map_err(hinted)
}

#[cfg(test)]
mod tests;
