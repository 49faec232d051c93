//! The proxy: what it counts, and every way in which it can fail on command.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use latchwork_services::{
    Counts, Cut, Direction, Loss, Lost, Port, Protocol, Proxy, RedisOptions, RedisServer, Silent,
};

type Test = Result<(), Box<dyn std::error::Error>>;

const LONG: Duration = Duration::from_secs(20);

/// A client that sends lines and reads as many bytes as it is told.
struct Client(TcpStream);

impl Client {
    fn connect(port: u16) -> std::io::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(LONG))?;
        stream.set_nodelay(true)?;
        Ok(Self(stream))
    }

    fn send(&mut self, text: &str) -> std::io::Result<()> {
        self.0.write_all(text.as_bytes())
    }

    /// Reads exactly this text, or fails with what came instead.
    fn expect(&mut self, text: &str) -> Test {
        let mut bytes = vec![0; text.len()];
        self.0.read_exact(&mut bytes)?;
        assert_eq!(String::from_utf8_lossy(&bytes), text);
        Ok(())
    }

    fn ask(&mut self, command: &str, answer: &str) -> Test {
        self.send(&format!("{command}\r\n"))?;
        self.expect(answer)
    }

    /// Asserts that nothing comes for a while.
    fn hears_nothing(&mut self) -> Test {
        self.0.set_read_timeout(Some(Duration::from_millis(50)))?;
        let got = self.0.read(&mut [0; 1]);
        assert!(matches!(&got, Err(e) if e.kind() == ErrorKind::WouldBlock), "{got:?}");
        Ok(self.0.set_read_timeout(Some(LONG))?)
    }

    /// How the connection ended: bytes read at its end, or the error.
    fn end(&mut self) -> Result<usize, ErrorKind> {
        self.0.read(&mut [0; 1]).map_err(|e| e.kind())
    }
}

/// A command as a client library writes it.
fn list(words: &[&str]) -> String {
    let strings = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
    format!("*{}\r\n{}", words.len(), strings.collect::<String>())
}

/// Looks until it is so, for what announces itself to nobody.
fn eventually(so: impl Fn() -> Result<bool, latchwork_services::Error>) -> Test {
    let start = Instant::now();
    while !so()? {
        assert!(start.elapsed() < LONG, "still not so");
        thread::yield_now();
    }
    Ok(())
}

fn set() -> Result<(RedisServer, Proxy), latchwork_services::Error> {
    let server = RedisServer::start(&RedisOptions::new())?;
    let proxy = Proxy::redis(server.port())?;
    Ok((server, proxy))
}

#[test]
fn commands_and_round_trips_are_counted_exactly() -> Test {
    let (_server, proxy) = set()?;
    let mut client = Client::connect(proxy.port())?;
    client.ask("SET k 1", "+OK\r\n")?;
    client.ask("get k", "$1\r\n1\r\n")?;
    client.ask("INCR n\r\nINCR n\r\nEVAL return(7) 0", ":1\r\n:2\r\n:7\r\n")?;
    let counts = proxy.counts();
    let count = |name| counts[name];
    assert_eq!(["SET", "GET", "INCR", "EVAL", "PING"].map(count), [1, 1, 2, 1, 0]);
    assert_eq!((counts.total(), counts.answers), (5, 5));
    assert_eq!((counts.round_trips, counts.connections, counts.pushes), (3, 1, 0));
    assert_eq!(proxy.reset_counts(), counts);
    assert_eq!(proxy.counts(), Counts::default());
    Ok(())
}

