//! Holds: several locks at once, and the life of what was granted.

use std::sync::Arc;

use axum::Json as Answer;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::body::Json;
use super::error::{ApiError, Errors};
use super::gate::Caller;
use super::locks::{ModeWord, Permits};
use super::parts::{Id, IdempotencyKey};
use crate::domain::holds::release::{Confirmed, How};
use crate::domain::service::Service;
use crate::domain::wish::{Common, LockWish, Wish};

/// A lock that is held, and for how long the client may rely on it.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct HoldView {
    /// The id of the hold, to renew and release it. Keep it to yourself.
    pub(crate) hold: String,
    /// The fencing token for the resource to check, of the first lock; a decimal number as text,
    /// because it exceeds 2^53.
    pub(crate) token: String,
    /// All locks of the hold, each with its token.
    pub(crate) locks: Vec<TokenView>,
    /// `held`; or `suspect` while the store has to confirm it: do not use the resource then.
    pub(crate) state: &'static str,
    /// The ttl: a hold that is not renewed for so long is released by the service.
    pub(crate) ttl_ms: u64,
    /// For how long the client may rely on the hold. It counts from a moment **before the request was
    /// sent**, by the client's own clock.
    pub(crate) valid_for_ms: u64,
    /// When to renew: so long after this answer came.
    pub(crate) renew_in_ms: u64,
    /// The period of a task that runs once in each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) period: Option<PeriodView>,
}

/// A lock of a hold.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct TokenView {
    /// Its name.
    pub(crate) name: String,
    /// Its fencing token.
    pub(crate) token: String,
}

/// A period, in milliseconds since 1970.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct PeriodView {
    /// When it began.
    pub(crate) start_ms: u64,
    /// When it ends.
    pub(crate) end_ms: u64,
}

/// Several locks, all or none.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SeveralLocks {
    /// The locks. No deadlock comes of their order: they are waited for in the order of their keys.
    locks: Vec<OneOfSeveral>,
    /// How long the hold lasts without a renewal, in milliseconds.
    ttl_ms: Option<u64>,
    /// How long to wait, in milliseconds: 0 tries once. At most 20 times the ttl.
    wait_ms: Option<u64>,
    /// The text that others see.
    holder: Option<String>,
    /// The longest time to hold, in milliseconds, however often it is renewed.
    max_hold_ms: Option<u64>,
}

/// One of several locks.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OneOfSeveral {
    /// Its name.
    name: String,
    /// How to lock it.
    #[serde(default)]
    mode: ModeWord,
    /// The permits to take, if the mode is `permits`.
    permits: Option<Permits>,
}

/// What became of a release that the store has confirmed.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ReleasedView {
    /// Always `true`: the lock was held until the release.
    released: bool,
    /// Whether the task is closed for its period: `succeed` has ended it, in this request or in an earlier one.
    closed: bool,
}

impl From<Confirmed> for ReleasedView {
    fn from(confirmed: Confirmed) -> Self {
        Self { released: true, closed: confirmed.is_closed }
    }
}

/// The most locks of one hold.
const MOST_LOCKS: usize = 64;

/// Acquires several locks, all or none
#[utoipa::path(post, path = "/v1/holds", operation_id = "acquire_locks", tag = "holds", request_body = SeveralLocks,
    params(("Idempotency-Key" = Option<String>, Header, description = "The same key is the same claim, over retries")),
    responses((status = 200, description = "Granted", body = HoldView), Errors))]
pub(super) async fn acquire(
    State(service): State<Arc<Service>>,
    caller: Caller,
    key: Option<IdempotencyKey>,
    Json(asked): Json<SeveralLocks>,
) -> Result<Answer<HoldView>, ApiError> {
    if asked.locks.is_empty() || asked.locks.len() > MOST_LOCKS {
        let message =
            format!("locks: {} were named, 1 to {MOST_LOCKS} are possible", asked.locks.len());
        return Err(ApiError::invalid(message, "name at least one lock, and not too many"));
    }
    let locks: Result<Vec<_>, _> = asked
        .locks
        .into_iter()
        .map(|lock| LockWish::new(lock.name, lock.mode, lock.permits, false))
        .collect();
    let common = Common {
        ttl_ms: asked.ttl_ms,
        wait_ms: asked.wait_ms,
        holder: asked.holder,
        max_hold_ms: asked.max_hold_ms,
    };
    let wish = Wish::locks(locks?, common, &service)?;
    service.acquire(wish, &caller, key).await?.into_hold().map(Answer)
}

/// Renews a hold
///
/// A renewal gives the whole ttl again, counted from its arrival. While the store does not answer it
/// gives what remains.
#[utoipa::path(post, path = "/v1/holds/{hold}/renew", tag = "holds",
    params(("hold" = String, Path, description = "The id of the hold")),
    responses((status = 200, description = "Renewed", body = HoldView), Errors))]
pub(super) async fn renew(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Id(id): Id,
) -> Result<Answer<HoldView>, ApiError> {
    service.look(id, &caller, true).map(Answer)
}

/// Shows a hold of this client, and renews nothing
#[utoipa::path(get, path = "/v1/holds/{hold}", operation_id = "show_hold", tag = "holds",
    params(("hold" = String, Path, description = "The id of the hold")),
    responses((status = 200, description = "Held", body = HoldView), Errors))]
pub(super) async fn show(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Id(id): Id,
) -> Result<Answer<HoldView>, ApiError> {
    service.look(id, &caller, false).map(Answer)
}

/// Releases a hold; a leader resigns by it, and a task is open for others again
///
/// A repeat tells what the first request did, and waits for it while it is under way. `410` with the kind `Lost` tells
/// that the lock was lost before: the work may have overlapped with that of another holder. With `503` the store has
/// not answered yet: the service asks it until the lease is over, and a repeat tells what it says. `410` with
/// `Unconfirmed` tells that the store never answered, or that its answer was lost.
#[utoipa::path(delete, path = "/v1/holds/{hold}", tag = "holds",
    params(("hold" = String, Path, description = "The id of the hold")),
    responses((status = 200, description = "The lock was held until it was released", body = ReleasedView), Errors))]
pub(super) async fn release(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Id(id): Id,
) -> Result<Answer<ReleasedView>, ApiError> {
    let confirmed = service.give_up(id, &caller, How::Release).await?;
    Ok(Answer(confirmed.into()))
}

/// Ends a task with success: it is closed until the end of the period in which it began
///
/// A repeat tells what the first request did, as that of a release does. After a `DELETE` it is `410`: the task is not
/// closed. `410` with `Unconfirmed` tells that the store has not confirmed it: the task may run again.
#[utoipa::path(post, path = "/v1/holds/{hold}/succeed", tag = "once",
    params(("hold" = String, Path, description = "The id of the hold")),
    responses((status = 200, description = "Done, and closed for this period", body = ReleasedView), Errors))]
pub(super) async fn succeed(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Id(id): Id,
) -> Result<Answer<ReleasedView>, ApiError> {
    let confirmed = service.give_up(id, &caller, How::Succeed).await?;
    Ok(Answer(confirmed.into()))
}
