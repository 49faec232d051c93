//! The address of a PostgreSQL server, read strictly.

use std::fmt;
use std::time::Duration;

use latchwork_store::kit::address::{self, Endpoint, unknown_option};
use latchwork_store::kit::tls::Tls;
use latchwork_store::{Error, ErrorKind};

/// How connections are encrypted, in the words of libpq.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SslMode {
    Disable,
    Prefer,
    Require,
}

/// Where a PostgreSQL store is, and how to use it.
///
/// `postgres://[user[:password]@]host[:port][,host..][/database][?options]`, also with `postgresql`. `%XX` stands
/// for a byte in each part. Of several hosts the first that takes writes is used. As for psql, `host`, `port`, `user`,
/// `password` and `dbname` may be options as well. Other options of libpq are refused with what to do instead; the
/// environment (`PGHOST`, `PGSSLROOTCERT`), `.pgpass` and service files are not read.
///
/// | option | meaning |
/// | --- | --- |
/// | `table=latchwork` | the table; what belongs to it has names that begin so |
/// | `schema=public` | the schema of the table |
/// | `sslmode=prefer` | `disable`, `prefer` (the default), `require`, `verify-ca` or `verify-full`; with a `sslrootcert`, `require` and `verify-ca` check the name as well, as `verify-full` does |
/// | `sslrootcert=/ca.pem` | the authority to trust instead of those that the system trusts |
/// | `sslcert=/c.pem`, `sslkey=/k.pem` | the client's certificate and its key |
/// | `application_name=latchwork` | what the server calls the connections |
/// | `connect_timeout=5` | seconds for one connection to be made |
/// | `connections=8` | the most connections for requests; renewals and waiting have one more each |
/// | `pooler=true` | a pooler stands before the server that is not noticed by itself; `false` if none does |
/// | `guard=true` | after the server may have lost data, nothing is granted until every lease it may have forgotten has ended |
/// | `max_ttl=60s` | the longest ttl, the same for all clients of the table; an option of the guard |
/// | `durability=fast` | grants do not wait for the disk; only with the guard |
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostgresConfig {
    pub(crate) hosts: Vec<Endpoint>,
    pub(crate) user: String,
    pub(crate) password: Option<Secret>,
    pub(crate) database: String,
    pub(crate) ssl_mode: SslMode,
    pub(crate) tls: Tls,
    pub(crate) table: String,
    pub(crate) schema: String,
    pub(crate) application_name: String,
    pub(crate) connect_timeout: Duration,
    pub(crate) connections: usize,
    pub(crate) pooler: Option<bool>,
    pub(crate) guard: bool,
    pub(crate) max_ttl: Option<Duration>,
    pub(crate) fast: bool,
}

/// A password. It is shown nowhere.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(pub(crate) String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

const NEXT: &str = "use postgres://user:password@host:5432/database";

/// The longest ttl where the address names none.
const MAX_TTL: Duration = Duration::from_secs(60);
/// The longest `max_ttl` that an address may have.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// All options of an address.
const OPTIONS: &[&str] = &[
    "host",
    "port",
    "user",
    "password",
    "dbname",
    "target_session_attrs",
    "channel_binding",
    "table",
    "schema",
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "application_name",
    "connect_timeout",
    "connections",
    "pooler",
    "guard",
    "max_ttl",
    "durability",
];

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, message).next_step(NEXT)
}

