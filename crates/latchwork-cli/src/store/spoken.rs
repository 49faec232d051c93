//! What a server speaks that does not answer as the scheme of its address promises: somebody has written another
//! scheme, or another port.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::Duration;

/// How long a server may take to show what it is, for each question.
const LIMIT: Duration = Duration::from_millis(300);

/// A kind of server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Redis,
    Etcd,
    ZooKeeper,
    Postgres,
    MySql,
    Http,
}

impl Kind {
    /// What it is, and what to write.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Redis => ("Redis or Valkey", "use redis://, or the port of the other server"),
            Self::Etcd => {
                ("etcd, or another server of gRPC", "use etcd://, or the port of the other server")
            }
            Self::ZooKeeper => ("ZooKeeper", "use zk://, or the port of the other server"),
            Self::Postgres => ("PostgreSQL", "use postgres://, or the port of the other server"),
            Self::MySql => ("MySQL or MariaDB", "it is no store for locks; check the port"),
            Self::Http => ("a web server", "it is no store for locks; check the port"),
        }
    }
}

/// What the first server of an address is, and what to write, if it is of another kind than the scheme says.
pub(super) fn other_than_named(address: &str) -> Option<(String, &'static str)> {
    let (scheme, rest) = address.split_once("://")?;
    // Servers with TLS say nothing to who does not speak it.
    let (named, usual_port) = match &*scheme.to_ascii_lowercase() {
        "redis" | "redis+cluster" | "redlock" => (Kind::Redis, 6379),
        "valkey" | "valkey+cluster" | "valkey+redlock" => (Kind::Redis, 6379),
        "redis+sentinel" | "valkey+sentinel" => (Kind::Redis, 26379),
        "etcd" => (Kind::Etcd, 2379),
        "zk" => (Kind::ZooKeeper, 2181),
        "postgres" | "postgresql" => (Kind::Postgres, 5432),
        _ => return None,
    };
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let hosts = authority.rsplit_once('@').map_or(authority, |(_, hosts)| hosts);
    let first = hosts.split(',').next().filter(|host| !host.is_empty())?;
    let has_port =
        first.rsplit_once(':').is_some_and(|(host, _)| !host.contains(':') || host.ends_with(']'));
    let at = if has_port { first.to_owned() } else { format!("{first}:{usual_port}") };
    let (what, step) = kind_of(&at).filter(|found| *found != named)?.words();
    Some((format!("the server at {at} is {what}"), step))
}

/// What servers are asked: something that Redis answers, a request for TLS of PostgreSQL, a word of ZooKeeper, and the
/// beginning of HTTP/2 with settings of nothing.
const QUESTIONS: [&[u8]; 4] = [
    b"PING\r\n",
    &[0, 0, 0, 8, 4, 210, 22, 47],
    b"srvr\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
];

/// What this server is, as far as it shows it.
fn kind_of(at: &str) -> Option<Kind> {
    let at = at.to_socket_addrs().ok()?.next()?;
    let [ping, tls, word, http] = answers(at);
    match &ping[..] {
        [b'+' | b'-', letter, ..] if letter.is_ascii_uppercase() => return Some(Kind::Redis),
        // A packet of the protocol's version 10, which the server sends first.
        [_, _, _, 0, 10, ..] => return Some(Kind::MySql),
        _ => {}
    }
    if matches!(&tls[..], b"S" | b"N") {
        return Some(Kind::Postgres);
    }
    let word = String::from_utf8_lossy(&word);
    if word.starts_with("Zookeeper version") || word.contains("is not in the whitelist") {
        return Some(Kind::ZooKeeper);
    }
    if is_settings(&ping) || is_settings(&http) {
        return Some(Kind::Etcd);
    }
    ping.starts_with(b"HTTP/").then_some(Kind::Http)
}

/// What the server answers to each question, on a connection each, at the same time.
fn answers(at: SocketAddr) -> [Vec<u8>; 4] {
    thread::scope(|scope| {
        let asked = QUESTIONS.map(|question| {
            let ask = move || ask(at, question).unwrap_or_default();
            thread::Builder::new().spawn_scoped(scope, ask).ok()
        });
        asked.map(|asked| asked.and_then(|asked| asked.join().ok()).unwrap_or_default())
    })
}

/// Whether these bytes begin with a frame of HTTP/2 that has settings, of stream 0.
fn is_settings(said: &[u8]) -> bool {
    matches!(said, [0, 0, length, 4, 0, 0, 0, 0, 0, ..] if length % 6 == 0)
}

/// What the server says first, after these words. `None` if it takes no connection.
fn ask(at: SocketAddr, words: &[u8]) -> Option<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&at, LIMIT).ok()?;
    stream.set_read_timeout(Some(LIMIT)).ok()?;
    stream.set_write_timeout(Some(LIMIT)).ok()?;
    // A server that has closed the connection may have spoken before.
    let _ = stream.write_all(words);
    let mut said = [0; 64];
    let length = stream.read(&mut said).unwrap_or(0);
    Some(said[..length].to_vec())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// A server that answers each connection so.
    fn server(answer: &'static [u8]) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let serve = move || {
            for mut stream in listener.incoming().flatten() {
                let _ = stream.write_all(answer);
                let _ = stream.read(&mut [0; 64]);
            }
        };
        thread::Builder::new().spawn(serve).unwrap();
        port
    }

    #[test]
    fn a_server_of_another_kind_is_named() {
        for (answer, what) in [
            (&b"-NOAUTH Authentication required.\r\n"[..], "Redis or Valkey"),
            (b"\0\0\x06\x04\0\0\0\0\0\0\x05\0\0@\0", "etcd, or another"),
            (b"J\0\0\0\x0a8.0.36\0", "MySQL or MariaDB"),
            (b"N", "PostgreSQL"),
            (b"Zookeeper version: 3.9.5", Kind::ZooKeeper.words().0),
            (b"HTTP/1.1 400 Bad Request\r\n\r\n", "a web server"),
        ] {
            let port = server(answer);
            for (scheme, named) in
                [("redis", "Redis"), ("zk", "Zoo"), ("etcd", "etcd"), ("postgres", "Post")]
            {
                let found = other_than_named(&format!("{scheme}://u:p@127.0.0.1:{port},h2/x"));
                match what.starts_with(named) {
                    true => assert_eq!(found, None),
                    false => {
                        let (said, step) = found.unwrap();
                        assert_eq!(
                            said.split(what).next(),
                            Some(&*format!("the server at 127.0.0.1:{port} is "))
                        );
                        assert!(step.contains("port"), "{step}");
                    }
                }
            }
        }
        for address in
            ["redis://127.0.0.1:1", "rediss://h", "mem:", "/srv/locks", "postgres:///x?host=h"]
        {
            assert_eq!(other_than_named(address), None, "{address}");
        }
    }
}
