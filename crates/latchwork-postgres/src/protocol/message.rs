//! What one process tells another: a grant that the store made by itself, or that looking pays.
//!
//! - `g <claim> <token> <us of the lease> <word> <us since the try>`: the store has granted the claim.
//! - `l <claim> <us>`: looking pays, after this long.
//!
//! Anybody who may notify can send both, so a grant counts only with the word of the claim's last try. The
//! process drew it, and the store publishes it with the grant alone.

use std::time::Duration;

use latchwork_store::ClaimId;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Message {
    Granted { id: ClaimId, token: u64, ttl: Duration, word: u128, since_try: Duration },
    Look { id: ClaimId, after: Duration },
}

impl Message {
    pub(crate) fn id(&self) -> ClaimId {
        match self {
            Self::Granted { id, .. } | Self::Look { id, .. } => *id,
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let parts: Vec<&str> = text.split(' ').take(7).collect();
        let micros = |text: &str| text.parse().ok().map(Duration::from_micros);
        match parts[..] {
            ["g", id, token, ttl, word, since] => Some(Self::Granted {
                id: uuid(id)?.into(),
                token: token.parse().ok()?,
                ttl: micros(ttl)?,
                word: uuid(word)?.0,
                since_try: micros(since)?,
            }),
            ["l", id, after] => Some(Self::Look { id: uuid(id)?.into(), after: micros(after)? }),
            _ => None,
        }
    }
}

/// A UUID as the server writes it: 32 digits with dashes.
fn uuid(text: &str) -> Option<crate::protocol::values::Uuid> {
    let plain: String = text.chars().filter(|c| *c != '-').collect();
    (text.len() == 36).then_some(())?;
    ClaimId::parse(&plain).map(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "00000000-0000-0000-0000-0000000000ff";

    #[test]
    fn reads_what_the_functions_write() {
        let id = ClaimId::from_u128(255);
        let look = Message::parse(&format!("l {ID} 1500")).unwrap();
        assert_eq!(look, Message::Look { id, after: Duration::from_micros(1_500) });
        let granted = Message::parse(&format!("g {ID} 7 2000000 {ID} 42")).unwrap();
        let (ttl, since_try) = (Duration::from_secs(2), Duration::from_micros(42));
        assert_eq!(granted, Message::Granted { id, token: 7, ttl, word: 255, since_try });
        assert_eq!(granted.id(), id);
    }

    #[test]
    fn hostile_messages_are_read_without_harm() {
        let samples =
            [format!("g {ID} {0} {0} {ID} {0}", u64::MAX), format!("l {ID} {}", u64::MAX)];
        let samples: Vec<&[u8]> = samples.iter().map(String::as_bytes).collect();
        latchwork_services::hostile::survives("messages", &samples, |bytes| {
            let _ = Message::parse(&String::from_utf8_lossy(bytes));
        });
        for text in ["", "g", "l x 1", "g a b c d e f", "l 0000 1", &format!("l {ID} -1")] {
            assert_eq!(Message::parse(text), None, "{text}");
        }
    }
}
