//! A hold at one moment, as its client learns of it.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use latchwork::FencingToken;
use sha2::{Digest, Sha256};

/// A hold, and for how long its client may rely on it.
#[derive(Debug, Clone)]
pub(crate) struct HoldStatus {
    /// The id that its client has.
    pub(crate) id: String,
    /// The names of its locks, each with its token.
    pub(crate) locks: Vec<(String, FencingToken)>,
    /// Whether the store has to confirm it before the resource may be used.
    pub(crate) is_suspect: bool,
    pub(crate) ttl: Duration,
    /// For how long the client may rely on it, counted from the arrival of its request.
    pub(crate) valid_for: Duration,
    /// When to renew it, counted from the answer.
    pub(crate) renew_in: Duration,
    /// The period of a task, in wall-clock time since 1970.
    pub(crate) period: Option<Range<Duration>>,
}

/// A number for a set of grants: sets with the same number are equal, but for one in 2^64. That of several is the sum of
/// theirs, modulo 2^64: a grant that is counted twice makes another number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Marks(u64);

impl Marks {
    pub(crate) fn of(grants: &[(String, FencingToken)]) -> Self {
        let one = |(name, token): &(String, FencingToken)| {
            let hash = Sha256::new().chain_update(token.get().to_be_bytes()).chain_update(name);
            let [a, b, c, d, e, f, g, h, ..]: [u8; 32] = hash.finalize().into();
            u64::from_be_bytes([a, b, c, d, e, f, g, h])
        };
        Self(grants.iter().map(one).fold(0, u64::wrapping_add))
    }

    /// Reads what its `Display` wrote.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let is_plain = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let is_whole = text.len() == 16 && text.bytes().all(is_plain);
        u64::from_str_radix(text, 16).ok().filter(|_| is_whole).map(Self)
    }
}

impl fmt::Display for Marks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_sets_are_added() {
        let grant = |name: &str, token| (name.to_owned(), FencingToken::from_raw(token));
        let [a, b, c] = [grant("a", 1), grant("b", 1), grant("a", 2)];
        let all = Marks::of(&[a.clone(), b.clone(), c.clone()]);
        let [one, two, three] = [[a], [b], [c]].map(|it| Marks::of(&it));
        assert!(one != two && one != three && two != three);
        assert_eq!(Marks(one.0.wrapping_add(two.0).wrapping_add(three.0)), all);
        assert_eq!((Marks::read(&all.to_string()), Marks::of(&[])), (Some(all), Marks(0)));
        for bad in ["", "0", "000000000000000G", "+00000000000000f", "000000000000000F"] {
            assert_eq!(Marks::read(bad), None, "{bad}");
        }
    }
}
