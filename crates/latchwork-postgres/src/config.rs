//! The address of a PostgreSQL server, read strictly.

use std::fmt;
use std::time::Duration;

use latchwork_store::{Error, ErrorKind};
use latchwork_wire::address;
use latchwork_wire::tls::Tls;
use latchwork_wire::{Source, Sourced};

use crate::address::host::Host;
use crate::address::passfile::Passfile;
use crate::address::reading;
use crate::address::refused::refused;
use crate::address::surroundings::Surroundings;
use crate::names::class;

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
/// for a byte in each part. Of several hosts the first that takes writes and was not replaced by another one is used. As for psql, `host`, `port`, `user`,
/// `password` and `dbname` may be options as well, and a host that begins with `/` is the folder of a socket:
/// `postgres:///database?host=/run/postgresql`. What the address leaves out is read from the environment, as by psql:
/// `PGHOST`, `PGPORT`, `PGDATABASE`, `PGUSER`, `PGPASSWORD`, `PGSERVICE`, `PGSSLMODE`, `PGSSLROOTCERT`, `PGSSLCERT`,
/// `PGSSLKEY`, `PGAPPNAME`, `PGCONNECT_TIMEOUT`, `PGTARGETSESSIONATTRS` and `PGCHANNELBINDING`. A password that is not
/// there either is looked for in `.pgpass`, or in the file that `PGPASSFILE` names. Other options of libpq are refused
/// with what to do instead, and other variables are not read.
///
/// | option | meaning |
/// | --- | --- |
/// | `service=shop` | the options of this section of a service file, where the address does not say otherwise |
/// | `passfile=/path` | the file with passwords, in place of `.pgpass` |
/// | `table=latchwork` | the table; what belongs to it has names that begin so |
/// | `schema=public` | the schema of the table |
/// | `create_schema=true` | `init` makes the schema if there is none; nothing else heeds it |
/// | `sslmode=prefer` | `disable`, `prefer` (the default: without TLS if the server has none, or lets this user in by no other way), `require`, `verify-ca` or `verify-full`; with a `sslrootcert`, `require` and `verify-ca` check the name as well, as `verify-full` does |
/// | `sslrootcert=/ca.pem` | the authority to trust instead of those that the system trusts |
/// | `sslcert=/c.pem`, `sslkey=/k.pem` | the client's certificate and its key |
/// | `application_name=shop` | what the server calls the connections; by default `latchwork`, the host and the process |
/// | `connect_timeout=5` | seconds, from 1 to 3600, for one connection to be made once its name is looked up |
/// | `connections=8` | the most connections for requests; renewals and waiting have one more each |
/// | `pooler=true` | a pooler stands before the server that is not noticed by itself; `false` if none does |
/// | `guard=true` | after the server may have lost data, nothing is granted until every lease it may have forgotten has ended |
/// | `max_ttl=60s` | the longest ttl, the same for all clients of the table; an option of the guard |
/// | `durability=fast` | grants do not wait for the disk; only with the guard |
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostgresConfig {
    pub(crate) hosts: Vec<Host>,
    pub(crate) login: Sourced<Login>,
    /// Where a password is looked for that the address does not have.
    pub(crate) passfile: Option<Passfile>,
    pub(crate) database: String,
    pub(crate) ssl_mode: SslMode,
    pub(crate) tls: Tls,
    pub(crate) table: String,
    pub(crate) schema: String,
    pub(crate) create_schema: bool,
    pub(crate) application_name: String,
    pub(crate) connect_timeout: Duration,
    pub(crate) connections: usize,
    pub(crate) pooler: Option<bool>,
    pub(crate) guard: bool,
    pub(crate) max_ttl: Option<Duration>,
    pub(crate) fast: bool,
}

/// Who logs in.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Login {
    pub(crate) user: String,
    pub(crate) password: Option<Secret>,
}

/// A password. It is shown nowhere.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(pub(crate) String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

pub(crate) const NEXT: &str = "use postgres://user:password@host:5432/database";

/// The longest ttl where the address names none.
const MAX_TTL: Duration = Duration::from_secs(60);
/// The longest `max_ttl` that an address may have.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// All options of an address.
pub(crate) const OPTIONS: &[&str] = &[
    "service",
    "passfile",
    "host",
    "port",
    "user",
    "password",
    "dbname",
    "target_session_attrs",
    "channel_binding",
    "table",
    "schema",
    "create_schema",
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

pub(crate) fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, message).with_next_step(NEXT)
}

