//! The connection to one server: a stream of messages, each after its length.

use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use latchwork_store::{BackendError, Io};
use latchwork_wire::tls::{is_tls, refusal, speaks_plain, speaks_tls};
use latchwork_wire::{Drive, dial};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::messages::{Hello, INTRODUCTION, Refusal, Request, Welcome, introduction};
use super::sasl;
use crate::config::{Endpoint, Login, Scheme, ZooKeeperConfig};
use crate::server::errors::{READ_ONLY, WORDS, denied, full, not_sent, unsent};

/// A server limits its messages to 1 MiB unless told otherwise; lists may be longer. As much is kept
/// of one message at most, and no more than has come of it.
const LONGEST: usize = 256 << 20;
/// What is said at first is short: this much is allocated for it before it has come.
const LONGEST_AT_FIRST: usize = 32 << 10;

/// Any stream of bytes.
pub(crate) trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

/// A connection, and what moves its bytes once it is served.
pub(crate) struct Way {
    pub(crate) wire: Box<dyn Wire>,
    pub(crate) drive: Arc<Drive>,
}

/// Why there is no connection.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// No server can be reached; this is what the first one has said.
    NotThere(io::Error),
    /// The server is not there, or does not serve now.
    Io(io::Error),
    /// It does not want us.
    Refused(BackendError),
    /// It does not want us now. The session goes on, and ends when its own time is over.
    NotNow(BackendError),
    /// The files for TLS cannot be used. They may be those of a rotation that is under way.
    Files(BackendError),
    /// It takes no more connections from this host.
    Full,
    /// It serves, and does not take up this session.
    NotTaken,
    /// It has given a session of this length, which was over before the login was.
    Expired(Duration),
}

impl Trouble {
    /// The error for what was asked of this server alone.
    pub(crate) fn error(self, server: &Endpoint) -> BackendError {
        match self {
            Self::Io(error) | Self::NotThere(error) => {
                unsent(&format!("{server}: {error}"), &error)
            }
            Self::Refused(error) | Self::NotNow(error) | Self::Files(error) => error,
            Self::Full | Self::NotTaken => full(server),
            Self::Expired(session) => not_sent(format!("{server}: {}", outlasted(session))),
        }
    }
}

pub(super) fn outlasted(session: Duration) -> String {
    format!("the login took longer than the session of {session:?} that the server gives")
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Says hello on a new connection to a server, and who we are.
pub(crate) async fn greet(
    stream: TcpStream,
    server: &Endpoint,
    config: &ZooKeeperConfig,
    hello: Hello<'_>,
    io: &Io,
) -> Result<(Way, Welcome), Trouble> {
    let begun = io.now();
    let said = async {
        let mut way = secure(stream, server, config, io).await?;
        way.wire.write_all(&hello.to_frame()).await?;
        way.wire.flush().await?;
        let welcome = read_frame(&mut way.wire).await?;
        Ok((way, welcome))
    };
    let (mut way, welcome) = match said.await {
        Err(Trouble::Io(error)) if is_closed(&error) => {
            return Err(why_closed(server, config, hello.session != 0, io).await);
        }
        said => said?,
    };
    let welcome = Welcome::read(&welcome).ok_or_else(malformed)?;
    if welcome.session == 0 {
        return Ok((way, welcome));
    }
    let login = async {
        let (logins, _) = config.login.current();
        match (&logins.now, config.scheme) {
            (Some(login), Scheme::Sasl) => sasl::prove(&mut way.wire, server, login).await?,
            (now, Scheme::Digest) => {
                for login in now.iter().chain(&logins.first) {
                    introduce(&mut way.wire, server, login).await?;
                }
            }
            (None, _) => {}
        }
        Ok(())
    };
    let session = Duration::from_millis(welcome.timeout_ms.max(0) as u64);
    match login.await {
        Err(Trouble::Io(error)) if is_closed(&error) && io.now().since(begun) >= session => {
            return Err(Trouble::Expired(session));
        }
        // Some servers refuse by going away. One that ends does so too, and then takes no connection.
        Err(Trouble::Io(error))
            if error.kind() == io::ErrorKind::UnexpectedEof && config.scheme == Scheme::Sasl =>
        {
            dial(server, io).await?;
            let closed = format!("{server} closed the connection during the login by SASL");
            return Err(Trouble::Refused(denied(closed)));
        }
        said => said?,
    }
    Ok((way, welcome))
}

async fn secure(
    stream: TcpStream,
    server: &Endpoint,
    config: &ZooKeeperConfig,
    io: &Io,
) -> Result<Way, Trouble> {
    let (socket, drive) = Drive::open(stream, io)?;
    let wire: Box<dyn Wire> = match &config.tls {
        Some(tls) => {
            let greeting = tls.greeting(&server.host).map_err(Trouble::Files)?;
            let refused = |error| match refusal(&error, &WORDS) {
                Some(refusal) => io::Error::other(refusal),
                None => error,
            };
            Box::new(greeting.greet(socket).await.map_err(refused)?)
        }
        None => Box::new(socket),
    };
    Ok(Way { wire, drive })
}

/// The answer to a four-letter word, by the way in that sessions have; nothing if the server closes
/// the connection.
pub(crate) async fn ask_word(
    server: &Endpoint,
    config: &ZooKeeperConfig,
    word: &str,
    io: &Io,
) -> Result<String, Trouble> {
    let stream = dial(server, io).await?;
    let mut way = secure(stream, server, config, io).await?;
    Ok(answer_to(word, &mut way.wire).await?)
}

/// The answer to a four-letter word; nothing if the server closes the connection.
async fn answer_to(
    word: &str,
    wire: &mut (impl AsyncRead + AsyncWrite + Unpin),
) -> io::Result<String> {
    let mut said = Vec::new();
    let asked = async {
        wire.write_all(word.as_bytes()).await?;
        wire.flush().await?;
        wire.take(LONGEST_AT_FIRST as u64).read_to_end(&mut said).await
    };
    match asked.await {
        Err(error) if !is_closed(&error) => Err(error),
        _ => Ok(String::from_utf8_lossy(&said).into_owned()),
    }
}

/// Whether the answer to `srvr` is that of a server which has lost its majority and goes on reading.
pub(crate) fn is_read_only(said: &str) -> bool {
    said.contains("READ-ONLY mode") || said.lines().any(|line| line == "Mode: read-only")
}

/// Whether the server has ended the connection.
pub(super) fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    [BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof].contains(&error.kind())
}

