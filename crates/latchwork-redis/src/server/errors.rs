//! Maps errors of Redis and of the connection to those of the contract.
//!
//! Each error answers two questions: may the command have taken effect (B9), and what must happen
//! before the next try.

use latchwork_store::BackendErrorKind::{self, Denied, Mismatch, Unreachable, Unsupported};
use latchwork_store::doctor::Tested;
use latchwork_store::{BackendError, Effect};
use redis::{ErrorKind, RedisError};

use crate::config::Endpoint;
use crate::server::hosts::Host;

/// An error, and the reaction to it.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: BackendError,
    pub(crate) reaction: Reaction,
}

impl Failure {
    /// Whether another connection may do what was refused on this one: a new login counts, and a proxy may lead to
    /// another server. A right that is missing for a key or a channel is missing there, too.
    pub(crate) fn concerns_the_connection(&self) -> bool {
        let said = &self.error.message;
        let says = |code: &str| said.contains(&format!("says: {code} "));
        ["NOAUTH", "WRONGPASS", "LOADING"].into_iter().any(says)
            || says("NOPERM") && is_about_a_command(said)
    }
}

impl From<BackendError> for Failure {
    fn from(error: BackendError) -> Self {
        Self { error, reaction: Reaction::None }
    }
}

impl From<Failure> for BackendError {
    fn from(failure: Failure) -> Self {
        failure.error
    }
}

/// The step before the next try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reaction {
    /// This crate can do nothing about it.
    None,
    /// Send the script itself.
    SendScript,
    /// The slot is elsewhere.
    Moved(Endpoint),
    /// Send this one request to another node.
    Ask(Endpoint),
    /// The same, of a node whose host the server does not know.
    AskPort(u16),
    /// Send the same again after a pause.
    Again,
    /// This server is not the master any more: find the one that is.
    FindMaster,
    /// The connection is gone.
    Reconnect,
}

/// Codes with which a server refuses a command before it has done anything.
const CODES: [(&str, BackendErrorKind, &str, Reaction); 9] = [
    ("NOSCRIPT", Unsupported, "", Reaction::SendScript),
    ("TRYAGAIN", Unreachable, "wait for the resharding", Reaction::Again),
    (
        "CLUSTERDOWN",
        Unreachable,
        "see CLUSTER INFO: a slot has no master, or the nodes do not agree yet",
        Reaction::Again,
    ),
    ("LOADING", Unreachable, "wait until the server has read its data", Reaction::Again),
    ("BUSY", Unreachable, "a script blocks the server: SCRIPT KILL ends it", Reaction::Again),
    ("WRONGPASS", Denied, "check the user and the password", Reaction::None),
    ("NOAUTH", Denied, "check the user and the password", Reaction::None),
    ("LWGUARD", Unsupported, GUARD_NEEDS, Reaction::None),
    (
        "CROSSSLOT",
        Unsupported,
        "use redis+cluster:// or valkey+cluster:// for a Cluster",
        Reaction::None,
    ),
];
const GUARD_NEEDS: &str =
    "the guard needs INFO (run_id, master_replid): let the user call it, or leave guard out";

/// States in which a server refuses writes. Redis before 7 wraps the error of a command inside a
/// script in another text.
const STATES: [(&str, &str, Reaction); 5] = [
    ("READONLY", IS_REPLICA, Reaction::FindMaster),
    ("MASTERDOWN", IS_REPLICA, Reaction::FindMaster),
    ("OOM", "the server is full (maxmemory): free memory or raise the limit", Reaction::None),
    (
        "MISCONF",
        "the server cannot save its data and refuses writes: check its disk",
        Reaction::None,
    ),
    ("NOREPLICAS", "too few replicas are connected (min-replicas-to-write)", Reaction::None),
];
const IS_REPLICA: &str = "this server is a replica: connect to the master, or use redis+sentinel:// or valkey+sentinel://";

