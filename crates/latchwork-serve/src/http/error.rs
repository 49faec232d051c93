//! Errors as clients see them: always a status and `{error, kind, key, next_step}`.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::views::LockView;
use crate::domain::refusal::{Kind, Refusal};

/// The body of every answer that is not a success.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ErrorBody {
    /// What happened, for people. Not for programs: the words may change.
    error: String,
    /// The kind, to decide by: `TimedOut`, `UpgradeConflict`, `Lost`, `Released`, `Unconfirmed`, `NotFound`, `Invalid`, `Unreachable`,
    /// `Busy`, `Closed` ...
    kind: &'static str,
    /// The name of the lock that it is about.
    key: Option<String>,
    /// What to do next.
    next_step: String,
    /// The lock at this moment, if it was not free: its holders, and the waiters in their order.
    #[serde(skip_serializing_if = "Option::is_none")]
    lock: Option<Box<LockView>>,
    /// Why a hold ended, if the kind is `Lost`: `not_renewed`, `forced`, `expired`, `taken`, `session_ended`, `max_hold`.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
}

impl From<&Refusal> for ErrorBody {
    fn from(refusal: &Refusal) -> Self {
        let step = match &*refusal.step {
            "" => usual_step(refusal.kind),
            step => step,
        };
        Self {
            error: refusal.message.clone(),
            kind: refusal.kind.word(),
            key: refusal.key.clone(),
            next_step: step.to_owned(),
            lock: refusal.lock.as_deref().map(|lock| Box::new(lock.into())),
            reason: refusal.reason,
        }
    }
}

/// An answer that is not a success: a refusal of the service, or of the request's form.
#[derive(Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    refusal: Box<Refusal>,
}

impl ApiError {
    /// A refusal with another status than the usual one of its kind.
    pub(crate) fn new(status: StatusCode, refusal: Refusal) -> Self {
        Self { status, refusal: Box::new(refusal) }
    }

    /// The request has no token.
    pub(crate) fn no_token() -> Self {
        Refusal::new(Kind::Unauthorized, "token: none was sent")
            .with_next_step("send the header Authorization: Bearer TOKEN")
            .into()
    }

    /// A mistake of the service.
    pub(crate) fn broken() -> Self {
        Refusal::new(Kind::Broken, "the service could not write its answer")
            .with_next_step("report this: it is a mistake of the service")
            .into()
    }

    /// The status of the answer.
    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    /// The body of the answer.
    pub(crate) fn json(&self) -> Option<String> {
        serde_json::to_string(&ErrorBody::from(&*self.refusal)).ok()
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        Self::new(status(refusal.kind), refusal)
    }
}

fn status(kind: Kind) -> StatusCode {
    match kind {
        Kind::Invalid => StatusCode::BAD_REQUEST,
        Kind::Unauthorized => StatusCode::UNAUTHORIZED,
        Kind::Forbidden => StatusCode::FORBIDDEN,
        Kind::NotFound => StatusCode::NOT_FOUND,
        Kind::TimedOut | Kind::UpgradeConflict | Kind::Mismatch => StatusCode::CONFLICT,
        Kind::ReusedName | Kind::Unsupported => StatusCode::UNPROCESSABLE_ENTITY,
        Kind::Lost | Kind::Released | Kind::Unconfirmed => StatusCode::GONE,
        Kind::LimitReached => StatusCode::TOO_MANY_REQUESTS,
        Kind::Suspect | Kind::Unreachable | Kind::Busy | Kind::Closed => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        Kind::Denied | Kind::Corrupt => StatusCode::BAD_GATEWAY,
        Kind::Broken => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

fn usual_step(kind: Kind) -> &'static str {
    match kind {
        Kind::TimedOut => "wait longer (wait_ms), or look who holds it: GET /v1/locks/{name}",
        Kind::Mismatch => "use the key as one kind of lock only",
        Kind::Invalid => "correct the field that the message names",
        Kind::Unsupported => "use another kind of lock, or another store",
        Kind::Lost => "stop the work, and check what was written under this token",
        Kind::Unreachable | Kind::Busy => {
            "try again in a moment; GET /readyz tells whether the store answers"
        }
        Kind::Denied => "check the credentials with which the service uses its store",
        _ => "see the log of the service",
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let Some(text) = self.json() else {
            return StatusCode::INTERNAL_SERVER_ERROR.into_response();
        };
        let json = (header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let mut response = (self.status, [json], text).into_response();
        let headers = response.headers_mut();
        if self.status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer realm=\"latchwork\"");
            headers.insert(header::WWW_AUTHENTICATE, scheme);
        }
        if let Some(pause) = self.refusal.retry_after {
            headers.insert(header::RETRY_AFTER, pause.as_secs().max(1).into());
        }
        response
    }
}

