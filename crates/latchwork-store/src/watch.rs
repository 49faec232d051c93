//! Notifications for observers when the holders of a key may have changed.

use std::fmt;

use crate::backend::Verb;
use crate::error::BackendError;

/// A subscription to the changes of one key; see [`Backend::watch`](crate::Backend::watch).
///
/// Dropping it ends the subscription.
pub trait Watch: fmt::Debug + Send {
    /// Completes when the holders of the key may have changed since the last time it completed, or
    /// since the subscription.
    ///
    /// It is a hint. It may arrive without a change, and the end of a ttl gives none if the store
    /// does not act on it. Unread changes are kept as one hint.
    ///
    /// # Errors
    ///
    /// The subscription has ended, for example because its connection closed. The observer reads
    /// the holders and subscribes again.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no hint.
    fn changed(&mut self) -> Verb<'_, Result<(), BackendError>>;
}
