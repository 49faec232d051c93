//! Who may do what, against a running service.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use latchwork_services::{RedisOptions, RedisServer};
use rustix::process::Signal;

use super::Service;
use super::client::{Address, request};
use crate::common::{Running, Store, eventually};

pub(super) const WEB: &str = "web-0123456789abcdef";
pub(super) const OPS: &str = "ops-0123456789abcdef";

/// A file of tokens.
pub(super) fn tokens(dir: &tempfile::TempDir, text: &str) -> PathBuf {
    let path = dir.path().join("tokens.json");
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path
}

pub(super) fn usual(dir: &tempfile::TempDir) -> String {
    let text = format!(
        r#"{{"tokens": [
            {{"name": "web", "token": "{WEB}", "rights": ["read", "lock"], "prefixes": ["shop/"]}},
            {{"name": "ops", "token": "{OPS}", "rights": ["read", "lock", "admin"]}}]}}"#
    );
    tokens(dir, &text).display().to_string()
}

pub(super) fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

#[test]
fn the_unix_socket_is_for_its_user_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("http.sock");
    let listen = format!("unix:{}", path.display());
    let service = Service::start(&["--listen", &listen]);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let socket = Address::Unix(path.clone());
    let hold = socket.ask("POST /v1/locks/x", &[], "{}").is(200).get("hold");
    // Its user may do what an administrator may; somebody on loopback may not.
    let force = ("POST /v1/locks/x/force-release", r#"{"reason": "a trial"}"#);
    service.ask(force.0, force.1).is(403).kind("Forbidden");
    socket.ask(force.0, &[], force.1).is(200);
    let renewed = socket.ask(&format!("POST /v1/holds/{hold}/renew"), &[], "");
    assert_eq!(renewed.is(410).get("reason"), "forced");
    let Service { process, .. } = service;
    process.signal(Signal::TERM);
    assert_eq!(process.finish().code(), 0);
    assert!(!path.exists(), "the socket is left behind");
}

#[test]
fn every_answer_has_the_strict_headers() {
    let service = Service::start(&[]);
    for line in ["GET /", "GET /v1/locks", "GET /nothing", "PUT /v1/locks", "POST /v1/locks/%ff"] {
        let answer = service.ask(line, "");
        let head = answer.head.to_lowercase();
        for part in [
            "content-security-policy: default-src 'none'; script-src 'self';",
            "frame-ancestors 'none'",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "cross-origin-resource-policy: same-origin",
        ] {
            assert!(head.contains(part), "{line}: {part}: {head}");
        }
        assert!(!head.contains("access-control-allow"), "{head}");
    }
}

#[test]
fn other_hosts_need_tls_and_tokens() {
    let store = Store::new();
    for (options, part) in [
        (&[][..], "there is no TLS"),
        (&["--insecure-plain-http"], "there are no tokens"),
        (&["--require-token"], "--tokens"),
        (&["--tokens", "/nonexistent"], "/nonexistent"),
        (&["--tls-cert", "/nonexistent"], "--tls-key"),
    ] {
        let mut args = vec!["serve", "--listen", "0.0.0.0:0"];
        args.extend(options);
        let refused = store.output(&args);
        assert_eq!(refused.code(), 64, "{refused:?}");
        assert!(refused.stderr.contains(part), "{refused:?}");
    }
    let mut args = vec!["serve", "--listen", "0.0.0.0:0"];
    args.extend(["--insecure-plain-http", "--insecure-no-tokens"]);
    Running::start(store.latchwork(&args)).stderr.until("ready");
    // The locks of a process end with it, while clients rely on them.
    let refused = store.output(&["--store", "mem:", "serve"]);
    assert_eq!(refused.code(), 64, "{refused:?}");
}

