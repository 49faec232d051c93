//! Real servers for all trials, a namespace for each, and proxies in front of each client.

#![allow(clippy::disallowed_methods, reason = "tests")]
#![allow(dead_code, reason = "each test uses its own")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use latchwork_conformance::{Client, Expected, Fault, Harness, Store, Time};
use latchwork_core::{Fencing, Io, Verb};
use latchwork_services::{
    Cut, Direction, Proxy, ZooKeeperEnsemble, ZooKeeperOptions, ZooKeeperServer,
};
use latchwork_zookeeper::{ZooKeeperBackend, ZooKeeperConfig};

use super::namespaced::{Namespace, Namespaced};

pub(crate) struct ZooKeeper {
    ensemble: ZooKeeperEnsemble,
    next: AtomicU32,
}

impl ZooKeeper {
    /// Starts so many servers.
    pub(crate) fn start(members: usize) -> Self {
        let options = ZooKeeperOptions::new();
        let ensemble = ZooKeeperEnsemble::start(members, &options).expect("ZooKeeper servers");
        Self { ensemble, next: AtomicU32::new(0) }
    }
}

impl Harness for ZooKeeper {
    fn expected(&self) -> Expected {
        Expected { fencing: Fencing::Linearizable, floor: false, ..Expected::EVERYTHING }
    }

    fn time(&self) -> Time {
        Time::Real
    }

    fn fresh<'a>(&'a self, _io: &'a Io) -> Verb<'a, Store> {
        let prefix = format!("trial {}:", self.next.fetch_add(1, Ordering::Relaxed));
        let namespace = Arc::new(Namespace::new(prefix));
        let ports: Vec<_> = self.ensemble.members().iter().map(ZooKeeperServer::port).collect();
        Box::pin(async move {
            Store::new(move |io| {
                let namespace = namespace.clone();
                let proxy = |port: &u16| Proxy::plain(*port).expect("a proxy");
                let proxies: Vec<_> = ports.iter().map(proxy).collect();
                async move {
                    let hosts = proxies.iter().map(|proxy| format!("127.0.0.1:{}", proxy.port()));
                    let url = format!("zk://{}/a/b", hosts.collect::<Vec<_>>().join(","));
                    let config = ZooKeeperConfig::parse(&url).expect("a good address");
                    let node = ZooKeeperBackend::connect(config, io).await.expect("servers run");
                    let (proxies, backend) = (Arc::new(proxies), Namespaced { node, namespace });
                    let held = proxies.clone();
                    Client::new(Arc::new(backend))
                        .on_fault(move |fault| disturb(&proxies, fault))
                        .on_kill(move || {
                            for proxy in held.iter() {
                                proxy.refuse_connections().expect("the port closes");
                                let _ = proxy.cut(Cut::Reset);
                            }
                        })
                }
            })
        })
    }

    /// Sessions are five thirds of it.
    fn short_ttl(&self) -> Duration {
        Duration::from_millis(1_800)
    }

    /// A session whose client has died lasts two thirds of the ttl longer, and a tick.
    fn slack(&self) -> Duration {
        Duration::from_millis(1_600)
    }
}

fn disturb(proxies: &[Proxy], fault: Fault) {
    for proxy in proxies {
        match fault {
            Fault::None => {
                // No stream goes on after bytes of it were lost. It ends before it is thawed: a hello
                // that comes late would take the session away from where the client is by then.
                proxy.refuse_connections().expect("the port closes");
                let _ = proxy.cut(Cut::Reset);
            }
            Fault::LoseRequests => proxy.freeze(Direction::ToServer),
            Fault::LoseAnswers => proxy.lose_answers(true),
        }
    }
    if fault == Fault::None {
        for proxy in proxies {
            proxy.thaw(Direction::ToServer);
            proxy.lose_answers(false);
            proxy.accept_connections().expect("the port opens");
        }
        // The client has noticed when the trial goes on.
        std::thread::sleep(Duration::from_millis(50));
    }
}