#[test]
fn subscriptions_and_pushes_keep_the_count() -> Test {
    for hello in [None, Some("HELLO 3")] {
        let (server, proxy) = set()?;
        let mut client = Client::connect(proxy.port())?;
        let sign = if hello.is_some() { ">" } else { "*" };
        if let Some(hello) = hello {
            client.send(&format!("{hello}\r\n"))?;
            // The answer has a varying length; a known one after it marks its end.
            client.send("PING\r\n")?;
            let mut answers = Vec::new();
            while !answers.ends_with(b"+PONG\r\n") {
                let mut piece = [0; 1024];
                let n = client.0.read(&mut piece)?;
                assert!(n > 0);
                answers.extend_from_slice(&piece[..n]);
            }
            proxy.reset_counts();
        }
        let confirm = |verb: &str, channel, n| {
            format!("{sign}3\r\n${}\r\n{verb}\r\n$1\r\n{channel}\r\n:{n}\r\n", verb.len())
        };
        let answers = [confirm("subscribe", "a", 1), confirm("subscribe", "b", 2)].concat();
        client.ask("SUBSCRIBE a b", &answers)?;
        server.command(&["PUBLISH", "a", "x"])?;
        client.expect(&format!("{sign}3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nx\r\n"))?;
        let counts = proxy.counts();
        assert_eq!((counts.answers, counts.pushes, counts.round_trips), (1, 1, 1), "{hello:?}");
        proxy.lose_pushes(true);
        server.command(&["PUBLISH", "b", "y"])?;
        proxy.wait_counts(LONG, |c| c.lost == 1)?;
        client.ask("UNSUBSCRIBE b", &confirm("unsubscribe", "b", 1))?;
    }
    Ok(())
}

#[test]
fn refusals_keep_their_place_among_the_answers() -> Test {
    let (server, proxy) = set()?;
    proxy.refuse("info", "ERR unknown command 'INFO'");
    proxy.refuse_if("EVAL", "ERR one key only", |words| words.get(2) != Some(&b"1".as_slice()));
    let mut client = Client::connect(proxy.port())?;
    client.ask("INFO", "-ERR unknown command 'INFO'\r\n")?;
    // An answer that the server gives late, then two of the proxy, then one of the server.
    let refused = "-ERR one key only\r\n-ERR unknown command 'INFO'\r\n";
    let eval = |keys: &[&str]| {
        let count = keys.len().to_string();
        list(&[&["EVAL", "return 1", &count], keys].concat())
    };
    client.send("DEBUG SLEEP 0.05\r\n")?;
    client.send(&[eval(&["a", "b"]), "INFO\r\n".into(), eval(&["a"])].concat())?;
    client.expect(&format!("+OK\r\n{refused}:1\r\n"))?;
    proxy.allow("INFO");
    client.send("INFO server\r\n")?;
    proxy.wait_counts(LONG, |c| c.answers == 3)?;
    let stats = server.command(&["INFO", "commandstats"])?.text();
    assert!(stats.contains("cmdstat_eval:calls=1,"), "{stats}");
    assert_eq!(proxy.counts()["INFO"], 3);
    Ok(())
}

#[test]
fn a_lost_answer_was_applied_and_a_lost_command_was_not() -> Test {
    let (server, proxy) = set()?;
    proxy.lose_answer_of("incr", 2);
    let mut client = Client::connect(proxy.port())?;
    client.ask("INCR n", ":1\r\n")?;
    client.ask("PING", "+PONG\r\n")?;
    client.send("INCR n\r\n")?;
    assert_eq!(client.end(), Err(ErrorKind::ConnectionReset));
    assert_eq!(server.command(&["GET", "n"])?.text(), "2");
    proxy.lose(Loss { of: None, nth: 2, what: Lost::Command, cut: Some(Cut::Finish) });
    let mut client = Client::connect(proxy.port())?;
    client.ask("GET n", "$1\r\n2\r\n")?;
    client.send("INCR n\r\n")?;
    assert_eq!(client.end(), Ok(0));
    assert_eq!(server.command(&["GET", "n"])?.text(), "2");
    assert_eq!(proxy.counts().lost, 2);
    Ok(())
}

