//! What tells an observer that looking again may pay.

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
    /// It is a hint: nothing may have changed, and the end of a ttl that the store does not act on
    /// gives none. Changes that nobody waited for are kept as one hint, so that they take no room.
    ///
    /// # Errors
    ///
    /// The subscription is over, for example because its connection closed. The observer looks, and
    /// subscribes anew.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no hint.
    fn changed(&mut self) -> Verb<'_, Result<(), BackendError>>;
}
