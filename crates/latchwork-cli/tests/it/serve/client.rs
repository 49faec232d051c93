//! An HTTP client of a few lines: what a test sends is what the service reads.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use crate::common::SOON;

/// Where a service listens.
#[derive(Debug, Clone)]
pub(super) enum Address {
    Tcp(u16),
    Unix(PathBuf),
}

/// A connection to a service.
pub(super) trait Connection: Read + Write + Send {}
impl<T: Read + Write + Send> Connection for T {}

/// An answer that was read to its end.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    pub status: u16,
    pub head: String,
    pub text: String,
}

impl Answer {
    /// The body as JSON.
    #[track_caller]
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// A text of the body.
    #[track_caller]
    pub(super) fn get(&self, field: &str) -> String {
        match &self.json()[field] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        }
    }

    /// A number of the body.
    #[track_caller]
    pub(super) fn number(&self, field: &str) -> u64 {
        self.json()[field].as_u64().unwrap_or_else(|| panic!("{field}: {self:?}"))
    }

    /// Checks the status, and that every answer but a success says what went wrong, and what to do.
    #[track_caller]
    pub(super) fn is(&self, status: u16) -> &Self {
        assert_eq!(self.status, status, "{self:?}");
        if status >= 400 {
            let body = self.json();
            for field in ["error", "kind", "next_step"] {
                let text = body[field].as_str().unwrap_or_default();
                assert!(!text.is_empty(), "{field}: {self:?}");
            }
            assert!(body.get("key").is_some(), "{self:?}");
        }
        self
    }

    /// Checks the kind of an error.
    #[track_caller]
    pub(super) fn kind(&self, kind: &str) -> &Self {
        assert_eq!(self.get("kind"), kind, "{self:?}");
        self
    }

    /// Checks the next step of an error.
    #[track_caller]
    pub(super) fn step(&self, step: &str) -> &Self {
        assert_eq!(self.get("next_step"), step, "{self:?}");
        self
    }
}

impl Address {
    /// Connects.
    pub(super) fn connect(&self) -> Box<dyn Connection> {
        match self {
            Self::Tcp(port) => {
                let stream = TcpStream::connect(("127.0.0.1", *port)).unwrap();
                stream.set_read_timeout(Some(2 * SOON)).unwrap();
                Box::new(stream)
            }
            Self::Unix(path) => {
                let stream = UnixStream::connect(path).unwrap();
                stream.set_read_timeout(Some(2 * SOON)).unwrap();
                Box::new(stream)
            }
        }
    }

    /// Sends a request, whose answer is not read yet.
    pub(super) fn send(
        &self,
        line: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Box<dyn Connection> {
        let mut stream = self.connect();
        stream.write_all(request(line, headers, body).as_bytes()).unwrap();
        stream
    }

    /// Sends a request and reads its answer.
    #[track_caller]
    pub(super) fn ask(&self, line: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        read(self.send(line, headers, body)).unwrap()
    }
}

/// The bytes of a request: `line` is its method and path.
pub(super) fn request(line: &str, headers: &[(&str, &str)], body: &str) -> String {
    let mut text = format!("{line} HTTP/1.1\r\nConnection: close\r\n");
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        text += "Host: localhost\r\n";
    }
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    if !body.is_empty() {
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type")) {
            text += "Content-Type: application/json\r\n";
        }
        text += &format!("Content-Length: {}\r\n", body.len());
    }
    text + "\r\n" + body
}

/// Reads an answer with a length, to the end of the connection.
pub(super) fn read(stream: impl Read) -> io::Result<Answer> {
    let mut bytes = Vec::new();
    BufReader::new(stream).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let Some((head, text)) = text.split_once("\r\n\r\n") else {
        return Err(io::Error::other(format!("no answer: {text:?}")));
    };
    let status = head.split(' ').nth(1).and_then(|it| it.parse().ok()).unwrap_or_default();
    Ok(Answer { status, head: head.to_owned(), text: text.to_owned() })
}

/// A connection that is kept for several requests.
pub(super) struct Kept(BufReader<Box<dyn Connection>>);

impl Kept {
    pub(super) fn open(address: &Address) -> Self {
        Self(BufReader::new(address.connect()))
    }

    /// Writes bytes as they are.
    pub(super) fn write(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
    }

    /// Sends a request without a body, and reads its answer.
    #[track_caller]
    pub(super) fn ask(&mut self, line: &str) -> Answer {
        self.write(format!("{line} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes());
        self.answer().unwrap()
    }

    /// Reads one answer with a length; an error if the service has closed the connection.
    pub(super) fn answer(&mut self) -> io::Result<Answer> {
        let (mut head, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line)? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
            }
            if let Some(number) = line.to_lowercase().strip_prefix("content-length:") {
                length = number.trim().parse().map_err(io::Error::other)?;
            }
            if line == "\r\n" {
                break;
            }
            head += &line;
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body)?;
        let status = head.split(' ').nth(1).and_then(|it| it.parse().ok()).unwrap_or_default();
        Ok(Answer { status, head, text: String::from_utf8_lossy(&body).into_owned() })
    }
}

/// A stream of events: the word, and the data of each.
pub(super) struct Events(Box<dyn BufRead + Send>);

impl Events {
    /// Follows the events; returns when the service has begun to tell.
    pub(super) fn follow(address: &Address, path: &str, headers: &[(&str, &str)]) -> Self {
        let stream = address.send(&format!("GET {path}"), headers, "");
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        assert!(line.contains(" 200 "), "{line}");
        while line != "\r\n" {
            line.clear();
            reader.read_line(&mut line).unwrap();
        }
        Self(Box::new(reader))
    }

    /// The next event; `None` at the end of the stream.
    pub(super) fn next(&mut self) -> Option<(String, Value)> {
        let mut word = String::new();
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            if let Some(text) = line.strip_prefix("event: ") {
                word = text.trim().to_owned();
            }
            if let Some(data) = line.strip_prefix("data: ") {
                return Some((word, serde_json::from_str(data).unwrap()));
            }
        }
    }

    /// Skips to the next event of this word.
    #[track_caller]
    pub(super) fn until(&mut self, word: &str) -> Value {
        let mut seen = Vec::new();
        while let Some((found, data)) = self.next() {
            if found == word {
                return data;
            }
            seen.push((found, data));
        }
        panic!("ended without {word}: {seen:?}");
    }
}

/// How long something takes that must not wait for a ttl.
pub(super) const AT_ONCE: Duration = Duration::from_secs(5);