/// The answers that any request may get, for the description of the API.
#[derive(utoipa::IntoResponses)]
#[allow(dead_code, reason = "described, never made")]
pub(super) enum AnyErrors {
    /// A field, a header, the path or the JSON cannot be used; the message names it
    #[response(status = 400)]
    Invalid(ErrorBody),
    /// No token, or an unknown one
    #[response(status = 401, headers(("WWW-Authenticate" = String, description = "`Bearer`")))]
    Unauthorized(ErrorBody),
    /// The token does not allow this, or the request comes from another site
    #[response(status = 403)]
    Forbidden(ErrorBody),
    /// The path is too long: send a long name in the body
    #[response(status = 414)]
    LongPath(ErrorBody),
    /// The head is longer than 64 KiB, or has more than 100 headers
    #[response(status = 431)]
    LongHead(ErrorBody),
}

/// Those of a request with a body.
#[derive(utoipa::IntoResponses)]
#[allow(dead_code, reason = "described, never made")]
pub(super) enum BodyErrors {
    /// The body did not arrive in time
    #[response(status = 408)]
    Slow(ErrorBody),
    /// The body is too large
    #[response(status = 413)]
    TooLarge(ErrorBody),
    /// The body is not `application/json`
    #[response(status = 415)]
    NotJson(ErrorBody),
}

/// Those of a request for which the store is asked.
#[derive(utoipa::IntoResponses)]
#[allow(dead_code, reason = "described, never made")]
pub(super) enum StoreErrors {
    /// The store refused the service, or what it holds is damaged
    #[response(status = 502)]
    Store(ErrorBody),
    /// The store does not answer, or the service stops
    #[response(status = 503, headers(("Retry-After" = u64, description = "After so many seconds a repeat may succeed")))]
    Unavailable(ErrorBody),
}

/// Those of a request that depends on what is locked.
#[derive(utoipa::IntoResponses)]
#[allow(dead_code, reason = "described, never made")]
pub(super) enum KindErrors {
    /// The lock was not free in time, another reader upgrades its hold, or the key is in use as another kind of lock
    #[response(status = 409)]
    Conflict(ErrorBody),
    /// The store has no such locks, or the `Idempotency-Key` belongs to another request
    #[response(status = 422)]
    Unprocessable(ErrorBody),
}

/// Those of a request that is about a hold or a session, or names one.
#[derive(utoipa::IntoResponses)]
#[allow(dead_code, reason = "described, never made")]
pub(super) enum HoldErrors {
    /// There is no such hold or session
    #[response(status = 404)]
    NotFound(ErrorBody),
    /// The hold has ended: released, lost, not renewed in time, or released without a word of the store (`Unconfirmed`)
    #[response(status = 410)]
    Gone(ErrorBody),
}

/// Those of a request that counts towards a limit of its token.
#[derive(utoipa::IntoResponses)]
#[allow(dead_code, reason = "described, never made")]
pub(super) enum LimitErrors {
    /// Too many holds, waiting requests, lists or streams of this token
    #[response(status = 429, headers(("Retry-After" = u64, description = "After so many seconds a repeat may succeed")))]
    Busy(ErrorBody),
}
