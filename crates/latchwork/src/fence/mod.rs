//! The resource's side of a fencing token.
//!
//! [`Fence`] is the check for a resource in memory, [`sql`] has the statements for one in a
//! database, and with the features `fence-tokio-postgres-0_7` and `fence-sqlx-0_8` one call that runs them
//! in a transaction of PostgreSQL (`Fences::check`). Use one of them wherever a late write would do
//! harm: no lease can stop a process that is paused between its last check and its write. Some
//! stores have checks of their own: a script in `latchwork-redis`, a patch in `latchwork-kubernetes`,
//! compares in `latchwork-etcd` and `latchwork-zookeeper`.

pub mod sql;
#[cfg(any(feature = "fence-sqlx-0_8", feature = "fence-tokio-postgres-0_7"))]
pub mod transaction;

use std::sync::atomic::{AtomicU64, Ordering};

pub use latchwork_store::Fenced;
use latchwork_store::FencingToken;

/// Refuses writes of superseded holders.
///
/// A lease tells its holder when to stop, but not a process that is paused between its check and
/// its write. Only the resource can refuse that write: it keeps the largest token it has seen and
/// refuses smaller ones. This is that check for a resource in memory; a resource in a database does
/// the same in the statement that writes (`... WHERE token <= ?`).
///
/// For read-write locks the resource may also keep the largest token of a served read: then a
/// paused old writer cannot change data that a newer reader is reading.
///
/// ```
/// use latchwork::fence::Fence;
/// use latchwork::FencingToken;
///
/// let fence = Fence::new();
/// let (old, new) = (FencingToken::from_grant(1), FencingToken::from_grant(2));
/// assert!(fence.check_write(new).is_ok());
/// assert!(fence.check_write(new).is_ok(), "the holder itself writes again");
/// assert_eq!(fence.check_write(old).unwrap_err().newest, new);
/// ```
#[derive(Debug, Default)]
pub struct Fence {
    written: AtomicU64,
    read: AtomicU64,
}

impl Fence {
    /// Creates a fence that has seen no token.
    pub const fn new() -> Self {
        Self { written: AtomicU64::new(0), read: AtomicU64::new(0) }
    }

    /// Creates a fence from the token stored with the resource.
    ///
    /// A stored number of 2^63 or more is not a token: check it with [`FencingToken::is_in_range`]. A fence that
    /// starts there refuses every token, and its error says so.
    pub const fn starting_at(token: FencingToken) -> Self {
        Self { written: AtomicU64::new(token.get()), read: AtomicU64::new(0) }
    }

    /// Admits a write unless a later write or a later registered read was seen.
    ///
    /// Check and write must be one step for the resource, for example under its own mutex.
    ///
    /// # Errors
    ///
    /// [`Fenced`] if the token is smaller than one already seen, or is not a token (2^63 or more): do not write.
    pub fn check_write(&self, token: FencingToken) -> Result<(), Fenced> {
        let read = self.read.load(Ordering::SeqCst);
        if !token.is_in_range() {
            return Err(Fenced { refused: token, newest: self.newest() });
        }
        if token.get() < read {
            return Err(Fenced { refused: token, newest: FencingToken::from_raw(read) });
        }
        let newest = self.written.fetch_max(token.get(), Ordering::SeqCst);
        if token.get() < newest {
            return Err(Fenced { refused: token, newest: FencingToken::from_raw(newest) });
        }
        Ok(())
    }

    /// Admits a read unless a later write was seen, and refuses earlier holders' writes from then
    /// on.
    ///
    /// # Errors
    ///
    /// [`Fenced`] if a later writer has already written: what is read is no longer this reader's. Also if
    /// it is not a token (2^63 or more).
    pub fn check_read(&self, token: FencingToken) -> Result<(), Fenced> {
        let written = self.written.load(Ordering::SeqCst);
        if token.get() < written || !token.is_in_range() {
            return Err(Fenced { refused: token, newest: FencingToken::from_raw(written) });
        }
        self.read.fetch_max(token.get(), Ordering::SeqCst);
        Ok(())
    }

    /// Returns the largest token of an admitted write, to store with the resource.
    pub fn newest(&self) -> FencingToken {
        FencingToken::from_raw(self.written.load(Ordering::SeqCst))
    }
}

/// The examples of the page are compiled.
#[cfg(all(doctest, feature = "fence-sqlx-0_8", feature = "fence-tokio-postgres-0_7"))]
#[doc = include_str!("../../../../docs/fencing.md")]
struct Page;

#[cfg(test)]
mod tests {
    use super::*;

    fn token(n: u64) -> FencingToken {
        FencingToken::from_grant(n)
    }

    #[test]
    fn a_newer_read_fences_older_writers() {
        let fence = Fence::new();
        fence.check_write(token(1)).unwrap();
        fence.check_read(token(2)).unwrap();
        assert!(fence.check_write(token(1)).is_err());
        fence.check_write(token(3)).unwrap();
        assert!(fence.check_read(token(2)).is_err());
        assert_eq!(fence.newest(), token(3));
    }

    #[test]
    fn h233_a_number_that_is_no_token_shuts_nobody_out() {
        let fence = Fence::new();
        fence.check_write(token(7)).unwrap();
        for raw in [1 << 63, u64::MAX] {
            let strange = FencingToken::from_raw(raw);
            for refused in [fence.check_write(strange), fence.check_read(strange)] {
                let refused = refused.unwrap_err();
                assert_eq!((refused.refused, refused.newest), (strange, token(7)));
                assert!(refused.to_string().contains("is not a token"), "{refused}");
            }
        }
        assert_eq!((fence.check_write(token(7)), fence.newest()), (Ok(()), token(7)));
        fence.check_write(FencingToken::from_raw(i64::MAX as u64)).unwrap();
        let spoilt = Fence::starting_at(FencingToken::from_raw(u64::MAX));
        let refused = spoilt.check_write(token(7)).unwrap_err().to_string();
        assert!(refused.contains("start it at the largest token"), "{refused}");
    }

    #[test]
    fn a_fence_starts_from_a_stored_token() {
        let fence = Fence::starting_at(token(9));
        assert!(fence.check_write(token(8)).is_err());
        assert!(fence.check_write(token(9)).is_ok());
    }
}
