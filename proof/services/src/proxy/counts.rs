use std::collections::BTreeMap;
use std::ops::Index;

/// What went through a proxy since it was started or reset.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Commands from clients by name in upper case, also those that the proxy refused or lost.
    pub commands: BTreeMap<String, u64>,
    /// Connections that clients made.
    pub connections: u64,
    /// How often a client sent something while it had all its answers: a burst of commands that
    /// did not wait for one another is one round trip.
    pub round_trips: u64,
    /// Answers of the server, those included that were lost or held back.
    pub answers: u64,
    /// Messages that nobody asked for: RESP3 pushes, and published messages under RESP2. What
    /// confirms a subscription counts as an answer.
    pub pushes: u64,
    /// Commands, answers and pushes that the proxy swallowed.
    pub lost: u64,
    /// Commands of replicas and sentinels. They are in no other count, except for the first `PING`
    /// of a replica, before it is known as one.
    pub between_servers: u64,
    /// Bytes from clients, and bytes from the server.
    pub bytes: [u64; 2],
}

impl Counts {
    /// All commands.
    pub fn total(&self) -> u64 {
        self.commands.values().sum()
    }
}

impl Index<&str> for Counts {
    type Output = u64;

    /// How often a command with this name (upper case) came.
    fn index(&self, name: &str) -> &u64 {
        self.commands.get(name).unwrap_or(&0)
    }
}
