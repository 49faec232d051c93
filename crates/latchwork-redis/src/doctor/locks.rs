//! Finds damaged and foreign locks that only a person can repair.

use std::collections::BTreeMap;
use std::time::Duration;

use latchwork_store::doctor::Finding;
use latchwork_store::{Backend as _, BackendError, Io, Query};

use crate::backend::RedisBackend;
use crate::config::RedisConfig;
use crate::protocol::listing::Marker;
use crate::protocol::store::Store;

/// How long the check of all locks may take.
const LIMIT: Duration = Duration::from_secs(5);

pub(super) async fn examine(config: &RedisConfig, io: &Io) -> Vec<Finding> {
    let everything = Query::Prefix("".into());
    let look = async {
        let backend = RedisBackend::connect(config.clone(), io.clone()).await?;
        let store = backend.capabilities().store;
        let failed = |error| latchwork_store::Error::from_backend(error, None, &store);
        let all = backend.inspect(&everything).await.map_err(failed)?;
        let mut more = guard(&backend.store).await.map_err(failed)?;
        more.push(namespaces(&backend.store).await.map_err(failed)?);
        Ok::<_, latchwork_store::Error>((all, more))
    };
    let (all, guard) = match io.within(LIMIT, look).await {
        None => {
            return vec![
                Finding::info("locks", "not all could be checked in time")
                    .consequence("the server has many keys; the locks were not checked further"),
            ];
        }
        Some(Err(error)) => {
            return vec![
                Finding::warning("locks", error.message())
                    .consequence("the locks cannot be checked, and perhaps not acquired")
                    .remedy(error.next_step().unwrap_or("see the other findings")),
            ];
        }
        Some(Ok(found)) => found,
    };
    // A holder that is no claim of ours, and has no end.
    let stuck: Vec<_> = all
        .iter()
        .filter(|one| {
            one.holders.iter().any(|party| party.id.is_none() && party.remaining.is_none())
        })
        .collect();
    let mut findings =
        vec![Finding::ok("locks", format!("{} held, waited for or closed", all.len()))];
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
            .consequence("if that client has died, no client can ever acquire the lock")
            .remedy("make sure that its holder is dead, then delete the key"),
        );
    }
    findings.extend(guard);
    findings
}

/// The state of the guard: whether it is on, and which namespaces are in quarantine for how long.
async fn guard(shared: &Store) -> Result<Vec<Finding>, BackendError> {
    let markers = shared.markers().await?;
    let Some(rule) = &shared.guard else {
        let Some(first) = markers.first() else { return Ok(Vec::new()) };
        let others = name_of(first);
        let found = format!("off for this address, but other clients use the guard for {others}");
        return Ok(vec![
            Finding::critical("guard", found)
                .consequence(
                    "after a restart without data, this client may acquire a lock that \
                    is held",
                )
                .remedy("add guard=true, and the max_ttl of the others"),
        ]);
    };
    let own = format!("on, max_ttl {:?}, quarantine {:?}", rule.max_ttl, rule.quarantine);
    let mut findings = Vec::new();
    let mut otherwise = None;
    let mut closed: BTreeMap<String, (Duration, usize, bool)> = BTreeMap::new();
    for marker in &markers {
        let mut route = shared.topology.route(marker.names.slot()).await?;
        let look = rule.read_marker(&mut route, &marker.names).await?;
        if look.lengths.is_some_and(|lengths| lengths != rule.lengths()) {
            otherwise = otherwise.or(look.lengths.map(|lengths| (marker, lengths)));
        }
        if look.marked && !look.left.is_zero() {
            let (left, slots, begun) =
                closed.entry(name_of(marker)).or_insert((Duration::ZERO, 0, true));
            *left = look.left.max(*left);
            *slots += 1;
            *begun &= look.begun;
        }
    }
    findings.push(match otherwise {
        None if markers.is_empty() => Finding::info(
            "guard",
            format!("{own}; no namespace has been used with it yet"),
        )
        .consequence(
            "the first use of a namespace waits for the quarantine; `latchwork init` avoids that",
        ),
        None => Finding::ok("guard", own),
        Some((marker, (max_ttl, quarantine))) => Finding::critical(
            "guard",
            format!(
                "{own}; {} has max_ttl {max_ttl:?}, quarantine {quarantine:?}",
                name_of(marker)
            ),
        )
        .consequence("no lock of that namespace can be acquired with this address")
        .remedy(
            "give all clients the same max_ttl and deposed, or change them by `latchwork init`",
        ),
    });
    for (name, (left, slots, begun)) in closed {
        let slots =
            if shared.topology.is_cluster() { format!(" in {slots} slots") } else { String::new() };
        let from = if begun { "" } else { ", from the next try on" };
        findings.push(
            Finding::warning("quarantine", format!("{name}{slots}: {left:?} more{from}"))
                .consequence(
                    "it grants no lock until then, because a lock that it lost may be held",
                )
                .remedy("wait; or, if you know that no lock is held, run `latchwork init`"),
        );
    }
    Ok(findings)
}

/// How many counters, markers and namespaces there are, and whether others name namespaces that
/// this address does not.
async fn namespaces(shared: &Store) -> Result<Finding, BackendError> {
    let counters = shared.shared_helpers("token").await?;
    let markers = shared.markers().await?;
    let mut strange: Vec<String> = counters
        .iter()
        .chain(&markers)
        .filter(|one| !shared.naming.namespaces.names(one.names.namespace()))
        .map(name_of)
        .collect();
    strange.sort_unstable();
    strange.dedup();
    let found =
        format!("{} counters of tokens, {} markers of the guard", counters.len(), markers.len());
    Ok(match strange.first() {
        None => Finding::ok("namespaces", found),
        Some(first) => Finding::warning(
            "namespaces",
            format!("{found}; {} not named by this address, the first is {first}", strange.len()),
        )
        .consequence(
            "clients that name other namespaces take the tokens of the same lock from another \
             counter, and check another marker of the guard",
        )
        .remedy("give all clients of a lock the same namespaces= in their address"),
    })
}

fn name_of(marker: &Marker) -> String {
    match marker.names.namespace().strip_suffix(':') {
        None => "the locks without a namespace".into(),
        Some(name) => format!("namespace {name:?}"),
    }
}
