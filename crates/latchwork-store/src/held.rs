//! What a holder shows to a fence: its key and its token.

use crate::key::Key;
use crate::token::FencingToken;

/// A lock that is held, as a fence sees it. `latchwork::Guard` is one.
///
/// It is here so that a store can check a guard without depending on the engine.
pub trait Held {
    /// Returns the key of the lock, namespace included.
    fn key(&self) -> &Key;

    /// Returns the fencing token of the hold.
    fn token(&self) -> FencingToken;
}
