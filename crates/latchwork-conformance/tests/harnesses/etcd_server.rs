//! One real server for all trials, a namespace for each, and a proxy in front of each client.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use latchwork_conformance::{Client, Expected, Fault, Harness, Store, Time};
use latchwork_core::{Fencing, Io, Verb};
use latchwork_etcd::{EtcdBackend, EtcdConfig};
use latchwork_services::{Cut, Direction, EtcdOptions, EtcdServer, Proxy};

use super::namespaced::{Namespace, Namespaced};

pub(crate) struct OneEtcd {
    server: Arc<EtcdServer>,
    next: AtomicU32,
}

impl OneEtcd {
    pub(crate) fn start() -> Self {
        let server = EtcdServer::start(&EtcdOptions::new()).expect("an etcd server");
        Self { server: Arc::new(server), next: AtomicU32::new(0) }
    }
}

impl Harness for OneEtcd {
    fn expected(&self) -> Expected {
        let fencing = Fencing::Linearizable;
        Expected { fencing, floor: false, ..Expected::EVERYTHING }
    }

    fn time(&self) -> Time {
        Time::Real
    }

    fn fresh<'a>(&'a self, _io: &'a Io) -> Verb<'a, Store> {
        let prefix = format!("trial {}:", self.next.fetch_add(1, Ordering::Relaxed));
        let namespace = Arc::new(Namespace::new(prefix));
        let port = self.server.port();
        Box::pin(async move {
            Store::new(move |io| {
                let (namespace, proxy) = (namespace.clone(), Proxy::plain(port).expect("a proxy"));
                async move {
                    let url = format!("etcd://127.0.0.1:{}", proxy.port());
                    let config = EtcdConfig::parse(&url).expect("a good address");
                    let node = EtcdBackend::connect(config, io).await.expect("the server runs");
                    let (proxy, backend) = (Arc::new(proxy), Namespaced { node, namespace });
                    let held = proxy.clone();
                    Client::new(Arc::new(backend))
                        .on_fault(move |fault| disturb(&proxy, fault))
                        .on_kill(move || drop(held.cut(Cut::Reset)))
                }
            })
        })
    }

    /// The shortest that the server grants.
    fn short_ttl(&self) -> Duration {
        Duration::from_secs(2)
    }

    /// The server looks for leases that have ended every half second.
    fn slack(&self) -> Duration {
        Duration::from_millis(1_200)
    }
}

fn disturb(proxy: &Proxy, fault: Fault) {
    match fault {
        Fault::None => {
            // No stream goes on after bytes of it were lost: it ends, and the client has noticed
            // when the trial goes on. Who connects again at once must not lose answers too.
            proxy.thaw(Direction::ToServer);
            proxy.refuse_connections().expect("the port closes");
            let _ = proxy.cut(Cut::Reset);
            proxy.lose_answers(false);
            proxy.accept_connections().expect("the port opens");
            std::thread::sleep(Duration::from_millis(50));
        }
        Fault::LoseRequests => proxy.freeze(Direction::ToServer),
        Fault::LoseAnswers => proxy.lose_answers(true),
    }
}
