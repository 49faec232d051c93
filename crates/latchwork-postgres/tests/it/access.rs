//! Who may connect, and what such a user needs: passwords, certificates, rights.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::time::Instant;

use crate::common::*;
use latchwork_services::{Certificates, Folder, PostgresOptions, PostgresServer};
use latchwork_store::doctor::Severity;
use latchwork_store::{Backend, ErrorKind, Linger, Mode, Released};

/// The rights of docs/postgres.md.
fn least_rights() -> String {
    let page = include_str!("../../../../docs/postgres.md");
    let start = page.find("GRANT USAGE").expect("the page lists them");
    page[start..].split("```").next().unwrap().to_owned()
}

#[test]
fn the_rights_of_the_page_are_enough() {
    let server = server();
    server.psql("CREATE ROLE app LOGIN").unwrap();
    run(async {
        let url = format!("postgres://app@127.0.0.1:{}/postgres", server.port());
        let denied = bare(&url).await.try_acquire(&claim("k")).await.expect_err("no rights yet");
        assert_eq!(denied.kind, latchwork_store::BackendErrorKind::Denied, "{denied:?}");
        assert!(!examine(&url).await.is_fit());
        server.psql(&least_rights()).unwrap();
        let guarded = format!("{url}?guard=true&max_ttl=1h");
        prepare(&format!("{}?guard=true&max_ttl=1h", server.url())).await.unwrap();
        let client = bare(&guarded).await;
        for mode in [Mode::Exclusive, Mode::Read, Mode::Permits { take: 1, of: 2 }] {
            let claim = claim(&format!("{mode:?}")).with(|it| it.mode = mode);
            client.granted(&claim).await;
            assert!(client.held(&claim).await);
            let waits = like(&claim).with(|it| {
                it.mode = if mode == Mode::Read { Mode::Write } else { mode };
                if let Mode::Permits { take, .. } = &mut it.mode {
                    *take = 2;
                }
            });
            client.blocked(&waits).await;
            let linger = Linger::For(SEC);
            assert_eq!(client.release(&claim, linger).await.unwrap(), Released::Yes);
            client.acquired(&waits).await;
            assert_eq!(client.released(&waits).await, Released::Yes);
        }
        let report = examine(&guarded).await;
        assert!(report.is_fit(), "{report:?}");
    });
}

#[test]
fn a_password_is_proven_by_scram_and_a_wrong_one_is_denied() {
    let options = PostgresOptions::new()
        .setting("password_encryption=scram-sha-256")
        .access("host all app all scram-sha-256");
    let server = server_with(&options, "");
    server.psql("CREATE ROLE app LOGIN PASSWORD 'p@ss/w:rd'").unwrap();
    server.psql(&least_rights()).unwrap();
    run(async {
        let url = |login: &str| format!("postgres://{login}@127.0.0.1:{}/postgres", server.port());
        bare(&url("app:p%40ss%2Fw%3Ard")).await.granted(&claim("k")).await;
        let error = connect(&url("app:wrong")).await.err().expect("it is refused");
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(!error.to_string().contains("wrong"), "{error}");
        let error = connect(&url("app")).await.err().expect("it is refused");
        assert!(error.to_string().contains("password"), "{error}");
        let error = connect(&url("nobody")).await.err().expect("there is no such user");
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        let wrong = format!("postgres://postgres@127.0.0.1:{}/nowhere", server.port());
        let error = connect(&wrong).await.err().expect("there is no such database");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    });
}

