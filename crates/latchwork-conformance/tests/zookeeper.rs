//! The rules against the ZooKeeper backend.

#[path = "harnesses/namespaced.rs"]
mod namespaced;
#[path = "harnesses/zookeeper_server.rs"]
mod zookeeper_server;

fn main() {
    latchwork_conformance::main("zookeeper", zookeeper_server::ZooKeeper::start(1));
}
