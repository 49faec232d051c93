//! The rules against the Redis backend with its restart guard on, whose scripts are others.

#[path = "harnesses/redis_server.rs"]
mod redis_server;
#[path = "harnesses/redis_way.rs"]
mod redis_way;

use latchwork_services::RedisOptions;
use redis_server::OneServer;

fn main() {
    let guarded = OneServer {
        options: "?guard=true&max_ttl=24h",
        reserved: &["x:lw:token", "x:lw:guard"],
        ..OneServer::start(2_000, RedisOptions::new())
    };
    latchwork_conformance::main("redis_guarded", guarded);
}
