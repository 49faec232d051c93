//! The rules against the ZooKeeper backend and an ensemble of three.

#[path = "harnesses/namespaced.rs"]
mod namespaced;
#[path = "harnesses/servers.rs"]
mod servers;
#[path = "harnesses/zookeeper_server.rs"]
mod zookeeper_server;

fn main() {
    latchwork_conformance::main("zookeeper_cluster", zookeeper_server::start(3));
}
