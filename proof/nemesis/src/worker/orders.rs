//! What a worker is told to do.

use std::path::PathBuf;
use std::time::Duration;

use crate::flags::Flags;

/// What a worker is told to do, as flags of its command line.
#[derive(Debug, Clone, PartialEq)]
pub struct Orders {
    /// The address of the store.
    pub store: String,
    /// The namespace of all keys.
    pub namespace: String,
    /// The worker's name in the history.
    pub name: String,
    /// Where it writes its history.
    pub log: PathBuf,
    /// The socket of the resource.
    pub resource: PathBuf,
    /// What all its random choices come from.
    pub seed: u64,
    /// How many tasks it runs; of every twelve, three are on the hot keys.
    pub tasks: u32,
    /// How many keys of each kind there are.
    pub keys: u32,
    /// The ttl of all locks.
    pub ttl: Duration,
    /// The longest hold, in ttls.
    pub longest: f64,
    /// For how long answers of the store are held back; zero for not at all.
    pub slow: Duration,
    /// Whether the store has a line, so that locks can be fair.
    pub fair: bool,
    /// The addresses of the service that it uses instead of the library, with commas between them, if there is one.
    pub service: Option<String>,
    /// Whether the clock of clients of the service stands still while they are stopped.
    pub frozen_clock: bool,
    /// Whether it looks for ghosts at its end: nobody else can, in a store of one process.
    pub sweeps: bool,
}

impl Orders {
    /// Reads the flags that [`to_flags`](Self::to_flags) writes.
    ///
    /// # Errors
    ///
    /// The flag that is wrong.
    pub fn read(mut flags: Flags) -> Result<Self, String> {
        let orders = Self {
            store: flags.needed("store")?,
            namespace: flags.needed("namespace")?,
            name: flags.needed("name")?,
            log: flags.needed("log")?.into(),
            resource: flags.needed("resource")?.into(),
            seed: flags.parsed("seed", 0)?,
            tasks: flags.parsed("tasks", 10)?,
            keys: flags.parsed("keys", 1)?,
            ttl: flags.duration("ttl", Duration::from_secs(1))?,
            longest: flags.parsed("longest", 2.0)?,
            slow: flags.duration("slow", Duration::ZERO)?,
            fair: flags.parsed("fair", true)?,
            service: flags.text("service").filter(|addresses| addresses != "none"),
            frozen_clock: flags.parsed("frozen-clock", false)?,
            sweeps: flags.parsed("sweeps", false)?,
        };
        flags.done()?;
        Ok(orders)
    }

    /// The orders as flags.
    pub fn to_flags(&self) -> Vec<String> {
        let path = |path: &PathBuf| path.to_string_lossy().into_owned();
        let millis = |d: Duration| format!("{}ms", d.as_secs_f64() * 1_000.0);
        [
            ("store", self.store.clone()),
            ("namespace", self.namespace.clone()),
            ("name", self.name.clone()),
            ("log", path(&self.log)),
            ("resource", path(&self.resource)),
            ("seed", self.seed.to_string()),
            ("tasks", self.tasks.to_string()),
            ("keys", self.keys.to_string()),
            ("ttl", millis(self.ttl)),
            ("longest", self.longest.to_string()),
            ("slow", millis(self.slow)),
            ("fair", self.fair.to_string()),
            ("service", self.service.clone().unwrap_or_else(|| "none".into())),
            ("frozen-clock", self.frozen_clock.to_string()),
            ("sweeps", self.sweeps.to_string()),
        ]
        .into_iter()
        .flat_map(|(name, value)| [format!("--{name}"), value])
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read_as_they_were_written() {
        let orders = Orders {
            store: "file:///tmp/x y".into(),
            namespace: "n".into(),
            name: "w1.0".into(),
            log: "/tmp/w1.0.log".into(),
            resource: "/tmp/r".into(),
            seed: u64::MAX,
            tasks: 7,
            keys: 2,
            ttl: Duration::from_millis(1_500),
            longest: 2.5,
            slow: Duration::from_millis(20),
            fair: false,
            service: Some("127.0.0.1:1".into()),
            frozen_clock: true,
            sweeps: true,
        };
        assert_eq!(Orders::read(Flags::read(orders.to_flags()).unwrap()), Ok(orders));
    }
}
