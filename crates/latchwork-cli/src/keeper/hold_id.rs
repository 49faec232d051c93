//! Where a keeper listens, and what is said there: an abstract socket, which leaves no file behind.

use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use latchwork::store::random_u128;
use rustix::net::sockopt::socket_peercred;

/// The variable with the ids of the holds of a shell, one a line.
pub(crate) const VARIABLE: &str = "LATCHWORK_HOLD";

/// How long the other side may take to write a line.
const LIMIT: Duration = Duration::from_secs(10);

/// The longest line that is said.
const LONGEST: u64 = 64 * 1024;

/// A hold of some shell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HoldId(String);

impl HoldId {
    pub(crate) fn random() -> Self {
        Self(format!("{:032x}", random_u128()))
    }

    /// The holds of the shell around this process, by its environment.
    pub(crate) fn of_shell() -> Vec<Self> {
        let text = std::env::var(VARIABLE).unwrap_or_default();
        let is_id = |line: &&str| line.len() == 32 && line.bytes().all(|b| b.is_ascii_hexdigit());
        text.lines().filter(is_id).map(|line| Self(line.to_owned())).collect()
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    fn address(&self) -> io::Result<SocketAddr> {
        SocketAddr::from_abstract_name(format!("latchwork-hold-{}", self.0))
    }

    /// Where the keeper of this hold listens.
    pub(crate) fn listen(&self) -> io::Result<UnixListener> {
        UnixListener::bind_addr(&self.address()?)
    }

    /// Asks the keeper to release its locks, if one of them has this key or no key is named.
    ///
    /// # Errors
    ///
    /// `ConnectionRefused` if the keeper has ended; what the system says otherwise.
    pub(crate) fn ask(&self, key: Option<&str>) -> io::Result<Answer> {
        let mut stream = UnixStream::connect_addr(&self.address()?)?;
        if !is_ours(&stream) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        stream.write_all(key.unwrap_or_default().as_bytes())?;
        stream.shutdown(std::net::Shutdown::Write)?;
        let mut text = String::new();
        stream.take(LONGEST).read_to_string(&mut text)?;
        Answer::read(&text).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

/// What a keeper answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It does not hold this key.
    Another,
    /// It has ended, with this exit code and message for the user.
    Ended(u8, String),
}

impl Answer {
    pub(crate) fn write(&self, stream: &mut UnixStream) -> io::Result<()> {
        match self {
            Self::Another => stream.write_all(b"another\n"),
            Self::Ended(code, message) => {
                stream.write_all(format!("{code} {message}\n").as_bytes())
            }
        }
    }

    fn read(text: &str) -> Option<Self> {
        match text.strip_suffix('\n')? {
            "another" => Some(Self::Another),
            ended => {
                let (code, message) = ended.split_once(' ')?;
                Some(Self::Ended(code.parse().ok()?, message.to_owned()))
            }
        }
    }
}

/// Reads which key a request asks for; `None` if somebody else's process asks, or says nothing in time.
pub(crate) fn request(stream: &mut UnixStream) -> Option<String> {
    if !is_ours(stream) {
        return None;
    }
    stream.set_nonblocking(false).ok()?;
    stream.set_read_timeout(Some(LIMIT)).ok()?;
    stream.set_write_timeout(Some(LIMIT)).ok()?;
    let mut key = String::new();
    stream.take(LONGEST).read_to_string(&mut key).ok()?;
    Some(key)
}

/// Whether a process of the same user is on the other side. Every user can reach an abstract socket.
fn is_ours(stream: &UnixStream) -> bool {
    let mine = rustix::process::getuid();
    socket_peercred(stream).is_ok_and(|other| other.uid == mine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the other side of a test")]
    fn a_request_reaches_the_keeper_and_its_answer_comes_back() {
        let id = HoldId::random();
        let listener = id.listen().unwrap();
        for answer in [Answer::Another, Answer::Ended(73, "lost \"x\"".into())] {
            let (id, said) = (id.clone(), answer.clone());
            let asking = std::thread::spawn(move || id.ask(Some("shop:x")).unwrap());
            let mut stream = listener.accept().unwrap().0;
            assert_eq!(request(&mut stream).as_deref(), Some("shop:x"));
            said.write(&mut stream).unwrap();
            drop(stream);
            assert_eq!(asking.join().unwrap(), answer);
        }
        drop(listener);
        assert_eq!(id.ask(None).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
}
