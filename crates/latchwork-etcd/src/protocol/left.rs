//! Claims that any process renews and releases. There may be many, so each takes 32 bytes, and 6 to 12 for its place
//! by id.

use std::num::NonZeroI64;
use std::time::Duration;

use hashbrown::HashTable;
use latchwork_store::{ClaimId, Moment};

use crate::protocol::claims::OwnClaim;
use crate::protocol::pool::{Lease, Reading, spare};

const SECONDS: u32 = 17;
const OFFSET: u32 = 11;
const UNSURE: u32 = 3;

/// In which steps, in nanoseconds, it is known when a lease had its whole ttl.
const STEP: u64 = 125_000_000;

/// How much less an offset may be than the one that was read.
const NEAR: i64 = 100_000_000;

/// With room for fewer, none is freed.
const FEW: usize = 256;

/// A claim that holds its key.
#[derive(Debug, Clone, Copy)]
struct Slot {
    /// Half of the claim's id, all of which is random.
    id: u64,
    lease: i64,
    revision: NonZeroI64,
    /// In steps, rounded down: so it ends early, not late.
    alive_at: u32,
    /// From the lowest bit: whether it is adopted, `unsure`, the number of the offset, and the seconds.
    rest: u32,
}

#[derive(Debug, Default)]
pub(super) struct LeftClaims {
    slots: Vec<Slot>,
    by_id: HashTable<u32>,
    /// Wall minus boot time. It changes when a clock is set, and after a pause of the machine.
    offsets: Vec<i64>,
}

/// The half of an id that is kept.
fn half(id: ClaimId) -> u64 {
    id.as_u128() as u64
}

