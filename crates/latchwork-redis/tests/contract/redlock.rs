//! The rules against five Redis servers that vote.
//!
//! Their clocks were set forward after the start, so they say that they have been up for longer than
//! any quarantine, and that nothing was lost.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use latchwork_conformance::{Expected, Harness, Store, Time};
use latchwork_redis::redlock;
use latchwork_services::{Proxy, RedisOptions, RedisServer};
use latchwork_store::{Io, Verb};

use crate::ways::Ways;

/// As many stores as all trials together may ask for.
const DATABASES: u32 = 2_000;

#[derive(Default)]
pub(crate) struct Redlock {
    servers: OnceLock<Vec<RedisServer>>,
    next: AtomicU32,
}

impl Harness for Redlock {
    fn expected(&self) -> Expected {
        Expected::OF_A_MAJORITY
    }

    fn time(&self) -> Time {
        Time::Real
    }

    fn fresh<'a>(&'a self, io: &'a Io) -> Verb<'a, Store> {
        let database = self.next.fetch_add(1, Ordering::Relaxed);
        assert!(database < DATABASES, "more stores than databases");
        let servers = self.servers.get_or_init(|| {
            let options = RedisOptions::new().config(format!("databases {DATABASES}"));
            (0..5).map(|_| RedisServer::start(&options).expect("a Redis server")).collect()
        });
        let ports: Vec<u16> = servers.iter().map(RedisServer::port).collect();
        Box::pin(async move {
            let hosts: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
            // Nobody holds a lock in a new database.
            let new =
                format!("redlock://{}/{database}?max_ttl=24h&namespaces=a,x", hosts.join(","));
            let config = redlock::Config::parse(&new).expect("a good address");
            redlock::init(config, io.clone()).await.expect("nothing is held");
            Store::new(move |io| {
                let proxies: Vec<Proxy> =
                    ports.iter().map(|port| Proxy::redis(*port).expect("a proxy")).collect();
                async move {
                    let hosts: Vec<String> =
                        proxies.iter().map(|proxy| format!("127.0.0.1:{}", proxy.port())).collect();
                    let url = format!("redlock://{}/{database}?max_ttl=24h", hosts.join(","));
                    let config = redlock::Config::parse(&url).expect("a good address");
                    let quorum = redlock::connect(config, io).await.expect("the servers run");
                    Ways::by_each(proxies).client(quorum)
                }
            })
        })
    }

    fn is_reserved(&self, name: &str) -> bool {
        matches!(name, "x:lw:token" | "x:lw:guard")
    }

    fn slack(&self) -> Duration {
        Duration::from_millis(500)
    }
}
