//! Parses the answers of servers and scripts.

use std::time::Duration;

use latchwork_store::kit::record::cannot_replace;
use latchwork_store::{
    Attempt, BackendError, BackendErrorKind, Blocked, Cause, Claim, Effect, FencingToken, Grant,
    Holder, Released, Renewal, Resized, Shape,
};
use redis::Value;

use crate::protocol::value::{self, KeyValue, read_holder};
use crate::server::errors::strange;
use crate::server::reply::{number, text, time};

/// The answer to a claim that leaves nothing behind, from the value that blocks it, which may have no ttl.
pub(crate) fn blocked_by(
    value: &[u8],
    is_endless: bool,
    claim: &Claim,
) -> Result<Attempt, BackendError> {
    let held = KeyValue::read(value);
    if let Some(shape) = held.shape().filter(|shape| *shape != claim.mode.shape()) {
        return Err(claim.mismatch(shape));
    }
    let (cause, holder) = match held {
        KeyValue::Alone { holder, .. } => (Cause::Held, Some(holder)),
        KeyValue::Readers { .. } | KeyValue::Permits { .. } => (Cause::Held, None),
        KeyValue::Closed { by } => (Cause::Linger, by),
        KeyValue::Foreign => (Cause::Foreign, Some(foreign(is_endless))),
        KeyValue::NoLock => return Err(no_lock(value)),
    };
    let blocked = Blocked::by(cause).with(|it| it.holder = holder);
    Ok(Attempt::Blocked(blocked))
}

/// How the holder of a key is shown that is no lock of Latchwork.
pub(crate) fn foreign(is_endless: bool) -> Holder {
    Holder::new(match is_endless {
        false => "a client of another kind",
        true => "a client of another kind without a ttl",
    })
}

/// The value of the key begins like a lock of Latchwork, and is none.
fn no_lock(value: &[u8]) -> BackendError {
    let message = format!(
        "the value of the key, {}, is not a lock: it begins like one (lw:) and does not go on like one",
        value::shown(value)
    );
    BackendError::new(BackendErrorKind::Mismatch, Effect::NotApplied, message).with_next_step(
        "use another name; or, if no client of a newer version uses this one, delete the key",
    )
}

/// The error of a script that has drawn no token, because all were given.
pub(crate) fn spent(answer: &Value) -> Option<BackendError> {
    let Value::Array(parts) = answer else { return None };
    let [Value::Int(4), counter, value] = &parts[..] else { return None };
    let message = format!(
        "all tokens were given: the counter {:?} is {}, and tokens end at {}",
        text(counter)?,
        text(value)?,
        FencingToken::LAST_GRANT
    );
    Some(BackendError::new(BackendErrorKind::Corrupt, Effect::NotApplied, message).with_next_step(
        "stop all holders, delete the counter, and reset the fences that have seen its tokens: \
         tokens then restart at the clock",
    ))
}

/// The namespace is guarded with other lengths than ours.
pub(crate) fn guarded_otherwise(max_ttl: Duration, quarantine: Duration) -> BackendError {
    BackendError::new(
        BackendErrorKind::Mismatch,
        Effect::NotApplied,
        format!(
            "max_ttl: the namespace is guarded with max_ttl {max_ttl:?} (quarantine \
             {quarantine:?}), and this client has other values"
        ),
    )
    .with_next_step(
        "give all clients of a namespace the same max_ttl and deposed; to change them, stop all \
         clients and run `latchwork init` with the new ones",
    )
}

