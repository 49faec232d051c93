//! Answers in bytes: where one ends, and what it says.

use std::io::{Error, ErrorKind};

use redis::{RedisResult, Value};

/// The longest text that Redis sends, and more members than any answer here has.
const LONGEST: usize = 512 * 1024 * 1024;
/// Answers here have arrays in an array, and no deeper ones.
const DEEPEST: usize = 4;

/// How many of these bytes the first answer has; `None` if it is not whole yet.
///
/// # Errors
///
/// If no answer begins so.
pub(super) fn end_of_first(bytes: &[u8]) -> Result<Option<usize>, Error> {
    let (mut at, mut left) = (0, 1_usize);
    while left > 0 {
        let rest = &bytes[at..];
        let Some((kind, line)) = first_line(rest)? else { return Ok(None) };
        let after = at + line.len() + 3;
        left -= 1;
        let (length, more) = match kind {
            b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => (None, 0),
            b'$' | b'!' | b'=' => (number(line)?, 0),
            b'*' | b'~' | b'>' => (None, number(line)?.unwrap_or(0)),
            b'%' => (None, 2 * number(line)?.unwrap_or(0)),
            // What is said of the answer that follows.
            b'|' => (None, 2 * number(line)?.unwrap_or(0) + 1),
            _ => return Err(strange(format_args!("begins with {:?}", char::from(kind)))),
        };
        left += more;
        at = after + length.map_or(0, |length| length + 2);
        if bytes.len() < at {
            return Ok(None);
        }
        if length.is_some() && &bytes[at - 2..at] != b"\r\n" {
            return Err(strange(format_args!("has a text that is longer than it says")));
        }
    }
    Ok(Some(at))
}

/// What a whole answer says.
///
/// # Errors
///
/// If the library cannot read it.
pub(super) fn read(frame: &[u8]) -> RedisResult<Value> {
    read_within(frame, DEEPEST)
}

/// Reads what every lock reads; the library reads the rest. Measured: for an array of numbers it takes
/// six times as many instructions (callgrind).
fn read_within(frame: &[u8], depth: usize) -> RedisResult<Value> {
    let Some((kind, line)) = first_line(frame)? else { return redis::parse_redis_value(frame) };
    let mut at = line.len() + 3;
    Ok(match kind {
        b'_' => Value::Nil,
        b'$' | b'*' if line == b"-1" => Value::Nil,
        b'$' => Value::BulkString(frame[at..frame.len() - 2].to_vec()),
        b':' => match str::from_utf8(line).ok().and_then(|line| line.parse().ok()) {
            Some(number) => Value::Int(number),
            None => return redis::parse_redis_value(frame),
        },
        b'*' if depth > 0 => {
            let mut members = Vec::new();
            while let Some(length) = end_of_first(&frame[at..])?.filter(|_| at < frame.len()) {
                members.push(read_within(&frame[at..at + length], depth - 1)?);
                at += length;
            }
            Value::Array(members)
        }
        _ => return redis::parse_redis_value(frame),
    })
}

/// The kind of what begins here, and its first line without the end; `None` if that is still to come.
fn first_line(bytes: &[u8]) -> Result<Option<(u8, &[u8])>, Error> {
    let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else { return Ok(None) };
    match bytes[..end].strip_suffix(b"\r").and_then(<[u8]>::split_first) {
        Some((kind, line)) => Ok(Some((*kind, line))),
        None => Err(strange(format_args!("has no kind"))),
    }
}

/// A length; `None` for the one that stands for nothing.
fn number(line: &[u8]) -> Result<Option<usize>, Error> {
    if line == b"-1" {
        return Ok(None);
    }
    let number = str::from_utf8(line).ok().and_then(|line| line.parse::<usize>().ok());
    match number.filter(|number| *number <= LONGEST) {
        Some(number) => Ok(Some(number)),
        None => Err(strange(format_args!("has the length {:?}", String::from_utf8_lossy(line)))),
    }
}

fn strange(what: std::fmt::Arguments<'_>) -> Error {
    Error::new(ErrorKind::InvalidData, format!("the server does not speak Redis: an answer {what}"))
}

#[cfg(test)]
mod tests {
    use latchwork_services::hostile::survives;

    use super::*;

    const ANSWERS: [&str; 18] = [
        "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*2\r\n_\r\n-ERR x\r\n",
        "*3\r\n+OK\r\n-ERR x\r\n$1\r\nx\r\n",
        "+OK\r\n",
        "+PONG\r\n",
        ":-7\r\n",
        "$-1\r\n",
        "_\r\n",
        "$0\r\n\r\n",
        "$4\r\na\r\nb\r\n",
        "*-1\r\n",
        "*0\r\n",
        "*2\r\n*1\r\n:1\r\n$1\r\nx\r\n",
        "%1\r\n+proto\r\n:3\r\n",
        "~2\r\n#t\r\n,1.5\r\n",
        "=7\r\ntxt:abc\r\n",
        "-MOVED 3999 127.0.0.1:6381\r\n",
        "!5\r\nERR x\r\n",
        ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n",
    ];

    #[test]
    fn an_answer_ends_where_the_library_ends_it_and_says_the_same() {
        for answer in ANSWERS {
            let bytes = [answer, ":1\r\n"].concat().into_bytes();
            assert_eq!(end_of_first(&bytes).unwrap(), Some(answer.len()), "{answer:?}");
            for cut in 0..answer.len() {
                assert_eq!(end_of_first(&bytes[..cut]).unwrap(), None, "{answer:?} up to {cut}");
            }
            let (ours, theirs) =
                (read(answer.as_bytes()), redis::parse_redis_value(answer.as_bytes()));
            assert_eq!(ours.unwrap(), theirs.unwrap(), "{answer:?}");
        }
    }

    #[test]
    fn what_is_said_of_an_answer_belongs_to_it() {
        let answer = b"|1\r\n+ttl\r\n:3600\r\n:7\r\n";
        assert_eq!(end_of_first(answer).unwrap(), Some(answer.len()));
        assert!(read(answer).is_ok());
    }

    #[test]
    fn what_is_no_answer_is_refused_as_soon_as_that_is_seen() {
        for bytes in ["HTTP/1.1 400\r\n", "\r\n", "+OK\n", "$-2\r\n", "$x\r\n", "$1\r\nxx\r\n"] {
            assert!(end_of_first(bytes.as_bytes()).is_err(), "{bytes:?}");
        }
        assert!(end_of_first(b"*99999999999\r\n").is_err());
    }

    #[test]
    fn hostile_answers_are_refused_or_read() {
        let samples: Vec<&[u8]> = ANSWERS.iter().map(|answer| answer.as_bytes()).collect();
        survives("answers of a server", &samples, |bytes| {
            if let Ok(Some(end)) = end_of_first(bytes) {
                let _ = read(&bytes[..end]);
            }
        });
    }
}