#[test]
fn the_proxy_drops_answers_on_request() -> Test {
    let (_server, proxy) = set()?;
    let mut client = Client::connect(proxy.port())?;
    proxy.lose_answers(true);
    client.send("INCR n\r\nINCR n\r\n")?;
    proxy.wait_counts(LONG, |c| c.lost == 2)?;
    proxy.lose_answers(false);
    client.ask("INCR n", ":3\r\n")?;
    assert_eq!(proxy.counts().round_trips, 2);
    Ok(())
}

#[test]
fn answers_are_held_while_pushes_pass() -> Test {
    let (server, proxy) = set()?;
    let mut client = Client::connect(proxy.port())?;
    client.ask("SUBSCRIBE c", "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n")?;
    proxy.hold_answers(true);
    client.send("PING\r\n")?;
    proxy.wait_counts(LONG, |c| c.answers == 2)?;
    server.command(&["PUBLISH", "c", "x"])?;
    client.expect("*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n")?;
    client.hears_nothing()?;
    proxy.hold_answers(false);
    client.expect("*2\r\n$4\r\npong\r\n$0\r\n\r\n")
}

#[test]
fn a_proxy_delay_applies_to_each_byte_separately() -> Test {
    let (_server, proxy) = set()?;
    let mut client = Client::connect(proxy.port())?;
    client.ask("PING", "+PONG\r\n")?;
    for direction in [Direction::ToServer, Direction::ToClient] {
        proxy.delay(direction, Duration::from_millis(100));
        let start = Instant::now();
        for _ in 0..20 {
            client.send("PING\r\n")?;
        }
        client.expect(&"+PONG\r\n".repeat(20))?;
        let took = start.elapsed();
        assert!(took >= Duration::from_millis(100), "{took:?}");
        assert!(took < Duration::from_millis(1000), "one after the other: {took:?}");
        proxy.delay(direction, Duration::ZERO);
    }
    Ok(())
}

#[test]
fn a_slow_proxy_delivers_all_bytes() -> Test {
    let (server, _) = set()?;
    let proxy = Proxy::plain(server.port())?;
    let mut client = Client::connect(proxy.port())?;
    client.ask("PING", "+PONG\r\n")?;
    proxy.trickle(Direction::ToClient, Some((2, Duration::from_millis(30))));
    let start = Instant::now();
    client.ask("PING", "+PONG\r\n")?;
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(110), "seven bytes: {took:?}");
    proxy.trickle(Direction::ToClient, None);
    let start = Instant::now();
    client.ask("PING", "+PONG\r\n")?;
    assert!(start.elapsed() < Duration::from_millis(110), "the seven bytes come at once");
    Ok(())
}

#[test]
fn a_frozen_direction_holds_bytes_and_connection_ends() -> Test {
    let (server, proxy) = set()?;
    let mut client = Client::connect(proxy.port())?;
    client.ask("PING", "+PONG\r\n")?;
    proxy.freeze(Direction::ToClient);
    client.send("INCR n\r\n")?;
    proxy.wait_counts(LONG, |c| c.answers == 2)?;
    client.hears_nothing()?;
    proxy.thaw(Direction::ToClient);
    client.expect(":1\r\n")?;

    proxy.silence(true);
    client.send("INCR n\r\n")?;
    proxy.wait_counts(LONG, |c| c["INCR"] == 2)?;
    assert_eq!(server.command(&["GET", "n"])?.text(), "1");
    proxy.thaw(Direction::ToServer);
    proxy.wait_counts(LONG, |c| c.answers == 3)?;
    client.hears_nothing()?;
    proxy.silence(false);
    client.expect(":2\r\n")?;

    proxy.freeze(Direction::ToServer);
    client.send("INCR n\r\n")?;
    proxy.wait_counts(LONG, |c| c["INCR"] == 3)?;
    drop(client);
    assert_eq!(server.command(&["GET", "n"])?.text(), "2");
    assert_eq!(proxy.open_connections(), 1);
    proxy.thaw(Direction::ToServer);
    eventually(|| Ok(proxy.open_connections() == 0))?;
    assert_eq!(server.command(&["GET", "n"])?.text(), "3");
    Ok(())
}

