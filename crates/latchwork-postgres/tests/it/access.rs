//! Who may connect, and what such a user needs: passwords, certificates, rights.

use std::path::Path;

use crate::common::*;
use latchwork_services::{Certificates, Folder, PostgresOptions};
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