#[test]
fn tls_checks_the_server_and_shows_the_clients_certificate() {
    let options = PostgresOptions::new()
        .with_tls()
        .setting("listen_addresses=127.0.0.1,127.0.0.2")
        .access("host all all 127.0.0.2/32 trust")
        .access("hostssl all client all cert")
        .access("hostnossl all client all reject");
    let server = server_with(&options, "");
    server.psql("CREATE ROLE client LOGIN").unwrap();
    server.psql(&least_rights().replace("app", "client")).unwrap();
    let folder = Folder::new().unwrap();
    let others = Certificates::make(folder.path()).unwrap();
    let files = server.certificates().unwrap().clone();
    let url = |user: &str, options: &[(&str, &Path)]| {
        let options: Vec<_> =
            options.iter().map(|(name, path)| format!("{name}={}", path.display())).collect();
        let port = server.port();
        format!(
            "postgres://{user}@127.0.0.1:{port}/postgres?sslmode=verify-full&{}",
            options.join("&")
        )
    };
    run(async {
        let ca = ("sslrootcert", &*files.ca_cert);
        let (cert, key) = (("sslcert", &*files.client_cert), ("sslkey", &*files.client_key));
        let good = url("client", &[ca, cert, key]);
        let (holder, waiter) = (bare(&good).await, bare(&good).await);
        let (held, waits) = (claim("k"), claim("k"));
        holder.granted(&held).await;
        waiter.blocked(&waits).await;
        holder.released(&held).await;
        waiter.acquired(&waits).await;
        let ssl = "SELECT bool_and(s.ssl) FROM pg_stat_ssl s JOIN pg_stat_activity USING (pid) WHERE usename = 'client'";
        assert_eq!(server.psql(ssl).unwrap(), "t");
        assert!(examine(&good).await.find("encryption").unwrap().found.contains("is checked"));

        let wrong = [("sslrootcert", &*others.ca_cert), cert, key];
        let error = connect(&url("client", &wrong)).await.err().expect("another authority");
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert!(error.next_step().unwrap().contains("sslrootcert=/path"), "{error}");
        assert!(error.to_string().contains("certificate"), "{error}");
        let elsewhere = good.replace("127.0.0.1", "127.0.0.2");
        let error = connect(&elsewhere).await.err().expect("the certificate is for another name");
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert!(error.to_string().contains("certificate"), "{error}");
        bare(&format!("postgres://postgres@127.0.0.2:{}/postgres?sslmode=require", server.port()))
            .await;
        let error = connect(&url("client", &[ca])).await.err().expect("no certificate");
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        // Unchecked, as psql does it.
        let unchecked =
            format!("postgres://postgres@127.0.0.1:{}/postgres?sslmode=require", server.port());
        bare(&unchecked).await;
    });
    let plain = PostgresOptions::new();
    let plain = server_with(&plain, "");
    run(async {
        let error = connect(&format!("{}?sslmode=require", plain.url()))
            .await
            .err()
            .expect("it has no TLS");
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        bare(&format!("{}?sslmode=prefer", plain.url())).await;
        // The system leads this address to itself, but it is none of its loopback.
        let url = plain.url().replace("127.0.0.1", "0.0.0.0");
        for (mode, severity, remedy) in [
            ("disable", Severity::Info, "use sslmode=verify-full"),
            (
                "prefer",
                Severity::Warning,
                "switch ssl on in the server, and use sslmode=verify-full",
            ),
        ] {
            let report = examine(&format!("{url}?sslmode={mode}")).await;
            let found = report.find("encryption").unwrap();
            assert_eq!((found.severity, &*found.remedy), (severity, remedy), "{report:?}");
        }
    });
}

/// A server with TLS and these lines of `pg_hba.conf`, and an address of its user `app` by the mode.
fn with_tls_and(lines: &[&str]) -> (PostgresServer, impl Fn(&str) -> String) {
    let options = PostgresOptions::new()
        .with_tls()
        .setting("password_encryption=scram-sha-256")
        .setting("log_connections=on");
    let server =
        server_with(&lines.iter().fold(options, |options, line| options.access(*line)), "");
    server.psql("CREATE ROLE app LOGIN PASSWORD 'pw'").unwrap();
    server.psql(&least_rights()).unwrap();
    let port = server.port();
    let url =
        move |mode: &str| format!("postgres://app:pw@127.0.0.1:{port}/postgres?sslmode={mode}");
    (server, url)
}

/// How many connections the server has taken.
fn connections_to(server: &PostgresServer) -> usize {
    let log = std::fs::read_to_string(server.folder().join("log")).unwrap();
    log.matches("connection received").count()
}