/// How a service that checks scripts by their text refuses one.
pub(crate) const REFUSED_TEXT: &str = "bad lua script";
/// The next step for that.
pub(crate) const TEXT_IS_CHECKED: &str = "the service checks the text of scripts: turn its check off (Alibaba Cloud \
    calls it script_check_enable), connect to the servers themselves, or add plain=true to the address of all clients";
const KEYS_ARE_ROUTED: &str = "use redis+cluster:// or valkey+cluster:// for a Cluster; behind a proxy that sends each \
    key to a server of its own, add plain=true to the address of all clients";

/// How Redis up to 7 and since 8, and Valkey, say that a script may not do one of its steps.
const DENIED_INSIDE: [&str; 2] = ["user executing the script", "ACL failure in script"];

/// Reads an error. `from` is the server that the command was sent to.
pub(crate) fn failure(error: &RedisError, from: &Endpoint) -> Failure {
    let code = error.code().unwrap_or_default();
    let detail = error.detail().unwrap_or_default();
    let is_missing = || is_missing(&format!("{code} {detail}"));
    let said = format!("{from} says: {code} {detail}");
    let make = |kind, effect, step: &str, reaction| Failure {
        error: match step {
            "" => BackendError::new(kind, effect, said.clone()),
            step => BackendError::new(kind, effect, said.clone()).with_next_step(step),
        },
        reaction,
    };
    let says = |word: &str| code == word || (code == "ERR" && detail.contains(word));
    if matches!(error.kind(), ErrorKind::Io) || error.is_unrecoverable_error() {
        return Failure {
            error: BackendError::new(
                Unreachable,
                Effect::Unknown,
                format!("the connection to {from} broke: {error}"),
            )
            .with_next_step("check that the server is running and reachable from here"),
            reaction: Reaction::Reconnect,
        };
    }
    if let ("MOVED" | "ASK", Some((host, port))) = (code, redirected_to(detail)) {
        let to = |host| Endpoint { host, port };
        let reaction = match (host, code) {
            // CLUSTER SLOTS has its address.
            (Host::Unknown, "MOVED") => Reaction::Again,
            (Host::Unknown, _) => Reaction::AskPort(port),
            (Host::Asked, "MOVED") => Reaction::Moved(to(from.host.clone())),
            (Host::Asked, _) => Reaction::Ask(to(from.host.clone())),
            (Host::Named(name), "MOVED") => Reaction::Moved(to(name)),
            (Host::Named(name), _) => Reaction::Ask(to(name)),
        };
        return make(Unreachable, Effect::NotApplied, "", reaction);
    }
    if said.contains(REFUSED_TEXT) {
        return make(Unsupported, Effect::NotApplied, TEXT_IS_CHECKED, Reaction::None);
    }
    if detail.contains("non deterministic commands") {
        // Up to version 4, which replicates scripts by their text.
        let needed = Tested::REDIS.needed;
        let step = format!("locks need Redis {needed} or later, or Valkey: upgrade the server");
        return make(Unsupported, Effect::NotApplied, &step, Reaction::None);
    }
    if detail.contains("same slot") && code != "CROSSSLOT" {
        return make(Unsupported, Effect::NotApplied, KEYS_ARE_ROUTED, Reaction::None);
    }
    if let Some((_, kind, step, reaction)) = CODES.iter().find(|(one, ..)| *one == code) {
        return make(*kind, Effect::NotApplied, step, reaction.clone());
    }
    // A script that may not do one of its steps says so without the code.
    if code == "NOPERM" || DENIED_INSIDE.iter().any(|said| detail.contains(said)) {
        // Inside a script the right may be missing for a later step than the first write.
        let effect = if detail.contains("script") { Effect::Unknown } else { Effect::NotApplied };
        let step = "run `latchwork doctor` with this address: it prints the ACL SETUSER lines that are missing; \
                    name the user's namespace (namespaces=app for ~app:*) in the address";
        return make(Denied, effect, step, Reaction::None);
    }
    if says("WRONGTYPE") {
        let message = format!(
            "the name is in use by a value that is not a string, and so not a lock of this kind: \
             a hash (Redisson's locks are hashes), a list or the like ({said})"
        );
        return Failure {
            error: BackendError::new(Mismatch, Effect::NotApplied, message)
                .with_next_step("use another name"),
            reaction: Reaction::None,
        };
    }
    if let Some((_, step, reaction)) = STATES.iter().find(|(one, ..)| says(one)) {
        return make(Unreachable, Effect::NotApplied, step, reaction.clone());
    }
    if is_full(error) {
        return make(Unreachable, Effect::NotApplied, FULL_STEP, Reaction::Reconnect);
    }
    if detail.contains("cluster support disabled") {
        let step = "this server is not in a Cluster: use redis:// or valkey://";
        return make(Unsupported, Effect::NotApplied, step, Reaction::None);
    }
    if is_missing() && detail.contains("SENTINEL") {
        let step = "this server is not a Sentinel: name Sentinels, or use redis:// or valkey://";
        return make(Unsupported, Effect::NotApplied, step, Reaction::None);
    }
    if is_missing() {
        let effect = if detail.contains("script") { Effect::Unknown } else { Effect::NotApplied };
        let step = "connect again: the store's capabilities are determined when connecting";
        return make(Unsupported, effect, step, Reaction::None);
    }
    // An unknown error may have happened half-way through a script.
    make(Unreachable, Effect::Unknown, "", Reaction::None)
}