impl PostgresConfig {
    /// Reads an address.
    ///
    /// # Errors
    ///
    /// `Invalid` with the part that cannot be read; the password is never repeated.
    pub fn parse(url: &str) -> Result<Self, Error> {
        let (scheme, rest) =
            url.split_once("://").ok_or_else(|| invalid("store: not a PostgreSQL address"))?;
        if !matches!(scheme, "postgres" | "postgresql") {
            return Err(invalid("store: not a scheme of PostgreSQL"));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (user, password) = match login.split_once(':') {
            Some((user, password)) => (user, Some(Secret(decode(password, "password")?))),
            None => (login, None),
        };
        let user = decode(user, "user")?;
        let mut place = Place { hosts: hosts.into(), user, ..Place::default() };
        place.database = decode(path, "database")?;
        let mut config = Self {
            hosts: Vec::new(),
            user: String::new(),
            password,
            database: String::new(),
            ssl_mode: SslMode::Prefer,
            tls: Tls { insecure: true, ..Tls::default() },
            table: "latchwork".into(),
            schema: "public".into(),
            application_name: "latchwork".into(),
            connect_timeout: Duration::from_secs(5),
            connections: 8,
            pooler: None,
            guard: false,
            max_ttl: None,
            fast: false,
        };
        let mut verifies = false;
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decode(value, name)?;
            match name {
                "host" => place.hosts = value,
                "port" => place.ports = value,
                "user" => place.user = value,
                "dbname" => place.database = value,
                "password" => config.password = Some(Secret(value)),
                _ => config.set(name, value, &mut verifies)?,
            }
        }
        place.settle(&mut config)?;
        config.check(verifies)?;
        Ok(config)
    }

    fn check(&mut self, verifies: bool) -> Result<(), Error> {
        let stray = [("max_ttl", self.max_ttl.is_some()), ("durability=fast", self.fast)];
        if let Some((name, _)) = stray.iter().find(|(_, given)| *given && !self.guard) {
            return Err(invalid(format!("store: {name} is an option of the guard"))
                .next_step(format!("add guard=true, or leave {name} out")));
        }
        // An authority that is named is there to be checked.
        self.tls.insecure = !verifies && self.tls.ca.is_none();
        for (what, name) in [("table", &self.table), ("schema", &self.schema)] {
            // What belongs to the table has longer names, and a name has at most 63 bytes.
            let fits = name.len() <= 48 && !name.is_empty() && !name.contains('\0');
            if !fits {
                return Err(invalid(format!("store: {what} is not a name of 1 to 48 bytes")));
            }
        }
        Ok(())
    }

    fn set(&mut self, name: &str, value: String, verifies: &mut bool) -> Result<(), Error> {
        let bad = |what: &str| Err(invalid(format!("store: {name} is not {what}")));
        let flag = |value: &str| match value {
            "true" | "1" | "on" | "" => Some(true),
            "false" | "0" | "off" => Some(false),
            _ => None,
        };
        match name {
            "table" => self.table = value,
            "schema" => self.schema = value,
            "sslmode" => {
                (self.ssl_mode, *verifies) = match &*value {
                    "disable" => (SslMode::Disable, false),
                    "allow" | "prefer" => (SslMode::Prefer, false),
                    "require" => (SslMode::Require, false),
                    "verify-ca" | "verify-full" => (SslMode::Require, true),
                    _ => return bad("disable, prefer, require, verify-ca or verify-full"),
                }
            }
            "sslrootcert" => self.tls.ca = Some(value.into()),
            "sslcert" => self.tls.certificate = Some(value.into()),
            "sslkey" => self.tls.key = Some(value.into()),
            "application_name" => self.application_name = value,
            "connect_timeout" => match value.parse() {
                Ok(seconds @ 1..=3_600) => self.connect_timeout = Duration::from_secs(seconds),
                _ => return bad("a number of seconds from 1 to 3600"),
            },
            "connections" => match value.parse() {
                Ok(number @ 1..=1_000) => self.connections = number,
                _ => return bad("a number from 1 to 1000"),
            },
            "pooler" => match flag(&value) {
                Some(pooler) => self.pooler = Some(pooler),
                None => return bad("true or false"),
            },
            "guard" => match flag(&value) {
                Some(guard) => self.guard = guard,
                None => return bad("true or false"),
            },
            "max_ttl" => match address::duration(&value) {
                Some(length) if length <= DAY => self.max_ttl = Some(length),
                _ => return bad("a duration such as 60s or 500ms"),
            },
            // A server that takes writes is looked for in any case.
            "target_session_attrs" => match &*value {
                "any" | "read-write" | "primary" => {}
                _ => {
                    return bad(
                        "any, read-write or primary: locks need a server that takes writes",
                    );
                }
            },
            "channel_binding" => match &*value {
                "disable" | "prefer" => {}
                _ => return bad("disable or prefer: use sslmode=verify-full"),
            },
            "durability" => match &*value {
                "fast" => self.fast = true,
                "full" => self.fast = false,
                _ => return bad("full or fast"),
            },
            _ => return Err(refused(name)),
        }
        Ok(())
    }

