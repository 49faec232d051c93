//! A minute in which nothing happens, on a server with its default settings.

use std::time::Instant;

use latchwork_services::{EtcdOptions, EtcdServer, Proxy};
use latchwork_store::ErrorKind;

use crate::common::*;
use crate::surroundings::holds::{hold_many, left_after, observed};

struct Way {
    proxy: Proxy,
    url: String,
}

impl Way {
    fn to(server: &EtcdServer) -> Self {
        let proxy = Proxy::plain(server.port()).unwrap();
        Self { url: format!("etcd://127.0.0.1:{}", proxy.port()), proxy }
    }

    fn connections(&self) -> u64 {
        self.proxy.counts().connections
    }
}

/// A server ends the connection of a client that pings more often than every five seconds, or while
/// it asks for nothing. A holder, a waiter and a client that is idle are quiet for a minute.
#[test]
fn h98_a_minute_of_quiet_costs_no_connection_and_no_error() {
    let server = EtcdServer::start(&EtcdOptions::new()).unwrap();
    run(async {
        let ways = [(); 3].map(|()| Way::to(&server));
        let (holder, troubles) = observed(&ways[0].url).await;
        let (waiter, of_waiter) = observed(&ways[1].url).await;
        let (idle, _) = observed(&ways[2].url).await;
        idle.mutex("idle").acquire().await.unwrap().release().await.unwrap();
        let guard = holder.mutex("k").acquire().await.unwrap();
        let mutex = waiter.mutex("k").fair();
        let (timed_out, left) = tokio::join!(
            mutex.acquire_within(60 * SEC),
            left_after(std::slice::from_ref(&guard), 60 * SEC)
        );
        assert_eq!(timed_out.unwrap_err().kind(), ErrorKind::TimedOut);
        assert_eq!((left, troubles.seen(), of_waiter.seen()), (1, (0, 0), (0, 0)));
        // The idle client's connection is as good as it was.
        idle.mutex("idle").acquire().await.unwrap().release().await.unwrap();
        assert_eq!(ways.each_ref().map(Way::connections), [1, 1, 1]);
    });
}

/// As the server counts it: a watch for each, opened once, and renewals of 128 at a time.
#[test]
fn h98_a_thousand_quiet_holds_are_watched_once_each() {
    const LOCKS: usize = 1_000;
    let server = EtcdServer::start(&EtcdOptions::new()).unwrap();
    run(async {
        let (locks, troubles) = observed(&server.url()).await;
        let watches = || {
            let label = "grpc_method=\"Watch\"";
            server.measure("grpc_server_msg_received_total", label).unwrap() as u64
        };
        let before = (Requests::of(&server), watches());
        let guards = hold_many(&locks, LOCKS).await;
        assert_eq!(left_after(&guards, 40 * SEC).await, LOCKS);
        let asked = Requests::of(&server).since(before.0);
        let watches = watches() - before.1;
        eprintln!("{watches} requests for watches, {asked:?}");
        assert!(watches <= 1_050, "{watches}");
        assert!(asked.transactions <= 2_100, "{asked:?}");
        assert_eq!(troubles.seen(), (0, 0));
    });
}

/// A middlebox drops the connection and tells neither side. The only address there is leads to it, and
/// half of the validity is over when the renewal finds out.
#[test]
fn h98_a_link_that_was_dropped_in_silence_costs_no_hold() {
    let server = EtcdServer::start(&EtcdOptions::new()).unwrap();
    run(async {
        let way = Way::to(&server);
        let (locks, troubles) = observed(&way.url).await;
        let locks = locks.ttl(9 * SEC);
        let guard = locks.mutex("k").acquire().await.unwrap();
        for _ in 0..2 {
            tokio::time::sleep(SEC).await;
            way.proxy.strand();
            let left = left_after(std::slice::from_ref(&guard), 10 * SEC).await;
            assert_eq!((left, troubles.seen().1), (1, 0));
        }
        // And with no hold, when the next lock is wanted.
        guard.release().await.unwrap();
        tokio::time::sleep(7 * SEC).await;
        way.proxy.strand();
        let start = Instant::now();
        let guard = locks.mutex("k").acquire().await.unwrap();
        stalls::in_time(start, 7 * SEC);
        guard.release().await.unwrap();
    });
}
