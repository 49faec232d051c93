//! What an address that is read again may not change.

use latchwork_store::{Error, ErrorKind};

/// Options that say who logs in.
const LOGIN: [&str; 4] = ["user", "password", "sentinel_user", "sentinel_password"];

/// The error of an address that differs from the first one in more than the login.
pub(super) fn moved(first: &str, now: &str) -> Option<Error> {
    let (first, now) = (Parts::of(first), Parts::of(now));
    let part = match () {
        () if !first.scheme.eq_ignore_ascii_case(now.scheme) => "scheme",
        () if first.hosts != now.hosts => "host",
        () if first.path != now.path => "path (a database, chroot, namespace or directory)",
        () if first.options != now.options => "option",
        () => return None,
    };
    let message = format!(
        "store: the address was read again and names another {part}; a process keeps its store, and only the user \
         and the password may change"
    );
    let step = "restore the address, or restart this process for another store";
    Some(Error::new(ErrorKind::Invalid, message).with_next_step(step))
}

/// An address without its login.
struct Parts<'a> {
    scheme: &'a str,
    hosts: &'a str,
    path: &'a str,
    options: Vec<&'a str>,
}

impl<'a> Parts<'a> {
    fn of(address: &'a str) -> Self {
        let (scheme, rest) = address.split_once("://").unwrap_or(("", address));
        let (start, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = start.split_once('/').unwrap_or((start, ""));
        let hosts = authority.rsplit_once('@').map_or(authority, |(_, hosts)| hosts);
        let is_login = |option: &&str| {
            let name = option.split_once('=').map_or(*option, |(name, _)| name);
            LOGIN.contains(&name)
        };
        let options = query.split('&').filter(|option| !option.is_empty() && !is_login(option));
        let mut options: Vec<_> = options.collect();
        options.sort_unstable();
        Self { scheme, hosts, path, options }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_login_may_change() {
        let first = "redis+sentinel://app:old@h1,h2/main/3?sentinel_password=old&guard=true";
        for now in [
            first,
            "redis+sentinel://h1,h2/main/3?guard=true",
            "redis+sentinel://app2:n%40ew@h1,h2/main/3?guard=true&sentinel_user=x&sentinel_password=new",
        ] {
            assert!(moved(first, now).is_none(), "{now}");
        }
        for (now, part) in [
            ("rediss+sentinel://app:new@h1,h2/main/3?guard=true", "another scheme"),
            ("redis+sentinel://app:new@h1,h3/main/3?guard=true", "another host"),
            ("redis+sentinel://app:new@h1,h2/main/4?guard=true", "another path"),
            ("redis+sentinel://app:new@h1,h2/main/3", "another option"),
            ("nonsense", "another scheme"),
        ] {
            let error = moved(first, now).expect(now).to_string();
            assert!(error.contains(part) && !error.contains("new"), "{now}: {error}");
        }
    }
}
