//! The facts about a server that are read while connecting: its identity and its capabilities.
//!
//! Proxies and hosted services leave commands out: scripts over several keys, pub/sub, `INFO`. What
//! is missing is asked for once, beside the other questions of a new connection, with names that no
//! lock can have. A user whose rights do not cover these names is refused by the server itself, which
//! proves that the command is there.

use std::fmt;

use latchwork_store::{BackendError, BackendErrorKind, Effect};
use redis::Value;

use crate::protocol::plain;
use crate::protocol::scripts::Chosen;
use crate::server::connection::command;
use crate::server::errors::{Failure, Reaction, TEXT_IS_CHECKED, is_about_a_command};
use crate::server::link::Link;
use crate::server::reply::fields;

/// What a server says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Major and minor version of the Redis whose commands it has, if it says.
    pub(crate) version: Option<(u32, u32)>,
    /// `SET` takes `NX` and `GET` together, which a free key is taken with.
    pub(crate) set_nx_get: bool,
    pub(crate) run_id: String,
    pub(crate) role: String,
    pub(crate) maxmemory_policy: String,
    /// Messages come on the same connection: it speaks RESP3 and takes subscriptions.
    pub(crate) pushes: bool,
    pub(crate) scripts: Scripts,
    /// The server's words for refusing scripts of several keys.
    pub(crate) refused: Option<String>,
    /// It tells how many listen on a channel.
    pub(crate) counts_listeners: bool,
}

impl Facts {
    /// Reads the answer to INFO.
    pub(crate) fn read(info: &str) -> Self {
        let field = |wanted: &str| {
            let field = fields(info).find(|(name, _)| *name == wanted);
            field.map_or("", |(_, value)| value.trim()).to_owned()
        };
        let numbers = |version: &str| {
            let mut numbers = version.split('.').map(|part| part.parse().ok());
            Some((numbers.next().flatten()?, numbers.next().flatten()?))
        };
        // A Valkey says both. All of its versions have the commands of Redis 7.2.
        let version = numbers(&field("redis_version"))
            .or_else(|| numbers(&field("valkey_version")).map(|_| (7, 2)));
        Self {
            version,
            set_nx_get: version.is_some_and(|version| version >= (7, 0)),
            run_id: field("run_id"),
            role: field("role"),
            maxmemory_policy: field("maxmemory_policy"),
            pushes: false,
            scripts: Scripts::default(),
            refused: None,
            counts_listeners: false,
        }
    }
}

/// The scripts that a store runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Scripts {
    /// Of several keys.
    #[default]
    Whole,
    /// Of one key: plain mode.
    OneKey,
}

/// What the store answered to the probes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Probed {
    pub(crate) scripts: Scripts,
    /// Why not those of several keys.
    pub(crate) refused: Option<String>,
    /// It takes subscriptions.
    pub(crate) channels: bool,
}

/// Asks. With `sharded` the subscription is that of a Cluster.
///
/// # Errors
///
/// `Denied` if the user may not run scripts, `Unsupported` if nobody may, and why the connection broke.
pub(crate) async fn probe(link: &Link, sharded: bool) -> Result<Probed, BackendError> {
    let channel = "lw:push:probe";
    let (subscribe, unsubscribe) = match sharded {
        true => (command(&["SSUBSCRIBE", channel]), command(&["SUNSUBSCRIBE", channel])),
        false => (command(&["SUBSCRIBE", channel]), command(&["UNSUBSCRIBE", channel])),
    };
    // In the older protocol a subscription would take the whole connection.
    let listen = async {
        if !link.facts.pushes {
            return (Answer::Cannot(String::new()), None);
        }
        let (subscribed, unsubscribed) =
            tokio::join!(link.send(&subscribe), link.send(&unsubscribe));
        (Answer::of(subscribed), Some(Answer::of(unsubscribed)))
    };
    // Real scripts, which find no lock of this name and do nothing: a toy would say nothing of their text.
    let names = ["1", "2", "3", "4"].map(|name| format!("{{lw:probe}}:{name}"));
    let mut two = command(&["EVAL", &Chosen::by(None, sharded).granting.hand_on.source, "4"]);
    two.arg(&names).arg("").arg("").arg("").arg("").arg("");
    let one = command(&["EVAL", plain::RELEASE, "1", &names[0], ""]);
    let (two, one, (subscribed, unsubscribed)) =
        tokio::join!(link.send(&two), link.send(&one), listen);
    let (two, one) = (Answer::of(two), Answer::of(one));
    for answer in [&two, &one, &subscribed].into_iter().chain(&unsubscribed) {
        if let Answer::Broken(error) = answer {
            return Err(error.clone());
        }
    }
    let mut refused = None;
    let scripts = match (two, one) {
        (Answer::Can, _) => Scripts::Whole,
        (Answer::Cannot(said), Answer::Can) => {
            refused = Some(said);
            Scripts::OneKey
        }
        (Answer::Denied(error), _) | (_, Answer::Denied(error)) => return Err(error),
        (_, Answer::Cannot(said)) => return Err(no_scripts(&said)),
        (Answer::Broken(error), _) | (_, Answer::Broken(error)) => return Err(error),
    };
    Ok(Probed { scripts, refused, channels: subscribed == Answer::Can })
}

