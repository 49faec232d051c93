//! Just enough of Redis' protocol: frames for the proxy, commands and answers for probes.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::{Error, Result};

/// Cuts a stream of bytes into whole messages, RESP2 and RESP3.
#[derive(Debug, Default)]
pub(crate) struct Framer {
    buffer: Vec<u8>,
    /// Where the message begins that is not complete yet.
    start: usize,
    /// Where its next element begins.
    next: usize,
    /// The lists around that element: elements still to come, and whether it is an attribute,
    /// which stands before a value and is none.
    open: Vec<(u64, bool)>,
    /// Whether a line without a type is a command, as it is towards a server.
    inline: bool,
}

/// The bytes are not Redis' protocol.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

impl Framer {
    pub(crate) fn of_commands() -> Self {
        Self { inline: true, ..Self::default() }
    }

    pub(crate) fn of_answers() -> Self {
        Self::default()
    }

    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.start);
        self.next -= self.start;
        self.start = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole message, if it is there.
    pub(crate) fn frame(&mut self) -> std::result::Result<Option<&[u8]>, Malformed> {
        loop {
            let Some(line) = line(&self.buffer[self.next..]) else { return Ok(None) };
            let mut end = self.next + line.len() + 2;
            let count = |text: &[u8]| {
                let text = std::str::from_utf8(text).map_err(|_| Malformed)?;
                text.parse::<i64>().map_err(|_| Malformed)
            };
            match line.first() {
                Some(b'*') if self.inline => self.list(count(&line[1..])?, false),
                Some(b'$') => {
                    if let Ok(length) = usize::try_from(count(&line[1..])?) {
                        end += length + 2;
                        if self.buffer.len() < end {
                            return Ok(None);
                        }
                    }
                }
                _ if self.inline && self.open.is_empty() => {}
                Some(b'=' | b'!') => {
                    end += usize::try_from(count(&line[1..])?).map_err(|_| Malformed)? + 2;
                    if self.buffer.len() < end {
                        return Ok(None);
                    }
                }
                Some(b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(') => {}
                Some(b'*' | b'~' | b'>') => self.list(count(&line[1..])?, false),
                Some(b'%') => self.list(count(&line[1..])? * 2, false),
                Some(b'|') => self.list(count(&line[1..])? * 2, true),
                _ => return Err(Malformed),
            }
            self.next = end;
            if self.element_ended() {
                let begin = std::mem::replace(&mut self.start, end);
                return Ok(Some(&self.buffer[begin..end]));
            }
        }
    }

    /// Enters a list. Its head counts as an element of it, so that an empty list is one that ends
    /// at once.
    fn list(&mut self, elements: i64, attribute: bool) {
        self.open.push((elements.max(0) as u64 + 1, attribute));
    }

    /// Counts an element down, and with the last one of a list the list. Tells whether the message
    /// is complete.
    fn element_ended(&mut self) -> bool {
        while let Some((left, attribute)) = self.open.last_mut() {
            *left -= 1;
            if *left > 0 {
                return false;
            }
            let attribute = *attribute;
            self.open.pop();
            if attribute {
                return false;
            }
        }
        true
    }
}

/// A line without its end, if the end is there.
fn line(bytes: &[u8]) -> Option<&[u8]> {
    let end = bytes.iter().position(|b| *b == b'\n')?;
    Some(bytes[..end].strip_suffix(b"\r").unwrap_or(&bytes[..end]))
}

/// The words of a command's frame; none for an empty line.
pub(crate) fn words(frame: &[u8]) -> Vec<&[u8]> {
    if frame.first() == Some(&b'*') {
        return strings(frame);
    }
    frame.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).collect()
}

/// The strings in a flat list up to the first element that is none.
pub(crate) fn strings(frame: &[u8]) -> Vec<&[u8]> {
    let mut found = Vec::new();
    let Some(head) = line(frame) else { return found };
    let mut rest = frame.get(head.len() + 2..).unwrap_or_default();
    while let Some(head) = line(rest) {
        let after = rest.get(head.len() + 2..).unwrap_or_default();
        let (string, next) = match head.first() {
            Some(b'$') => {
                let length = std::str::from_utf8(&head[1..]).ok().and_then(|n| n.parse().ok());
                let Some(length) = length else { break };
                let Some(string) = after.get(..length) else { break };
                (string, after.get(length + 2..).unwrap_or_default())
            }
            Some(b'+' | b':') => (&head[1..], after),
            _ => break,
        };
        found.push(string);
        rest = next;
    }
    found
}

/// An answer of a server to a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A string, or a status such as `OK`.
    Text(String),
    /// What the server refused, as it said it.
    Error(String),
    /// A number.
    Int(i64),
    /// No value.
    Nil,
    /// A list.
    List(Vec<Value>),
}

