//! Holds: acquires several locks at once; renews, shows and releases holds.

use std::sync::Arc;
use std::time::Duration;

use axum::Json as Answer;
use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

use super::body::{Json, marked, maybe_whole, options};
use super::counted::CountedBody;
use super::error::{ApiError, HoldErrors, KindErrors, LimitErrors, StoreErrors};
use super::locks::{ModeWord, Permits, ResizeWord, wish_of};
use super::parts::{Id, IdempotencyKey, Parameters, claim_name};
use super::views::{HoldView, OwnHoldList};
use crate::domain::access::caller::Caller;
use crate::domain::holds::change::Change;
use crate::domain::holds::release::{Confirmation, ReleaseKind};
use crate::domain::refusal::Refusal;
use crate::domain::service::Service;
use crate::domain::wish::Target;

/// Several locks, all or none.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SeveralLocks {
    /// The locks. No deadlock comes of their order: they are waited for in the order of their keys.
    locks: Vec<OneOfSeveral>,
    /// How long the hold lasts without a renewal, in milliseconds.
    #[serde(default, deserialize_with = "maybe_whole")]
    ttl_ms: Option<u64>,
    /// How long to wait, in milliseconds: 0 tries once. At most 20 times the ttl.
    #[serde(default, deserialize_with = "maybe_whole")]
    wait_ms: Option<u64>,
    /// The text that others see.
    holder: Option<String>,
    /// The longest time to hold, in milliseconds, however often it is renewed.
    #[serde(default, deserialize_with = "maybe_whole")]
    max_hold_ms: Option<u64>,
    /// The id of the session that keeps the hold, whose ttl it has.
    session: Option<String>,
    /// Any JSON that readers of the lock see, at most 1,024 bytes without spaces.
    #[schema(value_type = Option<serde_json::Value>)]
    value: Option<Box<RawValue>>,
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
    /// What happens if the semaphore is in use with another limit: `never`, a mismatch, if it is left out.
    resize: Option<ResizeWord>,
}

/// How to upgrade.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct UpgradeWish {
    /// How long to wait for the other readers, in milliseconds: 0, or nothing, tries once. At most 20 times the ttl.
    #[serde(default, deserialize_with = "maybe_whole")]
    wait_ms: Option<u64>,
}

/// What became of a release that the store has confirmed.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ReleasedView {
    /// Always `true`: the lock was held until the release.
    released: bool,
    /// Whether the task is closed for its period: `succeed` has ended it, in this request or in an earlier one.
    closed: bool,
}

impl From<Confirmation> for ReleasedView {
    fn from(confirmation: Confirmation) -> Self {
        Self { released: true, closed: confirmation.is_closed }
    }
}

/// Which of one's own holds to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct OwnHoldsQuery {
    /// Only names that begin with this text.
    #[serde(default)]
    #[param(required = false)]
    prefix: String,
    /// Only names after this one: the `next` of an answer before.
    after: Option<String>,
    /// How many at the most: 1 to 10,000; 1,000 if it is left out.
    #[param(minimum = 1, maximum = 10000)]
    limit: Option<u32>,
}

/// Lists the locks that the caller's token holds, as the store has them, whichever instance granted them; without their ids
///
/// It reads all locks of the store. Clients without a token are one owner.
#[utoipa::path(get, path = "/v1/holds", operation_id = "list_holds", tag = "holds", params(OwnHoldsQuery),
    responses((status = 200, description = "The holds", body = OwnHoldList), StoreErrors, LimitErrors))]
pub(super) async fn list(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Parameters(query): Parameters<OwnHoldsQuery>,
) -> Result<Response, ApiError> {
    let limit = query.limit.unwrap_or(1_000);
    if !(1..=10_000).contains(&limit) {
        let message = "limit: it must be 1 to 10000";
        return Err(Refusal::invalid(message, "leave it out for 1000").into());
    }
    let place = service.lists.enter(&caller.principal.name)?;
    let mut own = service.own_holds(&caller).await?;
    own.retain(|claim| {
        let name = service.names.name_of(claim.key.as_str());
        name.starts_with(&query.prefix) && query.after.as_ref().is_none_or(|after| name > *after)
    });
    Ok(CountedBody::json(&OwnHoldList::new(own, &service.names, limit as usize), place))
}

/// The most locks of one hold.
const MOST_LOCKS: usize = 64;

/// Acquires several locks, all or none
#[utoipa::path(post, path = "/v1/holds", operation_id = "acquire_locks", tag = "holds", request_body = SeveralLocks,
    params(("Idempotency-Key" = Option<String>, Header, description = "The same key is the same claim, over retries")),
    responses((status = 200, description = "Granted", body = HoldView), StoreErrors, KindErrors, HoldErrors, LimitErrors))]
pub(super) async fn acquire(
    State(service): State<Arc<Service>>,
    caller: Caller,
    key: Option<IdempotencyKey>,
    Json(asked): Json<SeveralLocks>,
) -> Result<Answer<HoldView>, ApiError> {
    if asked.locks.is_empty() || asked.locks.len() > MOST_LOCKS {
        let message =
            format!("locks: {} were named, 1 to {MOST_LOCKS} are possible", asked.locks.len());
        return Err(Refusal::invalid(message, "name at least one lock, and not too many").into());
    }
    let locks: Result<Vec<_>, _> = asked
        .locks
        .into_iter()
        .map(|lock| wish_of(lock.name, lock.mode, lock.permits, lock.resize, false))
        .collect();
    let options = options(asked.ttl_ms, asked.wait_ms, asked.holder, asked.max_hold_ms);
    let options = marked(options, asked.session, asked.value)?;
    let wish = service.wish(Target::Locks(locks?), options, &caller)?;
    let hold = service.acquire(wish, &caller, claim_name(key)).await?.into_hold()?;
    Ok(Answer(hold.into()))
}

