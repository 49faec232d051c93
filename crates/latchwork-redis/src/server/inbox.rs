//! Where the messages that come on connections go.

use std::fmt::Debug;

use redis::PushInfo;

use crate::server::link::LinkId;

/// The claims that wait for messages, as the servers' connections see them.
pub(crate) trait Inbox: Debug + Send + Sync {
    /// Takes a message that has come on this connection. Called on the thread that reads it.
    fn deliver(&self, push: &PushInfo, from: LinkId);

    /// Messages about keys of these slots may have been lost: their claims check again. A key of a deployment without
    /// slots has none.
    fn check_again(&self, concerns: &dyn Fn(Option<u16>) -> bool);

    /// Whether any claim waits for messages.
    fn is_awaited(&self) -> bool;
}
