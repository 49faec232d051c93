//! The answers of servers and scripts, read.

use std::sync::Arc;
use std::time::Duration;

use latchwork_store::{
    Attempt, BackendError, BackendErrorKind, Blocked, Cause, Claim, Effect, Grant, Mode, Released,
    Renewal, Shape,
};
use redis::Value;

use crate::errors::strange;
use crate::holder;

/// The letter of a mode in the scripts.
pub(crate) fn letter(mode: Mode) -> &'static str {
    match mode {
        Mode::Exclusive => "x",
        Mode::Write => "w",
        Mode::Read => "r",
        Mode::Permits { .. } => "p",
    }
}

/// Whether claims of this mode hold their key alone.
pub(crate) fn is_alone(mode: Mode) -> bool {
    matches!(mode, Mode::Exclusive | Mode::Write)
}

/// What a key's own value says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Held {
    /// One claim alone.
    Alone { mode: Mode, id: String, token: u64, holder: Arc<str>, since: Option<Duration> },
    /// Readers; nobody joins them until then (ms since 1970).
    Readers { closed: u64 },
    /// Permits of a limit, closed in the same way.
    Permits { of: u32, closed: u64 },
    /// Nobody; it is kept closed.
    Closed,
    /// A client of another kind.
    Foreign,
}

impl Held {
    pub(crate) fn read(value: &[u8]) -> Self {
        Self::parse(value).unwrap_or(Self::Foreign)
    }

    fn parse(value: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(value);
        let rest = text.strip_prefix("lw:")?;
        let (kind, rest) = (rest.get(..1)?, rest.get(1..)?);
        let rest = rest.strip_prefix(':')?.get(2..)?;
        match kind {
            "x" | "w" => {
                let mode = if kind == "x" { Mode::Exclusive } else { Mode::Write };
                let mut parts = rest.splitn(3, ':');
                let id = parts.next()?.to_owned();
                let token = parts.next()?.parse().ok()?;
                let (holder, since) = holder::read(parts.next()?);
                Some(Self::Alone { mode, id, token, holder, since })
            }
            "r" => Some(Self::Readers { closed: rest.parse().ok()? }),
            "p" => {
                let mut parts = rest.split(':');
                let closed = parts.next()?.parse().ok()?;
                Some(Self::Permits { of: parts.next()?.parse().ok()?, closed })
            }
            "c" => Some(Self::Closed),
            _ => None,
        }
    }

    pub(crate) fn shape(&self) -> Option<Shape> {
        match self {
            Self::Alone { mode, .. } => Some(mode.shape()),
            Self::Readers { .. } => Some(Shape::ReadWrite),
            Self::Permits { of, .. } => Some(Shape::Semaphore { of: *of }),
            Self::Closed | Self::Foreign => None,
        }
    }
}

/// What to tell a claim that leaves nothing behind, by the value that is in its way.
pub(crate) fn blocked_by(value: &[u8], claim: &Claim) -> Result<Attempt, BackendError> {
    let held = Held::read(value);
    if let Some(shape) = held.shape().filter(|shape| *shape != claim.mode.shape()) {
        return Err(mismatch(shape, claim));
    }
    let (cause, holder) = match held {
        Held::Alone { holder, .. } => (Cause::Held, Some(holder)),
        Held::Readers { .. } | Held::Permits { .. } => (Cause::Held, None),
        Held::Closed => (Cause::Linger, None),
        Held::Foreign => (Cause::Foreign, None),
    };
    let blocked =
        Blocked { retry_after: None, ahead: None, cause, holder, resume: None, store_time: None };
    Ok(Attempt::Blocked(blocked))
}

pub(crate) fn mismatch(shape: Shape, claim: &Claim) -> BackendError {
    BackendError::new(
        BackendErrorKind::Mismatch,
        Effect::NotApplied,
        format!("the key is in use as {shape}, and this asks for {}", claim.mode.shape()),
    )
    .next_step("use one kind of lock, and one limit, for a key")
}

/// The namespace is guarded with other lengths than ours.
pub(crate) fn guarded_otherwise(max_ttl: Duration, quarantine: Duration) -> BackendError {
    BackendError::new(
        BackendErrorKind::Mismatch,
        Effect::NotApplied,
        format!(
            "max_ttl: the namespace is guarded with max_ttl {max_ttl:?} (quarantine {quarantine:?}), \
             and this client asks for others"
        ),
    )
    .next_step(
        "give all clients of a namespace the same max_ttl and deposed; to change them, stop all \
         clients and run latchwork init with the new ones",
    )
}

