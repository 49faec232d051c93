//! The members' addresses and the client's credentials.

use std::fmt;

use latchwork_store::{Error, ErrorKind};
pub(crate) use latchwork_wire::address::{Endpoint, Login};
use latchwork_wire::address::{Parts, unknown_option};
use latchwork_wire::{Source, Sourced};
use latchwork_wire::{address, tls};

/// The port that etcd listens on for clients.
const DEFAULT_PORT: u16 = 2_379;

const NEXT: &str = "use etcd://h1:2379,h2,h3 or etcd://user:password@h1,h2,h3, with etcds for TLS";

/// How to reach etcd: `etcd://[user:password@]h1[:port],h2,h3`.
///
/// With `etcds` instead of `etcd` the members are spoken to by TLS. Options follow after `?`,
/// separated by `&`; what an address may not hold is written as `%XX`:
///
/// | option | meaning |
/// | --- | --- |
/// | `ca=/path` | the certificate authority to trust instead of the system's (PEM) |
/// | `cert=/path`, `key=/path` | the client's certificate and key (PEM), both or none |
/// | `server_name=etcd.example` | the name that the members' certificates are for, if it is not the host's |
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdConfig {
    pub(crate) members: Vec<Endpoint>,
    pub(crate) login: Sourced<Option<Login>>,
    pub(crate) tls: Option<Tls>,
}

/// How to speak TLS.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Tls {
    pub(crate) files: tls::Tls,
    pub(crate) server_name: Option<String>,
}

impl fmt::Debug for EtcdConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.login.current().0.map(|login| login.user);
        f.debug_struct("EtcdConfig")
            .field("members", &self.members)
            .field("user", &user)
            .field("tls", &self.tls)
            .finish_non_exhaustive()
    }
}

/// All options of an address.
const OPTIONS: &[&str] = &["ca", "cert", "key", "server_name", "insecure"];

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Invalid, message).with_next_step(NEXT)
}

impl EtcdConfig {
    /// Reads the user and the password again from the source of the address after the members have refused them.
    #[must_use]
    pub fn source(mut self, source: Source) -> Self {
        let parse = |url: &str| Ok(Self::parse(url)?.login.current().0);
        self.login = self.login.read_from(source, parse);
        self
    }

    /// Reads an address.
    ///
    /// # Errors
    ///
    /// `Invalid` with the part that cannot be read; the password is never repeated.
    pub fn parse(url: &str) -> Result<Self, Error> {
        let (scheme, rest) =
            url.split_once("://").ok_or_else(|| invalid("store: not an address of etcd".into()))?;
        let tls = match scheme {
            "etcd" => None,
            "etcds" => Some(Tls::default()),
            _ => return Err(invalid("store: not an address of etcd".into())),
        };
        let parts = Parts::read(rest, "path").map_err(hinted)?;
        let members = parts.endpoints(DEFAULT_PORT).map_err(hinted)?;
        if !parts.path.is_empty() {
            return Err(invalid("store: etcd has no databases, but there is a path".into()));
        }
        let login = parts.login.map(Login::parse).transpose().map_err(hinted)?;
        let mut config = Self { members, login: Sourced::fixed(login), tls };
        for option in parts.query.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            config.set(name, decode(value, name)?)?;
        }
        match &config.tls {
            Some(Tls { files, .. }) if files.certificate.is_some() != files.key.is_some() => {
                Err(invalid("store: cert and key belong together, and one is missing".into()))
            }
            _ => Ok(config),
        }
    }

    fn set(&mut self, name: &str, value: String) -> Result<(), Error> {
        if !OPTIONS.contains(&name) {
            return Err(unknown_option(name, OPTIONS));
        }
        let Some(tls) = &mut self.tls else {
            return Err(invalid(format!("store: {name} is an option of TLS"))
                .with_next_step("use etcds instead of etcd, or leave the option out"));
        };
        match name {
            "ca" => tls.files.ca = Some(value.into()),
            "cert" => tls.files.certificate = Some(value.into()),
            "key" => tls.files.key = Some(value.into()),
            "server_name" => tls.server_name = Some(value),
            _ => {
                return Err(invalid("store: etcd does not support the option insecure".into())
                    .with_next_step("name the authority with ca=/path"));
            }
        }
        Ok(())
    }

    /// The address for messages: without credentials.
    pub(crate) fn shown(&self) -> String {
        let members: Vec<_> = self.members.iter().map(Endpoint::to_string).collect();
        let secure = if self.tls.is_some() { "s" } else { "" };
        format!("etcd{secure}://{}", members.join(","))
    }
}

fn hinted(error: Error) -> Error {
    address::usually(error, NEXT)
}

fn decode(text: &str, what: &str) -> Result<String, Error> {
    address::decode(text, what).map_err(hinted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_members_and_login() {
        let config = EtcdConfig::parse("etcd://app:p%40ss@a,b:1,[::1]").unwrap();
        assert_eq!(config.shown(), "etcd://a:2379,b:1,[::1]:2379");
        let login = config.login.current().0.unwrap();
        assert_eq!((&*login.user, &*login.password), ("app", "p@ss"));
        assert!(!format!("{config:?}").contains("p@ss"));
        assert!(EtcdConfig::parse("etcd://h").unwrap().login.current().0.is_none());
    }

    #[test]
    fn tls_options_are_parsed() {
        let url = "etcds://h?ca=/a%20b&cert=/c&key=/k&server_name=etcd.example";
        let config = EtcdConfig::parse(url).unwrap();
        assert_eq!(config.shown(), "etcds://h:2379");
        let expected = Tls {
            files: tls::Tls {
                ca: Some("/a b".into()),
                certificate: Some("/c".into()),
                key: Some("/k".into()),
                insecure: false,
            },
            server_name: Some("etcd.example".into()),
        };
        assert_eq!(config.tls, Some(expected));
        assert_eq!(EtcdConfig::parse("etcds://h").unwrap().tls, Some(Tls::default()));
    }

    #[test]
    fn an_unreadable_address_names_its_part() {
        for (url, part) in [
            ("http://h", "address"),
            ("etcd://", "host"),
            ("etcd://a,,b", "host"),
            ("etcd://h:0", "port"),
            ("etcd://h:x", "port"),
            ("etcd://h/1", "databases"),
            ("etcd://user@h", "user"),
            ("etcd://:pw@h", "user"),
            ("etcd://h?color=red", "an option is unknown"),
            ("etcd://h?ca=/x", "TLS"),
            ("etcds://h?cert=/x", "key"),
            ("etcds://h?insecure=true", "insecure"),
            ("etcd://[::1", "bracket"),
        ] {
            let error = EtcdConfig::parse(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains(part), "{url}: {error}");
            assert!(error.next_step().is_some());
        }
    }

    /// H280: a slip is answered with the right form.
    #[test]
    fn h280_a_slip_in_an_address_is_named() {
        for (url, step) in [
            ("etcd://app:pw/x@h", "%2F"),
            ("etcd://app:pw?x@h", "%3F"),
            ("etcd://app:12/pw@h", "%2F"),
            ("etcd://::1", "[::1]:2379"),
            ("etcd://h?ca=/x", "use etcds instead of etcd, or leave the option out"),
            ("etcds://h?insecure=true", "name the authority with ca=/path"),
            ("etcd://h?colour=x", "the options are: ca, cert"),
            ("etcd://h1/a,h2/a", "once, after the last server"),
        ] {
            let error = EtcdConfig::parse(url).unwrap_err();
            assert!(error.next_step().unwrap().contains(step), "{url}: {error}");
            assert!(!error.to_string().contains("pw"), "{error}");
        }
    }
}
