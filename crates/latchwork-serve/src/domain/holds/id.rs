//! The number by which this instance remembers a hold: 128 random bits.
//!
//! For a hold that this process keeps, it is the id that the client gets; for another, that is the sealed ticket.

use std::fmt;
use std::str::FromStr;

use latchwork_store::{ClaimId, random_u128};

/// The id of a hold. It allows to renew and release the hold, so no log and no event shows it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct HoldId([u64; 2]);

impl HoldId {
    pub(crate) fn random() -> Self {
        Self::from(random_u128())
    }

    fn from(number: u128) -> Self {
        Self([(number >> 64) as u64, number as u64])
    }

    fn number(self) -> u128 {
        u128::from(self.0[0]) << 64 | u128::from(self.0[1])
    }

    /// Its place in a table: all of its bits are random.
    pub(super) fn hash(self) -> u64 {
        self.0[1]
    }

    /// The number of a hold whose first claim is this one.
    pub(crate) fn of(claim: ClaimId) -> Self {
        Self::from(claim.as_u128())
    }

    /// The first claim of a hold that its client keeps.
    pub(crate) fn claim(self) -> ClaimId {
        ClaimId::from_u128(self.number())
    }
}

impl fmt::Display for HoldId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.number())
    }
}

impl fmt::Debug for HoldId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HoldId(..)")
    }
}

impl FromStr for HoldId {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let is_plain = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() != 32 || !text.bytes().all(is_plain) {
            return Err(());
        }
        u128::from_str_radix(text, 16).map(Self::from).map_err(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_as_it_was_written() {
        let id = HoldId::random();
        assert_eq!(id.to_string().parse(), Ok(id));
        for bad in ["", "0", "+0000000000000000000000000000000", "g0000000000000000000000000000000"]
        {
            assert_eq!(bad.parse::<HoldId>(), Err(()), "{bad}");
        }
    }

    #[test]
    fn no_log_shows_an_id() {
        assert_eq!(format!("{:?}", HoldId::from(7)), "HoldId(..)");
    }
}
