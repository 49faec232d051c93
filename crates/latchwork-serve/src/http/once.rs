//! Tasks that run once in each period.

use std::sync::Arc;

use axum::Json as Answer;
use axum::extract::State;
use latchwork::Period;
use latchwork::once::{Reset, Skipped};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::body::{Json, marked, maybe_whole, options};
use super::error::{ApiError, HoldErrors, KindErrors, LimitErrors, StoreErrors};
use super::parts::{IdempotencyKey, Name, NameQuery, Parameters, claim_name};
use super::views::{HoldView, millis};
use crate::domain::access::caller::Caller;
use crate::domain::access::principal::Right;
use crate::domain::refusal::Refusal;
use crate::domain::service::{Acquisition, Service};
use crate::domain::wish::Target;

/// A task to begin.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OneTask {
    /// The period: `30s`, `15m`, `6h`, or of the calendar `1d`, `1w`, `1mo`, `1y`.
    every: String,
    /// The time zone in which days and longer periods begin, such as `Europe/Berlin`; UTC if it is left out.
    tz: Option<String>,
    /// How long the task stays locked without a renewal, in milliseconds.
    #[serde(default, deserialize_with = "maybe_whole")]
    ttl_ms: Option<u64>,
    /// How long to wait for a run of another host to succeed or fail, in milliseconds.
    #[serde(default, deserialize_with = "maybe_whole")]
    wait_ms: Option<u64>,
    /// The text that others see.
    holder: Option<String>,
    /// The longest time to run, in milliseconds.
    #[serde(default, deserialize_with = "maybe_whole")]
    max_hold_ms: Option<u64>,
    /// The id of the session that keeps the hold, whose ttl it has.
    session: Option<String>,
    /// Any JSON that readers of the lock see, at most 1,024 bytes without spaces.
    #[schema(value_type = Option<serde_json::Value>)]
    value: Option<Box<RawValue>>,
}

/// Whether there is something to do.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BegunView {
    /// `begun`: run the task, then `POST /v1/holds/{hold}/succeed`, or `DELETE` the hold if it failed.
    /// `done`, `running`, `quarantine`: there is nothing to do.
    outcome: &'static str,
    /// The hold, if it was begun.
    #[serde(skip_serializing_if = "Option::is_none")]
    hold: Option<HoldView>,
    /// The host that has done it, or is running it.
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<String>,
    /// For how much longer it stays closed, or the quarantine lasts.
    #[serde(skip_serializing_if = "Option::is_none")]
    left_ms: Option<u64>,
    /// When it was done, in milliseconds since 1970, by the clock of the host that did it.
    #[serde(skip_serializing_if = "Option::is_none")]
    done_at_ms: Option<u64>,
}

/// What became of a reset.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ResetView {
    /// `opened`, `not_closed`, or `running`: a reset never ends a run.
    outcome: &'static str,
    /// The host that is running it.
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<String>,
}

/// Begins a task unless it was done in this period or is running
#[utoipa::path(post, path = "/v1/once/{name}", tag = "once", request_body = OneTask,
    params(("name" = String, Path, description = "The name of the task, percent-encoded"),
           ("Idempotency-Key" = Option<String>, Header, description = "The same key is the same run, over retries")),
    responses((status = 200, description = "Begun, or nothing to do", body = BegunView), StoreErrors, KindErrors, HoldErrors, LimitErrors))]
pub(super) async fn begin(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Name(name): Name,
    key: Option<IdempotencyKey>,
    Json(asked): Json<OneTask>,
) -> Result<Answer<BegunView>, ApiError> {
    let every = Period::parse(&asked.every, asked.tz.as_deref());
    let every = every.map_err(|error| Refusal::of(&error, Some(&name)))?;
    let period_text = format!("{:?} {:?}", asked.every, asked.tz);
    let options = options(asked.ttl_ms, asked.wait_ms, asked.holder, asked.max_hold_ms);
    let options = marked(options, asked.session, asked.value)?;
    let may_read = caller.principal.may(Right::Read, &name);
    let wish = service.wish(Target::Task { name, every, period_text }, options, &caller)?;
    let acquisition = service.acquire(wish, &caller, claim_name(key)).await?;
    let nothing =
        |outcome| BegunView { outcome, hold: None, by: None, left_ms: None, done_at_ms: None };
    Ok(Answer(match acquisition {
        Acquisition::Hold(hold) => BegunView { hold: Some(hold.into()), ..nothing("begun") },
        Acquisition::Skipped(why) => match *why {
            Skipped::Done { closed_for, by, at, .. } => BegunView {
                by: by.filter(|_| may_read).map(|by| by.to_string()),
                left_ms: closed_for.map(millis),
                done_at_ms: at.map(millis),
                ..nothing("done")
            },
            Skipped::Running { holder } => {
                let by = holder.filter(|_| may_read).map(|by| by.to_string());
                BegunView { by, ..nothing("running") }
            }
            Skipped::Quarantine { left } => {
                BegunView { left_ms: left.map(millis), ..nothing("quarantine") }
            }
            _ => nothing("running"),
        },
    }))
}

/// Begins a task by its name in the query, which no proxy changes
#[utoipa::path(post, path = "/v1/task", operation_id = "begin_named", tag = "once", request_body = OneTask,
    params(NameQuery, ("Idempotency-Key" = Option<String>, Header, description = "The same key is the same run, over retries")),
    responses((status = 200, description = "Begun, or nothing to do", body = BegunView), StoreErrors, KindErrors, HoldErrors, LimitErrors))]
pub(super) async fn begin_named(
    service: State<Arc<Service>>,
    caller: Caller,
    Parameters(NameQuery { name }): Parameters<NameQuery>,
    key: Option<IdempotencyKey>,
    asked: Json<OneTask>,
) -> Result<Answer<BegunView>, ApiError> {
    begin(service, caller, Name(name), key, asked).await
}

/// Opens a task by its name in the query; needs the right admin
#[utoipa::path(post, path = "/v1/task/reset", operation_id = "reset_named", tag = "once", params(NameQuery),
    responses((status = 200, description = "What was found", body = ResetView), StoreErrors, KindErrors))]
pub(super) async fn reset_named(
    service: State<Arc<Service>>,
    caller: Caller,
    Parameters(NameQuery { name }): Parameters<NameQuery>,
) -> Result<Answer<ResetView>, ApiError> {
    reset(service, caller, Name(name)).await
}

/// Opens a task that is closed for its period; needs the right admin
#[utoipa::path(post, path = "/v1/once/{name}/reset", tag = "once",
    params(("name" = String, Path, description = "The name of the task, percent-encoded")),
    responses((status = 200, description = "What was found", body = ResetView), StoreErrors, KindErrors))]
pub(super) async fn reset(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Name(name): Name,
) -> Result<Answer<ResetView>, ApiError> {
    caller.principal.check(Right::Admin, &name)?;
    // A reset does not depend on the period.
    let every = Period::parse("1d", None).map_err(|error| Refusal::of(&error, Some(&name)))?;
    let done = service.locks.once(&name, every).reset().await;
    let done = done.map_err(|error| Refusal::of(&error, Some(&name)))?;
    let (outcome, by) = match done {
        Reset::Opened { .. } => ("opened", None),
        Reset::Running { holder } => ("running", holder.map(|by| by.to_string())),
        _ => ("not_closed", None),
    };
    tracing::info!(target: "latchwork::audit", act = "reset", by = %caller.principal.name, peer = %caller.peer, name, outcome, "admin");
    Ok(Answer(ResetView { outcome, by }))
}
