//! etcd keeps the contract: one server, a cluster of three, and a server of the system's version, which on
//! Debian 12 is 3.4.

use std::sync::Arc;
use std::time::Duration;

use latchwork_etcd::{EtcdBackend, EtcdConfig};
use latchwork_services::{Direction, EtcdCluster, EtcdOptions, EtcdServer, Proxy};
use latchwork_store::Backend;

use latchwork_conformance::{run, trials};
use latchwork_services::contract::{Servers, Way, close, cut};

fn main() {
    let mut all = trials("etcd", servers(1, EtcdOptions::new));
    all.extend(trials("etcd_cluster", servers(3, EtcdOptions::new)));
    all.extend(trials("etcd_3_4", servers(1, EtcdOptions::of_the_system)));
    run(all)
}

/// So many members.
fn servers(members: usize, options: fn() -> EtcdOptions) -> Servers {
    let start = move || {
        let cluster = EtcdCluster::start(members, &options()).expect("etcd servers");
        let ports = cluster.members().iter().map(EtcdServer::port).collect();
        (cluster, ports)
    };
    let way = Way {
        connect: |hosts, io| {
            Box::pin(async move {
                let config = EtcdConfig::parse(&format!("etcd://{hosts}")).expect("a good address");
                let backend = EtcdBackend::connect(config, io).await;
                backend.expect("the servers run") as Arc<dyn Backend>
            })
        },
        mend,
        kill: cut,
        // The shortest that the server grants.
        short_ttl: Duration::from_secs(2),
        // The server looks for leases that have ended every half second.
        slack: Duration::from_millis(1_200),
    };
    Servers::new(start, way)
}

/// No stream goes on after bytes of it were lost: it ends. Who connects again at once must not lose
/// answers too.
fn mend(proxies: &[Proxy]) {
    for proxy in proxies {
        proxy.thaw(Direction::ToServer);
        close(std::slice::from_ref(proxy));
        proxy.lose_answers(false);
        proxy.accept_connections().expect("the port opens");
    }
}
