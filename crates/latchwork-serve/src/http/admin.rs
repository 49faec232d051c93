//! What only administrators do: take locks away from others, change their limits, and examine the store.

use std::sync::Arc;

use axum::Json as Answer;
use axum::extract::State;
use latchwork::Resized;
use latchwork_store::doctor::Severity;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::body::{Json, whole};
use super::error::{ApiError, KindErrors, StoreErrors};
use super::parts::{Name, NameOrBody, Parameters};
use super::views::PartyView;
use crate::domain::access::caller::Caller;
use crate::domain::access::principal::Right;
use crate::domain::events::event::Forced;
use crate::domain::lock_status::PartyStatus;
use crate::domain::refusal::Refusal;
use crate::domain::service::Service;

/// A forced release.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Force {
    /// Why, for the audit line in the log: 1 to 500 characters.
    #[schema(min_length = 1, max_length = 500)]
    reason: String,
}

/// The same with the name of the lock, unless the query has it.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NamedForce {
    /// The name of the lock.
    name: Option<String>,
    /// Why, for the audit line in the log: 1 to 500 characters.
    #[schema(min_length = 1, max_length = 500)]
    reason: String,
}

/// What a forced release has done.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ForcedView {
    /// The holders that were evicted, and no others: a waiter that the store has granted the lock since then keeps it.
    /// They may go on working until their next renewal.
    evicted: Vec<PartyView>,
    /// A token above theirs, to set the fence of the resource with; `null` if the next holder has it.
    token: Option<String>,
}

/// Another limit of a semaphore.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewLimit {
    /// How many permits there are from now on: at least 1.
    #[schema(format = Int64, minimum = 1, maximum = 4294967295_u32)]
    #[serde(deserialize_with = "whole")]
    limit: u32,
}

/// The same with the name of the semaphore, unless the query has it.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NamedLimit {
    /// The name of the semaphore.
    name: Option<String>,
    /// How many permits there are from now on: at least 1.
    #[schema(format = Int64, minimum = 1, maximum = 4294967295_u32)]
    #[serde(deserialize_with = "whole")]
    limit: u32,
}

/// What a change of the limit has done.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ResizedView {
    /// Whether the limit was set: `false` if nobody holds permits or waits for some, so that there was none.
    resized: bool,
    /// The limit before.
    #[schema(format = Int64, maximum = 4294967295_u32)]
    from: Option<u32>,
    /// The limit now.
    #[schema(format = Int64, maximum = 4294967295_u32)]
    to: Option<u32>,
    /// How many permits are held now. If they exceed the limit, nobody is admitted until enough of them are released.
    held: Option<u64>,
    /// The same in a sentence.
    message: String,
}

impl From<Resized> for ResizedView {
    fn from(resized: Resized) -> Self {
        let message = resized.to_string();
        match resized {
            Resized::Yes { from, to, held } => {
                let (from, to, held) = (Some(from), Some(to), Some(held));
                Self { resized: true, from, to, held, message }
            }
            Resized::Unused => Self { resized: false, from: None, to: None, held: None, message },
        }
    }
}

/// What an examination of the store has found.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DoctorView {
    /// The store, without its password.
    store: String,
    /// Whether locks there are safe.
    fit: bool,
    /// The severity of the worst finding.
    worst: &'static str,
    /// The findings.
    findings: Vec<FindingView>,
}

/// One finding.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FindingView {
    /// `ok`, `info`, `warning` or `critical`.
    severity: &'static str,
    /// The subject, by a name that never changes.
    code: &'static str,
    /// The part of the store, such as a node's address.
    part: Option<String>,
    /// The facts.
    found: String,
    /// What that means for locks.
    consequence: String,
    /// How to fix it.
    remedy: String,
}

/// Takes a lock away from its holders; needs the right admin
///
/// The next token is larger, so a resource that checks tokens refuses the evicted holders.
#[utoipa::path(post, path = "/v1/locks/{name}/force-release", tag = "admin", request_body = Force,
    params(("name" = String, Path, description = "The name, percent-encoded")),
    responses((status = 200, description = "Released", body = ForcedView), StoreErrors, KindErrors))]
pub(super) async fn force_release(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Name(name): Name,
    Json(asked): Json<Force>,
) -> Result<Answer<ForcedView>, ApiError> {
    caller.principal.check(Right::Admin, &name)?;
    let reason = asked.reason.trim();
    if reason.is_empty() || reason.chars().count() > 500 {
        let refusal = Refusal::invalid("reason: 1 to 500 characters are needed", "say why");
        return Err(refusal.key(name).into());
    }
    let of = |error: &latchwork::Error| Refusal::of(error, Some(&name));
    let key = service.names.key(&name).map_err(|error| of(&error))?;
    let forced = Forced { by: caller.principal.name.to_string(), why: reason.to_owned() };
    let done = service.force_release(&name, &key, forced).await;
    let outcome = if done.is_ok() { "done" } else { "failed" };
    // Written with escapes, so that no text of a client can forge a line.
    tracing::info!(target: "latchwork::audit", act = "force-release", by = %caller.principal.name, peer = %caller.peer, name = ?name, reason = ?reason, outcome, "admin");
    let done = done.map_err(|error| of(&error))?;
    Ok(Answer(ForcedView {
        evicted: done.evicted.iter().map(|it| (&PartyStatus::new(&name, it)).into()).collect(),
        token: done.token.map(|token| token.to_string()),
    }))
}

