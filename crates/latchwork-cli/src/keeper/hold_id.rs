//! Where a keeper listens, and what is said there: an abstract socket, which leaves no file behind.
//!
//! A request is a line, followed by a key if it is about one; the end of the stream ends it, but for a loan
//! or an upgrade, whose stream stays open. The answer is one line.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use latchwork_store::random_u128;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use rustix::process::Pid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// How long a keeper may take to answer, which asks its store for a release. It is longer than the store's limit.
const LIMIT: Duration = Duration::from_secs(20);

/// The longest request or answer.
pub(super) const LONGEST: u64 = 64 * 1024;

/// A hold of some shell or command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HoldId(String);

impl HoldId {
    pub(crate) fn random() -> Self {
        Self(format!("{:032x}", random_u128()))
    }

    /// An id from a command line or the environment; `None` if it is none.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let is_id = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
        is_id.then(|| Self(text.to_owned()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// The abstract name of its socket.
    fn name(&self) -> String {
        format!("latchwork-hold-{}", self.0)
    }

    /// Where the keeper of this hold listens.
    pub(super) fn listen(&self) -> io::Result<UnixListener> {
        UnixListener::bind_addr(&SocketAddr::from_abstract_name(self.name())?)
    }

    /// Whether its holder may still listen; that of another user is out of reach.
    pub(crate) fn goes_on(&self) -> bool {
        !self.connect().is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    }

    /// Never waits for somebody else: every user may listen at the address of a keeper that has ended.
    pub(super) fn connect(&self) -> io::Result<UnixStream> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let address = SocketAddrUnix::new_abstract_name(self.name().as_bytes())?;
        rustix::net::connect(&socket, &address)?;
        let stream = UnixStream::from(socket);
        match peer(&stream)? {
            Peer::Own(_) => Ok(stream),
            Peer::Foreign => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }

    /// Asks the keeper of this hold.
    ///
    /// # Errors
    ///
    /// `ConnectionRefused` if the keeper has ended; `PermissionDenied` if it belongs to another user or is in
    /// another PID namespace; `TimedOut` if it does not answer; what the system says otherwise.
    pub(crate) fn ask(&self, wish: &Wish) -> io::Result<Answer> {
        let mut stream = self.connect()?;
        // It judges by the number of this process, which it has no other way to learn.
        if let Peer::Own(None) = peer(&stream)? {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(wish.limit())?;
        stream.set_write_timeout(Some(LIMIT))?;
        let mut answer = || -> io::Result<Answer> {
            stream.write_all(wish.write().as_bytes())?;
            if !wish.stays_open() {
                stream.shutdown(Shutdown::Write)?;
            }
            let mut text = String::new();
            (&mut stream).take(LONGEST).read_to_string(&mut text)?;
            Answer::read(&text).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
        };
        answer().map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
            _ => error,
        })
    }

    /// Asks the holder how much of its hold of `key` remains; `None` if it does not hold that any more. Count the
    /// remaining time from before the call. The call has no limit of its own, and may be dropped.
    ///
    /// # Errors
    ///
    /// `ConnectionRefused` if the holder has ended, or is in another network namespace; what the system says
    /// otherwise.
    pub(crate) async fn terms(&self, key: &str) -> io::Result<Option<Terms>> {
        let mut stream = tokio::net::UnixStream::from_std(self.connect()?)?;
        let mut text = String::new();
        let wish = Wish::Held(key.to_owned()).write();
        let said = async {
            stream.write_all(wish.as_bytes()).await?;
            stream.shutdown().await?;
            (&mut stream).take(LONGEST).read_to_string(&mut text).await
        };
        let said = said.await;
        match Answer::read(&text) {
            Some(Answer::Held(terms)) => Ok(Some(terms)),
            Some(Answer::Unknown) => Ok(None),
            // It has ended meanwhile.
            _ if !self.goes_on() => Err(io::ErrorKind::ConnectionRefused.into()),
            _ => Err(said.err().unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into())),
        }
    }
}

/// The process at the other end of a socket. Every user can reach an abstract one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Peer {
    /// This process of the same user; `None` if it cannot be seen from here (another PID namespace).
    Own(Option<Pid>),
    /// A process of another user.
    Foreign,
}

/// The process on the other side.
#[expect(unsafe_code, reason = "rustix has no word for a process that cannot be seen from here")]
pub(super) fn peer(stream: &impl AsRawFd) -> io::Result<Peer> {
    let mut other = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = libc::socklen_t::try_from(size_of::<libc::ucred>()).unwrap_or(0);
    // SAFETY: both pointers are to what their types say, and the length is that of the first.
    let done = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut other).cast(),
            &raw mut length,
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(match other.uid == rustix::process::getuid().as_raw() {
        true => Peer::Own(Pid::from_raw(other.pid)),
        false => Peer::Foreign,
    })
}

