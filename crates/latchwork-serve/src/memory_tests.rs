//! What a hold takes in a whole service, with all that the library and the store's client remember of it.

#![allow(clippy::disallowed_methods, clippy::print_stdout, reason = "tests measure and print")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use latchwork_services::child::{Process, role, say};
use latchwork_services::hostile::held_by_all;
use latchwork_services::{EtcdOptions, EtcdServer, Port, RedisOptions, RedisServer};
use serde_json::{Value, json};

use crate::{Listen, Settings};

/// So many requests, each with so many locks, fill the events that are kept.
const WARM: (usize, usize) = (44, 50);

/// A lock by itself, one of a session, and one whose request has a name; a service is asked for each of them in turn.
const KINDS: [&str; 3] = ["alone", "session", "named"];

struct Client(BufReader<TcpStream>);

impl Client {
    fn ask(&mut self, line: &str, header: &str, body: &Value) -> Vec<u8> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let text = format!(
            "{line} HTTP/1.1\r\nHost: localhost\r\n{header}Content-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        self.0.get_mut().write_all(text.as_bytes()).unwrap();
        let (mut length, mut head) = (0, String::new());
        while !head.ends_with("\r\n\r\n") {
            let mut line = String::new();
            self.0.read_line(&mut line).unwrap();
            let field = line.to_lowercase();
            if let Some(number) = field.strip_prefix("content-length:") {
                length = number.trim().parse().unwrap();
            }
            head += &line;
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).unwrap();
        assert!(
            head.starts_with("HTTP/1.1 200"),
            "{line}: {head}{}",
            String::from_utf8_lossy(&body)
        );
        body
    }

    /// Acquires a lock, or begins a session, and returns its id.
    fn begin(&mut self, line: &str, header: &str, body: &Value) -> String {
        let begun: Value = serde_json::from_slice(&self.ask(line, header, body)).unwrap();
        begun["hold"].as_str().or(begun["session"].as_str()).unwrap().to_owned()
    }

    /// What is allocated. The times of requests are collected until the metrics are read, and what a request takes comes
    /// and goes.
    fn allocated(&mut self) -> usize {
        let seen = (0..50).map(|_| {
            self.ask("GET /metrics", "", &Value::Null);
            held_by_all()
        });
        seen.min().unwrap_or_default()
    }
}

/// A service in a process of its own, whose whole memory is counted.
#[test]
fn child() {
    let Some((role, store)) = role() else { return };
    let count: usize = role.parse().unwrap();
    let port = Port::reserve().unwrap();
    let listen = Listen::Tcp(format!("127.0.0.1:{}", port.number()));
    let settings = Settings::new(&*store).with_listen([listen]).with_max_holds(4 * count);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let run = async { crate::serve(settings, latchwork::connect(&store).await?).await };
        runtime.block_on(run).unwrap();
    });
    let start = Instant::now();
    let stream = loop {
        match TcpStream::connect(("127.0.0.1", port.number())) {
            Ok(stream) => break stream,
            Err(error) => assert!(start.elapsed() < Duration::from_secs(60), "{error}"),
        }
    };
    let mut client = Client(BufReader::new(stream));
    for request in 0..WARM.0 {
        let name = |number| json!({"name": format!("warm-{request:04}-{number:04}")});
        let locks: Vec<_> = (0..WARM.1).map(name).collect();
        let hold = client.begin("POST /v1/holds", "", &json!({"ttl_ms": 20_000, "locks": locks}));
        client.ask(&format!("DELETE /v1/holds/{hold}"), "", &Value::Null);
    }
    let ttl = json!({"ttl_ms": 3_600_000});
    for kind in KINDS {
        let (mut header, mut body) = (String::new(), ttl.clone());
        if kind == "session" {
            body = json!({"session": client.begin("POST /v1/sessions", "", &ttl)});
        }
        let before = client.allocated();
        for number in 0..count {
            if kind == "named" {
                header = format!("Idempotency-Key: 6f1c8a52-0000-4000-8000-{number:012}\r\n");
            }
            let name = format!("{kind}%2F{}%2F{}", number / 50, number % 50);
            client.ask(&format!("POST /v1/locks/{name}"), &header, &body);
        }
        say(client.allocated().saturating_sub(before) / count);
    }
}

fn each_takes(store: &str, most: [usize; 3]) {
    // What a request takes and a client keeps is up to 20 kB, here or there: few holds would share it.
    let count = std::env::var("LATCHWORK_FULL").map_or(1000, |count| count.parse().unwrap());
    let mut child = Process::start(&format!("memory_tests::{count}"), store);
    for (kind, most) in KINDS.into_iter().zip(most) {
        let each: usize = child.line().parse().unwrap();
        println!("{store} {kind} {count}: {each} bytes");
        assert!((60..most).contains(&each), "{kind}: {each} bytes");
    }
}

#[test]
fn a_hold_takes_less_than_200_bytes_on_redis() {
    let server = RedisServer::start(&RedisOptions::default()).unwrap();
    each_takes(&server.url(), [200, 200, 210]);
}

#[test]
fn a_hold_takes_less_than_200_bytes_on_etcd() {
    let server = EtcdServer::start(&EtcdOptions::default()).unwrap();
    // With a key, the request is remembered beside both.
    each_takes(&server.url(), [200, 200, 260]);
}
