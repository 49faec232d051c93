//! Acquires locks, and shows their holders and waiters.

use std::sync::Arc;
use std::time::Duration;

use axum::Json as Answer;
use axum::extract::State;
use axum::response::Response;
use latchwork::Resize;
use latchwork_store::Mode;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

use super::body::{Json, marked, maybe_whole, options, whole};
use super::counted::CountedBody;
use super::error::{ApiError, HoldErrors, KindErrors, LimitErrors, StoreErrors};
use super::parts::{IdempotencyKey, Name, NameQuery, Parameters, claim_name};
use super::views::{HoldView, LockView, length_of_lock};
use crate::domain::access::caller::Caller;
use crate::domain::access::principal::Right;
use crate::domain::lock_status::Version;
use crate::domain::refusal::Refusal;
use crate::domain::service::Service;
use crate::domain::wish::{LockWish, Target};

/// How to lock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ModeWord {
    /// One holder at a time; `mutex` is an older word for it.
    #[default]
    #[serde(alias = "mutex")]
    Exclusive,
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
    #[schema(format = Int64, minimum = 1, maximum = 4294967295_u32)]
    #[serde(deserialize_with = "whole")]
    pub(crate) take: u32,
    /// How many there are.
    #[schema(format = Int64, minimum = 1, maximum = 4294967295_u32)]
    #[serde(deserialize_with = "whole")]
    pub(crate) of: u32,
}

/// What happens if the semaphore is in use with another limit.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ResizeWord {
    /// A mismatch.
    Never,
    /// The limit of this request counts, and becomes that of the key.
    ToMine,
    /// The limit of the key counts.
    Follow,
}

impl From<ResizeWord> for Resize {
    fn from(word: ResizeWord) -> Self {
        match word {
            ResizeWord::Never => Self::Never,
            ResizeWord::ToMine => Self::ToMine,
            ResizeWord::Follow => Self::Follow,
        }
    }
}

/// A lock to take.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct OneLock {
    /// How to lock: `exclusive` if it is left out.
    mode: ModeWord,
    /// The permits to take, if the mode is `permits`.
    permits: Option<Permits>,
    /// What happens if the semaphore is in use with another limit: `never`, a mismatch, if it is left out.
    resize: Option<ResizeWord>,
    /// How long the hold lasts without a renewal, in milliseconds.
    #[serde(default, deserialize_with = "maybe_whole")]
    ttl_ms: Option<u64>,
    /// How long to wait, in milliseconds: 0, or nothing, tries once. At most 20 times the ttl.
    #[serde(default, deserialize_with = "maybe_whole")]
    wait_ms: Option<u64>,
    /// The text that others see.
    holder: Option<String>,
    /// First come, first served, also among the clients of this service.
    fair: bool,
    /// The longest time to hold, in milliseconds, however often it is renewed.
    #[serde(default, deserialize_with = "maybe_whole")]
    max_hold_ms: Option<u64>,
    /// The id of the session that keeps the hold, whose ttl it has.
    session: Option<String>,
    /// Any JSON that readers of the lock see, at most 1,024 bytes without spaces.
    #[schema(value_type = Option<serde_json::Value>)]
    value: Option<Box<RawValue>>,
}

/// Which locks to list.
#[derive(Debug, Deserialize, IntoParams, ToSchema)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListQuery {
    /// Only names that begin with this text.
    #[serde(default)]
    #[param(required = false)]
    prefix: String,
    /// Only names after this one: the `next` of an answer before.
    after: Option<String>,
    /// How many at the most: 1 to 10,000; 1,000 if it is left out. An answer ends earlier if it gets long.
    #[param(minimum = 1, maximum = 10000)]
    #[schema(minimum = 1, maximum = 10000)]
    #[serde(default, deserialize_with = "maybe_whole")]
    limit: Option<u32>,
}

/// About how many bytes of locks one answer has at the most; a single lock may be larger.
const LONGEST: usize = 1024 * 1024;

/// Locks, sorted by their names.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LockList {
    /// The locks that are held, waited for or closed.
    locks: Vec<LockView>,
    /// The name to ask on with (`after`), if there are more.
    next: Option<String>,
    /// The number of the last event before the list was made: follow the events from here
    /// (`Last-Event-ID`).
    last_event: u64,
}

