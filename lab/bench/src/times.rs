//! How long things took: counts in buckets, so that millions of them take a few kilobytes.
//!
//! Bucket `n` has what took 2^(n/16) to 2^((n+1)/16) nanoseconds, so a time is known to 2 %. The
//! peers in other languages count in the same buckets. `peers/rust` is built with this file too;
//! who measures reads them again in `quantiles.rs`.

use std::fmt::{self, Display, Formatter};

/// Buckets to twice the time; 640 of them reach to 18 minutes.
pub(crate) const PER_DOUBLE: f64 = 16.0;
const BUCKETS: usize = 640;

#[derive(Clone, Debug)]
pub(crate) struct Times(pub(crate) Vec<u64>);

impl Default for Times {
    fn default() -> Self {
        Self(vec![0; BUCKETS])
    }
}

impl Times {
    pub(crate) fn record(&mut self, nanos: u64) {
        let bucket = ((nanos.max(1) as f64).log2() * PER_DOUBLE) as usize;
        self.0[bucket.min(BUCKETS - 1)] += 1;
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(sum, more)| *sum += more);
    }
}

/// `BUCKET:COUNT` of each that is not empty.
impl Display for Times {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut between = "";
        for (bucket, count) in self.0.iter().enumerate().filter(|(_, count)| **count > 0) {
            write!(f, "{between}{bucket}:{count}")?;
            between = " ";
        }
        Ok(())
    }
}