/// The answer to a try by the whole script.
pub(crate) fn attempt(answer: &Value, claim: &Claim) -> Result<Attempt, BackendError> {
    let parsed = || {
        let Value::Array(parts) = answer else { return None };
        match parts.first()? {
            Value::Int(1) => {
                let [_, token, ttl, seconds, micros] = &parts[..] else { return None };
                Some(Ok(Attempt::Granted(Grant {
                    token: number(token)?,
                    ttl: Duration::from_millis(number(ttl)?),
                    store_time: Some(time(seconds, micros)?),
                })))
            }
            Value::Int(0) => {
                let [_, cause, retry, ahead, seconds, micros, holder, ..] = &parts[..] else {
                    return None;
                };
                let cause = match text(cause)?.as_str() {
                    "h" => Cause::Held,
                    "q" => Cause::Queued,
                    "c" => Cause::Linger,
                    "f" => Cause::Foreign,
                    "g" => Cause::Quarantine,
                    _ => return None,
                };
                Some(Ok(Attempt::Blocked(Blocked {
                    retry_after: number(retry).map(Duration::from_millis),
                    ahead: number(ahead).and_then(|n| u32::try_from(n).ok()),
                    cause,
                    holder: Some(text(holder)?)
                        .filter(|stored| !stored.is_empty())
                        .map(|stored| holder::read(&stored).0),
                    resume: None,
                    store_time: Some(time(seconds, micros)?),
                })))
            }
            Value::Int(2) => Some(Err(mismatch(shape(&text(parts.get(1)?)?)?, claim))),
            Value::Int(3) => {
                let length = |part| Some(Duration::from_millis(number(parts.get(part)?)?));
                Some(Err(guarded_otherwise(length(1)?, length(2)?)))
            }
            _ => None,
        }
    };
    parsed().unwrap_or_else(|| Err(strange(answer)))
}

/// From which place in line on the script has to be called again: what follows the answer proper.
pub(crate) fn goes_on(answer: &Value, proper: usize) -> Option<u64> {
    let Value::Array(parts) = answer else { return None };
    number(parts.get(proper)?)
}

/// Where a claim stands in line that is blocked; -1 if that is not told.
pub(crate) fn stands_at(answer: &Value) -> i64 {
    let Value::Array(parts) = answer else { return -1 };
    // The short way for those who come to the end of the line tells only how many are before them.
    match parts.get(8).or(parts.get(3)) {
        Some(Value::Int(place)) => *place,
        _ => -1,
    }
}

/// The answer to a release by the whole script.
pub(crate) fn released(answer: &Value) -> Result<Released, BackendError> {
    match answer {
        Value::Array(parts) => match parts.first() {
            Some(Value::Int(1)) => Ok(Released::Yes),
            Some(Value::Int(0)) => Ok(Released::NotHeld),
            _ => Err(strange(answer)),
        },
        _ => Err(strange(answer)),
    }
}

/// The answers to a renewal of these claims.
pub(crate) fn renewals(answer: &Value, claims: &[&Claim]) -> Result<Vec<Renewal>, BackendError> {
    let parsed = || {
        let Value::Array(parts) = answer else { return None };
        let [tokens @ .., seconds, micros] = &parts[..] else { return None };
        let store_time = Some(time(seconds, micros)?);
        if tokens.len() != claims.len() {
            return None;
        }
        let renewal = |(token, claim): (&Value, &&Claim)| match text(token)?.as_str() {
            "" => Some(Renewal::Lost),
            token => Some(Renewal::Held { ttl: claim.ttl, token: token.parse().ok()?, store_time }),
        };
        tokens.iter().zip(claims).map(renewal).collect()
    };
    parsed().ok_or_else(|| strange(answer))
}

fn shape(text: &str) -> Option<Shape> {
    match text.split_at_checked(1)? {
        ("x", "") => Some(Shape::Mutex),
        ("r", "") => Some(Shape::ReadWrite),
        ("p", of) => Some(Shape::Semaphore { of: of.parse().ok()? }),
        _ => None,
    }
}

/// A number, given as such or as text; `None` below zero.
pub(crate) fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        value => text(value)?.parse().ok(),
    }
}

pub(crate) fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text.clone()),
        Value::Int(number) => Some(number.to_string()),
        _ => None,
    }
}

