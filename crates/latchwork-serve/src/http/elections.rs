//! Elections: one of many candidates leads.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Json as Answer;
use axum::extract::State;
use axum::response::sse::{Event, Sse};
use futures_util::{Stream, StreamExt};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::body::Json;
use super::error::{ApiError, Errors};
use super::events::{KEEP_ALIVE, until_over};
use super::gate::Caller;
use super::holds::HoldView;
use super::parts::{Asked, IdempotencyKey, Name, Named};
use crate::domain::access::principal::Right;
use crate::domain::service::Service;
use crate::domain::wish::{Common, What, Wish};

/// A candidacy.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Candidacy {
    /// What observers see of the leader, usually its address.
    candidate: Option<String>,
    /// How long the leadership lasts without a renewal, in milliseconds.
    ttl_ms: Option<u64>,
    /// How long to campaign, in milliseconds: 0, or nothing, tries once. At most 20 times the ttl.
    wait_ms: Option<u64>,
    /// The text that others see.
    holder: Option<String>,
    /// The longest term, in milliseconds.
    max_hold_ms: Option<u64>,
}

/// Who leads.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LeaderView {
    /// What the leader calls itself; `null` if nobody leads.
    candidate: Option<String>,
    /// The number of its term, a decimal number as text: larger than that of every leader before.
    term: Option<String>,
}

impl From<Option<latchwork::Leader>> for LeaderView {
    fn from(leader: Option<latchwork::Leader>) -> Self {
        match leader {
            Some(leader) => Self {
                candidate: Some(leader.candidate.to_string()),
                term: Some(leader.term.to_string()),
            },
            None => Self { candidate: None, term: None },
        }
    }
}

/// Campaigns; the hold is the leadership, its token the term, and its release the resignation
#[utoipa::path(post, path = "/v1/elections/{name}/campaign", tag = "elections", request_body = Candidacy,
    params(("name" = String, Path, description = "The name of the election, percent-encoded"),
           ("Idempotency-Key" = Option<String>, Header, description = "The same key is the same candidacy, over retries")),
    responses((status = 200, description = "Elected", body = HoldView), Errors))]
pub(super) async fn campaign(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Name(name): Name,
    key: Option<IdempotencyKey>,
    Json(asked): Json<Candidacy>,
) -> Result<Answer<HoldView>, ApiError> {
    let common = Common {
        ttl_ms: asked.ttl_ms,
        wait_ms: asked.wait_ms,
        holder: asked.holder,
        max_hold_ms: asked.max_hold_ms,
    };
    let what = What::Leadership { name, candidate: asked.candidate };
    let wish = Wish::new(what, common, &service)?;
    service.acquire(wish, &caller, key).await?.into_hold().map(Answer)
}

/// Tells who leads
#[utoipa::path(get, path = "/v1/elections/{name}", tag = "elections",
    params(("name" = String, Path, description = "The name of the election, percent-encoded")),
    responses((status = 200, description = "The leader, if there is one", body = LeaderView), Errors))]
pub(super) async fn leader(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Name(name): Name,
) -> Result<Answer<LeaderView>, ApiError> {
    caller.principal.check(Right::Read, &name)?;
    let leader = service.locks.election(&name).leader().await;
    let leader = leader.map_err(|error| ApiError::of(&error, Some(&name)))?;
    Ok(Answer(leader.into()))
}

/// Streams the leader and every change, as server-sent events `leader` and `error`
#[utoipa::path(get, path = "/v1/elections/{name}/events", operation_id = "follow_leader", tag = "elections",
    params(("name" = String, Path, description = "The name of the election, percent-encoded")),
    responses((status = 200, description = "A stream without an end", body = String, content_type = "text/event-stream"), Errors))]
pub(super) async fn follow(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Name(name): Name,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, ApiError> {
    caller.principal.check(Right::Read, &name)?;
    service.key(&name).map_err(|error| ApiError::of(&error, Some(&name)))?;
    let place = service.listeners.enter(&caller.principal.name)?;
    let changes = service.locks.election(&name).observe().map(move |change| {
        let _place = &place;
        let (kind, text) = match change {
            Ok(leader) => ("leader", serde_json::to_string(&LeaderView::from(leader))),
            Err(error) => {
                let told = serde_json::json!({ "error": error.message(), "key": name });
                ("error", serde_json::to_string(&told))
            }
        };
        Ok(Event::default().event(kind).data(text.unwrap_or_default()))
    });
    Ok(Sse::new(until_over(changes, &service, &caller)).keep_alive(KEEP_ALIVE()))
}

/// Campaigns by the name in the query, which no proxy changes
#[utoipa::path(post, path = "/v1/election/campaign", operation_id = "campaign_named", tag = "elections",
    request_body = Candidacy, params(Named,
        ("Idempotency-Key" = Option<String>, Header, description = "The same key is the same candidacy, over retries")),
    responses((status = 200, description = "Elected", body = HoldView), Errors))]
pub(super) async fn campaign_named(
    service: State<Arc<Service>>,
    caller: Caller,
    Asked(Named { name }): Asked<Named>,
    key: Option<IdempotencyKey>,
    asked: Json<Candidacy>,
) -> Result<Answer<HoldView>, ApiError> {
    campaign(service, caller, Name(name), key, asked).await
}

/// Tells who leads, by the name in the query
#[utoipa::path(get, path = "/v1/election", operation_id = "named_leader", tag = "elections", params(Named),
    responses((status = 200, description = "The leader, if there is one", body = LeaderView), Errors))]
pub(super) async fn leader_named(
    service: State<Arc<Service>>,
    caller: Caller,
    Asked(Named { name }): Asked<Named>,
) -> Result<Answer<LeaderView>, ApiError> {
    leader(service, caller, Name(name)).await
}

/// Streams the leader and every change, by the name in the query
#[utoipa::path(get, path = "/v1/election/events", operation_id = "follow_named_leader", tag = "elections", params(Named),
    responses((status = 200, description = "A stream without an end", body = String, content_type = "text/event-stream"), Errors))]
pub(super) async fn follow_named(
    service: State<Arc<Service>>,
    caller: Caller,
    Asked(Named { name }): Asked<Named>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, ApiError> {
    follow(service, caller, Name(name)).await
}