#[test]
fn a_frozen_direction_hides_a_dead_client() -> Test {
    let (server, proxy) = set()?;
    let mut client = Client::connect(proxy.port())?;
    client.ask("SUBSCRIBE c", "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n")?;
    let subscribers = || server.command(&["PUBSUB", "NUMSUB", "c"]).map(|n| n.field("c"));
    proxy.freeze(Direction::ToServer);
    drop(client);
    for n in 1..=5 {
        server.command(&["PUBLISH", "c", "x"])?;
        proxy.wait_counts(LONG, |c| c.pushes == n)?;
    }
    assert_eq!((proxy.open_connections(), subscribers()?), (1, Some("1".into())));
    proxy.thaw(Direction::ToServer);
    eventually(|| Ok(subscribers()? == Some("0".into())))
}

#[test]
fn the_end_of_a_server_does_not_overtake_answers_that_are_held() -> Test {
    let (mut server, proxy) = set()?;
    let mut client = Client::connect(proxy.port())?;
    proxy.hold_answers(true);
    client.send("PING\r\n")?;
    proxy.wait_counts(LONG, |c| c.answers == 1)?;
    server.kill();
    client.hears_nothing()?;
    proxy.hold_answers(false);
    client.expect("+PONG\r\n")?;
    assert_eq!(client.end(), Ok(0));
    Ok(())
}

#[test]
fn replication_passes() -> Test {
    let (master, proxy) = set()?;
    master.command(&["SET", "k", "1"])?.ok()?;
    let replica = RedisServer::start(&RedisOptions::new().replica_of(proxy.port()))?;
    let follows = |value| eventually(|| Ok(replica.command(&["GET", "k"])?.text() == value));
    follows("1")?;
    proxy.freeze(Direction::ToClient);
    master.command(&["SET", "k", "2"])?.ok()?;
    assert_eq!(replica.command(&["GET", "k"])?.text(), "1");
    proxy.thaw(Direction::ToClient);
    follows("2")
}

#[test]
fn cuts_and_refusals_of_connections_are_done_when_they_return() -> Test {
    let (_server, proxy) = set()?;
    for (how, end) in [(Cut::Reset, Err(ErrorKind::ConnectionReset)), (Cut::Finish, Ok(0))] {
        let mut clients = [Client::connect(proxy.port())?, Client::connect(proxy.port())?];
        for client in &mut clients {
            client.ask("PING", "+PONG\r\n")?;
        }
        proxy.cut(how)?;
        assert_eq!(proxy.open_connections(), 0);
        for client in &mut clients {
            assert_eq!(client.end(), end);
        }
    }
    let mut old = Client::connect(proxy.port())?;
    old.ask("PING", "+PONG\r\n")?;
    proxy.refuse_connections()?;
    // A process that another test begins has the port as well, until it runs its program.
    let refused = || TcpStream::connect(("127.0.0.1", proxy.port())).err().map(|e| e.kind());
    let start = Instant::now();
    while refused() != Some(ErrorKind::ConnectionRefused) {
        assert!(start.elapsed() < Duration::from_secs(5), "connections are taken");
    }
    old.ask("PING", "+PONG\r\n")?;
    proxy.accept_connections()?;
    Client::connect(proxy.port())?.ask("PING", "+PONG\r\n")
}

#[test]
fn a_connection_is_cut_while_it_is_made() -> Test {
    let port = Port::reserve()?;
    let address = (Ipv4Addr::LOCALHOST, port.number()).into();
    let _silent = Silent::at(address)?;
    let proxy = Proxy::start(Protocol::Plain, address)?;
    // At any moment of its first steps, too.
    for _ in 0..500 {
        let mut client = Client::connect(proxy.port())?;
        proxy.cut(Cut::Reset)?;
        proxy.wait_counts(LONG, |counts| counts.connections > 0)?;
        proxy.cut(Cut::Reset)?;
        assert_eq!(proxy.reset_counts().connections, 1);
        assert_eq!(client.end(), Err(ErrorKind::ConnectionReset));
    }
    Ok(())
}

