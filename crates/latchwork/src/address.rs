//! Store addresses: a URL, read strictly.

use std::path::PathBuf;

use latchwork_store::{Error, ErrorKind};
use latchwork_wire::address::nearest;

/// Where a store is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    /// This process only. All users of a name in the process share a store.
    Memory(Option<String>),
    /// A directory of this machine.
    File(PathBuf),
    /// Redis or Valkey: one server, behind Sentinels, or a Cluster. Its own crate reads the rest.
    Redis(String),
    /// Several independent servers of Redis or Valkey that vote (Redlock).
    Redlock(String),
    /// etcd. Its own crate reads the rest.
    Etcd(String),
    /// ZooKeeper. Its own crate reads the rest.
    ZooKeeper(String),
    Postgres(String),
    /// Kubernetes. Its own crate reads the rest.
    Kubernetes(String),
}

const KNOWN: &str = "file:///directory, redis://host, redis+sentinel://h1,h2/service, \
                     redis+cluster://h1,h2, redis+unix:///socket (or valkey instead of redis), redlock://h1,h2,h3, etcd://h1,h2,h3, zk://h1,h2,h3/chroot, \
                     postgres://user@host/database, k8s://namespace, mem:, mem:NAME";

const SCHEMES: &[&str] = &[
    "file",
    "redis",
    "rediss",
    "redis+sentinel",
    "rediss+sentinel",
    "redis+cluster",
    "rediss+cluster",
    "valkey",
    "valkeys",
    "valkey+sentinel",
    "valkeys+sentinel",
    "valkey+cluster",
    "valkeys+cluster",
    "redis+unix",
    "valkey+unix",
    "redlock",
    "etcd",
    "etcds",
    "zk",
    "zks",
    "mem",
    "postgres",
    "postgresql",
    "k8s",
];

/// What other clients call a scheme, and the one that is meant.
const MEANT: [(&str, &str); 14] = [
    ("kubernetes", "k8s"),
    ("kube", "k8s"),
    ("zookeeper", "zk"),
    ("zookeepers", "zks"),
    ("pg", "postgres"),
    ("psql", "postgres"),
    ("sentinel", "redis+sentinel"),
    ("redis-sentinel", "redis+sentinel"),
    ("redis-cluster", "redis+cluster"),
    ("unix", "redis+unix"),
    ("redis+socket", "redis+unix"),
    ("redis-socket", "redis+unix"),
    ("http", "etcd"),
    ("https", "etcds"),
];

/// The stores that usually listen at a port.
const PORTS: [(&str, &str); 8] = [
    ("6379", "redis"),
    ("26379", "redis+sentinel"),
    ("2379", "etcd"),
    ("2181", "zk"),
    ("2281", "zks"),
    ("5432", "postgres"),
    ("6432", "postgres"),
    ("6443", "k8s"),
];

/// The port of an address that begins with a host.
fn port_without_scheme(url: &str) -> Option<&str> {
    let start = url.split(['/', '?']).next().unwrap_or_default();
    let is_url = url[start.len()..].starts_with("//");
    let (_, port) = start.rsplit_once(':').filter(|_| !is_url)?;
    (!port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())).then_some(port)
}

