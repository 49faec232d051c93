//! The rules against the Redis backend with its restart guard on, whose scripts are others.
//!
//! The server's clock was set forward after its start, so it says that it has been up for longer
//! than any quarantine, and that nothing was lost.

#[path = "harnesses/redis_server.rs"]
mod redis_server;
#[path = "harnesses/redis_way.rs"]
mod redis_way;

use std::time::Duration;

use latchwork_services::RedisOptions;
use redis_server::OneServer;

fn main() {
    let guarded = OneServer {
        options: "?guard=true&max_ttl=24h",
        reserved: &["x:lw:token", "x:lw:guard"],
        ..OneServer::start(2_000, RedisOptions::new().with_clock())
    };
    let clock = guarded.server.clock().expect("a clock of its own");
    clock.step_forward(Duration::from_secs(48 * 60 * 60)).expect("a step");
    latchwork_conformance::main("redis_guarded", guarded);
}