#[test]
fn the_server_behind_can_be_another() -> Test {
    let (first, proxy) = set()?;
    let second = RedisServer::start(&RedisOptions::new())?;
    first.command(&["SET", "k", "1"])?;
    second.command(&["SET", "k", "2"])?;
    let mut old = Client::connect(proxy.port())?;
    old.ask("GET k", "$1\r\n1\r\n")?;
    proxy.set_upstream(([127, 0, 0, 1], second.port()).into());
    Client::connect(proxy.port())?.ask("GET k", "$1\r\n2\r\n")?;
    old.ask("GET k", "$1\r\n1\r\n")?;
    drop(first);
    assert_eq!(old.end(), Ok(0));
    Ok(())
}

#[test]
fn other_protocols_pass_unread() -> Test {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let proxy = Proxy::plain(listener.local_addr()?.port())?;
    let echo = thread::spawn(move || -> std::io::Result<()> {
        let (mut stream, _) = listener.accept()?;
        let mut reader = stream.try_clone()?;
        std::io::copy(&mut reader, &mut stream).map(drop)
    });
    let mut client = Client::connect(proxy.port())?;
    let noise: String = (0..3_000_000_u32).map(|n| char::from((n % 127) as u8)).collect();
    let mut writer = Client(client.0.try_clone()?);
    let sent = noise.clone();
    let writing = thread::spawn(move || writer.send(&sent));
    client.expect(&noise)?;
    writing.join().map_err(|_| "the writer panicked")??;
    proxy.freeze(Direction::ToClient);
    client.send("x")?;
    client.hears_nothing()?;
    proxy.thaw(Direction::ToClient);
    client.expect("x")?;
    assert_eq!(proxy.counts().bytes, [3_000_001, 3_000_001]);
    // A half-closed connection still carries the other half.
    client.0.shutdown(std::net::Shutdown::Write)?;
    assert_eq!(client.end(), Ok(0));
    echo.join().map_err(|_| "the echo panicked")??;
    Ok(())
}

#[test]
fn a_large_answer_to_a_slow_reader_arrives_whole() -> Test {
    let (server, proxy) = set()?;
    let value = "v".repeat(20_000_000);
    server.command(&["SET", "k", &value])?.ok()?;
    let mut client = Client::connect(proxy.port())?;
    client.send("GET k\r\nPING\r\n")?;
    thread::sleep(Duration::from_millis(50));
    client.expect(&format!("$20000000\r\n{value}\r\n+PONG\r\n"))
}

#[tokio::test]
async fn a_count_can_be_awaited() -> Test {
    let (_server, proxy) = set()?;
    let port = proxy.port();
    let sending = thread::spawn(move || {
        let _ = Client::connect(port).and_then(|mut client| client.send("PING\r\nPING\r\n"));
    });
    let counts = proxy.counts_reach(|c| c["PING"] == 2).await;
    assert_eq!(counts.connections, 1);
    sending.join().map_err(|_| "the sender panicked")?;
    Ok(())
}

#[test]
fn a_piece_is_lost_with_its_connection_and_no_other() -> Test {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let proxy = Proxy::plain(listener.local_addr()?.port())?;
    let echo = thread::spawn(move || {
        for stream in listener.incoming().take(2).flatten() {
            let Ok(mut reader) = stream.try_clone() else { return };
            thread::spawn(move || std::io::copy(&mut reader, &mut &stream));
        }
    });
    let mut client = Client::connect(proxy.port())?;
    proxy.lose_piece(2);
    client.send("one")?;
    client.expect("one")?;
    client.send("two")?;
    assert!(client.end().is_err(), "what was lost is not missing in a stream that goes on");
    assert_eq!(proxy.counts().lost, 1);
    let mut next = Client::connect(proxy.port())?;
    next.send("three")?;
    next.expect("three")?;
    echo.join().map_err(|_| "the echo panicked")?;
    Ok(())
}