impl LeftClaims {
    fn find(&self, id: u64) -> Option<usize> {
        let is_it = |number: &u32| self.slots[*number as usize].id == id;
        self.by_id.find(id, is_it).map(|number| *number as usize)
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn get(&self, id: ClaimId) -> Option<OwnClaim> {
        self.find(half(id)).map(|number| self.unpacked(&self.slots[number]))
    }

    /// Keeps a claim, or what has changed of it; false if it does not fit.
    pub(super) fn put(&mut self, id: ClaimId, own: &OwnClaim) -> bool {
        let id = half(id);
        let Some(slot) = self.packed(id, own) else { return false };
        if let Some(number) = self.find(id) {
            self.slots[number] = slot;
            return true;
        }
        if self.slots.len() == self.slots.capacity() {
            // Not twice as many.
            self.slots.reserve_exact(self.slots.len() / 8 + 8);
        }
        let (slots, number) = (&self.slots, self.slots.len() as u32);
        self.by_id.insert_unique(id, number, |number| slots[*number as usize].id);
        self.slots.push(slot);
        true
    }

    pub(super) fn remove(&mut self, id: ClaimId) {
        if let Some(number) = self.find(half(id)) {
            self.remove_at(number);
            self.give_back();
        }
    }

    pub(super) fn retain(&mut self, keeps: impl Fn(&OwnClaim) -> bool) {
        for number in (0..self.slots.len()).rev() {
            if !keeps(&self.unpacked(&self.slots[number])) {
                self.remove_at(number);
            }
        }
        self.give_back();
    }

    fn remove_at(&mut self, number: usize) {
        let (id, last) = (self.slots[number].id, self.slots.len() - 1);
        if let Ok(entry) = self.by_id.find_entry(id, |it| *it as usize == number) {
            entry.remove();
        }
        self.slots.swap_remove(number);
        if let Some(moved) = self.slots.get(number)
            && let Some(it) = self.by_id.find_mut(moved.id, |it| *it as usize == last)
        {
            *it = number as u32;
        }
    }

    /// Nothing of a burst stays.
    fn give_back(&mut self) {
        if self.slots.capacity() > FEW && self.slots.len() < self.slots.capacity() / 8 {
            self.slots.shrink_to(2 * self.slots.len());
            let slots = &self.slots;
            self.by_id.shrink_to(2 * slots.len(), |number| slots[*number as usize].id);
        }
        if self.slots.is_empty() {
            self.offsets = Vec::new();
        }
    }

    fn packed(&mut self, id: u64, own: &OwnClaim) -> Option<Slot> {
        let OwnClaim { lease, seconds, revision, rank, .. } = *own;
        let OwnClaim { matches, granted, unsure, is_adopted, .. } = *own;
        let seconds = match is_adopted {
            true => lease.ttl.as_secs().try_into().ok()?,
            false => seconds.try_into().ok()?,
        };
        let fits = seconds < 1 << SECONDS && unsure < 1 << UNSURE && matches && granted;
        // No upgrade has removed its first place.
        let fits = fits && rank.is_none_or(|rank| Some(rank) == revision);
        if !fits || lease.spare != spare_of(seconds, is_adopted) || lease.ttl < ttl_of(seconds) {
            return None;
        }
        let offset = self.offset(lease.alive_at.offset)?;
        let rest = ((seconds << OFFSET | offset) << UNSURE | unsure) << 1 | u32::from(is_adopted);
        let alive_at = (lease.alive_at.at.as_nanos() / STEP).try_into().ok()?;
        Some(Slot { id, lease: lease.id, revision: revision?, alive_at, rest })
    }

    fn unpacked(&self, slot: &Slot) -> OwnClaim {
        let bits = |above: u32, count: u32| slot.rest >> above & ((1 << count) - 1);
        let (is_adopted, unsure) = (bits(0, 1) == 1, bits(1, UNSURE));
        let (offset, seconds) = (bits(1 + UNSURE, OFFSET), bits(1 + UNSURE + OFFSET, SECONDS));
        let at = Moment::from_nanos(u64::from(slot.alive_at) * STEP);
        let alive_at = Reading { at, offset: self.offsets[offset as usize] };
        let (ttl, spare) = (ttl_of(seconds), spare_of(seconds, is_adopted));
        let lease = Lease { id: slot.lease, ttl, spare, alive_at };
        let (revision, seconds) = (Some(slot.revision), seconds.into());
        let (matches, granted) = (true, true);
        OwnClaim { lease, seconds, revision, rank: revision, matches, granted, unsure, is_adopted }
    }

    /// The number of an offset that is this one or a little less, as if the machine had been paused since.
    fn offset(&mut self, offset: i64) -> Option<u32> {
        let is_near = |known: &i64| (0..=NEAR).contains(&offset.saturating_sub(*known));
        let known = self.offsets.iter().rposition(is_near);
        let number = known.unwrap_or(self.offsets.len());
        if known.is_none() && number < 1 << OFFSET {
            self.offsets.push(offset.saturating_sub(NEAR / 2));
        }
        (number < 1 << OFFSET).then_some(number as u32)
    }
}

fn ttl_of(seconds: u32) -> Duration {
    Duration::from_secs(seconds.into())
}

/// What a lease of so many seconds has beyond them; of one that another process was granted, nothing is known.
fn spare_of(seconds: u32, is_adopted: bool) -> Duration {
    match is_adopted {
        true => Duration::ZERO,
        false => Duration::from_secs(spare(seconds.into()) as u64),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use latchwork_services::hostile::held;
    use latchwork_store::random_u128;

    use super::*;

    fn own(lease: i64, seconds: u32, is_adopted: bool) -> OwnClaim {
        let small = lease % 1_000_000;
        let at = Moment::from_nanos(1_800_000_000_000 + small as u64 * 1_000_003);
        let alive_at = Reading { at, offset: 1_700_000_000_000_000_000 + small };
        let (ttl, spare) = (ttl_of(seconds), spare_of(seconds, is_adopted));
        let lease = Lease { id: lease, ttl, spare, alive_at };
        let (revision, seconds) = (NonZeroI64::new(lease.id), seconds.into());
        let (matches, granted, unsure) = (true, true, 0);
        OwnClaim { lease, seconds, revision, rank: revision, matches, granted, unsure, is_adopted }
    }

    /// It may be believed to end earlier than it does, and never later.
    #[test]
    fn a_left_claim_is_kept_as_it_was() {
        let mut left = LeftClaims::default();
        for (seconds, unsure, is_adopted) in
            [(2, 0, false), (15, 1, false), (86_400, 7, false), (15, 3, true)]
        {
            let (id, claim) = (ClaimId::random(), own(i64::MAX, seconds, is_adopted));
            let alive_at = Reading {
                at: Moment::from_nanos(u64::from(u32::MAX) * STEP + 7),
                ..claim.lease.alive_at
            };
            let claim = OwnClaim { unsure, lease: Lease { alive_at, ..claim.lease }, ..claim };
            assert!(left.put(id, &claim));
            let kept = left.get(id).unwrap();
            let Reading { at, offset } = kept.lease.alive_at;
            assert!((0..STEP).contains(&(alive_at.at.as_nanos() - at.as_nanos())));
            assert!((0..=NEAR).contains(&(alive_at.offset - offset)));
            let lease = Lease { alive_at, ..kept.lease };
            assert_eq!(format!("{claim:?}"), format!("{:?}", OwnClaim { lease, ..kept }));
        }
        let claim = own(5, 15, false);
        let short = Lease { ttl: Duration::from_secs(14), ..claim.lease };
        let odd = Lease { spare: Duration::ZERO, ..claim.lease };
        for other in [
            OwnClaim { unsure: 8, ..claim },
            OwnClaim { granted: false, ..claim },
            OwnClaim { matches: false, ..claim },
            OwnClaim { revision: None, ..claim },
            OwnClaim { rank: NonZeroI64::new(4), ..claim },
            OwnClaim { seconds: 1 << SECONDS, ..claim },
            OwnClaim { lease: short, ..claim },
            OwnClaim { lease: odd, ..claim },
        ] {
            assert!(!left.put(ClaimId::random(), &other), "{other:?}");
        }
        assert_eq!(left.len(), 4);
    }

    /// However often a clock is set: beyond so many offsets, a claim is kept elsewhere.
    #[test]
    fn a_left_claim_has_the_offset_of_its_time() {
        let mut left = LeftClaims::default();
        for number in 0..3_000_i64 {
            let (id, mut claim) = (ClaimId::random(), own(7, 15, false));
            claim.lease.alive_at.offset += number * 1_000_000_000;
            assert_eq!(left.put(id, &claim), number < 1 << OFFSET);
            if let Some(kept) = left.get(id) {
                let less = claim.lease.alive_at.offset - kept.lease.alive_at.offset;
                assert!((0..=NEAR).contains(&less), "{number}: {less}");
            }
        }
        left.retain(|_| false);
        assert!(left.offsets.is_empty());
    }

    #[test]
    fn left_claims_are_found_by_their_ids() {
        let (mut left, mut model) = (LeftClaims::default(), BTreeMap::new());
        let below = |limit: usize| random_u128() as usize % limit;
        for number in 1..20_000 {
            let known = model.keys().nth(below(model.len().max(1))).copied();
            match (below(4), known) {
                (0, Some(id)) => {
                    left.remove(id);
                    model.remove(&id);
                }
                (1, Some(id)) => {
                    assert!(left.put(id, &own(number, 15, true)));
                    model.insert(id, number);
                }
                _ if model.len() < 500 => {
                    let id = ClaimId::random();
                    assert!(left.put(id, &own(number, 15, false)));
                    model.insert(id, number);
                }
                _ => {
                    left.retain(|own| own.lease.id % 3 > 0);
                    model.retain(|_, lease| *lease % 3 > 0);
                }
            }
            assert_eq!(left.len(), model.len());
            if let Some((id, lease)) = model.iter().nth(below(model.len().max(1))) {
                assert_eq!(left.get(*id).map(|own| own.lease.id), Some(*lease));
            }
            assert!(left.get(ClaimId::random()).is_none());
        }
    }

    /// The counts are those before and after tables grow.
    #[test]
    fn a_left_claim_takes_less_than_50_bytes() {
        for count in [1_000, 7_000, 7_200, 10_000, 50_000] {
            let before = held();
            let mut left = LeftClaims::default();
            for lease in 0..count {
                assert!(left.put(ClaimId::random(), &own(lease + 1, 15, false)));
            }
            let each = held().wrapping_sub(before) / count as usize;
            assert!((32..50).contains(&each), "{each} of {count}");
            left.retain(|own| own.lease.id < 8);
            assert!(held().wrapping_sub(before) < 16 << 10, "nothing of a burst stays");
        }
    }
}
