//! ZooKeeper, one server or an ensemble.

use std::sync::Arc;
use std::time::Duration;

use latchwork_services::{Direction, Proxy, ZooKeeperEnsemble, ZooKeeperOptions, ZooKeeperServer};
use latchwork_store::Backend;
use latchwork_zookeeper::{ZooKeeperBackend, ZooKeeperConfig};

use super::servers::{Servers, Way, close};

/// Starts so many servers.
pub(crate) fn start(members: usize) -> Servers {
    let options = ZooKeeperOptions::new();
    let ensemble = ZooKeeperEnsemble::start(members, &options).expect("ZooKeeper servers");
    let ports = ensemble.members().iter().map(ZooKeeperServer::port).collect();
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
    Servers::new(ensemble, ports, way)
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
