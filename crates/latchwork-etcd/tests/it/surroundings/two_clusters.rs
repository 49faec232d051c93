//! Addresses whose members are of two clusters, from the start or since later.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

use latchwork::{Driver, LockManager};
use latchwork_etcd::{EtcdConfig, doctor};
use latchwork_services::{Cut, EtcdOptions, EtcdServer, Proxy};
use latchwork_store::ErrorKind;
use latchwork_store::doctor::Severity;

use crate::common::*;

fn server() -> EtcdServer {
    EtcdServer::start(&EtcdOptions::new()).unwrap()
}

/// What two servers have in common that were started without options, on two hosts.
fn twin() -> EtcdServer {
    let options = EtcdOptions::new()
        .arg("--initial-advertise-peer-urls=http://127.0.0.1:2380")
        .arg("--initial-cluster=only=http://127.0.0.1:2380")
        .arg("--initial-cluster-token=etcd-cluster");
    EtcdServer::start(&options).unwrap()
}

fn both(a: u16, b: u16) -> String {
    format!("etcd://127.0.0.1:{a},127.0.0.1:{b}")
}

fn upstream(server: &EtcdServer) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, server.port()))
}

async fn doctors_word(url: &str) -> (Severity, String) {
    let driver = Driver::start().unwrap();
    let report = doctor(EtcdConfig::parse(url).unwrap(), driver.io()).await.unwrap();
    let finding = report.find("cluster").expect("it looks at that");
    (finding.severity, finding.found.clone())
}

#[test]
fn h110_members_of_two_clusters_are_refused_at_connect() {
    let (a, b) = (server(), server());
    run(async {
        for url in [both(a.port(), b.port()), both(b.port(), a.port())] {
            let error = connect(&url).await.expect_err("each would grant the lock");
            let said = error.to_string();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{said}");
            for server in [&a, &b] {
                let named = format!("127.0.0.1:{} of cluster ", server.port());
                assert!(said.contains(&named), "{said}");
            }
            let (severity, said) = doctors_word(&url).await;
            assert_eq!(severity, Severity::Critical, "{said}");
        }
        let (severity, said) = doctors_word(&a.url()).await;
        assert_eq!(severity, Severity::Ok, "{said}");
    });
}

/// Servers that were started without options all have the same number of their cluster.
#[test]
fn h110_two_clusters_with_the_same_number_are_refused() {
    let (a, b) = (twin(), twin());
    run(async {
        let url = both(a.port(), b.port());
        let error = connect(&url).await.expect_err("each would grant the lock");
        assert!(error.to_string().contains("does not know what was granted at"), "{error}");
        let (severity, said) = doctors_word(&url).await;
        assert_eq!(severity, Severity::Critical, "{said}");
    });
}

/// Asks for the lock until it is refused as `Corrupt`.
async fn refused(locks: &LockManager) -> String {
    let start = Instant::now();
    loop {
        match locks.mutex("k").acquire_within(4 * SEC).await {
            Ok(guard) => drop(guard.release().await),
            Err(error) if error.kind() == ErrorKind::Corrupt => return error.to_string(),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}"),
        }
        assert!(start.elapsed() < 30 * SEC, "nobody notices");
        tokio::time::sleep(SEC / 10).await;
    }
}

async fn granted(locks: &LockManager) {
    let start = Instant::now();
    loop {
        match locks.mutex("k").acquire_within(4 * SEC).await {
            Ok(guard) => return drop(guard.release().await),
            Err(error) => assert!(start.elapsed() < 30 * SEC, "{error}"),
        }
        tokio::time::sleep(SEC / 10).await;
    }
}

#[test]
fn h110_a_member_of_another_cluster_that_comes_later_is_refused() {
    let (a, b) = (server(), server());
    let way = Proxy::plain(b.port()).unwrap();
    way.refuse_connections().unwrap();
    run(async {
        let locks = client(&both(a.port(), way.port())).await.ttl(8 * SEC);
        locks.mutex("k").acquire().await.unwrap().release().await.unwrap();
        way.accept_connections().unwrap();
        // Nothing is asked of it, but other clients may be.
        let said = refused(&locks).await;
        assert!(said.contains(&format!("127.0.0.1:{} of cluster ", way.port())), "{said}");
        // It was put right.
        way.set_upstream(upstream(&a));
        way.cut(Cut::Reset).unwrap();
        granted(&locks).await;
    });
}

/// At the same port, and the first lock is not given back there.
#[test]
fn h110_a_server_replaced_by_one_of_another_cluster_is_refused() {
    let (a, b) = (server(), server());
    let way = Proxy::plain(a.port()).unwrap();
    run(async {
        let locks = client(&format!("etcd://127.0.0.1:{}", way.port())).await.ttl(8 * SEC);
        let guard = locks.mutex("held").acquire().await.unwrap();
        way.set_upstream(upstream(&b));
        way.cut(Cut::Reset).unwrap();
        let said = refused(&locks).await;
        assert!(said.contains("is now of cluster"), "{said}");
        assert_eq!(keys_of(&b, "k"), [""; 0], "nothing was made there");
        way.set_upstream(upstream(&a));
        way.cut(Cut::Reset).unwrap();
        granted(&locks).await;
        drop(guard);
    });
}
