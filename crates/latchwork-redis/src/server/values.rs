//! Answers for the tests of parsers, built from bytes as a server sends them.
//!
//! The library's decoder allocates as many values as an array announces, up to a limit; these tests
//! measure only what Latchwork does with the answer.

use redis::Value;

const DEEPEST: usize = 8;

/// The answer in these bytes, if there is a whole one.
pub(crate) fn value_of(bytes: &[u8]) -> Option<Value> {
    next(&mut &bytes[..], DEEPEST)
}

fn next(rest: &mut &[u8], depth: usize) -> Option<Value> {
    let end = rest.windows(2).position(|two| two == b"\r\n")?;
    let (line, after) = (&rest[..end], &rest[end + 2..]);
    *rest = after;
    let (kind, word) = line.split_first()?;
    let number = || str::from_utf8(word).ok()?.parse::<i64>().ok();
    Some(match kind {
        b':' => Value::Int(number()?),
        b'+' => Value::SimpleString(String::from_utf8_lossy(word).into_owned()),
        b'_' => Value::Nil,
        b'$' => {
            let length = usize::try_from(number()?).ok()?;
            let text = rest.get(..length)?;
            *rest = rest.get(length.checked_add(2)?..)?;
            Value::BulkString(text.to_vec())
        }
        b'*' if depth > 0 => {
            let mut values = Vec::new();
            for _ in 0..number()? {
                values.push(next(rest, depth - 1)?);
            }
            Value::Array(values)
        }
        _ => return None,
    })
}
