//! What hostile clients try: broken HTTP, names that look like others, keys and tokens that are not theirs.

use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use latchwork_store::testing::stalls;
use rustix::process::Signal;

use super::client::{AT_ONCE, Answer, Events, Kept, read, request};
use super::security::{OPS, WEB, bearer, tokens, usual};
use super::{Service, client};
use crate::common::eventually;

/// Sends bytes, and reads what the service answers until it closes the connection.
fn raw(service: &Service, bytes: &[u8]) -> Option<Answer> {
    let mut stream = service.address.connect();
    // The service may have closed it in the middle.
    let _ = stream.write_all(bytes);
    read(stream).ok()
}

#[test]
fn broken_http_gets_the_usual_form_of_errors() {
    let service = Service::start(&[]);
    let many = format!("GET / HTTP/1.1\r\nHost: x\r\n{}\r\n", "a: b\r\n".repeat(120));
    let long = format!("GET / HTTP/1.1\r\nHost: x\r\na: {}\r\n\r\n", "b".repeat(200_000));
    let path = format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "b".repeat(200_000));
    for (bytes, statuses) in [
        (&b"GET\r\n\r\n"[..], &[400][..]),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", &[400]),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", &[400]),
        (b"GET / HTTP/1.1\r\nHost: x\r\na: \0\r\n\r\n", &[400]),
        (b"GET / HTTP/1.1\r\nHost: x\r\n a: folded\r\n\r\n", &[400]),
        (b"GET / HTTP/9.9\r\n\r\n", &[400]),
        (b"POST /v1/locks/x HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", &[400]),
        (b"POST /v1/locks/x HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}", &[400]),
        (b"POST /v1/locks/x HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n{}", &[400]),
        (b"POST /v1/locks/x HTTP/1.1\r\nTransfer-Encoding: chunked, x\r\n\r\n0\r\n\r\n", &[400]),
        (b"POST /v1/locks/x HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", &[400]),
        (many.as_bytes(), &[431]),
        (long.as_bytes(), &[431]),
        (path.as_bytes(), &[414, 431]),
    ] {
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(60)]).into_owned();
        let answer = raw(&service, bytes).unwrap_or_else(|| panic!("no answer to {shown:?}"));
        assert!(statuses.contains(&answer.status), "{shown:?}: {answer:?}");
        answer.is(answer.status).kind("Invalid");
        if answer.status == 431 {
            let step = answer.get("next_step");
            assert!(step.starts_with("send fewer and shorter headers; "), "{step}");
        }
        assert!(answer.head.to_lowercase().contains("nosniff"), "{answer:?}");
    }
    assert!(!service.is_held("x"));
}

/// RFC 9112: a proxy may add a host of its own to a request that has none.
#[test]
fn a_request_names_its_host() {
    let service = Service::start(&[]);
    for (line, status) in [
        ("GET /healthz HTTP/1.1", 400),
        ("GET http://localhost/healthz HTTP/1.1", 400),
        ("GET /healthz HTTP/1.0", 200),
        ("GET /healthz HTTP/1.1\r\nHost: localhost", 200),
        ("GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: localhost", 400),
    ] {
        let answer = raw(&service, format!("{line}\r\nConnection: close\r\n\r\n").as_bytes());
        let answer = answer.unwrap();
        assert_eq!(answer.status, status, "{line}: {answer:?}");
        if status == 400 {
            answer.is(400).kind("Invalid");
            assert!(answer.get("error").starts_with("Host: "), "{answer:?}");
        }
    }
}

/// Of what is no escape, one reader makes `%zz`, and another one something else.
#[test]
fn a_percent_sign_that_begins_no_escape_is_refused() {
    let service = Service::start(&[]);
    for (line, shown) in [
        ("POST /v1/locks/%zz", "%zz"),
        ("POST /v1/locks/a%", "%"),
        ("POST /v1/locks/a%2", "%2"),
        ("POST /v1/once/%2g/reset", "%2g"),
        ("POST /v1/lock?name=%zz", "%zz"),
        ("GET /v1/locks?prefix=100%", "%"),
    ] {
        let refused = service.ask(line, "");
        refused.is(400).kind("Invalid");
        assert!(refused.get("error").contains(&format!("{shown:?} is no escape")), "{refused:?}");
        assert!(refused.get("next_step").contains("%25"), "{refused:?}");
    }
    service.ask("POST /v1/locks/%25zz", "").is(200);
    assert!(service.is_held("%25zz"));
}

