//! A store of each kind, and its address.

pub(super) fn memory() -> ((), String) {
    ((), "mem:".into())
}

pub(super) fn files() -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("file://{}/locks", dir.path().display());
    (dir, url)
}

#[cfg(feature = "redis")]
pub(super) fn redis() -> (latchwork_services::RedisServer, String) {
    use latchwork_services::{RedisOptions, RedisServer};
    let server = RedisServer::start(&RedisOptions::new()).unwrap();
    let url = server.url();
    (server, url)
}

#[cfg(feature = "redis")]
pub(super) fn redlock() -> (Vec<latchwork_services::RedisServer>, String) {
    let servers: Vec<_> = (0..3).map(|_| redis().0).collect();
    let hosts: Vec<_> = servers.iter().map(|s| format!("127.0.0.1:{}", s.port())).collect();
    // The servers are new, and have no lock to lose.
    (servers, format!("redlock://{}?guard=false", hosts.join(",")))
}

#[cfg(feature = "redis")]
pub(super) fn cluster() -> (latchwork_services::RedisCluster, String) {
    use latchwork_services::{ClusterOptions, RedisCluster};
    let cluster = RedisCluster::start(&ClusterOptions::default()).unwrap();
    let url = cluster.url();
    (cluster, url)
}

#[cfg(feature = "etcd")]
pub(super) fn etcd() -> (latchwork_services::EtcdServer, String) {
    use latchwork_services::{EtcdOptions, EtcdServer};
    let server = EtcdServer::start(&EtcdOptions::new()).unwrap();
    let url = server.url();
    (server, url)
}

#[cfg(feature = "zookeeper")]
pub(super) fn zookeeper() -> (latchwork_services::ZooKeeperServer, String) {
    use latchwork_services::{ZooKeeperOptions, ZooKeeperServer};
    let server = ZooKeeperServer::start(&ZooKeeperOptions::new()).unwrap();
    let url = server.url();
    (server, url)
}

#[cfg(feature = "postgres")]
pub(super) fn postgres() -> (latchwork_services::PostgresServer, String) {
    use latchwork::BlockOn;
    let server = latchwork_services::PostgresServer::start().unwrap();
    let url = server.url();
    latchwork::init(&url).block_on().unwrap();
    (server, url)
}
