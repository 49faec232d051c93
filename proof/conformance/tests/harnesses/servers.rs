//! Real servers for all trials, a namespace for each, and proxies in front of each client.

#![allow(clippy::disallowed_methods, reason = "tests")]
#![allow(dead_code, reason = "each test uses its own")]

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use latchwork_conformance::{Client, Expected, Fault, Harness, Store, Time};
use latchwork_services::{Cut, Direction, Proxy};
use latchwork_store::{Backend, Fencing, Io, Verb};

use super::namespaced::{Namespace, Namespaced};

/// What differs from store to store.
#[derive(Clone, Copy)]
pub(crate) struct Way {
    /// Connects to hosts with commas between.
    pub(crate) connect: fn(String, Io) -> Verb<'static, Arc<dyn Backend>>,
    /// Ends a fault.
    pub(crate) mend: fn(&[Proxy]),
    /// Takes a client away.
    pub(crate) kill: fn(&[Proxy]),
    pub(crate) short_ttl: Duration,
    pub(crate) slack: Duration,
}

pub(crate) struct Servers {
    ports: Vec<u16>,
    way: Way,
    next: AtomicU32,
    _running: Box<dyn Any + Send + Sync>,
}

impl Servers {
    /// Servers with these ports, which run as long as the value does.
    pub(crate) fn new(running: impl Any + Send + Sync, ports: Vec<u16>, way: Way) -> Self {
        Self { ports, way, next: AtomicU32::new(0), _running: Box::new(running) }
    }
}

impl Harness for Servers {
    fn expected(&self) -> Expected {
        Expected { fencing: Fencing::Linearizable, floor: false, ..Expected::EVERYTHING }
    }

    fn time(&self) -> Time {
        Time::Real
    }

    fn fresh<'a>(&'a self, _io: &'a Io) -> Verb<'a, Store> {
        let prefix = format!("trial {}:", self.next.fetch_add(1, Ordering::Relaxed));
        let namespace = Arc::new(Namespace::new(prefix));
        let (ports, way) = (self.ports.clone(), self.way);
        let clients = AtomicU32::new(0);
        Box::pin(async move {
            Store::new(move |io| {
                let namespace = namespace.clone();
                let proxy = |port: &u16| Proxy::plain(*port).expect("a proxy");
                let mut proxies: Vec<_> = ports.iter().map(proxy).collect();
                // Each client begins at another member.
                let first = clients.fetch_add(1, Ordering::Relaxed) as usize % proxies.len();
                proxies.rotate_left(first);
                async move {
                    let hosts = proxies.iter().map(|proxy| format!("127.0.0.1:{}", proxy.port()));
                    let hosts = hosts.collect::<Vec<_>>().join(",");
                    let node = (way.connect)(hosts, io).await;
                    let (proxies, backend) = (Arc::new(proxies), Namespaced { node, namespace });
                    let held = proxies.clone();
                    Client::new(Arc::new(backend))
                        .on_fault(move |fault| disturb(&proxies, fault, way))
                        .on_kill(move || (way.kill)(&held))
                }
            })
        })
    }

    fn short_ttl(&self) -> Duration {
        self.way.short_ttl
    }

    fn slack(&self) -> Duration {
        self.way.slack
    }
}

fn disturb(proxies: &[Proxy], fault: Fault, way: Way) {
    match fault {
        Fault::None => {
            (way.mend)(proxies);
            // The client has noticed when the trial goes on.
            std::thread::sleep(Duration::from_millis(50));
        }
        Fault::LoseRequests => {
            proxies.iter().for_each(|proxy| proxy.freeze(Direction::ToServer));
        }
        Fault::LoseAnswers => proxies.iter().for_each(|proxy| proxy.lose_answers(true)),
    }
}

/// Ends all connections.
pub(crate) fn cut(proxies: &[Proxy]) {
    for proxy in proxies {
        let _ = proxy.cut(Cut::Reset);
    }
}

/// Lets nobody connect, and ends all connections.
pub(crate) fn close(proxies: &[Proxy]) {
    for proxy in proxies {
        proxy.refuse_connections().expect("the port closes");
    }
    cut(proxies);
}
