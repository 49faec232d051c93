//! One real server and its tables for all trials, a namespace for each, and a proxy in front of each client.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use latchwork_conformance::namespaced::{Namespace, Namespaced};
use latchwork_conformance::{Client, Expected, Fault, Harness, Store, Time};
use latchwork_postgres::{PostgresBackend, PostgresConfig};
use latchwork_services::contract::{close, cut};
use latchwork_services::{Direction, PgBouncer, PostgresOptions, PostgresServer, Proxy};
use latchwork_store::{Fencing, Io, Verb};
use tokio::sync::OnceCell;

/// What runs: a server, and perhaps a pooler before it.
pub(crate) struct Running {
    pub(crate) server: PostgresServer,
    bouncer: Option<PgBouncer>,
    tables: OnceCell<()>,
}

type Lazy = LazyLock<Running, Box<dyn FnOnce() -> Running + Send>>;

#[derive(Clone)]
pub(crate) struct OneServer {
    pub(crate) running: Arc<Lazy>,
    next: Arc<AtomicU32>,
    /// What follows the database in the address.
    options: &'static str,
    pooled: bool,
}

impl OneServer {
    pub(crate) fn new(options: &'static str, pooled: bool) -> Self {
        Self::on(options, pooled, PostgresOptions::new().setting("max_connections=300"))
    }

    pub(crate) fn on(options: &'static str, pooled: bool, server: PostgresOptions) -> Self {
        let start = move || {
            let server = PostgresServer::start_with(&server).expect("a PostgreSQL server");
            let bouncer = pooled.then(|| PgBouncer::start(server.port(), 20).expect("a PgBouncer"));
            Running { server, bouncer, tables: OnceCell::new() }
        };
        Self {
            running: Arc::new(LazyLock::new(Box::new(start))),
            next: Arc::default(),
            options,
            pooled,
        }
    }
}

impl Harness for OneServer {
    fn expected(&self) -> Expected {
        Expected {
            fencing: Fencing::WhileDataSurvives,
            watch: !self.pooled,
            push: !self.pooled,
            ..Expected::EVERYTHING
        }
    }

    fn time(&self) -> Time {
        Time::Real
    }

    fn fresh<'a>(&'a self, io: &'a Io) -> Verb<'a, Store> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let namespace = Arc::new(Namespace::new(format!("t{number}:")));
        let (running, options) = (self.running.clone(), self.options);
        Box::pin(async move {
            let server = running.server.port();
            let port = running.bouncer.as_ref().map_or(server, PgBouncer::port);
            let url =
                move |port: u16| format!("postgres://postgres@127.0.0.1:{port}/postgres?{options}");
            let init = || async {
                let config = PostgresConfig::parse(&url(server)).expect("a good address");
                latchwork_postgres::init(config, io.clone()).await.expect("nothing is held");
            };
            running.tables.get_or_init(init).await;
            Store::new(move |io| {
                let proxy = Proxy::plain(port).expect("a proxy");
                let config = PostgresConfig::parse(&url(proxy.port())).expect("a good address");
                let namespace = namespace.clone();
                async move {
                    let backend =
                        PostgresBackend::connect(config, io).await.expect("the server runs");
                    let backend = Arc::new(Namespaced::new(backend, namespace));
                    let proxies = Arc::new(vec![proxy]);
                    let held = proxies.clone();
                    Client::new(backend)
                        .on_fault(move |fault| disturb(&proxies, fault))
                        .on_kill(move || cut(&held))
                }
            })
        })
    }

    /// Its processes share the machine with other trials, and nobody measures their stalls. It is less than
    /// `WAITER_PATIENCE`, after which a waiter that could come is passed by.
    fn slack(&self) -> Duration {
        Duration::from_millis(1_500)
    }
}

fn disturb(proxies: &[Proxy], fault: Fault) {
    let [proxy] = proxies else { panic!("one proxy") };
    match fault {
        Fault::None => {
            // A stream that has lost bytes is of no use.
            proxy.thaw(Direction::ToServer);
            close(proxies);
            proxy.lose_answers(false);
            proxy.accept_connections().expect("the port opens");
            std::thread::sleep(Duration::from_millis(50));
        }
        Fault::LoseRequests => proxy.freeze(Direction::ToServer),
        Fault::LoseAnswers => proxy.lose_answers(true),
    }
}
