//! Fencing tokens: numbers that a resource can check.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, ErrorKind};

/// Bits of a token that count handovers within one hold of the store's grant.
const HANDOVER_BITS: u32 = 10;

/// A number that grows with every grant on a key.
///
/// Give it to the resource that the lock protects and let the resource refuse a smaller one than
/// it has already seen ([`Fence`](https://docs.rs/latchwork/latest/latchwork/fence/struct.Fence.html)): then a holder that was paused past its validity
/// cannot write over its successor. No lease can prevent that pause (Kleppmann 2016, "How to do
/// distributed locking"); Chubby calls the number a sequencer (Burrows, OSDI 2006).
///
/// Tokens stay below 2^63, so they fit a signed 64-bit column. They exceed 2^53, so a number
/// in JSON or Lua is too small for them: print them as text. With the feature `serde`, a token is
/// text in formats that people read, and 64 bits elsewhere. It is also read from a number.
///
/// ```
/// use latchwork_store::FencingToken;
///
/// let first = FencingToken::from_grant(7);
/// assert!(first.handed_over(1).unwrap() > first);
/// assert!(FencingToken::from_grant(8) > first.handed_over(1023).unwrap());
/// assert_eq!("7168".parse::<FencingToken>(), Ok(first));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FencingToken(u64);

impl FencingToken {
    /// The largest index that [`handed_over`](Self::handed_over) takes.
    pub const MAX_HANDOVERS: u32 = (1 << HANDOVER_BITS) - 1;

    /// The largest number of a store's grant: 2^53 - 1, which its clock reaches in the year 2255.
    pub const LAST_GRANT: u64 = (1 << 53) - 1;

    /// Creates the token of a store's grant, or `None` for a number above
    /// [`LAST_GRANT`](Self::LAST_GRANT): the token would exceed 2^63.
    ///
    /// ```
    /// use latchwork_store::FencingToken;
    ///
    /// assert_eq!(FencingToken::of_grant(7), Some(FencingToken::from_grant(7)));
    /// assert_eq!(FencingToken::of_grant(1 << 53), None);
    /// ```
    pub const fn of_grant(number: u64) -> Option<Self> {
        if number > Self::LAST_GRANT { None } else { Some(Self(number << HANDOVER_BITS)) }
    }

    /// Creates the token of a store's grant, of a number that is known to be in range.
    ///
    /// A number above [`LAST_GRANT`](Self::LAST_GRANT) gives the token of that one, so two grants would have the same
    /// token. Use [`of_grant`](Self::of_grant) for a number that a store answered.
    pub const fn from_grant(number: u64) -> Self {
        let number = if number > Self::LAST_GRANT { Self::LAST_GRANT } else { number };
        Self(number << HANDOVER_BITS)
    }

    /// Returns the token of the `index`-th handover within the hold that `self` began, or `None` if
    /// the bits do not suffice.
    pub const fn handed_over(self, index: u32) -> Option<Self> {
        if index > Self::MAX_HANDOVERS {
            return None;
        }
        Some(Self((self.0 >> HANDOVER_BITS << HANDOVER_BITS) | index as u64))
    }

    /// Returns the number to store and compare.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the number for a signed 64-bit column.
    ///
    /// # Errors
    ///
    /// `Invalid` for a number of 2^63 or more, which no store gives.
    pub fn to_bigint(self) -> Result<i64, Error> {
        i64::try_from(self.0).map_err(|_| {
            let message = format!("token: {self} is 2^63 or more, and no store gives such a token");
            Error::new(ErrorKind::Invalid, message)
                .with_next_step("give the token of a guard, as `Guard::token` returns it")
        })
    }

    /// Returns whether a store can give this token: those of 2^63 and more are none.
    ///
    /// ```
    /// use latchwork_store::FencingToken;
    ///
    /// assert!(FencingToken::from_raw(i64::MAX as u64).is_in_range());
    /// assert!(!FencingToken::from_raw(1 << 63).is_in_range());
    /// ```
    pub const fn is_in_range(self) -> bool {
        self.0 <= i64::MAX as u64
    }

    /// Creates a token from the number that [`get`](Self::get) returned.
    ///
    /// A number of 2^63 or more is [not a token](Self::is_in_range), and every fence refuses it.
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// Returns how often the store's grant was handed over before this token; see
    /// [`handed_over`](Self::handed_over).
    pub const fn handovers(self) -> u32 {
        (self.0 & ((1 << HANDOVER_BITS) - 1)) as u32
    }

    /// Returns the store's own number behind this token.
    pub const fn grant_number(self) -> u64 {
        self.0 >> HANDOVER_BITS
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for FencingToken {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

/// The refusal of a write or read whose token is smaller than one already seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Fenced {
    /// The token that was refused.
    pub refused: FencingToken,
    /// The largest token seen.
    pub newest: FencingToken,
}

impl fmt::Display for Fenced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { refused, newest } = self;
        if !refused.is_in_range() {
            write!(f, "{refused} is not a token: no store gives 2^63 or more")
        } else if !newest.is_in_range() {
            write!(
                f,
                "token {refused} cannot be checked: the fence was started at {newest}, which is not a \
                 token; start it at the largest token that has written"
            )
        } else {
            write!(f, "token {refused} was superseded by {newest}")
        }
    }
}

impl std::error::Error for Fenced {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stays_below_two_to_the_63() {
        assert!(FencingToken::from_grant(u64::MAX).get() < 1 << 63);
    }

    #[test]
    fn a_handover_never_reaches_the_next_grant() {
        let token = FencingToken::from_grant(41);
        let last = token.handed_over(FencingToken::MAX_HANDOVERS).unwrap();
        assert!(last < FencingToken::from_grant(42));
        assert_eq!(token.handed_over(FencingToken::MAX_HANDOVERS + 1), None);
        assert_eq!(last.handed_over(3), token.handed_over(3));
    }
}
