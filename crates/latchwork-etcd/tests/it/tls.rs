//! Servers with TLS, and clients that trust them or not.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::net::TcpListener;
use std::path::Path;

use crate::common::*;
use latchwork_services::{Certificates, EtcdOptions, EtcdServer, Folder, etcdctl};
use latchwork_store::ErrorKind;

fn address(server: &EtcdServer, options: &[(&str, &Path)]) -> String {
    let options = options.iter().map(|(name, path)| format!("{name}={}", path.display()));
    format!("{}?{}", server.url(), options.collect::<Vec<_>>().join("&"))
}

async fn refused(url: &str) -> latchwork_store::Error {
    connect(url).await.expect_err("it is refused")
}

#[test]
fn tls_trusts_the_authority_that_is_named_and_no_other() {
    let server = EtcdServer::start(&EtcdOptions::new().tls()).unwrap();
    let folder = Folder::new().unwrap();
    let others = Certificates::make(folder.path()).unwrap();
    let files = server.certificates().unwrap();
    run(async {
        let good = address(&server, &[("ca", &files.ca_cert)]);
        let (locks, waiter) = (client(&good).await, client(&good).await);
        let guard = locks.mutex("k").acquire().await.unwrap();
        let mutex = waiter.mutex("k");
        let leaves = async {
            tokio::time::sleep(3 * SEC).await;
            guard.ensure_held().expect("it was renewed");
            guard.release().await.unwrap();
        };
        let (next, ()) = tokio::join!(mutex.acquire_within(20 * SEC), leaves);
        next.unwrap().release().await.unwrap();

        let wrong = address(&server, &[("ca", &others.ca_cert)]);
        for url in [server.url(), wrong] {
            let error = refused(&url).await;
            assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
            assert!(error.to_string().contains("certificate"), "{error}");
            assert!(error.next_step().unwrap().contains("ca="), "{error:?}");
        }
        for (name, path) in [("ca", "/nowhere/ca.pem"), ("ca", "/dev/null")] {
            let error = refused(&address(&server, &[(name, Path::new(path))])).await;
            assert!(error.next_step().is_some(), "{error}");
            assert!(matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Unreachable), "{error}");
        }
        // The address says no TLS, the server says TLS; and the other way round.
        let error = refused(&server.url().replacen("etcds", "etcd", 1)).await;
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert!(error.to_string().contains("the server speaks TLS at this port"), "{error}");
        assert!(error.next_step().unwrap().starts_with("use etcds://"), "{error}");
        let plain = EtcdServer::start(&EtcdOptions::new()).unwrap();
        let error = refused(&plain.url().replacen("etcd", "etcds", 1)).await;
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert!(error.next_step().unwrap().contains("TLS"), "{error:?}");
    });
}

/// A server without TLS answers a handshake with a line of HTTP and hangs up; the reset may
/// overtake the line.
#[test]
fn a_closed_handshake_suggests_tls() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for client in server.incoming() {
            // Closed with the handshake unread: a reset.
            let _ = client.and_then(|client| client.peek(&mut [0]));
        }
    });
    run(async {
        let error = refused(&format!("etcds://127.0.0.1:{port}")).await;
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert!(error.to_string().contains("reset"), "{error}");
        assert!(error.next_step().unwrap().contains("TLS"), "{error:?}");
    });
}

#[test]
fn the_certificate_has_to_be_for_the_name_that_is_said() {
    let server = EtcdServer::start(&EtcdOptions::new().tls()).unwrap();
    let ca = &server.certificates().unwrap().ca_cert;
    run(async {
        let named = |name: &str| format!("{}&server_name={name}", address(&server, &[("ca", ca)]));
        let locks = client(&named("localhost")).await;
        locks.mutex("k").acquire().await.unwrap().release().await.unwrap();
        let error = refused(&named("elsewhere.example")).await;
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert!(error.to_string().contains("certificate"), "{error}");
    });
}

