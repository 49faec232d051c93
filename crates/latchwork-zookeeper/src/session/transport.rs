//! The way to one server: a stream of messages, each behind its length.

use std::io;

use latchwork_core::BackendError;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use super::messages::{Hello, INTRODUCTION, Refusal, Welcome, introduction};
use super::{sasl, tls};
use crate::config::{Endpoint, Login, Scheme, ZooKeeperConfig};
use crate::errors::denied;

/// A server limits its messages to 1 MiB unless told otherwise; lists may be longer.
const LONGEST: usize = 256 << 20;

/// Any stream of bytes.
pub(crate) trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

/// Why there is no connection.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The server is not there, or does not serve now.
    Io(io::Error),
    /// It does not want us.
    Refused(BackendError),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Connects, says hello, and says who we are.
pub(crate) async fn greet(
    server: &Endpoint,
    config: &ZooKeeperConfig,
    hello: Hello<'_>,
) -> Result<(Box<dyn Wire>, Welcome), Trouble> {
    let stream = TcpStream::connect((&*server.host, server.port)).await?;
    // Requests that go together are written together; one that goes alone goes at once.
    stream.set_nodelay(true)?;
    let mut wire: Box<dyn Wire> = match &config.tls {
        Some(tls) => Box::new(tls::wrap(stream, server, tls).await?),
        None => Box::new(stream),
    };
    wire.write_all(&hello.to_frame()).await?;
    wire.flush().await?;
    let welcome = Welcome::read(&read_frame(&mut wire).await?).ok_or_else(malformed)?;
    let login = config.login.as_ref().filter(|_| welcome.session != 0);
    match (login, config.scheme) {
        (Some(login), Scheme::Sasl) => sasl::prove(&mut wire, server, login).await?,
        (Some(login), Scheme::Digest) => introduce(&mut wire, server, login).await?,
        (None, _) => {}
    }
    Ok((wire, welcome))
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

/// Reads one message.
pub(crate) async fn read_frame(wire: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    wire.read_exact(&mut length).await?;
    let mut message = vec![0; length_of(length)?];
    wire.read_exact(&mut message).await?;
    Ok(message)
}

fn length_of(bytes: [u8; 4]) -> io::Result<usize> {
    let length = usize::try_from(i32::from_be_bytes(bytes)).ok();
    length.filter(|length| *length <= LONGEST).ok_or_else(malformed)
}

/// The first whole message of what has been read so far, and what it takes with its length.
pub(crate) fn first_frame(bytes: &[u8]) -> io::Result<Option<(&[u8], usize)>> {
    let Some((length, rest)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
    let length = length_of(*length)?;
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
