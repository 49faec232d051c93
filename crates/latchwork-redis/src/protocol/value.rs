//! The value of a key: the text that a claim writes, and its parser.

use std::time::Duration;

use latchwork_store::{Claim, FencingToken, Holder, Mode, Resize, Shape};

/// The digits of a time in milliseconds, from 2001 to 2286.
const DIGITS: usize = 13;

/// The value of a claim that holds alone, up to its id.
pub(crate) fn up_to_id(claim: &Claim) -> String {
    alone(claim, "")
}

/// The same up to its token.
pub(crate) fn head(claim: &Claim) -> String {
    alone(claim, ":")
}

/// Each lock builds this twice; `format!` takes three times as many instructions (callgrind).
fn alone(claim: &Claim, end: &str) -> String {
    let id = claim.id.digits();
    let id = str::from_utf8(&id).unwrap_or_default();
    ["lw:", letter(claim.mode), ":-:", id, end].concat()
}

/// The holder's text, as it is stored: `<since when the claim has asked, ms since 1970>|<text>`.
pub(crate) fn stored(since: Duration, holder: &Holder) -> String {
    after_token("", since, holder)
}

/// The part after the token in the value of a claim that holds alone.
pub(crate) fn tail(since: Duration, holder: &Holder) -> String {
    after_token(":", since, holder)
}

fn after_token(start: &str, since: Duration, holder: &Holder) -> String {
    let (mut digits, mut left) = ([b'0'; DIGITS], since.as_millis() as u64);
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (left % 10) as u8;
        left /= 10;
    }
    let digits = str::from_utf8(&digits).unwrap_or_default();
    [start, digits, "|", &holder.stored()].concat()
}

/// The holder, and since when its claim has asked, on the wall clock of its process.
pub(crate) fn read_holder(stored: &str) -> (Holder, Option<Duration>) {
    match stored.split_once('|') {
        Some((since, text))
            if since.len() == DIGITS && since.bytes().all(|b| b.is_ascii_digit()) =>
        {
            (Holder::from_stored(text), since.parse().ok().map(Duration::from_millis))
        }
        _ => (Holder::from_stored(stored), None),
    }
}

/// A length in whole milliseconds, never shorter than asked for (B4).
pub(crate) fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// The letter of a mode in the scripts.
pub(crate) fn letter(mode: Mode) -> &'static str {
    match mode {
        Mode::Exclusive => "x",
        Mode::Write => "w",
        Mode::Read => "r",
        Mode::Permits { .. } => "p",
    }
}

/// What follows the limit of a claim.
pub(crate) fn policy(resize: Resize) -> &'static str {
    match resize {
        Resize::Never => "",
        Resize::ToMine => "m",
        Resize::Follow => "f",
    }
}

/// The value of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KeyValue {
    /// One claim alone.
    Alone { mode: Mode, id: String, token: u64, holder: Holder, since: Option<Duration> },
    /// Readers; no other reader joins them until then (ms since 1970).
    Readers { closed: u64 },
    /// Permits of a limit, closed in the same way.
    Permits { of: u32, closed: u64 },
    /// The key is closed, by this holder if it left its name.
    Closed { by: Option<Holder> },
    /// A client of another kind.
    Foreign,
    /// It begins like a lock and does not continue like one. It blocks all clients.
    NoLock,
}

/// The most digits of a time or a token in a value: a script cannot represent longer numbers exactly.
const LONGEST: usize = 16;

impl KeyValue {
    /// Judges as `scripts/common.lua` does.
    pub(crate) fn read(value: &[u8]) -> Self {
        if !value.starts_with(b"lw:") {
            return Self::Foreign;
        }
        Self::parse(value).unwrap_or(Self::NoLock)
    }

    fn parse(value: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(value);
        let (kind, rest) = text.strip_prefix("lw:")?.split_once(':')?;
        let rest = rest.strip_prefix(['-', '+', '.'])?.strip_prefix(':')?;
        match kind {
            "x" | "w" => {
                let mode = if kind == "x" { Mode::Exclusive } else { Mode::Write };
                let mut parts = rest.splitn(3, ':');
                let id = parts.next().filter(|id| id.len() == 32)?;
                let id = id.bytes().all(|b| b.is_ascii_hexdigit()).then(|| id.to_owned())?;
                let token =
                    digits(parts.next()?, LONGEST).filter(|it| *it <= FencingToken::LAST_GRANT)?;
                let (holder, since) = read_holder(parts.next()?);
                Some(Self::Alone { mode, id, token, holder, since })
            }
            "r" => Some(Self::Readers { closed: digits(rest, LONGEST - 1)? }),
            "p" => {
                let mut parts = rest.split(':');
                let closed = digits(parts.next()?, LONGEST - 1)?;
                let of = digits(parts.next()?, 10)?;
                digits(parts.next()?, 10)?;
                if parts.next().is_some() {
                    return None;
                }
                Some(Self::Permits { of: of.try_into().ok()?, closed })
            }
            "c" => {
                let by = (!rest.is_empty()).then(|| read_holder(rest).0);
                Some(Self::Closed { by })
            }
            _ => None,
        }
    }