#[test]
fn a_client_certificate_is_shown_where_it_is_asked_for() {
    let server = EtcdServer::start(&EtcdOptions::new().client_certificates()).unwrap();
    let files = server.certificates().unwrap();
    run(async {
        let ca = ("ca", &*files.ca_cert);
        let pair = [ca, ("cert", &files.client_cert), ("key", &files.client_key)];
        let locks = client(&address(&server, &pair)).await;
        locks.mutex("k").acquire().await.unwrap().release().await.unwrap();
        let error = refused(&address(&server, &[ca])).await;
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert!(error.next_step().unwrap().contains("cert=/path and key=/path"), "{error}");
        let error = refused(&address(&server, &pair[..2])).await;
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        let missing = [ca, ("cert", Path::new("/nowhere/c.pem")), ("key", &files.client_key)];
        let error = refused(&address(&server, &missing)).await;
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains("/nowhere/c.pem"), "{error}");
    });
}

/// Who has no password in the address is who the certificate says.
#[test]
fn a_certificate_names_the_user() {
    let server = EtcdServer::start(&EtcdOptions::new().client_certificates()).unwrap();
    let files = server.certificates().unwrap();
    let flags =
        [("cacert", &files.ca_cert), ("cert", &files.client_cert), ("key", &files.client_key)]
            .map(|(name, path)| format!("--{name}={}", path.display()));
    let flags: Vec<_> =
        flags.iter().map(String::as_str).chain(["--insecure-transport=false"]).collect();
    for args in [
        &["user", "add", "root:secret"][..],
        &["user", "grant-role", "root", "root"],
        &["user", "add", "client", "--no-password"],
        &["role", "add", "app"],
        &["role", "grant-permission", "app", "readwrite", "app:", "--prefix"],
        &["user", "grant-role", "client", "app"],
        &["auth", "enable"],
    ] {
        etcdctl(server.port(), &[&flags, args].concat()).unwrap();
    }
    run(async {
        let pair =
            [("ca", &*files.ca_cert), ("cert", &files.client_cert), ("key", &files.client_key)];
        let locks = client(&address(&server, &pair)).await;
        let guard = locks.mutex("app:k").acquire().await.unwrap();
        let error = locks.mutex("other").try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        tokio::time::sleep(3 * SEC).await;
        guard.ensure_held().expect("it was renewed");
        guard.release().await.unwrap();
    });
}

/// H286: all certificates and the authority are replaced, and the server is restarted with them.
#[test]
fn h286_a_hold_survives_the_rotation_of_all_certificates() {
    let mut server = EtcdServer::start(&EtcdOptions::new().client_certificates()).unwrap();
    let folder = Folder::new().unwrap();
    let others = Certificates::make(folder.path()).unwrap();
    let files = server.certificates().unwrap().clone();
    run(async {
        let pair =
            [("ca", &*files.ca_cert), ("cert", &files.client_cert), ("key", &files.client_key)];
        let locks = client(&address(&server, &pair)).await.ttl(3 * SEC);
        let guard = locks.mutex("k").acquire().await.unwrap();
        files.replace_with(&others).unwrap();
        server.restart().unwrap();
        tokio::time::sleep(6 * SEC).await;
        guard.ensure_held().expect("it was renewed with the new files");
        guard.release().await.unwrap();
    });
}

/// H285: `etcd --auto-tls` makes a certificate of P-521 that is its own authority; its file is named with `ca=`.
#[test]
fn h285_the_certificate_of_auto_tls_is_trusted() {
    let server = EtcdServer::start(&EtcdOptions::new().tls()).unwrap();
    let folder = Folder::new().unwrap();
    let [own, key] = Certificates::own_authority(folder.path(), "P-521", "IP:127.0.0.1").unwrap();
    let files = server.certificates().unwrap();
    // The server reads them for each connection.
    std::fs::copy(&key, &files.server_key).unwrap();
    std::fs::copy(&own, &files.server_cert).unwrap();
    run(async {
        let locks = client(&address(&server, &[("ca", &own)])).await;
        locks.mutex("k").acquire().await.unwrap().release().await.unwrap();
        let error = refused(&address(&server, &[("ca", &files.ca_cert)])).await;
        assert!(error.to_string().contains("that of an authority (CA:TRUE)"), "{error}");
        assert!(error.next_step().unwrap().contains("name this very certificate"), "{error}");
    });
}
