//! Maps errors of etcd and of the connection to those of the contract.

use std::error::Error as StdError;
use std::fmt;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use latchwork_store::{BackendError, BackendErrorKind, Effect};
use latchwork_wire::tls;
use tonic::{Code, Status};

use crate::config::Endpoint;

/// The connection was never made.
#[derive(Debug)]
pub(crate) struct NotConnected(pub(crate) Box<dyn StdError + Send + Sync>);

impl NotConnected {
    pub(crate) fn status(self: &Arc<Self>) -> Status {
        let mut status = Status::new(Code::Unavailable, self.0.to_string());
        status.set_source(self.clone());
        status
    }
}

impl fmt::Display for NotConnected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot connect: {}", self.0)
    }
}

impl StdError for NotConnected {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.0)
    }
}

/// An error with what follows from it.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) error: BackendError,
    pub(crate) reaction: Reaction,
}

/// A connection has a stream for watches, two for keep-alives, and one for a request.
pub(crate) const LEAST_STREAMS: usize = 4;

/// What has to happen before the next try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reaction {
    /// Nothing that this crate could do.
    None,
    /// Another member may be better off.
    Elsewhere,
    /// The token that proves who we are has ended, or there is none and must be one.
    LogIn,
    /// The servers check nobody, so there are no tokens.
    NoLogin,
    /// This user may not do this to this key.
    NoRight,
    /// There is no such lease, or no more.
    LeaseGone,
    /// The answer is larger than is taken at once.
    TooLarge,
    /// What was asked of a revision that the store has forgotten.
    Compacted,
}

impl Failure {
    /// The member lets a connection have fewer streams than [`LEAST_STREAMS`].
    pub(crate) fn few_streams(from: &Endpoint, streams: usize) -> Self {
        let message = format!(
            "{from} lets a connection have {streams} streams, and locks need {LEAST_STREAMS}"
        );
        let error = BackendError::new(BackendErrorKind::Unsupported, Effect::Unknown, message)
            .with_next_step("raise --max-concurrent-streams of etcd, or the limit of the proxy before it, to 100 or more");
        Self { error, reaction: Reaction::None }
    }

    /// No member has answered a request that changes nothing that anybody could notice.
    pub(crate) fn late(limit: Duration) -> Self {
        let message = format!("connected, but a request had no answer within {limit:?}");
        let error = BackendError::new(BackendErrorKind::Unreachable, Effect::NotApplied, message)
            .with_next_step("check the members, and that a proxy before them reaches them");
        Self { error, reaction: Reaction::Elsewhere }
    }

    /// As [`Self::error`] of a request that changes nothing, or nothing that anybody could notice:
    /// it may as well be sent to another member.
    pub(crate) fn of_a_read(mut self) -> Self {
        self.error.effect = Effect::NotApplied;
        self
    }

    /// As [`Self::error`] of the second request of a verb whose first one was applied.
    pub(crate) fn after_another(error: BackendError) -> BackendError {
        error.with_effect(Effect::Unknown)
    }

    /// A stream has ended before it answered.
    pub(crate) fn broken(from: &Endpoint, what: &str) -> Self {
        let message = format!("{from}: the stream of {what} ended before the answer came");
        let error = BackendError::new(BackendErrorKind::Unreachable, Effect::Unknown, message);
        Self { error, reaction: Reaction::Elsewhere }
    }
}

/// Whether the connection was never made.
fn never_connected(status: &Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        if error.is::<NotConnected>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// What an error goes back to.
pub(crate) fn root_cause<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> &'a (dyn std::error::Error + 'static) {
    let mut root = error;
    while let Some(cause) = root.source() {
        root = cause;
    }
    root
}

/// What an address calls the parts of TLS.
pub(crate) const WORDS: tls::OptionNames = tls::OptionNames {
    authority: "ca=/path",
    client: "cert=/path and key=/path",
    plain: "etcd://",
    secure: "etcds://",
};

