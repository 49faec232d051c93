//! The rules against the Redis backend with its restart guard on, whose scripts are others.
//!
//! The server's clock was set forward after its start, so it says that it has been up for longer
//! than any quarantine, and that nothing was lost.

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
                let url = format!("{}/{database}?guard=true&max_ttl=24h", proxy.url());
                let config = RedisConfig::parse(&url).expect("a good address");
                let backend = RedisBackend::connect(config, io).await.expect("the server runs");
                let (way, held) = (proxy.clone(), proxy);
                Client::new(backend)
                    .on_fault(move |fault| match fault {
                        Fault::None => {
                            way.thaw(Direction::ToServer);
                            // No stream goes on after bytes of it were lost: it ends, and the
                            // client has noticed when the trial goes on.
                            let _ = way.cut(Cut::Reset);
                            way.lose_answers(false);
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
        ["x:lw:token", "x:lw:guard"].contains(&name)
    }

    fn slack(&self) -> Duration {
        Duration::from_millis(500)
    }
}

fn main() {
    let options = RedisOptions::new().config(format!("databases {DATABASES}")).with_clock();
    let server = RedisServer::start(&options).expect("a Redis server");
    let clock = server.clock().expect("a clock of its own");
    clock.step_forward(Duration::from_secs(48 * 60 * 60)).expect("a step");
    latchwork_conformance::main("redis_guarded", Redis { server, next: AtomicU32::new(0) });
}