const USES_TLS: &str = "SELECT bool_or(s.ssl) FROM pg_stat_ssl s JOIN pg_stat_activity USING (pid) WHERE usename = 'app'";

/// H526: the server has TLS, and lets this user in without it alone. Only `prefer` does so.
#[test]
fn h526_prefer_logs_in_without_tls_where_the_server_wants_it_so() {
    let (server, url) =
        with_tls_and(&["hostnossl all app all scram-sha-256", "hostssl all app all reject"]);
    run(async {
        let (holder, waiter) = (bare(&url("prefer")).await, bare(&url("prefer")).await);
        let (held, waits) = (claim("k"), claim("k"));
        holder.granted(&held).await;
        waiter.blocked(&waits).await;
        holder.released(&held).await;
        waiter.acquired(&waits).await;
        assert_eq!(server.psql(USES_TLS).unwrap(), "f");
        let report = examine(&url("prefer").replace("127.0.0.1", "0.0.0.0")).await;
        let remedy = &report.find("encryption").unwrap().remedy;
        assert!(remedy.starts_with("let pg_hba.conf take this user by TLS"), "{report:?}");
        for mode in ["require", "verify-full"] {
            let mode = match server.certificates() {
                Some(files) if mode != "require" => {
                    format!("{mode}&sslrootcert={}", files.ca_cert.display())
                }
                _ => mode.to_owned(),
            };
            let before = connections_to(&server);
            let error = connect(&url(&mode)).await.err().expect("TLS is refused");
            assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
            assert_eq!(connections_to(&server) - before, 1, "{mode} tries nothing else");
        }
        let wrong = url("prefer").replace(":pw@", ":other@");
        let error = connect(&wrong).await.err().expect("the password is wrong");
        assert!(error.to_string().contains("password authentication failed"), "{error}");
    });
}

/// H526: the other way round, and if neither way is open.
#[test]
fn h526_prefer_uses_tls_alone_where_the_server_wants_it_so() {
    let (server, url) =
        with_tls_and(&["hostssl all app all scram-sha-256", "hostnossl all app all reject"]);
    run(async {
        let client = bare(&url("prefer")).await;
        client.granted(&claim("k")).await;
        assert_eq!(server.psql(USES_TLS).unwrap(), "t");
    });
    let (server, url) = with_tls_and(&["host all app all reject"]);
    run(async {
        let before = connections_to(&server);
        let error = connect(&url("prefer")).await.err().expect("nobody is let in");
        assert!(error.to_string().contains("SSL encryption"), "what TLS was told: {error}");
        assert!(error.next_step().unwrap().contains("pg_hba.conf"), "{error}");
        assert_eq!(connections_to(&server) - before, 2);
    });
}

/// H526: a password that was given within TLS is not given again without it, as psql would.
#[test]
fn h526_no_password_is_repeated_without_tls() {
    let (server, url) = with_tls_and(&["host all app all password"]);
    let refused = |url: &str| {
        let before = connections_to(&server);
        let error = run(connect(url)).err().expect("it is refused");
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert_eq!(connections_to(&server) - before, 1, "{error}");
    };
    refused(&url("prefer").replace(":pw@", ":wrong@"));
    // The server says so after it has seen the password, and by the same code as `pg_hba.conf`.
    server.psql("ALTER ROLE app NOLOGIN").unwrap();
    refused(&url("prefer"));
}

/// Takes connections, and answers the request for TLS with this.
fn mute(word: &'static [u8]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            // The request for TLS has eight bytes.
            if stream.read_exact(&mut [0; 8]).is_ok() {
                stream.write_all(word).unwrap();
            }
            open.push(stream);
        }
    });
    port
}

