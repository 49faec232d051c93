//! What one client can cost: connections, descriptors, answers that nobody reads, a log that nobody can write.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType, sockopt};
use rustix::process::{Pid, Signal, kill_process};

use super::Service;
use super::client::{self, AT_ONCE, Address, Events, Kept, request};
use crate::common::eventually;

fn port(service: &Service) -> u16 {
    match service.address {
        Address::Tcp(port) => port,
        Address::Unix(_) => unreachable!("it listens on a port"),
    }
}

/// The memory of a process, in KiB.
fn memory(service: &Service) -> usize {
    let path = format!("/proc/{}/status", service.process.child.id());
    let status = std::fs::read_to_string(path).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// A connection that reads nothing of what it asked for.
fn never_reads(service: &Service, line: &str) -> TcpStream {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    // Before it connects, or the other side has heard of a larger window.
    sockopt::set_socket_recv_buffer_size(&socket, 4096).unwrap();
    let address = std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, port(service));
    rustix::net::connect(&socket, &address).unwrap();
    let mut stream = TcpStream::from(socket);
    stream.write_all(request(line, &[], "").as_bytes()).unwrap();
    stream
}

/// Whether the service has closed or reset a connection; reads all that is there.
fn is_cut(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut bytes = [0; 64 * 1024];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

/// Locks with long names, so that lists of them and events about them are long.
fn long_locks(service: &Service, count: usize) -> Vec<String> {
    let lock = |number: usize| {
        let name = format!("{number:05}{}", "x".repeat(60_000));
        let body = format!(r#"{{"locks": [{{"name": "{name}"}}], "ttl_ms": 60000}}"#);
        service.ask("POST /v1/holds", &body).is(200).get("hold")
    };
    (0..count).map(lock).collect()
}

/// The service keeps each event once, for all listeners.
#[test]
fn events_that_nobody_reads_cost_little() {
    const MOST: usize = 8 * 1024;
    let service = Service::start(&[]);
    service.lock("before", "").is(200);
    let _deaf: Vec<_> = (0..8).map(|_| never_reads(&service, "GET /v1/events")).collect();
    // Six bytes of JSON for each character.
    let name = r"\u0001".repeat(42_000);
    let body = format!(r#"{{"locks": [{{"name": "{name}"}}], "ttl_ms": 60000}}"#);
    let cycle = || {
        let hold = service.ask("POST /v1/holds", &body).is(200).get("hold");
        service.release(&hold).is(200);
    };
    (0..20).for_each(|_| cycle());
    let before = memory(&service);
    (0..100).for_each(|_| cycle());
    let grown = memory(&service).saturating_sub(before);
    assert!(grown < MOST, "{grown} KiB");
}

/// Each byte comes alone, and is read before the next one.
#[test]
fn a_body_of_single_bytes_costs_no_more_than_its_length() {
    const BYTES: usize = 4_000;
    let service = Service::start(&[]);
    service.lock("before", "").is(200);
    let before = memory(&service);
    let address = ("127.0.0.1", port(&service));
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    let head = format!(
        "POST /v1/locks/slow HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n",
        BYTES + 1
    );
    stream.write_all(head.as_bytes()).unwrap();
    for _ in 0..BYTES {
        stream.write_all(b" ").unwrap();
        sleep(Duration::from_micros(300));
    }
    let grown = memory(&service).saturating_sub(before);
    assert!(grown < 4 * 1024, "{grown} KiB for {BYTES} bytes");
    stream.write_all(b" ").unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut said = [0; 12];
    stream.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"HTTP/1.1 400", "an empty text is no JSON");
}

#[test]
fn a_body_that_is_too_long_or_too_late_is_refused() {
    let service = Service::start(&[]);
    let long = " ".repeat(256 * 1024 + 1);
    let refused = service.ask("POST /v1/holds", &long);
    refused.is(413).kind("Invalid").step("send a smaller body: fewer or shorter names");
    let start = Instant::now();
    let head = [("Content-Length", "2"), ("Content-Type", "application/json")];
    let mut stream = service.address.send("POST /v1/locks/x", &head, "");
    stream.write_all(b"{").unwrap();
    let refused = client::read(stream).unwrap();
    refused.is(408).kind("TimedOut").step("send the body at once");
    assert!(start.elapsed() >= Duration::from_secs(10), "{:?}", start.elapsed());
    assert!(!service.is_held("x"));
}

/// A service that is busy for a moment loses none of the connections that come meanwhile, also if their clients say nothing.
#[test]
fn a_burst_of_connections_waits_to_be_accepted() {
    const BURST: usize = 1_000;
    let service = Service::start(&[]);
    let pid = Pid::from_raw(service.process.child.id() as i32).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], port(&service)));
    let connect = |_| TcpStream::connect_timeout(&address, Duration::from_secs(5)).unwrap();
    let all: Vec<TcpStream> = (0..BURST).map(connect).collect();
    kill_process(pid, Signal::CONT).unwrap();
    eventually("all of them", || {
        let metrics = service.ask("GET /metrics", "");
        let line = metrics.text.lines().find(|line| line.starts_with("latchwork_connections"));
        let open: f64 = line?.rsplit(' ').next()?.parse().ok()?;
        (open as usize > BURST).then_some(())
    });
    drop(all);
}

