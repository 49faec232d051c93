//! Acquires locks, and shows their holders and waiters.

use std::sync::Arc;

use axum::Json as Answer;
use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::body::Json;
use super::counted::Counted;
use super::error::{ApiError, Errors};
use super::gate::Caller;
use super::holds::HoldView;
use super::parts::{Asked, IdempotencyKey, Name, Named};
use super::views::LockView;
use crate::domain::access::principal::Right;
use crate::domain::service::Service;
use crate::domain::wish::{Common, LockWish, Wish};

/// How to lock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ModeWord {
    /// One holder at a time.
    #[default]
    Mutex,
    /// One of many readers.
    Read,
    /// Excludes readers and writers.
    Write,
    /// Some permits of a limited number.
    Permits,
}

/// The permits of a semaphore.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Permits {
    /// How many to take.
    pub(crate) take: u32,
    /// How many there are; all users of the key must use the same limit.
    pub(crate) of: u32,
}

/// A lock to take.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct OneLock {
    /// How to lock: `mutex` if it is left out.
    mode: ModeWord,
    /// The permits to take, if the mode is `permits`.
    permits: Option<Permits>,
    /// How long the hold lasts without a renewal, in milliseconds.
    ttl_ms: Option<u64>,
    /// How long to wait, in milliseconds: 0, or nothing, tries once. At most 20 times the ttl.
    wait_ms: Option<u64>,
    /// The text that others see.
    holder: Option<String>,
    /// First come, first served, also among the clients of this service.
    fair: bool,
    /// The longest time to hold, in milliseconds, however often it is renewed.
    max_hold_ms: Option<u64>,
}

/// Which locks to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Which {
    /// Only names that begin with this text.
    #[serde(default)]
    #[param(required = false)]
    prefix: String,
    /// Only names after this one: the `next` of an answer before.
    after: Option<String>,
    /// How many at the most: 1 to 10,000; 1,000 if it is left out. An answer ends earlier if it gets long.
    #[param(minimum = 1, maximum = 10000)]
    limit: Option<u32>,
}

/// About how many bytes of locks one answer has at the most; a single lock may be larger.
const LONGEST: usize = 1024 * 1024;

/// Locks, sorted by their names.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LockList<'a> {
    /// The locks that are held, waited for or closed.
    #[schema(value_type = Vec<LockView>)]
    locks: Vec<&'a LockView>,
    /// The name to ask on with (`after`), if there are more.
    next: Option<String>,
    /// The number of the last event before the list was made: follow the events from here
    /// (`Last-Event-ID`).
    last_event: u64,
}

/// Acquires a lock
///
/// `409` with the kind `TimedOut` says that it was not free in time, and lists its holders and waiters.
/// Cutting the connection of a waiting request withdraws it.
#[utoipa::path(post, path = "/v1/locks/{name}", operation_id = "acquire_lock", tag = "locks", request_body = OneLock,
    params(("name" = String, Path, description = "The name, percent-encoded"),
           ("Idempotency-Key" = Option<String>, Header, description = "The same key is the same claim, over retries")),
    responses((status = 200, description = "Granted", body = HoldView), Errors))]
pub(super) async fn acquire(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Name(name): Name,
    key: Option<IdempotencyKey>,
    Json(asked): Json<OneLock>,
) -> Result<Answer<HoldView>, ApiError> {
    let lock = LockWish::new(name, asked.mode, asked.permits, asked.fair)?;
    let common = Common {
        ttl_ms: asked.ttl_ms,
        wait_ms: asked.wait_ms,
        holder: asked.holder,
        max_hold_ms: asked.max_hold_ms,
    };
    let wish = Wish::locks(vec![lock], common, &service)?;
    service.acquire(wish, &caller, key).await?.into_hold().map(Answer)
}

/// Acquires a lock by its name in the query, which no proxy changes
#[utoipa::path(post, path = "/v1/lock", operation_id = "acquire_named_lock", tag = "locks", request_body = OneLock,
    params(Named, ("Idempotency-Key" = Option<String>, Header, description = "The same key is the same claim, over retries")),
    responses((status = 200, description = "Granted", body = HoldView), Errors))]
pub(super) async fn acquire_named(
    service: State<Arc<Service>>,
    caller: Caller,
    Asked(Named { name }): Asked<Named>,
    key: Option<IdempotencyKey>,
    asked: Json<OneLock>,
) -> Result<Answer<HoldView>, ApiError> {
    acquire(service, caller, Name(name), key, asked).await
}

/// Lists locks with their holders and waiters
///
/// The parts of a list are of the same time if they are read within 10 s.
#[utoipa::path(get, path = "/v1/locks", operation_id = "list_locks", tag = "locks", params(Which),
    responses((status = 200, description = "The locks", body = LockList), Errors))]
pub(super) async fn list(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Asked(which): Asked<Which>,
) -> Result<Response, ApiError> {
    caller.principal.check_right(Right::Read)?;
    let limit = which.limit.unwrap_or(1_000);
    if !(1..=10_000).contains(&limit) {
        return Err(ApiError::invalid("limit: it must be 1 to 10000", "leave it out for 1000"));
    }
    let place = service.lists.enter(&caller.principal.name)?;
    let listing = match &which.after {
        None => service.list(&which.prefix, caller.arrival).await?,
        Some(_) => service.listings.kept(&service, &which.prefix).await?,
    };
    let after = which.after.as_deref();
    let from = listing.locks.partition_point(|lock| after.is_some_and(|it| *lock.name <= *it));
    let mut seen = listing.locks[from..]
        .iter()
        .filter(|lock| caller.principal.may(Right::Read, &lock.name))
        .peekable();
    let (mut locks, mut length) = (Vec::new(), 0);
    while locks.len() < limit as usize && length < LONGEST {
        let Some(lock) = seen.next() else { break };
        length += lock.length();
        locks.push(lock);
    }
    let next = locks.last().filter(|_| seen.peek().is_some()).map(|lock| lock.name.clone());
    let list = LockList { locks, next, last_event: listing.last_event };
    Ok(Counted::json(&list, place))
}

/// Shows a lock: its holders, and the waiters in their order
#[utoipa::path(get, path = "/v1/locks/{name}", operation_id = "show_lock", tag = "locks",
    params(("name" = String, Path, description = "The name, percent-encoded")),
    responses((status = 200, description = "The lock, also if it is free", body = LockView), Errors))]
pub(super) async fn show(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Name(name): Name,
) -> Result<Answer<LockView>, ApiError> {
    caller.principal.check(Right::Read, &name)?;
    service.show(&name).await.map(Answer)
}

/// Shows a lock by its name in the query: any name, also one that no path can have
#[utoipa::path(get, path = "/v1/lock", tag = "locks", operation_id = "show_named_lock", params(Named),
    responses((status = 200, description = "The lock, also if it is free", body = LockView), Errors))]
pub(super) async fn show_named(
    service: State<Arc<Service>>,
    caller: Caller,
    Asked(Named { name }): Asked<Named>,
) -> Result<Answer<LockView>, ApiError> {
    show(service, caller, Name(name)).await
}
