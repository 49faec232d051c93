//! The rules against the etcd backend and three members.

#[path = "harnesses/etcd_server.rs"]
mod etcd_server;
#[path = "harnesses/namespaced.rs"]
mod namespaced;
#[path = "harnesses/servers.rs"]
mod servers;

fn main() {
    latchwork_conformance::main("etcd_cluster", etcd_server::start(3));
}
