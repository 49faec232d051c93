//! The servers' addresses, the node above the locks, and the client's credentials.

use std::fmt;
use std::path::PathBuf;

use latchwork_store::{Error, ErrorKind};
use latchwork_wire::address;
pub(crate) use latchwork_wire::address::{Endpoint, Login};
use latchwork_wire::address::{Parts, unknown_option};
use latchwork_wire::tls::Tls;
use latchwork_wire::{Source, Sourced};

/// The port that ZooKeeper listens on for clients.
const DEFAULT_PORT: u16 = 2_181;

const NEXT: &str = "use zk://h1:2181,h2,h3/chroot, zk://user:password@h1,h2,h3/chroot or, with TLS, \
                    zks://h1:2281,h2/chroot?ca=/path";

/// How to reach ZooKeeper: `zk://[user:password@]h1[:port],h2,h3[/chroot]`, or `zks://` with TLS.
///
/// With TLS there are the options `ca=/path`, `cert=/path` and `key=/path`, all in the PEM format.
/// `auth=sasl` proves the user by SASL's DIGEST-MD5 and not by the scheme `digest`.
/// What an address may not hold is written as `%XX`.
#[derive(Clone, PartialEq, Eq)]
pub struct ZooKeeperConfig {
    pub(crate) servers: Vec<Endpoint>,
    pub(crate) login: Sourced<Logins>,
    pub(crate) scheme: Scheme,
    pub(crate) tls: Option<Tls>,
    /// Begins with `/` and does not end so; empty for the root.
    pub(crate) chroot: String,
}

/// Who logs in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Logins {
    pub(crate) now: Option<Login>,
    /// The one of the first address, if it was another one: nodes of this client are its own.
    pub(crate) first: Option<Login>,
}

/// How user and password are proven.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// By telling both; the server compares when a node is made or used.
    #[default]
    Digest,
    /// By SASL's mechanism DIGEST-MD5, to servers that know their users.
    Sasl,
}

impl fmt::Debug for ZooKeeperConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.login.current().0.now.map(|login| login.user);
        f.debug_struct("ZooKeeperConfig")
            .field("servers", &self.servers)
            .field("user", &user)
            .field("chroot", &self.chroot)
            .finish_non_exhaustive()
    }
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Invalid, message).with_next_step(NEXT)
}

impl ZooKeeperConfig {
    /// Reads an address.
    ///
    /// # Errors
    ///
    /// `Invalid` with the part that cannot be read; the password is never repeated.
    pub fn parse(url: &str) -> Result<Self, Error> {
        let (is_secure, rest) = match (url.strip_prefix("zk://"), url.strip_prefix("zks://")) {
            (Some(rest), _) => (false, rest),
            (None, Some(rest)) => (true, rest),
            (None, None) => return Err(invalid("store: not an address of ZooKeeper".into())),
        };
        let parts = Parts::read(rest, "chroot").map_err(hinted)?;
        let servers = parts.endpoints(DEFAULT_PORT).map_err(hinted)?;
        let Options { tls, scheme } = Options::read(parts.query, is_secure)?;
        let login = parts.login.map(Login::parse).transpose().map_err(hinted)?;
        if scheme == Scheme::Sasl && login.is_none() {
            return Err(invalid("store: auth=sasl needs user:password@".into()));
        }
        let login = Sourced::fixed(Logins { now: login, first: None });
        Ok(Self { servers, login, scheme, tls, chroot: read_chroot(parts.path)? })
    }

    /// Reads the user and the password again from the source of the address after a server has refused them, or has
    /// said that they lack a right.
    #[must_use]
    pub fn source(mut self, source: Source) -> Self {
        let first = self.login.current().0.now;
        let parse = move |url: &str| {
            let now = Self::parse(url)?.login.current().0.now;
            let first = first.clone().filter(|first| now.as_ref() != Some(first));
            Ok(Logins { now, first })
        };
        self.login = self.login.read_from(source, parse);
        self
    }

    /// The address for messages: without credentials.
    pub(crate) fn shown(&self) -> String {
        let servers: Vec<_> = self.servers.iter().map(Endpoint::to_string).collect();
        let scheme = if self.tls.is_some() { "zks" } else { "zk" };
        // A path may have any character, but it may also be a password in the wrong place.
        let is_shown = self.chroot.split(['/', ' ']).all(address::is_plain);
        let chroot = if is_shown { &self.chroot } else { "/..." };
        format!("{scheme}://{}{chroot}", servers.join(","))
    }
}

fn hinted(error: Error) -> Error {
    address::usually(error, NEXT)
}

/// What follows after `?`.
struct Options {
    tls: Option<Tls>,
    scheme: Scheme,
}

