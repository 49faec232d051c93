//! Five servers that know nothing of each other.

use latchwork_services::{RedisOptions, RedisServer};

use crate::peers::Kind;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

pub(crate) const SERVERS: usize = 5;

/// Five servers, and their address for Latchwork. The peers take it apart.
pub(crate) struct Five {
    pub(crate) servers: Vec<RedisServer>,
    pub(crate) url: String,
}

impl Five {
    /// Starts them, empty and ready for locks.
    pub(crate) fn start() -> Result<Self> {
        let start = |_| RedisServer::start(&RedisOptions::new());
        let servers = (0..SERVERS).map(start).collect::<std::result::Result<Vec<_>, _>>()?;
        let hosts: Vec<String> =
            servers.iter().map(|s| format!("127.0.0.1:{}", s.port())).collect();
        let this = Self { servers, url: format!("redlock://{}", hosts.join(",")) };
        this.clear()?;
        Ok(this)
    }

    /// Empties them. Afterwards they would be in quarantine, so somebody says that no lock is held.
    pub(crate) fn clear(&self) -> Result<()> {
        for server in &self.servers {
            server.command(&["FLUSHALL"])?;
        }
        latchwork::block_on(latchwork::init(&self.url))?;
        Ok(())
    }

    /// How many commands each has got from such clients.
    pub(crate) fn commands(&self, kind: &Kind) -> Result<Vec<f64>> {
        self.servers.iter().map(|server| kind.commands(server)).collect()
    }

    /// The mean of that.
    pub(crate) fn commands_each(&self, kind: &Kind) -> Result<f64> {
        Ok(self.commands(kind)?.iter().sum::<f64>() / SERVERS as f64)
    }
}
