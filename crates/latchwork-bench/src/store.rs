//! A store that is measured, whatever it is.

use std::sync::atomic::{AtomicU32, Ordering};

use latchwork_services::{EtcdServer, RedisServer, ZooKeeperServer};

use crate::Outcome;
use crate::peers::Kind;

pub(crate) type Count = Result<f64, Box<dyn std::error::Error>>;

pub(crate) trait Store {
    /// The address for Latchwork, and for others to take apart.
    fn address(&self) -> String;

    /// How many commands clients of this kind have sent since the store was started.
    fn commands(&self, kind: &Kind) -> Count;

    /// Forgets what others have left, where that is needed.
    fn clear(&self) -> Outcome {
        Ok(())
    }
}

impl Store for RedisServer {
    fn address(&self) -> String {
        self.url()
    }

    fn commands(&self, kind: &Kind) -> Count {
        kind.commands(self)
    }

    fn clear(&self) -> Outcome {
        self.command(&["FLUSHALL"])?;
        Ok(())
    }
}

impl Store for EtcdServer {
    fn address(&self) -> String {
        self.url()
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
}

impl Store for ZooKeeperServer {
    /// Below a node of its own each time: what processes leave that are killed stays there until
    /// their sessions have ended.
    fn address(&self) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        format!("{}/{}", self.url(), NEXT.fetch_add(1, Ordering::Relaxed))
    }

    fn commands(&self, _kind: &Kind) -> Count {
        Ok(self.count("zk_packets_received")? as f64)
    }
}
