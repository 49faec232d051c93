//! Opens a connection: address, user, TLS, and the meaning of failures.

use std::sync::Arc;
use std::time::Duration;

use latchwork_store::{BackendError, BackendErrorKind, Effect, Error, Io};
use latchwork_wire::tls;
use latchwork_wire::{Drive, dial, note_unanswered};
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{Cmd, RedisResult, Value};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::config::{Credentials, Endpoint};
use crate::server::access::Access;
use crate::server::connection::{Connection, OnPush, command};
use crate::server::errors::{FULL_STEP, failure, is_full};

/// A connection that is silent for so long is probed by the system.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// How long a server may take to show that it speaks without TLS.
const PLAIN_LIMIT: Duration = Duration::from_millis(500);
/// How long a connection may take to be made, once the name is looked up.
pub(crate) const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// How a server says that it has no database of this number.
const NO_DATABASE: &str = "DB index";

/// The versions of the protocol. In the newer one, messages arrive on the same connection as answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Resp3,
    Resp2,
}

/// The first commands on a connection.
fn greetings(credentials: &Credentials, database: i64, protocol: Protocol) -> Vec<Cmd> {
    let Credentials { user, password } = credentials;
    let mut greetings = Vec::new();
    match (protocol, user, password) {
        (Protocol::Resp3, _, None) => greetings.push(command(&["HELLO", "3"])),
        (Protocol::Resp3, _, Some(password)) => {
            greetings.push(command(&["HELLO", "3", "AUTH", credentials.user(), password]));
        }
        (Protocol::Resp2, Some(user), Some(password)) => {
            greetings.push(command(&["AUTH", user, password]));
        }
        (Protocol::Resp2, None, Some(password)) => greetings.push(command(&["AUTH", password])),
        (Protocol::Resp2, _, None) => {}
    }
    if database != 0 {
        greetings.push(command(&["SELECT", &database.to_string()]));
    }
    greetings
}

/// Makes the connection itself, and says which version of the login it has. If the server refuses the login, a newer one of
/// the source is tried.
pub(crate) async fn connect(
    endpoint: &Endpoint,
    access: &Access,
    protocol: Protocol,
    on_push: OnPush,
    io: &Io,
) -> Result<(Connection, Arc<Drive>, u64), NotConnected> {
    let (login, seen) = access.credentials.current();
    let refusal = match connect_as(&login, endpoint, access, protocol, on_push.clone(), io).await {
        Err(NotConnected::By(error)) if is_denied(&error) => error,
        made => return made.map(|(conn, drive)| (conn, drive, seen)),
    };
    match access.credentials.after_refusal(seen, io).await {
        Ok(Some((newer, version))) => {
            let made = connect_as(&newer, endpoint, access, protocol, on_push, io).await;
            made.map(|(conn, drive)| (conn, drive, version))
        }
        Ok(None) => Err(NotConnected::By(refusal)),
        Err(problem) => Err(NotConnected::Stale(refusal, problem)),
    }
}

async fn connect_as(
    login: &Credentials,
    endpoint: &Endpoint,
    access: &Access,
    protocol: Protocol,
    on_push: OnPush,
    io: &Io,
) -> Result<(Connection, Arc<Drive>), NotConnected> {
    let endpoint = access.way_to(endpoint);
    let greeting = access.tls.as_ref().map(|tls| tls.greeting(&endpoint.host)).transpose();
    let greeting = greeting.map_err(NotConnected::Refused)?;
    let made = async {
        let stream = dial(endpoint, io).await?;
        if !endpoint.is_socket() {
            let keepalive = TcpKeepalive::new().with_time(KEEPALIVE);
            SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
        }
        let (socket, drive) = Drive::open(stream, io)?;
        let greetings = greetings(login, access.database, protocol);
        let conn = match greeting {
            None => introduce(&greetings, socket, on_push, &drive).await?,
            Some(greeting) => {
                introduce(&greetings, greeting.greet(socket).await?, on_push, &drive).await?
            }
        };
        Ok((conn, drive))
    };
    let late = || {
        note_unanswered(endpoint, io);
        Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into())
    };
    let made = io.within(CONNECT_LIMIT, made).await;
    made.unwrap_or_else(late).map_err(NotConnected::By)
}

