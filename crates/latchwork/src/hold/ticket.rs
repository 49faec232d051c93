//! A detached hold, as a text to pass to another process.

use std::fmt::Write;
use std::time::Duration;

use latchwork_store::{Claim, ClaimId, FencingToken, Holder, Key, Mode};

/// What a ticket begins with.
const KIND: &str = "lwd1";

/// All that another process must know to go on with a hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(crate) key: Key,
    pub(crate) id: ClaimId,
    pub(crate) mode: Mode,
    pub(crate) token: FencingToken,
    pub(crate) ttl: Duration,
    pub(crate) holder: Holder,
}

impl Ticket {
    /// The ticket of a claim that is held under this token.
    pub(crate) fn of(claim: Claim, token: FencingToken) -> Self {
        let Claim { key, id, mode, ttl, holder, .. } = claim;
        Self { key, id, mode, token, ttl, holder }
    }

    /// Seven fields with a dot between them, of characters that need no quoting in a URL or a shell.
    pub(crate) fn write(&self) -> String {
        let mode = match self.mode {
            Mode::Exclusive => "x".to_owned(),
            Mode::Read => "r".to_owned(),
            Mode::Write => "w".to_owned(),
            Mode::Permits { take, of } => format!("p{take}-{of}"),
        };
        let (key, holder) = (hex(self.key.as_str()), hex(&self.holder.stored()));
        let millis = self.ttl.as_millis();
        format!("{KIND}.{}.{mode}.{}.{millis}.{key}.{holder}", self.id, self.token)
    }

    /// Reads what [`write`](Self::write) wrote.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let fields: Vec<&str> = text.trim().split('.').collect();
        let [KIND, id, mode, token, millis, key, holder] = fields[..] else { return None };
        Some(Self {
            key: Key::new(unhex(key)?).ok()?,
            id: ClaimId::parse(id)?,
            mode: self::mode(mode)?,
            token: token.parse().ok()?,
            ttl: Some(Duration::from_millis(millis.parse().ok()?)).filter(|ttl| !ttl.is_zero())?,
            holder: Holder::from_stored(&unhex(holder)?),
        })
    }
}

fn mode(text: &str) -> Option<Mode> {
    match text {
        "x" => Some(Mode::Exclusive),
        "r" => Some(Mode::Read),
        "w" => Some(Mode::Write),
        permits => {
            let (take, of) = permits.strip_prefix('p')?.split_once('-')?;
            let (take, of) = (take.parse().ok()?, of.parse().ok()?);
            (1..=of).contains(&take).then_some(Mode::Permits { take, of })
        }
    }
}

fn hex(text: &str) -> String {
    text.bytes().fold(String::with_capacity(text.len() * 2), |mut out, byte| {
        // Writing to a String does not fail.
        let _ = write!(out, "{byte:02x}");
        out
    })
}

fn unhex(text: &str) -> Option<String> {
    if !text.is_ascii() || !text.len().is_multiple_of(2) {
        return None;
    }
    let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).ok();
    let bytes: Option<Vec<u8>> = (0..text.len()).step_by(2).map(byte).collect();
    String::from_utf8(bytes?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_read_as_it_was_written() {
        for mode in [Mode::Exclusive, Mode::Read, Mode::Write, Mode::Permits { take: 2, of: 3 }] {
            let ticket = Ticket {
                key: Key::new("shop:stock/42 ä").unwrap(),
                id: ClaimId::random(),
                mode,
                token: FencingToken::from_raw(1_838_583_656_659_484_675),
                ttl: Duration::from_secs(30),
                holder: Holder::new("web-2 pid 7")
                    .with(|it| it.candidate = Some("10.0.0.7".into())),
            };
            let text = ticket.write();
            assert!(
                text.bytes().all(|b| b.is_ascii_alphanumeric() || b".-".contains(&b)),
                "{text}"
            );
            assert_eq!(Ticket::read(&format!("{text}\n")), Some(ticket));
        }
    }

    #[test]
    fn malformed_tickets_are_refused() {
        let id = ClaimId::random();
        for text in [
            "".to_owned(),
            format!("lwd1.{id}.x.1.0.6b.6d"),
            "x".to_owned(),
            format!("lwd2.{id}.x.1.1.6b.68"),
            format!("lwd1.{id}.x.1.1.6b"),
            format!("lwd1.{id}.z.1.1.6b.68"),
            format!("lwd1.{id}.p4-3.1.1.6b.68"),
            format!("lwd1.{id}.x.-1.1.6b.68"),
            format!("lwd1.{id}.x.1.1.6.68"),
            format!("lwd1.{id}.x.1.1.ff.68"),
            format!("lwd1.{id}.x.1.1..68"),
            format!("lwd1.{id}.x.1.1.\u{e4}\u{e4}.68"),
        ] {
            assert_eq!(Ticket::read(&text), None, "{text}");
        }
    }
}
