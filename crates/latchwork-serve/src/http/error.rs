//! Errors as clients see them: always a status and `{error, kind, key, next_step}`.

use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use latchwork::{Error, ErrorKind};
use serde::Serialize;
use utoipa::ToSchema;

use super::views::LockView;

/// The body of every answer that is not a success.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ErrorBody {
    /// What happened, for people. Not for programs: the words may change.
    pub(crate) error: String,
    /// The kind, to decide by: `TimedOut`, `Lost`, `Released`, `Unconfirmed`, `NotFound`, `Invalid`, `Unreachable`,
    /// `Busy`, `Closed` ...
    pub(crate) kind: &'static str,
    /// The name of the lock that it is about.
    pub(crate) key: Option<String>,
    /// What to do next.
    pub(crate) next_step: String,
    /// The lock at this moment, if it was not free: its holders, and the waiters in their order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lock: Option<Box<LockView>>,
    /// Why a hold ended, if the kind is `Lost`: `not_renewed`, `forced`, `expired`, `taken`, `session_ended`, `max_hold`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<&'static str>,
}

/// An answer that is not a success.
#[derive(Debug, Clone)]
pub(crate) struct ApiError {
    status: StatusCode,
    body: Box<ErrorBody>,
    retry_after: Option<Duration>,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, kind: &'static str, error: impl Into<String>) -> Self {
        let body = ErrorBody {
            error: error.into(),
            kind,
            key: None,
            next_step: String::new(),
            lock: None,
            reason: None,
        };
        Self { status, body: Box::new(body), retry_after: None }
    }

    /// A field, a header or a path that cannot be used.
    pub(crate) fn invalid(error: impl Into<String>, step: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "Invalid", error).next_step(step)
    }

    /// The token does not allow this.
    pub(crate) fn forbidden(error: impl Into<String>, step: &str) -> Self {
        Self::new(StatusCode::FORBIDDEN, "Forbidden", error).next_step(step)
    }

    /// A limit is reached.
    pub(crate) fn busy(error: impl Into<String>, step: &str) -> Self {
        let mut it = Self::new(StatusCode::TOO_MANY_REQUESTS, "Busy", error).next_step(step);
        it.retry_after = Some(Duration::from_secs(1));
        it
    }

    /// The service stops.
    pub(crate) fn closed() -> Self {
        let message = "the service is stopping: it takes and renews no locks";
        let mut it = Self::new(StatusCode::SERVICE_UNAVAILABLE, "Closed", message).next_step(
            "finish within what remains of valid_for_ms and release; then ask another instance",
        );
        it.retry_after = Some(Duration::from_secs(1));
        it
    }

    /// A token that is in no file of tokens, or not any more.
    pub(crate) fn unknown_token() -> Self {
        let message = "token: the service does not know it";
        Self::new(StatusCode::UNAUTHORIZED, "Unauthorized", message)
            .next_step("check the token, and the file that the service was started with")
    }

    /// Something that cannot be.
    pub(crate) fn broken() -> Self {
        let message = "the service could not write its answer";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "Broken", message)
            .next_step("report this: it is a mistake of the service")
    }

    /// No such hold; there may never have been one.
    pub(crate) fn no_hold() -> Self {
        Self::new(StatusCode::NOT_FOUND, "NotFound", "hold: the service does not know this hold").next_step(
            "treat the lock as lost: it was released, ended long ago, or the service was restarted since",
        )
    }

    /// The status of the answer.
    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    /// The body of the answer.
    pub(crate) fn json(&self) -> Option<String> {
        serde_json::to_string(&self.body).ok()
    }

    #[must_use]
    pub(crate) fn next_step(mut self, step: impl Into<String>) -> Self {
        self.body.next_step = step.into();
        self
    }

    #[must_use]
    pub(crate) fn key(mut self, key: impl Into<String>) -> Self {
        self.body.key = Some(key.into());
        self
    }

    /// Adds what the lock looks like now.
    #[must_use]
    pub(crate) fn lock(mut self, lock: Option<LockView>) -> Self {
        self.body.lock = lock.map(Box::new);
        self
    }

    #[must_use]
    pub(crate) fn reason(mut self, reason: &'static str) -> Self {
        self.body.reason = Some(reason);
        self
    }

    /// The answer to an error of the library about the lock `name`.
    pub(crate) fn of(error: &Error, name: Option<&str>) -> Self {
        let (status, kind) = match error.kind() {
            ErrorKind::TimedOut => (StatusCode::CONFLICT, "TimedOut"),
            ErrorKind::Mismatch => (StatusCode::CONFLICT, "Mismatch"),
            ErrorKind::Invalid => (StatusCode::BAD_REQUEST, "Invalid"),
            ErrorKind::Unsupported => (StatusCode::UNPROCESSABLE_ENTITY, "Unsupported"),
            ErrorKind::Lost => (StatusCode::GONE, "Lost"),
            ErrorKind::Unreachable => (StatusCode::SERVICE_UNAVAILABLE, "Unreachable"),
            ErrorKind::Busy => (StatusCode::SERVICE_UNAVAILABLE, "Busy"),
            ErrorKind::Closed => return Self::closed(),
            ErrorKind::Denied => (StatusCode::BAD_GATEWAY, "Denied"),
            ErrorKind::Corrupt => (StatusCode::BAD_GATEWAY, "Corrupt"),
            _ => (StatusCode::INTERNAL_SERVER_ERROR, "Broken"),
        };
        let mut it = Self::new(status, kind, error.message());
        // The library names commands there; a client of the service has others.
        let hint = error.hint().filter(|_| error.kind() != ErrorKind::TimedOut);
        it.body.next_step = hint.unwrap_or_else(|| usual_step(error.kind())).to_owned();
        it.body.key = name.map(str::to_owned);
        if status == StatusCode::SERVICE_UNAVAILABLE {
            it.retry_after = Some(Duration::from_secs(1));
        }
        it
    }
}

