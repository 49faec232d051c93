//! Checks that the store takes the scripts.
//!
//! Some services read the text of a script, or place its keys, before they run it. So every script is sent as the
//! verbs send it, with the names of a lock, behind a line that ends it at once: nothing is written.

use std::time::Duration;

use latchwork_store::doctor::Finding;
use latchwork_store::{BackendError, BackendErrorKind, Effect, Io, Key};
use redis::cmd;

use crate::config::RedisConfig;
use crate::protocol::granting::Scripts;
use crate::protocol::scripts::{FREE, INSPECT, RENEW, of_plain_mode};
use crate::protocol::store::Store;
use crate::server::link::Link;
use crate::server::script::Script;

/// How long that may take.
const LIMIT: Duration = Duration::from_secs(5);
/// What stands in front of a script.
const ENDS: &str = "do return 1 end\n";

/// The next step for a refusal without one.
const STEP: &str =
    "allow EVAL with these scripts, connect to the servers without the proxy, or use another store";

pub(super) async fn examine(config: &RedisConfig, io: &Io) -> Finding {
    let late = || Err(BackendError::no_answer(LIMIT));
    match io.within(LIMIT, tried(config, io)).await.unwrap_or_else(late) {
        Ok(Outcome::All(number)) => Finding::ok("scripts", format!("all {number} are accepted")),
        Ok(Outcome::Plain(said)) => {
            Finding::warning("scripts", format!("plain mode, for scripts of several keys are refused: {said}"))
                .consequence("there are mutexes without a queue, and no readers, permits, linger or guard")
                .remedy("connect to the servers without the proxy; if the service checks the text of scripts, turn that off")
        }
        Ok(Outcome::Refused(names, error)) => {
            Finding::critical("scripts", format!("refused: {}; {}", names.join(", "), error.message))
                .consequence("no lock can be acquired, or none released")
                .remedy(error.next_step.as_deref().unwrap_or(STEP))
        }
        Err(error) if error.kind == BackendErrorKind::Unsupported => {
            Finding::critical("scripts", error.message.clone())
                .consequence("no lock can be acquired")
                .remedy(error.next_step.as_deref().unwrap_or(STEP))
        }
        Err(error) => Finding::warning("scripts", error.message.clone())
            .consequence("it is not known whether the store accepts the scripts")
            .remedy(error.next_step.as_deref().unwrap_or("see the other findings")),
    }
}

enum Outcome {
    /// So many, and all were accepted.
    All(usize),
    /// Scripts of one key are accepted; this is the error for the others.
    Plain(String),
    Refused(Vec<String>, BackendError),
}

async fn tried(config: &RedisConfig, io: &Io) -> Result<Outcome, BackendError> {
    let store = Store::new(config.clone(), io.clone());
    let facts = store.topology.reach().await?;
    if let Some(said) = facts.refused.filter(|_| !config.plain) {
        return Ok(Outcome::Plain(said));
    }
    let namespace = config.namespaces.first().map_or_else(String::new, |name| format!("{name}:"));
    let key = Key::new(format!("{namespace}latchwork-doctor")).map_err(|error| {
        BackendError::new(BackendErrorKind::Invalid, Effect::NotApplied, error.to_string())
    })?;
    let names = store.naming.of(&key)?;
    let mut keys = names.whole().to_vec();
    keys.truncate(if config.plain { 1 } else { keys.len() });
    let scripts: Vec<(String, String)> = match config.plain {
        true => of_plain_mode().map(|(name, source)| (name.to_owned(), source)).into(),
        false => {
            keys.extend(store.guard.as_ref().map(|_| names.guard()));
            let granting = Scripts::by(store.guard.clone(), store.topology.is_cluster()).granting;
            let own = |(name, script): (&str, &Script)| (name.to_owned(), script.source.clone());
            let others: [(_, &Script); 3] =
                [("renew", &RENEW), ("free", &FREE), ("inspect", &INSPECT)];
            granting.each().into_iter().chain(others).map(own).collect()
        }
    };
    let (mut refused, mut problem) = (Vec::new(), None);
    for (name, source) in &scripts {
        let text = format!("{ENDS}{source}");
        let eval = |_: &Link, _| {
            let mut eval = cmd("EVAL");
            eval.arg(&text).arg(keys.len()).arg(&keys);
            eval
        };
        let answer = store.topology.route(names.slot()).await?.send(eval).await;
        match answer.map_err(BackendError::from) {
            Ok(_) => {}
            // `rights.rs` reports missing rights.
            Err(error) if error.kind == BackendErrorKind::Denied => {}
            Err(error)
                if error.kind == BackendErrorKind::Unsupported
                    || error.effect == Effect::Unknown =>
            {
                refused.push(name.clone());
                problem = problem.or(Some(error));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(match problem {
        None => Outcome::All(scripts.len()),
        Some(error) => Outcome::Refused(refused, error),
    })
}
