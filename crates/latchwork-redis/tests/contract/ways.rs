//! The ways from one client to the servers it talks to: a proxy in front of each.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::sync::Arc;
use std::time::Duration;

use latchwork_conformance::{Client, Fault};
use latchwork_redis::RedisConfig;
use latchwork_services::{Cut, Direction, Proxy};
use latchwork_store::Backend;

pub(crate) struct Ways(Vec<Proxy>);

impl Ways {
    /// Leads a client to the servers on these ports by proxies of its own.
    pub(crate) fn to(ports: &[u16], mut config: RedisConfig) -> (Self, RedisConfig) {
        let mut proxies = Vec::new();
        for port in ports {
            let proxy = Proxy::redis(*port).expect("a proxy");
            let [server, via] = [*port, proxy.port()].map(|port| format!("127.0.0.1:{port}"));
            config = config.detour(&server, &via).expect("good addresses");
            proxies.push(proxy);
        }
        (Self(proxies), config)
    }

    /// One way, by a proxy whose address the client knows.
    pub(crate) fn by(proxy: Proxy) -> Self {
        Self(vec![proxy])
    }

    /// A way to each of these servers, by proxies whose addresses the client knows.
    pub(crate) fn by_each(proxies: Vec<Proxy>) -> Self {
        Self(proxies)
    }

    fn cut(&self) {
        for proxy in &self.0 {
            let _ = proxy.cut(Cut::Reset);
        }
    }

    fn disturb(&self, fault: Fault, ended: impl Fn()) {
        for proxy in &self.0 {
            match fault {
                Fault::None => proxy.thaw(Direction::ToServer),
                Fault::LoseRequests => proxy.freeze(Direction::ToServer),
                Fault::LoseAnswers => proxy.lose_answers(true),
            }
        }
        if fault == Fault::None {
            // No stream goes on after bytes of it were lost: it ends, and the client has noticed
            // when the trial goes on. Who connects again at once must not lose answers too.
            for proxy in &self.0 {
                proxy.refuse_connections().expect("the port closes");
                let _ = proxy.cut(Cut::Reset);
                proxy.lose_answers(false);
                proxy.accept_connections().expect("the port opens");
            }
            ended();
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// A client that goes these ways.
    pub(crate) fn client(self, backend: Arc<dyn Backend>) -> Client {
        self.client_that(backend, || {})
    }

    /// A client that goes these ways, and does this when the streams of a fault have ended.
    pub(crate) fn client_that(
        self,
        backend: Arc<dyn Backend>,
        ended: impl Fn() + Send + Sync + 'static,
    ) -> Client {
        let ways = Arc::new(self);
        let held = ways.clone();
        Client::new(backend)
            .on_fault(move |fault| ways.disturb(fault, &ended))
            .on_kill(move || held.cut())
    }
}
