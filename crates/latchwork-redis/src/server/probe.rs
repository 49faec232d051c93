//! Tries the commands that a server may leave out.
//!
//! Proxies and hosted services leave commands out: scripts over several keys, pub/sub, `INFO`. Each is tried once,
//! beside the other questions of a new connection, with names that no lock can have. A user whose rights do not cover
//! these names is refused by the server itself, which proves that the command is there.

use latchwork_store::{BackendError, BackendErrorKind, Effect};
use redis::Value;

use crate::server::access::Probe;
use crate::server::connection::command;
use crate::server::errors::{Failure, REFUSED_TEXT, Reaction, TEXT_IS_CHECKED, is_about_a_command};
use crate::server::facts::ScriptSupport;
use crate::server::link::Link;

/// The answers to a [`Probe`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProbeResult {
    pub(crate) scripts: ScriptSupport,
    /// The server's reason for refusing scripts of several keys.
    pub(crate) refused: Option<String>,
    /// It takes subscriptions.
    pub(crate) channels: bool,
}

/// Tries the commands.
///
/// # Errors
///
/// `Denied` if the user may not run scripts, `Unsupported` if no user may, and why the connection broke.
pub(crate) async fn probe(link: &Link, probe: &Probe) -> Result<ProbeResult, BackendError> {
    let Probe { sharded, several_keys, one_key, channel } = probe;
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
    let (several, one, (subscribed, unsubscribed)) =
        tokio::join!(link.send(several_keys), link.send(one_key), listen);
    let (several, one) = (Answer::of(several), Answer::of(one));
    for answer in [&several, &one, &subscribed].into_iter().chain(&unsubscribed) {
        if let Answer::Broken(error) = answer {
            return Err(error.clone());
        }
    }
    let mut refused = None;
    let scripts = match (several, one) {
        (Answer::Can, _) => ScriptSupport::Whole,
        (Answer::Cannot(said), Answer::Can) => {
            refused = Some(said);
            ScriptSupport::OneKey
        }
        (Answer::Denied(error), _) | (_, Answer::Denied(error)) => return Err(error),
        (_, Answer::Cannot(said)) => return Err(no_scripts(&said)),
        (Answer::Broken(error), _) | (_, Answer::Broken(error)) => return Err(error),
    };
    Ok(ProbeResult { scripts, refused, channels: subscribed == Answer::Can })
}

fn no_scripts(said: &str) -> BackendError {
    let step = match said.contains(REFUSED_TEXT) {
        true => TEXT_IS_CHECKED,
        false => "allow EVAL, or connect to the servers without the proxy",
    };
    BackendError::new(
        BackendErrorKind::Unsupported,
        Effect::NotApplied,
        format!(
            "the store refuses EVAL ({said}): without a script, a release cannot compare and \
             delete in one step, and could free another client's lock"
        ),
    )
    .with_next_step(step)
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
            // If the user may run the command, but not with these names, the message is about a key or channel.
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
}