/// The wish for one lock: the permits must be there if, and only if, the mode needs them.
///
/// # Errors
///
/// `Invalid`, which names the field.
pub(super) fn wish_of(
    name: String,
    mode: ModeWord,
    permits: Option<Permits>,
    resize: Option<ResizeWord>,
    is_fair: bool,
) -> Result<LockWish, Refusal> {
    if resize.is_some() && permits.is_none() {
        let message = "resize: only the mode permits has it";
        return Err(Refusal::invalid(message, "leave it out").key(name));
    }
    let mode = match (mode, permits) {
        (ModeWord::Exclusive, None) => Mode::Exclusive,
        (ModeWord::Read, None) => Mode::Read,
        (ModeWord::Write, None) => Mode::Write,
        (ModeWord::Permits, Some(Permits { take, of })) => Mode::Permits { take, of },
        (ModeWord::Permits, None) => {
            let message = "permits: the mode permits needs them";
            let step = "write \"permits\": {\"take\": 1, \"of\": 5}";
            return Err(Refusal::invalid(message, step).key(name));
        }
        (ModeWord::Exclusive | ModeWord::Read | ModeWord::Write, Some(_)) => {
            let message = "permits: only the mode permits has them";
            return Err(Refusal::invalid(message, "leave them out").key(name));
        }
    };
    let resize = resize.map(Into::into).unwrap_or_default();
    Ok(LockWish { name, mode, resize, is_fair })
}

/// Acquires a lock
///
/// `409` with the kind `TimedOut` says that it was not free in time, and lists its holders and waiters.
/// Cutting the connection of a waiting request withdraws it.
#[utoipa::path(post, path = "/v1/locks/{name}", operation_id = "acquire_lock", tag = "locks", request_body = OneLock,
    params(("name" = String, Path, description = "The name, percent-encoded"),
           ("Idempotency-Key" = Option<String>, Header, description = "The same key is the same claim, over retries")),
    responses((status = 200, description = "Granted", body = HoldView), StoreErrors, KindErrors, HoldErrors, LimitErrors))]
pub(super) async fn acquire(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Name(name): Name,
    key: Option<IdempotencyKey>,
    Json(asked): Json<OneLock>,
) -> Result<Answer<HoldView>, ApiError> {
    let lock = wish_of(name, asked.mode, asked.permits, asked.resize, asked.fair)?;
    let options = options(asked.ttl_ms, asked.wait_ms, asked.holder, asked.max_hold_ms);
    let options = marked(options, asked.session, asked.value)?;
    let wish = service.wish(Target::Locks(vec![lock]), options, &caller)?;
    let hold = service.acquire(wish, &caller, claim_name(key)).await?.into_hold()?;
    Ok(Answer(hold.into()))
}

/// Acquires a lock by its name in the query, which no proxy changes
#[utoipa::path(post, path = "/v1/lock", operation_id = "acquire_named_lock", tag = "locks", request_body = OneLock,
    params(NameQuery, ("Idempotency-Key" = Option<String>, Header, description = "The same key is the same claim, over retries")),
    responses((status = 200, description = "Granted", body = HoldView), StoreErrors, KindErrors, HoldErrors, LimitErrors))]
pub(super) async fn acquire_named(
    service: State<Arc<Service>>,
    caller: Caller,
    Parameters(NameQuery { name }): Parameters<NameQuery>,
    key: Option<IdempotencyKey>,
    asked: Json<OneLock>,
) -> Result<Answer<HoldView>, ApiError> {
    acquire(service, caller, Name(name), key, asked).await
}

/// Lists locks with their holders and waiters
///
/// The parts of a list are of the same time if they are read within 10 s.
#[utoipa::path(get, path = "/v1/locks", operation_id = "list_locks", tag = "locks", params(ListQuery),
    responses((status = 200, description = "The locks", body = LockList), StoreErrors, LimitErrors))]
pub(super) async fn list(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Parameters(query): Parameters<ListQuery>,
) -> Result<Response, ApiError> {
    caller.principal.check_right(Right::Read)?;
    let limit = query.limit.unwrap_or(1_000);
    if !(1..=10_000).contains(&limit) {
        let message = "limit: it must be 1 to 10000";
        return Err(Refusal::invalid(message, "leave it out for 1000").into());
    }
    let place = service.lists.enter(&caller.principal.name)?;
    let list = match &query.after {
        None => service.lock_lists.fresh(&query.prefix, caller.arrival).await?,
        Some(_) => service.lock_lists.kept(&query.prefix).await?,
    };
    let after = query.after.as_deref();
    let from = list.locks.partition_point(|lock| after.is_some_and(|it| *lock.name <= *it));
    let mut visible = list.locks[from..]
        .iter()
        .filter(|lock| caller.principal.may(Right::Read, &lock.name))
        .peekable();
    let (mut locks, mut length) = (Vec::new(), 0);
    while locks.len() < limit as usize && length < LONGEST {
        let Some(lock) = visible.next() else { break };
        length += length_of_lock(lock);
        locks.push(LockView::from(lock));
    }
    let next = locks.last().filter(|_| visible.peek().is_some()).map(LockView::name);
    let list = LockList { next: next.map(str::to_owned), locks, last_event: list.last_event };
    Ok(CountedBody::json(&list, place))
}

