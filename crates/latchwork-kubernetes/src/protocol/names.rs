//! The names of objects: a key that is a valid name is the name, every other key has one by its hash.

use latchwork_store::Key;
use sha2::{Digest, Sha256};

/// The annotation with the key.
pub(crate) const KEY: &str = "latchwork/key";
/// The annotation with the record of claims.
pub(crate) const RECORD: &str = "latchwork/record";
/// The label of all objects that a client of Latchwork has written.
pub(crate) const LABEL: &str = "latchwork/lock";

/// What the names of hashed keys begin with.
const HASHED: &str = "latchwork-";
const DIGITS: usize = 64;

/// The name of the object of a key.
pub(crate) fn object_of(key: &Key) -> String {
    let key = key.as_str();
    if is_name(key) && !is_hashed(key) {
        return key.to_owned();
    }
    let mut name = String::from(HASHED);
    for byte in Sha256::digest(key.as_bytes()) {
        name.push(char::from_digit(u32::from(byte >> 4), 16).unwrap_or('0'));
        name.push(char::from_digit(u32::from(byte & 15), 16).unwrap_or('0'));
    }
    name
}

/// Whether an object of this name belongs to a key that is not its name.
pub(crate) fn is_hashed(name: &str) -> bool {
    name.strip_prefix(HASHED).is_some_and(|rest| {
        rest.len() == DIGITS
            && rest.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    })
}

/// Whether Kubernetes accepts the text as a name: a subdomain of DNS.
fn is_name(text: &str) -> bool {
    let letter = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    text.len() <= 253
        && text.split('.').all(|part| {
            let bytes = part.as_bytes();
            bytes.first().is_some_and(|b| letter(*b))
                && bytes.last().is_some_and(|b| letter(*b))
                && bytes.iter().all(|b| letter(*b) || *b == b'-')
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(key: &str) -> String {
        object_of(&Key::new(key).unwrap())
    }

    #[test]
    fn a_valid_name_is_the_object_and_others_are_hashed() {
        for key in ["a", "nightly-report", "shop.stock.42", "0", &"k".repeat(253)] {
            assert_eq!(name(key), key);
        }
        for key in ["A", "a_b", "a/b", "-a", "a-", "a..b", ".a", "", " a", &"k".repeat(254)] {
            if !key.is_empty() {
                assert!(is_hashed(&name(key)), "{key}");
                assert!(is_name(&name(key)), "{key}");
            }
        }
    }

    #[test]
    fn b13_a_key_that_looks_hashed_is_hashed() {
        let hashed = name("a/b");
        assert_ne!(name(&hashed), hashed);
        assert!(is_hashed(&name(&hashed)));
        assert_eq!(name("latchwork-x"), "latchwork-x");
    }
}