/// Why plain mode cannot do something.
pub(crate) fn only_plain(what: impl fmt::Display) -> BackendError {
    BackendError::new(
        BackendErrorKind::Unsupported,
        Effect::NotApplied,
        format!(
            "{what}: this store, or a proxy in front of it, refuses scripts with several keys, \
             so it has mutexes without a queue and nothing else (plain mode)"
        ),
    )
    .next_step("connect to the servers themselves, or use another store for this lock")
}

fn no_scripts(said: &str) -> BackendError {
    BackendError::new(
        BackendErrorKind::Unsupported,
        Effect::NotApplied,
        format!(
            "the store refuses EVAL ({said}): without a script, a release cannot compare and \
             delete in one step, and could free another client's lock"
        ),
    )
    .next_step(if said.contains("bad lua script") {
        TEXT_IS_CHECKED
    } else {
        "allow EVAL, or connect to the servers without the proxy"
    })
}

#[derive(Debug, Clone)]
enum Answer {
    Can,
    Cannot(String),
    /// This user may not run the command at all.
    Denied(BackendError),
    /// The connection is gone.
    Broken(BackendError),
}

impl PartialEq for Answer {
    fn eq(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

impl Answer {
    fn of(answer: Result<Value, Failure>) -> Self {
        let Err(failure) = answer else { return Self::Can };
        if failure.reaction == Reaction::Reconnect {
            return Self::Broken(failure.error);
        }
        let said = &failure.error.message;
        match failure.error.kind {
            // A user who may run the command, but not with these names, is told of a key or channel.
            BackendErrorKind::Denied
                if is_about_a_command(said) && failure.error.effect == Effect::NotApplied =>
            {
                Self::Denied(failure.error)
            }
            BackendErrorKind::Denied => Self::Can,
            BackendErrorKind::Unsupported => Self::Cannot(said.clone()),
            // A server that loads, is busy or full, or whose slots are elsewhere, knows the command.
            _ => Self::Can,
        }
    }
}

#[cfg(test)]
mod tests {
    use latchwork_services::hostile::survives;

    use super::*;
    use crate::config::Endpoint;
    use crate::server::errors::failure;

    fn said(code: &str, detail: &str) -> Answer {
        let from = Endpoint { host: "h".into(), port: 7 };
        let error = redis::make_extension_error(code.into(), Some(detail.into()));
        Answer::of(Err(failure(&error, &from)))
    }

    #[test]
    fn a_missing_command_differs_from_a_denied_one() {
        for (code, detail) in [
            ("ERR", "unknown command 'EVAL', with args beginning with: 'return 1'"),
            ("ERR", "unknown command `SUBSCRIBE`, with args beginning with: `x`"),
            ("ERR", "EVAL is not supported"),
            ("ERR", "unsupported command 'INFO'"),
            ("ERR", "handle response: command 'EVAL' is not allowed"),
            ("ERR", "wrong number of keys for 'EVAL'"),
            ("CROSSSLOT", "Keys in request don't hash to the same slot"),
            ("ERR", "invalid request"),
        ] {
            assert!(matches!(said(code, detail), Answer::Cannot(_)), "{code} {detail}");
        }
        for (code, detail) in [
            ("NOPERM", "this user has no permissions to access one of the keys used as arguments"),
            ("NOPERM", "No permissions to access a channel"),
            ("LOADING", "Redis is loading the dataset in memory"),
            ("BUSY", "Redis is busy running a script"),
            ("MOVED", "3999 10.0.0.1:6381"),
            ("OOM", "command not allowed when used memory > 'maxmemory'."),
        ] {
            assert_eq!(said(code, detail), Answer::Can, "{code} {detail}");
        }
        let denied = said("NOPERM", "this user has no permissions to run the 'eval' command");
        assert!(matches!(denied, Answer::Denied(_)));
    }

    #[test]
    fn hostile_words_about_a_server_are_read_or_left() {
        let sample = b"# Server\r\nredis_version:7.0.15\r\nrun_id:0123\r\nrole:master\r\n\
            maxmemory_policy:noeviction\r\n";
        assert_eq!(Facts::read(str::from_utf8(sample).unwrap()).version, Some((7, 0)));
        let only_valkey = "redis_version:\r\nserver_name:valkey\r\nvalkey_version:10.0.1\r\n";
        assert_eq!(Facts::read(only_valkey).version, Some((7, 2)));
        assert_eq!(Facts::read("valkey_version:new\r\n").version, None);
        survives("INFO", &[sample], |bytes| {
            let _ = Facts::read(&String::from_utf8_lossy(bytes));
        });
    }
}
