//! ZooKeeper keeps the contract: one server, and an ensemble of three.

use std::sync::Arc;
use std::time::Duration;

use latchwork_services::{Direction, Proxy, ZooKeeperEnsemble, ZooKeeperOptions, ZooKeeperServer};
use latchwork_store::Backend;
use latchwork_zookeeper::{ZooKeeperBackend, ZooKeeperConfig};

use latchwork_conformance::{run, trials};
use latchwork_services::contract::{Servers, Way, close};

fn main() {
    let mut all = trials("zookeeper", servers(1));
    all.extend(trials("zookeeper_cluster", servers(3)));
    run(all)
}

/// So many servers.
fn servers(members: usize) -> Servers {
    let start = move || {
        let options = ZooKeeperOptions::new();
        let ensemble = ZooKeeperEnsemble::start(members, &options).expect("ZooKeeper servers");
        let ports = ensemble.members().iter().map(ZooKeeperServer::port).collect();
        (ensemble, ports)
    };
    let way = Way {
        connect: |hosts, io| {
            Box::pin(async move {
                let url = format!("zk://{hosts}/a/b");
                let config = ZooKeeperConfig::parse(&url).expect("a good address");
                let backend = ZooKeeperBackend::connect(config, io).await;
                backend.expect("the servers run") as Arc<dyn Backend>
            })
        },
        mend,
        kill: close,
        // Sessions are five thirds of it.
        short_ttl: Duration::from_millis(1_800),
        // A session whose client has died lasts two thirds of the ttl longer, and a tick.
        slack: Duration::from_millis(1_600),
    };
    Servers::new(start, way)
}

/// No stream goes on after bytes of it were lost. It ends before it is thawed: a hello that comes late
/// would take the session away from where the client is by then.
fn mend(proxies: &[Proxy]) {
    close(proxies);
    for proxy in proxies {
        proxy.thaw(Direction::ToServer);
        proxy.lose_answers(false);
        proxy.accept_connections().expect("the port opens");
    }
}
