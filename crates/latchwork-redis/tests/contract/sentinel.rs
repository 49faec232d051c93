//! The rules against the Redis backend behind Sentinels: one set of servers for all trials, a
//! database for each, and a proxy in front of the master for each client.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use latchwork_conformance::{Expected, Harness, Store, Time};
use latchwork_redis::{RedisBackend, RedisConfig};
use latchwork_services::{RedisOptions, SentinelOptions, SentinelSet};
use latchwork_store::{Fencing, Io, Verb};

use crate::ways::Ways;

/// As many stores as all trials together may ask for.
const DATABASES: u32 = 2_000;

#[derive(Default)]
pub(crate) struct Sentinel {
    set: OnceLock<SentinelSet>,
    next: AtomicU32,
}

impl Harness for Sentinel {
    fn expected(&self) -> Expected {
        Expected { fencing: Fencing::WhileDataSurvives, watch: false, ..Expected::EVERYTHING }
    }

    fn time(&self) -> Time {
        Time::Real
    }

    fn fresh<'a>(&'a self, _io: &'a Io) -> Verb<'a, Store> {
        let database = self.next.fetch_add(1, Ordering::Relaxed);
        assert!(database < DATABASES, "more stores than databases");
        let set = self.set.get_or_init(|| {
            let redis = RedisOptions::new().config(format!("databases {DATABASES}"));
            let options = SentinelOptions { redis, ..SentinelOptions::default() };
            SentinelSet::start(&options).expect("servers under Sentinels")
        });
        let url = format!("{}/{database}", set.url());
        let ports: Vec<u16> = set.nodes().iter().map(|node| node.port()).collect();
        Box::pin(async move {
            Store::new(move |io| {
                let (url, ports) = (url.clone(), ports.clone());
                async move {
                    let config = RedisConfig::parse(&url).expect("a good address");
                    let (ways, config) = Ways::to(&ports, config);
                    let backend = RedisBackend::connect(config, io).await.expect("servers run");
                    ways.client(backend)
                }
            })
        })
    }

    fn is_reserved(&self, name: &str) -> bool {
        name == "x:lw:token"
    }

    fn slack(&self) -> Duration {
        Duration::from_millis(500)
    }
}