    pub(crate) fn shape(&self) -> Option<Shape> {
        match self {
            Self::Alone { mode, .. } => Some(mode.shape()),
            Self::Readers { .. } => Some(Shape::ReadWrite),
            Self::Permits { of, .. } => Some(Shape::Semaphore { of: *of }),
            Self::Closed { .. } | Self::Foreign | Self::NoLock => None,
        }
    }
}

/// A number of so many digits at most, and nothing else.
fn digits(text: &str, most: usize) -> Option<u64> {
    let fits = (1..=most).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    if fits { text.parse().ok() } else { None }
}

/// The beginning of a value, for people.
pub(crate) fn shown(value: &[u8]) -> String {
    let start = String::from_utf8_lossy(&value[..value.len().min(48)]);
    let more = if value.len() > 48 { ", cut off here" } else { "" };
    format!("{start:?}{more}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_comes_back() {
        let since = Duration::from_millis(1_790_000_000_123);
        for text in ["", "host pid 7", "a|b", "1790000000000|x", "\u{e9}:\n"] {
            assert_eq!(read_holder(&stored(since, &text.into())), (text.into(), Some(since)));
        }
        for text in ["", "host pid 7", "a|b", "12|x", "179000000000x|y"] {
            assert_eq!(read_holder(text), (text.into(), None));
        }
    }

    #[test]
    fn reads_the_values_of_keys() {
        let id = "0".repeat(31) + "7";
        let value = format!("lw:x:+:{id}:1790000000000001:1790000000007|host:pid 7");
        let held = KeyValue::read(value.as_bytes());
        assert_eq!(
            held,
            KeyValue::Alone {
                mode: Mode::Exclusive,
                id,
                token: 1_790_000_000_000_001,
                holder: "host:pid 7".into(),
                since: Some(Duration::from_millis(1_790_000_000_007)),
            }
        );
        assert_eq!(KeyValue::read(b"lw:r:-:0"), KeyValue::Readers { closed: 0 });
        assert_eq!(KeyValue::read(b"lw:p:-:77:5:2"), KeyValue::Permits { of: 5, closed: 77 });
        assert_eq!(
            KeyValue::read(b"lw:c:-:"),
            KeyValue::Closed { by: None },
            "of an older version"
        );
        let by = Some(Holder::from("web-2:7|x"));
        assert_eq!(KeyValue::read(b"lw:c:-:1790000000007|web-2:7|x"), KeyValue::Closed { by });
        for foreign in [&b""[..], b"lw", b"0123456789abcdef", b"\xff\xfe"] {
            assert_eq!(KeyValue::read(foreign), KeyValue::Foreign, "{foreign:?}");
        }
        for no_lock in ["lw:", "lw:x:-:zz", "lw:r:-:abc", "lw:r:-:", "lw:p:-:0:5", "lw:q:-:0"] {
            assert_eq!(KeyValue::read(no_lock.as_bytes()), KeyValue::NoLock, "{no_lock}");
        }
    }

    #[test]
    fn hostile_values_of_keys_are_read_without_harm() {
        let id = "0".repeat(31) + "7";
        let samples = [
            format!("lw:x:+:{id}:1790000000000001:1790000000007|host:pid 7"),
            "lw:r:-:1790000000007".into(),
            "lw:p:-:77:5:2".into(),
            "lw:c:-:".into(),
            "lw:c:-:1790000000007|web-2\u{1f}closed_at_ms=1790000000007".into(),
            "lw:x:\u{e9}:zz".into(),
        ];
        let samples: Vec<&[u8]> = samples.iter().map(String::as_bytes).collect();
        latchwork_services::hostile::survives("values of keys", &samples, |bytes| {
            let _ = KeyValue::read(bytes);
            let text = String::from_utf8_lossy(bytes);
            let _ = read_holder(&text);
            let _ = crate::server::reply::fields(&text).count();
        });
    }
}
