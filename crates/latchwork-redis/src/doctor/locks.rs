//! What stands among the locks that only a person can set right.

use std::time::Duration;

use latchwork_core::doctor::Finding;
use latchwork_core::{Backend as _, Io, Query};

use crate::backend::RedisBackend;
use crate::config::RedisConfig;

/// How long looking at all locks may take.
const LOOK: Duration = Duration::from_secs(5);

pub(super) async fn examine(config: &RedisConfig, io: &Io) -> Vec<Finding> {
    let everything = Query::Prefix("".into());
    let look = async {
        let backend = RedisBackend::connect(config.clone(), io.clone()).await?;
        let store = backend.capabilities().store;
        let all = backend.inspect(&everything).await;
        all.map_err(|error| latchwork_core::Error::from_backend(error, None, &store))
    };
    let all = match io.within(LOOK, look).await {
        None => {
            return vec![
                Finding::info("locks", "they could not all be looked at in time")
                    .consequence("the server has many keys; nothing else is known of the locks"),
            ];
        }
        Some(Err(error)) => {
            return vec![
                Finding::warning("locks", error.message())
                    .consequence("the locks cannot be looked at, and perhaps not be taken")
                    .remedy(error.hint().unwrap_or("look at the other findings")),
            ];
        }
        Some(Ok(all)) => all,
    };
    // A holder that is no claim of ours, and has no end.
    let stuck: Vec<_> = all
        .iter()
        .filter(|one| {
            one.holders.iter().any(|party| party.id.is_none() && party.remaining.is_none())
        })
        .collect();
    let mut findings = vec![Finding::ok("locks", format!("{} held or waited for", all.len()))];
    if let Some(first) = stuck.first() {
        findings.push(
            Finding::warning(
                "foreign-locks",
                format!(
                    "{} held by clients of another kind without a ttl, the first is {}",
                    stuck.len(),
                    first.key
                ),
            )
            .consequence("if that client has died, nobody will ever get the lock")
            .remedy("make sure that its holder is dead, then delete the key"),
        );
    }
    findings
}
