//! PostgreSQL with a primary and an asynchronous standby, and PostgreSQL behind PgBouncer, as
//! `docs/postgres.md` describes them.

mod failover;
mod server;

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use latchwork_services::{PgBouncer, PostgresOptions, PostgresServer};

use super::network::{Reach, Reached};
use super::{GUARDED, OLDER_STATE, ServerLog, Store as _, TWO_HOLDERS, the, with_options};
use crate::faults::Nemesis;
use crate::repeated::Repeated;
use failover::Pair;

/// So many connections to the server are shared behind PgBouncer.
const POOL: u32 = 20;

fn url(hosts: &str, options: &str) -> String {
    with_options(&format!("postgres://postgres@{hosts}/postgres"), options)
}

fn is_guarded(options: &str) -> bool {
    options.split('&').any(|option| option == "guard=true")
}

/// With room for connections that one side has forgotten: the server's processes of those stay.
fn roomy() -> PostgresOptions {
    PostgresOptions::new().setting("max_connections=400")
}

/// Makes the tables, and takes the quarantine off: nothing is held yet.
fn prepare(url: &str) -> io::Result<()> {
    latchwork::block_on(latchwork::init(url)).map(drop).map_err(io::Error::other)
}

/// The rules that the documents excuse under a fault, with these options of the address.
fn excused(fault: &str, options: &str) -> &'static [&'static str] {
    match fault {
        "failover" if !is_guarded(options) => OLDER_STATE,
        "failover" => GUARDED,
        // The guard does not end the service of a primary that was replaced.
        "split" => OLDER_STATE,
        "truncate" if !is_guarded(options) => TWO_HOLDERS,
        "truncate" => GUARDED,
        // The guard does not notice the loss of a single row; its holder does, at its next renewal.
        "delete" => TWO_HOLDERS,
        _ => &[],
    }
}

/// A primary and an asynchronous standby, each behind proxies.
#[derive(Debug)]
pub struct Postgres {
    pair: Arc<Mutex<Pair>>,
    reach: Reach,
}

impl Postgres {
    /// Starts both servers and makes the tables, to be used with these options of a Latchwork
    /// address.
    ///
    /// # Errors
    ///
    /// What kept them from starting.
    pub fn start(options: &str) -> io::Result<Self> {
        let (pair, ports) = Pair::start()?;
        let reach = Reach::open(&ports, options)?;
        let this = Self { pair: Arc::new(Mutex::new(pair)), reach };
        prepare(&this.url())?;
        Ok(this)
    }
}

impl Reached for Postgres {
    const FAULTS: &'static [&'static str] =
        &["crash", "restart", "freeze", "terminate", "truncate", "delete", "failover", "split"];

    fn excused_with(fault: &str, options: &str) -> &'static [&'static str] {
        excused(fault, options)
    }

    fn reach(&self) -> &Reach {
        &self.reach
    }

    fn address(&self, hosts: &str) -> String {
        url(hosts, &self.reach.options)
    }

    fn own_nemesis(&self, fault: &str, ttl: Duration) -> Option<Box<dyn Nemesis>> {
        let (pair, ways) = (self.pair.clone(), self.reach.ways.clone());
        let often = ttl / 2..ttl * 2;
        match fault {
            "failover" => Some(Repeated::boxed("failover", often, move |luck| {
                let lag = luck.times(ttl, 0.1..0.7);
                the(&pair).fail_over(&ways, lag)
            })),
            "split" => Some(Repeated::boxed("split", often, move |luck| {
                let (stay, length) = (luck.below(2), luck.times(ttl, 0.3..1.5));
                the(&pair).split(&ways, stay, length)
            })),
            _ => server::of(pair, fault, ttl),
        }
    }

    fn own_logs(&self) -> Vec<ServerLog> {
        the(&self.pair).logs()
    }
}

/// One server behind a PgBouncer that gives each transaction another connection.
#[derive(Debug)]
pub struct Pooled {
    server: Arc<Mutex<PostgresServer>>,
    bouncer: Arc<Mutex<PgBouncer>>,
    reach: Reach,
}

impl Pooled {
    /// Starts both and makes the tables, to be used with these options of a Latchwork address.
    ///
    /// # Errors
    ///
    /// What kept them from starting.
    pub fn start(options: &str) -> io::Result<Self> {
        let server = PostgresServer::start_with(&roomy())?;
        let bouncer = PgBouncer::start(server.port(), POOL)?;
        let reach = Reach::open(&[bouncer.port()], options)?;
        let (server, bouncer) = (Arc::new(Mutex::new(server)), Arc::new(Mutex::new(bouncer)));
        let this = Self { server, bouncer, reach };
        prepare(&this.url())?;
        Ok(this)
    }
}

impl Reached for Pooled {
    const FAULTS: &'static [&'static str] =
        &["bouncer-kill", "crash", "restart", "freeze", "terminate", "truncate", "delete"];

    fn excused_with(fault: &str, options: &str) -> &'static [&'static str] {
        excused(fault, options)
    }

    fn reach(&self) -> &Reach {
        &self.reach
    }

    fn address(&self, hosts: &str) -> String {
        url(hosts, &self.reach.options)
    }

    fn own_nemesis(&self, fault: &str, ttl: Duration) -> Option<Box<dyn Nemesis>> {
        if fault == "bouncer-kill" {
            let bouncer = self.bouncer.clone();
            return Some(Repeated::boxed("bouncer-kill", ttl / 4..ttl, move |luck| {
                let mut bouncer = the(&bouncer);
                bouncer.kill();
                crate::pause::pause(luck.times(ttl, 0.0..0.5));
                bouncer.revive()
            }));
        }
        server::of(self.server.clone(), fault, ttl)
    }

    fn own_logs(&self) -> Vec<ServerLog> {
        vec![
            ServerLog::of("postgres", &the(&self.server)),
            ServerLog::of("pgbouncer", &the(&self.bouncer)),
        ]
    }
}