/// What to look at when a connection could not be made because of `why`.
fn way_in<'a>(why: &'a (dyn std::error::Error + 'static)) -> &'a str {
    if let Some(refusal) = why.downcast_ref::<tls::Refusal>() {
        return &refusal.step;
    }
    // A server that gets TLS and wants none, or the other way round, hangs up; whether its last
    // words arrive before the reset is chance.
    let hung_up = [ErrorKind::ConnectionReset, ErrorKind::UnexpectedEof, ErrorKind::BrokenPipe];
    match why.downcast_ref::<std::io::Error>() {
        Some(error) if hung_up.contains(&error.kind()) => {
            "check that it is an etcd server, and whether it expects TLS (etcds) or none (etcd)"
        }
        _ => "check that the server is running and the address is correct",
    }
}

/// Reads an error of the member `from`.
pub(crate) fn failure(status: &Status, from: &Endpoint) -> Failure {
    use BackendErrorKind::{Corrupt, Denied, Invalid, Unreachable};
    use Effect::{NotApplied, Unknown};
    let said = status.message();
    let make = |kind, effect, step: &str, reaction| {
        let error = BackendError::new(kind, effect, format!("{from} says: {said}"));
        let error = if step.is_empty() { error } else { error.with_next_step(step) };
        Failure { error, reaction }
    };
    if never_connected(status) {
        let why = root_cause(status);
        let message = format!("cannot connect to {from}: {why}");
        let error = BackendError::new(Unreachable, NotApplied, message).with_next_step(way_in(why));
        return Failure { error, reaction: Reaction::Elsewhere };
    }
    // The member's own words. What it refuses at the door it has not applied.
    if needs_login(said) {
        let step = "write user:password@ in the address";
        return make(Denied, NotApplied, step, Reaction::LogIn);
    }
    if said.contains("requested lease not found") {
        return make(Invalid, NotApplied, "", Reaction::LeaseGone);
    }
    let no_leader = said == "etcdserver: no leader";
    let busy = said.contains("too many requests");
    let full = said.contains("database space exceeded");
    match status.code() {
        _ if no_leader => make(Unreachable, NotApplied, MAJORITY_STEP, Reaction::Elsewhere),
        // It refuses each at the door.
        _ if said.contains("not supported for learner") => {
            make(Unreachable, NotApplied, LEARNER_STEP, Reaction::Elsewhere)
        }
        _ if busy => make(Unreachable, NotApplied, "check the load of the server", Reaction::None),
        _ if full => {
            let step = "compact and defragment it, then etcdctl alarm disarm; or raise its quota";
            make(Unreachable, NotApplied, step, Reaction::None)
        }
        Code::Unauthenticated => {
            make(Denied, NotApplied, "check the user and the password", Reaction::None)
        }
        Code::PermissionDenied => make(Denied, NotApplied, NO_RIGHT_STEP, Reaction::NoRight),
        Code::InvalidArgument if said.contains("authentication") => {
            make(Denied, NotApplied, "check the user and the password", Reaction::None)
        }
        Code::InvalidArgument if said.starts_with("etcdserver:") => {
            make(Invalid, NotApplied, "", Reaction::None)
        }
        Code::OutOfRange if said.contains("lease TTL") => {
            make(Invalid, NotApplied, "choose a shorter time", Reaction::None)
        }
        Code::OutOfRange if said.contains("has been compacted") => {
            make(Unreachable, NotApplied, "try again", Reaction::Compacted)
        }
        // The receiver refuses it: the request may have been carried out.
        Code::OutOfRange | Code::ResourceExhausted if is_too_large(said) => {
            let step = "ask for fewer keys: the answer exceeds the message size limit";
            make(Invalid, Unknown, step, Reaction::TooLarge)
        }
        Code::Internal if said.contains("decod") || said.contains("Protobuf") => {
            let step = "check that the address is that of an etcd server, and which proxies are in \
                 front of it";
            make(Corrupt, Unknown, step, Reaction::None)
        }
        Code::FailedPrecondition if said.contains("authentication is not enabled") => {
            let step = "leave the user and the password out, or run etcdctl auth enable";
            make(Denied, NotApplied, step, Reaction::NoLogin)
        }
        Code::Unimplemented => {
            make(BackendErrorKind::Unsupported, NotApplied, "use etcd 3.4 or later", Reaction::None)
        }
        _ => {
            let step = "check that the members are running and reachable from here, and whether \
                they expect TLS (etcds) or none (etcd)";
            make(Unreachable, Unknown, step, Reaction::Elsewhere)
        }
    }
}

/// What to do about a member without a leader.
pub(crate) const MAJORITY_STEP: &str =
    "check that a majority of the members is running and connected to each other";

/// What to do about a user without a right. Which names it has is known to `latchwork doctor`.
const NO_RIGHT_STEP: &str = "check the user's roles, which `latchwork doctor` lists; give one of them the name: \
     etcdctl role grant-permission ROLE readwrite NAME: --prefix";

/// What to do about a member that has no vote yet.
pub(crate) const LEARNER_STEP: &str =
    "name the members that vote, or let this one vote (etcdctl member promote)";

/// Whether a member refuses a token, or a request without one. Each refusal is at the door, or by each
/// member alike when it would carry out the request.
pub(crate) fn needs_login(said: &str) -> bool {
    said.contains("invalid auth token")
        || said.contains("revision of auth store is old")
        || said.contains("user name is empty")
}

/// The words of tonic and of Go's gRPC for a message that is larger than its reader or writer takes.
fn is_too_large(said: &str) -> bool {
    said.contains("message length too large")
        || said.contains("message larger than max")
        || said.contains("message too large")
}

/// An answer that is not as etcd's API has it.
pub(crate) fn strange(what: &str) -> BackendError {
    let message = format!("etcd's answer to {what} does not follow its API");
    BackendError::new(BackendErrorKind::Corrupt, Effect::Unknown, message)
}

pub(crate) fn unsupported(message: &str) -> BackendError {
    BackendError::new(BackendErrorKind::Unsupported, Effect::NotApplied, message)
}

/// The error alone. Outside of this crate nobody can do anything about a lease that is gone.
pub(crate) fn error(failure: Failure) -> BackendError {
    match failure.reaction {
        Reaction::LeaseGone => BackendError::new(
            BackendErrorKind::Unreachable,
            failure.error.effect,
            "the lease ended before the request that uses it arrived",
        )
        .with_next_step("check the load of the members and the network between here and them"),
        _ => failure.error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(code: Code, said: &str) -> (BackendErrorKind, Effect, Reaction) {
        let from = Endpoint { host: "h".into(), port: 1 };
        let failure = failure(&Status::new(code, said), &from);
        (failure.error.kind, failure.error.effect, failure.reaction)
    }

    #[test]
    fn only_a_refusal_is_certain() {
        use BackendErrorKind::{Denied, Invalid, Unreachable};
        use Effect::{NotApplied, Unknown};
        for (code, said, expected) in [
            (Code::Unavailable, "etcdserver: request timed out", (Unreachable, Unknown)),
            (Code::Unavailable, "etcdserver: leader changed", (Unreachable, Unknown)),
            (Code::Unavailable, "etcdserver: no leader", (Unreachable, NotApplied)),
            (
                Code::Unavailable,
                "etcdserver: rpc not supported for learner",
                (Unreachable, NotApplied),
            ),
            (Code::Unknown, "transport error", (Unreachable, Unknown)),
            (
                Code::ResourceExhausted,
                "etcdserver: mvcc: database space exceeded",
                (Unreachable, NotApplied),
            ),
            (Code::Unavailable, "etcdserver: too many requests", (Unreachable, NotApplied)),
            (Code::OutOfRange, "etcdserver: too large lease TTL", (Invalid, NotApplied)),
            (
                Code::OutOfRange,
                "Error, decoded message length too large: found 300 bytes, the limit is: 200 bytes",
                (Invalid, Unknown),
            ),
            (
                Code::ResourceExhausted,
                "grpc: trying to send message larger than max (300 vs. 200)",
                (Invalid, Unknown),
            ),
            (Code::ResourceExhausted, "what else there may be", (Unreachable, Unknown)),
            (Code::OutOfRange, "what else there may be", (Unreachable, Unknown)),
            (
                Code::Internal,
                "failed to decode Protobuf message: invalid wire type",
                (BackendErrorKind::Corrupt, Unknown),
            ),
            (Code::PermissionDenied, "etcdserver: permission denied", (Denied, NotApplied)),
            (
                Code::InvalidArgument,
                "etcdserver: authentication failed, invalid user ID or password",
                (Denied, NotApplied),
            ),
        ] {
            let (kind, effect, _) = read(code, said);
            assert_eq!((kind, effect), expected, "{said}");
        }
        // A large answer is no matter of ttls.
        let from = Endpoint { host: "h".into(), port: 1 };
        let too_large = Status::out_of_range("Error, decoded message length too large: found 3");
        let step = failure(&too_large, &from).error.next_step.unwrap();
        assert!(step.contains("size") && !step.contains("shorter"), "{step}");
        let said = "etcdserver: requested lease not found";
        assert_eq!(read(Code::NotFound, said).2, Reaction::LeaseGone);
        let said = "etcdserver: invalid auth token";
        assert_eq!(read(Code::Unauthenticated, said).2, Reaction::LogIn);
        let said = "etcdserver: authentication is not enabled";
        let expected = (Denied, NotApplied, Reaction::NoLogin);
        assert_eq!(read(Code::FailedPrecondition, said), expected);
    }
}