/// A request with two lengths has the one of its chunks, and what is behind it is the next request.
#[test]
fn no_request_is_smuggled_in_a_body() {
    let service = Service::start(&[]);
    let inner = "POST /v1/locks/smuggled HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n";
    // A body that holds a request stays a body.
    let mut kept = Kept::open(&service.address);
    let head = "POST /v1/locks/a HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    kept.write(format!("{head}Content-Length: {}\r\n\r\n{inner}", inner.len()).as_bytes());
    kept.answer().unwrap().is(400).kind("Invalid");
    let chunked = format!("{:x}\r\n{inner}\r\n0\r\n\r\n", inner.len());
    for lengths in [
        "Transfer-Encoding: chunked\r\n",
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
    ] {
        let mut kept = Kept::open(&service.address);
        kept.write(format!("{head}{lengths}\r\n{chunked}").as_bytes());
        kept.answer().unwrap().is(400).kind("Invalid");
    }
    // Names of headers that only look like one.
    for name in ["Transfer-Encoding ", "Transfer\tEncoding", "\u{b}Transfer-Encoding"] {
        let bytes = format!("{head}Content-Length: 2\r\n{name}: chunked\r\n\r\n{{}}");
        raw(&service, bytes.as_bytes()).unwrap().is(400).kind("Invalid");
    }
    assert!(!service.is_held("smuggled"));
}

#[test]
fn bodies_without_an_end_are_cut() {
    let service = Service::start(&[]);
    let chunk = format!("1000\r\n{}\r\n", " ".repeat(4096));
    // One that is read, one that nobody reads, and one of somebody who may not.
    for (line, headers, status) in [
        ("POST /v1/locks/x", &[("Transfer-Encoding", "chunked")][..], 413),
        ("GET /v1/locks", &[("Transfer-Encoding", "chunked")], 200),
        ("POST /v1/locks/x", &[("Transfer-Encoding", "chunked"), ("Origin", "http://evil")], 403),
    ] {
        let mut stream = service.address.send(line, headers, "");
        let start = Instant::now();
        while stream.write_all(chunk.as_bytes()).is_ok() {
            stalls::in_time(start, AT_ONCE);
        }
        let mut text = Vec::new();
        // What was not read by the service may have reset the connection.
        let _ = stream.read_to_end(&mut text);
        let text = String::from_utf8_lossy(&text);
        assert!(text.is_empty() || text.contains(&format!(" {status} ")), "{line}: {text}");
    }
    service.lock("x", "").is(200);
}

#[test]
fn requests_in_a_row_are_answered_in_order() {
    let service = Service::start(&[]);
    let mut kept = Kept::open(&service.address);
    let all: String = (0..200)
        .map(|n| format!("GET /v1/locks/{n} HTTP/1.1\r\nHost: localhost\r\n\r\n"))
        .collect();
    kept.write(all.as_bytes());
    for number in 0..200 {
        assert_eq!(kept.answer().unwrap().is(200).get("name"), number.to_string());
    }
}

/// The parser reads no further while it answers, so it does not see the end of the connection.
#[test]
fn a_cut_request_with_bytes_behind_it_leaves_nothing() {
    let service = Service::start(&[]);
    let hold = service.hold("x", "{}");
    let mut stream = service.address.connect();
    let body = r#"{"wait_ms": 60000}"#;
    let first = request("POST /v1/locks/x", &[], body).replace("Connection: close\r\n", "");
    stream.write_all(first.as_bytes()).unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    eventually("a waiter", || (service.waiters("x") == 1).then_some(()));
    drop(stream);
    let start = Instant::now();
    eventually("no waiter", || (service.waiters("x") == 0).then_some(()));
    stalls::in_time(start, AT_ONCE);
    service.release(&hold).is(200);
    assert!(!service.is_held("x"));
}