fn usual_step(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::TimedOut => "wait longer (wait_ms), or look who holds it: GET /v1/locks/{name}",
        ErrorKind::Mismatch => "use the key as one kind of lock only",
        ErrorKind::Invalid => "correct the field that the message names",
        ErrorKind::Unsupported => "use another kind of lock, or another store",
        ErrorKind::Lost => "stop the work, and check what was written under this token",
        ErrorKind::Unreachable | ErrorKind::Busy => {
            "try again in a moment; GET /readyz tells whether the store answers"
        }
        ErrorKind::Denied => "check the credentials with which the service uses its store",
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
        if let Some(pause) = self.retry_after {
            headers.insert(header::RETRY_AFTER, pause.as_secs().max(1).into());
        }
        response
    }
}

/// The answers that any request may get, for the description of the API.
#[derive(utoipa::IntoResponses)]
#[allow(dead_code, reason = "described, never made")]
pub(crate) enum Errors {
    /// A field, a header, the path or the JSON cannot be used; the message names it
    #[response(status = 400)]
    Invalid(ErrorBody),
    /// No token, or an unknown one
    #[response(status = 401)]
    Unauthorized(ErrorBody),
    /// The token does not allow this, or the request comes from another site
    #[response(status = 403)]
    Forbidden(ErrorBody),
    /// There is no such hold, or no such path
    #[response(status = 404)]
    NotFound(ErrorBody),
    /// The lock was not free in time, or its key is in use as another kind of lock
    #[response(status = 409)]
    Conflict(ErrorBody),
    /// The body did not arrive in time
    #[response(status = 408)]
    Slow(ErrorBody),
    /// The hold has ended: released, lost, not renewed in time, or released without a word of the store (`Unconfirmed`)
    #[response(status = 410)]
    Gone(ErrorBody),
    /// The body is too large
    #[response(status = 413)]
    TooLarge(ErrorBody),
    /// The body is not `application/json`
    #[response(status = 415)]
    NotJson(ErrorBody),
    /// The store has no such locks, or the `Idempotency-Key` belongs to another request
    #[response(status = 422)]
    Unprocessable(ErrorBody),
    /// Too many holds or waiting requests of this token
    #[response(status = 429)]
    Busy(ErrorBody),
    /// The store refused the service, or what it holds is damaged
    #[response(status = 502)]
    Store(ErrorBody),
    /// The store does not answer, or the service stops
    #[response(status = 503)]
    Unavailable(ErrorBody),
}
