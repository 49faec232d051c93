//! Which keys had a line lately. A wrong guess costs a round trip or a microsecond, no more.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::names::{Names, hash};

/// Counts, each for all keys that share its place.
pub(crate) struct Crowds([AtomicU8; 1024]);

impl Default for Crowds {
    fn default() -> Self {
        Self([const { AtomicU8::new(0) }; 1024])
    }
}

impl Crowds {
    /// For so many tries and releases a key that had a line is taken to have one.
    const MEMORY: u8 = 16;

    fn place(&self, names: &Names) -> &AtomicU8 {
        &self.0[(hash(0, names.lock()) >> 32) as usize % self.0.len()]
    }

    pub(crate) fn note(&self, names: &Names) {
        self.place(names).store(Self::MEMORY, Ordering::Relaxed);
    }

    pub(crate) fn is_crowded(&self, names: &Names) -> bool {
        let less = |count: u8| count.checked_sub(1);
        self.place(names).fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }
}
