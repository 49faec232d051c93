//! Maps errors of ZooKeeper and of the connection to those of the contract.

use latchwork_store::{BackendError, BackendErrorKind, Effect};
use latchwork_wire::tls;

use crate::server::session::messages::Refusal;

/// What is said of a server in read-only mode.
pub(crate) const READ_ONLY: &str =
    "the server is in read-only mode: no majority of the servers is running";
pub(crate) const MAJORITY_STEP: &str =
    "check that a majority of the servers is running and connected to each other";

/// What a refusal of a request on this path means.
pub(crate) fn refused(refusal: Refusal, path: &str) -> BackendError {
    use BackendErrorKind::{Denied, Invalid, Unreachable, Unsupported};
    use Effect::{NotApplied, Unknown};
    let make = |kind, effect, what: &str, step: &str| {
        BackendError::new(kind, effect, format!("ZooKeeper says of {path}: {what}"))
            .with_next_step(step)
    };
    match refusal {
        Refusal::NO_AUTH => make(
            Denied,
            NotApplied,
            "not allowed",
            "check the node's ACL (getAcl), and write user:password@ in the address",
        ),
        Refusal::AUTH_FAILED | Refusal::INVALID_ACL | Refusal::SASL_NEEDED => {
            make(Denied, NotApplied, "it rejected the login", "write user:password@ in the address")
        }
        Refusal::QUOTA => make(
            Denied,
            NotApplied,
            "the quota is used up",
            "raise the quota of the node above it that has one (listquota, setquota)",
        ),
        Refusal::UNIMPLEMENTED => make(
            Unsupported,
            NotApplied,
            "the server does not know this request, so it is older than 3.5.3",
            "use ZooKeeper 3.5.3 or later",
        ),
        Refusal::NO_CHILDREN_FOR_EPHEMERALS => make(
            Invalid,
            NotApplied,
            "a node above it is ephemeral, so it cannot have children",
            "choose another chroot",
        ),
        Refusal::NOT_READ_ONLY => make(Unreachable, NotApplied, READ_ONLY, MAJORITY_STEP),
        Refusal::THROTTLED => {
            make(Unreachable, NotApplied, "too many requests", "check the load of the server")
        }
        Refusal::SESSION_EXPIRED | Refusal::SESSION_MOVED => make(
            Unreachable,
            Unknown,
            "the session has ended",
            "check that the servers are running and reachable from here",
        ),
        Refusal::NO_NODE => make(Unreachable, NotApplied, "no such node", "try again"),
        Refusal(number) => {
            make(Unreachable, Unknown, &format!("error {number}"), "check the log of the server")
        }
    }
}

/// What a refusal to create the node at this path means. The node above it says who may.
pub(crate) fn not_created(refusal: Refusal, path: &str) -> BackendError {
    if refusal != Refusal::NO_AUTH {
        return refused(refusal, path);
    }
    let above = path.rsplit_once('/').map_or("/", |(above, _)| above);
    let above = if above.is_empty() { "/" } else { above };
    let message = format!("ZooKeeper says of {path}: not allowed to create it");
    BackendError::new(BackendErrorKind::Denied, Effect::NotApplied, message).with_next_step(format!(
        "check the ACL of {above} (getAcl) and user:password@ in the address, or create {path} as \
         a user who may"
    ))
}

/// An answer that is not as ZooKeeper's protocol has it.
pub(crate) fn strange(what: &str) -> BackendError {
    let message = format!("ZooKeeper's answer to {what} does not follow its protocol");
    BackendError::new(BackendErrorKind::Corrupt, Effect::Unknown, message)
}

pub(crate) fn unsupported(message: &str) -> BackendError {
    BackendError::new(BackendErrorKind::Unsupported, Effect::NotApplied, message)
}

/// A request that no server took.
pub(crate) fn not_sent(message: impl Into<String>) -> BackendError {
    BackendError::new(BackendErrorKind::Unreachable, Effect::NotApplied, message)
        .with_next_step("check that the servers are running and the address is correct")
}

/// What an address calls the parts of TLS.
pub(crate) const WORDS: tls::OptionNames = tls::OptionNames {
    authority: "ca=/path",
    client: "cert=/path and key=/path",
    plain: "zk://",
    secure: "zks://",
};