/// H527: it stops before the word about TLS, after it, and in the login. The limit counts, and another host is used.
#[test]
fn h527_a_server_that_falls_silent_is_given_up_in_time() {
    let server = server();
    run(async {
        for word in [&b""[..], b"S", b"N"] {
            let port = mute(word);
            let url =
                |hosts: &str| format!("postgres://postgres@{hosts}/postgres?connect_timeout=2");
            let start = Instant::now();
            let error = connect(&url(&format!("127.0.0.1:{port}"))).await.err().expect("no answer");
            let took = start.elapsed();
            assert!(took >= 2 * SEC && took < stalls::widened(3 * SEC, took), "{took:?}");
            assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
            let said =
                format!("127.0.0.1:{port}: it takes connections, and did not answer within 2s");
            assert!(error.to_string().contains(&said), "{error}");
            assert!(error.next_step().unwrap().contains("connect_timeout"), "{error}");
            let start = Instant::now();
            let both = format!("127.0.0.1:{port},127.0.0.1:{}", server.port());
            bare(&url(&both)).await.granted(&claim(&format!("{word:?}"))).await;
            println!("beside a host that falls silent after {word:?}: {:?}", start.elapsed());
            stalls::in_time(start, 2 * SEC);
        }
    });
}

/// Of several hosts the one that takes writes is used.
#[test]
fn h412_a_standby_is_passed_by_and_examined() {
    let durable = PostgresOptions::new().setting("fsync=on");
    let primary = server_with(&durable, "");
    let standby = primary.copy(true).unwrap();
    run(async {
        let both = format!(
            "postgres://postgres@127.0.0.1:{},127.0.0.1:{}/postgres",
            standby.port(),
            primary.port()
        );
        bare(&both).await.granted(&claim("k")).await;
        for error in [connect(&standby.url()).await.err(), prepare(&standby.url()).await.err()] {
            let error = error.expect("it takes no writes");
            assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
            assert!(error.to_string().contains("is a standby"), "{error}");
            assert!(error.next_step().unwrap().starts_with("name the primary, or all"), "{error}");
        }
        // H412: alone, it is no store for locks.
        let alone = examine(&standby.url()).await;
        assert!(alone.find("primary").is_some() && !alone.is_fit(), "{alone:?}");
        let report = examine(&both).await;
        assert!(report.is_fit() && report.find("role").is_some(), "{report:?}");
        assert!(report.find("replication").unwrap().found.contains("asynchronous"));
        standby.psql("SELECT pg_promote()").unwrap();
        let report = examine(&both).await;
        assert!(report.find("primaries").is_some() && !report.is_fit(), "{report:?}");
    });
}

/// H286: all certificates and the authority are replaced, and each connection is cut.
#[test]
fn h286_a_hold_survives_the_rotation_of_all_certificates() {
    let options = PostgresOptions::new()
        .with_tls()
        .access("hostssl all client all cert")
        .access("hostnossl all client all reject");
    let server = server_with(&options, "");
    server.psql("CREATE ROLE client LOGIN").unwrap();
    server.psql(&least_rights().replace("app", "client")).unwrap();
    let folder = Folder::new().unwrap();
    let others = Certificates::make(folder.path()).unwrap();
    let files = server.certificates().unwrap().clone();
    let url = format!(
        "postgres://client@127.0.0.1:{}/postgres?sslmode=verify-full&sslrootcert={}&sslcert={}&sslkey={}",
        server.port(),
        files.ca_cert.display(),
        files.client_cert.display(),
        files.client_key.display()
    );
    run(async {
        let client = bare(&url).await;
        let guard = client.locks().mutex("k").ttl(3 * SEC).acquire().await.unwrap();
        files.replace_with(&others).unwrap();
        server.psql("SELECT pg_reload_conf()").unwrap();
        let cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = 'client'";
        server.psql(cut).unwrap();
        tokio::time::sleep(6 * SEC).await;
        guard.ensure_held().expect("it was renewed with the new files");
        guard.release().await.unwrap();
        // A server that lets in by TLS alone says so.
        let plain =
            format!("postgres://client@127.0.0.1:{}/postgres?sslmode=disable", server.port());
        let error = connect(&plain).await.err().expect("TLS alone");
        assert!(error.next_step().unwrap().contains("sslmode=require"), "{error}");
    });
}
