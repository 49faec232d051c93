//! What may stand between clients and etcd: a proxy of calls, and those that pass connections on.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

use latchwork::Driver;
use latchwork_etcd::{EtcdConfig, doctor};
use latchwork_services::{Cut, EtcdFront, EtcdOptions, EtcdServer, Proxy, etcdctl};
use latchwork_store::doctor::Severity;
use latchwork_store::{ErrorKind, LostReason};

use crate::common::*;

fn server() -> EtcdServer {
    EtcdServer::start(&EtcdOptions::new()).unwrap()
}

/// It numbers watches by itself and answers keep-alives when it pleases: no wake-up would arrive,
/// and a lease could end while its holder believes in it.
#[test]
fn h108_a_grpc_proxy_is_refused_at_connect_with_the_next_step() {
    let server = server();
    let front = EtcdFront::grpc_proxy(server.port()).unwrap();
    run(async {
        let error = connect(&front.url()).await.expect_err("it is refused");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        let named = format!("127.0.0.1:{} is an etcd grpc-proxy", front.port());
        assert!(error.to_string().contains(&named), "{error}");
        assert!(error.next_step().unwrap().contains("name the members"), "{error}");

        let driver = Driver::start().unwrap();
        let report = doctor(EtcdConfig::parse(&front.url()).unwrap(), driver.io()).await.unwrap();
        let finding = report.find("proxy").expect("it is named");
        assert_eq!(finding.severity, Severity::Critical);
        assert_eq!(finding.part.as_deref(), Some(&*format!("127.0.0.1:{}", front.port())));
    });
}

/// H417: the watches and the keep-alives of a connection keep a stream each. What is left must suffice for requests.
#[test]
fn h417_a_server_with_too_few_streams_is_refused() {
    let limited = |streams: u32| {
        let options = EtcdOptions::new().arg(format!("--max-concurrent-streams={streams}"));
        EtcdServer::start(&options).unwrap()
    };
    let (few, enough) = (limited(2), limited(4));
    run(async {
        let error = connect(&few.url()).await.expect_err("it is refused");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("2 streams"), "{error}");
        assert!(error.next_step().unwrap().contains("--max-concurrent-streams"), "{error}");
        let driver = Driver::start().unwrap();
        let config = EtcdConfig::parse(&few.url()).unwrap();
        assert_eq!(doctor(config, driver.io()).await.unwrap_err().kind(), ErrorKind::Unsupported);

        let locks = client(&enough.url()).await.ttl(3 * SEC);
        let mut guards = Vec::new();
        for n in 0..100 {
            guards.push(locks.mutex(format!("k-{n}")).acquire_within(10 * SEC).await.unwrap());
        }
        let first = locks.mutex("k-0");
        let waits = first.acquire_within(20 * SEC);
        let others = async {
            tokio::time::sleep(5 * SEC).await;
            for guard in guards {
                guard.ensure_held().expect("it was renewed");
                guard.release().await.unwrap();
            }
        };
        let (next, ()) = tokio::join!(waits, others);
        next.unwrap().release().await.unwrap();
    });
}

/// Whoever moves the address behind the client's back.
#[test]
fn h108_a_grpc_proxy_that_comes_later_is_refused() {
    let server = server();
    let front = EtcdFront::grpc_proxy(server.port()).unwrap();
    let way = Proxy::plain(server.port()).unwrap();
    run(async {
        let locks = client(&format!("etcd://127.0.0.1:{}", way.port())).await.ttl(8 * SEC);
        way.set_upstream(SocketAddr::from((Ipv4Addr::LOCALHOST, front.port())));
        way.cut(Cut::Reset).unwrap();
        let start = Instant::now();
        let error = loop {
            // Its first watch tells.
            match locks.mutex("k").acquire_within(4 * SEC).await {
                Ok(guard) => {
                    tokio::time::sleep(SEC / 2).await;
                    // What becomes of it is not what this is about.
                    let _ = guard.release().await;
                }
                Err(error) if error.kind() == ErrorKind::Unsupported => break error,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}"),
            }
            assert!(start.elapsed() < 60 * SEC, "nobody notices");
        };
        assert!(error.to_string().contains("grpc-proxy"), "{error}");
    });
}

/// A waiter is woken, a hold is renewed, a loss is told and a leader is followed.
async fn everything_works(server: &EtcdServer, port: u16) {
    let url = format!("etcd://127.0.0.1:{port}");
    let (one, other) = (client(&url).await.ttl(30 * SEC), client(&url).await.ttl(30 * SEC));
    let guard = one.mutex("k").acquire().await.unwrap();
    let mutex = other.mutex("k");
    let waits = async {
        let next = mutex.acquire_within(20 * SEC).await.unwrap();
        (next, Instant::now())
    };
    let leaves = async {
        // Two of the waiter; the holder may have one.
        watches(server, |n| n >= 2.0).await;
        tokio::time::sleep(SEC / 2).await;
        let start = Instant::now();
        guard.release().await.unwrap();
        start
    };
    let ((next, admitted), released) = tokio::join!(waits, leaves);
    let took = admitted.saturating_duration_since(released);
    assert!(took < stalls::widened(3 * SEC, took), "woken {took:?} after the release");
    watches(server, |n| n >= 1.0).await;
    etcdctl(server.port(), &["del", &keys_of(server, "k")[0]]).unwrap();
    let lost = tokio::time::timeout(6 * SEC, next.lost()).await.expect("it is told at once");
    assert_eq!(lost.reason, LostReason::Taken);
    drop(next);

    // Longer than a lease: it was renewed.
    let short = one.clone().ttl(2 * SEC);
    let held = short.mutex("held").acquire().await.unwrap();
    let leader = other.election("leader").campaign().await.unwrap();
    tokio::time::sleep(5 * SEC).await;
    held.ensure_held().unwrap();
    leader.ensure_held().unwrap();
    held.release().await.unwrap();
}

#[test]
fn h108_everything_works_behind_a_gateway() {
    let server = server();
    let front = EtcdFront::gateway(server.port()).unwrap();
    run(everything_works(&server, front.port()));
}

#[test]
fn h108_everything_works_behind_a_proxy_of_connections() {
    let server = server();
    let front = Proxy::plain(server.port()).unwrap();
    run(everything_works(&server, front.port()));
}
