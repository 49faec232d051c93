//! All keys of all masters, but for what may stay.

use std::io;

use latchwork_services::{RedisServer, Result};

use super::Set;
use crate::faults::Lister;
use crate::stores::the;

/// Lists what is left: everything but token counters and markers of the guard.
pub(super) struct Leftovers(pub(super) Set);

impl Lister for Leftovers {
    fn leftovers(&mut self) -> io::Result<Vec<String>> {
        let mut left = Vec::new();
        let look = |server: &RedisServer, left: &mut Vec<String>| -> Result<()> {
            if server.is_running() && server.info("role")? == "master" {
                let keys = server.command(&["KEYS", "*"])?.ok()?;
                left.extend(keys.list().iter().map(|key| key.text()).filter(|key| !may_stay(key)));
            }
            Ok(())
        };
        let looked = match &self.0 {
            Set::Single(server, _) => look(&the(server), &mut left),
            Set::Sentinel(set, _) => {
                the(set).nodes().iter().try_for_each(|node| look(node, &mut left))
            }
            Set::Cluster(cluster, _) => {
                the(cluster).nodes().iter().try_for_each(|node| look(node, &mut left))
            }
            Set::Redlock(voters) => {
                voters.iter().try_for_each(|voter| look(&the(&voter.server), &mut left))
            }
        };
        looked?;
        Ok(left)
    }
}

fn may_stay(key: &str) -> bool {
    key.contains("lw:token") || key.contains("lw:guard")
}
