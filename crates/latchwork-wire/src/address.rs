//! The common parts of the addresses of servers: hosts with ports, logins, and escapes.

use std::fmt;
use std::time::Duration;

use latchwork_store::{Error, ErrorKind};
use percent_encoding::percent_decode_str;

/// A host and a port, or a socket in the file system.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Endpoint {
    /// A name or a number. An IPv6 number has no brackets. Of a socket it is the path, which begins with `/`.
    pub host: String,
    /// 0 for a socket, and only then.
    pub port: u16,
}

impl Endpoint {
    /// A socket in the file system, by its absolute path.
    pub fn socket(path: impl Into<String>) -> Self {
        Self { host: path.into(), port: 0 }
    }

    /// Returns whether this is a socket in the file system.
    pub fn is_socket(&self) -> bool {
        self.host.starts_with('/')
    }

    /// Parses `host`, `host:port` or `[v6]:port`, with escapes in the host. A host has letters,
    /// digits, dots, dashes and underscores; between brackets it is an IPv6 number, with an
    /// optional zone.
    ///
    /// # Errors
    ///
    /// `Invalid`, without the text: what is no host may be a password in the wrong place.
    pub fn parse(text: &str, default_port: u16) -> Result<Self, Error> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, rest) = rest
                    .split_once(']')
                    .ok_or_else(|| invalid("store: a host has no closing bracket".into()))?;
                match rest.strip_prefix(':') {
                    None if !rest.is_empty() => return Err(not_a_host()),
                    port => (host, port),
                }
            }
            None if is_bare_v6(text) => {
                let step =
                    format!("write it in brackets, and the port after them: [::1]:{default_port}");
                return Err(
                    invalid("store: an IPv6 number has no brackets".into()).with_next_step(step)
                );
            }
            None => match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        if host.is_empty() {
            return Err(invalid("store: a host is missing".into()));
        }
        let host = decode(host, "host")?;
        if !(if text.starts_with('[') { is_v6(&host) } else { is_plain(&host) }) {
            return Err(not_a_host());
        }
        let port = match port.map(str::parse) {
            None => default_port,
            Some(Ok(port)) if port > 0 => port,
            Some(_) => {
                return Err(invalid(format!("store: the port of {host} is not a port")));
            }
        };
        Ok(Self { host, port })
    }
}

fn not_a_host() -> Error {
    invalid(
        "store: a host has invalid characters; write a password before the @, with %XX for characters \
         such as / ? # and @"
            .into(),
    )
}

/// Returns whether a text has only letters, digits, dots, dashes and underscores, as the names of
/// hosts and services have. Any other text may be a password in the wrong place, and is not shown.
pub fn is_plain(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
}

/// Whether a text without brackets is an IPv6 number, perhaps with a port after it. A login has an @, and other text
/// is not as short of letters.
fn is_bare_v6(text: &str) -> bool {
    let number = text.split_once('%').map_or(text, |(number, _)| number);
    let is_part = |byte: u8| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.');
    number.bytes().filter(|byte| *byte == b':').count() > 1 && number.bytes().all(is_part)
}

fn is_v6(text: &str) -> bool {
    let (number, zone) = text.split_once('%').unwrap_or((text, ""));
    number.parse::<std::net::Ipv6Addr>().is_ok() && is_plain(zone)
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_socket() {
            // A path that is not plain may be a password in the wrong place.
            let is_plain = self.host.split('/').all(is_plain);
            f.write_str(if is_plain { &self.host } else { "/..." })
        } else if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// The parts of an address after its scheme, `[login@]hosts[/path][?options]`, as they are written.
#[derive(Clone, Copy)]
pub struct Parts<'a> {
    /// What stands before the last @, if there is one.
    pub login: Option<&'a str>,
    /// What stands between the login and the path.
    pub hosts: &'a str,
    /// What follows the first `/`, without it.
    pub path: &'a str,
    /// What follows the first `?`, without it.
    pub query: &'a str,
}

impl<'a> Parts<'a> {
    /// Takes an address apart. `path` names what follows the first `/`: the chroot, the database.
    ///
    /// # Errors
    ///
    /// `Invalid` if the path has an @, as after a `/` in a password, a comma, as after a path behind each host, or
    /// ends in a port.
    pub fn read(rest: &'a str, path: &str) -> Result<Self, Error> {
        let read = Self::split(rest);
        if read.path.contains('@') {
            return Err(unescaped());
        }
        if read.path.contains(',') {
            return Err(invalid(format!("store: the {path} contains a comma; the servers come before it"))
                .with_next_step(format!(
                    "write the {path} once, after the last server: h1,h2/{path}; a comma in its name is %2C"
                )));
        }
        let port = read.path.rsplit_once(':').map(|(_, port)| port);
        if port.is_some_and(|port| port.parse::<u16>().is_ok()) {
            return Err(invalid(format!("store: the {path} ends in what looks like a port"))
                .with_next_step(format!(
                    "write the port after the host: host:port/{path}; a colon in its name is %3A"
                )));
        }
        Ok(read)
    }

