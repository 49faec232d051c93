//! The token as a compare in a transaction of the user's own.

use latchwork_store::FencingToken;

use crate::backend::EtcdBackend;

/// The place that a lock is held by, to be compared in a transaction.
///
/// As long as there is a key with this name and this create revision, the lock is held by this
/// claim. A transaction that compares both (`create("job/694d...") = "7"` for `etcdctl txn`) writes
/// only then, however long its process was stopped before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The name of the key in etcd.
    pub key: Vec<u8>,
    /// Its create revision.
    pub create_revision: i64,
}

/// A token as text that etcd orders as it orders tokens: 19 digits.
///
/// Keep it in a key beside what the lock protects, and write both by one transaction that compares
/// `value(token key) < fence_text(token + 1)`, so that no smaller token writes after a larger one.
/// etcd compares values byte by byte.
///
/// A number above 2^63, which no store gives, becomes an empty text: no value is below that, so the
/// transaction is refused. If a transaction is refused and the key holds anything but 19 digits, it was
/// spoilt: set it to the text of the largest token that has written.
///
/// ```
/// use latchwork_store::FencingToken;
/// use latchwork_etcd::fence_text;
///
/// let token = FencingToken::from_grant(7);
/// assert_eq!(fence_text(token), "0000000000000007168");
/// assert!(fence_text(token) < fence_text(FencingToken::from_grant(1_000)));
/// assert_eq!(fence_text(FencingToken::from_raw(u64::MAX)), "");
/// ```
pub fn fence_text(token: FencingToken) -> String {
    // The largest token plus one is 2^63, the bound that it is compared with.
    match token.get() {
        number @ ..=0x8000_0000_0000_0000 => format!("{number:019}"),
        _ => String::new(),
    }
}

impl EtcdBackend {
    /// The place behind the token of a lock that this client holds; `None` if it does not, as far
    /// as it knows.
    ///
    /// Waiters of one process that hand the lock over share a place. Their tokens tell them apart:
    /// [`fence_text`].
    pub fn place(&self, token: FencingToken) -> Option<Place> {
        let create_revision = token.grant_number() as i64;
        let key = self.0.claims.key_created_at(create_revision)?;
        Some(Place { key, create_revision })
    }
}