    /// The longest ttl of a guarded table.
    pub(crate) fn max_ttl(&self) -> Duration {
        self.max_ttl.unwrap_or(MAX_TTL)
    }

    /// The address for messages: without credentials.
    pub(crate) fn shown(&self) -> String {
        let hosts: Vec<_> = self.hosts.iter().map(Endpoint::to_string).collect();
        let database = match address::is_plain(&self.database) {
            true => &*self.database,
            false => "...",
        };
        format!("postgres://{}/{database}", hosts.join(","))
    }
}

/// Where the database is, as the address and its options say it.
#[derive(Default)]
struct Place {
    hosts: String,
    ports: String,
    user: String,
    database: String,
}

impl Place {
    fn settle(self, config: &mut PostgresConfig) -> Result<(), Error> {
        if self.user.is_empty() && config.password.is_some() {
            return Err(invalid("store: a password without a user"));
        }
        config.user = if self.user.is_empty() { "postgres".to_owned() } else { self.user };
        config.database =
            if self.database.is_empty() { config.user.clone() } else { self.database };
        let ports: Vec<&str> = self.ports.split(',').collect();
        let hosts: Vec<&str> = self.hosts.split(',').collect();
        if ports.len() > 1 && ports.len() != hosts.len() {
            return Err(invalid("store: port has not as many numbers as there are hosts"));
        }
        for (n, host) in hosts.iter().enumerate() {
            let port = ports.get(n).or_else(|| ports.first()).copied().unwrap_or_default();
            config.hosts.push(endpoint(host, port)?);
        }
        Ok(())
    }
}

fn endpoint(text: &str, port: &str) -> Result<Endpoint, Error> {
    let is_path = ["/", "@", "%2F", "%2f"].iter().any(|start| text.starts_with(start));
    if is_path {
        return Err(invalid("store: host is a socket in the file system, which cannot be used")
            .next_step("let the server listen on an address, for example host=127.0.0.1"));
    }
    let usual = match port {
        "" => 5_432,
        port => match port.parse() {
            Ok(port @ 1..) => port,
            _ => return Err(invalid("store: port is not a number from 1 to 65535")),
        },
    };
    Endpoint::parse(text, usual).map_err(|error| error.next_step(NEXT))
}

/// An option that is none of ours: of libpq, or unknown.
fn refused(name: &str) -> Error {
    let step = match name {
        "service" | "servicefile" => {
            "write the host, the user and the database of the service into the address"
        }
        "passfile" | "sslpassword" => {
            "give the password in the address, and keep the address in a file: latchwork --store-file"
        }
        "hostaddr" => "give the numbers as the host",
        "options" => "set it by ALTER ROLE .. SET for the user of the address",
        "sslcrl"
        | "sslcrldir"
        | "sslsni"
        | "sslcompression"
        | "ssl_min_protocol_version"
        | "ssl_max_protocol_version"
        | "sslnegotiation"
        | "sslcertmode"
        | "requiressl" => "leave it out; use sslmode=verify-full with sslrootcert=",
        "gssencmode" | "krbsrvname" | "gsslib" | "gssdelegation" | "require_auth"
        | "requirepeer" => "leave it out: a user logs in by a password or a certificate",
        "keepalives"
        | "keepalives_idle"
        | "keepalives_interval"
        | "keepalives_count"
        | "tcp_user_timeout" => "leave it out: each connection without a sign of life is replaced",
        "client_encoding" | "replication" | "fallback_application_name" | "load_balance_hosts" => {
            "leave it out"
        }
        _ => return unknown_option(name, OPTIONS),
    };
    invalid(format!("store: {name} is an option of libpq that is not supported")).next_step(step)
}