/// Whether an error says that a command, or this form of it, is not there at all.
fn is_missing(said: &str) -> bool {
    const SIGNS: [&str; 15] = [
        REFUSED_TEXT,
        "unknown command",
        "unknown redis command",
        "invalid command",
        "invalid request",
        "unsupported",
        "not supported",
        "not support",
        "not allowed",
        "disabled",
        "forbidden",
        "number of keys",
        "multi-key",
        "multiple keys",
        "same slot",
    ];
    let said = said.to_ascii_lowercase();
    SIGNS.iter().any(|sign| said.contains(sign))
}

/// Whether the server takes no more connections. It says so to a new one, and closes it.
pub(crate) fn is_full(error: &RedisError) -> bool {
    error.to_string().contains("max number of clients")
}

/// The next step for a server that is full.
pub(crate) const FULL_STEP: &str = "raise maxclients at the server (CONFIG SET maxclients), or run fewer processes with locks at a time: \
     CLIENT LIST shows who is connected";

/// Whether a refusal is about a command, and not about the name of a key or channel.
pub(crate) fn is_about_a_command(message: &str) -> bool {
    message.contains("to run the") || message.contains("can't run this command")
}

fn redirected_to(detail: &str) -> Option<(Host, u16)> {
    let (host, port) = detail.split_whitespace().nth(1)?.rsplit_once(':')?;
    Some((Host::read(Some(host)), port.parse().ok()?))
}

/// Explains a redirection that was not followed to its end.
pub(crate) fn without_redirection(mut failure: Failure, slot: Option<u16>) -> Failure {
    let redirected = match &failure.reaction {
        Reaction::Moved(_) | Reaction::Ask(_) | Reaction::AskPort(_) => true,
        Reaction::Again => {
            ["MOVED", "ASK", "TRYAGAIN"].iter().any(|it| failure.error.message.contains(it))
        }
        _ => false,
    };
    if redirected {
        let (kind, message, step) = match slot {
            Some(slot) => (
                failure.error.kind,
                format!("slot {slot} of the Cluster {IS_MOVING}"),
                "try again when the move has ended: CLUSTER NODES shows it",
            ),
            None => (
                Unsupported,
                "this server is a node of a Cluster, and the key is on another node".to_owned(),
                "use redis+cluster:// or valkey+cluster:// for a Cluster",
            ),
        };
        failure.error = BackendError::new(kind, failure.error.effect, message).with_next_step(step);
    }
    failure
}

/// Whether a key could not be reached because its slot is on its way to another node.
pub(crate) fn is_moving(error: &BackendError) -> bool {
    error.message.contains(IS_MOVING)
}