#[test]
fn each_address_has_so_many_connections() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let listen = format!("unix:{}", path.display());
    let service = Service::start(&["--max-connections", "4", "--listen", &listen]);
    let mut all: Vec<_> = (0..4).map(|_| Kept::open(&service.address)).collect();
    all.iter_mut().for_each(|one| drop(one.ask("GET /healthz").is(200).clone()));
    // The fifth waits for its turn, and the other address has room.
    let mut fifth = TcpStream::connect(("127.0.0.1", port(&service))).unwrap();
    fifth.write_all(request("GET /healthz", &[], "").as_bytes()).unwrap();
    fifth.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let mut text = String::new();
    assert!(fifth.read_to_string(&mut text).is_err() && text.is_empty(), "{text}");
    assert_eq!(Address::Unix(path).ask("GET /healthz", &[], "").status, 200);
    all.pop();
    fifth.set_read_timeout(Some(AT_ONCE)).unwrap();
    fifth.read_to_string(&mut text).unwrap();
    assert!(text.contains(" 200 "), "{text}");
    for bad in ["0", "18446744073709551615"] {
        let refused = service.store.output(&["serve", "--max-connections", bad]);
        assert_eq!(refused.code(), 64, "{refused:?}");
        assert!(refused.stderr.contains("outside of 1 to 1048576"), "{refused:?}");
        assert!(refused.stderr.contains("choose another number"), "{refused:?}");
    }
}

/// Connections that say nothing are closed after 20 s, so they keep their places no longer.
#[test]
fn idle_connections_are_closed() {
    let service = Service::start(&["--max-connections", "4"]);
    let start = Instant::now();
    let mut idle: Vec<_> = (0..4).map(|_| Kept::open(&service.address)).collect();
    idle[0].ask("GET /healthz").is(200);
    service.address.ask("GET /healthz", &[], "").is(200);
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
}

#[test]
fn a_stream_that_nobody_reads_is_cut() {
    let service = Service::start(&[]);
    let mut silent = never_reads(&service, "GET /v1/events");
    let mut reads = Events::follow(&service.address, "/v1/events", &[]);
    reads.until("hello");
    let before = memory(&service);
    for hold in long_locks(&service, 60) {
        service.release(&hold).is(200);
        reads.until("released");
    }
    // What is kept for both is bounded: 4 MiB of events, and what the socket holds.
    let more = memory(&service).saturating_sub(before);
    assert!(more < 48 * 1024, "{more} KiB");
    sleep(Duration::from_secs(32));
    assert!(is_cut(&mut silent), "it is open yet");
    service.hold("x", "");
    reads.until("granted");
}

#[test]
fn lists_that_nobody_reads_are_few_and_cut() {
    let service = Service::start(&[]);
    let _held = long_locks(&service, 40);
    let before = memory(&service);
    let mut silent = Vec::new();
    let refused = eventually("a refusal", || {
        let answer = service.ask("GET /v1/locks?limit=1", "");
        // Its own place is free again: the next one takes it.
        silent.push(never_reads(&service, "GET /v1/locks"));
        (answer.status != 200).then_some(answer)
    });
    assert!(silent.len() < 30, "{}", silent.len());
    refused.is(429).kind("Busy");
    let more = memory(&service).saturating_sub(before);
    assert!(more < 64 * 1024, "{more} KiB");
    sleep(Duration::from_secs(32));
    assert!(silent.iter_mut().all(is_cut), "they are open yet");
    service.ask("GET /v1/locks?limit=1", "").is(200);
}