impl Address {
    /// Reads an address, without white space at its ends: a variable or a file often has a line break there. An error
    /// does not repeat it: whatever cannot be read may be a password.
    pub(crate) fn parse(url: &str) -> Result<Self, Error> {
        let url = url.trim();
        let invalid = |message: String| {
            Err(Error::new(ErrorKind::Invalid, message)
                .with_next_step(format!("use one of: {KNOWN}")))
        };
        if url.starts_with("//") && url.contains('@') {
            return invalid("store: this begins like a URL, but has no scheme".into());
        }
        if url.starts_with('/') {
            return Ok(Self::File(url.into()));
        }
        if url.is_empty() {
            return invalid("store: the address is empty".into());
        }
        let Some((scheme, rest)) = url.split_once(':') else {
            return invalid("store: this is not a URL; it has no scheme".into());
        };
        let scheme = scheme.to_ascii_lowercase();
        if !SCHEMES.contains(&&*scheme)
            && let Some(port) = port_without_scheme(url)
        {
            let store = PORTS.iter().find(|(usual, _)| *usual == port).map(|(_, store)| *store);
            let hint = match store {
                Some("k8s") => "did you mean k8s://NAMESPACE? ".to_owned(),
                Some(store) => format!("did you mean {store}://HOST:{port}? "),
                None => String::new(),
            };
            let step = format!("{hint}use one of: {KNOWN}");
            let message = "store: there is no scheme before the host";
            return Err(Error::new(ErrorKind::Invalid, message).with_next_step(step));
        }
        let url = format!("{scheme}:{rest}");
        match &*scheme {
            "mem" if rest.is_empty() => Ok(Self::Memory(None)),
            "mem" if rest.contains(['/', '?', '#']) => {
                invalid("store: there is more than a name after mem:".into())
            }
            "mem" => Ok(Self::Memory(Some(rest.to_owned()))),
            "file" if rest.contains(['?', '#']) => {
                let found = if rest.contains('?') { '?' } else { '#' };
                let message = format!(
                    "store: there is a {found} after file:; a file address takes no options"
                );
                // Taken for a part of the name, it would make a second directory with locks of
                // its own, that exclude nobody who left it out.
                let step = "leave it out; in the name of a directory write ? as %3F and # as %23";
                Err(Error::new(ErrorKind::Invalid, message).with_next_step(step))
            }
            "file" => Self::file(rest).map_or_else(
                || invalid("store: file: needs an absolute path: file:///var/lib/app/locks".into()),
                Ok,
            ),
            "redis" | "rediss" | "redis+sentinel" | "rediss+sentinel" | "redis+cluster"
            | "rediss+cluster" | "valkey" | "valkeys" | "valkey+sentinel" | "valkeys+sentinel"
            | "valkey+cluster" | "valkeys+cluster" | "redis+unix" | "rediss+unix"
            | "valkey+unix" | "valkeys+unix" => Ok(Self::Redis(url)),
            "redlock" | "redis+redlock" | "rediss+redlock" | "valkey+redlock"
            | "valkeys+redlock" => Ok(Self::Redlock(url)),
            "etcd" | "etcds" => Ok(Self::Etcd(url)),
            "zk" | "zks" => Ok(Self::ZooKeeper(url)),
            "postgres" | "postgresql" => Ok(Self::Postgres(url)),
            "k8s" => Ok(Self::Kubernetes(url)),
            scheme => {
                let meant = MEANT.iter().find(|(other, _)| *other == scheme);
                let message = match meant {
                    Some((other, _)) => format!("store: the scheme {other}: is unknown"),
                    None => "store: the scheme is unknown".to_owned(),
                };
                let hint = match meant.map(|(_, known)| *known).or(nearest(scheme, SCHEMES)) {
                    Some(known) if scheme.starts_with("http") => format!(
                        "did you mean {known}:? (a `latchwork serve` is no store: clients send it requests) "
                    ),
                    Some(known) => format!("did you mean {known}:? "),
                    None => String::new(),
                };
                let step = format!("{hint}use one of: {KNOWN}");
                Err(Error::new(ErrorKind::Invalid, message).with_next_step(step))
            }
        }
    }

    /// `//` and an absolute path, with `%XX` for bytes that a URL cannot carry.
    fn file(rest: &str) -> Option<Self> {
        let path = rest.strip_prefix("//")?;
        if !path.starts_with('/') {
            return None;
        }
        let bytes = percent_decode(path)?;
        #[cfg(unix)]
        let path = {
            use std::os::unix::ffi::OsStringExt;
            std::ffi::OsString::from_vec(bytes)
        };
        #[cfg(not(unix))]
        let path = String::from_utf8(bytes).ok()?;
        Some(Self::File(path.into()))
    }
}

