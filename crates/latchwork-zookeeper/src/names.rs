//! The names of a key in ZooKeeper, and the paths that this crate uses.
//!
//! A lock is a node below the chroot, its claims are the children of that node. All children are
//! the queue; so a `/` inside a name is escaped, or the lock `a/b` would stand in the queue of the
//! lock `a`. What ZooKeeper does not take in a path is escaped, too, and a leading dot, so that no
//! lock is called as the folder for what is not a lock.

use std::fmt::Write;
use std::sync::Arc;

use latchwork_store::Key;
use percent_encoding::percent_decode;

/// Where the nodes are by which sessions prove that they live.
const OWN: &str = ".latchwork";

/// The paths below a chroot.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    chroot: Arc<str>,
}

impl Names {
    pub(crate) fn new(chroot: &str) -> Self {
        Self { chroot: chroot.into() }
    }

    /// The node whose children are the locks.
    pub(crate) fn root(&self) -> &str {
        if self.chroot.is_empty() { "/" } else { &self.chroot }
    }

    /// The node whose children are the queue of `key`.
    pub(crate) fn lock(&self, key: &Key) -> String {
        format!("{}/{}", self.chroot, escape(key.as_str()))
    }

    /// The node by which a session proves that it lives.
    pub(crate) fn pulse(&self, session: i64) -> String {
        format!("{}/{OWN}/{session:016x}", self.chroot)
    }
}

/// The nodes above a path, from the top.
pub(crate) fn parents(path: &str) -> impl Iterator<Item = &str> {
    path.char_indices().skip(1).filter(|(_, c)| *c == '/').map(|(at, _)| &path[..at])
}

/// The key whose lock has this name below the chroot, if it is the name of one.
pub(crate) fn key_of(name: &str) -> Option<Key> {
    let text = percent_decode(name.as_bytes()).decode_utf8().ok()?;
    let key = Key::new(text).ok()?;
    // Somebody else's node may hold a '%' that we would have escaped.
    (escape(key.as_str()) == name).then_some(key)
}

/// Whether ZooKeeper takes this as one part of a path.
pub(crate) fn is_plain(name: &str) -> bool {
    name != "." && name != ".." && name.chars().all(|c| c != '/' && is_taken(c))
}

/// Whether ZooKeeper, which counts in units of 16 bits, takes this character in a path.
fn is_taken(c: char) -> bool {
    !matches!(c,
        '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..)
}

fn escape(text: &str) -> String {
    let mut name = String::with_capacity(text.len() + 8);
    let is_servers = text == "zookeeper";
    for (at, c) in text.char_indices() {
        let is_first = at == 0 && (c == '.' || is_servers);
        if c == '/' || c == '%' || is_first || !is_taken(c) {
            for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                let _ = write!(name, "%{byte:02X}");
            }
        } else {
            name.push(c);
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_and_are_taken() {
        let names = Names::new("/app");
        for text in [
            "a",
            "a/b",
            "/",
            "%2F",
            "a%",
            "\0",
            "../x",
            ".",
            "..",
            ".latchwork",
            "zookeeper",
            "stra\u{df}e",
            " ",
            "\u{1f512}",
            "\u{fffd}",
            "\u{7f}",
            "\u{10ffff}",
            "zookeeper/x",
        ] {
            let key = Key::new(text).unwrap();
            let path = names.lock(&key);
            let name = path.strip_prefix("/app/").unwrap();
            assert!(is_plain(name) && name != "zookeeper" && name != OWN, "{name:?}");
            assert_eq!(key_of(name), Some(key));
        }
        for name in ["a%", "zookeeper", ".latchwork", "%2f", "%41", ""] {
            assert_eq!(key_of(name), None, "{name:?}");
        }
    }

    #[test]
    fn the_parents_of_a_path_are_listed() {
        assert_eq!(parents("/a/b/c").collect::<Vec<_>>(), ["/a", "/a/b"]);
        assert_eq!(parents("/a").count(), 0);
        assert_eq!(Names::new("").root(), "/");
        assert_eq!(Names::new("/x").pulse(0x1f), "/x/.latchwork/000000000000001f");
    }
}