/// A name is its bytes: nothing is normalised, decoded twice, or taken for a path.
#[test]
fn no_name_is_taken_for_another() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(&["--tokens", &usual(&dir), "--require-token"]);
    let ask = |token: &str, line: &str| {
        service.address.ask(line, &[("Authorization", &bearer(token))], "")
    };
    for (path, name) in [
        ("lock?name=shop%2F..%2Fother", "shop/../other"),
        ("lock?name=shop%2f%2e%2e%2fother", "shop/../other"),
        ("lock?name=shop%2F%252e%252e%252Fother", "shop/%2e%2e%2Fother"),
        ("locks/shop%2F%00", "shop/\0"),
        ("locks/shop%2F%C3%A9", "shop/\u{e9}"),
        ("locks/shop%2Fe%CC%81", "shop/e\u{301}"),
        ("locks/shop%2F+", "shop/+"),
    ] {
        let got = ask(WEB, &format!("POST /v1/{path}"));
        if path != "lock?name=shop%2f%2e%2e%2fother" {
            assert_eq!(got.is(200).json()["locks"][0]["name"], name, "{path}");
        } else {
            assert_eq!(got.is(409).get("key"), name, "the same name in other words");
        }
    }
    assert_eq!(ask(OPS, "GET /v1/locks/other").is(200).json()["held"], false);
    // Not in its prefix, however it is written.
    for name in ["SHOP%2Fx", "%73hop", "shop", "..%2Fshop%2Fx", "%EF%BC%B3hop%2Fx", "%2Fshop%2Fx"] {
        ask(WEB, &format!("POST /v1/lock?name={name}")).is(403).kind("Forbidden");
    }
    for name in ["SHOP%2Fx", "%73hop", "shop", "%EF%BC%B3hop%2Fx"] {
        ask(WEB, &format!("POST /v1/locks/{name}")).is(403).kind("Forbidden");
    }
    for path in ["shop%2F%c0%ae", "shop%2F%ff", "shop%2F%ED%A0%80"] {
        ask(WEB, &format!("POST /v1/locks/{path}")).is(400).kind("Invalid");
    }
    for path in ["/v1/locks/shop/x", "/v1//locks/shop%2Fx", "/v1/locks/../locks/x", "/V1/locks/x"] {
        ask(WEB, &format!("POST {path}")).is(404);
    }
}

/// What a token may not see, no answer says.
#[test]
fn a_token_learns_nothing_of_other_names() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(&["--tokens", &usual(&dir), "--require-token"]);
    let web = [("Authorization", &*bearer(WEB))];
    let ops = [("Authorization", &*bearer(OPS))];
    let mut events = Events::follow(&service.address, "/v1/events", &web);
    events.until("hello");
    let body = r#"{"holder": "secret-holder"}"#;
    service.address.ask("POST /v1/locks/secret", &ops, body).is(200);
    service.address.ask("POST /v1/elections/secret-race/campaign", &ops, body).is(200);
    service.address.ask("POST /v1/locks/shop%2F1", &ops, "").is(200);
    assert_eq!(events.until("granted")["name"], "shop/1", "an event of another prefix");
    service.address.ask("GET /v1/elections/secret-race/events", &web, "").is(403);
    for line in [
        "GET /v1/locks",
        "GET /v1/locks?prefix=secret",
        "GET /v1/locks?limit=1",
        "GET /metrics",
        "GET /openapi.json",
        "GET /v1/whoami",
        "GET /v1/locks/secret",
        "POST /v1/locks/secret",
        "GET /v1/elections/secret-race",
    ] {
        let answer = service.address.ask(line, &web, "");
        let told = answer.text.replace("\"key\":\"secret", "");
        assert!(!told.contains("secret"), "{line}: {told}");
    }
}

#[test]
fn requests_through_a_proxy_need_a_token() {
    let service = Service::start(&[]);
    for name in ["X-Forwarded-For", "Forwarded", "Via", "X-Real-IP"] {
        let passed_on = |line: &str| service.address.ask(line, &[(name, "203.0.113.9")], "");
        passed_on("POST /v1/locks/x").is(401).kind("Unauthorized");
        passed_on("GET /v1/locks").is(401);
        assert_eq!(passed_on("GET /healthz").status, 200);
    }
    assert!(!service.is_held("x"));
}