/// Renews a hold
///
/// The store is asked: the hold lasts for the whole ttl again, less the drift of the clocks, counted from the arrival of
/// the request. Any instance of the service with the same seal key can do it. With `503` the validity of the last answer
/// counts.
#[utoipa::path(post, path = "/v1/holds/{hold}/renew", tag = "holds",
    params(("hold" = String, Path, description = "The id of the hold")),
    responses((status = 200, description = "Renewed", body = HoldView), StoreErrors, HoldErrors))]
pub(super) async fn renew(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Id(id): Id,
) -> Result<Answer<HoldView>, ApiError> {
    Ok(Answer(service.renew(&id, &caller).await?.into()))
}

/// Upgrades a read hold to a write hold
///
/// The answer has a new token, which is larger, and a new id; the old id is that of a released hold. Until the other
/// readers have released, it is a read hold, and no new reader is admitted. The service keeps it at the store while the
/// request waits. A repeat after the upgrade, at the same instance, shows the hold as it is. Cutting the connection of a
/// waiting request withdraws the upgrade.
///
/// After a `409` the lock is still held for reading. The kind `UpgradeConflict` says that another reader is upgrading
/// and waits for this hold: release it, then acquire the lock for writing. `TimedOut` says that other readers still
/// held it.
#[utoipa::path(post, path = "/v1/holds/{hold}/upgrade", tag = "holds", request_body = UpgradeWish,
    params(("hold" = String, Path, description = "The id of the hold")),
    responses((status = 200, description = "Held for writing", body = HoldView), StoreErrors, KindErrors, HoldErrors, LimitErrors))]
pub(super) async fn upgrade(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Id(id): Id,
    Json(wish): Json<UpgradeWish>,
) -> Result<Answer<HoldView>, ApiError> {
    let wait = Duration::from_millis(wish.wait_ms.unwrap_or(0));
    Ok(Answer(service.change(&id, &caller, Change::Upgrade { wait }).await?.into()))
}

/// Downgrades a write hold to a read hold
///
/// The answer has a new token, which is larger, and a new id; the old id is that of a released hold. Nobody can write in
/// between, and other readers are admitted. The request renews the hold, and a repeat at the same instance shows it as
/// it is.
#[utoipa::path(post, path = "/v1/holds/{hold}/downgrade", tag = "holds",
    params(("hold" = String, Path, description = "The id of the hold")),
    responses((status = 200, description = "Held for reading", body = HoldView), StoreErrors, KindErrors, HoldErrors, LimitErrors))]
pub(super) async fn downgrade(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Id(id): Id,
) -> Result<Answer<HoldView>, ApiError> {
    Ok(Answer(service.change(&id, &caller, Change::Downgrade).await?.into()))
}

/// Shows a hold of this client as the store has it, and renews nothing
#[utoipa::path(get, path = "/v1/holds/{hold}", operation_id = "show_hold", tag = "holds",
    params(("hold" = String, Path, description = "The id of the hold")),
    responses((status = 200, description = "Held", body = HoldView), StoreErrors, HoldErrors))]
pub(super) async fn show(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Id(id): Id,
) -> Result<Answer<HoldView>, ApiError> {
    Ok(Answer(service.look(&id, &caller).await?.into()))
}

/// Releases a hold; a leader resigns by it, and a task is open for others again
///
/// A repeat tells what the first request did, and waits for it while it is under way. `410` with the kind `Lost` tells
/// that the lock was lost before: the work may have overlapped with that of another holder. With `503` the store has
/// not answered yet: the service asks it until the lease is over, and a repeat tells what it says. `410` with
/// `Unconfirmed` tells that the store never answered, that its answer was lost, or that another instance may have released
/// the hold.
#[utoipa::path(delete, path = "/v1/holds/{hold}", tag = "holds",
    params(("hold" = String, Path, description = "The id of the hold")),
    responses((status = 200, description = "The lock was held until it was released", body = ReleasedView), StoreErrors, HoldErrors))]
pub(super) async fn release(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Id(id): Id,
) -> Result<Answer<ReleasedView>, ApiError> {
    let confirmation = service.release(&id, &caller, ReleaseKind::Release).await?;
    Ok(Answer(confirmation.into()))
}

/// Ends a task with success: it is closed until the end of the period in which it began
///
/// A repeat tells what the first request did, as that of a release does. After a `DELETE` it is `410`: the task is not
/// closed. `410` with `Unconfirmed` tells that the store has not confirmed it: the task may run again.
#[utoipa::path(post, path = "/v1/holds/{hold}/succeed", tag = "once",
    params(("hold" = String, Path, description = "The id of the hold")),
    responses((status = 200, description = "Done, and closed for this period", body = ReleasedView), StoreErrors, HoldErrors))]
pub(super) async fn succeed(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Id(id): Id,
) -> Result<Answer<ReleasedView>, ApiError> {
    let confirmation = service.release(&id, &caller, ReleaseKind::Succeed).await?;
    Ok(Answer(confirmation.into()))
}