impl PostgresConfig {
    /// Reads an address, and the service file that it may name.
    ///
    /// # Errors
    ///
    /// `Invalid` with the part that cannot be read, and with the file and the line if it is in a service file; the
    /// password is never repeated.
    pub fn parse(url: &str) -> Result<Self, Error> {
        reading::parse(url, &Surroundings::of_this_process())
    }

    /// Reads the user and the password again from the source of the address after the server has refused them.
    #[must_use]
    pub fn source(mut self, source: Source) -> Self {
        let parse = |url: &str| Ok(Self::parse(url)?.login.current().0);
        self.login = self.login.read_from(source, parse);
        self
    }

    /// What holds where an address says nothing.
    pub(crate) fn usual() -> Self {
        Self {
            hosts: Vec::new(),
            login: Sourced::fixed(Login::default()),
            passfile: None,
            database: String::new(),
            ssl_mode: SslMode::Prefer,
            tls: Tls { insecure: true, ..Tls::default() },
            table: "latchwork".into(),
            schema: "public".into(),
            create_schema: false,
            application_name: process_name(),
            connect_timeout: Duration::from_secs(5),
            connections: 8,
            pooler: None,
            guard: false,
            max_ttl: None,
            fast: false,
        }
    }

    pub(crate) fn check(&mut self, verifies: bool) -> Result<(), Error> {
        let stray = [("max_ttl", self.max_ttl.is_some()), ("durability=fast", self.fast)];
        if let Some((name, _)) = stray.iter().find(|(_, given)| *given && !self.guard) {
            return Err(invalid(format!("store: {name} is an option of the guard"))
                .with_next_step(format!("add guard=true, or leave {name} out")));
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

    pub(crate) fn set(
        &mut self,
        name: &str,
        value: String,
        verifies: &mut bool,
    ) -> Result<(), Error> {
        let bad = |what: &str| {
            let step = format!("correct {name}= in the address, or leave it out");
            Err(invalid(format!("store: {name} is not {what}")).with_next_step(step))
        };
        let flag = |value: &str| match value {
            "true" | "1" | "on" | "" => Some(true),
            "false" | "0" | "off" => Some(false),
            _ => None,
        };
        match name {
            "table" => self.table = value,
            "schema" => self.schema = value,
            "create_schema" => match flag(&value) {
                Some(create) => self.create_schema = create,
                None => return bad("true or false"),
            },
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
                _ => return bad("a whole number of seconds from 1 to 3600"),
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

    /// The number that sets the advisory locks of this table apart.
    pub(crate) fn class(&self) -> i32 {
        class(&self.schema, &self.table)
    }

    /// The address for messages: without credentials.
    pub(crate) fn shown(&self) -> String {
        let database = match address::is_plain(&self.database) {
            true => &*self.database,
            false => "...",
        };
        let join = |parts: Vec<String>| parts.join(",");
        if self.hosts.iter().any(Host::is_socket) {
            let (hosts, ports): (Vec<_>, Vec<_>) = self
                .hosts
                .iter()
                .map(Host::shown)
                .map(|(host, port)| (host, port.to_string()))
                .unzip();
            return format!("postgres:///{database}?host={}&port={}", join(hosts), join(ports));
        }
        format!("postgres://{}/{database}", join(self.hosts.iter().map(Host::to_string).collect()))
    }
}

/// What tells the connections of this process from those of others: the server shows 63 bytes of it.
fn process_name() -> String {
    let host = whoami::hostname().unwrap_or_default();
    let is_plain = |c: &char| c.is_ascii_graphic();
    let host: String = host.chars().filter(is_plain).take(40).collect();
    format!("latchwork {host} {}", std::process::id())
}

pub(crate) fn decode(text: &str, what: &str) -> Result<String, Error> {
    address::decode(text, what).map_err(|error| error.with_next_step(NEXT))
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
        let login = config.login.current().0;
        assert_eq!((&*login.user, &*config.database), ("app@x", "my db"));
        assert_eq!(login.password, Some(Secret("p@ss/w".into())));
        assert_eq!((config.ssl_mode, config.tls.insecure), (SslMode::Require, false));
        assert_eq!((&*config.schema, &*config.table, config.connections), ("ops", "locks", 3));
        assert_eq!(config.shown(), "postgres://h1:7,[::1]:5432/...");
        assert!(config.guard && config.fast && config.max_ttl() == Duration::from_secs(90));
        let least = PostgresConfig::parse("postgres://h").unwrap();
        assert_eq!((&*least.login.current().0.user, &*least.database), ("postgres", "postgres"));
        assert_eq!((least.ssl_mode, least.tls.insecure), (SslMode::Prefer, true));
        let apart = PostgresConfig::parse(
            "postgresql:///?host=h1,h2&port=7,8&user=app&password=p%26w&dbname=shop&target_session_attrs=read-write",
        );
        let apart = apart.unwrap();
        assert_eq!(apart.shown(), "postgres://h1:7,h2:8/shop");
        let login = apart.login.current().0;
        assert_eq!((&*login.user, login.password), ("app", Some(Secret("p&w".into()))));
        let one_port = PostgresConfig::parse("postgres://h1,h2/d?port=9").unwrap();
        assert_eq!(one_port.shown(), "postgres://h1:9,h2:9/d");
        let named =
            PostgresConfig::parse("postgres://u@h?sslmode=require&sslrootcert=/ca").unwrap();
        assert!(!named.tls.insecure, "an authority that is named is checked");
        assert_eq!(named.database, "u", "as with psql, the user's name");
    }

    #[test]
    fn a_folder_in_place_of_a_host_is_a_socket() {
        for url in [
            "postgres://app@%2Frun%2Fpostgresql:7/shop",
            "postgres://app@%2Frun%2Fpostgresql/shop?port=7",
            "postgres:///shop?host=/run/postgresql&port=7&user=app",
        ] {
            let config = PostgresConfig::parse(url).unwrap();
            assert_eq!(config.hosts[0].to_string(), "/run/postgresql/.s.PGSQL.7", "{url}");
            assert_eq!(config.shown(), "postgres:///shop?host=/run/postgresql&port=7");
        }
        let mixed = PostgresConfig::parse("postgres:///d?host=/a%25b,h&port=1,2").unwrap();
        assert_eq!(mixed.shown(), "postgres:///d?host=/...,h&port=1,2");
        assert_eq!(mixed.hosts[0].endpoint().host, "/a%b/.s.PGSQL.1");
        assert_eq!(mixed.login.current().0.user, "postgres");
        let own = PostgresConfig::parse("postgres://%2Ftmp").unwrap();
        assert_eq!(own.login.current().0.user, whoami::username().unwrap());
    }

    #[test]
    fn names_what_it_cannot_read_and_never_the_password() {
        for (url, part) in [
            ("postgres:/x", "address"),
            ("mysql://h", "scheme"),
            ("postgres://", "host"),
            ("postgres://h:0", "port"),
            ("postgres://:pw@h", "without a user"),
            ("postgres:///db?host=@run", "socket"),
            ("postgres://%2Frun%2Fpostgresql:x/db", "port"),
            ("postgres://h?port=0", "port"),
            ("postgres:///d?host=a,b&port=1,2,3", "port"),
            ("postgres://h?service=shop", "service"),
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
            assert!(error.next_step().is_some());
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

    /// H527: `0` and less mean no limit to libpq, and a lock has one.
    #[test]
    fn h527_a_connect_timeout_is_a_number_of_seconds() {
        let read =
            |value: &str| PostgresConfig::parse(&format!("postgres://h?connect_timeout={value}"));
        for (value, seconds) in [("1", 1), ("10", 10), ("3600", 3_600)] {
            assert_eq!(read(value).unwrap().connect_timeout, Duration::from_secs(seconds));
        }
        for value in ["0", "-1", "2.5", "5s", "soon", "", "3601", "99999999999999999999"] {
            let error = read(value).unwrap_err();
            let text = "store: connect_timeout is not a whole number of seconds from 1 to 3600";
            assert_eq!(error.message(), text, "{value}");
            let step = error.next_step().unwrap();
            assert!(step.starts_with("correct connect_timeout"), "{step}");
            assert!(step.ends_with("= in the address, or leave it out"), "{step}");
        }
    }

    /// H280: a slip is answered with the right form.
    #[test]
    fn h280_a_slip_in_an_address_is_named() {
        for (url, step) in [
            ("postgres://app:pw/x@h/db", "%2F"),
            ("postgres://app:pw?x@h/db", "%3F"),
            ("postgres://app:12?pw@h/db", "%3F"),
            ("postgres://::1/db", "[::1]:5432"),
            ("postgres://h1/db,h2/db", "once, after the last server"),
            ("postgres://h/db:5432", "host:port/database"),
        ] {
            let error = PostgresConfig::parse(url).unwrap_err();
            assert!(error.next_step().unwrap().contains(step), "{url}: {error}");
            assert!(!error.to_string().contains("pw"), "{error}");
        }
    }
}
