//! Sockets that the service listens on, and the peers that connect.

use std::fmt;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener};

use super::socket::Socket;

/// So many connections may come at once and wait to be accepted; the system has a bound of its own, mostly 4,096. A
/// connection beyond it can look open to its client, and nobody ever answers it.
const BACKLOG: u32 = 4_096;

/// How many bytes of answers the system keeps for a client that does not read them.
const UNSENT: usize = 256 * 1024;

/// Who is at the other end of a connection.
#[derive(Debug, Clone, Default)]
pub(crate) enum Peer {
    /// A process of this machine that may open the socket.
    Unix,
    /// A host.
    Tcp(SocketAddr),
    /// Not known.
    #[default]
    Unknown,
}

impl Peer {
    pub(crate) fn is_unix(&self) -> bool {
        matches!(self, Self::Unix)
    }

    /// Whether it is a process of this machine, by its address.
    pub(crate) fn is_loopback(&self) -> bool {
        match self {
            Self::Tcp(address) => is_loopback(address.ip()),
            Self::Unix | Self::Unknown => false,
        }
    }

    /// The host, without the port.
    pub(crate) fn host(&self) -> String {
        match self {
            Self::Unix => "a local socket".to_owned(),
            Self::Tcp(address) => address.ip().to_canonical().to_string(),
            Self::Unknown => "an unknown host".to_owned(),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix => f.write_str("unix"),
            Self::Tcp(address) => address.fmt(f),
            Self::Unknown => f.write_str("unknown"),
        }
    }
}

/// Whether an address is this machine's own.
pub(crate) fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// A socket that accepts connections.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, Option<Bound>),
}

/// The file of a socket, removed when the service ends.
#[derive(Debug)]
pub(crate) struct Bound {
    path: PathBuf,
    inode: u64,
}

impl Drop for Bound {
    fn drop(&mut self) {
        // Another service may have taken its place.
        if fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Listener {
    /// Listens on an address.
    pub(crate) fn tcp(address: SocketAddr) -> io::Result<Self> {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        // After a restart, while the system still keeps the ends of old connections.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        Ok(Self::Tcp(socket.listen(BACKLOG)?))
    }

    /// Listens on a socket that only this user may open. The rights are set before anybody can connect.
    pub(crate) fn unix(path: &Path) -> io::Result<Self> {
        remove_stale(path)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
        let inode = fs::symlink_metadata(path)?.ino();
        rustix::net::listen(&socket, BACKLOG as i32)?;
        let listener = UnixListener::from_std(socket.into())?;
        Ok(Self::Unix(listener, Some(Bound { path: path.to_owned(), inode })))
    }

    pub(super) async fn accept(&self) -> io::Result<(Socket, Peer)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                // A peer that has gone already is noticed at the first read.
                let _ = watch_peer(&stream);
                Ok((Socket::Tcp(Arc::new(stream)), Peer::Tcp(address)))
            }
            Self::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                let _ = sockopt::set_socket_send_buffer_size(&stream, UNSENT);
                Ok((Socket::Unix(Arc::new(stream)), Peer::Unix))
            }
        }
    }

    /// The address, as it is written with `--listen`.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Tcp(listener) => {
                listener.local_addr().map_or_else(|_| "unknown".to_owned(), |it| it.to_string())
            }
            Self::Unix(_, Some(bound)) => format!("unix:{}", bound.path.display()),
            Self::Unix(_, None) => "unix (inherited)".to_owned(),
        }
    }

    /// Whether other hosts can reach it.
    pub(crate) fn is_remote(&self) -> bool {
        match self {
            Self::Tcp(listener) => listener.local_addr().is_ok_and(|it| !is_loopback(it.ip())),
            Self::Unix(..) => false,
        }
    }
}

/// A host that is gone without a word must not keep its place in a queue, and one that does not read must
/// not keep its buffers.
fn watch_peer(stream: &TcpStream) -> io::Result<()> {
    const SECOND: Duration = Duration::from_secs(1);
    stream.set_nodelay(true)?;
    sockopt::set_socket_send_buffer_size(stream, UNSENT)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, 10 * SECOND)?;
    sockopt::set_tcp_keepintvl(stream, 5 * SECOND)?;
    sockopt::set_tcp_keepcnt(stream, 4)?;
    sockopt::set_tcp_user_timeout(stream, 30_000)?;
    Ok(())
}

/// Removes the socket of a service that has ended without doing so.
fn remove_stale(path: &Path) -> io::Result<()> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !found.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "it exists and is no socket"));
    }
    match StdUnixStream::connect(path) {
        Ok(_) => Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens there")),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) => Err(error),
    }
}
