//! A store that is measured, whatever it is.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use latchwork_services::{
    Direction, EtcdServer, Folder, Proxy, RedisServer, ZooKeeperServer, etcdctl,
};

use crate::Outcome;
use crate::peers::Kind;
use crate::redlock_servers::Five;

pub(crate) type Count = Result<f64, Box<dyn std::error::Error>>;

pub(crate) trait Store: Sync {
    /// For tables and pictures.
    fn name(&self) -> &'static str;

    /// Where its servers listen.
    fn ports(&self) -> Vec<u16>;

    /// The address for Latchwork, and for others to take apart, if the servers are met at these
    /// ports.
    fn address_at(&self, ports: &[u16]) -> String;

    /// The address without a detour.
    fn address(&self) -> String {
        self.address_at(&self.ports())
    }

    /// How many commands clients of this kind have sent since the store was started.
    fn commands(&self, kind: &Kind) -> Count;

    /// Forgets what others have left, where that is needed.
    fn clear(&self) -> Outcome {
        Ok(())
    }
}

fn hosts(ports: &[u16]) -> String {
    ports.iter().map(|port| format!("127.0.0.1:{port}")).collect::<Vec<_>>().join(",")
}

impl Store for RedisServer {
    fn name(&self) -> &'static str {
        "Redis"
    }

    fn ports(&self) -> Vec<u16> {
        vec![self.port()]
    }

    fn address_at(&self, ports: &[u16]) -> String {
        format!("redis://{}", hosts(ports))
    }

    fn commands(&self, kind: &Kind) -> Count {
        kind.commands(self)
    }

    fn clear(&self) -> Outcome {
        self.command(&["FLUSHALL"])?;
        Ok(())
    }
}

impl Store for Five {
    fn name(&self) -> &'static str {
        "Redlock, 5 servers"
    }

    fn ports(&self) -> Vec<u16> {
        self.servers.iter().map(RedisServer::port).collect()
    }

    fn address_at(&self, ports: &[u16]) -> String {
        format!("redlock://{}", hosts(ports))
    }

    /// Those of each server.
    fn commands(&self, kind: &Kind) -> Count {
        self.commands_each(kind)
    }

    fn clear(&self) -> Outcome {
        Five::clear(self)
    }
}

impl Store for EtcdServer {
    fn name(&self) -> &'static str {
        "etcd"
    }

    fn ports(&self) -> Vec<u16> {
        vec![self.port()]
    }

    fn address_at(&self, ports: &[u16]) -> String {
        format!("etcd://{}", hosts(ports))
    }

    /// Messages: streams have many.
    fn commands(&self, _kind: &Kind) -> Count {
        let mut sum = 0.0;
        for service in ["KV", "Lease", "Watch"] {
            let label = format!("grpc_service=\"etcdserverpb.{service}\"");
            sum += self.measure("grpc_server_msg_received_total", &label)?;
        }
        Ok(sum)
    }

    /// What killed processes leave stays until its leases end, which is a minute for some: nobody is to
    /// wait for that.
    fn clear(&self) -> Outcome {
        etcdctl(self.port(), &["del", "", "--prefix"])?;
        Ok(())
    }
}

impl Store for ZooKeeperServer {
    fn name(&self) -> &'static str {
        "ZooKeeper"
    }

    fn ports(&self) -> Vec<u16> {
        vec![self.port()]
    }

    /// Below a node of its own each time: what processes leave that are killed stays there until
    /// their sessions have ended.
    fn address_at(&self, ports: &[u16]) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        format!("zk://{}/{}", hosts(ports), NEXT.fetch_add(1, Ordering::Relaxed))
    }

    fn commands(&self, _kind: &Kind) -> Count {
        Ok(self.count("zk_packets_received")? as f64)
    }
}

/// Files, where the folders of servers are too.
pub(crate) struct Files(pub(crate) Folder);

impl Store for Files {
    fn name(&self) -> &'static str {
        "file"
    }

    fn ports(&self) -> Vec<u16> {
        Vec::new()
    }

    fn address_at(&self, _ports: &[u16]) -> String {
        format!("file://{}/locks", self.0.path().display())
    }

    /// Nobody counts system calls here.
    fn commands(&self, _kind: &Kind) -> Count {
        Ok(f64::NAN)
    }
}

/// A store behind a slow link to each of its servers.
pub(crate) struct SlowLink<'a> {
    store: &'a dyn Store,
    links: Vec<Proxy>,
}

impl<'a> SlowLink<'a> {
    /// Bytes take at least so long on their way to the servers, and as long on their way back.
    pub(crate) fn new(
        store: &'a dyn Store,
        delay: Duration,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let mut links = Vec::new();
        for port in store.ports() {
            let link = Proxy::plain(port)?;
            link.delay(Direction::ToServer, delay);
            link.delay(Direction::ToClient, delay);
            links.push(link);
        }
        Ok(Self { store, links })
    }
}

impl Store for SlowLink<'_> {
    fn name(&self) -> &'static str {
        self.store.name()
    }

    fn ports(&self) -> Vec<u16> {
        self.links.iter().map(Proxy::port).collect()
    }

    fn address_at(&self, ports: &[u16]) -> String {
        self.store.address_at(ports)
    }

    fn commands(&self, kind: &Kind) -> Count {
        self.store.commands(kind)
    }

    fn clear(&self) -> Outcome {
        self.store.clear()
    }
}
