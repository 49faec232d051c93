//! What ZooKeeper and the connection say, in the words of the contract.

use latchwork_store::{BackendError, BackendErrorKind, Effect};

use crate::session::messages::Refusal;

/// What a refusal of a request on this path means.
pub(crate) fn refused(refusal: Refusal, path: &str) -> BackendError {
    use BackendErrorKind::{Denied, Unreachable, Unsupported};
    use Effect::{NotApplied, Unknown};
    let make = |kind, effect, what: &str, step: &str| {
        BackendError::new(kind, effect, format!("ZooKeeper says of {path}: {what}")).next_step(step)
    };
    match refusal {
        Refusal::NO_AUTH => make(
            Denied,
            NotApplied,
            "not allowed",
            "look at the node's ACL (getAcl), and give user:password@ in the address",
        ),
        Refusal::AUTH_FAILED | Refusal::INVALID_ACL | Refusal::SASL_NEEDED => make(
            Denied,
            NotApplied,
            "it does not know who we are",
            "give user:password@ in the address",
        ),
        Refusal::QUOTA => make(Denied, NotApplied, "the quota is used up", "raise the quota"),
        Refusal::UNIMPLEMENTED => {
            make(Unsupported, NotApplied, "request unknown", "use ZooKeeper 3.5.3 or later")
        }
        Refusal::THROTTLED => {
            make(Unreachable, NotApplied, "too many requests", "look at the server's load")
        }
        Refusal::SESSION_EXPIRED | Refusal::SESSION_MOVED => make(
            Unreachable,
            Unknown,
            "the session is not here any more",
            "look whether the servers run and the network lets you reach them",
        ),
        Refusal::NO_NODE => make(Unreachable, NotApplied, "no such node", "try again"),
        Refusal(number) => {
            make(Unreachable, Unknown, &format!("error {number}"), "look at the server's log")
        }
    }
}

/// An answer that is not as ZooKeeper's protocol has it.
pub(crate) fn strange(what: &str) -> BackendError {
    let message = format!("ZooKeeper answered {what} in another way than its protocol says");
    BackendError::new(BackendErrorKind::Corrupt, Effect::Unknown, message)
}

pub(crate) fn unsupported(message: &str) -> BackendError {
    BackendError::new(BackendErrorKind::Unsupported, Effect::NotApplied, message)
}

/// A request that no server took.
pub(crate) fn not_sent(message: impl Into<String>) -> BackendError {
    BackendError::new(BackendErrorKind::Unreachable, Effect::NotApplied, message)
        .next_step("look whether the servers run and the address is right")
}

/// A server that takes no more connections from this host.
pub(crate) fn full(server: impl std::fmt::Display) -> BackendError {
    let message = format!("{server} takes no more connections from this host (maxClientCnxns)");
    BackendError::new(BackendErrorKind::Unreachable, Effect::NotApplied, message).next_step(
        "raise maxClientCnxns at the servers, or run fewer processes with locks at a time",
    )
}

/// A token of such servers would be smaller than others before it.
pub(crate) fn set_back(newest: i64, now: i64) -> BackendError {
    let message = format!(
        "the servers were set back from transaction {newest:#x} to {now:#x}: their data was replaced \
         by an older copy, or removed, and new tokens would be smaller than earlier ones"
    );
    BackendError::new(BackendErrorKind::Corrupt, Effect::NotApplied, message).next_step(
        "bring the newer data back; or, when no resource remembers an earlier token, start this \
         program anew",
    )
}

/// A request that a server may have taken.
pub(crate) fn no_answer(message: impl Into<String>) -> BackendError {
    BackendError::new(BackendErrorKind::Unreachable, Effect::Unknown, message)
        .next_step("look whether the servers run and the network lets you reach them")
}

/// The server does not know who we are.
pub(crate) fn denied(message: impl Into<String>) -> BackendError {
    BackendError::new(BackendErrorKind::Denied, Effect::NotApplied, message)
        .next_step("look at user and password in the address")
}

/// Core did not ask for the claim in time.
pub(crate) fn taken_back() -> BackendError {
    let message = "the claim was not heard of within its ttl, and is being taken back";
    BackendError::new(BackendErrorKind::Unreachable, Effect::Unknown, message)
        .next_step("try again")
}

/// A claim that does not come to rest.
pub(crate) fn restless() -> BackendError {
    let message = "the claim's node was gone each time when the line was read";
    BackendError::new(BackendErrorKind::Unreachable, Effect::NotApplied, message)
        .next_step("look who deletes nodes of this lock")
}
