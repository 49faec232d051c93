//! Who may do what, against a running service.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::Service;
use super::client::Address;

#[test]
fn the_unix_socket_is_for_its_user_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("http.sock");
    let listen = format!("unix:{}", path.display());
    let service = Service::start(&["--listen", &listen]);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let socket = Address::Unix(path.clone());
    socket.ask("POST /v1/locks/x", &[], "{}").is(200);
    // Its user may do what an administrator may; somebody on loopback may not.
    let force = ("POST /v1/locks/x/force-release", r#"{"reason": "a trial"}"#);
    service.ask(force.0, force.1).is(403).kind("Forbidden");
    socket.ask(force.0, &[], force.1).is(200);
    let Service { process, .. } = service;
    process.signal(rustix::process::Signal::TERM);
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
