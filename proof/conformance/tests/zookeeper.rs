//! The rules against the ZooKeeper backend.

#[path = "harnesses/namespaced.rs"]
mod namespaced;
#[path = "harnesses/servers.rs"]
mod servers;
#[path = "harnesses/zookeeper_server.rs"]
mod zookeeper_server;

fn main() {
    latchwork_conformance::main("zookeeper", zookeeper_server::start(1));
}
