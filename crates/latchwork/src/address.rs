//! Store addresses: a URL, read strictly.

use std::path::PathBuf;

use latchwork_store::kit::address::nearest;
use latchwork_store::{Error, ErrorKind};

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
                let message = "store: the scheme is unknown";
                let hint = match nearest(scheme, SCHEMES) {
                    // As other clients call the socket of a server.
                    _ if matches!(scheme, "unix" | "redis+socket" | "redis-socket") => {
                        "did you mean redis+unix:? ".to_owned()
                    }
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
        ] {
            let error = Address::parse(url).unwrap_err().to_string();
            assert!(error.contains(&format!("did you mean {known}?")), "{url}: {error}");
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
