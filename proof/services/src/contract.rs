//! Real servers for all trials, a namespace for each, and proxies in front of each client.

use std::any::Any;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use latchwork_conformance::namespaced::{Namespace, Namespaced};
use latchwork_conformance::{Client, Expected, Fault, Harness, Store, Time};

use latchwork_store::{Backend, Fencing, Io, Verb};

use crate::{Cut, Direction, Proxy};

/// What differs from store to store.
#[derive(Clone, Copy)]
pub struct Way {
    /// Connects to hosts with commas between.
    pub connect: fn(String, Io) -> Verb<'static, Arc<dyn Backend>>,
    /// Ends a fault.
    pub mend: fn(&[Proxy]),
    /// Takes a client away.
    pub kill: fn(&[Proxy]),
    /// The ttl of claims that are meant to run out.
    pub short_ttl: Duration,
    /// How late the store may be.
    pub slack: Duration,
}

/// Servers that all trials of a store share, started for the first of them.
pub struct Servers {
    start: Box<dyn Fn() -> Running + Send + Sync>,
    running: OnceLock<Running>,
    way: Way,
    next: AtomicU32,
}

/// What runs for as long as the value lives, and the ports.
type Running = (Box<dyn Any + Send + Sync>, Vec<u16>);

impl Servers {
    /// Servers that `start` starts; it returns what keeps them running, and their ports.
    pub fn new<S: Any + Send + Sync>(
        start: impl Fn() -> (S, Vec<u16>) + Send + Sync + 'static,
        way: Way,
    ) -> Self {
        let start = Box::new(move || {
            let (running, ports) = start();
            (Box::new(running) as Box<dyn Any + Send + Sync>, ports)
        });
        Self { start, running: OnceLock::new(), way, next: AtomicU32::new(0) }
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
        let ports = self.running.get_or_init(&self.start).1.clone();
        let way = self.way;
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
                    let (proxies, backend) = (Arc::new(proxies), Namespaced::new(node, namespace));
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
pub fn cut(proxies: &[Proxy]) {
    for proxy in proxies {
        let _ = proxy.cut(Cut::Reset);
    }
}

/// Lets nobody connect, and ends all connections.
pub fn close(proxies: &[Proxy]) {
    for proxy in proxies {
        proxy.refuse_connections().expect("the port closes");
    }
    cut(proxies);
}