impl Options {
    fn read(query: &str, is_secure: bool) -> Result<Self, Error> {
        let (mut ca, mut certificate, mut key) = (None, None, None);
        let mut scheme = Scheme::default();
        for option in query.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let place = match name {
                "ca" => &mut ca,
                "cert" => &mut certificate,
                "key" => &mut key,
                "auth" => {
                    scheme = match value {
                        "digest" => Scheme::Digest,
                        "sasl" => Scheme::Sasl,
                        _ => return Err(invalid("store: auth is digest or sasl".into())),
                    };
                    continue;
                }
                _ => return Err(unknown_option(name, &["auth", "ca", "cert", "key"])),
            };
            if !is_secure {
                return Err(invalid(format!("store: {name} is an option of TLS, of zks://")));
            }
            if value.is_empty() {
                return Err(invalid(format!("store: {name} has no path")));
            }
            *place = Some(PathBuf::from(decode(value, name)?));
        }
        if certificate.is_some() != key.is_some() {
            return Err(invalid("store: cert and key go together".into()));
        }
        let tls = Tls { ca, certificate, key, insecure: false };
        Ok(Self { tls: is_secure.then_some(tls), scheme })
    }
}

fn read_chroot(path: &str) -> Result<String, Error> {
    let path = path.strip_suffix('/').unwrap_or(path);
    if path.is_empty() {
        return Ok(String::new());
    }
    let mut chroot = String::new();
    for part in path.split('/') {
        let name = decode(part, "chroot")?;
        if name.is_empty() || !crate::names::is_plain(&name) {
            return Err(invalid("store: the chroot contains what is not a valid name".into()));
        }
        chroot.push('/');
        chroot.push_str(&name);
    }
    match chroot == "/zookeeper" || chroot.starts_with("/zookeeper/") {
        true => Err(invalid("store: the chroot /zookeeper is the server's own".into())),
        false => Ok(chroot),
    }
}

fn decode(text: &str, what: &str) -> Result<String, Error> {
    address::decode(text, what).map_err(hinted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_servers_login_and_chroot() {
        let config = ZooKeeperConfig::parse("zk://app:p%40ss@a,b:1,[::1]/locks/of%20us/").unwrap();
        assert_eq!(config.shown(), "zk://a:2181,b:1,[::1]:2181/locks/of us");
        let login = config.login.current().0.now.unwrap();
        assert_eq!((&*login.user, &*login.password), ("app", "p@ss"));
        assert!(!format!("{config:?}").contains("p@ss"));
        let secure = ZooKeeperConfig::parse("zks://h?ca=/a%20b&cert=/c&key=/k").unwrap();
        let [ca, certificate, key] = ["/a b", "/c", "/k"].map(|path| Some(path.into()));
        assert_eq!(secure.tls, Some(Tls { ca, certificate, key, insecure: false }));
        assert_eq!(secure.shown(), "zks://h:2181");
        let sasl = ZooKeeperConfig::parse("zks://u:p@h?auth=sasl&ca=/a").unwrap();
        assert_eq!((sasl.scheme, secure.scheme), (Scheme::Sasl, Scheme::Digest));
        let plain = ZooKeeperConfig::parse("zk://h/").unwrap();
        assert!(plain.chroot.is_empty() && plain.login.current().0.now.is_none());
    }

    /// H268: as in the addresses of other clients, and as a slip.
    #[test]
    fn h268_servers_and_ports_are_no_part_of_a_chroot() {
        for (url, step) in [
            ("zk://h1:2181/a,h2:2181/a", "after the last server"),
            ("zk://h1/a,h2/a", "after the last server"),
            ("zks://h1/a/b,h2?ca=/x", "after the last server"),
            ("zk://h1/a:2181", "port after the host"),
        ] {
            let error = ZooKeeperConfig::parse(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.next_step().unwrap().contains(step), "{url}: {error:?}");
        }
        let named = ZooKeeperConfig::parse("zk://h/a%2Cb:2/app:c%3A7").unwrap();
        assert_eq!(named.chroot, "/a,b:2/app:c:7");
    }

    #[test]
    fn an_unreadable_address_names_its_part() {
        for (url, part) in [
            ("http://h", "address"),
            ("zk://", "host"),
            ("zk://a,,b", "host"),
            ("zk://h:0", "port"),
            ("zk://h:x", "port"),
            ("zk://h/a//b", "chroot"),
            ("zk://h/a/../b", "chroot"),
            ("zk://h/zookeeper/x", "chroot"),
            ("zk://user@h", "user"),
            ("zk://:pw@h", "user"),
            ("zk://h?color=red", "an option is unknown"),
            ("zk://[::1", "bracket"),
            ("zk://u:p@h?auth=kerberos", "auth"),
            ("zk://h?auth=sasl", "user:password"),
            ("zk://h?ca=/x", "TLS"),
            ("zks://h?ca", "path"),
            ("zks://h?cert=/x", "together"),
        ] {
            let error = ZooKeeperConfig::parse(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains(part), "{url}: {error}");
            assert!(error.next_step().is_some());
        }
    }

    /// H280: a slip is answered with the right form.
    #[test]
    fn h280_a_slip_in_an_address_is_named() {
        for (url, step) in [
            ("zk://app:pw/x@h/locks", "%2F"),
            ("zk://app:12/pw@h/locks", "%2F"),
            ("zk://app:pw?x@h/locks", "%3F"),
            ("zk://h,::1:2181/locks", "[::1]:2181"),
        ] {
            let error = ZooKeeperConfig::parse(url).unwrap_err();
            assert!(error.next_step().unwrap().contains(step), "{url}: {error}");
            assert!(!error.to_string().contains("pw"), "{error}");
        }
    }
}
