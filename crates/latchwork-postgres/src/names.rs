//! What tables, functions and keys are called in the database.

use latchwork_store::Key;
use sha2::{Digest, Sha256};

/// The longest key that is stored as it is. An index takes about 2,700 bytes.
const LONGEST: usize = 1_024;
/// How much of a longer one is kept before its digest.
const START: usize = 991;

/// A name in quotation marks.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A key as the tables have it, and its whole text if that is another.
///
/// No key that is stored as it is has the byte 0xff, which is not in UTF-8, so the two kinds do not meet.
pub(crate) fn stored(key: &Key) -> (Vec<u8>, Option<&[u8]>) {
    let text = key.as_str().as_bytes();
    if text.len() <= LONGEST {
        return (text.to_vec(), None);
    }
    let mut short = text[..START].to_vec();
    short.push(0xff);
    short.extend(Sha256::digest(text));
    (short, Some(text))
}

/// Where the keys with a prefix begin and end; no end if they go on to the last key.
pub(crate) fn range(prefix: &str) -> (Vec<u8>, Option<Vec<u8>>) {
    let first = &prefix.as_bytes()[..prefix.len().min(START)];
    let mut end = first.to_vec();
    // UTF-8 has no byte 0xff, so the last byte can be raised.
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    (first.to_vec(), (!end.is_empty()).then_some(end))
}

/// A number for advisory locks, different for the tables of one database (as far as 31 bits go).
pub(crate) fn class(schema: &str, table: &str) -> i32 {
    let mut hash = Sha256::new();
    hash.update(schema.len().to_be_bytes());
    hash.update(schema);
    hash.update(table);
    let digest = hash.finalize();
    i32::from_be_bytes([digest[0] & 0x7f, digest[1], digest[2], digest[3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: String) -> Key {
        Key::new(text).unwrap()
    }

    #[test]
    fn long_keys_that_differ_at_their_ends_stay_apart() {
        let (one, two) = (key("x".repeat(5_000) + "1"), key("x".repeat(5_000) + "2"));
        assert_ne!(stored(&one).0, stored(&two).0);
        assert_eq!(stored(&one).0.len(), LONGEST);
        assert_eq!(stored(&one).1, Some(one.as_str().as_bytes()));
        let short = key("y".repeat(LONGEST));
        assert_eq!(stored(&short), (short.as_str().into(), None));
    }

    #[test]
    fn a_prefix_has_its_keys_and_no_others() {
        let (first, end) = range("shop:");
        let inside = |text: &str| {
            let stored = stored(&key(text.into())).0;
            stored >= first && end.as_ref().is_none_or(|end| stored < *end)
        };
        assert!(inside("shop:") && inside("shop:\u{10ffff}") && inside("shop:a"));
        assert!(!inside("shop") && !inside("shop;") && !inside("Shop:a"));
        assert_eq!(range(""), (vec![], None));
        assert_eq!(range(&"p".repeat(2_000)).0.len(), START);
    }

    #[test]
    fn a_name_cannot_leave_its_quotation_marks() {
        assert_eq!(quoted("a\"; DROP TABLE x"), "\"a\"\"; DROP TABLE x\"");
    }
}