/// Introduces itself to the server, and gives the connection to its drive.
async fn introduce(
    greetings: &[Cmd],
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    on_push: OnPush,
    drive: &Arc<Drive>,
) -> RedisResult<Connection> {
    let (connection, mut moving) = Connection::new(stream, on_push);
    if !greetings.is_empty() {
        greet(greetings, &connection, &mut moving).await?;
    }
    drive.start(moving.introduced());
    Ok(connection)
}

async fn greet(
    greetings: &[Cmd],
    connection: &Connection,
    moving: &mut (impl Future<Output = ()> + Unpin),
) -> RedisResult<()> {
    let commands: Vec<&Cmd> = greetings.iter().collect();
    let mut answers = std::pin::pin!(connection.send_together(&commands, 0));
    let answers = tokio::select! {
        biased;
        answers = &mut answers => answers?,
        // The server may have answered before it closed the connection.
        () = &mut *moving => answers.await?,
    };
    let says_who =
        |greeting: &Cmd| greeting.args_iter().next() == Some(redis::Arg::Simple(b"AUTH"));
    for (greeting, answer) in greetings.iter().zip(answers) {
        let Value::ServerError(error) = answer else { continue };
        let error = redis::RedisError::from(error);
        // Before users had names there was a password alone.
        if says_who(greeting)
            && greeting.args_iter().len() == 3
            && error.detail().is_some_and(|said| said.contains("number of arguments"))
            && let Some(redis::Arg::Simple(password)) = greeting.args_iter().nth(2)
        {
            let mut again = greetings.to_vec();
            again[0] = redis::cmd("AUTH");
            again[0].arg(password);
            return Box::pin(greet(&again, connection, moving)).await;
        }
        // The server's own words may repeat the password.
        let is_secret = says_who(greeting) || !refuses_hello(&error) && repeats(greeting, &error);
        return Err(match is_secret {
            true => {
                (redis::ErrorKind::AuthenticationFailed, "the server rejected the password").into()
            }
            false => error,
        });
    }
    Ok(())
}

/// Whether an error repeats the password of `HELLO 3 AUTH user password`.
fn repeats(hello: &Cmd, error: &redis::RedisError) -> bool {
    let Some(redis::Arg::Simple(password)) = hello.args_iter().nth(4) else { return false };
    let password = String::from_utf8_lossy(password);
    !password.is_empty() && error.to_string().contains(&*password)
}

/// Why there is no connection.
pub(crate) enum NotConnected {
    /// The address asks for something that cannot be used.
    Refused(BackendError),
    By(redis::RedisError),
    /// The server refused the login, and no other one could be read.
    Stale(redis::RedisError, Error),
}

/// Whether the other side does not know `HELLO`.
pub(crate) fn refuses_hello(error: &redis::RedisError) -> bool {
    let text = error.to_string();
    let auth = ["WRONGPASS", "NOAUTH", "NOPERM"].iter().any(|code| text.contains(code));
    !auth
        && (text.contains("HELLO") || text.contains("unknown command") || text.contains("NOPROTO"))
}

/// The names of the parts of TLS in an address.
pub(crate) const WORDS: tls::OptionNames = tls::OptionNames {
    authority: "ca=/path",
    client: "cert=/path and key=/path",
    plain: "redis:// (valkey://)",
    secure: "rediss:// (valkeys://)",
};

/// As `unreachable`, for a server that may speak TLS to a client that does not.
pub(crate) async fn explained(
    endpoint: &Endpoint,
    access: &Access,
    error: &redis::RedisError,
    io: &Io,
) -> BackendError {
    let at = access.way_to(endpoint);
    // It has closed the connection, or sent something else than the protocol.
    let is_odd = error.code().is_none() && !error.is_connection_refusal() && !error.is_timeout();
    match access.tls {
        None if is_odd && !at.is_socket() && tls::is_tls(at, io).await => {
            refused_by_tls(endpoint, &tls::speaks_tls(&WORDS))
        }
        // A server that reads a handshake as the beginning of a command waits for more.
        Some(_) if (is_odd || error.is_timeout()) && answers_plainly(at, io).await => {
            refused_by_tls(endpoint, &tls::speaks_plain(&WORDS))
        }
        _ => unreachable(endpoint, access, error),
    }
}