#[test]
fn a_long_list_is_read_in_parts() {
    let service = Service::start(&[]);
    let _held = long_locks(&service, 40);
    (0..30).for_each(|number| drop(service.hold(&format!("short{number:02}"), "")));
    let (mut names, mut after, mut parts) = (Vec::new(), String::new(), 0);
    loop {
        let part = service.ask(&format!("GET /v1/locks?limit=25{after}"), "");
        let json = part.is(200).json();
        assert!(part.text.len() < 1_500_000, "{}", part.text.len());
        let locks = json["locks"].as_array().unwrap();
        names.extend(locks.iter().map(|lock| lock["name"].as_str().unwrap().to_owned()));
        parts += 1;
        let Some(next) = json["next"].as_str() else { break };
        // Of a name that was released meanwhile, the list goes on behind it. A long one does not fit into a path.
        assert!(next.len() < 61_000 && parts < 50);
        after = format!("&after={next}");
    }
    assert_eq!(names.len(), 70, "{parts} parts");
    assert!(names.is_sorted() && parts > 3, "{parts}");
    for bad in ["limit=0", "limit=10001", "limit=x", "cursor=x"] {
        service.ask(&format!("GET /v1/locks?{bad}"), "").is(400).kind("Invalid");
    }
}

/// With fewer descriptors than connections are allowed, the store keeps its own.
#[test]
fn h162_connections_take_no_descriptor_from_the_store() {
    let service = Service::by_shell("ulimit -n 220; exec $SERVE");
    let mut kept = Kept::open(&service.address);
    let body = r#"{"ttl_ms": 9000}"#;
    let text = request("POST /v1/locks/x", &[], body).replace("Connection: close\r\n", "");
    kept.write(text.as_bytes());
    let hold = kept.answer().unwrap().is(200).get("hold");
    // More than there are descriptors. Those that are not accepted wait, or do not even connect.
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], port(&service)));
    let connect = |_| TcpStream::connect_timeout(&address, Duration::from_millis(20)).ok();
    let _idle: Vec<_> = (0..300).map(connect).collect();
    for _ in 0..20 {
        sleep(Duration::from_millis(500));
        kept.ask(&format!("POST /v1/holds/{hold}/renew")).is(200);
        kept.ask("GET /readyz").is(200);
    }
    kept.ask(&format!("DELETE /v1/holds/{hold}")).is(200);
}

/// The log's disk is full, or nobody reads its pipe: the service goes on, and holds end in time.
#[test]
fn h161_a_log_that_cannot_be_written_stops_nothing() {
    for line in [
        "exec $SERVE -v 2>/dev/full",
        "mkfifo \"$TRACE/log\"; exec 9<>\"$TRACE/log\"; exec $SERVE -v 2>&9",
    ] {
        let service = Service::by_shell(line);
        service.hold("x", r#"{"ttl_ms": 1000}"#);
        let mut kept = Kept::open(&service.address);
        // More lines than a pipe and the queue hold.
        for _ in 0..6_000 {
            kept.ask("GET /healthz").is(200);
        }
        eventually("the end of the hold", || (!service.is_held("x")).then_some(()));
        service.process.signal(rustix::process::Signal::TERM);
        let Service { process, .. } = service;
        assert_eq!(process.finish().code(), 0, "{line}");
    }
}

/// A file of tokens that cannot be read now is no reason to stop or to let others in.
#[test]
fn a_file_that_is_written_to_is_not_half_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = super::security::usual(&dir);
    let service = Service::start(&["--tokens", &path, "--require-token"]);
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.write_at(b"\0\0", 20).unwrap();
    service.process.signal(rustix::process::Signal::HUP);
    service.process.stderr.until("the tokens stay as they were");
    let headers = [("Authorization", &*super::security::bearer(super::security::OPS))];
    service.address.ask("GET /v1/locks", &headers, "").is(200);
    service.ask("GET /v1/locks", "").is(401);
}
