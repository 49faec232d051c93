//! PostgreSQL keeps the contract: one server, with its guard, and behind PgBouncer.

#![allow(clippy::disallowed_methods, reason = "tests")]

mod differential;
mod servers;

use latchwork_conformance::{run, trials};

fn main() {
    let mut all = trials("postgres", servers::OneServer::new("", false));
    all.extend(trials(
        "postgres_guarded",
        servers::OneServer::new("guard=true&max_ttl=24h", false),
    ));
    all.extend(trials("postgres_pooled", servers::OneServer::new("", true)));
    all.extend(differential::trials());
    run(all)
}
