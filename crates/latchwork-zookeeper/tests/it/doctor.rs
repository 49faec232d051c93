//! The examination of servers, by each way in that the locks have.

#![allow(clippy::disallowed_methods, reason = "tests")]

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

use crate::common::*;
use latchwork::Driver;
use latchwork_store::ErrorKind;
use latchwork_store::doctor::{Report, Severity};
use latchwork_zookeeper::{ZooKeeperBackend, ZooKeeperConfig};

async fn examine(url: &str) -> Result<Report, latchwork_store::Error> {
    let driver = Driver::start().unwrap();
    latchwork_zookeeper::doctor(ZooKeeperConfig::parse(url).unwrap(), driver.io()).await
}

/// A server that works is found fit, and was asked for its version, role and ticks.
async fn is_fit_and_known(url: &str) {
    let report = examine(url).await.unwrap();
    assert!(report.is_fit(), "{url}: {report:#?}");
    let found = |code| report.find(code).map_or("nothing", |finding| &*finding.found);
    assert!(found("version").starts_with("ZooKeeper 3."), "{url}: {report:#?}");
    assert!(found("serving").contains("alone"), "{url}: {report:#?}");
    assert!(found("ticks").starts_with("tickTime 200"), "{url}: {report:#?}");
    for (code, remedy) in [
        ("serving", "use an ensemble of three or five"),
        ("servers", "name all servers: zk://h1,h2,h3"),
    ] {
        let finding = report.find(code).unwrap();
        assert_eq!((finding.severity, &*finding.remedy), (Severity::Info, remedy), "{report:#?}");
    }
}

/// H262: a server that is reached by TLS alone, with or without certificates of the clients.
#[test]
fn h262_doctor_asks_by_tls_as_the_locks_do() {
    let open = ZooKeeperServer::start(&ZooKeeperOptions::new().tls()).unwrap();
    let strict = ZooKeeperOptions::new().tls().setting("ssl.clientAuth=need");
    let strict = ZooKeeperServer::start(&strict).unwrap();
    run(async {
        let files = open.certificates().unwrap();
        let at = |server: &ZooKeeperServer, user: &str, options: &str| {
            format!("zks://{user}127.0.0.1:{}/app?{options}", server.secure_port())
        };
        let ca = format!("ca={}", files.ca_cert.display());
        for user in ["", "app:secret@"] {
            is_fit_and_known(&at(&open, user, &ca)).await;
        }
        let files = strict.certificates().unwrap();
        let ca = format!("ca={}", files.ca_cert.display());
        let shown = [("cert", &files.client_cert), ("key", &files.client_key)];
        let shown = shown.map(|(name, path)| format!("{name}={}", path.display())).join("&");
        let url = at(&strict, "", &format!("{ca}&{shown}"));
        is_fit_and_known(&url).await;
        client(&url).await.mutex("k").acquire().await.unwrap().release().await.unwrap();
        examine(&at(&strict, "", &ca)).await.expect_err("a client without a certificate");
        // The port without TLS beside it is no way in for this address.
        let plain = at(&strict, "", &ca)
            .replace(&strict.secure_port().to_string(), &strict.port().to_string());
        let error = examine(&plain).await.expect_err("no TLS");
        assert!(error.to_string().contains("does not speak TLS"), "{error}");
    });
}

/// What doctor says to set is set, and enough.
#[test]
fn sessions_that_are_too_short_for_the_usual_ttl_are_named() {
    let server = |longest: Duration| {
        ZooKeeperServer::start(&ZooKeeperOptions::new().longest_session(longest)).unwrap()
    };
    let (short, mut needed) = (server(6 * SEC), Duration::ZERO);
    run(async {
        let report = examine(&short.url()).await.unwrap();
        let found = report.find("sessions").unwrap();
        assert_eq!(found.severity, Severity::Info, "{report:#?}");
        let number = found.remedy.strip_prefix("set maxSessionTimeout to ");
        let number = number.and_then(|rest| rest.strip_suffix(" ms or more for a ttl of 30 s"));
        needed =
            Duration::from_millis(number.unwrap_or_else(|| panic!("{report:#?}")).parse().unwrap());
    });
    let long = server(needed);
    run(async {
        let report = examine(&long.url()).await.unwrap();
        let found = report.find("sessions").unwrap();
        assert_eq!((found.severity, &*found.remedy), (Severity::Ok, ""), "{report:#?}");
    });
}

/// What the front of a server does with a four-letter word.
#[derive(Clone, Copy)]
enum Words {
    Closed,
    Swallowed,
}

