//! The rules against the Redis backend: one real server for all trials, a database for each, and a
//! proxy in front of each client.

#![expect(clippy::disallowed_methods, reason = "a pause of the harness itself")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use latchwork_conformance::{Client, Expected, Fault, Harness, Store, Time};
use latchwork_core::{Fencing, Io, Verb};
use latchwork_redis::{RedisBackend, RedisConfig};
use latchwork_services::{Cut, Direction, Proxy, RedisOptions, RedisServer};

/// As many stores as all trials together may ask for.
const DATABASES: u32 = 2_000;

struct Redis {
    server: RedisServer,
    next: AtomicU32,
}

impl Harness for Redis {
    fn expected(&self) -> Expected {
        Expected { fencing: Fencing::WhileDataSurvives, ..Expected::EVERYTHING }
    }

    fn time(&self) -> Time {
        Time::Real
    }

    fn fresh<'a>(&'a self, _io: &'a Io) -> Verb<'a, Store> {
        let database = self.next.fetch_add(1, Ordering::Relaxed);
        assert!(database < DATABASES, "more stores than databases");
        let port = self.server.port();
        Box::pin(async move {
            Store::new(move |io| async move {
                let proxy = Arc::new(Proxy::redis(port).expect("a proxy"));
                let url = format!("{}/{database}", proxy.url());
                let config = RedisConfig::parse(&url).expect("a good address");
                let backend = RedisBackend::connect(config, io).await.expect("the server runs");
                let (way, held) = (proxy.clone(), proxy);
                Client::new(backend)
                    .on_fault(move |fault| match fault {
                        Fault::None => {
                            way.thaw(Direction::ToServer);
                            // No stream goes on after bytes of it were lost: it ends, and the
                            // client has noticed when the trial goes on.
                            // Who connects again at once must not lose answers too.
                            way.refuse_connections().expect("the port closes");
                            let _ = way.cut(Cut::Reset);
                            way.lose_answers(false);
                            way.accept_connections().expect("the port opens");
                            std::thread::sleep(Duration::from_millis(50));
                        }
                        Fault::LoseRequests => way.freeze(Direction::ToServer),
                        Fault::LoseAnswers => way.lose_answers(true),
                    })
                    .on_kill(move || {
                        let _ = held.cut(Cut::Reset);
                    })
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

fn main() {
    let options = RedisOptions::new().config(format!("databases {DATABASES}"));
    let server = RedisServer::start(&options).expect("a Redis server");
    latchwork_conformance::main("redis", Redis { server, next: AtomicU32::new(0) });
}
