//! The number that is added to a store's own numbers, so that its tokens exceed those of another
//! store.

use latchwork_store::{Capabilities, Error, ErrorKind, FencingToken, Key, Snapshot};

/// The largest number behind a token.
const TOP: u64 = FencingToken::LAST_GRANT;

/// A number that is added to those of all grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct TokenBase(u64);

impl TokenBase {
    /// The largest floor: half of all numbers are left above it.
    pub(crate) const HIGHEST_FLOOR: FencingToken = FencingToken::from_grant(TOP / 2);

    /// All tokens are larger than this one.
    pub(crate) fn above(floor: FencingToken) -> Self {
        Self(floor.grant_number() + 1)
    }

    /// The token of a store's grant; `None` if it would be larger than any token.
    pub(crate) fn token(self, grant: u64) -> Option<FencingToken> {
        self.number(grant).and_then(FencingToken::of_grant)
    }

    /// The store's grant of a token; `None` if this base gives no such token.
    pub(crate) fn grant(self, token: FencingToken) -> Option<u64> {
        token.grant_number().checked_sub(self.0)
    }

    fn number(self, grant: u64) -> Option<u64> {
        grant.checked_add(self.0).filter(|sum| *sum <= TOP)
    }

    /// What the store says of a key, with the numbers that the tokens are made of.
    pub(crate) fn shift(self, seen: &mut Snapshot) {
        if self.0 == 0 {
            return;
        }
        let number = |grant: u64| self.number(grant).unwrap_or(TOP);
        if seen.token > 0 {
            seen.token = number(seen.token);
        }
        for party in &mut seen.holders {
            party.token = party.token.map(number);
        }
    }
}

/// The error for a grant whose token would be larger than any.
pub(crate) fn no_room(key: &Key, capabilities: &Capabilities) -> Error {
    let message = "the store's next token, with the token_floor if there is one, is larger than any token may be";
    Error::new(ErrorKind::Invalid, message).with_key(key).with_store(capabilities.store.clone()).with_next_step(
        "stop all holders; then reset the tokens of the resource and the store's counter of tokens",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_is_above_the_floor() {
        let floor = FencingToken::from_grant(1_800_000_000_000_000).handed_over(1_023).unwrap();
        let base = TokenBase::above(floor);
        assert!(base.token(0).unwrap() > floor);
        assert!(base.token(1).unwrap() > base.token(0).unwrap().handed_over(1_023).unwrap());
        assert_eq!(base.token(TOP), None);
        assert_eq!(base.grant(base.token(7).unwrap()), Some(7));
        assert_eq!(base.grant(floor), None);
        assert_eq!(TokenBase::default().token(7), Some(FencingToken::from_grant(7)));
        assert_eq!(TokenBase::default().token(TOP), Some(FencingToken::from_grant(TOP)));
        assert_eq!(TokenBase::default().token(TOP + 1), None, "no token is given twice");
    }
}