    /// As [`read`](Self::read), without its checks: for a path that names a file.
    pub fn split(rest: &'a str) -> Self {
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (Some(login), hosts),
            None => (None, authority),
        };
        Self { login, hosts, path, query }
    }

    /// Returns the hosts, with a comma between two.
    ///
    /// # Errors
    ///
    /// As for [`Endpoint::parse`].
    pub fn endpoints(&self, default_port: u16) -> Result<Vec<Endpoint>, Error> {
        let hosts = self.hosts.split(',').map(|host| Endpoint::parse(host, default_port));
        hosts.collect::<Result<_, _>>().map_err(|error| self.blame(error))
    }

    /// Returns the error of a host that cannot be read: what stands in its place may be the beginning of a password.
    pub fn blame(&self, error: Error) -> Error {
        match self.login.is_none() && self.query.contains('@') {
            true => unescaped(),
            false => error,
        }
    }
}

/// An @ stands where the login has ended: something in it has ended it too early.
fn unescaped() -> Error {
    invalid("store: there is an @ after the first / or ?".into()).with_next_step(
        "write / in a user or a password as %2F, ? as %3F and # as %23, and an @ in a path or the name of an option as \
         %40",
    )
}

/// Returns the error with this next step, unless it has one.
#[must_use]
pub fn usually(error: Error, step: &str) -> Error {
    if error.next_step().is_some() { error } else { error.with_next_step(step) }
}

/// A user and a password.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// Never empty.
    pub user: String,
    /// Never shown.
    pub password: String,
}

impl Login {
    /// Parses `user:password`, with escapes in both.
    ///
    /// # Errors
    ///
    /// `Invalid` with the part that is missing or cannot be read.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let Some((user, password)) = text.split_once(':') else {
            return Err(invalid("store: a user without a password".into()));
        };
        if user.is_empty() {
            return Err(invalid("store: a password without a user".into()));
        }
        Ok(Self { user: decode(user, "user")?, password: decode(password, "password")? })
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("user", &self.user).field("password", &"***").finish()
    }
}

/// Decodes a part of an address in which `%XX` is a byte. `what` names the part in the error. The
/// text itself may be a password and is not repeated.
///
/// # Errors
///
/// `Invalid` if it is not UTF-8.
pub fn decode(text: &str, what: &str) -> Result<String, Error> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| invalid(format!("store: {what} is not UTF-8")))
}

/// Reads a duration of an option: whole `ms`, `s`, `m` or `h`. `None` if it is not one, or zero.
pub fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let number: u64 = number.parse().ok()?;
    let millis = match unit {
        "ms" => number,
        "s" => number.checked_mul(1_000)?,
        "m" => number.checked_mul(60_000)?,
        "h" => number.checked_mul(3_600_000)?,
        _ => return None,
    };
    Some(Duration::from_millis(millis)).filter(|duration| !duration.is_zero())
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

/// Returns the error for an unknown option of an address: it names the nearest known option, and
/// all of them. It does not repeat the option, which may be a password in the wrong place.
pub fn unknown_option(name: &str, known: &[&str]) -> Error {
    /// A name at least this similar to a known one is a mistyped one.
    const MISTYPED: f64 = 0.9;
    /// An option of a lock, which some users write into the address.
    const TTL: &str = "ttl";
    if name.contains('@') {
        return unescaped();
    }
    let hint = match nearest(name, known) {
        _ if likeness(name, TTL) >= MISTYPED => {
            "the ttl is set on the lock (`ttl`, or --ttl of the command), not in the address; "
                .to_owned()
        }
        Some(option) => format!("did you mean {option}? "),
        None => String::new(),
    };
    let all = known.iter().chain(&[TTL]);
    let message = match all.into_iter().any(|option| likeness(name, option) >= MISTYPED) {
        true => format!("store: the option {name:?} is unknown"),
        false => "store: an option is unknown".to_owned(),
    };
    Error::new(ErrorKind::Invalid, message)
        .with_next_step(format!("{hint}the options are: {}", known.join(", ")))
}

/// The one of these words that this one may be mistyped for.
pub fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    /// How much alike two words are then.
    const ALIKE: f64 = 0.75;
    let best = known.iter().max_by(|a, b| likeness(word, a).total_cmp(&likeness(word, b)));
    best.copied().filter(|known| likeness(word, known) >= ALIKE)
}