#[test]
fn tokens_have_rights_on_names() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(&["--tokens", &usual(&dir), "--require-token"]);
    let ask = |token: &str, line: &str, body: &str| {
        service.address.ask(line, &[("Authorization", &bearer(token))], body)
    };
    for line in ["GET /v1/locks", "POST /v1/locks/x", "GET /v1/events", "GET /metrics"] {
        let refused = service.ask(line, "");
        refused.is(401).kind("Unauthorized");
        assert!(refused.head.to_lowercase().contains("www-authenticate: bearer"), "{refused:?}");
        ask("web-0123456789abcdeg", line, "").is(401);
    }
    service.address.ask("GET /v1/locks", &[("Authorization", "Basic d2ViOg==")], "").is(401);
    // These say nothing of locks.
    for line in ["GET /healthz", "GET /readyz", "GET /openapi.json", "GET /"] {
        assert_eq!(service.ask(line, "").status, 200, "{line}");
    }
    ask(WEB, "POST /v1/locks/shop%2F1", "").is(200);
    ask(WEB, "POST /v1/locks/other", "").is(403).kind("Forbidden");
    ask(WEB, "POST /v1/holds", r#"{"locks": [{"name": "shop/2"}, {"name": "x"}]}"#).is(403);
    ask(WEB, "POST /v1/once/x", r#"{"every": "1d"}"#).is(403);
    ask(WEB, "POST /v1/elections/x/campaign", "").is(403);
    ask(WEB, "GET /v1/locks/other", "").is(403);
    let reason = r#"{"reason": "a trial"}"#;
    ask(WEB, "POST /v1/locks/shop%2F1/force-release", reason).is(403);
    ask(WEB, "POST /v1/locks/shop%2F1/resize", r#"{"limit": 5}"#).is(403);
    ask(WEB, "POST /v1/once/shop%2F1/reset", "").is(403);
    ask(OPS, "POST /v1/locks/other", "").is(200);
    let seen = ask(WEB, "GET /v1/locks", "").is(200).json();
    let names: Vec<_> = seen["locks"].as_array().unwrap().iter().map(|it| &it["name"]).collect();
    assert_eq!(names, ["shop/1"], "what it may not see");
    ask(OPS, "POST /v1/locks/other/force-release", r#"{"reason": " "}"#).is(400);
    ask(OPS, "POST /v1/locks/other/force-release", reason).is(200);
}

/// A refusal shows a lock as `GET` does, and so only to a token with the right `read`.
#[test]
fn a_token_without_read_sees_no_holder() {
    let dir = tempfile::tempdir().unwrap();
    let text = format!(
        r#"{{"tokens": [{{"name": "web", "token": "{WEB}", "rights": ["lock"]}},
            {{"name": "ops", "token": "{OPS}", "rights": ["read", "lock"]}}]}}"#
    );
    let file = tokens(&dir, &text).display().to_string();
    let service = Service::start(&["--tokens", &file, "--require-token"]);
    let ask = |token: &str, line: &str, body: &str| {
        service.address.ask(line, &[("Authorization", &bearer(token))], body)
    };
    let body =
        r#"{"ttl_ms": 60000, "mode": "read", "holder": "a secret", "value": {"a": "a secret"}}"#;
    ask(OPS, "POST /v1/locks/x", body).is(200);
    ask(OPS, "POST /v1/once/y", r#"{"every": "1d", "holder": "a secret"}"#).is(200);
    let mine = ask(WEB, "POST /v1/locks/x", r#"{"mode": "read"}"#).is(200).get("hold");
    let several = r#"{"locks": [{"name": "x", "mode": "write"}, {"name": "z"}]}"#;
    for (line, body) in [
        ("POST /v1/locks/x", r#"{"mode": "write"}"#),
        ("POST /v1/locks/x", r#"{"mode": "write", "wait_ms": 50}"#),
        ("POST /v1/holds", several),
        (&*format!("POST /v1/holds/{mine}/upgrade"), r#"{"wait_ms": 50}"#),
    ] {
        let refused = ask(WEB, line, body);
        refused.is(409).kind("TimedOut");
        assert!(!refused.text.contains("secret"), "{refused:?}");
        assert!(refused.json().get("lock").is_none(), "{refused:?}");
    }
    let skipped = ask(WEB, "POST /v1/once/y", r#"{"every": "1d"}"#);
    assert!(!skipped.is(200).text.contains("secret"), "{skipped:?}");
    let refused = ask(OPS, "POST /v1/locks/x", r#"{"mode": "write"}"#);
    assert!(refused.is(409).text.contains("a secret"), "{refused:?}");
}

/// H561: the store's address and its settings are not for a tenant who may see the locks of one prefix.
#[test]
fn h561_the_store_is_examined_for_tokens_of_all_names_alone() {
    let dir = tempfile::tempdir().unwrap();
    let text = format!(
        r#"{{"tokens": [{{"name": "web", "token": "{WEB}", "rights": ["read", "lock", "admin"], "prefixes": ["shop/"]}},
            {{"name": "job", "token": "job-0123456789abcdef", "rights": ["lock"]}},
            {{"name": "see", "token": "see-0123456789abcdef", "rights": ["read"], "prefixes": ["a", ""]}},
            {{"name": "ops", "token": "{OPS}", "rights": ["admin"]}}]}}"#
    );
    let file = tokens(&dir, &text).display().to_string();
    let service = Service::start(&["--tokens", &file, "--require-token"]);
    let ask = |token: &str| {
        service.address.ask("GET /v1/doctor", &[("Authorization", &bearer(token))], "")
    };
    let limited = ask(WEB);
    limited.is(403).kind("Forbidden").step("use a token without prefixes");
    assert!(limited.get("error").contains("prefixes"), "{limited:?}");
    let blind = ask("job-0123456789abcdef");
    blind.is(403).kind("Forbidden");
    assert!(blind.get("error").contains("neither the right \"read\" nor \"admin\""), "{blind:?}");
    for token in [OPS, "see-0123456789abcdef"] {
        assert!(ask(token).is(200).get("store").starts_with("file:"));
    }
}

/// No page can send a token of another site, so a name that leads here is of no use to it.
#[test]
fn a_request_with_a_token_may_use_any_host() {
    let dir = tempfile::tempdir().unwrap();
    let file = usual(&dir);
    let (ops, wrong) = (bearer(OPS), bearer("wrong-0123456789"));
    let asked = |options: &[&str], cases: &[(&[(&str, &str)], u16)]| {
        let service = Service::start(options);
        for (headers, status) in cases {
            let headers = [&[("Host", "locks.example")], *headers].concat();
            let got = service.address.ask("POST /v1/locks/x", &headers, r#"{"mode": "read"}"#);
            assert_eq!(got.status, *status, "{options:?} {headers:?}: {got:?}");
        }
        // The page itself shows nothing.
        let page = service.address.ask("GET /", &[("Host", "locks.example")], "");
        assert_eq!(page.status == 200, options.contains(&"--require-token"), "{page:?}");
    };
    let with_a_token: &[(&[(&str, &str)], u16)] = &[
        (&[("Authorization", &ops)], 200),
        (&[("Authorization", &ops), ("Origin", "http://locks.example")], 200),
        (&[("Authorization", &ops), ("Origin", "http://evil.example")], 403),
        (&[("Authorization", &ops), ("Sec-Fetch-Site", "cross-site")], 403),
        (&[("Authorization", &wrong)], 401),
    ];
    asked(&["--tokens", &file], &[with_a_token, &[(&[], 403)]].concat());
    asked(&["--tokens", &file, "--require-token"], &[with_a_token, &[(&[], 401)]].concat());
}

/// A page of another name reaches an address by that name, never by the address itself.
#[test]
fn a_service_without_tokens_is_used_by_its_address() {
    let open = ["--insecure-no-tokens"];
    for (options, host, status) in [
        (&open[..], "192.0.2.7:7117", 200),
        (&open, "[2001:db8::7]:7117", 200),
        (&open, "locks.example:7117", 403),
        (&["--insecure-no-tokens", "--allow-host", "locks.example"], "locks.example:7117", 200),
        (&[], "192.0.2.7:7117", 403),
    ] {
        let service = Service::start(options);
        let got = service.address.ask("GET /v1/locks", &[("Host", host)], "");
        assert_eq!(got.status, status, "{options:?} {host}: {got:?}");
    }
}

#[test]
fn a_hold_belongs_to_the_token_that_made_it() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(&["--tokens", &usual(&dir)]);
    let ask = |token: &str, line: &str| {
        service.address.ask(line, &[("Authorization", &bearer(token))], "")
    };
    let hold = ask(WEB, "POST /v1/locks/shop%2F1").is(200).get("hold");
    for (verb, end) in [("GET", ""), ("DELETE", ""), ("POST", "/renew"), ("POST", "/succeed")] {
        // As if there were none: nobody learns which there are.
        let line = format!("{verb} /v1/holds/{hold}{end}");
        ask(OPS, &line).is(404).kind("NotFound");
        service.ask(&line, "").is(404);
    }
    ask(WEB, &format!("DELETE /v1/holds/{hold}")).is(200);
    // An Idempotency-Key, too.
    let key = |token: &str| {
        let headers = [("Authorization", &*bearer(token)), ("Idempotency-Key", "k")];
        service.address.ask("POST /v1/locks/shop%2F2", &headers, "")
    };
    key(WEB).is(200);
    key(OPS).is(409);
}

#[test]
fn h159_no_web_page_uses_the_service() {
    let service = Service::start(&["--allow-host", "locks.example"]);
    let ask = |headers: &[(&str, &str)]| service.address.ask("POST /v1/locks/x", headers, "{}");
    for headers in [
        &[("Origin", "http://evil.example")][..],
        &[("Origin", "null")],
        &[("Host", "localhost"), ("Origin", "http://localhost:8080")],
        &[("Sec-Fetch-Site", "cross-site")],
        // A name of somebody else that leads to 127.0.0.1.
        &[("Host", "evil.example")],
        &[("Host", "evil.example"), ("Origin", "http://evil.example")],
    ] {
        ask(headers).is(403).kind("Forbidden");
    }
    // What a form can send.
    for kind in ["text/plain", "application/x-www-form-urlencoded"] {
        ask(&[("Content-Type", kind)]).is(415);
    }
    service.address.ask("OPTIONS /v1/locks/x", &[("Origin", "http://evil.example")], "").is(403);
    assert!(!service.is_held("x"));
    ask(&[("Host", "locks.example"), ("Origin", "http://locks.example")]).is(200);
}

#[test]
fn large_requests_are_refused() {
    let service = Service::start(&[]);
    let long = "x".repeat(300_000);
    let refused = service.lock("x", &format!(r#"{{"holder": "{long}"}}"#));
    refused.is(413);
    service.lock("x", &format!(r#"{{"holder": "{}"}}"#, &long[..2_000])).is(400).kind("Invalid");
    let name = &long[..70_000];
    let locks = format!(r#"{{"locks": [{{"name": "{name}"}}]}}"#);
    service.ask("POST /v1/holds", &locks).is(400).kind("Invalid");
    let fits = format!(r#"{{"locks": [{{"name": "{}"}}]}}"#, &long[..64 * 1024]);
    service.ask("POST /v1/holds", &fits).is(200);
    let many: Vec<_> = (0..65).map(|n| format!(r#"{{"name": "{n}"}}"#)).collect();
    service.ask("POST /v1/holds", &format!(r#"{{"locks": [{}]}}"#, many.join(","))).is(400);
    // The head: refused before anything is known of it.
    let head = service.lock(name, "");
    assert!([414, 431].contains(&head.status), "{head:?}");
    service.lock("x", &"[".repeat(100_000)).is(400);
    service.lock("x", "").is(200);
}

/// Both may take 20 s at the most.
#[test]
fn h160_slow_clients_are_cut() {
    let service = Service::start(&[]);
    let limit = Duration::from_secs(35);
    let start = Instant::now();
    let mut head = service.address.connect();
    head.write_all(b"GET /v1/locks HTTP/1.1\r\nHost: ").unwrap();
    let mut body = service.address.connect();
    let text = request("POST /v1/locks/x", &[], "{\"ttl_ms\": 1000}");
    body.write_all(&text.as_bytes()[..text.len() - 4]).unwrap();
    let mut said = String::new();
    body.read_to_string(&mut said).unwrap();
    assert!(said.contains(" 408 ") && said.contains("\"kind\":\"TimedOut\""), "{said}");
    let mut rest = Vec::new();
    match head.read_to_end(&mut rest) {
        Ok(_) => {}
        Err(error) => assert_ne!(error.kind(), ErrorKind::WouldBlock, "it is open yet"),
    }
    assert!(start.elapsed() < limit, "{:?}", start.elapsed());
    service.lock("x", "").is(200);
}

#[test]
fn each_token_has_so_many_holds_and_waiters() {
    let service = Service::start(&["--max-holds", "3", "--max-waiters", "2"]);
    service.hold("a", "");
    let both = r#"{"locks": [{"name": "b"}, {"name": "c"}]}"#;
    let both = service.ask("POST /v1/holds", both).is(200).get("hold");
    let refused = service.lock("d", "");
    refused.is(429).kind("Busy");
    assert!(refused.head.to_lowercase().contains("retry-after: "), "{refused:?}");
    service.release(&both).is(200);
    let body = r#"{"wait_ms": 20000}"#;
    let one = service.wait_for("a", &[], body);
    let two = service.wait_for("a", &[], body);
    service.lock("b", body).is(429).kind("Busy");
    drop((one, two));
    eventually("room", || (service.lock("b", "").status == 200).then_some(()));
}

#[test]
fn a_signal_reloads_the_tokens() {
    let dir = tempfile::tempdir().unwrap();
    let file = usual(&dir);
    let service = Service::start(&["--tokens", &file, "--require-token"]);
    let status = |token: &str| {
        let headers = [("Authorization", &*bearer(token))];
        service.address.ask("GET /v1/locks", &headers, "").status
    };
    assert_eq!((status(OPS), status("new-0123456789abcdef")), (200, 401));
    tokens(&dir, "{ this is no file of tokens");
    service.process.signal(Signal::HUP);
    service.process.stderr.until("the tokens stay as they were");
    assert_eq!(status(OPS), 200);
    tokens(
        &dir,
        r#"{"tokens": [{"name": "new", "token": "new-0123456789abcdef", "rights": ["read"]}]}"#,
    );
    service.process.signal(Signal::HUP);
    service.process.stderr.until("the tokens were read again");
    assert_eq!((status(OPS), status("new-0123456789abcdef")), (401, 200));
}

/// What cannot be used is logged; then the new login counts, also for `doctor`, which connects anew.
#[test]
fn h278_a_service_reads_the_login_of_its_store_again() {
    let rules = "app on >old ~* &* +@all";
    let server = RedisServer::start(&RedisOptions::new().user(rules)).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("store");
    let url = |password: &str| server.url().replacen("://", &format!("://app:{password}@"), 1);
    fs::write(&file, url("old")).unwrap();
    let service = Service::with_store_file(&file);
    let hold = service.hold("a", "");
    for (text, said) in [
        ("redis://app:new@127.0.0.2".to_owned(), "names another host"),
        (String::new(), "it is empty"),
        (url("new"), "the store's login was read again"),
    ] {
        fs::write(&file, text).unwrap();
        service.process.signal(Signal::HUP);
        let line = service.process.stderr.until(said);
        assert!(!line.contains("app:"), "{line}");
    }
    server.command(&["ACL", "SETUSER", "app", "resetpass", ">new"]).unwrap().ok().unwrap();
    server.command(&["CLIENT", "KILL", "USER", "app"]).unwrap();
    service.ask("GET /v1/doctor", "").is(200);
    eventually("a renewal", || (service.renew(&hold).status == 200).then_some(()));
    // Without a signal: the refusal says it.
    fs::write(&file, url("last")).unwrap();
    server.command(&["ACL", "SETUSER", "app", "resetpass", ">last"]).unwrap().ok().unwrap();
    server.command(&["CLIENT", "KILL", "USER", "app"]).unwrap();
    eventually("a renewal", || (service.renew(&hold).status == 200).then_some(()));
    service.release(&hold).is(200);
}

#[test]
fn logs_have_an_audit_line_and_no_secret() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(&["-v", "--json", "--tokens", &usual(&dir)]);
    let headers = [("Authorization", &*bearer(OPS))];
    let hold = service.address.ask("POST /v1/locks/x", &headers, "").is(200).get("hold");
    service.address.ask(&format!("POST /v1/holds/{hold}/renew"), &headers, "").is(200);
    service
        .address
        .ask("GET /v1/locks", &[("Authorization", "Bearer wrong-012345678")], "")
        .is(401);
    let reason = r#"{"reason": "stuck\n2026 INFO forged \u202e"}"#;
    service.address.ask("POST /v1/locks/x/force-release", &headers, reason).is(200);
    let Service { process, .. } = service;
    process.signal(Signal::TERM);
    let log = process.finish().stderr;
    let audit: Vec<_> = log.lines().filter(|line| line.contains("latchwork::audit")).collect();
    let [audit] = &audit[..] else { panic!("{log}") };
    let line: serde_json::Value = serde_json::from_str(audit).unwrap();
    assert_eq!((&line["by"], &line["act"]), (&"ops".into(), &"force-release".into()), "{line}");
    assert!(line["reason"].as_str().unwrap().contains("stuck"), "{line}");
    for line in log.lines() {
        assert!(serde_json::from_str::<serde_json::Value>(line).is_ok(), "{line}");
    }
    for secret in [WEB, OPS, "wrong-012345678", &hold] {
        assert!(!log.contains(secret), "{secret}: {log}");
    }
}