/// A token that is taken out of the file ends what its clients have open.
#[test]
fn a_revoked_token_waits_and_listens_no_longer() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(&["--tokens", &usual(&dir)]);
    let web = [("Authorization", &*bearer(WEB))];
    let ops = [("Authorization", &*bearer(OPS))];
    let hold = service.address.ask("POST /v1/locks/shop%2Fx", &ops, "").is(200).get("hold");
    let mut gone = Events::follow(&service.address, "/v1/events", &web);
    let mut stays = Events::follow(&service.address, "/v1/events", &ops);
    gone.until("hello");
    let waiting = service.wait_for("shop%2Fx", &web, r#"{"wait_ms": 60000}"#);
    tokens(
        &dir,
        &format!(
            r#"{{"tokens": [
                {{"name": "web", "token": "another-0123456789", "rights": ["read", "lock"], "prefixes": ["shop/"]}},
                {{"name": "ops", "token": "{OPS}", "rights": ["read", "lock", "admin"]}}]}}"#
        ),
    );
    service.process.signal(Signal::HUP);
    waiting.answer().is(401).kind("Unauthorized");
    while gone.next().is_some() {}
    eventually("no waiter", || (service.waiters("shop%2Fx") == 0).then_some(()));
    // What has not changed goes on.
    service.address.ask(&format!("DELETE /v1/holds/{hold}"), &ops, "").is(200);
    stays.until("released");
    assert!(!service.is_held("shop%2Fx"));
}

#[test]
fn requests_that_join_a_claim_are_counted() {
    let service = Service::start(&["--max-waiters", "2"]);
    service.hold("x", "");
    let (key, body) = ([("Idempotency-Key", "k")], r#"{"wait_ms": 60000}"#);
    let _first = service.wait_for("x", &key, body);
    let second = service.address.send("POST /v1/locks/x", &key, body);
    let third = || service.address.ask("POST /v1/locks/x", &key, body);
    std::thread::sleep(Duration::from_millis(300));
    third().is(429).kind("Busy");
    assert_eq!(service.waiters("x"), 1);
    drop(second);
    // A long name counts as many short ones.
    let service = Service::start(&["--max-holds", "20"]);
    let name = |length: usize| {
        let body = format!(r#"{{"locks": [{{"name": "{}"}}]}}"#, "x".repeat(length));
        service.ask("POST /v1/holds", &body)
    };
    name(21 * 1024).is(429).kind("Busy");
    let hold = name(20 * 1024).is(200).get("hold");
    service.lock("y", "").is(429);
    service.release(&hold).is(200);
    service.lock("y", "").is(200);
}

/// The key of a claim is no key to another's, and one for locks is none for tasks.
#[test]
fn a_key_of_one_kind_is_no_key_of_another() {
    let service = Service::start(&[]);
    let key = [("Idempotency-Key", "k")];
    service.address.ask("POST /v1/locks/x", &key, "").is(200);
    for line in ["POST /v1/elections/x/campaign", "POST /v1/locks/y"] {
        service.address.ask(line, &key, "").is(422).kind("Mismatch");
    }
    let body = r#"{"every": "1d"}"#;
    service.address.ask("POST /v1/once/x", &key, body).is(422).kind("Mismatch");
    service.address.ask("POST /v1/holds", &key, r#"{"locks": [{"name": "z"}]}"#).is(422);
    let twice = [("Idempotency-Key", "k"), ("Idempotency-Key", "l")];
    service.address.ask("POST /v1/locks/x", &twice, "").is(400).kind("Invalid");
}

/// Guesses at tokens cost the guesser as much as any request, and the file is compared by hashes.
#[test]
fn a_connection_is_closed_after_a_broken_request() {
    let service = Service::start(&[]);
    let mut kept = Kept::open(&service.address);
    kept.ask("GET /healthz").is(200);
    kept.write(b"\r\nnonsense\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
    kept.answer().unwrap().is(400).kind("Invalid");
    let end = kept.answer().unwrap_err();
    assert!(matches!(end.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset), "{end}");
    let _: client::Answer = service.ask("GET /healthz", "");
}
