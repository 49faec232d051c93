//! The rules against the Redis backend where the way to the server does not let everything pass: one
//! real server for all trials, a database for each, and proxies that refuse what others leave out.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use latchwork_conformance::{Client, Expected, Fault, Harness, Store, Time};
use latchwork_core::{Backend, Fencing, Io, Key, Query, Verb};
use latchwork_redis::{RedisBackend, RedisConfig};
use latchwork_services::{Cut, Direction, Proxy, RedisOptions, RedisServer};

/// As many stores as all trials together may ask for.
const DATABASES: u32 = 4_000;

/// What does not pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Without {
    /// Scripts of several keys, subscriptions, INFO and more: Codis and its like.
    ManyKeys,
    /// Subscriptions and INFO.
    Subscriptions,
    /// RESP3.
    Hello,
}

struct Redis {
    server: Arc<RedisServer>,
    next: Arc<AtomicU32>,
    without: Without,
}

fn proxy(port: u16, without: Without) -> Proxy {
    let proxy = Proxy::redis(port).expect("a proxy");
    let unknown = |name: &str| {
        proxy.refuse(name, &format!("ERR unknown command '{name}'"));
    };
    match without {
        Without::ManyKeys => {
            let keys = |words: &[&[u8]]| words.get(2) != Some(&b"1".as_slice());
            proxy.refuse_if("EVAL", "ERR wrong number of keys for 'EVAL': only 1 works", keys);
            // Not every proxy knows which server has the script.
            unknown("EVALSHA");
            for name in ["INFO", "SUBSCRIBE", "UNSUBSCRIBE", "PUBLISH", "CLIENT", "MULTI"] {
                unknown(name);
            }
        }
        Without::Subscriptions => {
            for name in ["INFO", "SUBSCRIBE", "UNSUBSCRIBE"] {
                unknown(name);
            }
        }
        Without::Hello => unknown("HELLO"),
    }
    proxy
}

impl Harness for Redis {
    fn expected(&self) -> Expected {
        let whole = self.without != Without::ManyKeys;
        Expected {
            shared: whole,
            permits: whole,
            fifo: whole,
            linger: whole,
            push: false,
            floor: whole,
            fencing: Fencing::WhileDataSurvives,
        }
    }

    fn time(&self) -> Time {
        Time::Real
    }

    fn fresh<'a>(&'a self, _io: &'a Io) -> Verb<'a, Store> {
        let database = self.next.fetch_add(1, Ordering::Relaxed);
        assert!(database < DATABASES, "more stores than databases");
        let (port, without) = (self.server.port(), self.without);
        Box::pin(async move {
            Store::new(move |io| async move {
                let proxy = Arc::new(proxy(port, without));
                let url = format!("{}/{database}", proxy.url());
                let config = RedisConfig::parse(&url).expect("a good address");
                let again = io.clone();
                let backend = RedisBackend::connect(config, io).await.expect("the server runs");
                let (way, held) = (proxy.clone(), proxy);
                let notices = Arc::downgrade(&backend);
                Client::new(backend)
                    .on_fault(move |fault| match fault {
                        Fault::None => {
                            way.thaw(Direction::ToServer);
                            // No stream goes on after bytes of it were lost: it ends, and the
                            // client has noticed when the trial goes on. In RESP2 nobody is told
                            // of an end: the next command notices.
                            // Who connects again at once must not lose answers too.
                            way.refuse_connections().expect("the port closes");
                            let _ = way.cut(Cut::Reset);
                            way.lose_answers(false);
                            way.accept_connections().expect("the port opens");
                            if let Some(backend) = notices.upgrade() {
                                again.spawn(async move {
                                    let key = Key::new("notices").expect("a good key");
                                    let _ = backend.inspect(&Query::Key(key)).await;
                                });
                            }
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
    let server = Arc::new(RedisServer::start(&options).expect("a Redis server"));
    let next = Arc::new(AtomicU32::new(0));
    let mut arguments = libtest_mimic::Arguments::from_args();
    arguments.test_threads.get_or_insert(8);
    let mut trials = Vec::new();
    for (name, without) in [
        ("redis_plain", Without::ManyKeys),
        ("redis_no_pubsub", Without::Subscriptions),
        ("redis_resp2", Without::Hello),
    ] {
        let redis = Redis { server: server.clone(), next: next.clone(), without };
        trials.extend(latchwork_conformance::trials(name, redis));
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    // Ends the server: `exit` drops nothing.
    drop(server);
    conclusion.exit()
}
