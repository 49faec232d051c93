//! The addresses to listen on, and whether it is safe to do so.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;

use latchwork::{Error, ErrorKind};
use listenfd::ListenFd;

use super::listener::Listener;
use crate::domain::access::caller::is_loopback;
use crate::settings::{DEFAULT_ADDRESS, Listen, Settings};

fn failed(address: &str, error: &io::Error) -> Error {
    let step = match error.kind() {
        io::ErrorKind::AddrInUse => "choose another address, or end the process that uses this one",
        _ => "choose an address of this machine on which this user may listen",
    };
    Error::new(ErrorKind::Unreachable, format!("listen: cannot listen on {address}: {error}"))
        .with_next_step(step)
}

/// Opens the sockets: those that systemd hands over, or those of the settings.
pub(super) async fn open(settings: &Settings) -> Result<Vec<Listener>, Error> {
    let mut listeners = inherited(settings.require_token)?;
    let usual = [Listen::Tcp(DEFAULT_ADDRESS.to_owned())];
    let named = match (&settings.listen[..], listeners.is_empty()) {
        ([], true) => &usual[..],
        (named, _) => named,
    };
    for address in named {
        match address {
            Listen::Unix(path) => {
                let shown = format!("unix:{}", path.display());
                listeners.push(Listener::unix(path).map_err(|error| failed(&shown, &error))?);
            }
            Listen::Tcp(text) => {
                let found =
                    tokio::net::lookup_host(text).await.map_err(|error| failed(text, &error))?;
                // A name may have several addresses: all of them.
                for address in found.collect::<std::collections::BTreeSet<SocketAddr>>() {
                    // A socket is only opened if that is safe.
                    check(settings, &address)?;
                    let opened = Listener::tcp(address);
                    listeners.push(opened.map_err(|error| failed(text, &error))?);
                }
            }
        }
    }
    for listener in listeners.iter().filter(|it| it.is_remote()) {
        if let Listener::Tcp(socket) = listener
            && let Ok(address) = socket.local_addr()
        {
            check(settings, &address)?;
        }
    }
    Ok(listeners)
}

/// Refuses an address that other hosts can reach, unless the service is protected there.
fn check(settings: &Settings, address: &SocketAddr) -> Result<(), Error> {
    if is_loopback(address.ip()) {
        return Ok(());
    }
    let refused = |what: &str, step: &str| {
        let message = format!("listen: other hosts can reach {address}, and {what}");
        Err(Error::new(ErrorKind::Invalid, message).with_next_step(step))
    };
    if settings.tls.is_none() && !settings.insecure_plain_http {
        return refused(
            "there is no TLS, so anybody on the way can read and take the tokens",
            "give --tls-cert and --tls-key; or --insecure-plain-http, if something in front of the service encrypts",
        );
    }
    if settings.tokens.is_none() && !settings.insecure_no_tokens {
        return refused(
            "there are no tokens, so anybody may take locks",
            "give --tokens FILE; or --insecure-no-tokens, if nobody else can reach this network",
        );
    }
    Ok(())
}

/// The sockets of systemd (`LISTEN_FDS`).
fn inherited(require_token: bool) -> Result<Vec<Listener>, Error> {
    let mut found = ListenFd::from_env();
    let mut listeners = Vec::new();
    for index in 0..found.len() {
        let name = format!("inherited socket {index}");
        let listener = if let Ok(Some(socket)) = found.take_tcp_listener(index) {
            socket.set_nonblocking(true).map_err(|error| failed(&name, &error))?;
            let socket = tokio::net::TcpListener::from_std(socket);
            Listener::Tcp(socket.map_err(|error| failed(&name, &error))?)
        } else if let Ok(Some(socket)) = found.take_unix_listener(index) {
            if !require_token {
                check_rights(&name, &socket)?;
            }
            socket.set_nonblocking(true).map_err(|error| failed(&name, &error))?;
            let socket = tokio::net::UnixListener::from_std(socket);
            Listener::Unix(socket.map_err(|error| failed(&name, &error))?, None)
        } else {
            let message = format!("listen: {name} is no stream socket");
            return Err(Error::new(ErrorKind::Invalid, message)
                .with_next_step("name it by ListenStream in the socket unit"));
        };
        listeners.push(listener);
    }
    Ok(listeners)
}

/// Refuses a socket that every user of this machine may open: its clients may do all without a token.
fn check_rights(name: &str, socket: &UnixListener) -> Result<(), Error> {
    let refused = |why: &str| {
        let message = format!("listen: {name} {why}, and its clients have all rights");
        Err(Error::new(ErrorKind::Invalid, message).with_next_step(
            "set SocketMode=0660 and SocketGroup= in the socket unit; or give --tokens FILE and --require-token",
        ))
    };
    let address = socket.local_addr().map_err(|error| failed(name, &error))?;
    // An abstract socket has no path, and no rights.
    let Some(path) = address.as_pathname() else {
        return refused("has no path, so every user of this machine may open it");
    };
    // The descriptor itself does not have the mode of the file.
    match fs::metadata(path) {
        Ok(found) if found.mode() & 0o002 == 0 => Ok(()),
        Ok(_) => refused(&format!(
            "({}) is one that every user of this machine may open",
            path.display()
        )),
        Err(error) => {
            refused(&format!("({}) has rights that cannot be checked: {error}", path.display()))
        }
    }
}
