//! Prepares servers for their first guarded locks.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use latchwork_store::doctor::Prepared;
use latchwork_store::{Backend as _, BackendError, Error, ErrorKind, Io, Query};
use redis::Value;

use crate::backend::RedisBackend;
use crate::config::RedisConfig;
use crate::protocol::guard::Rule;
use crate::protocol::scripts::GUARD_INIT;
use crate::protocol::store::Store;
use crate::server::reply::number;
use crate::server::slot::SLOTS;

/// How many slots are prepared at once.
const AT_ONCE: usize = 64;

/// Prepares the servers of an address for their first locks, where they need that, and says what
/// was done.
///
/// They need it only with `guard=true`: then the caller vouches that no lock is held that the servers do
/// not know of, and the quarantine ends. That is done for the locks without
/// a namespace, for every namespace that has been guarded before, and for those that the address
/// names with `namespaces=shop,web`. It is also the way to other lengths (`max_ttl`, `deposed`).
///
/// # Errors
///
/// `Invalid` if a lock is held or waited for, which is named; else as for a connection.
///
/// # Cancel safety
///
/// May be dropped at any time: what is prepared so far stays so, and it can be called again.
pub async fn init(config: RedisConfig, io: Io) -> Result<Prepared, Error> {
    let store: Arc<str> = config.shown().into();
    let mut prepared = Prepared { store: store.clone(), steps: Vec::new() };
    let Some(rule) = Rule::of(&config) else {
        // A server that is away is no prepared store.
        RedisBackend::connect(config, io).await?;
        return Ok(prepared);
    };
    let named = config.namespaces.clone();
    let backend = RedisBackend::connect(config, io).await?;
    let failed = |error| Error::from_backend(error, None, &store);
    let live = backend.inspect(&Query::Prefix("".into())).await.map_err(failed)?;
    if let Some(first) = live.first() {
        let message = format!("store: {} locks are in use, the first is {}", live.len(), first.key);
        return Err(Error::new(ErrorKind::Invalid, message).with_store(store).with_next_step(
            "stop all clients that use them, or wait for the end of the quarantine",
        ));
    }
    let shared = &*backend.store;
    let cluster = shared.topology.is_cluster();
    let mut namespaces: BTreeSet<String> = named.into_iter().map(|name| name + ":").collect();
    namespaces.insert(String::new());
    for marker in shared.markers().await.map_err(failed)? {
        namespaces.insert(marker.names.namespace().to_owned());
    }
    for namespace in namespaces {
        let mut before = None;
        let slots: Vec<u16> = (0..if cluster { SLOTS } else { 1 }).collect();
        for some in slots.chunks(AT_ONCE) {
            let marked = some.iter().map(|slot| Box::pin(mark(shared, &rule, &namespace, *slot)));
            for answer in join_all(marked).await {
                before = answer.map_err(failed)?.or(before);
            }
        }
        let what = match namespace.strip_suffix(':') {
            None => "locks without a namespace".to_owned(),
            Some(name) => format!("namespace {name:?}"),
        };
        let slots_text = if cluster { format!(", in all {SLOTS} slots") } else { String::new() };
        let changed = before.map_or_else(String::new, |max| format!(" (it was {max:?})"));
        prepared.steps.push(format!(
            "{what}{slots_text}: no quarantine for the servers as they run now; max_ttl {:?}{changed}, \
             quarantine after a loss {:?}",
            rule.max_ttl, rule.quarantine
        ));
    }
    Ok(prepared)
}

/// Marks a namespace (and a slot of it) as whole; gives the `max_ttl` that it had, if another.
async fn mark(
    shared: &Store,
    rule: &Rule,
    namespace: &str,
    slot: u16,
) -> Result<Option<Duration>, BackendError> {
    let names = shared.naming.within(namespace, slot);
    let mut route = shared.topology.route(names.slot()).await?;
    let run = route.run(&GUARD_INIT, |command, link| {
        command.arg(1).arg(names.guard());
        rule.fill(command, link);
    });
    Ok(match &run.await? {
        Value::Array(parts) if parts.len() == 3 => number(&parts[1]).map(Duration::from_millis),
        _ => None,
    })
}