/// Lists locks as `GET /v1/locks` does, with the parameters in the body, where a long name fits
#[utoipa::path(post, path = "/v1/lock/list", operation_id = "list_long_locks", tag = "locks", request_body = ListQuery,
    responses((status = 200, description = "The locks", body = LockList), StoreErrors, LimitErrors))]
pub(super) async fn list_by_body(
    service: State<Arc<Service>>,
    caller: Caller,
    Json(query): Json<ListQuery>,
) -> Result<Response, ApiError> {
    list(service, caller, Parameters(query)).await
}

/// What a reader of a lock has seen, and how long it waits for something else.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct ReadQuery {
    /// The `version` of the lock in an answer before.
    after: Option<String>,
    /// How long to wait for another version, in milliseconds: 0, or nothing, does not wait. At most 300,000.
    #[param(maximum = 300000)]
    wait_ms: Option<u64>,
}

/// Shows a lock: its holders, and the waiters in their order
///
/// With `after` and `wait_ms` the answer comes when the lock has another version, or the wait is over: then it has the
/// version of before. A change by this instance is seen at once, others within a second.
#[utoipa::path(get, path = "/v1/locks/{name}", operation_id = "show_lock", tag = "locks",
    params(("name" = String, Path, description = "The name, percent-encoded"), ReadQuery),
    responses((status = 200, description = "The lock, also if it is free", body = LockView), StoreErrors))]
pub(super) async fn show(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Name(name): Name,
    Parameters(query): Parameters<ReadQuery>,
) -> Result<Answer<LockView>, ApiError> {
    caller.principal.check(Right::Read, &name)?;
    let after = query.after.as_deref().map(|text| {
        let message = "after: it is no version of a lock";
        Version::read(text)
            .ok_or_else(|| Refusal::invalid(message, "send the version of an answer before"))
    });
    let (after, wait) = (after.transpose()?, Duration::from_millis(query.wait_ms.unwrap_or(0)));
    let lock = match after {
        Some(after) => service.read_after(&name, &caller, after, wait).await?,
        None if wait.is_zero() => service.lock_lists.one(&name).await?,
        None => {
            let message = "after: a read that waits needs the version that was seen";
            return Err(Refusal::invalid(message, "read once without wait_ms first").into());
        }
    };
    Ok(Answer(LockView::from(&lock)))
}

/// The name of a lock, and what its reader has seen.
#[derive(Debug, Deserialize, IntoParams, ToSchema)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct NamedRead {
    /// The name.
    name: String,
    /// The `version` of the lock in an answer before.
    after: Option<String>,
    /// How long to wait for another version, in milliseconds: 0, or nothing, does not wait. At most 300,000.
    #[param(maximum = 300000)]
    #[schema(maximum = 300000)]
    #[serde(default, deserialize_with = "maybe_whole")]
    wait_ms: Option<u64>,
}

/// Shows a lock by its name in the query: any name, also one that no path can have
#[utoipa::path(get, path = "/v1/lock", tag = "locks", operation_id = "show_named_lock", params(NamedRead),
    responses((status = 200, description = "The lock, also if it is free", body = LockView), StoreErrors))]
pub(super) async fn show_named(
    service: State<Arc<Service>>,
    caller: Caller,
    Parameters(NamedRead { name, after, wait_ms }): Parameters<NamedRead>,
) -> Result<Answer<LockView>, ApiError> {
    show(service, caller, Name(name), Parameters(ReadQuery { after, wait_ms })).await
}

/// Shows a lock by its name in the body, where a long one fits
#[utoipa::path(post, path = "/v1/lock/show", tag = "locks", operation_id = "show_long_lock", request_body = NamedRead,
    responses((status = 200, description = "The lock, also if it is free", body = LockView), StoreErrors))]
pub(super) async fn show_by_body(
    service: State<Arc<Service>>,
    caller: Caller,
    Json(read): Json<NamedRead>,
) -> Result<Answer<LockView>, ApiError> {
    show_named(service, caller, Parameters(read)).await
}
