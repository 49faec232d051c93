//! Parses the messages that scripts publish; `push.rs` says what they mean.

use std::time::Duration;

use latchwork_store::{ClaimId, random_u128};

/// The secret that links a try to its grant: each try draws one, and only the store learns it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Nonce(u128);

impl Nonce {
    pub(crate) fn random() -> Self {
        Self(random_u128())
    }

    fn parse(text: &str) -> Option<Self> {
        ClaimId::parse(text).map(|digits| Self(digits.as_u128()))
    }
}

impl std::fmt::Display for Nonce {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        ClaimId::from_u128(self.0).fmt(f)
    }
}

/// A grant that the store has made on a release.
pub(crate) struct PushedGrant<'a> {
    pub(crate) id: ClaimId,
    pub(crate) token: u64,
    pub(crate) ttl: Duration,
    pub(crate) nonce: Nonce,
    pub(crate) since_try: Duration,
    pub(crate) lock: &'a str,
}

/// A message to a process.
pub(crate) enum Message<'a> {
    Granted(PushedGrant<'a>),
    Look { id: ClaimId, after: Duration },
}

impl<'a> Message<'a> {
    pub(crate) fn id(&self) -> ClaimId {
        match self {
            Message::Granted(PushedGrant { id, .. }) | Message::Look { id, .. } => *id,
        }
    }

    pub(crate) fn parse(text: &'a str) -> Option<Self> {
        let mut words = text.splitn(7, ' ');
        let kind = words.next()?;
        let id = ClaimId::parse(words.next()?)?;
        match kind {
            "g" => Some(Self::Granted(PushedGrant {
                id,
                token: words.next()?.parse().ok()?,
                ttl: Duration::from_millis(words.next()?.parse().ok()?),
                nonce: Nonce::parse(words.next()?)?,
                since_try: Duration::from_micros(words.next()?.parse().ok()?),
                lock: words.next()?,
            })),
            "l" => {
                let after = Duration::from_millis(words.next()?.parse().ok()?);
                Some(Self::Look { id, after })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_published_messages_are_parsed() {
        let id = ClaimId::from_u128(7);
        let nonce = Nonce::random();
        let granted = format!("g {id} 1790000000000001 2000 {nonce} 42 shop:a lock");
        match Message::parse(&granted).unwrap() {
            Message::Granted(granted) => {
                assert_eq!(granted.id, id);
                assert_eq!(granted.token, 1_790_000_000_000_001);
                assert_eq!(granted.ttl, Duration::from_secs(2));
                assert!(granted.nonce == nonce);
                assert_eq!(granted.since_try, Duration::from_micros(42));
                assert_eq!(granted.lock, "shop:a lock");
            }
            Message::Look { .. } => panic!("not a grant"),
        }
        assert!(matches!(
            Message::parse(&format!("l {id} 1500")),
            Some(Message::Look { after, .. }) if after == Duration::from_millis(1_500)
        ));
        for bad in ["", "g", "x 1", "l zz 1", &format!("g {id} 1 1 1 1 k"), &format!("l {id} -1")] {
            assert!(Message::parse(bad).is_none(), "{bad}");
        }
    }
}