const IS_MOVING: &str = "is moving from one node to another";

/// The server gave an answer that no version of Redis gives.
pub(crate) fn strange(answer: &redis::Value) -> BackendError {
    BackendError::new(
        BackendErrorKind::Corrupt,
        Effect::Unknown,
        format!("the server answered {answer:?}, which is not an answer of the script"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at() -> Endpoint {
        Endpoint { host: "h".into(), port: 7 }
    }

    fn said(code: &str, detail: &str) -> Failure {
        failure(&redis::make_extension_error(code.into(), Some(detail.into())), &at())
    }

    #[test]
    fn every_word_of_the_server_has_a_kind_an_effect_and_a_reaction() {
        for (code, detail, kind, reaction) in [
            ("NOSCRIPT", "No matching script", Unsupported, Reaction::SendScript),
            ("TRYAGAIN", "Multiple keys", Unreachable, Reaction::Again),
            ("CLUSTERDOWN", "Hash slot not served", Unreachable, Reaction::Again),
            ("LOADING", "Redis is loading", Unreachable, Reaction::Again),
            ("BUSY", "Redis is busy", Unreachable, Reaction::Again),
            ("READONLY", "You can't write", Unreachable, Reaction::FindMaster),
            ("MASTERDOWN", "Link with MASTER is down", Unreachable, Reaction::FindMaster),
            ("WRONGPASS", "invalid", Denied, Reaction::None),
            ("NOAUTH", "Authentication required", Denied, Reaction::None),
            ("NOPERM", "this user has no permissions", Denied, Reaction::None),
            ("WRONGTYPE", "Operation against", Mismatch, Reaction::None),
            ("OOM", "command not allowed", Unreachable, Reaction::None),
            ("MISCONF", "Redis is configured", Unreachable, Reaction::None),
            ("NOREPLICAS", "Not enough good replicas", Unreachable, Reaction::None),
        ] {
            let failure = said(code, detail);
            assert_eq!(failure.error.kind, kind, "{code}");
            assert_eq!(failure.error.effect, Effect::NotApplied, "{code}");
            assert_eq!(failure.reaction, reaction, "{code}");
            assert!(failure.error.message.contains(code), "{code}");
        }
        assert_eq!(said("ERR", "something new").error.effect, Effect::Unknown);
        for inside in [
            "The user executing the script can't run this command or subcommand script: x",
            "ACL failure in script: User app has no permissions to run the 'get' command script: x",
        ] {
            let error = said("ERR", inside).error;
            assert_eq!((error.kind, error.effect), (Denied, Effect::Unknown), "{inside}");
        }
        assert_eq!(said("NOPERM", "for 'publish' script: x").error.effect, Effect::Unknown);
        let old = "Error running script (call to f_x): @user_script:1: Write commands not allowed after \
                   non deterministic commands.";
        let error = said("ERR", old).error;
        assert_eq!((error.kind, error.effect), (Unsupported, Effect::NotApplied));
        assert!(error.next_step.unwrap().contains("Redis 5.0 or later"));
    }

    #[test]
    fn redirections_name_the_node() {
        let to = |host: &str, port| Endpoint { host: host.into(), port };
        assert_eq!(
            said("MOVED", "3999 10.0.0.1:6381").reaction,
            Reaction::Moved(to("10.0.0.1", 6381))
        );
        assert_eq!(said("ASK", "3999 ::1:6381").reaction, Reaction::Ask(to("::1", 6381)));
        assert_eq!(said("MOVED", "3999 :6381").reaction, Reaction::Moved(to("h", 6381)));
        assert_eq!(said("ASK", "3999 :6381").reaction, Reaction::Ask(to("h", 6381)));
        assert_eq!(said("ASK", "3999 [::1]:6381").reaction, Reaction::Ask(to("::1", 6381)));
        assert_eq!(said("MOVED", "3999 ?:6381").reaction, Reaction::Again);
        assert_eq!(said("ASK", "3999 ?:6381").reaction, Reaction::AskPort(6381));
    }
}