/// As [`not_sent`], with the next step of a refusal by TLS if it is one.
pub(crate) fn unsent(message: &str, why: &std::io::Error) -> BackendError {
    let error = not_sent(message);
    match why.get_ref().and_then(|inside| inside.downcast_ref::<tls::Refusal>()) {
        Some(refusal) => error.with_next_step(refusal.step.clone()),
        None => error,
    }
}

/// A server that takes no more connections from this host.
pub(crate) fn full(server: impl std::fmt::Display) -> BackendError {
    let message = format!(
        "{server} accepts no more connections from this host (maxClientCnxns), or is no ZooKeeper server: it closes \
         each one at once"
    );
    BackendError::new(BackendErrorKind::Unreachable, Effect::NotApplied, message).with_next_step(
        "raise maxClientCnxns at the servers, or run fewer processes with locks at a time; if no ZooKeeper server \
         listens there, correct the address",
    )
}

/// A token of such servers would be smaller than others before it.
pub(crate) fn set_back(newest: i64, now: i64) -> BackendError {
    let message = format!(
        "the servers went back from transaction {newest:#x} to {now:#x}: their data was replaced \
         by an older copy or removed, and new tokens would be smaller than earlier ones"
    );
    BackendError::new(BackendErrorKind::Corrupt, Effect::NotApplied, message).with_next_step(
        "restore the newer data; or restart this program if no resource remembers an earlier \
         token",
    )
}

/// A request that a server may have taken.
pub(crate) fn no_answer(message: impl Into<String>) -> BackendError {
    BackendError::new(BackendErrorKind::Unreachable, Effect::Unknown, message)
        .with_next_step("check that the servers are running and reachable from here")
}

/// The server does not know who we are.
pub(crate) fn denied(message: impl Into<String>) -> BackendError {
    BackendError::new(BackendErrorKind::Denied, Effect::NotApplied, message)
        .with_next_step("check the user and the password in the address")
}

/// The engine did not ask for the claim in time.
pub(crate) fn taken_back() -> BackendError {
    let message = "the servers did not confirm the claim within its ttl, and it is being withdrawn";
    BackendError::new(BackendErrorKind::Unreachable, Effect::Unknown, message)
        .with_next_step("try again")
}

/// A claim that does not come to rest.
pub(crate) fn restless() -> BackendError {
    let message = "the claim's node was missing each time the queue was read";
    BackendError::new(BackendErrorKind::Unreachable, Effect::NotApplied, message)
        .with_next_step("find out which client deletes nodes of this lock")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_has_its_next_step() {
        let said = |number| refused(Refusal(number), "/a/b");
        for (error, step) in [
            (
                refused(Refusal::NO_AUTH, "/a"),
                "check the node's ACL (getAcl), and write user:password@",
            ),
            (refused(Refusal::AUTH_FAILED, "/a"), "write user:password@ in the address"),
            (refused(Refusal::QUOTA, "/a"), "raise the quota of the node above it"),
            (refused(Refusal::UNIMPLEMENTED, "/a"), "use ZooKeeper 3.5.3 or later"),
            (refused(Refusal::NO_CHILDREN_FOR_EPHEMERALS, "/a"), "choose another chroot"),
            (
                refused(Refusal::NOT_READ_ONLY, "/a"),
                "check that a majority of the servers is running",
            ),
            (refused(Refusal::THROTTLED, "/a"), "check the load of the server"),
            (refused(Refusal::SESSION_EXPIRED, "/a"), "reachable from here"),
            (refused(Refusal::NO_NODE, "/a"), "try again"),
            (said(-1_000), "check the log of the server"),
            (not_created(Refusal::NO_AUTH, "/a/b"), "check the ACL of /a (getAcl)"),
            (not_sent("x"), "check that the servers are running and the address is correct"),
            (full("h:1"), "raise maxClientCnxns at the servers, or run fewer processes"),
            (set_back(2, 1), "restore the newer data"),
            (no_answer("x"), "check that the servers are running and reachable from here"),
            (denied("x"), "check the user and the password in the address"),
            (taken_back(), "try again"),
            (restless(), "find out which client deletes nodes of this lock"),
        ] {
            assert!(error.next_step.as_ref().unwrap().contains(step), "{step}: {error:?}");
        }
    }
}
