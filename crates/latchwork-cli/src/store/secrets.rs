//! The secrets in a store's address: the login, and options that hold a password.

use std::fs;
use std::ops::Range;

/// What the names of options with a secret contain. Such an option may be one that the store does not know.
const SECRET: [&str; 4] = ["pass", "pwd", "secret", "auth"];

/// The address without its secrets. It names the same store.
pub(super) fn without(address: &str) -> String {
    let mut kept = String::with_capacity(address.len());
    let mut from = 0;
    for secret in find(address) {
        kept.push_str(&address[from..secret.start]);
        from = secret.end;
    }
    kept.push_str(&address[from..]);
    // An option that was taken out leaves its separators.
    while kept.contains("&&") {
        kept = kept.replace("&&", "&");
    }
    kept.replace("?&", "?").trim_end_matches(['?', '&']).to_owned()
}

/// Whether the address holds secrets.
pub(super) fn are_in(address: &str) -> bool {
    !find(address).is_empty()
}

/// The parts of an address that are secret, in their order.
///
/// The address may be written wrongly: it is shown before a store has read it.
fn find(address: &str) -> Vec<Range<usize>> {
    let rest = address.split_once(':').map_or(address, |(_, rest)| rest);
    let is_file = || address.get(..5).is_some_and(|it| it.eq_ignore_ascii_case("file:"));
    if ["/", "./", "../"].iter().any(|start| address.starts_with(start))
        || (is_file() && rest.starts_with("///"))
    {
        // A path.
        return Vec::new();
    }
    let start = address.len() - rest.trim_start_matches('/').len();
    let query = address[start..].find('?').map_or(address.len(), |at| start + at);
    // All before the last @: a / in a password is hidden as well, and a ? unless it may begin the options.
    let hosts = match is_host(&address[start..query]) {
        true => query,
        false => address.len(),
    };
    let mut secrets = Vec::new();
    let mut from = query;
    if let Some(at) = address[start..hosts].rfind('@') {
        secrets.push(start..start + at + 1);
        from = from.max(start + at + 1);
    }
    while from < address.len() {
        let begin = from + usize::from(address[from..].starts_with(['?', '&']));
        let end = address[begin..].find('&').map_or(address.len(), |length| begin + length);
        let name = address[begin..end].split('=').next().unwrap_or_default().to_ascii_lowercase();
        if SECRET.iter().any(|word| name.contains(word)) {
            secrets.push(begin..end);
        }
        from = end.max(from + 1);
    }
    secrets
}

/// Whether a text that may have a login before an @ ends with a host: a port behind it is a number.
fn is_host(text: &str) -> bool {
    let last = text.rsplit(['@', ',', '/']).next().unwrap_or_default();
    text.contains('@')
        || match last.rsplit_once(':') {
            None => true,
            Some((host, port)) => {
                !host.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())
            }
        }
}

/// Overwrites the secrets of an address in the arguments of this process, which every user of the machine
/// can read.
pub(super) fn hide_in_arguments(address: &str) {
    let secrets = find(address);
    if secrets.is_empty() {
        return;
    }
    let Ok(stat) = fs::read_to_string("/proc/self/stat") else { return };
    let Some((start, length)) = crate::process::name::arguments(&stat) else { return };
    hide(start, length, address, &secrets);
}

#[expect(unsafe_code, reason = "nothing safe changes what the kernel shows")]
fn hide(start: usize, length: usize, address: &str, secrets: &[Range<usize>]) {
    // SAFETY: the kernel put the arguments there, on the stack of the first thread, below all frames. They
    // are read again only through the standard library, which copies them; this runs on the main thread
    // before another one is started.
    let arguments = unsafe {
        std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut::<u8>(start), length)
    };
    overwrite(arguments, address.as_bytes(), secrets);
}

fn overwrite(arguments: &mut [u8], address: &[u8], secrets: &[Range<usize>]) {
    let mut from = 0;
    while from + address.len() <= arguments.len() {
        let here = &mut arguments[from..from + address.len()];
        if here == address {
            secrets.iter().for_each(|secret| here[secret.clone()].fill(b'*'));
            from += address.len();
        } else {
            from += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_its_secrets_names_the_same_store() {
        for (address, left) in [
            ("redis://h1:6379/2", "redis://h1:6379/2"),
            ("redis://:pw@h1", "redis://h1"),
            ("redlock://app:p%40@h1,h2,h3?max_ttl=5s", "redlock://h1,h2,h3?max_ttl=5s"),
            ("etcds://app:p@ss@h1,h2?ca=/a@b", "etcds://h1,h2?ca=/a@b"),
            ("zk://app:pa/ss@h1/chroot", "zk://h1/chroot"),
            ("redis+sentinel://h/s?sentinel_password=x", "redis+sentinel://h/s"),
            ("redis+sentinel://h/s?a=1&sentinel_password=x&b=2", "redis+sentinel://h/s?a=1&b=2"),
            ("redis+sentinel://h/s?a=1&sentinel_password=x", "redis+sentinel://h/s?a=1"),
            ("redis://h?password=x", "redis://h"),
            ("redis://h?a=1&AUTH=x&b=2", "redis://h?a=1&b=2"),
            ("redis://:s3?ret@h", "redis://h"),
            ("redis://app:s3?ret@h:1?guard=true", "redis://h:1?guard=true"),
            ("redis://app:s3?r@t@h,h2", "redis://h,h2"),
            ("redis:/:s3cret@h", "redis:/h"),
            ("redis::s3cret@h", "redis:h"),
            ("redis//:s3cret@h", "redis//:h"),
            ("s3cret@h", "h"),
            ("etcds://h1,h2:2379?ca=/a@b", "etcds://h1,h2:2379?ca=/a@b"),
            ("redis://[::1]:6379?ca=/a@b", "redis://[::1]:6379?ca=/a@b"),
            ("redis+unix://:pw@/run/r.sock?db=2", "redis+unix:///run/r.sock?db=2"),
            ("redis+unix:///run/r.sock", "redis+unix:///run/r.sock"),
            ("postgres:///d?host=/run&password=x", "postgres:///d?host=/run"),
            ("postgres:///d?host=/run&user=a", "postgres:///d?host=/run&user=a"),
            ("file:///srv/locks", "file:///srv/locks"),
            ("file:///srv/a@b", "file:///srv/a@b"),
            ("/srv/a:b@c", "/srv/a:b@c"),
            ("./a@b", "./a@b"),
            ("mem:", "mem:"),
            ("", ""),
        ] {
            assert_eq!(without(address), left);
            assert_eq!(are_in(address), address != left, "{address}");
        }
    }

    #[test]
    fn arguments_show_stars_instead() {
        let address = "redis://:pw@h1";
        let mut arguments = b"latchwork\0--store=redis://:pw@h1\0run\0redis://:pw@h1".to_vec();
        overwrite(&mut arguments, address.as_bytes(), &find(address));
        assert_eq!(arguments, b"latchwork\0--store=redis://****h1\0run\0redis://****h1");
    }
}