fn percent_decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        if *first != b'%' {
            bytes.push(*first);
            rest = tail;
            continue;
        }
        let digits = tail.get(..2).filter(|d| d.iter().all(u8::is_ascii_hexdigit))?;
        let digits = std::str::from_utf8(digits).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &tail[2..];
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// H280: a variable or a file often has a line break at its end, and would name another store.
    #[test]
    fn h280_white_space_at_the_ends_names_no_other_store() {
        for (written, meant) in [
            ("file:///srv/locks\n", "file:///srv/locks"),
            (" /srv/locks\r\n", "/srv/locks"),
            ("mem:tests \t", "mem:tests"),
            ("\nzk://h/app\n", "zk://h/app"),
        ] {
            assert_eq!(Address::parse(written).unwrap(), Address::parse(meant).unwrap());
        }
        let error = Address::parse(" \n").unwrap_err().to_string();
        assert!(error.contains("the address is empty"), "{error}");
    }

    #[test]
    fn documented_addresses_are_accepted() {
        assert_eq!(Address::parse("mem:").unwrap(), Address::Memory(None));
        assert_eq!(Address::parse("mem:tests").unwrap(), Address::Memory(Some("tests".into())));
        assert_eq!(
            Address::parse("file:///var/lib/a%20b").unwrap(),
            Address::File("/var/lib/a b".into())
        );
    }

    #[test]
    fn a_path_and_a_scheme_in_capitals_are_read_as_people_mean_them() {
        let path = Address::File("/var/locks %41".into());
        assert_eq!(Address::parse("/var/locks %41").unwrap(), path);
        assert_eq!(Address::parse("FILE:///a%20B").unwrap(), Address::File("/a B".into()));
        let redis = Address::parse("Redis://:Pw@Host").unwrap();
        assert_eq!(redis, Address::Redis("redis://:Pw@Host".into()));
        let valkey = Address::parse("Valkeys+Cluster://Host").unwrap();
        assert_eq!(valkey, Address::Redis("valkeys+cluster://Host".into()));
        let votes = Address::parse("valkey+redlock://a,b,c").unwrap();
        assert_eq!(votes, Address::Redlock("valkey+redlock://a,b,c".into()));
    }

    #[test]
    fn a_mistyped_scheme_is_answered_with_the_nearest() {
        for (url, known) in [
            ("redi://h", "redis:"),
            ("vakley://h", "valkey:"),
            ("ectd://h", "etcd:"),
            ("flie:///x", "file:"),
            ("unix:///tmp/redis.sock", "redis+unix:"),
            ("redis+socket:///tmp/redis.sock", "redis+unix:"),
            ("kubernetes://shop", "k8s:"),
            ("zookeeper://h", "zk:"),
            ("pg://h/db", "postgres:"),
            ("http://127.0.0.1:2379", "etcd:"),
            ("https://h:2379", "etcds:"),
            ("127.0.0.1:6379", "redis://HOST:6379"),
            ("localhost:6379/2", "redis://HOST:6379"),
            ("[::1]:2181", "zk://HOST:2181"),
            ("etcd-0:2379,etcd-1:2379", "etcd://HOST:2379"),
            ("app:s3cret@db:5432/shop", "postgres://HOST:5432"),
        ] {
            let error = Address::parse(url).unwrap_err().to_string();
            assert!(error.contains(&format!("did you mean {known}?")), "{url}: {error}");
            assert!(!error.contains("s3cret"), "{error}");
        }
        let error = Address::parse("http://127.0.0.1:7117").unwrap_err().to_string();
        assert!(error.contains("a `latchwork serve` is no store"), "{error}");
        let error = Address::parse("kubernetes://shop").unwrap_err().to_string();
        assert!(error.contains("the scheme kubernetes: is unknown"), "{error}");
        for (url, said) in [
            ("locks:1234", "there is no scheme before the host; use one of"),
            ("ftp://h:6379", "the scheme is unknown; use one of"),
            ("redis:6379", "redis"),
        ] {
            let error =
                Address::parse(url).map_or_else(|error| error.to_string(), |it| format!("{it:?}"));
            assert!(error.contains(said) && !error.contains("did you mean"), "{url}: {error}");
        }
        let error = Address::parse("s3cret://h").unwrap_err().to_string();
        assert!(!error.contains("did you mean") && !error.contains("s3cret"), "{error}");
    }

    #[test]
    fn h95_a_directory_with_options_is_refused() {
        for url in ["file:///tmp/locks?ttl=5s", "file:///tmp/locks#main", "file:///a?b#c"] {
            let error = Address::parse(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            assert!(error.to_string().contains("takes no options"), "{error}");
        }
        assert_eq!(
            Address::parse("file:///tmp/what%3F%23").unwrap(),
            Address::File("/tmp/what?#".into())
        );
    }

    #[test]
    fn names_the_field_and_the_next_step_otherwise() {
        for url in [
            "",
            "locks",
            "mem:x/y",
            "mem:x?y",
            "file:locks",
            "file://host/x",
            "file:///a%zz",
            "ftp://x",
            "//user:password@h",
        ] {
            let error = Address::parse(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            assert!(error.to_string().starts_with("store: "), "{error}");
            assert!(error.next_step().is_some());
        }
        let url = "PostgreSQL://u:p@h1,h2/d?table=x";
        let read = Address::parse(url).unwrap();
        assert_eq!(read, Address::Postgres("postgresql://u:p@h1,h2/d?table=x".into()));
    }
}
