//! The rules against the Redis backend on a Cluster: one set of servers for all trials, a namespace
//! for each, and a proxy in front of each server for each client.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use latchwork_conformance::namespaced::{Namespace, Namespaced};
use latchwork_conformance::{Expected, Harness, Store, Time};
use latchwork_redis::{RedisBackend, RedisConfig};
use latchwork_services::{ClusterOptions, RedisCluster, provided, version};
use latchwork_store::{Fencing, Io, Verb};

use crate::ways::Ways;

#[derive(Default)]
pub(crate) struct Cluster {
    cluster: OnceLock<RedisCluster>,
    next: AtomicU32,
}

impl Harness for Cluster {
    fn expected(&self) -> Expected {
        let server = provided("redis").expect("a server");
        Expected {
            fencing: Fencing::WhileDataSurvives,
            watch: false,
            // Pushed grants go by sharded pub/sub.
            push: version(server).first() >= Some(&7),
            ..Expected::EVERYTHING
        }
    }

    fn time(&self) -> Time {
        Time::Real
    }

    fn fresh<'a>(&'a self, _io: &'a Io) -> Verb<'a, Store> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        // Every other namespace has the hash tag itself.
        let prefix = if number.is_multiple_of(2) {
            format!("t{number}:")
        } else {
            format!("{{t{number}}}:")
        };
        let namespace = Arc::new(Namespace::new(prefix));
        let start = || RedisCluster::start(&ClusterOptions::default()).expect("a Cluster");
        let cluster = self.cluster.get_or_init(start);
        let url = cluster.url();
        let ports: Vec<u16> = cluster.nodes().iter().map(|node| node.port()).collect();
        Box::pin(async move {
            Store::new(move |io| {
                let (url, ports, namespace) = (url.clone(), ports.clone(), namespace.clone());
                async move {
                    let config = RedisConfig::parse(&url).expect("a good address");
                    let (ways, config) = Ways::to(&ports, config);
                    let node = RedisBackend::connect(config, io).await.expect("servers run");
                    ways.client(Arc::new(Namespaced::new(node, namespace)))
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
