//! How much an object takes: Kubernetes bounds the annotations of one.

use k8s_openapi::api::coordination::v1::Lease;
use latchwork_store::Mode;

use crate::protocol::stored::{Part, Stored};

/// All names and texts of an object's annotations together have at most so many bytes.
const MOST: usize = 256 * 1024;
/// Room for what is no claim, such as a closing with its holder's text, and for counters that grow.
const RESERVE: usize = 4 * 1024;

/// Whether each claim of a record, with one that comes in, can be granted and renewed later on: a grant and its renewals
/// write more than a place does.
pub(crate) fn has_room(lease: &Lease, stored: &Stored) -> bool {
    let annotations = lease.metadata.annotations.iter().flatten();
    let now: usize = annotations.map(|(name, text)| name.len() + text.len()).sum();
    now <= MOST / 2 || now + growth(stored) + RESERVE <= MOST
}

/// By how much its claims may grow.
fn growth(stored: &Stored) -> usize {
    let length = |stored: &Stored| serde_json::to_string(stored).map_or(MOST, |text| text.len());
    let mut grown = stored.clone();
    grown.held.iter_mut().for_each(granted);
    for part in &mut grown.queue {
        match part.mode {
            Mode::Exclusive | Mode::Write => {
                (part.beat, part.heard) = (u64::MAX, Some(u64::MAX));
            }
            // All of them may hold at once.
            _ => granted(part),
        }
    }
    length(&grown).saturating_sub(length(stored))
}

fn granted(part: &mut Part) {
    (part.beat, part.heard) = (u64::MAX, None);
    (part.token, part.at_least) = (u64::MAX, u64::MAX);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use latchwork_store::testing::claim;

    use super::*;
    use crate::protocol::names::RECORD;

    fn filled(count: usize, mode: Mode) -> (Lease, Stored) {
        let mut stored = Stored::empty();
        for n in 0..count {
            let claim = claim("k").with(|it| it.mode = mode);
            let mut part = Part::of(&claim, Duration::from_secs(1_790_000_000));
            part.ttl_ms = 30_000;
            part.holder = format!("web-{n} pid 4711 nightly");
            stored.queue.push(part);
        }
        let mut lease = Lease::default();
        let text = serde_json::to_string(&stored).unwrap();
        lease.metadata.annotations = Some(BTreeMap::from([(RECORD.to_owned(), text)]));
        (lease, stored)
    }

    /// What is let in fits when all of it was granted and renewed.
    #[test]
    fn a_record_with_room_can_be_granted_and_renewed() {
        for mode in [Mode::Exclusive, Mode::Permits { take: 1, of: 2_000 }] {
            let has_room = |count| {
                let (lease, stored) = filled(count, mode);
                has_room(&lease, &stored)
            };
            let mut most = 400;
            while has_room(most + 10) {
                most += 10;
            }
            assert!(most >= 700, "{mode:?}: {most} waiters");
            let (_, mut stored) = filled(most, mode);
            let holders = if mode == Mode::Exclusive { 1 } else { most };
            stored.held = stored.queue.drain(..holders).collect();
            stored.held.iter_mut().for_each(granted);
            for part in &mut stored.queue {
                part.heard = Some(1 << 40);
            }
            let whole = serde_json::to_string(&stored).unwrap();
            assert!(whole.len() + RESERVE / 2 <= MOST, "{mode:?}: {} bytes", whole.len());
        }
    }
}
