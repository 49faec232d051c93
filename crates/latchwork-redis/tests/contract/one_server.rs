//! One real server for all trials, a database for each, and a proxy in front of each client.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use latchwork_conformance::{Expected, Harness, Store, Time};
use latchwork_redis::{RedisBackend, RedisConfig};
use latchwork_services::{Proxy, RedisOptions, RedisServer};
use latchwork_store::{Backend, Fencing, Io, Key, Query, Verb};

use crate::ways::Ways;

/// What stands before the first `:` in names of the trials.
pub(crate) const NAMESPACES: &str = "a,x";

#[derive(Clone)]
pub(crate) struct OneServer {
    pub(crate) server: Arc<LazyServer>,
    pub(crate) databases: u32,
    pub(crate) next: Arc<AtomicU32>,
    /// What follows the database in the address.
    pub(crate) options: &'static str,
    pub(crate) expected: Expected,
    pub(crate) reserved: &'static [&'static str],
    /// Makes what stands before the server, by the server's port.
    pub(crate) proxy: Arc<dyn Fn(u16) -> Proxy + Send + Sync>,
    /// Whether a client needs a command of its own to notice that its stream has ended.
    pub(crate) looks: bool,
}

/// A server that is started for the first trial.
pub(crate) type LazyServer = LazyLock<RedisServer, Box<dyn FnOnce() -> RedisServer + Send>>;

impl OneServer {
    /// A server with as many databases as all trials together may ask for stores.
    pub(crate) fn new(databases: u32, options: RedisOptions) -> Self {
        let options = options.config(format!("databases {databases}"));
        let start = move || RedisServer::start(&options).expect("a Redis server");
        Self {
            server: Arc::new(LazyLock::new(Box::new(start))),
            databases,
            next: Arc::default(),
            options: "",
            expected: Expected {
                fencing: Fencing::WhileDataSurvives,
                watch: false,
                ..Expected::EVERYTHING
            },
            reserved: &["x:lw:token"],
            proxy: Arc::new(|port| Proxy::redis(port).expect("a proxy")),
            looks: false,
        }
    }
}

impl Harness for OneServer {
    fn expected(&self) -> Expected {
        self.expected
    }

    fn time(&self) -> Time {
        Time::Real
    }

    fn fresh<'a>(&'a self, io: &'a Io) -> Verb<'a, Store> {
        let database = self.next.fetch_add(1, Ordering::Relaxed);
        assert!(database < self.databases, "more stores than databases");
        let (port, options) = (self.server.port(), self.options);
        let (make, looks) = (self.proxy.clone(), self.looks);
        let new = format!("{}/{database}{options}", self.server.url());
        Box::pin(async move {
            if options.contains("guard") {
                // Nobody holds a lock in a new database.
                let config = RedisConfig::parse(&format!("{new}&namespaces={NAMESPACES}"));
                let init = latchwork_redis::init(config.expect("a good address"), io.clone());
                init.await.expect("nothing is held");
            }
            Store::new(move |io| {
                let proxy = make(port);
                async move {
                    let url = format!("{}/{database}{options}", proxy.url());
                    let config = RedisConfig::parse(&url).expect("a good address");
                    let backend = RedisBackend::connect(config, io.clone()).await;
                    let backend = backend.expect("the server runs");
                    let way = Ways::by(proxy);
                    if !looks {
                        return way.client(backend);
                    }
                    let looking = Arc::downgrade(&backend);
                    way.client_that(backend, move || {
                        if let Some(backend) = looking.upgrade() {
                            io.spawn(async move {
                                let key = Key::new("notices").expect("a good key");
                                let _ = backend.inspect(&Query::Key(key)).await;
                            });
                        }
                    })
                }
            })
        })
    }

    fn is_reserved(&self, name: &str) -> bool {
        self.reserved.contains(&name)
    }

    fn slack(&self) -> Duration {
        Duration::from_millis(500)
    }
}