/// What a holder says of a lock that it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) token: String,
    /// The validity that remains; more than nothing.
    pub(crate) left: Duration,
    pub(crate) ttl: Duration,
    /// Whether the hold is in doubt.
    pub(crate) is_suspect: bool,
}

/// How a wish for a loan begins; the length of the key follows.
const BORROW: &str = "borrow ";

/// How a wish for an upgrade begins: the process, the milliseconds to wait or a dash, and the length of the key follow.
const UPGRADE: &str = "upgrade ";

/// What a keeper is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Wish {
    /// To keep the locks for this process, which runs the asking one.
    Attach(Pid),
    /// To release its locks, if it keeps them for the process that runs the asking one or for the one named.
    Release(Option<Pid>),
    /// To release this one of its locks, in the same case.
    ReleaseKey(Option<Pid>, String),
    /// To report how much of its hold of this key remains.
    Held(String),
    /// To lend its hold of this key for as long as the stream is open.
    Borrow(String),
    /// To upgrade its hold of this key, if it is for the process that runs the asking one or for the one named. It may
    /// wait so long; the end of the stream withdraws it.
    Upgrade(Option<Pid>, Option<Duration>, String),
    /// To downgrade its hold of this key, in the same case.
    Downgrade(Option<Pid>, String),
}

impl Wish {
    pub(super) fn write(&self) -> String {
        let named = |pid: &Option<Pid>| pid.map(|pid| format!(" {pid}")).unwrap_or_default();
        match self {
            Self::Attach(pid) => format!("attach {pid}\n"),
            Self::Release(pid) => format!("release{}\n", named(pid)),
            Self::ReleaseKey(pid, key) => format!("release-key{}\n{key}", named(pid)),
            Self::Held(key) => format!("held\n{key}"),
            Self::Borrow(key) => format!("{BORROW}{}\n{key}", key.len()),
            Self::Upgrade(pid, wait, key) => {
                let pid = pid.map_or(0, |pid| pid.as_raw_nonzero().get());
                let wait = wait.map_or("-".to_owned(), |wait| wait.as_millis().to_string());
                format!("{UPGRADE}{pid} {wait} {}\n{key}", key.len())
            }
            Self::Downgrade(pid, key) => format!("downgrade{}\n{key}", named(pid)),
        }
    }

    /// Whether its stream stays open after it.
    fn stays_open(&self) -> bool {
        matches!(self, Self::Borrow(_) | Self::Upgrade(..))
    }

    /// How long its answer may take.
    fn limit(&self) -> Option<Duration> {
        match self {
            Self::Upgrade(_, wait, _) => wait.map(|wait| wait.saturating_add(LIMIT)),
            _ => Some(LIMIT),
        }
    }

    /// A wish for a loan or an upgrade, once all of it has come: it ends before its stream does.
    pub(super) fn read_open(bytes: &[u8]) -> Option<Self> {
        let (line, key) = std::str::from_utf8(bytes).ok()?.split_once('\n')?;
        let is_whole = |length: &str| length.parse() == Ok(key.len());
        if let Some(length) = line.strip_prefix(BORROW) {
            return is_whole(length).then(|| Self::Borrow(key.to_owned()));
        }
        let words: Vec<_> = line.strip_prefix(UPGRADE)?.split(' ').collect();
        let [pid, wait, length] = words[..] else { return None };
        let wait = match wait {
            "-" => None,
            millis => Some(Duration::from_millis(millis.parse().ok()?)),
        };
        let pid = Pid::from_raw(pid.parse().ok()?);
        is_whole(length).then(|| Self::Upgrade(pid, wait, key.to_owned()))
    }

    pub(super) fn read(text: &str) -> Option<Self> {
        let (line, key) = text.split_once('\n')?;
        let (word, pid) = match line.split_once(' ') {
            Some((word, pid)) => (word, Some(Pid::from_raw(pid.parse().ok()?)?)),
            None => (line, None),
        };
        match (word, pid, key) {
            ("attach", Some(pid), "") => Some(Self::Attach(pid)),
            ("release", pid, "") => Some(Self::Release(pid)),
            ("release-key", pid, key) => Some(Self::ReleaseKey(pid, key.to_owned())),
            ("held", None, key) => Some(Self::Held(key.to_owned())),
            ("downgrade", pid, key) => Some(Self::Downgrade(pid, key.to_owned())),
            _ => None,
        }
    }
}

/// What a keeper answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It keeps its locks for the shell that asked.
    Attached,
    /// It does not hold this key.
    Unknown,
    /// It keeps its locks for another process, if it has got one.
    Another(Option<Pid>),
    /// It has ended or refuses to, with this exit code and message for the user.
    Ended(u8, String),
    /// It holds the key.
    Held(Terms),
    /// It lends the key, with the lifeline of its session if there is one.
    Lent(bool),
    /// It holds the key in another mode now, with this token.
    Changed(String),
    /// It goes on as it was, for this kind of error, with this exit code and message for the user.
    Refused(String, u8, String),
}

