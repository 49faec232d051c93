//! Sockets that the service listens on.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener};

use super::socket::Socket;
use crate::domain::access::caller::{Peer, is_loopback};

/// The most connections that wait to be accepted; the system has its own limit, usually 4,096. A connection beyond it
/// can look open to its client although it is never answered.
const BACKLOG: u32 = 4_096;

/// The most bytes of answers that the system keeps for a client that does not read them.
const UNSENT: usize = 256 * 1024;

/// A socket that accepts connections.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, Option<SocketFile>),
}

/// The file of a socket, removed when the service ends.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl Drop for SocketFile {
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
        // After a restart, the system may still keep the ends of old connections.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        Ok(Self::Tcp(socket.listen(BACKLOG)?))
    }

    /// Listens on a socket that only this user may open. The rights are set before a client can connect.
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
        Ok(Self::Unix(listener, Some(SocketFile { path: path.to_owned(), inode })))
    }

    pub(super) async fn accept(&self) -> io::Result<(Socket, Peer)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                // If the peer has already closed the connection, the first read shows it.
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

/// Detects a host that has vanished, which must not keep its place in a queue, and one that does not read, which
/// must not keep its buffers.
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
