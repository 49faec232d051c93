//! Random numbers that a seed decides, for runs that can be repeated.

use std::cell::Cell;
use std::marker::PhantomData;

thread_local! {
    static STATE: Cell<Option<u64>> = const { Cell::new(None) };
}

/// While it lives, all random numbers that Latchwork draws on this thread come from a seed: claim
/// ids, pauses between tries.
///
/// Only for runs of one thread that are to be repeated. Two such runs draw the same claim ids, so they
/// must not share a store.
#[derive(Debug)]
pub struct SeededRandom {
    before: Option<u64>,
    /// It belongs to its thread.
    _here: PhantomData<*const ()>,
}

impl SeededRandom {
    /// Starts to draw from `seed` on this thread.
    pub fn on_this_thread(seed: u64) -> Self {
        Self { before: STATE.replace(Some(seed)), _here: PhantomData }
    }

    /// The next number, if this thread has a seed.
    pub(crate) fn draw() -> Option<u128> {
        let state = STATE.get()?;
        let mut next = state;
        let (high, low) = (step(&mut next), step(&mut next));
        STATE.set(Some(next));
        Some(u128::from(high) << 64 | u128::from(low))
    }
}

impl Drop for SeededRandom {
    fn drop(&mut self) {
        STATE.set(self.before);
    }
}

/// One step of SplitMix64 (Steele, Lea and Flood, 2014).
fn step(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backoff::random_u128;

    #[test]
    fn a_seed_decides_until_it_is_dropped() {
        let draw = || {
            let _seeded = SeededRandom::on_this_thread(7);
            [random_u128(), random_u128()]
        };
        let (one, two) = (draw(), draw());
        assert_eq!(one, two);
        assert_ne!(one[0], one[1]);
        assert_ne!([random_u128(), random_u128()], one);
    }
}
