//! Answers in bytes: their ends and their values.

use std::io::{Error, ErrorKind};

use redis::{PushKind, RedisResult, Value};

/// The longest text that Redis sends, and longer than any answer here.
const LONGEST: usize = 512 * 1024 * 1024;
/// The longest line: an error with its text.
const LONGEST_LINE: usize = 64 * 1024;
/// The beginning of a message, after its first line. Measured: where the library reads messages, 8
/// processes that want one key make 0.93 of the handovers, with 1.12 times the processor time of the
/// clients (nine rounds in turns).
const MESSAGE: &[u8] = b"$7\r\nmessage\r\n";
/// How deep this reader follows nested arrays; the answers here have two levels.
const DEEPEST: usize = 4;

/// Searches for the end of an answer. When more bytes have come, it continues where it was.
pub(super) struct Scan {
    at: usize,
    /// How many texts, numbers and the like are still to come.
    left: usize,
}

impl Default for Scan {
    fn default() -> Self {
        Self { at: 0, left: 1 }
    }
}

impl Scan {
    /// The length of the first answer; `None` if it is not complete yet. Then the next call gets the same
    /// bytes, and more.
    ///
    /// # Errors
    ///
    /// If no answer begins so.
    pub(super) fn end_of_first(&mut self, bytes: &[u8]) -> Result<Option<usize>, Error> {
        while self.left > 0 {
            let Some((kind, line)) = first_line(&bytes[self.at..])? else { return Ok(None) };
            let after = self.at + line.len() + 3;
            let (length, more) = match kind {
                b'$' | b'!' | b'=' => (number(line)?, 0),
                b'*' | b'~' | b'>' => (None, number(line)?.unwrap_or(0)),
                b'%' => (None, 2 * number(line)?.unwrap_or(0)),
                // Attributes of the answer that follows.
                b'|' => (None, 2 * number(line)?.unwrap_or(0) + 1),
                _ => (None, 0),
            };
            let at = after + length.map_or(0, |length| length + 2);
            let left = (self.left - 1).checked_add(more).filter(|left| *left <= LONGEST);
            let Some(left) = left.filter(|_| at <= LONGEST) else {
                return Err(strange(format_args!("is longer than any")));
            };
            if bytes.len() < at {
                return Ok(None);
            }
            if length.is_some() && &bytes[at - 2..at] != b"\r\n" {
                return Err(strange(format_args!("has a text that is longer than it says")));
            }
            (self.at, self.left) = (at, left);
        }
        Ok(Some(self.at))
    }
}

/// The value of a complete answer.
///
/// # Errors
///
/// If the library cannot read it.
pub(super) fn read(frame: &[u8]) -> RedisResult<Value> {
    read_within(frame, DEEPEST)
}

/// Reads the answers that every lock needs; the library reads the others. Measured: for an array of
/// numbers the library takes six times as many instructions (callgrind).
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
            while at < frame.len()
                && let Some(length) = Scan::default().end_of_first(&frame[at..])?
            {
                members.push(read_within(&frame[at..at + length], depth - 1)?);
                at += length;
            }
            Value::Array(members)
        }
        b'>' if frame.get(at..).is_some_and(|rest| rest.starts_with(MESSAGE)) => {
            at += MESSAGE.len();
            let mut data = Vec::with_capacity(2);
            while at < frame.len()
                && let Some(length) = Scan::default().end_of_first(&frame[at..])?
            {
                data.push(read_within(&frame[at..at + length], 0)?);
                at += length;
            }
            Value::Push { kind: PushKind::Message, data }
        }
        _ => return redis::parse_redis_value(frame),
    })
}

/// The kind of the answer that begins here, and its first line without the line end; `None` if the line
/// is not complete.
fn first_line(bytes: &[u8]) -> Result<Option<(u8, &[u8])>, Error> {
    let Some((kind, rest)) = bytes.split_first() else { return Ok(None) };
    if !b"+-:_,#($!=*~>%|".contains(kind) {
        return Err(strange(format_args!("begins with {:?}", char::from(*kind))));
    }
    match rest.iter().take(LONGEST_LINE).position(|byte| *byte == b'\n') {
        None if rest.len() < LONGEST_LINE => Ok(None),
        None => Err(strange(format_args!("has a line without an end"))),
        Some(end) => match rest[..end].strip_suffix(b"\r") {
            Some(line) => Ok(Some((*kind, line))),
            None => Err(strange(format_args!("has a line that does not end with CRLF"))),
        },
    }
}

/// A length; `None` for -1, which means nil.
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
    Error::new(
        ErrorKind::InvalidData,
        format!("not a server of Redis or Valkey: its answer {what}"),
    )
}

#[cfg(test)]
mod tests {
    use latchwork_services::hostile::survives;

    use super::*;

    fn end_of(bytes: &[u8]) -> Result<Option<usize>, Error> {
        Scan::default().end_of_first(bytes)
    }

    const ANSWERS: [&str; 20] = [
        ">3\r\n$8\r\nsmessage\r\n$1\r\nc\r\n$1\r\nm\r\n",
        ">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n",
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
            assert_eq!(end_of(&bytes).unwrap(), Some(answer.len()), "{answer:?}");
            for cut in 0..answer.len() {
                assert_eq!(end_of(&bytes[..cut]).unwrap(), None, "{answer:?} up to {cut}");
            }
            let (ours, theirs) =
                (read(answer.as_bytes()), redis::parse_redis_value(answer.as_bytes()));
            assert_eq!(ours.unwrap(), theirs.unwrap(), "{answer:?}");
        }
    }

    #[test]
    fn an_answer_in_pieces_is_looked_through_once() {
        let answer = ANSWERS.concat();
        let answer = format!("*{}\r\n{answer}", ANSWERS.len());
        let mut scan = Scan::default();
        for end in 0..answer.len() {
            let (was_at, was_left) = (scan.at, scan.left);
            assert_eq!(scan.end_of_first(&answer.as_bytes()[..end]).unwrap(), None);
            assert!(scan.at >= was_at && scan.at <= end, "{was_left}");
        }
        assert!(scan.at > answer.len() / 2, "it goes on where it was");
        assert_eq!(scan.end_of_first(answer.as_bytes()).unwrap(), Some(answer.len()));
    }

    #[test]
    fn an_attribute_is_part_of_its_answer() {
        let answer = b"|1\r\n+ttl\r\n:3600\r\n:7\r\n";
        assert_eq!(end_of(answer).unwrap(), Some(answer.len()));
        assert!(read(answer).is_ok());
    }

    #[test]
    fn a_malformed_answer_is_refused_early() {
        for bytes in ["HTTP/1.1 400\r\n", "\r\n", "x", "+OK\n", "$-2\r\n", "$x\r\n", "$1\r\nxx\r\n"]
        {
            assert!(end_of(bytes.as_bytes()).is_err(), "{bytes:?}");
        }
        assert!(end_of(b"*99999999999\r\n").is_err());
        assert!(end_of(&[b'+'; LONGEST_LINE + 1]).is_err());
        assert!(end_of("%500000000\r\n".repeat(9).as_bytes()).is_err());
    }

    #[test]
    fn hostile_answers_are_refused_or_read() {
        let samples: Vec<&[u8]> = ANSWERS.iter().map(|answer| answer.as_bytes()).collect();
        survives("answers of a server", &samples, |bytes| {
            if let Ok(Some(end)) = end_of(bytes) {
                let _ = read(&bytes[..end]);
            }
        });
    }
}
