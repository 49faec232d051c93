//! Redis keeps the contract: one server, one of Valkey, with its guard, behind what lets not everything pass, behind
//! Sentinels, as a Cluster, and as several that vote.

#![allow(clippy::disallowed_methods, reason = "tests")]

mod cluster;
mod differential;
mod one_server;
mod plain;
mod redlock;
mod sentinel;
mod ways;

use latchwork_conformance::{run, trials};
use latchwork_services::RedisOptions;

use self::one_server::OneServer;

fn main() {
    let mut all = trials("redis", OneServer::new(2_000, RedisOptions::new()));
    all.extend(trials("valkey", OneServer::new(2_000, RedisOptions::valkey())));
    // Its scripts are others.
    let guarded = OneServer {
        options: "?guard=true&max_ttl=24h",
        reserved: &["x:lw:token", "x:lw:guard"],
        ..OneServer::new(2_000, RedisOptions::new())
    };
    all.extend(trials("redis_guarded", guarded));
    all.extend(plain::trials());
    all.extend(trials("redis_sentinel", sentinel::Sentinel::default()));
    all.extend(trials("redis_cluster", cluster::Cluster::default()));
    all.extend(trials("redlock", redlock::Redlock::default()));
    all.extend(differential::trials());
    run(all)
}