impl Value {
    /// The text of a status or string, or a number as text; empty for anything else.
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Int(n) => n.to_string(),
            _ => String::new(),
        }
    }

    /// The elements; none for anything but a list.
    pub fn list(&self) -> &[Value] {
        match self {
            Self::List(list) => list,
            _ => &[],
        }
    }

    /// In a list of names and values: the text of the value after this name.
    pub fn field(&self, name: &str) -> Option<String> {
        let mut pairs = self.list().chunks_exact(2);
        pairs.find(|pair| pair[0].text() == name).map(|pair| pair[1].text())
    }

    /// The value unless it is an error.
    ///
    /// # Errors
    ///
    /// What the server said.
    pub fn ok(self) -> Result<Self> {
        match self {
            Self::Error(text) => Err(Error::new(text)),
            value => Ok(value),
        }
    }

    /// Reads one value, and tells what comes after it.
    fn parse(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let head = line(bytes)?;
        let rest = bytes.get(head.len() + 2..)?;
        let text = String::from_utf8_lossy(head.get(1..)?).into_owned();
        Some(match head.first()? {
            b'+' => (Self::Text(text), rest),
            b'-' => (Self::Error(text), rest),
            b':' => (Self::Int(text.parse().ok()?), rest),
            b'$' => match usize::try_from(text.parse::<i64>().ok()?) {
                Ok(length) => {
                    let string = String::from_utf8_lossy(rest.get(..length)?).into_owned();
                    (Self::Text(string), rest.get(length + 2..)?)
                }
                Err(_) => (Self::Nil, rest),
            },
            b'*' => {
                let mut rest = rest;
                let Ok(count) = usize::try_from(text.parse::<i64>().ok()?) else {
                    return Some((Self::Nil, rest));
                };
                let mut list = Vec::new();
                for _ in 0..count {
                    let (value, after) = Self::parse(rest)?;
                    list.push(value);
                    rest = after;
                }
                (Self::List(list), rest)
            }
            _ => return None,
        })
    }
}

/// A connection for probes, through the socket file that every server here has.
#[derive(Debug)]
pub(crate) struct Probe {
    stream: UnixStream,
    answers: Framer,
}

impl Probe {
    pub(crate) fn connect(socket: &Path, limit: Duration) -> Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))?;
        Ok(Self { stream, answers: Framer::of_answers() })
    }

    pub(crate) fn ask<A: AsRef<[u8]>>(&mut self, command: &[A]) -> Result<Value> {
        let mut bytes = format!("*{}\r\n", command.len()).into_bytes();
        for word in command {
            let word = word.as_ref();
            bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            bytes.extend_from_slice(word);
            bytes.extend_from_slice(b"\r\n");
        }
        self.stream.write_all(&bytes)?;
        let mut piece = [0; 16 * 1024];
        loop {
            let frame = self.answers.frame().map_err(|_| Error::new("not an answer of Redis"))?;
            if let Some(frame) = frame {
                let value = Value::parse(frame).map(|(value, _)| value);
                return value.ok_or_else(|| Error::new("not an answer of RESP2"));
            }
            match self.stream.read(&mut piece)? {
                0 => return Err(Error::new("the server closed the connection")),
                n => self.answers.feed(&piece[..n]),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(mut framer: Framer, bytes: &[u8], piece: usize) -> Vec<String> {
        let mut found = Vec::new();
        for piece in bytes.chunks(piece) {
            framer.feed(piece);
            while let Some(frame) = framer.frame().expect("well formed") {
                found.push(String::from_utf8_lossy(frame).into_owned());
            }
        }
        found
    }

    #[test]
    fn answers_are_cut_the_same_whatever_the_pieces() {
        let whole = [
            "+OK\r\n",
            "-ERR no\r\n",
            ":12\r\n",
            "$5\r\na\r\nbc\r\n",
            "$-1\r\n",
            "*-1\r\n",
            "*0\r\n",
            "*2\r\n*1\r\n:1\r\n%1\r\n+a\r\n~2\r\n#t\r\n_\r\n",
            ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$0\r\n\r\n",
            "|1\r\n+ttl\r\n:3\r\n*1\r\n|0\r\n,1.5\r\n",
            "=7\r\ntxt:abc\r\n",
            "!3\r\nERR\r\n",
            "(123456789012345678901\r\n",
        ];
        let bytes = whole.concat();
        for piece in 1..bytes.len() {
            assert_eq!(frames(Framer::of_answers(), bytes.as_bytes(), piece), whole, "{piece}");
        }
    }

    #[test]
    fn commands_may_be_lists_or_lines() {
        let whole =
            ["*2\r\n$3\r\nGET\r\n$3\r\n\r\nk\r\n", "PING a\r\n", "\r\n", "*1\r\n$4\r\nPING\r\n"];
        let bytes = whole.concat();
        for piece in 1..bytes.len() {
            assert_eq!(frames(Framer::of_commands(), bytes.as_bytes(), piece), whole, "{piece}");
        }
        assert_eq!(words(whole[0].as_bytes()), [b"GET".as_slice(), b"\r\nk"]);
        assert_eq!(words(whole[1].as_bytes()), [b"PING".as_slice(), b"a"]);
        assert!(words(whole[2].as_bytes()).is_empty());
    }

    #[test]
    fn another_protocol_is_detected() {
        let mut framer = Framer::of_answers();
        framer.feed(b"HTTP/1.1 200 OK\r\n");
        assert_eq!(framer.frame(), Err(Malformed));
    }
}