/// How much alike two words are, from 0 to 1.
fn likeness(one: &str, other: &str) -> f64 {
    strsim::jaro_winkler(one, other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_hosts_with_and_without_ports() {
        for (text, shown) in [
            ("h", "h:7"),
            ("h:1", "h:1"),
            ("[::1]", "[::1]:7"),
            ("[::1]:65535", "[::1]:65535"),
            ("redis%2Dmain_1.example:2", "redis-main_1.example:2"),
            ("[fe80::1%25eth0]:2", "[fe80::1%eth0]:2"),
        ] {
            assert_eq!(Endpoint::parse(text, 7).unwrap().to_string(), shown);
        }
    }

    #[test]
    fn an_unreadable_address_names_its_part() {
        for (text, part) in [
            ("", "host"),
            (":1", "host"),
            ("[::1", "bracket"),
            ("h:0", "port"),
            ("h:65536", "port"),
            ("h:", "port"),
            ("%ff", "UTF-8"),
        ] {
            let error = Endpoint::parse(text, 7).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains(part), "{text}: {error}");
        }
        for text in
            ["h#pw", "token=pw", "h pw", "[pw]", "[::1]pw", "h:pw", "[pw", "h%20pw", "h\npw"]
        {
            let error = Endpoint::parse(text, 7).unwrap_err().to_string();
            assert!(error.starts_with("store: ") && !error.contains("pw"), "{text}: {error}");
        }
        assert!(!decode("pw%ff", "password").unwrap_err().to_string().contains("pw"));
    }

    #[test]
    fn a_slip_in_an_address_is_answered_with_its_right_form() {
        for (rest, step) in [
            ("app:pw/a@h", "%2F"),
            ("app:12/pw@h", "%2F"),
            ("u:a@b/pw@h/db", "%2F"),
            ("u:pw?b@h", "%3F"),
            (":pw?x=y@h", "%3F"),
            ("h1/db,h2/db", "once, after the last server: h1,h2/"),
            ("h1/db:6379", "write the port after the host: host:port/"),
            ("h1/db:6379", "host:port/database; a colon in its name is %3A"),
            ("::1", "[::1]:7"),
            ("fe80::1%eth0", "[::1]:7"),
            ("::1:6379/db", "[::1]:7"),
            ("h,2001:db8::1", "[::1]:7"),
        ] {
            let read = Parts::read(rest, "database").and_then(|parts| parts.endpoints(7));
            let error = read.unwrap_err().to_string();
            assert!(error.contains(step) && !error.contains("pw"), "{rest}: {error}");
        }
        for rest in ["u:p@ss@h1:1,[::1]/a%40b%2C%3A7?ca=/a@b", ":a#b@h", "h/"] {
            Parts::read(rest, "database").unwrap().endpoints(7).unwrap();
        }
        assert!(unknown_option("pw@h", &["ca"]).next_step().unwrap().contains("%3F"));
    }

    #[test]
    fn a_socket_is_its_path() {
        let socket = Endpoint::socket("/run/redis/a.sock");
        assert!(socket.is_socket() && !Endpoint::parse("h", 7).unwrap().is_socket());
        assert_eq!(socket.to_string(), "/run/redis/a.sock");
        assert_eq!(Endpoint::socket("/a b/pw").to_string(), "/...");
    }

    #[test]
    fn a_login_has_a_user_and_a_password_and_shows_only_the_user() {
        let login = Login::parse("a%20b:p%40ss:word").unwrap();
        assert_eq!((&*login.user, &*login.password), ("a b", "p@ss:word"));
        assert_eq!(format!("{login:?}"), "Login { user: \"a b\", password: \"***\" }");
        for (text, part) in [("user", "without a password"), (":pw", "without a user")] {
            let error = Login::parse(text).unwrap_err().to_string();
            assert!(error.contains(part) && !error.contains("pw"), "{error}");
        }
    }

    #[test]
    fn the_nearest_option_is_named() {
        let known = ["guard", "max_ttl", "min_replicas"];
        let error = unknown_option("gaurd", &known).to_string();
        assert!(error.contains("did you mean guard? the options are: guard, max_ttl"), "{error}");
        let error = unknown_option("ttls", &["ca", "cert"]).to_string();
        assert!(error.contains("\"ttls\" is unknown") && error.contains("--ttl"), "{error}");
        let error = unknown_option("colour", &known);
        let listed = error.next_step().unwrap().strip_prefix("the options are: ");
        assert_eq!(listed, Some("guard, max_ttl, min_replicas"), "{error}");
    }
}