impl Answer {
    pub(super) fn write(&self) -> String {
        match self {
            Self::Attached => "attached\n".to_owned(),
            Self::Unknown => "unknown\n".to_owned(),
            Self::Another(pid) => {
                format!("another {}\n", pid.map_or(0, |pid| pid.as_raw_nonzero().get()))
            }
            Self::Ended(code, message) => format!("{code} {message}\n"),
            Self::Held(Terms { token, left, ttl, is_suspect }) => {
                let (left, ttl) = (left.as_nanos(), ttl.as_nanos());
                format!("held {token} {left} {ttl} {}\n", u8::from(*is_suspect))
            }
            Self::Lent(has_lifeline) => format!("lent {}\n", u8::from(*has_lifeline)),
            Self::Changed(token) => format!("changed {token}\n"),
            Self::Refused(kind, code, message) => format!("refused {kind} {code} {message}\n"),
        }
    }

    pub(super) fn read(text: &str) -> Option<Self> {
        let truth = |text: &str| ["0", "1"].iter().position(|word| *word == text);
        match text.strip_suffix('\n')? {
            "attached" => Some(Self::Attached),
            "unknown" => Some(Self::Unknown),
            more => Some(match more.split_once(' ')? {
                ("another", pid) => Self::Another(Pid::from_raw(pid.parse().ok()?)),
                ("held", terms) => {
                    let words: Vec<_> = terms.split(' ').collect();
                    let [token, left, ttl, is_suspect] = words[..] else { return None };
                    let length = |text: &str| text.parse().ok().map(Duration::from_nanos);
                    Self::Held(Terms {
                        token: token.to_owned(),
                        left: length(left)?,
                        ttl: length(ttl)?,
                        is_suspect: truth(is_suspect)? == 1,
                    })
                }
                ("changed", token) => Self::Changed(token.to_owned()),
                ("refused", more) => {
                    let (kind, more) = more.split_once(' ')?;
                    let (code, message) = more.split_once(' ')?;
                    Self::Refused(kind.to_owned(), code.parse().ok()?, message.to_owned())
                }
                ("lent", has_lifeline) => Self::Lent(truth(has_lifeline)? == 1),
                (code, message) => Self::Ended(code.parse().ok()?, message.to_owned()),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_to_the_keeper_round_trips() {
        let pid = Pid::from_raw(71);
        let key = |text: &str| Wish::ReleaseKey(None, text.to_owned());
        for wish in [
            Wish::Attach(pid.unwrap()),
            Wish::Release(None),
            Wish::Release(pid),
            key("shop:x"),
            key("a\nb"),
            key(""),
            Wish::ReleaseKey(pid, "release 3\n".to_owned()),
            Wish::Held("a\nb".to_owned()),
            Wish::Downgrade(pid, "a\nb".to_owned()),
            Wish::Downgrade(None, "x".to_owned()),
        ] {
            assert_eq!(Wish::read(&wish.write()), Some(wish));
        }
        let key = || "a\n日".to_owned();
        let wait = Some(Duration::from_millis(1_500));
        for open in [
            Wish::Borrow(key()),
            Wish::Upgrade(None, None, key()),
            Wish::Upgrade(pid, wait, key()),
            Wish::Upgrade(None, Some(Duration::ZERO), key()),
        ] {
            let text = open.write();
            assert_eq!(Wish::read_open(text.as_bytes()), Some(open));
            for end in 0..text.len() {
                assert_eq!(Wish::read_open(&text.as_bytes()[..end]), None, "{end}");
            }
        }
        for nothing in
            ["", "\n", "release", "release\nx", "release x\n", "release 0\n", "attach\n", "end\n"]
        {
            assert_eq!(Wish::read(nothing), None, "{nothing:?}");
        }
        let ended = Answer::Ended(73, "lost \"x\"\nand y".into());
        let left = Duration::from_nanos(29_999_999_999);
        let ttl = Duration::from_secs(30);
        let held = |is_suspect| {
            Answer::Held(Terms { token: "9223372036854774784".to_owned(), left, ttl, is_suspect })
        };
        for answer in [
            Answer::Attached,
            Answer::Unknown,
            Answer::Another(pid),
            Answer::Another(None),
            ended,
            held(false),
            held(true),
            Answer::Lent(true),
            Answer::Lent(false),
            Answer::Changed("9223372036854774784".to_owned()),
            Answer::Refused("UpgradeConflict".to_owned(), 75, "a b\nand c".to_owned()),
        ] {
            assert_eq!(Answer::read(&answer.write()), Some(answer));
        }
        assert_eq!(Answer::read("attached"), None, "cut off");
    }

    #[test]
    fn an_id_of_no_keeper_answers_nothing() {
        let id = HoldId::random();
        assert_eq!(HoldId::read(id.as_str()), Some(id.clone()));
        assert_eq!(HoldId::read("x"), None);
        assert!(!id.goes_on());
        let refused = id.ask(&Wish::Release(None)).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }
}
