//! The secrets in a store's address: the login, and options that hold a password.

use std::fs;
use std::ops::Range;

/// Which options hold a password.
const OPTIONS: [&str; 1] = ["sentinel_password="];

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
fn find(address: &str) -> Vec<Range<usize>> {
    let Some(start) = address.find("://").map(|at| at + "://".len()) else { return Vec::new() };
    let query = address[start..].find('?').map_or(address.len(), |at| start + at);
    let mut secrets = Vec::new();
    // All before the last @: what is written wrongly (a / in a password) is hidden as well.
    if let Some(at) = address[start..query].rfind('@') {
        secrets.push(start..start + at + 1);
    }
    let mut from = query;
    let next = |from: usize| {
        let found = OPTIONS.iter().filter_map(|option| address[from..].find(option)).min()?;
        let option = from + found;
        let end = address[option..].find('&').map_or(address.len(), |length| option + length);
        Some(option..end)
    };
    while let Some(secret) = next(from) {
        from = secret.end;
        secrets.push(secret);
    }
    secrets
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
            ("file:///srv/locks", "file:///srv/locks"),
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