/// The names and values of a map, in either version of the protocol.
pub(crate) fn pairs(value: &Value) -> Option<Vec<(&Value, &Value)>> {
    match value {
        Value::Map(pairs) => Some(pairs.iter().map(|(name, value)| (name, value)).collect()),
        Value::Array(flat) => Some(flat.chunks_exact(2).map(|pair| (&pair[0], &pair[1])).collect()),
        _ => None,
    }
}

/// The names and values in what `INFO` and its like say.
pub(crate) fn fields(info: &str) -> impl Iterator<Item = (&str, &str)> {
    info.lines().filter_map(|line| line.trim().split_once(':'))
}

/// The server's clock, from seconds and microseconds.
pub(crate) fn time(seconds: &Value, micros: &Value) -> Option<Duration> {
    Duration::from_secs(number(seconds)?).checked_add(Duration::from_micros(number(micros)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_values_of_keys() {
        let id = "0".repeat(31) + "7";
        let value = format!("lw:x:+:{id}:1790000000000001:1790000000007|host:pid 7");
        let held = Held::read(value.as_bytes());
        assert_eq!(
            held,
            Held::Alone {
                mode: Mode::Exclusive,
                id,
                token: 1_790_000_000_000_001,
                holder: "host:pid 7".into(),
                since: Some(Duration::from_millis(1_790_000_000_007)),
            }
        );
        assert_eq!(Held::read(b"lw:r:-:0"), Held::Readers { closed: 0 });
        assert_eq!(Held::read(b"lw:p:-:77:5:2"), Held::Permits { of: 5, closed: 77 });
        assert_eq!(Held::read(b"lw:c:-:"), Held::Closed);
        for foreign in [&b""[..], b"lw:", b"lw:x:-:zz", b"0123456789abcdef", b"\xff\xfe"] {
            assert_eq!(Held::read(foreign), Held::Foreign, "{foreign:?}");
        }
    }

    /// An answer made of bytes: parts between `|`, numbers as such, and lists of parts in brackets.
    fn answer_of(bytes: &[u8]) -> Value {
        fn part(bytes: &[u8]) -> Value {
            let number = str::from_utf8(bytes).ok().and_then(|text| text.parse().ok());
            match (bytes, number) {
                (_, Some(number)) => Value::Int(number),
                (b"", _) => Value::Nil,
                ([b'[', inner @ ..], _) => {
                    Value::Array(inner.split(|b| *b == b',').map(part).collect())
                }
                ([b'+', text @ ..], _) => {
                    Value::SimpleString(String::from_utf8_lossy(text).into_owned())
                }
                _ => Value::BulkString(bytes.to_vec()),
            }
        }
        Value::Array(bytes.split(|b| *b == b'|').map(part).collect())
    }

    #[test]
    fn hostile_answers_of_scripts_are_read_without_harm() {
        let claim = latchwork_store::testing::claim("k");
        let samples: [&[u8]; 7] = [
            b"1|1790000000000001|2000|1790000000|7",
            b"0|h|1500|3|1790000000|7|1790000000007|host:pid 7",
            b"0|q|-1|-1|1790000000|7||128",
            b"2|p5",
            b"3|60000|60601",
            b"+1790000000000001|+|1790000000|7",
            b"18446744073709551615|9223372036854775807|-9223372036854775808|18446744073709551615|1",
        ];
        latchwork_services::hostile::survives("answers of scripts", &samples, |bytes| {
            let answer = answer_of(bytes);
            let _ = attempt(&answer, &claim);
            let _ = released(&answer);
            let _ = goes_on(&answer, 3);
            let _ = renewals(&answer, &[&claim, &claim]);
            let _ = pairs(&answer).map(|pairs| pairs.len());
            if let Value::Array(parts) = &answer {
                let _ = parts.windows(2).filter_map(|two| time(&two[0], &two[1])).count();
            }
        });
    }

    #[test]
    fn hostile_values_of_keys_are_read_without_harm() {
        let id = "0".repeat(31) + "7";
        let samples = [
            format!("lw:x:+:{id}:1790000000000001:1790000000007|host:pid 7"),
            "lw:r:-:1790000000007".into(),
            "lw:p:-:77:5:2".into(),
            "lw:c:-:".into(),
            "lw:x:\u{e9}:zz".into(),
        ];
        let samples: Vec<&[u8]> = samples.iter().map(String::as_bytes).collect();
        latchwork_services::hostile::survives("values of keys", &samples, |bytes| {
            let _ = Held::read(bytes);
            let text = String::from_utf8_lossy(bytes);
            let _ = holder::read(&text);
            let _ = fields(&text).count();
        });
    }
}
