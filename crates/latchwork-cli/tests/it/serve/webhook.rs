//! Losses are told to an address of the operator, and nothing waits for it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use latchwork_store::testing::stalls;
use serde_json::Value;

use super::Service;
use super::client::AT_ONCE;
use crate::common::{SOON, eventually};

/// A receiver that answers each request with the next of these statuses, and with the last one from then on; `0` is no
/// answer at all.
pub(super) struct Receives {
    pub(super) address: String,
    pub(super) told: Receiver<(String, Value)>,
}

pub(super) fn receiver(statuses: &'static [u16]) -> Receives {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/hook?key=secret", listener.local_addr().unwrap());
    let (sender, told) = channel();
    thread::spawn(move || {
        let mut open = Vec::new();
        for (number, stream) in listener.incoming().enumerate() {
            let Ok(mut stream) = stream else { return };
            let status = statuses[number.min(statuses.len() - 1)];
            let request = request(&stream);
            if status == 0 {
                open.push(stream);
            } else {
                let answer = format!("HTTP/1.1 {status} So\r\nContent-Length: 0\r\n\r\n");
                let _ = stream.write_all(answer.as_bytes());
            }
            if sender.send(request).is_err() {
                return;
            }
        }
    });
    Receives { address, told }
}

fn request(stream: &TcpStream) -> (String, Value) {
    let mut reader = BufReader::new(stream);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if let Some(number) = line.to_lowercase().strip_prefix("content-length:") {
            length = number.trim().parse().unwrap();
        }
        if line == "\r\n" {
            break;
        }
        head += &line;
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    (head, serde_json::from_slice(&body).unwrap())
}

impl Receives {
    fn next(&self) -> (String, Value) {
        self.told.recv_timeout(2 * SOON).unwrap()
    }
}

fn counted(service: &Service, outcome: &str, number: u64) {
    let line = format!("latchwork_webhook_total{{outcome=\"{outcome}\"}} {number}\n");
    eventually(&line, || service.ask("GET /metrics", "").text.contains(&line).then_some(()));
}

fn lose(service: &Service, name: &str) -> String {
    loop {
        // With so short a ttl, a store that is slow for a moment has not answered in time.
        let answer = service.lock(name, r#"{"ttl_ms": 200}"#);
        if answer.status != 503 {
            return answer.is(200).get("token");
        }
    }
}

#[test]
fn h398_a_webhook_learns_of_a_loss_also_after_failures() {
    let hook = receiver(&[500, 302, 204]);
    let service = Service::start(&["--webhook-lost", &hook.address]);
    let released = service.hold("released", "{}");
    service.release(&released).is(200);
    let token = lose(&service, "x");
    let tries: Vec<_> = (0..3).map(|_| hook.next()).collect();
    for (head, body) in &tries {
        assert!(head.starts_with("POST /hook?key=secret HTTP/1.1\r\n"), "{head}");
        assert_eq!((&body["event"], &body["name"]), (&"lost".into(), &"x".into()));
        assert_eq!(
            (&body["token"], &body["reason"]),
            (&token.clone().into(), &"not_renewed".into())
        );
        assert_eq!(body, &tries[0].1, "the same event");
    }
    counted(&service, "sent", 1);
    lose(&service, "y");
    assert_eq!(hook.next().1["name"], "y");
}

/// It accepts connections and never answers: no request of a client waits, and what is too much is dropped.
#[test]
fn h398_a_slow_webhook_delays_no_hold() {
    let hook = receiver(&[0]);
    let service = Service::start(&["--webhook-lost", &hook.address]);
    for number in 0..1_200 {
        lose(&service, &format!("x{number}"));
    }
    hook.next();
    let dropped = || {
        service
            .ask("GET /metrics", "")
            .text
            .contains("latchwork_webhook_total{outcome=\"dropped\"}")
    };
    eventually("too many", || dropped().then_some(()));
    let start = Instant::now();
    for number in 0..20 {
        let hold = service.hold(&format!("y{number}"), r#"{"ttl_ms": 60000}"#);
        service.renew(&hold).is(200);
        service.release(&hold).is(200);
    }
    stalls::in_time(start, AT_ONCE);
    service.process.signal(rustix::process::Signal::TERM);
    let start = Instant::now();
    let Service { process, .. } = service;
    assert_eq!(process.finish().code(), 0);
    stalls::in_time(start, Duration::from_secs(10));
}

/// Nobody listens: after some tries the loss is given up, with a line in the log that shows no address.
#[test]
fn h398_a_webhook_that_is_down_is_given_up() {
    let address = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}/hook?key=secret", listener.local_addr().unwrap())
    };
    let service = Service::start(&["--webhook-lost", &address]);
    lose(&service, "x");
    let line = service.process.stderr.until("the webhook was not told");
    assert!(!line.contains("secret"), "{line}");
    counted(&service, "failed", 1);
    service.hold("x", "{}");
}

#[test]
fn a_bad_address_of_a_webhook_is_refused_and_not_shown() {
    let service = Service::start(&[]);
    for address in [
        "",
        "hook",
        "ftp://secret/",
        "http://",
        "http:///secret",
        "http://a:secret@host/",
        "https://ho st/secret",
    ] {
        let args = ["serve", "--listen", "127.0.0.1:0", "--webhook-lost", address];
        let refused = service.store.output(&args);
        assert_eq!(refused.code(), 64, "{address}: {refused:?}");
        assert!(refused.stderr.contains("webhook-lost: "), "{refused:?}");
        let step = "write http://HOST[:PORT]/PATH or https://HOST[:PORT]/PATH";
        assert!(refused.stderr.contains(step), "{refused:?}");
        assert!(!refused.stderr.contains("secret"), "{refused:?}");
    }
}
