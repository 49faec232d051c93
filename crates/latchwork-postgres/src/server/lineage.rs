//! Which of several servers counts: after a failover the one that was promoted last.
//!
//! A promotion gives a server a larger timeline than the one that it follows; its system identifier stays. So of two
//! servers of one system the one with the smaller timeline was replaced, whatever it takes itself for.

use std::collections::HashMap;
use std::sync::Mutex;

use crate::lock;

/// Who a server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lineage {
    pub(crate) system: String,
    pub(crate) timeline: u32,
}

impl Lineage {
    /// `timeline` is as in the names of files of the log: eight hexadecimal digits.
    pub(crate) fn parse(system: Option<String>, timeline: Option<&str>) -> Option<Self> {
        let timeline = u32::from_str_radix(timeline?, 16).ok()?;
        Some(Self { system: system?, timeline })
    }
}

/// The largest timeline that this client has seen of each system.
#[derive(Debug, Default)]
pub(crate) struct Seen(Mutex<HashMap<String, u32>>);

impl Seen {
    pub(crate) fn note(&self, server: &Lineage) {
        let mut all = lock(&self.0);
        let known = all.entry(server.system.clone()).or_default();
        *known = server.timeline.max(*known);
    }

    /// The larger timeline, if this server was replaced.
    pub(crate) fn replaces(&self, server: &Lineage) -> Option<u32> {
        let known = *lock(&self.0).get(&server.system)?;
        (known > server.timeline).then_some(known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(system: &str, timeline: &str) -> Lineage {
        Lineage::parse(Some(system.into()), Some(timeline)).unwrap()
    }

    #[test]
    fn a_smaller_timeline_of_the_same_system_was_replaced() {
        let seen = Seen::default();
        seen.note(&server("7", "0000000A"));
        seen.note(&server("7", "00000002"));
        assert_eq!(seen.replaces(&server("7", "00000002")), Some(10));
        assert_eq!(seen.replaces(&server("7", "0000000A")), None);
        assert_eq!(seen.replaces(&server("8", "00000001")), None, "another system");
        assert_eq!(Lineage::parse(None, Some("00000001")), None);
        assert_eq!(Lineage::parse(Some("7".into()), Some("x")), None);
    }
}
