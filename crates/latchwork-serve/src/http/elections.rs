//! Elections: one of many candidates leads.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Json as Answer;
use axum::extract::State;
use axum::response::sse::{Event, Sse};
use futures_util::{Stream, StreamExt};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::body::{Json, marked, maybe_whole, options};
use super::error::{ApiError, HoldErrors, KindErrors, LimitErrors, StoreErrors};
use super::events::{KEEP_ALIVE, until_over};
use super::parts::{IdempotencyKey, Name, NameQuery, Parameters, claim_name};
use super::views::HoldView;
use crate::domain::access::caller::Caller;
use crate::domain::access::principal::Right;
use crate::domain::refusal::Refusal;
use crate::domain::service::Service;
use crate::domain::wish::Target;

/// A candidacy.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Candidacy {
    /// What observers see of the leader, usually its address.
    candidate: Option<String>,
    /// How long the leadership lasts without a renewal, in milliseconds.
    #[serde(default, deserialize_with = "maybe_whole")]
    ttl_ms: Option<u64>,
    /// How long to campaign, in milliseconds: 0, or nothing, tries once. At most 20 times the ttl.
    #[serde(default, deserialize_with = "maybe_whole")]
    wait_ms: Option<u64>,
    /// The text that others see.
    holder: Option<String>,
    /// The longest term, in milliseconds.
    #[serde(default, deserialize_with = "maybe_whole")]
    max_hold_ms: Option<u64>,
    /// The id of the session that keeps the hold, whose ttl it has.
    session: Option<String>,
    /// Any JSON that readers of the lock see, at most 1,024 bytes without spaces.
    #[schema(value_type = Option<serde_json::Value>)]
    value: Option<Box<RawValue>>,
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
    responses((status = 200, description = "Elected", body = HoldView), StoreErrors, KindErrors, HoldErrors, LimitErrors))]
pub(super) async fn campaign(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Name(name): Name,
    key: Option<IdempotencyKey>,
    Json(asked): Json<Candidacy>,
) -> Result<Answer<HoldView>, ApiError> {
    let options = options(asked.ttl_ms, asked.wait_ms, asked.holder, asked.max_hold_ms);
    let options = marked(options, asked.session, asked.value)?;
    let target = Target::Leadership { name, candidate: asked.candidate };
    let wish = service.wish(target, options, &caller)?;
    let hold = service.acquire(wish, &caller, claim_name(key)).await?.into_hold()?;
    Ok(Answer(hold.into()))
}

/// Tells who leads
#[utoipa::path(get, path = "/v1/elections/{name}", tag = "elections",
    params(("name" = String, Path, description = "The name of the election, percent-encoded")),
    responses((status = 200, description = "The leader, if there is one", body = LeaderView), StoreErrors, KindErrors))]
pub(super) async fn leader(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Name(name): Name,
) -> Result<Answer<LeaderView>, ApiError> {
    caller.principal.check(Right::Read, &name)?;
    let leader = service.locks.election(&name).leader().await;
    let leader = leader.map_err(|error| Refusal::of(&error, Some(&name)))?;
    Ok(Answer(leader.into()))
}

/// Streams the leader and every change, as server-sent events `leader` and `error`
#[utoipa::path(get, path = "/v1/elections/{name}/events", operation_id = "follow_leader", tag = "elections",
    params(("name" = String, Path, description = "The name of the election, percent-encoded")),
    responses((status = 200, description = "A stream without an end", body = String, content_type = "text/event-stream"), LimitErrors))]
pub(super) async fn follow(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Name(name): Name,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, ApiError> {
    caller.principal.check(Right::Read, &name)?;
    service.names.key(&name).map_err(|error| Refusal::of(&error, Some(&name)))?;
    let place = service.streams.enter(&caller.principal.name)?;
    let changes = service.locks.election(&name).observe().map(move |change| {
        let _place = &place;
        let (kind, text) = match change {
            Ok(leader) => ("leader", serde_json::to_string(&LeaderView::from(leader))),
            Err(error) => {
                let error = serde_json::json!({ "error": error.message(), "key": name });
                ("error", serde_json::to_string(&error))
            }
        };
        Ok(Event::default().event(kind).data(text.unwrap_or_default()))
    });
    Ok(Sse::new(until_over(changes, &service, &caller)).keep_alive(KEEP_ALIVE()))
}

/// Campaigns by the name in the query, which no proxy changes
#[utoipa::path(post, path = "/v1/election/campaign", operation_id = "campaign_named", tag = "elections",
    request_body = Candidacy, params(NameQuery,
        ("Idempotency-Key" = Option<String>, Header, description = "The same key is the same candidacy, over retries")),
    responses((status = 200, description = "Elected", body = HoldView), StoreErrors, KindErrors, HoldErrors, LimitErrors))]
pub(super) async fn campaign_named(
    service: State<Arc<Service>>,
    caller: Caller,
    Parameters(NameQuery { name }): Parameters<NameQuery>,
    key: Option<IdempotencyKey>,
    asked: Json<Candidacy>,
) -> Result<Answer<HoldView>, ApiError> {
    campaign(service, caller, Name(name), key, asked).await
}

/// Tells who leads, by the name in the query
#[utoipa::path(get, path = "/v1/election", operation_id = "named_leader", tag = "elections", params(NameQuery),
    responses((status = 200, description = "The leader, if there is one", body = LeaderView), StoreErrors, KindErrors))]
pub(super) async fn leader_named(
    service: State<Arc<Service>>,
    caller: Caller,
    Parameters(NameQuery { name }): Parameters<NameQuery>,
) -> Result<Answer<LeaderView>, ApiError> {
    leader(service, caller, Name(name)).await
}

/// Streams the leader and every change, by the name in the query
#[utoipa::path(get, path = "/v1/election/events", operation_id = "follow_named_leader", tag = "elections", params(NameQuery),
    responses((status = 200, description = "A stream without an end", body = String, content_type = "text/event-stream"), LimitErrors))]
pub(super) async fn follow_named(
    service: State<Arc<Service>>,
    caller: Caller,
    Parameters(NameQuery { name }): Parameters<NameQuery>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, ApiError> {
    follow(service, caller, Name(name)).await
}
