//! The rules against the Redis backend.

#[path = "harnesses/redis_server.rs"]
mod redis_server;
#[path = "harnesses/redis_way.rs"]
mod redis_way;

use latchwork_services::RedisOptions;
use redis_server::OneServer;

fn main() {
    latchwork_conformance::main("redis", OneServer::start(2_000, RedisOptions::new()));
}