/// The answer to a try by the whole script.
pub(crate) fn attempt(answer: &Value, claim: &Claim) -> Result<Attempt, BackendError> {
    let parsed = || {
        let Value::Array(parts) = answer else { return None };
        match parts.first()? {
            Value::Int(1) => {
                let [_, token, ttl, seconds, micros, ..] = &parts[..] else { return None };
                let (token, time) = (self::token(token)?, time(seconds, micros)?);
                let grant = Grant::new(token, Duration::from_millis(number(ttl)?));
                Some(Ok(Attempt::Granted(grant.with(|it| it.store_time = Some(time)))))
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
                    "u" => Cause::Upgrade,
                    "l" => Cause::Gone,
                    _ => return None,
                };
                let stored = Some(text(holder)?).filter(|stored| !stored.is_empty());
                let store_time = time(seconds, micros)?;
                Some(Ok(Attempt::Blocked(Blocked::by(cause).with(|it| {
                    it.retry_after = number(retry).map(Duration::from_millis);
                    it.ahead = number(ahead).and_then(|n| u32::try_from(n).ok());
                    it.holder = match cause {
                        Cause::Foreign => Some(foreign(stored.is_some())),
                        _ => stored.map(|stored| read_holder(&stored).0),
                    };
                    it.store_time = Some(store_time);
                }))))
            }
            Value::Int(2) => Some(Err(match text(parts.get(1)?)?.split_at_checked(1)? {
                ("b", "r") => cannot_replace("read", claim.mode),
                ("b", "w") => cannot_replace("write", claim.mode),
                ("b", _) => cannot_replace("exclusive", claim.mode),
                _ => claim.mismatch(shape(&text(parts.get(1)?)?)?),
            })),
            Value::Int(3) => {
                let length = |part| Some(Duration::from_millis(number(parts.get(part)?)?));
                Some(Err(guarded_otherwise(length(1)?, length(2)?)))
            }
            Value::Int(4) => Some(Err(spent(answer)?)),
            Value::Int(5) => match parts.get(1)? {
                Value::BulkString(value) => Some(Err(no_lock(value))),
                _ => None,
            },
            _ => None,
        }
    };
    parsed().unwrap_or_else(|| Err(strange(answer)))
}

/// The place in the queue from which the script has to be called again: it follows the answer itself.
pub(crate) fn goes_on(answer: &Value, proper: usize) -> Option<u64> {
    let Value::Array(parts) = answer else { return None };
    number(parts.get(proper)?)
}

/// When a claim joined the queue (us), as an answer says; -1 if it has no place there.
pub(crate) fn joined_at(answer: &Value) -> i64 {
    let Value::Array(parts) = answer else { return -1 };
    match (parts.get(8), &parts[..]) {
        (Some(Value::Int(joined)), _) => *joined,
        // The short script has put the claim at the end of the queue at the time in its answer.
        (None, [_, _, _, Value::Int(0..), seconds, micros, ..]) => {
            time(seconds, micros).map_or(-1, |it| it.as_micros() as i64)
        }
        _ => -1,
    }
}

/// Whether the next claims in the queue must still be warned, which an answer has at this index.
pub(crate) fn is_to_warn(answer: &Value, place: usize) -> bool {
    matches!(answer, Value::Array(parts) if parts.get(place) == Some(&Value::Int(1)))
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

/// The answer to a change of the limit.
pub(crate) fn resized(answer: &Value, claim: &Claim) -> Result<Resized, BackendError> {
    let parsed = || {
        let Value::Array(parts) = answer else { return None };
        match (parts.first()?, &parts[1..]) {
            (Value::Int(0), _) => Some(Ok(Resized::Unused)),
            (Value::Int(1), [.., from, held]) => Some(Ok(Resized::Yes {
                from: u32::try_from(number(from)?).ok()?,
                to: claim.mode.limit()?,
                held: number(held)?,
            })),
            (Value::Int(2), [.., used]) => Some(Err(claim.mismatch(shape(&text(used)?)?))),
            _ => None,
        }
    };
    parsed().unwrap_or_else(|| Err(strange(answer)))
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
            _ => Some(Renewal::held(claim.ttl, self::token(token)?, store_time)),
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

/// A token: zero is none. The store alone makes tokens, by the rule in `draw.lua`.
pub(crate) fn token(value: &Value) -> Option<u64> {
    number(value).filter(|token| *token > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::reply::pairs;

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
        let samples: [&[u8]; 9] = [
            b"1|1790000000000001|2000|1790000000|7",
            b"0|h|1500|3|1790000000|7|1790000000007|host:pid 7",
            b"0|q|-1|-1|1790000000|7||128",
            b"2|p5",
            b"3|60000|60601",
            b"4|lw:token|9007199254740991",
            b"5|lw:x:+:zz",
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
}