/// Whether a server answers a command without TLS.
async fn answers_plainly(at: &Endpoint, io: &Io) -> bool {
    let asked = async {
        let stream = dial(at, io).await?;
        stream.set_nonblocking(true)?;
        let mut stream = tokio::net::TcpStream::from_std(stream)?;
        stream.write_all(b"PING\r\n").await?;
        stream.read_u8().await
    };
    matches!(io.within(PLAIN_LIMIT, asked).await, Some(Ok(b'+' | b'-')))
}

fn refused_by_tls(endpoint: &Endpoint, refusal: &tls::Refusal) -> BackendError {
    let message = format!("cannot connect to {endpoint}: {refusal}");
    BackendError::new(BackendErrorKind::Unreachable, Effect::NotApplied, message)
        .with_next_step(refusal.step.clone())
}

/// Why there is no connection, and what to check.
pub(crate) fn unreachable(
    endpoint: &Endpoint,
    access: &Access,
    error: &redis::RedisError,
) -> BackendError {
    if error.code() == Some("DENIED") {
        let message = format!(
            "{endpoint} is in protected mode: without a password it serves clients of its own machine alone"
        );
        return BackendError::new(BackendErrorKind::Denied, Effect::NotApplied, message).with_next_step(
            "give the server a password (requirepass, or ACL SETUSER) and write it into the address",
        );
    }
    if error.detail().is_some_and(|said| said.contains(NO_DATABASE)) {
        let message = format!("{endpoint} has no database {}: {error}", access.database);
        return BackendError::new(BackendErrorKind::Invalid, Effect::NotApplied, message)
            .with_next_step(
                "name a database that the server has; CONFIG GET databases says how many",
            );
    }
    if let Some(refusal) = tls::refusal(error, &WORDS) {
        return refused_by_tls(endpoint, &refusal);
    }
    let said = failure(error, endpoint).error;
    let kind = match said.kind {
        BackendErrorKind::Denied => BackendErrorKind::Denied,
        _ if is_denied(error) => BackendErrorKind::Denied,
        _ => BackendErrorKind::Unreachable,
    };
    let (whom, step) = if kind == BackendErrorKind::Denied {
        let whom = format!(" as user {:?}", access.user());
        (whom, "check the user and the password in the address")
    } else if is_full(error) {
        (String::new(), FULL_STEP)
    } else if endpoint.is_socket() {
        let step = "check that the server is running, its unixsocket and unixsocketperm, and that this user may enter \
            the folder";
        (String::new(), step)
    } else if access.tls.is_some() {
        let step = "check that the server is running and speaks TLS, and that its certificate is \
            for this name and from a trusted authority (ca=/path)";
        (String::new(), step)
    } else {
        (String::new(), "check that the server is running and the address is correct")
    };
    let message = format!("cannot connect to {endpoint}{whom}: {error}");
    BackendError::new(kind, Effect::NotApplied, message).with_next_step(step)
}