/// Forwards connections, except those that begin with a four-letter word.
async fn front(port: u16, words: Words) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let front = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut first = [0; 4];
                client.read_exact(&mut first).await.ok();
                if first.is_ascii() && first[0] != 0 {
                    if let Words::Swallowed = words {
                        tokio::time::sleep(60 * SEC).await;
                    }
                    return;
                }
                let mut server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                server.write_all(&first).await.unwrap();
                copy_bidirectional(&mut client, &mut server).await.ok();
            });
        }
    });
    front
}

/// H263: that a server does not answer four-letter words says nothing about its locks.
#[test]
fn h263_a_server_that_refuses_words_is_fit() {
    let options = ZooKeeperOptions::new().setting("4lw.commands.whitelist=ruok");
    let server = ZooKeeperServer::start(&options).unwrap();
    run(async {
        let closed = front(server.port(), Words::Closed).await;
        let swallowed = front(server.port(), Words::Swallowed).await;
        // Every server answers `srvr`, if nothing is in front of it.
        let report = examine(&url(server.port())).await.unwrap();
        assert!(report.is_fit() && report.find("ticks").is_none(), "{report:#?}");
        for port in [closed, swallowed] {
            let report = examine(&format!("zk://app:pw@127.0.0.1:{port}/app")).await.unwrap();
            assert!(report.is_fit(), "{report:#?}");
            let version = report.find("version").unwrap();
            assert_eq!(version.severity, Severity::Info, "{report:#?}");
            assert!(version.remedy.contains("4lw.commands.whitelist"), "{report:#?}");
            assert_eq!(report.find("serving").unwrap().severity, Severity::Ok, "{report:#?}");
        }
        // One that does not serve is found out all the same.
        let dead = front(1, Words::Closed).await;
        let both = format!("zk://127.0.0.1:{},127.0.0.1:{dead}", server.port());
        let report = examine(&both).await.unwrap();
        assert!(!report.is_fit(), "{report:#?}");
        assert!(report.find("reachable").is_some(), "{report:#?}");
    });
}

async fn refused(url: &str) -> latchwork_store::Error {
    let driver = Driver::start().unwrap();
    let config = ZooKeeperConfig::parse(url).unwrap();
    ZooKeeperBackend::connect(config, driver.io()).await.expect_err("it is refused")
}

/// H266: a server that has lost its majority and goes on reading closes connections without a word,
/// as one does that has too many.
#[test]
fn h266_a_server_in_read_only_mode_is_named() {
    let options = ZooKeeperOptions::new()
        .flag("-Dreadonlymode.enabled=true")
        .setting("localSessionsEnabled=true")
        .setting("localSessionsUpgradingEnabled=true");
    let mut ensemble = ZooKeeperEnsemble::start(3, &options).unwrap();
    ensemble.member_mut(1).kill();
    ensemble.member_mut(2).kill();
    run(async {
        let left = &ensemble.members()[0];
        until_so("read-only mode", || left.mode().is_ok_and(|m| m.as_deref() == Some("read-only")))
            .await;
        for error in [refused(&left.url()).await, examine(&left.url()).await.unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
            assert!(error.to_string().contains("read-only mode"), "{error}");
            let said = format!("{error} {:?}", error.next_step());
            assert!(!said.contains("maxClientCnxns"), "{said}");
        }
    });
}

/// H106: whichever step of connecting sees that a server which takes no more connections closes this one.
#[test]
fn h106_a_server_that_closes_each_connection_at_once_is_full() {
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = url(listener.local_addr().unwrap().port());
        std::thread::spawn(move || {
            let listener = listener.into_std().unwrap();
            listener.set_nonblocking(false).unwrap();
            for stream in listener.incoming() {
                // As a server does: its end of what it says, and then of the connection.
                let stream = stream.unwrap();
                let _ = stream.shutdown(std::net::Shutdown::Write);
                let _ = rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
            }
        });
        for _ in 0..4 {
            for error in [refused(&url).await, examine(&url).await.unwrap_err()] {
                assert!(error.to_string().contains("maxClientCnxns"), "{error}");
            }
        }
    });
}

/// H267: a chroot that can have no nodes is no matter of servers that do not serve.
#[test]
fn h267_a_chroot_below_an_ephemeral_node_is_named() {
    let server = ZooKeeperServer::start(&ZooKeeperOptions::new()).unwrap();
    run(async {
        let (first, driver) = backend(&server.url()).await;
        let locks = latchwork::LockManager::new(first.clone(), driver).ttl(2 * SEC);
        let guard = locks.mutex("k").acquire().await.unwrap();
        let node = first.place(guard.token()).unwrap().path;
        let error = refused(&format!("{}{node}/app", server.url())).await;
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains("ephemeral"), "{error}");
        assert!(error.next_step().unwrap().contains("another chroot"), "{error:?}");
        guard.release().await.unwrap();
    });
}
