//! How long an acquire may wait, and the error when it times out.

use std::time::Duration;

use latchwork_store::doctor::operand;
use latchwork_store::{BackendError, BackendErrorKind, Error, ErrorKind, Key, Moment};

use crate::hold::engine::Engine;
use crate::hold::local_queue::InTheWay;

/// How long to wait for admission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// One try.
    Once,
    /// Until this long from now.
    Within(Duration),
    /// Until then, which is so long from when the caller began.
    Until(Moment, Duration),
    /// For ever.
    Endless,
}

/// Whether an error may pass while an acquire waits. Rights, credentials and files that `was_accepted` before are being
/// changed; from the start they are wrong.
pub(crate) fn may_pass(error: &BackendError, was_accepted: bool) -> bool {
    match error.kind {
        BackendErrorKind::Unreachable => true,
        BackendErrorKind::Denied | BackendErrorKind::Invalid => was_accepted,
        _ => false,
    }
}

/// The error of an acquire that timed out; it names what is in the way.
pub(crate) fn timed_out(
    engine: &Engine,
    key: &Key,
    patience: Patience,
    in_the_way: Option<InTheWay>,
) -> Error {
    let within = match patience {
        Patience::Within(Duration::ZERO) | Patience::Until(_, Duration::ZERO) => {
            " without waiting".to_owned()
        }
        Patience::Within(limit) | Patience::Until(_, limit) => format!(" after {limit:?}"),
        Patience::Once | Patience::Endless => String::new(),
    };
    let step = match &in_the_way {
        Some(InTheWay::Quarantine(_)) => {
            "wait until the quarantine has ended; if you know that no lock is held, run `latchwork init`"
                .to_owned()
        }
        Some(InTheWay::Closed(_)) => {
            format!("to open it now, run `latchwork once --reset {}`", operand(key.as_str()))
        }
        _ => format!("wait longer, or find the holder: `latchwork show {}`", operand(key.as_str())),
    };
    let why = in_the_way.map(|what| format!(": {what}")).unwrap_or_default();
    Error::new(ErrorKind::TimedOut, format!("timed out{within}{why}"))
        .with_key(key)
        .with_store(engine.capabilities.store.clone())
        .with_next_step(step)
}