fn is_denied(error: &redis::RedisError) -> bool {
    let text = error.to_string();
    matches!(error.kind(), redis::ErrorKind::AuthenticationFailed)
        || ["WRONGPASS", "NOAUTH", "NOPERM"].iter().any(|code| text.contains(code))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use latchwork_wire::Sourced;

    use super::*;

    fn access(user: Option<&str>, password: Option<&str>, database: i64) -> Access {
        Access {
            credentials: Sourced::fixed(Credentials {
                user: user.map(str::to_owned),
                password: password.map(str::to_owned),
            }),
            database,
            tls: None,
            detours: BTreeMap::new(),
            probe: None,
            seat: None,
        }
    }

    fn all(access: &Access, protocol: Protocol) -> Vec<Cmd> {
        greetings(&access.credentials.current().0, access.database, protocol)
    }

    fn said(access: &Access, protocol: Protocol) -> Vec<String> {
        let text = |it: &Cmd| String::from_utf8(it.get_packed_command()).unwrap();
        let words = |it: &Cmd| text(it).lines().skip(2).step_by(2).collect::<Vec<_>>().join(" ");
        all(access, protocol).iter().map(words).collect()
    }

    #[test]
    fn the_login_follows_the_protocol_version() {
        let (new, old) = (Protocol::Resp3, Protocol::Resp2);
        for (user, password, database, in_new, in_old) in [
            (None, None, 0, vec!["HELLO 3"], vec![]),
            (None, Some("pw"), 0, vec!["HELLO 3 AUTH default pw"], vec!["AUTH pw"]),
            (Some("ann"), Some("pw"), 0, vec!["HELLO 3 AUTH ann pw"], vec!["AUTH ann pw"]),
            (Some("ann"), None, 0, vec!["HELLO 3"], vec![]),
            (None, None, 7, vec!["HELLO 3", "SELECT 7"], vec!["SELECT 7"]),
        ] {
            let access = access(user, password, database);
            assert_eq!(said(&access, new), in_new);
            assert_eq!(said(&access, old), in_old);
        }
    }

    /// Greets a server that says each of these to what it hears, and then goes; and what it has heard.
    async fn greeted(
        access: &Access,
        protocol: Protocol,
        words: &[&str],
    ) -> (RedisResult<()>, String) {
        let (stream, mut server) = tokio::io::duplex(1024);
        let (connection, mut mover) = Connection::new(stream, Arc::new(|_| {}));
        let greetings = all(access, protocol);
        let served = async {
            let mut heard = Vec::with_capacity(1024);
            for words in words {
                server.read_buf(&mut heard).await.unwrap();
                server.write_all(words.as_bytes()).await.unwrap();
            }
            drop(server);
            String::from_utf8(heard).unwrap()
        };
        tokio::join!(greet(&greetings, &connection, &mut mover), served)
    }

    #[tokio::test]
    async fn a_server_without_users_is_given_the_password_alone() {
        let who = access(Some("default"), Some("pw"), 7);
        let few = "-ERR wrong number of arguments for 'auth' command\r\n-NOAUTH no\r\n";
        let said = [few, "+OK\r\n+OK\r\n"];
        let (greeted, heard) = greeted(&who, Protocol::Resp2, &said).await;
        greeted.unwrap();
        assert!(
            heard.ends_with("AUTH\r\n$2\r\npw\r\n*2\r\n$6\r\nSELECT\r\n$1\r\n7\r\n"),
            "{heard}"
        );
    }

    #[tokio::test]
    async fn every_wrong_password_message_is_denied() {
        let who = access(None, Some("secret"), 0);
        let at = Endpoint { host: "h".into(), port: 7 };
        let (invalid, repeated) =
            ("-ERR invalid password\r\n", "-ERR no password is set, not secret\r\n");
        let (new, old) = (Protocol::Resp3, Protocol::Resp2);
        for (protocol, said) in [(old, invalid), (old, repeated), (new, repeated)] {
            let (greeted, _) = greeted(&who, protocol, &[said]).await;
            let error = unreachable(&at, &who, &greeted.unwrap_err());
            assert_eq!(error.kind, BackendErrorKind::Denied, "{said}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_servers_last_error_is_reported() {
        let who = access(None, None, 0);
        let (refused, _) = greeted(&who, Protocol::Resp3, &["-DENIED protected mode\r\n"]).await;
        let refused = refused.unwrap_err();
        let at = Endpoint { host: "h".into(), port: 7 };
        let error = unreachable(&at, &who, &refused);
        assert_eq!(error.kind, BackendErrorKind::Denied, "{error:?}");
        assert!(error.message.contains("h:7 is in protected mode"), "{error:?}");
        assert!(error.next_step.unwrap().contains("requirepass"));
        let (refused, _) = greeted(&who, Protocol::Resp3, &["HTTP/1.1 400 Bad Request\r\n"]).await;
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("not a server of Redis or Valkey"), "{error}");
    }
}