/// Takes a lock away by its name in the query or in the body, also one that no path can have; needs the right admin
#[utoipa::path(post, path = "/v1/lock/force-release", tag = "admin", operation_id = "force_release_named",
    request_body = NamedForce, params(NameOrBody), responses((status = 200, description = "Released", body = ForcedView), StoreErrors, KindErrors))]
pub(super) async fn force_release_named(
    service: State<Arc<Service>>,
    caller: Caller,
    Parameters(query): Parameters<NameOrBody>,
    Json(NamedForce { name, reason }): Json<NamedForce>,
) -> Result<Answer<ForcedView>, ApiError> {
    force_release(service, caller, query.or(name)?, Json(Force { reason })).await
}

/// Changes the limit of a semaphore while its permits are held; needs the right admin
///
/// Nobody is evicted, and waiters that the new limit admits are admitted. A client that asks with another limit later is
/// refused, unless it says `resize`.
#[utoipa::path(post, path = "/v1/locks/{name}/resize", tag = "admin", request_body = NewLimit,
    params(("name" = String, Path, description = "The name, percent-encoded")),
    responses((status = 200, description = "Changed, or not in use", body = ResizedView), StoreErrors, KindErrors))]
pub(super) async fn resize(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Name(name): Name,
    Json(asked): Json<NewLimit>,
) -> Result<Answer<ResizedView>, ApiError> {
    caller.principal.check(Right::Admin, &name)?;
    if asked.limit == 0 {
        let refusal =
            Refusal::invalid("limit: a semaphore needs at least one permit", "write 1 or more");
        return Err(refusal.key(name).into());
    }
    let done = service.locks.semaphore(&name, asked.limit).resize().await;
    let outcome = if done.is_ok() { "done" } else { "failed" };
    // Written with escapes, so that no text of a client can forge a line.
    tracing::info!(target: "latchwork::audit", act = "resize", by = %caller.principal.name, peer = %caller.peer, name = ?name, limit = asked.limit, outcome, "admin");
    let done = done.map_err(|error| Refusal::of(&error, Some(&name)))?;
    Ok(Answer(done.into()))
}

/// Changes the limit of a semaphore by its name in the query or in the body; needs the right admin
#[utoipa::path(post, path = "/v1/lock/resize", tag = "admin", operation_id = "resize_named", request_body = NamedLimit,
    params(NameOrBody), responses((status = 200, description = "Changed, or not in use", body = ResizedView), StoreErrors, KindErrors))]
pub(super) async fn resize_named(
    service: State<Arc<Service>>,
    caller: Caller,
    Parameters(query): Parameters<NameOrBody>,
    Json(NamedLimit { name, limit }): Json<NamedLimit>,
) -> Result<Answer<ResizedView>, ApiError> {
    resize(service, caller, query.or(name)?, Json(NewLimit { limit })).await
}

/// Examines the store: whether it is fit for locks; needs the right read or admin, and a token without prefixes
#[utoipa::path(get, path = "/v1/doctor", tag = "admin",
    responses((status = 200, description = "The findings", body = DoctorView), StoreErrors))]
pub(super) async fn doctor(
    State(service): State<Arc<Service>>,
    caller: Caller,
) -> Result<Answer<DoctorView>, ApiError> {
    caller.principal.check_examination()?;
    // One at a time: it opens connections of its own.
    let _turn = service.examination.lock().await;
    let address = service.store.read_now().map_err(|error| Refusal::of(&error, None))?;
    let report = latchwork::doctor(&address).await;
    let report = report.map_err(|error| Refusal::of(&error, None))?;
    let worst = report.findings.iter().map(|it| it.severity).max().unwrap_or(Severity::Ok);
    let findings = report.findings.iter().map(|it| FindingView {
        severity: it.severity.word(),
        code: it.code,
        part: it.part.as_deref().map(str::to_owned),
        found: it.found.clone(),
        consequence: it.consequence.clone(),
        remedy: it.remedy.clone(),
    });
    Ok(Answer(DoctorView {
        store: report.store.to_string(),
        fit: report.is_fit(),
        worst: worst.word(),
        findings: findings.collect(),
    }))
}
