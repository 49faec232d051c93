//! What may be shown of a store's address: the parts that are recognised, and nothing else.
//!
//! The address may be written wrongly, and then a password stands where nobody looks for one. So an address is
//! shown only if all of it is understood.

use latchwork_wire::address::{Endpoint, is_plain};

/// The address without its login and its secret options; `None` if any part of it is not recognised.
pub(super) fn shown(address: &str) -> Option<String> {
    if address.starts_with("./") || address.starts_with("../") {
        return Some(address.to_owned());
    }
    if address.starts_with('/') {
        // With two it may be a URL that lost its scheme.
        let is_path = !address.starts_with("//") || !address.contains('@');
        return is_path.then(|| address.to_owned());
    }
    let (scheme, rest) = address.split_once(':')?;
    let kind = match &*scheme.to_ascii_lowercase() {
        "mem" => return is_plain(rest).then(|| address.to_owned()),
        "file" => {
            let is_path = rest.starts_with("///") && !rest.contains(['?', '#']);
            return is_path.then(|| address.to_owned());
        }
        "redis+sentinel" | "rediss+sentinel" | "valkey+sentinel" | "valkeys+sentinel" => {
            Path::Service
        }
        "redis" | "rediss" | "redis+cluster" | "rediss+cluster" | "redlock" | "redis+redlock"
        | "rediss+redlock" | "valkey" | "valkeys" | "valkey+cluster" | "valkeys+cluster"
        | "valkey+redlock" | "valkeys+redlock" => Path::Database,
        "zk" | "zks" | "redis+unix" | "valkey+unix" => Path::Names,
        "etcd" | "etcds" => Path::None,
        "postgres" | "postgresql" => Path::Name,
        "k8s" => return namespace(address, rest),
        _ => return None,
    };
    // As the stores read it.
    let (start, query) = rest.strip_prefix("//")?.split_once('?').unwrap_or((&rest[2..], ""));
    let (authority, path) = start.split_once('/').unwrap_or((start, ""));
    let hosts = authority.rsplit_once('@').map_or(authority, |(_, hosts)| hosts);
    // A socket stands in the path, and PostgreSQL's hosts may stand among the options.
    let may_have_none = scheme.contains("+unix") || matches!(kind, Path::Name);
    let are_hosts = (may_have_none && hosts.is_empty())
        || hosts.split(',').all(|host| Endpoint::parse(host, 1).is_ok());
    if !are_hosts || !kind.suits(path) {
        return None;
    }
    let options: Option<Vec<_>> =
        query.split('&').filter(|option| !option.is_empty()).map(option).collect();
    let options: Vec<_> = options?.into_iter().flatten().collect();
    let slash = if start.contains('/') { "/" } else { "" };
    let mark = if options.is_empty() { "" } else { "?" };
    Some(format!("{scheme}://{hosts}{slash}{path}{mark}{}", options.join("&")))
}

/// The address as [`shown`], with the name of the user: for a line that somebody types, who adds the password or has it
/// in a file.
pub(super) fn typed(address: &str) -> Option<String> {
    let shown = shown(address)?;
    let Some((scheme, rest)) = address.split_once("://") else { return Some(shown) };
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let Some((login, _)) = authority.rsplit_once('@') else { return Some(shown) };
    let user = match login.split_once(':') {
        Some((user, _)) => user,
        // Redis once had passwords alone.
        None if scheme.to_ascii_lowercase().starts_with("postgres") => login,
        None => "",
    };
    Some(match user.is_empty() || !is_plain(user) {
        true => shown,
        false => shown.replacen("://", &format!("://{user}@"), 1),
    })
}

/// The address of a namespace of Kubernetes, which has neither hosts nor secrets.
fn namespace(address: &str, rest: &str) -> Option<String> {
    let (start, query) = rest.strip_prefix("//")?.split_once('?').unwrap_or((&rest[2..], ""));
    let is_known = |text: &str| matches!(option(text), Some(Some(_)));
    let options = query.split('&').filter(|option| !option.is_empty()).all(is_known);
    let parts = start.split('/').count() <= 2 && start.split('/').all(is_plain);
    (parts && options).then(|| address.to_owned())
}

/// What follows the hosts.
#[derive(Clone, Copy)]
enum Path {
    None,
    /// A number.
    Database,
    /// The name of a service, and perhaps a number.
    Service,
    Names,
    /// One name.
    Name,
}

impl Path {
    fn suits(self, path: &str) -> bool {
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        match self {
            Self::None => path.is_empty(),
            Self::Database => is_number(path),
            Self::Service => {
                let (service, database) = path.split_once('/').unwrap_or((path, ""));
                is_plain(service) && is_number(database)
            }
            Self::Names => path.split('/').all(is_plain),
            Self::Name => is_plain(path),
        }
    }
}

