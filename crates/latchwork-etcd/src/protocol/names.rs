//! The names of a key and a claim in etcd.
//!
//! A claim is the key `<name>/<lease in hex>`, as Go's `concurrency` package has it, so that its
//! locks and `etcdctl lock` stand in the same queue. All keys below `<name>/` are the queue; so a `/`
//! inside a name is escaped, or the lock `a/b` would stand in the queue of the lock `a`.

use latchwork_store::Key;
use percent_encoding::percent_decode;

/// What every key of the queue of `key` starts with.
pub(crate) fn queue(key: &Key) -> Vec<u8> {
    let mut name = escape(key.as_str());
    name.push(b'/');
    name
}

/// What the keys of all queues start with whose names start so.
pub(crate) fn escape(text: &str) -> Vec<u8> {
    let mut name = Vec::with_capacity(text.len() + 24);
    for byte in text.bytes() {
        match byte {
            b'/' => name.extend(b"%2F"),
            b'%' => name.extend(b"%25"),
            other => name.push(other),
        }
    }
    name
}

/// The key of the changed limit of the lock with this queue. No name of a lock has such a `%`, and no other
/// client lists it with the queue.
pub(crate) fn limit(queue: &[u8]) -> Vec<u8> {
    [queue.strip_suffix(b"/").unwrap_or(queue), b"%limit"].concat()
}

/// The key of a claim with this lease.
pub(crate) fn claim(queue: &[u8], lease: i64) -> Vec<u8> {
    let mut name = queue.to_vec();
    name.extend(format!("{lease:x}").bytes());
    name
}

/// The lock that this key of etcd is a claim of, if its name is one of a claim with this lease.
pub(crate) fn lock_of(name: &[u8], lease: i64) -> Option<Key> {
    let slash = name.iter().position(|byte| *byte == b'/')?;
    let (lock, suffix) = (&name[..slash], &name[slash + 1..]);
    if lease == 0 || suffix != format!("{lease:x}").as_bytes() {
        return None;
    }
    let text = percent_decode(lock).decode_utf8().ok()?;
    let key = Key::new(text).ok()?;
    // Another's name may hold a '%' that we would have escaped.
    (escape(key.as_str()) == lock).then_some(key)
}

/// The lease that this key of etcd was named after.
pub(crate) fn lease_in(name: &[u8]) -> Option<i64> {
    let suffix = name.rsplit(|byte| *byte == b'/').next()?;
    i64::from_str_radix(std::str::from_utf8(suffix).ok()?, 16).ok()
}

/// The end of the range of all keys that start so.
pub(crate) fn end_of(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // No end: "from here on", as etcd writes it.
    vec![0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_and_do_not_nest() {
        for text in ["a", "a/b", "/", "%2F", "a%", "\0", "../x", "stra\u{df}e", " "] {
            let key = Key::new(text).unwrap();
            let queue = queue(&key);
            assert_eq!(queue.iter().filter(|b| **b == b'/').count(), 1, "{text:?}");
            assert_eq!(lock_of(&claim(&queue, 0x1f), 0x1f), Some(key));
            let limit = limit(&queue);
            assert!(!limit.starts_with(&queue) && !limit.contains(&b'/'), "{text:?}");
        }
        for (name, lease) in
            [(&b"a/1f"[..], 0x1e), (b"a/b/1f", 0x1f), (b"a%/1f", 0x1f), (b"a/0", 0)]
        {
            assert_eq!(lock_of(name, lease), None, "{name:?}");
        }
    }

    #[test]
    fn a_range_covers_all_keys_with_its_prefix() {
        assert_eq!(end_of(b"a/"), b"a0");
        assert_eq!(end_of(b"a\xff\xff"), b"b");
        assert_eq!(end_of(b""), b"\0");
        assert_eq!(end_of(b"\xff"), b"\0");
    }
}