/// Why a server closed a connection without a word: it answers other questions in the one case, and
/// takes no connection in the other.
pub(super) async fn why_closed(
    server: &Endpoint,
    config: &ZooKeeperConfig,
    resumes: bool,
    io: &Io,
) -> Trouble {
    let said = match ask_word(server, config, "srvr", io).await {
        Err(Trouble::Io(error)) if is_closed(&error) && config.tls.is_some() => {
            let plain = async {
                let (mut socket, _drive) = Drive::open(dial(server, io).await?, io)?;
                answer_to("srvr", &mut socket).await
            };
            match plain.await {
                Ok(said) if !said.is_empty() => Err(io::Error::other(speaks_plain(&WORDS))),
                other => other,
            }
        }
        // As a plain port of a server that is full would do.
        Ok(said) if said.is_empty() && config.tls.is_none() && is_tls(server, io).await => {
            Err(io::Error::other(speaks_tls(&WORDS)))
        }
        Err(Trouble::Io(error)) if is_closed(&error) => {
            match config.tls.is_none() && is_tls(server, io).await {
                true => Err(io::Error::other(speaks_tls(&WORDS))),
                false => Ok(String::new()),
            }
        }
        Err(trouble) => return trouble,
        Ok(said) => Ok(said),
    };
    match said {
        Ok(said) if said.is_empty() => Trouble::Full,
        Ok(said) if said.contains("not currently serving") => {
            io::Error::other("it does not serve requests: no majority of the servers is running")
                .into()
        }
        Ok(said) if is_read_only(&said) => io::Error::other(READ_ONLY).into(),
        // It takes connections: either one has become free, or it is the session that it refuses.
        Ok(_) if resumes => Trouble::NotTaken,
        Ok(_) => Trouble::Full,
        Err(error) => error.into(),
    }
}

/// Ends a session that is not needed, and gives its connection back.
pub(crate) async fn close(mut way: Way) -> io::Result<()> {
    let wire = &mut way.wire;
    let mut request = Vec::new();
    Request::close().write(1, &mut request);
    let asked = async {
        wire.write_all(&request).await?;
        wire.flush().await
    };
    match asked.await {
        Err(error) if !is_closed(&error) => return Err(error),
        _ => {}
    }
    // The server closes the connection when the session has ended, if it has not ended before.
    while wire.read(&mut [0; 64]).await.is_ok_and(|n| n > 0) {}
    Ok(())
}

/// Says who we are by user and password.
async fn introduce(
    wire: &mut Box<dyn Wire>,
    server: &Endpoint,
    login: &Login,
) -> Result<(), Trouble> {
    wire.write_all(&introduction(&login.user, &login.password)).await?;
    wire.flush().await?;
    let answer = read_frame(wire).await?;
    let (header, _) = Header::read(&answer).ok_or_else(malformed)?;
    match header.number == INTRODUCTION && header.refusal.is_none() {
        true => Ok(()),
        false => Err(Trouble::Refused(denied(format!("{server} does not take user and password")))),
    }
}

/// Reads one message of what is said at first.
pub(crate) async fn read_frame(wire: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    wire.read_exact(&mut length).await?;
    let mut message = vec![0; length_of(length, LONGEST_AT_FIRST)?];
    wire.read_exact(&mut message).await?;
    Ok(message)
}

fn length_of(bytes: [u8; 4], longest: usize) -> io::Result<usize> {
    let length = usize::try_from(i32::from_be_bytes(bytes)).ok();
    length.filter(|length| *length <= longest).ok_or_else(malformed)
}

/// The first whole message of what has been read so far, and what it takes with its length.
pub(crate) fn first_frame(bytes: &[u8]) -> io::Result<Option<(&[u8], usize)>> {
    let Some((length, rest)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
    let length = length_of(*length, LONGEST)?;
    Ok(rest.get(..length).map(|message| (message, length + 4)))
}

pub(crate) fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "this is not ZooKeeper's protocol")
}

/// What each answer starts with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Header {
    pub(crate) number: i32,
    /// The last transaction that the server had seen.
    pub(crate) seen: i64,
    pub(crate) refusal: Option<Refusal>,
}

impl Header {
    pub(crate) fn read(message: &[u8]) -> Option<(Self, &[u8])> {
        let mut r = super::jute::Reader(message);
        let (number, seen, refusal) = (r.int()?, r.long()?, r.int()?);
        let refusal = (refusal != 0).then_some(Refusal(refusal));
        Some((Self { number, seen, refusal }, r.0))
    }
}