/// An option as it is shown: not at all if it is secret. `None` if it is not recognised.
fn option(text: &str) -> Option<Option<&str>> {
    let (name, value) = text.split_once('=').unwrap_or((text, ""));
    let is_path = || value.split('/').all(|part| is_plain(part) || part == "~");
    let is_length = || {
        let unit = value.trim_start_matches(|c: char| c.is_ascii_digit());
        matches!(unit, "" | "ms" | "s" | "m" | "h")
    };
    let is_known = match name {
        "sentinel_user" | "sentinel_password" => return Some(None),
        "user" | "password" => return Some(None),
        "ca" | "cert" | "key" | "passfile" => is_path(),
        "host" => value
            .split(',')
            .all(|host| host.split('/').all(is_plain) || Endpoint::parse(host, 1).is_ok()),
        "port" => value.bytes().all(|byte| byte.is_ascii_digit() || byte == b','),
        "db" => value.bytes().all(|byte| byte.is_ascii_digit()),
        "service" | "dbname" | "target_session_attrs" | "channel_binding" => is_plain(value),
        "server_name" => is_plain(value),
        "guard" | "plain" | "via_proxy" | "insecure" => {
            matches!(value, "true" | "1" | "on" | "" | "false" | "0" | "off")
        }
        "max_ttl" | "deposed" | "min_replicas" => is_length(),
        "namespaces" => value.split(',').all(is_plain),
        "auth" => matches!(value, "digest" | "sasl"),
        "sslrootcert" | "sslcert" | "sslkey" | "kubeconfig" => is_path(),
        "table" | "schema" | "application_name" | "sslmode" | "durability" => is_plain(value),
        "pooler" | "create_schema" => {
            matches!(value, "true" | "1" | "on" | "" | "false" | "0" | "off")
        }
        "connections" | "connect_timeout" => value.bytes().all(|b| b.is_ascii_digit()),
        _ => false,
    };
    is_known.then_some(Some(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recognised_address_is_shown_without_its_secrets() {
        for (address, expected) in [
            ("redis://h1:6379/2", "redis://h1:6379/2"),
            ("redis://:sekret@h1", "redis://h1"),
            ("REDIS://u:sekret@h1", "REDIS://h1"),
            ("valkeys://u:sekret@h1/2?ca=/etc/ca.pem", "valkeys://h1/2?ca=/etc/ca.pem"),
            ("valkey+sentinel://:sekret@h/s/1?guard", "valkey+sentinel://h/s/1?guard"),
            ("valkeys+cluster://:sekret@h1,h2", "valkeys+cluster://h1,h2"),
            ("valkey+redlock://:sekret@h1,h2,h3", "valkey+redlock://h1,h2,h3"),
            ("redlock://app:p%40sekret@h1,h2,h3?max_ttl=5s", "redlock://h1,h2,h3?max_ttl=5s"),
            ("etcds://app:p@sekret@h1,h2?ca=/etc/ca.pem", "etcds://h1,h2?ca=/etc/ca.pem"),
            ("zk://app:sekret@h1/chroot/x", "zk://h1/chroot/x"),
            ("postgres://app:sekret@h1/db?table=x", "postgres://h1/db?table=x"),
            ("k8s://shop", "k8s://shop"),
            ("k8s://kind-dev/shop?kubeconfig=/etc/k", "k8s://kind-dev/shop?kubeconfig=/etc/k"),
            ("redis+sentinel://h/s?sentinel_password=sekret", "redis+sentinel://h/s"),
            ("redis+unix://u:sekret@/run/redis.sock?db=2", "redis+unix:///run/redis.sock?db=2"),
            (
                "postgres:///shop?host=/run/postgresql&port=7&user=sekret&password=sekret&passfile=/p",
                "postgres:///shop?host=/run/postgresql&port=7&passfile=/p",
            ),
            ("redis+sentinel://h/s/1?guard&sentinel_user=sekret", "redis+sentinel://h/s/1?guard"),
            ("redis://[::1]:6379?namespaces=a,b", "redis://[::1]:6379?namespaces=a,b"),
            ("file:///srv/a@b", "file:///srv/a@b"),
            ("/srv/a:b@c", "/srv/a:b@c"),
            ("./a@b", "./a@b"),
            ("mem:", "mem:"),
            ("mem:tests", "mem:tests"),
        ] {
            assert_eq!(shown(address).as_deref(), Some(expected), "{address}");
        }
    }

    #[test]
    fn an_address_to_type_has_the_user_and_no_password() {
        for (address, expected) in [
            ("redis://app:sekret@h1/2", "redis://app@h1/2"),
            ("redis://:sekret@h1", "redis://h1"),
            ("redis://sekret@h1", "redis://h1"),
            ("postgres://app@h1/db", "postgres://app@h1/db"),
            ("postgres://app:sekret@h1/db?table=x", "postgres://app@h1/db?table=x"),
            ("zk://a%20b:sekret@h1", "zk://h1"),
            ("file:///srv/a@b", "file:///srv/a@b"),
        ] {
            assert_eq!(typed(address).as_deref(), Some(expected), "{address}");
        }
        for address in include_str!("odd_addresses.txt").lines() {
            let typed = typed(address).unwrap_or_default();
            assert!(!typed.contains("sekret"), "{address}: {typed}");
        }
    }

    #[test]
    fn an_address_with_an_unknown_part_is_not_shown() {
        for address in include_str!("odd_addresses.txt").lines() {
            let shown = shown(address).unwrap_or_default();
            assert!(!shown.contains("sekret"), "{address}: {shown}");
        }
    }
}