fn decode(text: &str, what: &str) -> Result<String, Error> {
    address::decode(text, what).map_err(|error| error.next_step(NEXT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_an_address_as_psql_does() {
        let config = PostgresConfig::parse(
            "postgresql://app%40x:p%40ss%2Fw@h1:7,[::1]/my%20db?sslmode=verify-full&table=locks&schema=ops&\
             guard=true&max_ttl=90s&durability=fast&connections=3&pooler=false&connect_timeout=2",
        );
        let config = config.unwrap();
        assert_eq!((&*config.user, &*config.database), ("app@x", "my db"));
        assert_eq!(config.password, Some(Secret("p@ss/w".into())));
        assert_eq!((config.ssl_mode, config.tls.insecure), (SslMode::Require, false));
        assert_eq!((&*config.schema, &*config.table, config.connections), ("ops", "locks", 3));
        assert_eq!(config.shown(), "postgres://h1:7,[::1]:5432/...");
        assert!(config.guard && config.fast && config.max_ttl() == Duration::from_secs(90));
        let least = PostgresConfig::parse("postgres://h").unwrap();
        assert_eq!((&*least.user, &*least.database), ("postgres", "postgres"));
        assert_eq!((least.ssl_mode, least.tls.insecure), (SslMode::Prefer, true));
        let apart = PostgresConfig::parse(
            "postgresql:///?host=h1,h2&port=7,8&user=app&password=p%26w&dbname=shop&target_session_attrs=read-write",
        );
        let apart = apart.unwrap();
        assert_eq!(apart.shown(), "postgres://h1:7,h2:8/shop");
        assert_eq!((&*apart.user, apart.password), ("app", Some(Secret("p&w".into()))));
        let one_port = PostgresConfig::parse("postgres://h1,h2/d?port=9").unwrap();
        assert_eq!(one_port.shown(), "postgres://h1:9,h2:9/d");
        let named =
            PostgresConfig::parse("postgres://u@h?sslmode=require&sslrootcert=/ca").unwrap();
        assert!(!named.tls.insecure, "an authority that is named is checked");
        assert_eq!(named.database, "u", "as with psql, the user's name");
    }

    #[test]
    fn names_what_it_cannot_read_and_never_the_password() {
        for (url, part) in [
            ("postgres:/x", "address"),
            ("mysql://h", "scheme"),
            ("postgres://", "host"),
            ("postgres://h:0", "port"),
            ("postgres://:pw@h", "without a user"),
            ("postgres://%2Frun%2Fpostgresql/db", "socket"),
            ("postgres:///db?host=/run/postgresql", "socket"),
            ("postgres://h?port=0", "port"),
            ("postgres:///d?host=a,b&port=1,2,3", "port"),
            ("postgres://h?service=shop", "service"),
            ("postgres://h?passfile=/home/app/.pgpass", "passfile"),
            ("postgres://h?options=-csearch_path%3Dx", "options"),
            ("postgres://h?target_session_attrs=standby", "target_session_attrs"),
            ("postgres://h?channel_binding=require", "channel_binding"),
            ("postgres://h?password=x", "without a user"),
            ("postgres://h?sslmode=maybe", "sslmode"),
            ("postgres://h?max_ttl=5s", "guard"),
            ("postgres://h?durability=fast", "guard"),
            ("postgres://h?guard=true&max_ttl=48h", "max_ttl"),
            ("postgres://h?connections=0", "connections"),
            ("postgres://h?table=", "table"),
            ("postgres://h?tabel=x", "tabel"),
            ("postgres://h?color=red", "an option is unknown"),
        ] {
            let error = PostgresConfig::parse(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains(part), "{url}: {error}");
            assert!(error.hint().is_some());
        }
        let config = PostgresConfig::parse("postgres://u:secret@h/d").unwrap();
        assert!(!format!("{config:?}{}", config.shown()).contains("secret"));
    }

    #[test]
    fn hostile_addresses_are_read_without_harm() {
        let samples: [&[u8]; 3] = [
            b"postgres://u:p%40@a,b:1,[::1]/d?sslmode=verify-full&sslrootcert=/a&table=x",
            b"postgresql://h?guard=true&max_ttl=18446744073709551615h&connections=9999999999",
            b"postgres://%00@h/%ff?schema=%22&connect_timeout=-1&durability=fast&pooler",
        ];
        latchwork_services::hostile::survives("addresses", &samples, |bytes| {
            let _ = PostgresConfig::parse(&String::from_utf8_lossy(bytes));
        });
    }
}
