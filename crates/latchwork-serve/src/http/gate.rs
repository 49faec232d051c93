//! The gate that every request passes first: it takes the time of arrival, checks origin and token, and adds to the
//! answer the headers that all answers have.

use std::sync::Arc;

use axum::extract::{ConnectInfo, FromRequestParts, MatchedPath, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use latchwork_store::Moment;
use latchwork_store::clock::boot_time;

use super::error::ApiError;
use super::origin::{self, Hosts};
use super::{body, streamed};
use crate::domain::access::caller::{Caller, Peer};
use crate::domain::refusal::{Kind, Refusal};
use crate::domain::service::Service;

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let caller = parts.extensions.get::<Self>().cloned();
        caller.ok_or_else(ApiError::no_token)
    }
}

/// Whether a path shows nothing about locks, so that no token is needed.
fn is_public(path: &str) -> bool {
    !path.starts_with("/v1/") && path != "/metrics"
}

/// The service, and the names by which clients may address it.
pub(super) struct Gate {
    pub(super) service: Arc<Service>,
    /// More than the usual ones of a service on loopback.
    pub(super) allow_hosts: Vec<String>,
}

/// Checks a request, answers it, and records how long that took.
pub(super) async fn pass(
    State(gate): State<Arc<Gate>>,
    mut request: Request,
    next: Next,
) -> Response {
    let arrival = boot_time();
    let peer = request.extensions().get::<ConnectInfo<Peer>>().map(|info| info.0.clone());
    let peer = peer.unwrap_or_default();
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let rest = body::shared(&mut request);
    let answer = match admit(&gate, &peer, arrival, &mut request) {
        Ok(()) if method == Method::OPTIONS => allowed(next.run(request).await),
        Ok(()) => streamed::answer(request, next).await,
        Err(refused) => refused.into_response(),
    };
    rest.skip().await;
    record(&method, route.as_deref().unwrap_or("other"), &answer, arrival, &peer);
    with_headers(answer)
}

fn admit(gate: &Gate, peer: &Peer, arrival: Moment, request: &mut Request) -> Result<(), ApiError> {
    let access = &gate.service.access;
    let is_passed_on = is_passed_on(request.headers()) && !access.is_open();
    let anonymous = access.anonymous(peer).filter(|_| !is_passed_on);
    let token = bearer(request);
    // A page whose name leads here has no token, so the name counts where none is needed. No browser reaches a Unix
    // socket.
    let hosts = match (&token, &anonymous) {
        (Ok(None), Some(_)) if !peer.is_unix() => {
            Hosts::without_a_token(&gate.allow_hosts, access.is_open())
        }
        _ => Hosts::Any,
    };
    origin::check(&hosts, request)?;
    let principal = match token? {
        Some(token) => {
            let known = access.principal(token.as_bytes());
            Some(known.ok_or_else(Refusal::unknown_token)?)
        }
        None => anonymous,
    };
    match principal {
        Some(principal) => {
            request.extensions_mut().insert(Caller { principal, arrival, peer: peer.clone() });
            Ok(())
        }
        None if is_public(request.uri().path()) => Ok(()),
        None => Err(ApiError::no_token()),
    }
}

/// Whether a proxy says that it passes a request on: the address of the peer is then not that of the client.
fn is_passed_on(headers: &HeaderMap) -> bool {
    ["forwarded", "x-forwarded-for", "x-real-ip", "via"].iter().any(|it| headers.contains_key(*it))
}

/// The token that a request carries.
fn bearer(request: &Request) -> Result<Option<&str>, Refusal> {
    let mut values = request.headers().get_all(header::AUTHORIZATION).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let words = value.to_str().ok().and_then(|text| text.split_once(' '));
    match (words, values.next()) {
        (Some((scheme, token)), None) if scheme.eq_ignore_ascii_case("bearer") => {
            Ok(Some(token.trim()))
        }
        _ => {
            Err(Refusal::new(Kind::Unauthorized, "Authorization: only Bearer TOKEN is understood")
                .with_next_step("send the header Authorization: Bearer TOKEN"))
        }
    }
}

fn record(method: &Method, route: &str, answer: &Response, arrival: Moment, peer: &Peer) {
    let took = boot_time().since(arrival);
    let status = answer.status();
    crate::metrics::request(method.as_str(), route, status.as_u16(), took);
    tracing::debug!(target: "latchwork::http", %method, route, status = status.as_u16(), took_us = took.as_micros() as u64, %peer, "request");
}

/// The headers of every answer.
pub(crate) const HEADERS: [(HeaderName, &str); 7] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (header::CACHE_CONTROL, "no-store"),
];

/// How long a client may keep an idle connection and use it again: less than the service keeps it.
const KEEP_ALIVE: (HeaderName, HeaderValue) =
    (HeaderName::from_static("keep-alive"), HeaderValue::from_static("timeout=15"));

/// Makes nginx pass events on at once: without it, nginx buffers an answer of unknown length.
const UNBUFFERED: HeaderName = HeaderName::from_static("x-accel-buffering");

/// Keeps what compresses answers on their way from collecting events until they are worth a block.
const UNCHANGED: HeaderValue = HeaderValue::from_static("no-cache, no-transform");

/// The answer to OPTIONS, from the one to a method that a path does not have. `Allow` is added to both later.
fn allowed(answer: Response) -> Response {
    if answer.status() != StatusCode::METHOD_NOT_ALLOWED {
        return answer;
    }
    StatusCode::NO_CONTENT.into_response()
}

fn with_headers(mut answer: Response) -> Response {
    let kind = answer.headers().get(header::CONTENT_TYPE);
    if kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream")) {
        answer.headers_mut().insert(UNBUFFERED, HeaderValue::from_static("no"));
        answer.headers_mut().insert(header::CACHE_CONTROL, UNCHANGED);
    }
    answer.headers_mut().insert(KEEP_ALIVE.0, KEEP_ALIVE.1);
    for (name, value) in HEADERS {
        if !answer.headers().contains_key(&name) {
            answer.headers_mut().insert(name, HeaderValue::from_static(value));
        }
    }
    answer
}
